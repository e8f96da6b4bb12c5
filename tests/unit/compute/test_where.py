"""search(where=...): the same as to take some rows and search among these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sadih_dask import SADIH, CodeStore, FeatureStore, search
from sadih_dask.errors import ConflictError, InputError, LabelError
from sadih_dask.jobs.encode import encode
from sadih_dask.jobs.search import Queries, look_up
from tests.support.rankings import naive_distances, random_codes

N, N_BITS = 3000, 20
NAMES = ["ant", "bee, honey", "cat"]
RNG = np.random.default_rng(0)
CODES, QUERIES = random_codes(RNG, N, N_BITS), random_codes(RNG, 23, N_BITS)
LABELS = RNG.integers(0, 3, N)
TAGS = (RNG.random((N, 11)) < 0.2).astype(np.uint8)
TAGS[:, 3] |= ~TAGS.any(axis=1)
IDS = np.arange(N) * 3 - 50


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sadih_dask.compute.tree.ROWS_PER_TASK", 500)
    monkeypatch.setattr("sadih_dask.compute.codes.BLOCK_BYTES", 600)


def store_of(path: Path, **columns: Any) -> CodeStore:
    return CodeStore.create(path, CODES, n_bits=N_BITS, model="m", chunk_rows=100, **columns)


def check(database: Any, where: Any, kept: np.ndarray, k: int = 15) -> None:
    """Compare with a search among the kept rows, of the nearest and within a radius."""
    pairs = naive_distances(QUERIES, CODES[kept])
    order = np.argsort(pairs, axis=1, kind="stable")[:, :k]
    found = search(database, QUERIES, k, where=where)
    np.testing.assert_array_equal(found.rows, np.flatnonzero(kept)[order])
    np.testing.assert_array_equal(found.distances, np.take_along_axis(pairs, order, axis=1))
    within = search(database, QUERIES, radius=4, where=where)
    np.testing.assert_array_equal(within.counts, (pairs <= 4).sum(axis=1))
    assert kept[within.rows].all()


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({"label": "cat"}, LABELS == 2),
        ({"label": ["ant", "bee, honey"]}, LABELS < 2),
        ({"label": {"cat"}, "id": range(100, 4000)}, (LABELS == 2) & (IDS >= 100) & (IDS < 4000)),
        ({"id": "-50..-40"}, IDS <= -40),
        ({"id": [1, 2, -50]}, np.isin(IDS, [1, 2, -50])),
        ({"id": range(-50, 9000, 7)}, (IDS + 50) % 7 == 0),
        ({"id": -1000}, np.zeros(N, bool)),
        ({"id": range(-60, 10**9)}, np.ones(N, bool)),
        (np.arange(N) % 5 == 1, np.arange(N) % 5 == 1),
    ],
    ids=str,
)
def test_rows_of_a_label_an_id_or_a_mask(where: Any, kept: np.ndarray, tmp_path: Path) -> None:
    check(store_of(tmp_path / "c", labels=np.array(NAMES)[LABELS], ids=IDS), where, kept)


def test_arrays_by_a_mask_and_weighted_bits() -> None:
    kept = RNG.random(N) < 0.1
    check(CODES, kept, kept)
    scores = np.where(np.unpackbits(QUERIES, axis=1, count=N_BITS, bitorder="little"), 1.0, -1.0)
    scores *= RNG.random(scores.shape)
    found = search(CODES, QUERIES, 5, projections=scores, where=kept)
    alone = search(CODES[kept], QUERIES, 5, projections=scores)
    np.testing.assert_array_equal(found.rows, np.flatnonzero(kept)[alone.rows])
    np.testing.assert_array_equal(found.distances, alone.distances)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_several_labels_a_row(form: Any, tmp_path: Path) -> None:
    store = store_of(tmp_path / "c", labels=form(TAGS))
    assert store.shape("label_bits") == (N, 2)
    check(store, {"label": 9}, TAGS[:, 9] == 1)
    check(store, {"label": range(7, 10)}, TAGS[:, 7:10].any(axis=1))
    named = store_of(tmp_path / "n", labels=form(TAGS), class_names=list("abcdefghijk"))
    check(named, {"label": ["a", "k"]}, TAGS[:, [0, 10]].any(axis=1))
    with pytest.raises(InputError, match="labels 0 to 10, got 11"):
        search(store, QUERIES, where={"label": 11})


def test_a_block_without_such_a_row_is_not_read(tmp_path: Path, monkeypatch) -> None:
    store = store_of(tmp_path / "c", labels=np.arange(N) // 1000)
    read: list[str] = []
    real = CodeStore.read
    monkeypatch.setattr(
        CodeStore, "read", lambda self, name, a, b: read.append(name) or real(self, name, a, b)
    )
    check(store, {"label": 1}, np.arange(N) // 1000 == 1)
    assert 3 * read.count("codes") == read.count("labels") > 0


def test_rows_that_are_appended_continue_the_classes(tmp_path: Path) -> None:
    half, names = N // 2, np.array(NAMES)[LABELS]
    store = CodeStore.create(
        tmp_path / "c",
        CODES[:half],
        n_bits=N_BITS,
        model="m",
        labels=np.where(LABELS, "x", "ant")[:half],
    )
    with pytest.raises(InputError, match="labels not given"):
        store.append(CODES[half:], model="m")
    store.append(CODES[half:], labels=names[half:], model="m")
    assert store.class_names == ("ant", "x", "bee, honey", "cat")
    late = np.arange(N) >= half
    check(store, {"label": "ant"}, LABELS == 0)
    check(store, {"label": "cat"}, (LABELS == 2) & late)


def test_encode_keeps_labels_beside_the_codes(tmp_path: Path) -> None:
    X, y = RNG.standard_normal((300, 8)), np.array(["cat", "dog"])[np.arange(300) % 2]
    store = FeatureStore.create(tmp_path / "f", X[:200], y[:200], ids=np.arange(300)[:200])
    model = SADIH(n_bits=16, anchors=None, random_state=0).fit(X, y)
    model.encode(store, tmp_path / "c")
    store.append(X[200:], np.where(y[200:] == "cat", "eel", "dog"), ids=np.arange(200, 300))
    codes = model.encode(store, tmp_path / "c")
    assert codes.dtype("labels") == np.int32
    found = model.search(codes, X[:3], 40, where={"label": "eel"})
    assert set(found.ids.ravel()) <= set(range(200, 300, 2))
    assert len(model.search(codes, X[:3], 999, where={"label": ["dog", "cat"]}).rows[0]) == 250
    # The same features with other labels are other rows
    y[0] = "dog"
    changed = FeatureStore.create(tmp_path / "f", X, y, ids=np.arange(300), overwrite=True)
    codes = model.encode(changed, tmp_path / "c")
    np.testing.assert_array_equal(np.array(codes.class_names)[codes.read("labels")], y)


def test_codes_follow_ids_and_class_names_that_change(tmp_path: Path) -> None:
    X, y = RNG.standard_normal((60, 4)), np.arange(60) % 2
    model = SADIH(n_bits=16, anchors=None, random_state=0).fit(X, y)

    def encoded(ids: Any, names: list[str]) -> CodeStore:
        options: dict[str, Any] = {"ids": ids, "class_names": names, "overwrite": True}
        store = FeatureStore.create(tmp_path / "f", X, y, **options)
        return encode(model, store, tmp_path / "c").codes

    assert "ids" not in encoded(None, ["ant", "bee"]).arrays
    np.testing.assert_array_equal(encoded(np.arange(60), ["ant", "bee"]).read("ids"), np.arange(60))
    renamed = encoded(np.arange(60) + 7, ["bee", "ant"])
    np.testing.assert_array_equal(renamed.read("ids"), np.arange(60) + 7)
    assert encoded(np.arange(60) + 7, ["ant", "bee"]).class_names == ("ant", "bee")
    assert "ids" not in encoded(None, ["ant", "bee"]).arrays


def test_codes_of_an_earlier_run_are_taken_over_with_the_same_ids_only(tmp_path: Path) -> None:
    X, y = RNG.standard_normal((60, 4)), np.arange(60) % 2
    model = SADIH(n_bits=16, anchors=None, random_state=0).fit(X, y)
    for k, ids in enumerate((None, np.arange(60), np.arange(60), -np.arange(60))):
        store = FeatureStore.create(tmp_path / "f", X, y, ids=ids, overwrite=True)
        done = encode(model, store, tmp_path / f"{k}", candidates=[str(tmp_path / f"{k - 1}")])
        assert done.n_rows_encoded == (0 if k == 2 else 60)
        if ids is not None:
            np.testing.assert_array_equal(done.codes.read("ids"), ids)


def test_two_who_append_new_classes_do_not_rename_each_others(tmp_path: Path) -> None:
    store_of(tmp_path / "c", labels=np.array(NAMES)[LABELS])
    one, two = CodeStore.open(tmp_path / "c"), CodeStore.open(tmp_path / "c")
    one.append(CODES[:5], labels=["dog"] * 5, model="m")
    with pytest.raises(ConflictError, match="numbers its classes"):
        two.append(CODES[:5], labels=["eel"] * 5, model="m")
    assert CodeStore.open(tmp_path / "c").class_names == (*NAMES, "dog")


def test_codes_that_were_written_without_labels_stay_without(tmp_path: Path) -> None:
    X, y = RNG.standard_normal((60, 4)), np.arange(60) % 2
    model = SADIH(n_bits=16, anchors=None, random_state=0).fit(X, y)
    bare = FeatureStore.create(tmp_path / "f", X[:50])
    codes = model.encode(bare, tmp_path / "c")
    bare.append(X[50:])
    assert model.encode(bare, tmp_path / "c").arrays == codes.arrays == ("codes",)
    with pytest.raises(InputError, match=r"no column 'label'.*codes only.*overwrite"):
        search(codes, codes, where={"label": 1})


def test_several_labels_are_encoded_as_bits(tmp_path: Path) -> None:
    X = RNG.standard_normal((N, 4))
    store = FeatureStore.create(tmp_path / "f", X, TAGS, class_names=list("abcdefghijk"))
    codes = SADIH(n_bits=16, anchors=None).fit(X, TAGS).encode(store, tmp_path / "c")
    bits = np.unpackbits(codes.read("label_bits"), axis=1, count=11, bitorder="little")
    np.testing.assert_array_equal(bits, TAGS)
    assert codes.to_xarray()["label_bits"].dims == ("row", "label_byte")


def test_conditions_in_words(tmp_path: Path) -> None:
    store = store_of(tmp_path / "c", labels=np.array(NAMES)[LABELS], ids=IDS)
    given: dict[str, Any] = {"max_results": 10**6}
    words = ["label=ant", "label=bee, honey", "id=0..300"]
    found = look_up(store, Queries(QUERIES), 5, None, where=words, **given)
    where = {"label": NAMES[:2], "id": range(301)}
    np.testing.assert_array_equal(found.rows, search(store, QUERIES, 5, where=where).rows)
    with pytest.raises(InputError, match="'label' is no condition; write column=value"):
        look_up(store, Queries(QUERIES), 5, None, where=["label"], **given)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"label": "dog"}, r"no class 'dog'; it has 'ant', 'bee, honey', 'cat'"),
        ({"tenant": 3}, r"no column 'tenant' to search by; it has \['id', 'label'\]"),
        ({"id": "x"}, "id 'x': .* whole numbers"),
        ({"id": 3.7}, "id 3.7: .* whole numbers"),
        ({"id": [2**63, 5]}, "whole numbers"),
        ({"label": []}, "no value of 'label'"),
        (np.ones(N, int), "array of int64 and shape"),
        (np.ones(N - 1, bool), "one truth value for each of 3,000 rows"),
    ],
)
def test_what_cannot_be_searched_by(where: Any, said: str, tmp_path: Path) -> None:
    store = store_of(tmp_path / "c", labels=np.array(NAMES)[LABELS], ids=IDS)
    with pytest.raises(InputError, match=said):
        search(store, QUERIES, where=where)


def test_what_cannot_be_stored_or_has_no_columns(tmp_path: Path) -> None:
    with pytest.raises(LabelError, match="row 1500, column 2 is 5"):
        store_of(tmp_path / "c", labels=np.array([[0, 1, 0], [1, 0, 5]]).repeat(N // 2, 0))
    with pytest.raises(InputError, match="no columns to search by"):
        search(CODES, QUERIES, where={"label": 1})
