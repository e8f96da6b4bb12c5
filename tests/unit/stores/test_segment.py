"""A store made block by block: whole blocks only, resumable, committed once."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask.errors import ConflictError, FormatError, IncompleteError, InputError
from sadih_dask.files.filesystem import TEMPORARY_SUFFIX
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.features import FeatureWriter
from tests.support.stores import files_of, segment_folder

N = 22
FEATURES = np.random.default_rng(0).standard_normal((N, 3)).astype(np.float32)
LABELS = np.arange(N)


def allocate(url: Path | str, **options: Any) -> FeatureWriter:
    return FeatureStore.allocate(url, N, 3, **{"chunk_rows": 4, **options})


def chunks(url: Path) -> dict[str, tuple[int, int]]:
    """Which file stands for each chunk of a store."""
    return {
        str(path.relative_to(url)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in url.rglob("c.*")
    }


@pytest.mark.parametrize("place", ["local", "memory"])
def test_blocks_in_any_order_make_the_store(tmp_path: Path, place: str) -> None:
    url = str(tmp_path / "s") if place == "local" else "memory://blocks"
    writer = allocate(url, overwrite=True)
    assert writer.missing() == list(range(writer.n_blocks)) == list(range(6))
    for block in reversed(writer.missing()):
        start, stop = writer.rows_of(block)
        sent = pickle.dumps(writer)
        assert len(sent) < 1500
        worker = pickle.loads(sent)
        digests = worker.write(start, FEATURES[start:stop], LABELS[start:stop])
        assert {block: {"features", "labels"}} == {k: set(v) for k, v in digests.items()}
        if block % 2:  # the others are read from the ends of the files
            writer.learn(digests)
        assert block not in writer.missing()
    store = writer.finalise()
    np.testing.assert_array_equal(store.read("features"), FEATURES)
    np.testing.assert_array_equal(store.to_zarr()[store.components[0]][:], FEATURES)
    assert store.verify().ok
    store.append(FEATURES, LABELS)
    np.testing.assert_array_equal(store.read("labels"), np.concatenate([LABELS, LABELS]))


def test_workers_append_blocks_too(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", FEATURES, LABELS, chunk_rows=4)
    for n_new in (N, 1):  # the second is written together with the last two rows of the first
        writer = store.extend(n_new)
        for block in writer.missing():
            start, stop = writer.rows_of(block)
            rows = FEATURES[start:stop], LABELS[start:stop]
            writer.learn(pickle.loads(pickle.dumps(writer)).write(start, *rows))
        store = writer.finalise()
    np.testing.assert_array_equal(store.read("labels"), [*LABELS, *LABELS, 0])
    assert store.verify().ok


@pytest.mark.parametrize(("start", "stop"), [(1, 9), (0, 3), (4, 9), (16, 21), (2, 22), (20, 24)])
def test_a_misaligned_write_is_refused(tmp_path: Path, start: int, stop: int) -> None:
    # Dask's own writers lose rows here without a word: two tasks rewrite one chunk.
    writer = allocate(tmp_path / "s")
    rows = np.zeros((stop - start, 3), np.float32), np.zeros(stop - start, int)
    with pytest.raises(InputError, match="not whole blocks; write from a multiple of 4"):
        writer.write(start, *rows)
    assert writer.missing() == list(range(writer.n_blocks))


def test_several_blocks_in_one_write(tmp_path: Path) -> None:
    writer = allocate(tmp_path / "s")
    writer.write(4, FEATURES[4:12], LABELS[4:12])
    assert writer.missing() == [0, 3, 4, 5]
    writer.write(12, FEATURES[12:], LABELS[12:])
    with pytest.raises(IncompleteError, match=r"1 of 6 blocks are not written, .* block 0"):
        writer.finalise()
    assert allocate(tmp_path / "s").missing() == [0]


def test_the_same_call_goes_on_where_it_was_left(tmp_path: Path) -> None:
    allocate(tmp_path / "s").write(0, FEATURES[:8], LABELS[:8])
    written = chunks(tmp_path / "s")
    again = allocate(tmp_path / "s")
    assert again.missing() == [2, 3, 4, 5]
    again.write(8, FEATURES[8:], LABELS[8:])
    store = again.finalise()
    np.testing.assert_array_equal(store.read("features"), FEATURES)
    assert written.items() <= chunks(tmp_path / "s").items()
    assert store.verify().unfinished == ()
    with pytest.raises(ConflictError, match="already holds a finished store"):
        allocate(tmp_path / "s")


def test_a_block_that_is_written_twice_stays_as_it_is(tmp_path: Path) -> None:
    writer = allocate(tmp_path / "s")
    first = writer.write(0, FEATURES, LABELS)
    written = chunks(tmp_path / "s")
    late = pickle.loads(pickle.dumps(writer))
    assert writer.write(0, FEATURES, LABELS) == first
    store = writer.finalise()
    assert late.write(0, FEATURES[:4], LABELS[:4]) == {0: first[0]}
    with pytest.raises(
        ConflictError, match=r"'features', block 1: the same call has written other"
    ):
        late.write(4, FEATURES[4:8] + 1, LABELS[4:8])
    assert chunks(tmp_path / "s") == written
    np.testing.assert_array_equal(store.read("features"), FEATURES)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_chunks_that_a_power_cut_has_emptied_are_written_again(
    tmp_path: Path, compression: str
) -> None:
    writer = allocate(tmp_path / "s", compression=compression)
    writer.write(0, FEATURES, LABELS)
    (folder,) = (tmp_path / "s/segments").glob("*/")
    (folder / "features/c.1.0").write_bytes(b"")
    (folder / "labels/c.3").write_bytes(b"x")
    assert allocate(tmp_path / "s", compression=compression).missing() == [1, 3]
    store = FeatureStore.create(
        tmp_path / "s", FEATURES, LABELS, chunk_rows=4, compression=compression
    )
    np.testing.assert_array_equal(store.read("labels"), LABELS)
    assert store.verify().ok


def test_create_completes_what_another_left_and_trusts_no_other_rows(tmp_path: Path) -> None:
    writer = allocate(tmp_path / "s")
    writer.write(0, FEATURES[:8], LABELS[:8])
    writer.write(8, FEATURES[8:12] + 1, LABELS[8:12])
    with pytest.raises(ConflictError, match=r"block 2: .*Its data have changed.*overwrite=True"):
        FeatureStore.create(tmp_path / "s", FEATURES, LABELS, chunk_rows=4)
    store = FeatureStore.create(tmp_path / "s", FEATURES, LABELS, chunk_rows=4, overwrite=True)
    np.testing.assert_array_equal(store.read("features"), FEATURES)
    writer.write(12, FEATURES[12:], LABELS[12:])
    with pytest.raises(ConflictError, match="has been given up by somebody else"):
        writer.finalise()
    assert store.refresh().commit == store.commit


def test_another_plan_at_the_same_place_is_refused(tmp_path: Path) -> None:
    allocate(tmp_path / "s")
    for other in ({"chunk_rows": 8}, {"dtype": "float16"}, {"source": "x"}, {"n_labels": 2}):
        with pytest.raises(
            ConflictError, match=r"already holds an unfinished store of another plan \(begun by "
        ):
            allocate(tmp_path / "s", **other)
    with pytest.raises(ConflictError, match="is not a store of this kind"):
        CodeStore.allocate(tmp_path / "s", 5, n_bits=8, model="m", overwrite=True)


def test_a_straggler_cannot_write_into_what_has_replaced_its_store(tmp_path: Path) -> None:
    writer = allocate(tmp_path / "s")
    straggler = pickle.loads(pickle.dumps(writer))
    other = allocate(tmp_path / "s", source="other", overwrite=True)
    straggler.write(0, FEATURES + 1, LABELS)
    with pytest.raises(ConflictError, match="given up by somebody else"):
        straggler.finalise()
    late = pickle.loads(pickle.dumps(other))
    other.write(0, FEATURES, LABELS)
    store = other.finalise()
    late.write(0, FEATURES[:4], LABELS[:4])
    straggler.write(4, FEATURES[4:8] + 1, LABELS[4:8])  # wherever that goes, nobody reads it
    np.testing.assert_array_equal(store.read("features"), FEATURES)
    store.collect()
    assert store.verify().ok
    folders = {path.name for path in (tmp_path / "s/segments").glob("*/")}
    assert folders == {store.segments[0].id}


def test_two_with_the_same_call_agree(tmp_path: Path) -> None:
    one, two = allocate(tmp_path / "s"), allocate(tmp_path / "s")
    one.write(0, FEATURES[:12], LABELS[:12])
    two.write(8, FEATURES[8:], LABELS[8:])
    first = one.finalise()
    assert two.finalise().commit == first.commit
    np.testing.assert_array_equal(first.read("features"), FEATURES)


def test_a_writer_that_gives_up_leaves_the_place_free(tmp_path: Path) -> None:
    allocate(tmp_path / "s").abandon()
    with pytest.raises(IncompleteError, match="is being written by nobody any more"):
        FeatureStore.open(tmp_path / "s")
    store = FeatureStore.create(tmp_path / "s", FEATURES[:3], chunk_rows=2)
    np.testing.assert_array_equal(store.read("features"), FEATURES[:3])


def test_a_plan_that_is_too_large_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"make a manifest of \d+ bytes, .* use larger chunks"):
        FeatureStore.allocate(tmp_path / "s", 10**9, 3, chunk_rows=1)
    with pytest.raises(FormatError, match=r"exceed the limit of 268435456 bytes; choose fewer"):
        FeatureStore.allocate(tmp_path / "s", 10**9, 1024, chunk_rows=1 << 20)
    with pytest.raises(InputError, match="ids must be 'int64', or 'S' or 'U' with a length"):
        FeatureStore.allocate(tmp_path / "s", 10, 3, id_dtype="object")
    with pytest.raises(InputError, match="a store cannot have -1 rows"):
        FeatureStore.allocate(tmp_path / "s", -1, 3)
    assert not (tmp_path / "s").exists()


def test_a_full_disk_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    writer = allocate(tmp_path / "s")
    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        with pytest.raises(
            IncompleteError, match=r"'features', block 0 .*No space left .*repeat the same call"
        ) as caught:
            writer.write(0, FEATURES, LABELS)
    assert caught.value.errno == 28
    assert not any(name.endswith(TEMPORARY_SUFFIX) for name in files_of(tmp_path))
    writer.write(0, FEATURES, LABELS)
    assert writer.finalise().verify().ok


def test_a_segment_is_as_long_as_its_rows(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", FEATURES, LABELS)
    assert (store.chunk_rows, store.chunks) == (N, (N,))
    assert (segment_folder(store) / "features/c.0.0").stat().st_size == FEATURES.nbytes + 4
    document = json.loads((segment_folder(store) / "labels/zarr.json").read_text())
    assert document["shape"] == [N]
