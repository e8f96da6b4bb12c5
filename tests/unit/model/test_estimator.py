"""SADIH on small data: forms of labels and features, codes, randomness, blocks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from sadih_dask import SADIH, evaluate_model, search
from sadih_dask.errors import Advice, InputError, NonFiniteError
from sadih_dask.retrieval.codes import distances, pack, unpack
from tests.support.datasets import blobs, tagged_blobs
from tests.support.models import QUICK, same_model

NAMES = np.array(["cat", "dog", "eel"])


def fitted(X: Any, y: Any, n_bits: int = 16, **parameters: Any) -> SADIH:
    return SADIH(n_bits, **{**QUICK, "anchors": 20, **parameters}).fit(X, y)


# --- labels ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (lambda y: y.tolist(), [0, 1, 2]),
        (lambda y: y.astype(np.uint8), [0, 1, 2]),
        (lambda y: y.astype(np.float32), [0, 1, 2]),
        (lambda y: y * 10 - 7, [-7, 3, 13]),
        (lambda y: NAMES[y], NAMES.tolist()),
        (lambda y: NAMES[y].astype(object), NAMES.tolist()),
        (lambda y: NAMES[y].astype("S"), [b"cat", b"dog", b"eel"]),
        (lambda y: NAMES[y].tolist(), NAMES.tolist()),
    ],
    ids=["list", "uint8", "whole floats", "gaps", "names", "objects", "bytes", "list of names"],
)
def test_one_class_a_row_in_any_form(labels: Any, classes: Any) -> None:
    X, y = blobs()
    model = fitted(X, labels(y))
    assert model.classes_.tolist() == classes
    np.testing.assert_array_equal(model.label_codes_, fitted(X, y).label_codes_)
    np.testing.assert_array_equal(model.learned_codes(labels(y)), model.label_codes_[y])


def test_two_classes_as_booleans() -> None:
    X, y = blobs(c=2)
    model = fitted(X, y == 1)
    assert model.classes_.tolist() == [False, True]
    same = fitted(X, y)
    np.testing.assert_array_equal(model.label_codes_, same.label_codes_)
    np.testing.assert_array_equal(model.learned_codes([True, False]), same.label_codes_[[1, 0]])


def test_minus_one_and_one_are_two_classes() -> None:
    X, y = blobs(c=2)
    assert fitted(X, 2 * y - 1).classes_.tolist() == [-1, 1]


def test_a_column_of_classes_counts_as_one_class_a_row() -> None:
    X, y = blobs()
    with pytest.warns(UserWarning, match="column-vector y"):
        model = fitted(X, y[:, None])
    np.testing.assert_array_equal(model.label_codes_, fitted(X, y).label_codes_)


@pytest.mark.parametrize(
    "form",
    [
        lambda Y: Y.astype(bool),
        lambda Y: Y.astype(np.float32),
        np.ndarray.tolist,
        *(sp.csr_array, sp.csc_array, sp.coo_array, sp.csr_matrix, sp.lil_matrix),
    ],
    ids=["bools", "floats", "lists", "csr", "csc", "coo", "csr matrix", "lil matrix"],
)
def test_several_labels_a_row_in_any_form(form: Any) -> None:
    X, Y = tagged_blobs()
    model, expected = fitted(X, form(Y)), fitted(X, Y)
    assert model.classes_.tolist() == [0, 1, 2, 3]
    same_model(model, expected, X)
    np.testing.assert_array_equal(model.learned_codes(form(Y)), expected.learned_codes(Y))
    assert model.score(X, form(Y)) == expected.score(X, Y)


def test_explicit_zeros_and_duplicates_in_a_sparse_matrix() -> None:
    X, Y = tagged_blobs()
    padded = sp.coo_array(
        (np.append(Y[Y.nonzero()], 0), [np.append(i, 0) for i in Y.nonzero()]), shape=Y.shape
    )
    same_model(fitted(X, padded), fitted(X, Y), X)


def test_one_hot_rows_are_the_same_problem_as_class_numbers() -> None:
    X, y = blobs()
    one_hot = fitted(X, np.eye(3)[y])
    assert one_hot.multi_label_
    same_model(one_hot, fitted(X, y), X)


# --- codes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", ["auto", "posterior", "ridge", "orthogonal", "lemma"])
@pytest.mark.parametrize("loss", ["l21", "l1"])
def test_row_k_of_label_codes_is_the_code_of_class_k(encoder: str, loss: str) -> None:
    X, y = blobs()
    model = fitted(X, NAMES[y], encoder=encoder, loss=loss)
    assert model.label_codes_.shape == (3, 2)
    assert model.label_codes_.dtype == np.uint8
    np.testing.assert_array_equal(model.label_codes_, model.learned_codes(model.classes_))
    np.testing.assert_array_equal(model.label_groups_.toarray(), np.eye(3))


def test_label_groups_say_which_labels_each_code_stands_for() -> None:
    X, Y = tagged_blobs()
    model = fitted(X, Y)
    groups = model.label_groups_.toarray()
    assert {tuple(row) for row in groups} == {tuple(row) for row in Y}
    assert len(groups) == len(model.label_codes_) == len(np.unique(Y, axis=0))
    np.testing.assert_array_equal(model.label_codes_, model.learned_codes(groups))


def test_transform_is_the_sign_of_project_in_little_bit_order() -> None:
    X, y = blobs()
    model = fitted(X, y)
    scores, codes = model.project(X), model.transform(X)
    assert scores.shape == (60, 16)
    assert scores.dtype == np.float64
    assert (codes.dtype, codes.shape) == (np.uint8, (60, 2))
    for row in range(5):
        for bit in range(16):
            assert (codes[row, bit // 8] >> (bit % 8)) & 1 == (scores[row, bit] > 0)
    np.testing.assert_array_equal(codes, pack(scores))


@pytest.mark.filterwarnings("ignore:codes of 1 bits")
@pytest.mark.parametrize("n_bits", [1, 5, 8, 13, 100])
def test_any_number_of_bits(n_bits: int) -> None:
    X, y = blobs()
    model = fitted(X, y, n_bits)
    codes = model.transform(X)
    assert codes.shape == (60, -(-n_bits // 8)) == (60, len(model.get_feature_names_out()))
    for packed in (codes, model.label_codes_):
        spare = np.unpackbits(packed, axis=1, bitorder="little")[:, n_bits:]
        assert not spare.any()
    bits = model.project(X) > 0
    learned = unpack(model.label_codes_, n_bits)
    naive = [[int(np.sum(a != b)) for b in learned] for a in bits]
    np.testing.assert_array_equal(distances(codes, model.label_codes_), naive)


def test_score_is_mean_average_precision_of_rows_among_the_others() -> None:
    X, Y = tagged_blobs()
    model = fitted(X, Y, 3)
    codes = model.transform(X)
    others = ~np.eye(len(X), dtype=bool)
    distance = distances(codes, codes)[others].reshape(len(X), -1)
    relevant = (Y @ Y.T > 0)[others].reshape(len(X), -1)
    rng = np.random.default_rng(0)
    values = []
    for _ in range(100):
        order = np.argsort(distance + rng.random(distance.shape), axis=1)  # breaks ties at random
        hits = np.take_along_axis(relevant, order, axis=1)
        precision = np.cumsum(hits, axis=1) / np.arange(1, 60)
        values.append(np.mean((precision * hits).sum(axis=1) / hits.sum(axis=1)))
    assert np.std(values) > 0
    assert model.score(X, Y) == pytest.approx(np.mean(values), abs=4 * np.std(values) / 10)


# --- learning again --------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", ["posterior", "ridge", "orthogonal", "lemma"])
def test_refit_is_a_fit_with_the_new_parameters(encoder: str) -> None:
    X, y = blobs()
    model = fitted(X, y).set_params(n_bits=24, encoder=encoder, alpha=0.1, max_iter=2).refit()
    expected = fitted(X, y, 24, encoder=encoder, alpha=0.1, max_iter=2)
    same_model(model, expected, X)
    assert model.trace_ == expected.trace_


def test_refit_keeps_the_anchors() -> None:
    X, y = blobs()
    model = fitted(X, y)
    anchors = model.hash_function_.anchor_map
    assert model.set_params(anchors=3).refit().hash_function_.anchor_map is anchors


def test_parameters_changed_after_the_fit_do_not_reach_transform() -> None:
    X, y = blobs()
    model = fitted(X, y)
    codes = model.transform(X)
    np.testing.assert_array_equal(model.set_params(n_bits=64).transform(X), codes)


def test_trace_holds_every_start_and_every_step() -> None:
    X, y = blobs()
    model = fitted(X, y, tol=0.0, n_init=3, encoder="orthogonal")
    steps = [r.step for r in model.trace_.of_restart(model.trace_.best)]
    assert steps == ["start", *["B", "W", "P1", "P2"] * model.n_iter_]
    assert {r.restart for r in model.trace_} == {0, 1, 2}
    assert np.all(np.diff(model.trace_.totals) <= 1e-9 * model.trace_.totals[0])


def test_no_iterations_keep_the_starting_codes() -> None:
    X, y = blobs()
    model = fitted(X, y, max_iter=0)
    assert (model.n_iter_, model.trace_.kept_iteration) == (0, 0)


# --- randomness ------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_model() -> None:
    X, y = blobs()
    for make in (lambda: 7, lambda: np.random.default_rng(7), lambda: np.random.RandomState(7)):
        same_model(fitted(X, y, random_state=make()), fitted(X, y, random_state=make()), X)


def test_other_seeds_give_other_models() -> None:
    X, y = blobs()
    codes = {fitted(X, y, random_state=seed).label_codes_.tobytes() for seed in range(4)}
    assert len(codes) > 1


@pytest.mark.parametrize("kind", [np.random.default_rng, np.random.RandomState])
def test_a_generator_moves_on_from_fit_to_fit(kind: Any) -> None:
    X, y = blobs()
    model = SADIH(16, **QUICK, random_state=kind(0))
    first = model.fit(X, y).seed_
    assert model.fit(X, y).seed_ != first


def test_without_a_seed_every_fit_draws_its_own_and_later_steps_keep_it() -> None:
    X, y = blobs()
    model = fitted(X, y, random_state=None)
    seed, codes = model.seed_, model.label_codes_
    assert fitted(X, y, random_state=None).seed_ != seed
    assert model.refit().seed_ == seed
    np.testing.assert_array_equal(model.label_codes_, codes)


def test_the_global_random_state_is_neither_read_nor_changed() -> None:
    X, y = blobs()
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - it is what must not change
    fitted(X, y, random_state=None)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


# --- features --------------------------------------------------------------------------------


@pytest.mark.parametrize("anchors", [None, 20])
@pytest.mark.parametrize("block_rows", [1, 7, 59, 60])
def test_codes_do_not_depend_on_block_rows(anchors: int | None, block_rows: int) -> None:
    X, y = blobs()
    same_model(
        fitted(X, y, anchors=anchors, block_rows=block_rows), fitted(X, y, anchors=anchors), X
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint8, np.int16, np.int64, bool])
@pytest.mark.parametrize("anchors", [None, 20])
def test_features_of_any_number_type(dtype: type, anchors: int | None) -> None:
    X, y = blobs(200)
    features = X > 0 if dtype is bool else np.clip(X * 8 + 60, 0, 255).astype(dtype)
    # What is chosen may turn on rounding where two choices are as good.
    fixed = {"ridge": 1e-3, "sharpness": 2.0, "openness": 0.0, "anchors": anchors}
    model = fitted(features, y, **fixed)
    expected = fitted(features.astype(np.float64), y, **fixed)
    np.testing.assert_array_equal(model.label_codes_, expected.label_codes_)
    differing = unpack(model.transform(features) ^ expected.transform(features), 16)
    assert differing.mean() < 1e-3  # scores near zero, within float32 rounding


@pytest.mark.parametrize("anchors", [None, 20])
def test_features_in_any_memory_layout(anchors: int | None) -> None:
    X, y = blobs()
    expected = fitted(X, y, anchors=anchors)
    read_only, read_only_y = X.copy(), y.copy()
    read_only.flags.writeable = read_only_y.flags.writeable = False
    for features in (np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2], X[::-1].copy()[::-1]):
        same_model(fitted(features, y, anchors=anchors), expected, features)
    same_model(fitted(read_only, read_only_y, anchors=anchors), expected, read_only)
    np.testing.assert_array_equal(read_only, X)


def test_input_is_not_changed() -> None:
    X, Y = tagged_blobs()
    features, labels = X.copy(), sp.csr_array(Y)
    fitted(features, labels).partial_fit(features, labels).forget(features, labels).score(X, labels)
    np.testing.assert_array_equal(features, X)
    np.testing.assert_array_equal(labels.toarray(), Y)


@pytest.mark.parametrize("encoder", ["posterior", "ridge", "orthogonal", "lemma"])
def test_transform_chunk_by_chunk_is_transform_of_the_whole(encoder: str) -> None:
    X, y = blobs(200)
    model = fitted(X, y, encoder=encoder)
    whole = model.transform(X)
    for rows in (1, 17, 64):
        chunks = [model.transform(X[k : k + rows]) for k in range(0, 200, rows)]
        np.testing.assert_array_equal(np.concatenate(chunks), whole)
    np.testing.assert_array_equal(model.set_params(block_rows=9).transform(X), whole)


def test_more_bits_than_features_classes_and_rows() -> None:
    X, y = blobs(9, 2, 3)
    for encoder in ("posterior", "ridge", "orthogonal", "lemma"):
        assert fitted(X, y, 40, encoder=encoder, anchors=None).transform(X).shape == (9, 5)


def test_constant_features_are_as_good_as_none() -> None:
    X, y = blobs()
    more = np.hstack([X, np.full((60, 2), 0.3)])
    # Other columns draw other rows to choose by, and other open directions.
    fixed = {"anchors": None, "ridge": 1e-3, "sharpness": 2.0, "openness": 0.0}
    model, expected = fitted(more, y, **fixed), fitted(X, y, **fixed)
    np.testing.assert_array_equal(model.label_codes_, expected.label_codes_)
    np.testing.assert_array_equal(model.transform(more), expected.transform(X))


@pytest.mark.parametrize("encoder", ["posterior", "ridge", "orthogonal", "lemma"])
@pytest.mark.parametrize("anchors", [None, 20])
def test_features_without_any_information_give_one_code(encoder: str, anchors: int | None) -> None:
    _, y = blobs()
    X = np.full((60, 3), 7.25)
    model = fitted(X, y, encoder=encoder, anchors=anchors)
    assert len(np.unique(model.transform(X), axis=0)) == 1


@pytest.mark.parametrize("bitorder", ["little", "big"])
def test_one_call_from_features_to_ids(tmp_path, bitorder) -> None:
    X, y = blobs(300, 12)
    model = SADIH(n_bits=11, anchors=None, n_init=1).fit(X, y)
    names = np.array([f"row {k}" for k in range(300)])
    codes = model.encode(X, tmp_path / "codes", ids=names, bitorder=bitorder)
    found = model.search(codes, X[:5], 7)
    scores = model.project(X[:5])
    expected = search(codes, pack(scores), 7, projections=scores, bitorder="little")
    assert np.array_equal(found.rows, expected.rows)
    assert np.array_equal(found.ids, names[found.rows])
    assert np.array_equal(model.search(codes, X[2], 7).ids, found.ids[2:3])
    packed = model.transform(X, bitorder=bitorder)
    in_memory = model.search(packed, X[:5], 7, bitorder=bitorder)
    assert np.array_equal(in_memory.rows, found.rows)
    counted = model.search(codes, X[:5], 7, symmetric=True)
    assert np.array_equal(counted.rows, search(codes, codes, 7).rows[:5])
    frame = found.to_pandas(["a", "b", "c", "d", "e"])
    assert frame.columns.tolist() == ["query", "rank", "id", "row", "distance"]
    assert frame["query"].tolist() == [q for q in "abcde" for _ in range(7)]
    assert frame["id"].tolist() == found.ids.reshape(-1).tolist()
    near = search(codes, codes, radius=1)
    assert near.to_pandas()["query"].tolist() == np.repeat(np.arange(300), near.counts).tolist()
    other = SADIH(n_bits=11, anchors=None, n_init=1, random_state=1).fit(X[:200], y[:200])
    with pytest.raises(InputError, match="codes of two models cannot be compared"):
        other.search(codes, X[:5])
    with pytest.raises(InputError, match="features"):
        model.search(codes, X[0, :5])


def test_batches_are_read_first_and_learned_from_once() -> None:
    X, y = blobs(120, 6, 5)
    model = SADIH(n_bits=8, **{**QUICK, "anchors": X[:20]})
    for rows in np.array_split(np.arange(120), 4):
        model.partial_fit(X[rows], y[rows], solve=False)
        with pytest.raises(NotFittedError, match=r"not fitted.*refit\(\)"):
            model.transform(X)
        with pytest.raises(InputError, match=r"refit\(\) first"):
            model.save("never")
    whole = SADIH(n_bits=8, **{**QUICK, "anchors": X[:20]}).fit(X[:30], y[:30])
    whole.partial_fit(X[30:], y[30:])
    codes = model.refit().transform(X)
    np.testing.assert_array_equal(codes, whole.transform(X))
    np.testing.assert_array_equal(model.classes_, whole.classes_)
    model.partial_fit(X[:9] + 1.0, np.full(9, -5), solve=False)  # a class before all others
    np.testing.assert_array_equal(model.transform(X), codes)
    np.testing.assert_array_equal(model.learned_codes(y), whole.learned_codes(y))
    model.forget(X[:9] + 1.0, np.full(9, -5))
    np.testing.assert_array_equal(model.transform(X), codes)


def test_anchors_may_be_given(tmp_path: Path) -> None:
    X, y = blobs(120, 6, 5)
    given = X[5:25] + 0.25
    model = SADIH(n_bits=8, **{**QUICK, "anchors": given}).fit(X, y)
    found = model.hash_function_.anchor_map
    assert found is not None
    np.testing.assert_allclose(found.anchors + found.centre, given)
    model.save(tmp_path / "m.sadih")
    loaded = SADIH.load(tmp_path / "m.sadih")
    assert loaded.anchors == 20
    np.testing.assert_array_equal(
        loaded.partial_fit(X, y).transform(X), model.partial_fit(X, y).transform(X)
    )
    clone(model).fit(X, y)
    for wrong in (X[0], X[:5, :2], X[:0]):
        with pytest.raises(InputError, match=r"anchors have shape .* expected rows like"):
            SADIH(anchors=wrong).fit(X, y)
    with pytest.raises(NonFiniteError, match="anchors"):
        SADIH(anchors=np.full((3, 6), np.nan)).fit(X, y)


def test_what_is_allowed_and_probably_not_meant_is_warned_of() -> None:
    X, y = blobs(60, 6, 5)
    with pytest.warns(Advice, match=r"codes of 2 bits tell 4 classes apart.* n_bits=3 or more"):
        fitted(X, y, 2)
    with pytest.warns(Advice, match="each of the 60 classes has one row"):
        fitted(X, np.arange(60))
    model = fitted(X, y)
    found = np.concatenate([X[:9], X[:20] + 0.5])
    with pytest.warns(Advice, match=r"9 of 29 queries.*the model has learned from"):
        evaluate_model(model, (found, np.concatenate([y[:9], y[:20]])), class_folds=0)
    evaluate_model(model, (X + 0.5, y), class_folds=0)  # warnings are errors
    with pytest.raises(InputError, match=r"1D array of 6 values .*X\.reshape\(1, -1\) is one row"):
        model.transform(X[0])
