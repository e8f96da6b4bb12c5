"""Damage is an error that names the store, the array, the chunk and its rows; never data."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from sadih_dask.errors import (
    ConflictError,
    FormatError,
    IncompleteError,
    InputError,
    IntegrityError,
)
from sadih_dask.files.checksum import crc32c
from sadih_dask.stores import FeatureStore, reader
from sadih_dask.stores.chunks import encode_chunk
from sadih_dask.stores.layout import ArrayLayout
from tests.support.stores import create, ids_of, segment_folder, table

N = 20
FEATURES = np.random.default_rng(0).standard_normal((N, 3)).astype(np.float32)
COMPRESSIONS = ["none", "zstd"]


def make(path: Path, compression: str = "none") -> FeatureStore:
    return FeatureStore.create(
        path,
        FEATURES,
        np.arange(N),
        class_names=["one", "two"],
        chunk_rows=4,
        compression=compression,
    )


def replace(file: Path, data: bytes | bytearray) -> None:
    # Unlinked first: ext4 flushes a file that is truncated and written again to the disk.
    file.unlink()
    file.write_bytes(data)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_no_flipped_bit_in_a_chunk_is_ever_read(tmp_path: Path, compression: str) -> None:
    store = make(tmp_path / "s", compression)
    file = segment_folder(store) / "features/c.1.0"
    intact = file.read_bytes()
    for position in range(len(intact)):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << position % 8
        replace(file, damaged)
        with pytest.raises(
            IntegrityError, match=r"array 'features', chunk 1 of segment 0 \(rows 4 to 7"
        ):
            store.read("features", 4, 8)
    file.write_bytes(intact)
    np.testing.assert_array_equal(store.read("features"), FEATURES)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("length", [0, 1, 3, 4, 20, -1])
def test_a_truncated_chunk(tmp_path: Path, compression: str, length: int) -> None:
    store = make(tmp_path / "s", compression)
    file = segment_folder(store) / "features/c.1.0"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(
        IntegrityError, match=r"array 'features', chunk 1 .*file segments/.*/features/c.1.0"
    ):
        store.read("features")


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_missing_chunk_is_never_zeros(tmp_path: Path, compression: str) -> None:
    store = make(tmp_path / "s", compression)
    (segment_folder(store) / "labels/c.1").unlink()
    with pytest.raises(IntegrityError, match=r"array 'labels', chunk \d .*its file is missing"):
        store.read("labels")
    np.testing.assert_array_equal(store.read("features"), FEATURES)


def swapped(folder: Path, _: ArrayLayout) -> None:
    one, two = folder / "c.1.0", folder / "c.2.0"
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def zeroed(folder: Path, layout: ArrayLayout) -> None:
    parts, _ = encode_chunk(np.zeros((4, 3), np.float32), layout)
    (folder / "c.1.0").write_bytes(b"".join(bytes(part) for part in parts))


def stale(folder: Path, layout: ArrayLayout) -> None:
    parts, _ = encode_chunk(FEATURES[4:8] + 1, layout)
    (folder / "c.1.0").write_bytes(b"".join(bytes(part) for part in parts))


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("exchange", [swapped, zeroed, stale])
def test_a_valid_chunk_in_the_wrong_place(
    tmp_path: Path, exchange: Callable[[Path, ArrayLayout], None], compression: str
) -> None:
    store = make(tmp_path / "s", compression)
    exchange(
        segment_folder(store) / "features", ArrayLayout("features", "float32", (3,), 4, compression)
    )
    with pytest.raises(IntegrityError, match=r"chunk 1 .* not the one that was committed"):
        store.read("features", 5, 6)
    report = store.verify()
    assert not report.ok
    assert "array 'features', chunk 1 of segment 0 (rows 4 to 7" in report.problems[0]


def truncated(folder: Path, _: ArrayLayout) -> None:
    file = folder / "c.1.0"
    file.write_bytes(file.read_bytes()[:-9])


def extended(folder: Path, _: ArrayLayout) -> None:
    file = folder / "c.1.0"
    file.write_bytes(file.read_bytes() + b"x")


def flipped(folder: Path, _: ArrayLayout) -> None:
    file = folder / "c.1.0"
    data = bytearray(file.read_bytes())
    data[5] ^= 16
    file.write_bytes(data)


def missing(folder: Path, _: ArrayLayout) -> None:
    (folder / "c.1.0").unlink()


@pytest.mark.parametrize("harm", [truncated, extended, flipped, missing, swapped, zeroed, stale])
def test_the_fast_reader_and_the_general_one_say_the_same(
    tmp_path: Path,
    harm: Callable[[Path, ArrayLayout], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = make(tmp_path / "s")
    harm(segment_folder(store) / "features", ArrayLayout("features", "float32", (3,), 4))
    said = []
    for fast in (True, False):
        if not fast:
            monkeypatch.setattr(reader, "LocalFiles", type(None))
        np.testing.assert_array_equal(store.read("features", 14, 20), FEATURES[14:])
        with pytest.raises(IntegrityError, match=r"'features', chunk 1 of segment 0 \(rows 4") as e:
            store.read("features")
        said.append(str(e.value))
    assert said[0] == said[1]


def test_both_implementations_of_the_checksum_agree() -> None:
    data = np.random.default_rng(0).integers(0, 256, 10_000, dtype=np.uint8)
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    for cut in (0, 1, 4096, 10_000):
        whole = google_crc32c.value(data.tobytes())
        assert crc32c(data[cut:], crc32c(data[:cut])) == whole


def test_verify_reports_every_damaged_chunk_and_its_progress(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    for name in ("features/c.0.0", "features/c.4.0", "labels/c.2"):
        file = segment_folder(store) / name
        data = bytearray(file.read_bytes())
        data[0] ^= 1
        file.write_bytes(data)
    seen: list[tuple[int, int]] = []
    report = store.verify(progress=lambda done, total: seen.append((done, total)))
    assert [problem.split(": ")[1].split(" (")[0] for problem in report.problems] == [
        "array 'features', chunk 0 of segment 0",
        "array 'features', chunk 4 of segment 0",
        "array 'labels', chunk 2 of segment 0",
    ]
    assert seen == [(i, 10) for i in range(1, 11)]
    assert [problem.split(" (")[0] for problem in store.verify(["labels"]).problems] == [
        f"{tmp_path / 's'}: array 'labels', chunk 2 of segment 0"
    ]
    assert str(report).endswith("20 rows, 10 chunks, 400 bytes: 3 damaged")
    with pytest.raises(InputError, match="has no array 'ids'; it has features, labels"):
        store.verify(["ids"])


def test_damage_is_named_by_the_rows_as_the_store_counts_them(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 9)
    store.append(**table(9, 19))
    store.delete(ids_of([0, 1, 5, 6, 7, 8, 13, 14, 15, 16]))
    for name in ("c.0", "c.1"):
        (segment_folder(store, 0) / "labels" / name).unlink()
        (segment_folder(store, 1) / "labels" / name).unlink()
    found = [problem.split("(")[1].split(",")[0] for problem in store.verify(["labels"]).problems]
    assert found == ["rows 0 to 1", "rows 2 to 2", "rows 3 to 6", "deleted rows"]
    # A chunk of dead rows alone is never read
    np.testing.assert_array_equal(store.read("labels", 7, 9), [17, 18])


METADATA = ["zarr.json", "segments/*/manifest", "segments/*/features/zarr.json", "deletions/*"]


def damageable(path: Path, pattern: str) -> tuple[FeatureStore, Path]:
    store = create(path, 0, 9)
    store.delete(ids_of([2, 6]))
    (file,) = path.glob(pattern)
    return store, file


@pytest.mark.parametrize("pattern", METADATA)
def test_no_flipped_bit_in_metadata_goes_unnoticed(tmp_path: Path, pattern: str) -> None:
    store, file = damageable(tmp_path / "s", pattern)
    expected = store.read("features")
    intact = file.read_bytes()
    values = json.loads(intact) if pattern.endswith("json") else None
    for position in range(len(intact)):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << position % 7
        replace(file, damaged)
        try:
            opened = FeatureStore.open(tmp_path / "s")
            problems = opened.verify(["labels"]).problems
        except (IntegrityError, FormatError) as error:
            problems = (str(error),)
        if problems:
            assert all(str(tmp_path / "s") in problem for problem in problems)
            continue
        # White space, or a field that nobody needs: all that we have written is as before.
        assert values is not None
        found = json.loads(damaged)
        assert found.get("attributes") == values["attributes"]
        np.testing.assert_array_equal(opened.read("features"), expected)


@pytest.mark.parametrize("pattern", METADATA)
@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff" * 100, b"[" * 10_000, None])
def test_metadata_that_are_rubbish_or_gone(
    tmp_path: Path, pattern: str, content: bytes | None
) -> None:
    store, file = damageable(tmp_path / "s", pattern)
    file.unlink() if content is None else file.write_bytes(content)
    if pattern == "zarr.json":
        with pytest.raises((IntegrityError, FormatError), match=r"/s"):
            store.verify()
        with pytest.raises((IntegrityError, FormatError), match=r"/s"):
            FeatureStore.open(tmp_path / "s")
        return
    problems = FeatureStore.open(tmp_path / "s").verify().problems
    assert any(file.name in problem for problem in problems)
    if "features" not in pattern:  # which only other tools read
        with pytest.raises((IntegrityError, FormatError), match=file.name):
            FeatureStore.open(tmp_path / "s").read("labels")


def test_a_manifest_of_another_segment_is_noticed(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    store.append(FEATURES, np.arange(N))
    shutil.copy(segment_folder(store, 0) / "manifest", segment_folder(store, 1) / "manifest")
    np.testing.assert_array_equal(store.refresh().read("features", 0, N), FEATURES)
    with pytest.raises(IntegrityError, match=r"manifest is not the one that was committed"):
        store.refresh().read("features", N, N + 1)


def test_deletions_of_another_state_are_noticed(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 9)
    store.delete(ids_of([2]))
    (former,) = (tmp_path / "s/deletions").iterdir()
    other = create(tmp_path / "t", 0, 9)
    other.delete(ids_of([3]))
    (latter,) = (tmp_path / "t/deletions").iterdir()
    shutil.copy(latter, former)
    with pytest.raises(IntegrityError, match=r"deletions/.* is not the one that was committed"):
        store.refresh().read("labels")


def test_a_former_root_in_the_place_of_the_latest_reads_the_former_rows(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    root = (tmp_path / "s/zarr.json").read_bytes()
    store.append(FEATURES[:1], [7])
    (tmp_path / "s/zarr.json").write_bytes(root)
    opened = FeatureStore.open(tmp_path / "s")
    np.testing.assert_array_equal(opened.read("features"), FEATURES)
    assert opened.verify().ok


def test_a_former_root_is_checked_as_well(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    sent = pickle.dumps(store)
    store.append(FEATURES[:1], [7])
    store.append(FEATURES[:1], [7])
    one, two = sorted((tmp_path / "s/roots").iterdir())
    shutil.copy(two, one)
    with pytest.raises(IntegrityError, match=r"roots/00000001-.* is that of another commit"):
        pickle.loads(sent)


def test_what_is_not_a_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"is not a store: it has no zarr.json"):
        FeatureStore.open(tmp_path / "nothing")
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(FormatError, match="have to be ingested into a store first"):
        FeatureStore.open(tmp_path)


def test_a_store_of_another_version_says_what_to_do(tmp_path: Path) -> None:
    record = {"format": "sadih-features", "version": 1, "generation": 3, "checksum": 7}
    document = {"zarr_format": 3, "node_type": "group", "attributes": {"sadih_dask": record}}
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(
        FormatError, match=r"version 1, this release reads 2: .*ingest its source files again"
    ):
        FeatureStore.open(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(ConflictError, match=r"left alone; choose another path .*version 1"):
            FeatureStore.create(tmp_path, FEATURES, overwrite=overwrite)
    assert json.loads((tmp_path / "zarr.json").read_text()) == document


def test_an_unfinished_store_says_incomplete_to_everybody(tmp_path: Path) -> None:
    import zarr

    writer = FeatureStore.allocate(tmp_path / "s", N, 3, chunk_rows=4)
    writer.write(4, FEATURES[4:8], np.arange(4))
    with pytest.raises(IncompleteError, match=r"incomplete: it has no rows yet, .* Repeat the"):
        FeatureStore.open(tmp_path / "s")
    assert list(zarr.open_group(tmp_path / "s", mode="r")["segments"].members()) == []
