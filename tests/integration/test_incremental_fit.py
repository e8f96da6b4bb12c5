"""A store that grows, and rows that have to go: only what changed is read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask import SADIH, FeatureStore
from sadih_dask.errors import InputError
from tests.support.datasets import rows
from tests.support.models import CHOSEN, FAST, counted_reads, of_features

OLD, CHUNK = 4096, 256  # whole blocks, and whole chunks


pytestmark = pytest.mark.usefixtures("two_threads")


def name(row: int) -> str:
    return f"row-{row:04}"


def model(**parameters: Any) -> SADIH:
    return SADIH(**{**FAST, "anchors": None, **parameters})


def create(path: Path, X: Any, y: Any, last: int) -> FeatureStore:
    ids = np.array([name(i) for i in range(last)])
    return FeatureStore.create(path, X[:last], y[:last], ids=ids, chunk_rows=CHUNK)


def append(store: FeatureStore, X: Any, y: Any, first: int, last: int) -> None:
    ids = np.array([name(i) for i in range(first, last)])
    store.append(X[first:last], y[first:last], ids)


def same_codes(found: SADIH, expected: SADIH, X: Any) -> None:
    np.testing.assert_array_equal(found.classes_, expected.classes_)
    np.testing.assert_array_equal(found.label_codes_, expected.label_codes_)
    np.testing.assert_array_equal(found.transform(X), expected.transform(X))


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize(
    ("dtype", "old"),
    [
        ("float64", OLD),
        ("float64", 3001),
        ("float32", OLD),
        # In float32 the products of a block are rounded once a block. Blocks of the new rows begin
        # where the old rows end; only where that is the end of a block are they the blocks of a
        # fit to all rows, so elsewhere the statistics agree to 1e-7 and no further.
        ("float16", OLD),
    ],
)
def test_only_new_rows_are_read(tmp_path: Path, dtype: str, old: int, multi_label: bool) -> None:
    parameters = CHOSEN if dtype == "float64" else {}
    X, y = rows(6000, multi_label=multi_label, dtype=dtype)
    store = create(tmp_path / "s", X, y, old)
    found = model(**parameters).fit(store)
    found.save(tmp_path / "m")
    append(store, X, y, old, 6000)
    loaded = SADIH.load(tmp_path / "m")
    with counted_reads() as counts:
        loaded.fit(FeatureStore.open(store.url))
    times = of_features(counts)
    assert set(times) == set(range(-(-old // CHUNK), len(store.chunks)))
    assert set(times.values()) == {1}  # blocks of new rows begin where their segment does
    same_codes(loaded, model(**parameters).fit(X, y), X)
    same_codes(found.fit(store), loaded, X)


def test_float32_rows_that_end_within_a_block(tmp_path: Path) -> None:
    X, y = rows(6000)
    store = create(tmp_path / "s", X, y, 3001)
    found = model().fit(store)
    append(store, X, y, 3001, 6000)
    expected = model().fit(X, y)
    found.fit(store)
    np.testing.assert_array_equal(found.label_codes_, expected.label_codes_)
    np.testing.assert_allclose(
        found.statistics_.gram,
        expected.statistics_.gram,
        atol=1e-6 * expected.statistics_.gram.max(),
    )


def test_many_appends_and_no_news(tmp_path: Path) -> None:
    X, y = rows(6000, dtype="float64")
    store = create(tmp_path / "s", X, y, 2000)
    found = model().fit(store)
    for first in range(2000, 6000, 500):
        append(store, X, y, first, first + 500)
        found.fit(store)
    same_codes(found, model().fit(X, y), X)
    with counted_reads() as counts:
        found.fit(store)
    assert not of_features(counts)


def test_a_class_that_comes_with_new_rows(tmp_path: Path) -> None:
    X, y = rows(6000, dtype="float64")
    order = np.argsort(y == 3, kind="stable")
    X, y = X[order], y[order]
    first = int((y != 3).sum())
    store = create(tmp_path / "s", X, y, first)
    found = model().fit(store)
    assert 3 not in found.classes_
    append(store, X, y, first, 6000)
    same_codes(found.fit(store), model().fit(X, y), X)


def test_anchors_of_the_first_fit_stay(tmp_path: Path) -> None:
    X, y = rows(6000, dtype="float64")
    store = create(tmp_path / "s", X, y, OLD)
    found = model(anchors=30).fit(store)
    append(store, X, y, OLD, 6000)
    expected = model(anchors=30).fit(X[:OLD], y[:OLD]).partial_fit(X[OLD:], y[OLD:])
    with counted_reads() as counts:
        found.fit(store)
    assert min(of_features(counts)) >= OLD // CHUNK
    same_codes(found, expected, X)


@pytest.mark.parametrize("multi_label", [False, True])
def test_forgetting_by_id_reverses_it(tmp_path: Path, multi_label: bool) -> None:
    n_rows = OLD + OLD // 8  # the sample has a fifth more rows than are used
    X, y = rows(n_rows, multi_label=multi_label, dtype="float64")
    store = create(tmp_path / "s", X, y, OLD)
    found = model().fit(store)
    before = found.label_codes_, found.transform(X)
    append(store, X, y, OLD, n_rows)
    found.fit(store)
    found.save(tmp_path / "m")
    found = SADIH.load(tmp_path / "m")
    with counted_reads() as counts:
        found.forget_ids(store, [name(i) for i in range(OLD, n_rows)])
    assert min(of_features(counts)) == OLD // CHUNK
    np.testing.assert_array_equal(found.label_codes_, before[0])
    np.testing.assert_array_equal(found.transform(X), before[1])
    assert found.coverage_ is not None
    assert found.coverage_.forgotten.tolist() == list(range(OLD, n_rows))


def test_what_was_forgotten_stays_forgotten_when_rows_come(tmp_path: Path) -> None:
    X, y = rows(6000, dtype="float64")
    store = create(tmp_path / "s", X, y, OLD)
    found = model().fit(store).forget_ids(store, ["row-0007", "row-4000", "row-0099"])
    append(store, X, y, OLD, 6000)
    found.fit(store)
    kept = np.delete(np.arange(6000), [7, 99, 4000])
    same_codes(found, model().fit(X[kept], y[kept]), X)


def test_ids_that_cannot_be_forgotten(tmp_path: Path) -> None:
    X, y = rows(2000, dtype="float64")
    store = create(tmp_path / "s", X, y, 1000)
    found = model().fit(store)
    before = found.fingerprint_
    with pytest.raises(InputError, match=r"no row with id .*row-5000.* \(1 such ids\)"):
        found.forget_ids(store, ["row-0001", "row-5000"])
    found.forget_ids(store, ["row-0001", "row-0002"])
    after = found.fingerprint_
    with pytest.raises(InputError, match=r"row 2 of .* has been forgotten already"):
        found.forget_ids(store, ["row-0002", "row-0003"])
    append(store, X, y, 1000, 2000)
    with pytest.raises(InputError, match="has changed since; fit the model to it first"):
        found.forget_ids(store, ["row-1500"])
    assert before != after == found.fingerprint_
    other = FeatureStore.create(tmp_path / "o", X + 1, y, ids=np.arange(2000))
    with pytest.raises(InputError, match="is not the store that this model has learned from"):
        found.forget_ids(other, [1])
    bare = FeatureStore.create(tmp_path / "b", X, y)
    with pytest.raises(InputError, match="has no ids"):
        model().fit(bare).forget_ids(bare, [1])


@pytest.mark.parametrize("what", ["features", "labels", "shorter"])
def test_a_store_that_was_changed_is_read_anew(tmp_path: Path, what: str) -> None:
    X, y = rows(4000, dtype="float64")
    store = create(tmp_path / "s", X, y, 4000)
    found = model().fit(store)
    X, y = X.copy(), y.copy()
    if what == "features":
        X[17, 2] += 1e-9
    elif what == "labels":
        y[17] = (y[17] + 1) % 5
    else:
        X, y = X[:3000], y[:3000]
    changed = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=CHUNK, overwrite=True)
    with counted_reads() as counts:
        found.fit(changed)
    assert set(of_features(counts)) == set(range(len(changed.chunks)))
    assert found.fingerprint_ == model().fit(X, y).fingerprint_
