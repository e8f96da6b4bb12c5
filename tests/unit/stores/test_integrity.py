"""Damage is an error that names the store, the array, the chunk and its rows; never data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from sadih_dask.errors import FormatError, IncompleteError, IntegrityError
from sadih_dask.files.checksum import crc32c
from sadih_dask.stores import FeatureStore
from sadih_dask.stores import chunks as lean
from sadih_dask.stores.chunks import encode_block
from sadih_dask.stores.layout import ArrayLayout


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the disk: that bytes survive a power cut cannot be observed here."""
    monkeypatch.setattr("os.fsync", lambda _: None)


N = 20
FEATURES = np.random.default_rng(0).standard_normal((N, 3)).astype(np.float32)
LAYOUTS = [(None, "none"), (None, "zstd"), (8, "none"), (8, "zstd")]


def make(path: Path, shard_rows: int | None = None, compression: str = "none") -> FeatureStore:
    return FeatureStore.create(
        path,
        FEATURES,
        np.arange(N),
        class_names=["one", "two"],
        chunk_rows=4,
        shard_rows=shard_rows,
        compression=compression,
    )


def replace(file: Path, data: bytes | bytearray) -> None:
    # Unlinked first: ext4 flushes a file that is truncated and written again to the disk.
    file.unlink()
    file.write_bytes(data)


@pytest.mark.parametrize(("shard_rows", "compression"), LAYOUTS)
def test_no_flipped_bit_in_a_chunk_is_ever_read(
    tmp_path: Path, shard_rows: int | None, compression: str
) -> None:
    store = make(tmp_path / "s", shard_rows, compression)
    file = tmp_path / "s/features/c.1.0"
    intact = file.read_bytes()
    rows = slice(4, 8) if shard_rows is None else slice(8, 16)
    for position in range(len(intact)):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << position % 8
        replace(file, damaged)
        with pytest.raises(IntegrityError, match=r"array 'features', chunk \d+ \(rows \d+ to"):
            store.read("features", rows.start, rows.stop)
    file.write_bytes(intact)
    np.testing.assert_array_equal(store.read("features"), FEATURES)


@pytest.mark.parametrize(("shard_rows", "compression"), LAYOUTS)
@pytest.mark.parametrize("length", [0, 1, 3, 4, 20, -1])
def test_a_truncated_chunk(
    tmp_path: Path, shard_rows: int | None, compression: str, length: int
) -> None:
    store = make(tmp_path / "s", shard_rows, compression)
    file = tmp_path / "s/features/c.1.0"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(IntegrityError, match=r"array 'features', chunk [12] .*file features/c.1.0"):
        store.read("features")


@pytest.mark.parametrize(("shard_rows", "compression"), LAYOUTS)
def test_a_missing_chunk_is_never_zeros(
    tmp_path: Path, shard_rows: int | None, compression: str
) -> None:
    store = make(tmp_path / "s", shard_rows, compression)
    (tmp_path / "s/labels/c.1").unlink()
    with pytest.raises(IntegrityError, match=r"array 'labels', chunk \d .*its file is missing"):
        store.read("labels")
    np.testing.assert_array_equal(store.read("features"), FEATURES)


def swapped(folder: Path, _: ArrayLayout) -> None:
    one, two = folder / "c.1.0", folder / "c.2.0"
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def zeroed(folder: Path, layout: ArrayLayout) -> None:
    parts = encode_block(np.zeros((4, 3), np.float32), layout).parts
    (folder / "c.1.0").write_bytes(b"".join(bytes(part) for part in parts))


def stale(folder: Path, layout: ArrayLayout) -> None:
    parts = encode_block(FEATURES[4:8] + 1, layout).parts
    (folder / "c.1.0").write_bytes(b"".join(bytes(part) for part in parts))


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("exchange", [swapped, zeroed, stale])
def test_a_valid_chunk_in_the_wrong_place(
    tmp_path: Path, exchange: Callable[[Path, ArrayLayout], None], compression: str
) -> None:
    store = make(tmp_path / "s", None, compression)
    exchange(
        tmp_path / "s/features", ArrayLayout("features", "float32", (3,), 4, None, compression)
    )
    with pytest.raises(IntegrityError, match=r"chunk 1 .* not the one that was committed"):
        store.read("features", 5, 6)
    report = store.verify()
    assert not report.ok
    assert "array 'features', chunk 1 (rows 4 to 7" in report.problems[0]
    with pytest.raises(IntegrityError, match="of 10 chunks are damaged"):
        report.raise_if_damaged()


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
def test_the_lean_reader_and_the_general_one_say_the_same(
    tmp_path: Path,
    harm: Callable[[Path, ArrayLayout], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = make(tmp_path / "s")
    harm(tmp_path / "s/features", ArrayLayout("features", "float32", (3,), 4))
    said = []
    for use_lean in (True, False):
        monkeypatch.setattr(lean, "can_read", lambda _, use_lean=use_lean: use_lean)
        np.testing.assert_array_equal(store.read("features", 14, 20), FEATURES[14:])
        with pytest.raises(IntegrityError, match=r"array 'features', chunk 1 \(rows 4") as caught:
            store.read("features")
        said.append(str(caught.value))
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
        file = tmp_path / "s" / name
        data = bytearray(file.read_bytes())
        data[0] ^= 1
        file.write_bytes(data)
    seen: list[tuple[int, int]] = []
    report = store.verify(progress=lambda done, total: seen.append((done, total)))
    assert [problem.split(": ")[1].split(" (")[0] for problem in report.problems] == [
        "array 'features', chunk 0",
        "array 'features', chunk 4",
        "array 'labels', chunk 2",
    ]
    assert seen == [(i, 10) for i in range(1, 11)]
    assert store.verify(["features"], chunks=range(1, 4)).ok
    assert str(report).endswith("20 rows, 10 chunks, 400 bytes: 3 damaged")


@pytest.mark.parametrize("name", ["zarr.json", "features/zarr.json", "_commits/manifest-00000001"])
def test_no_flipped_bit_in_metadata_goes_unnoticed(tmp_path: Path, name: str) -> None:
    make(tmp_path / "s")
    file = tmp_path / "s" / name
    intact = file.read_bytes()
    values = json.loads(intact) if name.endswith("json") else None
    for position in range(len(intact)):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << position % 7
        replace(file, damaged)
        if not _opens(tmp_path / "s"):
            continue
        # White space, or a field that neither we nor the checksum need: all values as before.
        assert values is not None
        assert json.loads(damaged)["attributes"] == values["attributes"]
        np.testing.assert_array_equal(FeatureStore.open(tmp_path / "s").read("features"), FEATURES)


def _opens(path: Path) -> bool:
    try:
        FeatureStore.open(path)
    except (IntegrityError, FormatError) as error:
        return str(path) not in str(error)
    return True


@pytest.mark.parametrize("name", ["zarr.json", "features/zarr.json", "_commits/manifest-00000001"])
@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff" * 100, b"[" * 10_000, None])
def test_metadata_that_are_rubbish_or_gone(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    store = make(tmp_path / "s")
    file = tmp_path / "s" / name
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises((IntegrityError, FormatError), match=r"/s"):
        FeatureStore.open(tmp_path / "s")
    with pytest.raises((IntegrityError, FormatError), match=r"/s"):
        store.verify()


def test_a_manifest_of_another_commit_is_noticed(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    store.append(FEATURES, np.arange(N))
    manifests = tmp_path / "s/_commits"
    shutil.copy(manifests / "manifest-00000001", manifests / "manifest-00000002")
    with pytest.raises(IntegrityError, match=r"manifest of commit 2 .* belongs to another"):
        FeatureStore.open(tmp_path / "s")


def test_an_old_root_with_new_chunks_reads_the_old_rows(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    root = (tmp_path / "s/zarr.json").read_bytes()
    store.append(FEATURES[:1], [7])
    (tmp_path / "s/zarr.json").write_bytes(root)
    with pytest.raises(IntegrityError, match=r"array 'features' has shape \(21, 3\)"):
        FeatureStore.open(tmp_path / "s")


def test_what_is_not_a_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"is not a store: it has no zarr.json"):
        FeatureStore.open(tmp_path / "nothing")
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(FormatError, match="have to be ingested into a store first"):
        FeatureStore.open(tmp_path)


def test_an_unfinished_store_says_incomplete_to_everybody(tmp_path: Path) -> None:
    writer = FeatureStore.allocate(tmp_path / "s", N, 3, chunk_rows=4)
    writer.write(4, FEATURES[4:8], np.arange(4))
    writer.close()
    with pytest.raises(IncompleteError, match=r"incomplete: 1 of 5 blocks are written. Repeat the"):
        FeatureStore.open(tmp_path / "s")
    import zarr

    assert zarr.open_group(tmp_path / "s", mode="r")["features"].shape == (0, 3)
    assert zarr.open_array(tmp_path / "s/features", mode="r").shape == (0, 3)
