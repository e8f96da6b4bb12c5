"""Deleted rows are gone from every way of reading, and nothing else moves."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask.errors import InputError
from sadih_dask.stores import FeatureStore, reader
from sadih_dask.stores.deletions import live_before, physical
from tests.support.stores import assert_holds, create, files_of, ids_of, table


def test_positions_against_a_list() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        n_rows = int(rng.integers(1, 40))
        dead = np.flatnonzero(rng.random(n_rows) < rng.random())
        live = [row for row in range(n_rows) if row not in set(dead.tolist())]
        np.testing.assert_array_equal(physical(dead, np.arange(len(live))), live)
        counted = [sum(row < place for row in live) for place in range(n_rows + 1)]
        np.testing.assert_array_equal(live_before(dead, np.arange(n_rows + 1)), counted)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("seed", range(8))
def test_every_way_of_reading_after_random_deletions(
    tmp_path: Path, seed: int, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    store = create(tmp_path / "s", 0, 11, compression=compression)
    store.append(**table(11, 18))
    store.append(**table(18, 19))
    store.append(**table(19, 40))
    live = list(range(40))
    for _ in range(int(rng.integers(1, 6))):
        gone = rng.choice(live, int(rng.integers(1, 1 + len(live) // 2)), replace=False)
        assert store.delete(ids_of(gone)) == len(gone)
        live = [row for row in live if row not in set(gone.tolist())]
    assert_holds(store, live)
    assert sum(store.chunks) == len(live)
    assert min(store.chunks) > 0
    bounds = np.cumsum([0, *store.chunks])
    for start in range(0, len(live) + 1, 3):
        for stop in range(start, len(live) + 1, 4):
            np.testing.assert_array_equal(store.read("labels", start, stop), live[start:stop])
    picked = rng.integers(0, len(live), 30)
    np.testing.assert_array_equal(store.take("labels", picked), np.array(live)[picked])
    np.testing.assert_array_equal(store.take("ids", picked), ids_of(np.array(live)[picked]))
    lazy = store.to_dask("features")
    assert lazy.chunks == (store.chunks, (2,))
    np.testing.assert_array_equal(lazy.compute(scheduler="synchronous")[:, 0], live)
    for chunk, (first, last) in enumerate(pairwise(bounds)):
        part = lazy.blocks[chunk, 0].compute(scheduler="synchronous")
        np.testing.assert_array_equal(part[:, 0], live[first:last])

    reads: list[tuple[str, int]] = []
    plain = reader.read_chunk

    def counted(snapshot: Any, segment: Any, layout: Any, chunk: int, *rest: Any) -> None:
        reads.append((segment.id, chunk))
        plain(snapshot, segment, layout, chunk, *rest)

    monkeypatch.setattr(reader, "read_chunk", counted)
    for block_rows in (1, 3, 4, 5, 7, 100):
        reads.clear()
        blocks = list(store.blocks("labels", block_rows))
        assert [row for row, _ in blocks] == list(range(0, len(live), block_rows))
        np.testing.assert_array_equal(np.concatenate([rows for _, rows in blocks]), live)
        assert len(reads) == len(set(reads)) == len(store.chunks)
    # Ranges with gaps, up to a row in the middle of a chunk
    end = max(1, len(live) - 2)
    read_block = store.reader("labels", end)
    reads.clear()
    for start in range(0, end, 5):
        out = np.empty(min(3, end - start), np.int64)
        read_block(start, out)
        np.testing.assert_array_equal(out, live[start : start + len(out)])
    assert len(reads) == len(set(reads))


def test_rows_are_deleted_by_ids_of_every_kind(tmp_path: Path) -> None:
    features = np.zeros((4, 1), np.float32)
    for number, ids in enumerate(
        [np.array(["a", "ö", "日本", ""]), np.array([b"a", b"bb", b"c", b"d"]), np.arange(4) - 2]
    ):
        store = FeatureStore.create(tmp_path / str(number), features, np.arange(4), ids=ids)
        assert store.delete(ids[[2, 1]]) == 2
        np.testing.assert_array_equal(store.read("ids"), ids[[0, 3]])
        np.testing.assert_array_equal(store.read("labels"), [0, 3])


def test_ids_may_come_as_text(tmp_path: Path) -> None:
    features = np.zeros((4, 1), np.float32)
    lines = np.array(["12", "10"], np.dtypes.StringDType())  # as a file of lines gives them
    for number, ids in enumerate(
        (
            np.arange(10, 14),
            np.array(["10", "11", "12", "ä"]),
            np.array([b"10", b"11", b"12", b"x"]),
        )
    ):
        store = FeatureStore.create(tmp_path / str(number), features, ids=ids)
        assert store.delete(lines) == 2
        np.testing.assert_array_equal(store.read("ids"), ids[[1, 3]])
    numbered = FeatureStore.open(tmp_path / "0")
    with pytest.raises(InputError, match=r"are integers; invalid literal .*'x'"):
        numbered.delete(["11", "x"])
    with pytest.raises(InputError, match="has no row with id 10 "):
        numbered.delete(lines)
    assert numbered.n_rows == 2


def test_ids_that_are_not_there_delete_nothing(tmp_path: Path) -> None:
    store = FeatureStore.create(
        tmp_path / "s", np.zeros((4, 1), np.float32), ids=np.array(["a", "a", "b", "c"])
    )
    with pytest.raises(InputError, match=r"has no row with id .*'x'.* \(2 such ids\)"):
        store.delete(["a", "x", "y"])
    with pytest.raises(InputError, match=r"has no row with id .*'z'.* \(1 such ids\)"):
        store.delete(["a", "z"])  # as many as rows with an "a"
    assert (store.delete([]), store.generation) == (0, 1)
    assert (store.delete(["a", "a"]), store.n_rows) == (2, 2)
    with pytest.raises(InputError, match="has no row with id"):
        store.delete(["a"])
    without = FeatureStore.create(tmp_path / "t", np.zeros((4, 1), np.float32))
    with pytest.raises(InputError, match="has no ids; ingest it with ids"):
        without.delete([1])


def test_two_who_delete_at_once_both_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = create(tmp_path / "s", 0, 9)
    other = FeatureStore.open(tmp_path / "s")
    from sadih_dask.stores import commit as commits

    plain = commits.segments_without

    def meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(commits, "segments_without", plain)
        prepared = plain(*args)
        other.delete(ids_of([0, 5]))
        return prepared

    monkeypatch.setattr(commits, "segments_without", meanwhile)
    assert store.delete(ids_of([2, 8])) == 2
    assert_holds(store, [1, 3, 4, 6, 7])
    # The list that came too late belongs to nobody
    assert len(list((tmp_path / "s/deletions").iterdir())) == 3
    assert len(store.collect()) == 1
    assert_holds(store, [1, 3, 4, 6, 7])


def test_a_purge_leaves_nothing_of_a_deleted_row(tmp_path: Path) -> None:
    secret = b"a very private name"
    ids = np.array([b"x", secret, b"y", b"z"])
    store = FeatureStore.create(
        tmp_path / "s", np.zeros((4, 1), np.float32), ids=ids, chunk_rows=2, compression="none"
    )

    def holders() -> list[str]:
        return [
            name
            for name in files_of(tmp_path / "s")
            if secret in (tmp_path / "s" / name).read_bytes()
        ]

    store.delete([secret])
    assert len(holders()) == 1
    compacted = store.compact()  # the former states still need it
    assert len(holders()) == 1
    purged = compacted.compact(purge=True)
    assert holders() == []
    assert purged.read("ids").tolist() == [b"x", b"y", b"z"]
    assert purged.fingerprint() == store.fingerprint()


def test_all_rows_of_a_segment(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 8)
    store.append(**table(8, 16))
    store.append(**table(16, 24))
    store.delete(ids_of(range(8, 16)))
    assert_holds(store, [*range(8), *range(16, 24)])
    assert store.chunks == (4, 4, 4, 4)
    store.delete(ids_of(range(8)))
    assert_holds(store, range(16, 24))
    compacted = store.compact()
    assert_holds(compacted, range(16, 24))
    compacted.delete(ids_of(range(16, 24)))
    assert_holds(compacted.compact(), [])
    compacted.append(**table(0, 3))
    assert_holds(compacted, range(3))
