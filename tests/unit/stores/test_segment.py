"""A store made block by block: whole blocks only, resumable, committed once."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask.errors import ConflictError, FormatError, IncompleteError, InputError
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.features import FeatureWriter


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the disk: that bytes survive a power cut cannot be observed here."""
    monkeypatch.setattr("os.fsync", lambda _: None)


N = 22
FEATURES = np.random.default_rng(0).standard_normal((N, 3)).astype(np.float32)
LABELS = np.arange(N)


def allocate(url: Path | str, **options: Any) -> FeatureWriter:
    return FeatureStore.allocate(url, N, 3, **{"chunk_rows": 4, **options})


@pytest.mark.parametrize("shard_rows", [None, 8])
@pytest.mark.parametrize("place", ["local", "memory"])
def test_blocks_in_any_order_make_the_store(
    tmp_path: Path, place: str, shard_rows: int | None
) -> None:
    url = str(tmp_path / "s") if place == "local" else "memory://blocks"
    with allocate(url, shard_rows=shard_rows, overwrite=True) as writer:
        assert writer.missing() == list(range(writer.n_blocks))
        for block in reversed(writer.missing()):
            start, stop = writer.rows_of(block)
            pickle.loads(pickle.dumps(writer)).write(
                start, FEATURES[start:stop], LABELS[start:stop]
            )
            assert block not in writer.missing()
        store = writer.finalise()
    np.testing.assert_array_equal(store.read("features"), FEATURES)
    np.testing.assert_array_equal(store.to_zarr()["features"][:], FEATURES)
    assert store.verify().ok
    store.append(FEATURES, LABELS)
    np.testing.assert_array_equal(store.read("labels"), np.concatenate([LABELS, LABELS]))


@pytest.mark.parametrize("shard_rows", [None, 8])
@pytest.mark.parametrize(("start", "stop"), [(1, 9), (0, 3), (4, 9), (16, 21), (2, 22), (20, 24)])
def test_a_misaligned_write_is_refused(
    tmp_path: Path, start: int, stop: int, shard_rows: int | None
) -> None:
    # Dask's own writers lose rows here without a word: two tasks rewrite one chunk.
    with allocate(tmp_path / "s", shard_rows=shard_rows) as writer:
        rows = np.zeros((stop - start, 3), np.float32), np.zeros(stop - start, int)
        size = writer.block_rows
        with pytest.raises(InputError, match=f"not whole blocks; write from a multiple of {size}"):
            writer.write(start, *rows)
        assert writer.missing() == list(range(writer.n_blocks))


def test_several_blocks_in_one_write(tmp_path: Path) -> None:
    with allocate(tmp_path / "s") as writer:
        writer.write(4, FEATURES[4:12], LABELS[4:12])
        assert writer.missing() == [0, 3, 4, 5]
        writer.write(12, FEATURES[12:], LABELS[12:])
        with pytest.raises(IncompleteError, match=r"1 of 6 blocks are not written, .* block 0"):
            writer.finalise()
    assert FeatureWriter.resume(tmp_path / "s").missing() == [0]


def test_the_same_call_goes_on_where_it_was_left(tmp_path: Path) -> None:
    with allocate(tmp_path / "s") as writer:
        writer.write(0, FEATURES[:8], LABELS[:8])
    written = (tmp_path / "s/features/c.0.0").stat().st_mtime_ns
    with allocate(tmp_path / "s") as again:
        assert again.missing() == [2, 3, 4, 5]
        again.write(8, FEATURES[8:], LABELS[8:])
        store = again.finalise()
    np.testing.assert_array_equal(store.read("features"), FEATURES)
    assert (tmp_path / "s/features/c.0.0").stat().st_mtime_ns == written
    assert not (tmp_path / "s/_commits/pending").exists()
    with pytest.raises(ConflictError, match="is finished; add rows with append"):
        FeatureWriter.resume(tmp_path / "s")


def test_create_completes_what_another_left_and_trusts_no_other_rows(tmp_path: Path) -> None:
    with allocate(tmp_path / "s") as writer:
        writer.write(0, FEATURES[:8], LABELS[:8])
        writer.write(8, FEATURES[8:12] + 1, LABELS[8:12])
        (tmp_path / "s/_commits/pending/0").write_bytes(b"damaged")
    store = FeatureStore.create(tmp_path / "s", FEATURES, LABELS, chunk_rows=4)
    np.testing.assert_array_equal(store.read("features"), FEATURES)


def test_a_damaged_receipt_means_that_its_block_is_written_again(tmp_path: Path) -> None:
    with allocate(tmp_path / "s") as writer:
        writer.write(0, FEATURES, LABELS)
        (tmp_path / "s/_commits/pending/3").write_bytes(b"")
        with pytest.raises(IncompleteError, match="the first is block 3"):
            writer.finalise()
    with allocate(tmp_path / "s") as again:
        assert again.missing() == [3]


def test_another_plan_at_the_same_place_is_refused(tmp_path: Path) -> None:
    allocate(tmp_path / "s").close()
    for other in ({"chunk_rows": 8}, {"dtype": "float16"}, {"source": "x"}, {"n_labels": 2}):
        with pytest.raises(
            ConflictError, match="already holds an unfinished store of another plan"
        ):
            allocate(tmp_path / "s", **other)
    with pytest.raises(ConflictError, match="is not a store of this kind"):
        CodeStore.allocate(tmp_path / "s", 5, n_bits=8, model="m", overwrite=True)


def test_a_straggler_cannot_write_into_what_has_replaced_its_store(tmp_path: Path) -> None:
    writer = allocate(tmp_path / "s")
    straggler = pickle.loads(pickle.dumps(writer))
    writer.close()
    with allocate(tmp_path / "s", source="other", overwrite=True) as other:
        with pytest.raises(ConflictError, match="has been replaced by another writer"):
            straggler.write(0, FEATURES[:4], LABELS[:4])
        late = pickle.loads(pickle.dumps(other))
        other.write(0, FEATURES, LABELS)
        other.finalise()
    with pytest.raises(ConflictError, match="has been finished by another writer"):
        late.write(0, FEATURES[:4], LABELS[:4])


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    import os

    with (
        allocate(tmp_path / "s"),
        pytest.raises(ConflictError, match=f"is being written by process {os.getpid()} on "),
    ):
        allocate(tmp_path / "s")
    with allocate(tmp_path / "s") as writer:
        writer.write(0, FEATURES, LABELS)
        writer.finalise()
    assert not (tmp_path / "s/_commits/lock").exists()


def test_the_lock_of_an_object_store(tmp_path: Path) -> None:
    from sadih_dask.files.filesystem import connect
    from sadih_dask.files.lease import LOCK_KEY, Holder, WriterLock

    files = connect("memory://locked")
    mine = WriterLock(files).acquire()
    with pytest.raises(ConflictError, match="is being written by process"):
        WriterLock(files).acquire()
    me = Holder.from_json(files.read(LOCK_KEY, 1000))
    files.write(LOCK_KEY, [Holder("elsewhere", me.pid, me.started, "t").to_json()])
    with pytest.raises(ConflictError, match=rf"by process {me.pid} on elsewhere; wait until"):
        mine.check()
    with pytest.raises(ConflictError, match="on elsewhere"):
        WriterLock(files).acquire()
    # A later process with the same number is not the holder.
    files.write(LOCK_KEY, [Holder(me.host, me.pid, "1", "t").to_json()])
    WriterLock(files).acquire().release()
    assert files.names("_commits") == []
    files.write(LOCK_KEY, [b"rubbish"])
    with pytest.raises(ConflictError, match="on an unknown host"):
        WriterLock(files).acquire()


def test_a_plan_that_is_too_large_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"make a manifest of \d+ bytes, .* use larger chunks"):
        FeatureStore.allocate(tmp_path / "s", 10**9, 3, chunk_rows=1)
    with pytest.raises(FormatError, match="exceed the limit of 268435456 bytes a chunk"):
        FeatureStore.allocate(tmp_path / "s", 10**9, 1024, chunk_rows=1 << 20)
    with pytest.raises(InputError, match="ids must be 'int64', or 'S' or 'U' with a length"):
        FeatureStore.allocate(tmp_path / "s", 10, 3, id_dtype="object")
    assert not (tmp_path / "s/zarr.json").exists()
