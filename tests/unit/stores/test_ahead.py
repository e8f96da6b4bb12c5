"""Chunks behind a network are fetched before they are asked for: how many, and each once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import dask
import fsspec
import numpy as np
import pytest

from sadih_dask import SADIH, CodeStore, FeatureStore, search
from sadih_dask.compute.memory import check_scan
from sadih_dask.compute.rows import StoreRows
from sadih_dask.errors import IntegrityError, MemoryPlanError
from sadih_dask.files.filesystem import RemoteFiles
from sadih_dask.stores.ahead import ReadAhead
from tests.support.datasets import rows
from tests.support.processes import wait_until
from tests.support.stores import create, ids_of, table


@pytest.fixture
def url() -> Iterator[str]:
    place = f"memory://{uuid4().hex}"
    yield f"{place}/s"
    fsspec.filesystem("memory").rm(place, recursive=True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each chunk was fetched."""
    found: Counter[str] = Counter()
    real = RemoteFiles.read

    def counted(self: RemoteFiles, key: str, limit: int) -> bytes:
        found[key] += "/c." in key
        return real(self, key, limit)

    monkeypatch.setattr(RemoteFiles, "read", counted)
    return found


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_so_many_are_under_way_and_no_more(depth: int) -> None:
    begun: list[int] = []
    lock = threading.Lock()

    def fetching(k: int) -> Callable[[], int]:
        def fetch() -> int:
            with lock:
                begun.append(k)
            return k

        return fetch

    ahead = ReadAhead(((k, fetching(k)) for k in range(10)), depth)
    for k in range(10):
        assert ahead.take(k, fetching(k)) == k
        last = min(k + depth, 9)
        wait_until(lambda last=last: len(begun) == last + 1)  # type: ignore[misc]
        assert sorted(begun) == list(range(last + 1))
    assert ahead.take("unexpected", lambda: "now") == "now"
    ahead.close()


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("block_rows", [1, 3, 4, 5, 7, 100])
def test_rows_of_several_segments_without_deleted_ones(
    url: str, block_rows: int, compression: str, asked: Counter[str]
) -> None:
    store = create(url, 0, 11, compression=compression)
    store.append(**table(11, 18))
    store.append(**table(18, 40))
    gone = [*range(4, 8), 12, 13, 30]  # a whole chunk, and parts of some
    store.delete(ids_of(np.array(gone)))
    live = [row for row in range(40) if row not in gone]
    asked.clear()
    blocks = [rows for _, rows in store.blocks("labels", block_rows)]
    np.testing.assert_array_equal(np.concatenate(blocks), live)
    assert set((+asked).values()) == {1}
    asked.clear()
    np.testing.assert_array_equal(store.read("labels", 2, 30), live[2:30])
    picked = np.random.default_rng(0).integers(0, len(live), 30)
    np.testing.assert_array_equal(store.take("labels", picked), np.array(live)[picked])
    assert max(asked.values()) <= 2
    np.testing.assert_array_equal(store.begin_read("ids", 1, 20)(), ids_of(np.array(live[1:20])))


def test_the_same_model_codes_and_neighbours_as_from_a_disk(
    url: str, tmp_path: Path, asked: Counter[str]
) -> None:
    X, y = rows(3000, 8)
    stores = [FeatureStore.create(place, X, y, chunk_rows=100) for place in (tmp_path / "s", url)]
    found = []
    with dask.config.set(scheduler="threads", num_workers=2):
        for store in stores:
            asked.clear()
            model = SADIH(n_bits=16, anchors=None, block_rows=150, n_init=1).fit(store)
            if store.url == url:
                assert max(asked.values()) <= 2  # chunks on the border of two tasks, and the sample
            codes = model.encode(store, f"{store.url}-codes")
            found.append(search(codes, codes.read("codes", 0, 20), 5))
    np.testing.assert_array_equal(found[0].rows, found[1].rows)
    both = [CodeStore.open(f"{store.url}-codes") for store in stores]
    for name in ("codes", "labels"):
        np.testing.assert_array_equal(both[0].read(name), both[1].read(name))


def test_a_chunk_that_is_damaged_is_named_when_its_rows_are_read(url: str) -> None:
    store = create(url, 0, 40)
    (segment,) = store.components
    fsspec.filesystem("memory").pipe_file(f"{store._snapshot.files.path(segment)}/c.5.0", b"12345")
    read: list[int] = []
    with pytest.raises(IntegrityError, match=r"'features', chunk 5 of segment 0 \(rows 20 to 23"):
        read.extend(row for row, _ in store.blocks("features", 4))
    assert read == [0, 4, 8, 12, 16]


def test_the_plan_counts_what_is_fetched_and_takes_less_where_memory_is_short(
    url: str, tmp_path: Path
) -> None:
    store = FeatureStore.create(url, *rows(4000, 256), chunk_rows=1000)
    there, sample = StoreRows.of(store), np.arange(100)

    def plan(limit: str):
        with dask.config.set({"num_workers": 2, "sadih.memory-limit": limit}):
            return check_scan(there, 1000, None, sample)

    whole = plan("4 GiB")
    assert whole.fetched == there.fetched() == 7
    assert "7 chunks that are fetched" in str(whole)
    less = plan(f"{whole.total - 1} B")
    assert less.fetched == 6
    assert whole.total - less.total == 2 * 1000 * 256 * 4
    with pytest.raises(MemoryPlanError, match="1 chunks that are fetched"):
        plan("231 MiB")
    local = FeatureStore.create(tmp_path / "s", *rows(100, 4))
    assert StoreRows.of(local).fetched() == 0
