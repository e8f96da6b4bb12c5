"""evaluate(): arrays and stores, any chunking, both protocols, against rankings that are sorted."""

from __future__ import annotations

from pathlib import Path

import dask
import numpy as np
import pytest
import scipy.sparse as sp

from sadih_dask import SADIH, CodeStore, FeatureStore, evaluate, evaluate_model
from sadih_dask.errors import Advice, InputError, LabelError
from sadih_dask.model.evaluation import AskedRows
from sadih_dask.retrieval.evaluation import Evaluation, sample_queries
from tests.support import rankings
from tests.support.rankings import naive_distances, random_codes

N_BITS = 12


@pytest.fixture(params=["single", "multi"])
def data(request: pytest.FixtureRequest) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    n, q = 700, 33
    if request.param == "single":
        labels, asked = rng.integers(0, 5, n), rng.integers(0, 5, q)
    else:
        labels, asked = ((rng.random((m, 6)) < 0.3).astype(np.uint8) for m in (n, q))
        labels[:, 0] |= ~labels.any(axis=1)
        asked[:, 3] |= ~asked.any(axis=1)
    return random_codes(rng, n, N_BITS), random_codes(rng, q, N_BITS), labels, asked


def assert_equal(a: Evaluation, b: Evaluation) -> None:
    for name, value in a.to_dict().items():
        assert value == b.to_dict()[name], name


def test_against_sorted_rankings(data) -> None:
    database, queries, labels, asked = data
    found = evaluate(database, queries, labels, asked, n_bits=N_BITS, cutoffs=(10,))
    pairs = naive_distances(queries, database)
    shares = (
        labels[None] == asked[:, None] if labels.ndim == 1 else asked.astype(int) @ labels.T > 0
    )
    values: dict[str, list[float]] = {"map": [], "map@10": [], "p@10": [], "r@10": []}
    for i in range(len(queries)):
        orders = rankings.random_orders(pairs[i], shares[i], 300, seed=i)
        values["map"].append(np.mean([rankings.average_precision(o) for o in orders]))
        values["map@10"].append(np.mean([rankings.average_precision(o, 10) for o in orders]))
        values["p@10"].append(np.mean([rankings.precision(o, 10) for o in orders]))
        values["r@10"].append(np.mean([rankings.recall(o, 10) for o in orders]))
    assert found.map == pytest.approx(np.mean(values["map"]), abs=1e-3)
    assert found.map_at[10] == pytest.approx(np.mean(values["map@10"]), abs=5e-3)
    assert found.precision_at[10] == pytest.approx(np.mean(values["p@10"]), abs=5e-3)
    assert found.recall_at[10] == pytest.approx(np.mean(values["r@10"]), abs=1e-3)
    assert found.similar.sum() == shares.sum()
    assert found.dissimilar.sum() == (~shares).sum()
    within = [
        (shares[i] & (pairs[i] <= 2)).sum() / max((pairs[i] <= 2).sum(), 1) for i in range(33)
    ]
    assert found.precision_within == pytest.approx(np.mean(within))


@pytest.mark.parametrize("chunk_rows", [1, 50, 333, 1000])
def test_any_chunking_gives_the_same(
    data, tmp_path: Path, chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, queries, labels, asked = data
    expected = evaluate(database, queries, labels, asked, n_bits=N_BITS)
    monkeypatch.setattr("sadih_dask.compute.tree.ROWS_PER_TASK", 30)
    monkeypatch.setattr("sadih_dask.compute.tree.PARTIAL_BYTES", 16 * 13 * 8)
    monkeypatch.setattr("sadih_dask.compute.codes.BLOCK_BYTES", 400)
    codes = CodeStore.create(
        tmp_path / "c", database, n_bits=N_BITS, model="m", chunk_rows=chunk_rows
    )
    rows = FeatureStore.create(tmp_path / "f", np.zeros((700, 2)), labels, chunk_rows=90)
    query_codes = CodeStore.create(tmp_path / "q", queries, n_bits=N_BITS, model="m")
    query_rows = FeatureStore.create(tmp_path / "g", np.zeros((33, 2)), asked)
    for compiled in (0, 2**24):
        monkeypatch.setattr("sadih_dask.compute.evaluate.FEW_PAIRS", compiled)
        for scheduler in ("synchronous", "threads"):
            with dask.config.set(scheduler=scheduler, num_workers=3):
                found = evaluate(codes, query_codes, rows, query_rows)
            assert_equal(found, expected)
    assert_equal(evaluate(codes, queries, labels, asked), expected)


def test_rows_that_stand_for_many(data) -> None:
    database, queries, labels, asked = data
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 4, len(database))
    some = evaluate(database, queries, labels, asked, counts=counts, n_bits=N_BITS)
    repeated = np.repeat(np.arange(len(database)), counts)
    all_rows = evaluate(database[repeated], queries, labels[repeated], asked, n_bits=N_BITS)
    assert_equal(some, all_rows)


def test_labels_in_other_forms(data) -> None:
    database, queries, labels, asked = data
    expected = evaluate(database, queries, labels, asked, n_bits=N_BITS)
    if labels.ndim == 2:
        forms = [(sp.csr_array(labels), sp.csc_matrix(asked)), (labels > 0, asked.astype(float))]
    else:
        names = np.array(["e", "d", "c", "b", "a"])
        forms = [(names[labels], names[asked]), (labels.astype(np.int8), asked.tolist())]
    for a, b in forms:
        assert_equal(evaluate(database, queries, a, b, n_bits=N_BITS), expected)


ANIMALS = ["eel", "dog", "cat", "bee", "ant", "fox"]


def named_store(path: Path, labels: np.ndarray, names: list[str] | None, **options) -> FeatureStore:
    return FeatureStore.create(
        path, np.zeros((len(labels), 2)), labels, class_names=names, **options
    )


@pytest.mark.parametrize("kept", [5, 3])
def test_classes_of_two_stores_meet_by_name(data, tmp_path: Path, kept: int) -> None:
    """Also where one side lacks classes of the other: its queries find nothing, which is true."""
    database, queries, labels, asked = data
    order = [3, 1, 4, 0, 2, 5][:kept]  # number k of the database is class order[k]
    names = ANIMALS[: labels.shape[1] if labels.ndim == 2 else 5]
    if labels.ndim == 1:
        some = np.isin(labels, order)
        numbers = np.array([order.index(k) for k in labels[some]])
        shares = labels[some][None] == asked[:, None]
    else:
        some = labels[:, order].any(axis=1)
        numbers = labels[some][:, order]
        shares = asked.astype(int)[:, order] @ numbers.T > 0
    rows = named_store(tmp_path / "f", numbers, [names[k] for k in order], chunk_rows=90)
    query_rows = named_store(tmp_path / "q", asked, names)
    found = evaluate(database[some], queries, rows, query_rows, n_bits=N_BITS)
    pairs = naive_distances(queries, database[some])
    for distance in range(N_BITS + 1):
        assert found.similar[distance] == (shares & (pairs == distance)).sum()
        assert found.dissimilar[distance] == (~shares & (pairs == distance)).sum()
    assert found.n_without_relevant == (~shares.any(axis=1)).sum()
    # The other way round, and against names in an array.
    turned = evaluate(queries, database[some], query_rows, rows, n_bits=N_BITS)
    np.testing.assert_array_equal(turned.similar, found.similar)
    if labels.ndim == 1:
        for form in (np.array(names)[asked], np.array(names, object)[asked]):
            assert_equal(evaluate(database[some], queries, rows, form, n_bits=N_BITS), found)


def test_numbers_meet_names_that_are_numerals_and_no_others(data, tmp_path: Path) -> None:
    database, queries, labels, asked = data
    if labels.ndim == 2:
        pytest.skip("a matter of one class a row")
    expected = evaluate(database, queries, labels, asked, n_bits=N_BITS)
    order = [3, 1, 4, 0, 2]
    digits = named_store(tmp_path / "d", np.argsort(order)[labels], [str(k) for k in order])
    plain = named_store(tmp_path / "p", asked, None)
    for form in (asked, plain, asked.astype(str)):
        assert_equal(evaluate(database, queries, digits, form, n_bits=N_BITS), expected)
    animals = named_store(tmp_path / "a", labels, ANIMALS)
    for one, other in ((animals, asked), (animals, plain), (plain, np.array(ANIMALS)[labels])):
        with pytest.raises(LabelError, match="class names and the other class numbers"):
            evaluate(database, queries, one, other, n_bits=N_BITS)
    short = named_store(tmp_path / "s", asked, ["dog", "cat"])
    with pytest.raises(LabelError, match="only 2 classes have names"):
        evaluate(database, queries, animals, short, n_bits=N_BITS)


def test_what_cannot_be_evaluated(data, tmp_path: Path) -> None:
    database, queries, labels, asked = data
    with pytest.raises(LabelError, match="the database: no labels were given"):
        evaluate(database, queries, None, asked)
    with pytest.raises(LabelError, match="700 codes but 699 rows of labels"):
        evaluate(database, queries, labels[1:], asked, n_bits=N_BITS)
    with pytest.raises(LabelError, match="queries hold 33 codes but 32 rows"):
        evaluate(database, queries, labels, asked[1:], n_bits=N_BITS)
    with pytest.raises(LabelError, match="one class a row, or rows of 0 and 1"):
        evaluate(database, queries, labels, np.ones((33, 4), int), n_bits=N_BITS)
    with pytest.raises(InputError, match="expected 700 integers"):
        evaluate(database, queries, labels, asked, counts=np.ones(3, int), n_bits=N_BITS)
    unlabelled = FeatureStore.create(tmp_path / "f", np.zeros((700, 2)))
    with pytest.raises(LabelError, match=r"has no labels\. Ingest it with labels"):
        evaluate(database, queries, unlabelled, asked, n_bits=N_BITS)
    with pytest.raises(LabelError, match="class names and the other class numbers"):
        evaluate(database, queries, np.array(["a"] * 700), np.zeros(33, int), n_bits=N_BITS)
    store = CodeStore.create(tmp_path / "c", database, n_bits=N_BITS, model="m")
    with pytest.raises(InputError, match="counts belong to codes in memory"):
        evaluate(store, queries, labels, asked, counts=np.ones(700, int))


@pytest.fixture(params=["single", "multi"])
def problem(request: pytest.FixtureRequest) -> tuple[SADIH, tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(2)
    n, q = 500, 40
    if request.param == "single":
        labels = np.array([2, 3, 7, 11])[rng.integers(0, 4, n + q)]
        centres = rng.standard_normal((12, 8))
        X = centres[labels] + rng.standard_normal((n + q, 8))
    else:
        labels = (rng.random((n + q, 4)) < 0.4).astype(np.uint8)
        labels[:, 1] |= ~labels.any(axis=1)
        X = labels @ rng.standard_normal((4, 8)) + rng.standard_normal((n + q, 8))
    model = SADIH(n_bits=N_BITS, anchors=None, n_init=2, block_rows=64).fit(X[:n], labels[:n])
    return model, (X[:n], labels[:n], X[n:], labels[n:])


def test_both_protocols_of_a_model(problem, tmp_path: Path) -> None:
    model, (X, y, Q, z) = problem
    found = evaluate_model(model, (Q, z), (X, y))
    queries = model.transform(Q)
    learned = evaluate(model.learned_codes(y), queries, y, z, n_bits=N_BITS)
    encoded = evaluate(model.transform(X), queries, y, z, n_bits=N_BITS)
    assert_equal(found.learned, learned)
    assert_equal(found.encoded, encoded)
    assert found.fresh.map == pytest.approx(model.score(Q, z))
    first = repr(found).splitlines()[0]
    assert first.startswith("12 bits, 40 queries, 500 / 500 / 39")

    rows = FeatureStore.create(tmp_path / "f", X, y, chunk_rows=70)
    asked = FeatureStore.create(tmp_path / "q", Q, z, chunk_rows=9)
    for kwargs in ({}, {"codes": model.encode(rows, tmp_path / "c")}):
        stored = evaluate_model(model, asked, rows, **kwargs)
        assert_equal(stored.learned, learned)
        assert_equal(stored.encoded, encoded)
    assert_equal(evaluate_model(model, (Q, z), rows).encoded, encoded)
    assert evaluate_model(model, asked).encoded is None


def test_a_sample_of_the_queries_is_looked_up(problem, tmp_path: Path) -> None:
    model, (X, y, Q, z) = problem
    drawn = sample_queries(len(Q), 15)
    expected = evaluate_model(model, (Q[drawn], z[drawn]), (X, y))
    asked = FeatureStore.create(tmp_path / "q", Q, z, chunk_rows=9)
    for queries in ((Q, z), asked):
        found = evaluate_model(model, queries, (X, y), max_queries=15, class_folds=0)
        assert found.fresh.n_queries == 15
        assert found.fresh.n_database == 39
        for name in ("learned", "encoded"):
            one = found.known[name]
            assert (one.n_queries, one.n_drawn_from) == (15, 40)
            assert one.standard_errors == expected.known[name].standard_errors
            assert one.numbers == expected.known[name].numbers
        assert repr(found).startswith("12 bits, 15 of 40 queries, ")
        everything = evaluate_model(model, queries, (X, y), max_queries=None)
        assert everything.learned.n_queries == everything.learned.n_drawn_from == 40
    with pytest.raises(LabelError, match="queries hold 40 codes but 39 rows of labels"):
        evaluate_model(model, (Q, z[:-1]), (X, y), max_queries=15)


def test_queries_of_a_class_that_nobody_has_find_nothing_relevant(problem) -> None:
    model, (X, y, Q, z) = problem
    if y.ndim == 2:
        pytest.skip("multi-hot labels have a column for every class")
    z = z.copy()
    z[:4] = 5
    found = evaluate_model(model, (Q, z), (X, y))
    assert found.learned.n_without_relevant == found.encoded.n_without_relevant == 4


@pytest.mark.parametrize("classes", [np.array(["cat", "dog"]), np.array([-1, 1])])
def test_classes_that_stores_do_not_have(classes: np.ndarray) -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 100)
    X = rng.standard_normal((100, 4)) + 3 * y[:, None]
    model = SADIH(n_bits=8, anchors=None).fit(X, classes[y])
    with pytest.warns(Advice, match="100 of 100 queries .* that the model has learned from"):
        found = evaluate_model(model, (X, classes[y]), (X, classes[y]))
    assert found.fresh.map == pytest.approx(model.score(X, classes[y]))


def test_codes_of_another_model_are_refused(problem, tmp_path: Path) -> None:
    model, (X, y, Q, z) = problem
    rows = FeatureStore.create(tmp_path / "f", X, y)
    codes = CodeStore.create(tmp_path / "c", model.transform(X), n_bits=N_BITS, model="other")
    with pytest.raises(InputError, match="Encode the rows with this one first"):
        evaluate_model(model, (Q, z), rows, codes=codes)
    with pytest.raises(LabelError, match="pass the database that holds them"):
        evaluate_model(model, (Q, z), codes=codes)
    model.save(tmp_path / "m", statistics=False)
    with pytest.raises(InputError, match="saved without statistics"):
        evaluate_model(SADIH.load(tmp_path / "m"), (Q, z))


def test_codes_of_other_rows_are_refused(problem, tmp_path: Path) -> None:
    """As many rows, and of the same model: only what the codes say of themselves tells."""
    model, (X, y, Q, z) = problem
    rows = FeatureStore.create(tmp_path / "f", X, y, ids=np.arange(len(X)))
    other = FeatureStore.create(tmp_path / "o", X[::-1], y[::-1])
    codes, asked = model.encode(rows, tmp_path / "c"), model.transform(Q)
    found = evaluate(codes, asked, rows, z, n_bits=N_BITS)
    assert_equal(found, evaluate_model(model, (Q, z), rows, codes=codes).encoded)
    learned = model.encode(rows, tmp_path / "l", learned=True)
    with pytest.raises(InputError, match="holds learned codes"):
        evaluate_model(model, (Q, z), rows, codes=learned)
    rows.delete([3])
    rows.append(X[:1], y[:1], ids=[1000])
    for labels in (other, rows):
        with pytest.raises(InputError, match="does not hold codes of the rows of"):
            evaluate(codes, asked, labels, z, n_bits=N_BITS)
        with pytest.raises(InputError, match="does not hold codes of the rows of"):
            evaluate_model(model, (Q, z), labels, codes=codes)


@pytest.mark.parametrize("lacking", [False, True])
def test_a_model_meets_stores_by_the_names_of_classes(tmp_path: Path, lacking: bool) -> None:
    """A database that was ingested apart numbers its classes otherwise, and may lack some."""
    rng = np.random.default_rng(4)
    y, z = rng.integers(0, 4, 400), rng.integers(0, 4, 40)
    centres = 4 * rng.standard_normal((4, 6))
    X, Q = (centres[a] + rng.standard_normal((len(a), 6)) for a in (y, z))
    names, order = np.array(["dog", "cat", "bee", "ant"]), np.array([2, 0, 3, 1])
    rows = FeatureStore.create(tmp_path / "f", X, y, class_names=names.tolist(), chunk_rows=90)
    model = SADIH(n_bits=N_BITS, anchors=None, n_init=1, block_rows=64)
    model.fit(rows).save(tmp_path / "m")
    model = SADIH.load(tmp_path / "m")
    known = np.isin(z, order[:3]) if lacking else np.ones(40, bool)
    other = FeatureStore.create(
        tmp_path / "q",
        Q[known],
        np.argsort(order)[z[known]],
        class_names=names[order][: 3 if lacking else 4].tolist(),
    )
    named = SADIH(n_bits=N_BITS, anchors=None, n_init=1, block_rows=64).fit(X, names[y])
    codes = model.transform(Q[known])
    assert model.classes_.tolist() == names.tolist()
    learned = evaluate(model.learned_codes(names[y]), codes, y, z[known], n_bits=N_BITS)
    encoded = evaluate(model.transform(X), codes, y, z[known], n_bits=N_BITS)
    assert learned.map > 0.9
    for queries in (other, (Q[known], names[z[known]])):
        found = evaluate_model(model, queries, rows)
        assert_equal(found.learned, learned)
        assert_equal(found.encoded, encoded)
        of_named = evaluate_model(named, queries, rows).fresh.map
        assert of_named == pytest.approx(named.score(Q[known], names[z[known]]))
    for one, expected in (
        (model, model.learned_codes(names[z[known]])),
        (named, named.learned_codes(names[z[known]])),
    ):
        encoded_store = one.encode(other, tmp_path / f"c-{one is named}", learned=True)
        np.testing.assert_array_equal(encoded_store.read("codes"), expected)
    before = model.statistics_
    model.partial_fit(other)
    more = np.concatenate([y, z[known]])
    np.testing.assert_array_equal(model.statistics_.counts, np.bincount(more))
    model.forget(other)
    np.testing.assert_array_equal(model.statistics_.counts, before.counts)
    np.testing.assert_allclose(model.statistics_.sums, before.sums, atol=1e-9)
    strange = FeatureStore.create(tmp_path / "s", Q, z, class_names=["cat", "eel", "dog", "bee"])
    with pytest.raises(
        LabelError,
        match=f"row {(z == 1).argmax()} has a label set that no learned.*not know: 'eel'",
    ):
        model.encode(strange, tmp_path / "d", learned=True)
    nameless = FeatureStore.create(tmp_path / "n", Q, z)
    with pytest.raises(LabelError, match="class numbers, which cannot be compared"):
        named.encode(nameless, tmp_path / "d", learned=True)


@pytest.mark.parametrize("max_queries", [None, 15])
def test_rows_and_queries_that_were_added_are_counted_alone(problem, max_queries) -> None:
    model, (X, y, Q, z) = problem
    before = AskedRows(model, (Q[:30], z[:30]), (X[:440], y[:440]), max_queries).count(model)
    asked = AskedRows(model, (Q, z), (X, y), max_queries)
    more, whole = asked.count(model, known=before), asked.count(model)
    assert more is not None
    assert whole is not None
    assert more.n_rows == 500
    np.testing.assert_array_equal(more.queries, whole.queries)
    np.testing.assert_array_equal(more.histograms.relevant, whole.histograms.relevant)
    np.testing.assert_array_equal(more.histograms.total, whole.histograms.total)
    assert_equal(asked.evaluate(model, counted=more).encoded, asked.evaluate(model).encoded)
