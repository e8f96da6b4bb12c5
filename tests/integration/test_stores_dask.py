"""Lazy arrays whose tasks carry a URL and a range, read by threads and by processes."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import numpy as np
import pytest

from sadih_dask.errors import IntegrityError
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores import store as group
from tests.support.stores import segment_folder


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    rng = np.random.default_rng(0)
    return FeatureStore.create(
        tmp_path / "s",
        rng.standard_normal((1000, 16)),
        rng.integers(0, 2, (1000, 5), dtype=np.uint8),
        ids=np.array([f"row {i}" for i in range(1000)]),
        chunk_rows=96,
    )


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_lazy_arrays_are_the_stored_ones(store: FeatureStore, scheduler: str) -> None:
    lazy = {name: store.to_dask(name) for name in store.arrays}
    for name, array in lazy.items():
        assert (array.shape, array.dtype) == (store.shape(name), store.dtype(name))
        assert array.chunks[0] == (96,) * 10 + (40,)
    total = lazy["features"].sum(axis=0)
    computed, sums = dask.compute(lazy, total, scheduler=scheduler, num_workers=2)
    for name in store.arrays:
        np.testing.assert_array_equal(computed[name], store.read(name))
    np.testing.assert_allclose(sums, store.read("features").sum(axis=0))


def test_tasks_carry_no_data_and_building_them_reads_none(
    store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("rows were read while the graph was built")

    with monkeypatch.context() as patch:
        patch.setattr(group, "read_rows", refuse)
        graph = dict(store.to_dask().__dask_graph__())
    assert len(graph) == 11
    assert max(len(pickle.dumps(task)) for task in graph.values()) < 2000


def test_slices_of_lazy_arrays(store: FeatureStore) -> None:
    lazy, all_rows = store.to_dask(), store.read("features")
    with dask.config.set(scheduler="synchronous"):
        for index in (np.s_[5:700:3], np.s_[::-1], np.s_[500], np.s_[:, 3], np.s_[[9, 1, 800]]):
            np.testing.assert_array_equal(lazy[index].compute(), all_rows[index])


def test_a_name_is_of_the_commit(store: FeatureStore) -> None:
    before = store.to_dask()
    assert before.name == FeatureStore.open(store.url).to_dask().name
    store.append(
        store.read("features", 0, 10), store.read("labels", 0, 10), store.read("ids", 0, 10)
    )
    after = store.to_dask()
    assert after.name != before.name
    assert (before.compute(scheduler="threads").shape[0], after.shape[0]) == (1000, 1010)


def test_damage_found_by_a_task_is_the_same_error(store: FeatureStore) -> None:
    file = segment_folder(store) / "features/c.3.0"
    data = bytearray(file.read_bytes())
    data[100] ^= 4
    file.write_bytes(data)
    with pytest.raises(
        IntegrityError, match=r"array 'features', chunk 3 of segment 0 \(rows 288 to 383"
    ):
        store.to_dask().sum().compute(scheduler="processes", num_workers=2)


def test_a_worker_opens_a_store_once(store: FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    real = group.read_state
    monkeypatch.setattr(group, "read_state", lambda *a: opened.append(a) or real(*a))
    sent = pickle.dumps(store)
    assert {pickle.loads(sent).commit for _ in range(5)} == {store.commit}
    assert len(opened) == 1


def test_threads_share_one_store(store: FeatureStore) -> None:
    expected = store.read("features")
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda i: store.read("features", i, i + 50), range(0, 1000, 50)))
    np.testing.assert_array_equal(np.concatenate(parts), expected)


def test_codes_are_lazy_too(tmp_path: Path) -> None:
    codes = np.arange(400, dtype=np.uint8).reshape(200, 2)
    store = CodeStore.create(tmp_path / "c", codes, n_bits=16, model="m", chunk_rows=64)
    np.testing.assert_array_equal(store.to_dask().compute(scheduler="threads"), codes)
