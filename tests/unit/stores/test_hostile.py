"""Stores made to do harm are refused, with little memory and without running anything."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numcodecs.zstd
import numpy as np
import pytest

from sadih_dask.errors import FormatError, IntegrityError
from sadih_dask.files.checksum import crc32c, trailer
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.chunks import zstd_content_size
from sadih_dask.stores.root import _checksum


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the disk: that bytes survive a power cut cannot be observed here."""
    monkeypatch.setattr("os.fsync", lambda _: None)


Change = dict[str, Any]


def make(path: Path, **options: Any) -> FeatureStore:
    return FeatureStore.create(
        path, np.ones((8, 3), np.float32), np.arange(8), chunk_rows=4, **options
    )


def forge(path: Path, record: Change | None = None, **arrays: Change | None) -> None:
    """Rewrite a store's metadata with checksums that fit, as somebody who means harm would."""
    root = json.loads((path / "zarr.json").read_text())
    own = root["attributes"]["sadih_dask"]
    metadata = root["consolidated_metadata"]["metadata"]
    own.update(record or {})
    for name, change in arrays.items():
        if change is None:
            metadata[name] = dict(metadata["features"])
        else:
            metadata[name].update(change)
            (path / name / "zarr.json").write_text(json.dumps(metadata[name]))
    own["checksum"] = _checksum(own, metadata)
    (path / "zarr.json").write_text(json.dumps(root))


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
GRID = {"name": "regular", "configuration": {"chunk_shape": [2**40, 3]}}
PICKLE = {"name": "numcodecs.pickle", "configuration": {}}
DELTA = {"name": "delta"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codecs": [PICKLE]}, "codec 'numcodecs.pickle' is not allowed"),
        ({"codecs": [BYTES, DELTA]}, "codec 'delta' is not allowed"),
        ({"codecs": [BYTES]}, "metadata field 'codecs' is"),
        ({"codecs": []}, "has no list of codecs"),
        ({"codecs": [["pickle"]]}, "is not allowed"),
        ({"data_type": "object"}, "data type 'object' is not read"),
        ({"data_type": {"name": "object"}}, "data type {'name': 'object'} is not read"),
        ({"data_type": "variable_length_bytes"}, "data type 'variable_length_bytes' is not read"),
        ({"data_type": "int8"}, r"has type int8 .* expected"),
        ({"chunk_grid": GRID}, "exceed the limit of 268435456 bytes a chunk"),
        ({"shape": [8, 2**40], "chunk_grid": 3}, "is not a list of one to four sane sizes"),
        ({"shape": [10**30, 3]}, "is not a list of one to four sane sizes"),
        ({"shape": [8, -3]}, "is not a list of one to four sane sizes"),
        ({"shape": [8, 3, 3, 3, 3]}, "is not a list of one to four sane sizes"),
        ({"shape": [8.0, 3]}, "is not a list of one to four sane sizes"),
        ({"chunk_key_encoding": {"name": "v2"}}, "metadata field 'chunk_key_encoding' is"),
        ({"fill_value": 7}, "metadata field 'fill_value' is 7, expected 0.0"),
        ({"storage_transformers": [{"name": "x"}]}, "metadata field 'storage_transformers'"),
        ({"x" * 1000: 1}, "metadata field 'xxx"),
        ({"node_type": "group"}, "does not describe a Zarr v3 array"),
    ],
)
def test_metadata_that_declare_something_else(tmp_path: Path, change: Change, message: str) -> None:
    make(tmp_path / "s")
    forge(tmp_path / "s", features=change)
    with pytest.raises(FormatError, match=message) as caught:
        FeatureStore.open(tmp_path / "s")
    assert "array 'features'" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_the_same_in_the_arrays_own_metadata(tmp_path: Path) -> None:
    make(tmp_path / "s")
    file = tmp_path / "s/labels/zarr.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "codecs": [PICKLE]}))
    with pytest.raises(FormatError, match=r"array 'labels': codec 'numcodecs.pickle' is not"):
        FeatureStore.open(tmp_path / "s")
    file.write_text(json.dumps({**document, "shape": [7]}))
    with pytest.raises(IntegrityError, match=r"array 'labels' has shape \(7,\).*but \(8,\)"):
        FeatureStore.open(tmp_path / "s")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"version": 2}, "has format version 2, this release reads up to 1; upgrade"),
        ({"version": "1"}, "has no known format version"),
        ({"format": "sadih-codes"}, "holds 'sadih-codes', expected 'sadih-features'"),
        ({"n_rows": -1}, "attribute 'n_rows' is -1, expected a size"),
        ({"n_rows": True}, "attribute 'n_rows' is True, expected a size"),
        ({"n_rows": 10**30}, "attribute 'n_rows' is 1000"),
        ({"class_names": "abc"}, "'class_names' is not a list of names"),
        ({"source": ["x"]}, "attribute 'source' is not a text"),
    ],
)
def test_attributes_that_make_no_sense(tmp_path: Path, record: Change, message: str) -> None:
    make(tmp_path / "s")
    forge(tmp_path / "s", record)
    with pytest.raises(FormatError, match=message):
        FeatureStore.open(tmp_path / "s")


@pytest.mark.parametrize(
    "name", ["../../etc", "features/../..", "/etc", "", "zarr.json", "x" * 999]
)
def test_names_that_lead_out_of_the_store(tmp_path: Path, name: str) -> None:
    make(tmp_path / "s")
    forge(tmp_path / "s", **{name: None})
    with pytest.raises(FormatError, match="is unknown; a store may have features, labels"):
        FeatureStore.open(tmp_path / "s")


def test_more_rows_than_the_manifest_has(tmp_path: Path) -> None:
    make(tmp_path / "s")
    rows = 2**47
    shape = {"features": {"shape": [rows, 3]}, "labels": {"shape": [rows]}}
    forge(tmp_path / "s", {"n_rows": rows, "planned_rows": rows}, **shape)
    tracemalloc.start()
    with pytest.raises(IntegrityError, match="is not the one that was committed"):
        FeatureStore.open(tmp_path / "s")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["zarr.json", "features/zarr.json", "_commits/manifest-00000001"])
def test_huge_metadata_are_not_loaded(tmp_path: Path, name: str) -> None:
    make(tmp_path / "s")
    os.truncate(tmp_path / "s" / name, 40 << 30)  # sparse: takes no disk
    tracemalloc.start()
    with pytest.raises(FormatError, match=r"is longer than the \d+ bytes that it may have"):
        FeatureStore.open(tmp_path / "s")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("shard_rows", "compression"), [(None, "none"), (None, "zstd"), (8, "zstd")]
)
def test_a_huge_chunk_is_not_loaded(
    tmp_path: Path, shard_rows: int | None, compression: str
) -> None:
    store = make(tmp_path / "s", shard_rows=shard_rows, compression=compression)
    os.truncate(tmp_path / "s/features/c.0.0", 40 << 30)
    tracemalloc.start()
    with pytest.raises(IntegrityError, match="array 'features', chunk 0"):
        store.read("features")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("size", [1 << 28, 1 << 16])
def test_a_zstd_bomb_is_not_unpacked(tmp_path: Path, size: int) -> None:
    store = make(tmp_path / "s", compression="zstd")
    bomb = numcodecs.zstd.compress(bytes(size), 3)
    assert zstd_content_size(bomb[:18]) == size
    (tmp_path / "s/features/c.0.0").write_bytes(bomb + trailer(crc32c(bomb)))
    tracemalloc.start()
    with pytest.raises(IntegrityError, match=r"chunk 0 .*(declares \d+ bytes instead|is longer)"):
        store.read("features")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_shard_index_that_points_elsewhere(tmp_path: Path) -> None:
    store = make(tmp_path / "s", shard_rows=8)
    file = tmp_path / "s/features/c.0.0"
    body = file.read_bytes()[:-36]
    for entry in ([0, 1 << 40], [1 << 63, 52], [2**64 - 1, 2**64 - 1], [52, 52], [10**6, 52]):
        index = np.array([entry, [52, 52]], "<u8").tobytes()
        file.write_bytes(body + index + trailer(crc32c(index)))
        with pytest.raises(IntegrityError, match="array 'features', chunk 0"):
            store.read("features", 0, 1) if entry != [52, 52] else _differs(store)


def _differs(store: FeatureStore) -> None:
    """Chunk 1 in the place of chunk 0 is found where their rows differ."""
    if np.array_equal(store.read("features", 0, 1), np.ones((1, 3))):
        raise IntegrityError("array 'features', chunk 0 holds the same rows as chunk 1")


def test_a_pipe_in_the_place_of_a_chunk_does_not_hang(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    (tmp_path / "s/features/c.0.0").unlink()
    os.mkfifo(tmp_path / "s/features/c.0.0")
    with pytest.raises(IntegrityError, match="is not a regular file"):
        store.read("features")
    (tmp_path / "s/features/c.1.0").unlink()
    (tmp_path / "s/features/c.1.0").mkdir()
    with pytest.raises(IntegrityError, match="is not a regular file"):
        store.read("features", 4, 8)


def test_codes_that_contradict_their_length(tmp_path: Path) -> None:
    CodeStore.create(tmp_path / "c", np.zeros((4, 2), np.uint8), n_bits=16, model="m")
    root = json.loads((tmp_path / "c/zarr.json").read_text())
    own = root["attributes"]["sadih_dask"]
    own["n_bits"] = 64
    own["checksum"] = _checksum(own, root["consolidated_metadata"]["metadata"])
    (tmp_path / "c/zarr.json").write_text(json.dumps(root))
    with pytest.raises(FormatError, match=r"codes of 64 bits have rows of shape \(2,\)"):
        CodeStore.open(tmp_path / "c")


def test_a_zstd_frame_header_is_read_as_the_standard_says() -> None:
    for size in (1, 255, 256, 65_791, 65_792, 1 << 20):
        assert zstd_content_size(numcodecs.zstd.compress(bytes(size), 3)[:18]) == size
    assert zstd_content_size(b"") is None
    assert zstd_content_size(b"\x28\xb5\x2f\xfd\x00\x58\x00\x00") is None
