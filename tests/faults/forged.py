"""Stores, models and source files made to do harm, with checksums that fit.

Every case is a function that makes one file or folder and returns its path. `PAYLOAD` is a pickle
that leaves a file behind if anybody loads it.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numcodecs.zstd
import numpy as np

from sadih_dask import SADIH, CodeStore, FeatureStore
from sadih_dask.files.checksum import crc32c, trailer
from sadih_dask.ingest import DataFiles, ingest
from tests.support.stores import forge, segment_folder

Maker = Callable[[Path], Path]
SPARSE = 40 << 30
FULL_ROOT = (16 << 20) - 4096
"""Just below what a root may have."""


class Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.canary,)


def cases() -> Iterator[tuple[str, str, Maker]]:
    """Yield a name, what it pretends to be (see `hostile`), and its maker."""
    for name, change in _METADATA.items():
        yield f"store: {name}", "store", _with_metadata(change)
    for name, change in _RECORDS.items():
        yield f"store: {name}", "store", _with_record(change)
    for name, change in _SEGMENTS.items():
        yield f"store: a segment with {name}", "store", _with_segment(change)
    for name in ("../../etc", "features/../..", "/etc", "zarr.json", "x" * 999, ""):
        yield f"store: an array named {name[:16]!r}", "store", _with_array(name)
    for key in ("zarr.json", "segments/*/manifest", "segments/*/features/c.0.0", "deletions/*"):
        yield f"store: {key} of 40 GiB", "store", _sparse(key)
    for key in ("segments/zarr.json", "segments/*/zarr.json", "segments/*/features/zarr.json"):
        yield f"store: {key} of 40 GiB", "documents", _sparse(key)
    for name, change in _METADATA.items():
        yield f"store: {name}, in the array's document", "documents", _with_document(change)
    yield "store: a record of sources of 40 GiB", "ingested", _sparse("sources/*")
    yield "store: a record of sources that is a pipe", "ingested", _pipe("sources/*")
    for name, text in _ROOTS.items():
        yield f"store: {name}", "store", _with_root(text)
    yield "store: a zstd bomb", "store", _bomb
    for key in ("segments/*/features/c.0.0", "segments/*/manifest", "deletions/*", "zarr.json"):
        yield f"store: a pipe for {key}", "store", _pipe(key)
        yield f"store: a link out of the store for {key}", "store", _link(key)
    for key in ("segments", "segments/*", "segments/*/features", "deletions"):
        yield f"store: {key} is a link to a folder elsewhere", "store", _folder_link(key)
    yield "codes: codes of another length", "codes", _codes({"n_bits": 64})
    yield "codes: 2^40 bits", "codes", _codes({"n_bits": 1 << 40})
    for name, member in _MEMBERS.items():
        yield f"model: {name}", "model", _with_member("offset.npy", member)
    for name, text in _META.items():
        yield f"model: {name}", "model", _with_member("meta.json", text)
    yield "model: a member named ../../x", "model", _with_member("../../x.npy", lambda _: _npy([1]))
    yield "model: compressed members that unfold", "model", _compressed
    yield "model: a pickle", "model", _plain(lambda p: pickle.dumps(Payload(_canary(p))), "m.sadih")
    yield "runs: a record of 40 GiB", "runs", _record(b"", SPARSE)
    yield "runs: a record that is a pickle", "runs", _record(pickle.dumps([1]))
    yield "runs: a record of nested lists", "runs", _record(b"[" * 10**6)
    yield "source: .npy with a pickle", "source", _plain(_pickled_npy, "x.npy")
    yield "source: a pickle named .npy", "source", _plain(_bare_pickle, "x.npy")
    yield "source: .npz with a pickle", "source", _npz
    yield "source: .npy of 2^62 rows", "source", _plain(lambda _: _header((1 << 62, 8)), "x.npy")


def intact(folder: Path) -> dict[str, Path]:
    """One of each, without harm, by what it is."""
    np.save(folder / "x.npy", np.ones((8, 3), np.float32))
    CodeStore.create(folder / "c", np.zeros((4, 2), np.uint8), n_bits=16, model="m")
    return {
        "store": _small_store(folder),
        "documents": folder / "s",
        "ingested": folder / "s",
        "codes": folder / "c",
        "model": _model(folder),
        "source": folder / "x.npy",
        "runs": _record(b"{}")(folder),
    }


def _canary(path: Path) -> Path:
    return path.with_name("canary")


# --- stores ------------------------------------------------------------------------------------

_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_METADATA: dict[str, dict[str, Any]] = {
    "a codec that unpickles": {"codecs": [{"name": "numcodecs.pickle", "configuration": {}}]},
    "an unknown codec": {"codecs": [_BYTES, {"name": "delta"}]},
    "a codec that is no name": {"codecs": [["pickle"], {}]},
    "object dtype": {"data_type": "object"},
    "object dtype, spelt out": {"data_type": {"name": "object"}},
    "text dtype": {"data_type": "variable_length_bytes"},
    "chunks of 2^40 rows": {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1 << 40, 3]}}
    },
    "chunks of no rows": {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 3]}}
    },
    "rows of 2^40 columns": {"shape": [8, 1 << 40]},
    "10^30 rows": {"shape": [10**30, 3]},
    "a negative shape": {"shape": [8, -3]},
    "a shape that is text": {"shape": "88"},
    "storage transformers": {"storage_transformers": [{"name": "x"}]},
}
_OUT = "../../../../etc/passwd"
_RECORDS: dict[str, dict[str, Any]] = {
    "generation 10^30": {"generation": 10**30},
    "format that is a list": {"format": ["sadih-features"]},
    "a uid that leads out": {"uid": _OUT},
    "a record of sources elsewhere": {"sources": _OUT},
    "a history that leads out": {"history": [[1, _OUT]]},
    "what is being written elsewhere": {"pending": [{"id": _OUT, "key": "", "by": ""}]},
    "class names that are none": {"properties": {"class_names": {"a": 1}, "source": ""}},
    "ids of a strange encoding": {
        "properties": {"class_names": [], "source": "", "ids": "pickle"},
    },
    "columns of objects": {"arrays": {"features": ["object", [3]]}},
    "columns of 2^40 numbers": {"arrays": {"features": ["float32", [1 << 40]]}},
    "no segments": {"segments": []},
    "a million segments": {"segments": [{}] * 10**6},
}
_SEGMENTS: dict[str, dict[str, Any]] = {
    "2^47 rows": {"n_rows": 1 << 47},
    "2^40 rows, as its leaves say": {"n_rows": 1 << 40, "leaves": 1 << 40},
    "chunks of 2^40 rows": {"chunk_rows": 1 << 40},
    "chunks of no rows": {"chunk_rows": 0},
    "an id that leads out": {"id": _OUT},
    "deletions elsewhere": {"deleted": {"id": _OUT, "n_rows": 1, "hash": "0" * 32}},
    "2^40 deletions": {"deleted": {"id": "0" * 32, "n_rows": 1 << 40, "hash": "0" * 32}},
    "deletions that are not there": {"deleted": {"id": "0" * 32, "n_rows": 1, "hash": "0" * 32}},
    "a codec of its own": {"compression": "pickle"},
}
_ROOTS: dict[str, Callable[[], bytes]] = {
    "16 MiB of brackets in its root": lambda: b"[" * FULL_ROOT,
    "16 MiB of empty objects in its root": lambda: b"[" + b"{}," * (FULL_ROOT // 3) + b"{}]",
    "16 MiB of nested lists in an attribute": lambda: b'{"attributes":' + b"[" * 10**6 + b"}",
    "a number of 16 million digits": lambda: b'{"a":' + b"9" * FULL_ROOT + b"}",
}


def _small_store(folder: Path, **options: Any) -> Path:
    x, numbers = np.ones((8, 3), np.float32), np.arange(8)
    store = FeatureStore.create(folder / "s", x, numbers, ids=numbers, chunk_rows=4, **options)
    store.delete([1])
    return folder / "s"


def _ingested(folder: Path) -> Path:
    np.save(folder / "x.npy", np.ones((8, 3), np.float32))
    ingest(DataFiles(folder / "x.npy"), folder / "s")
    return folder / "s"


def _place(folder: Path, key: str) -> Path:
    """A file or folder of a new small store; of several with such a name, the first."""
    path = _ingested(folder) if key.startswith("sources") else _small_store(folder)
    return sorted(path.glob(key))[0] if key != "segments/*" else segment_folder(_opened(path))


def _opened(path: Path) -> FeatureStore:
    return FeatureStore.open(path)


def _forged(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
    forge(path, change)
    return path


def _with_metadata(change: dict[str, Any]) -> Maker:
    def forged(_: dict[str, Any], metadata: dict[str, Any]) -> None:
        next(found for key, found in metadata.items() if key.endswith("features")).update(change)

    return lambda folder: _forged(_small_store(folder), forged)


def _with_document(change: dict[str, Any]) -> Maker:
    def make(folder: Path) -> Path:
        file = _place(folder, "segments/*/features/zarr.json")
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
        return folder / "s"

    return make


def _with_record(change: dict[str, Any]) -> Maker:
    return lambda folder: _forged(_small_store(folder), lambda record, _: record.update(change))


def _with_segment(change: dict[str, Any]) -> Maker:
    def forged(record: dict[str, Any], _: dict[str, Any]) -> None:
        segment = record["segments"][0]
        leaf = segment["leaves"][0]
        segment.update(change)
        if "leaves" in change:
            segment["leaves"] = [[change["leaves"], leaf[1]]]

    return lambda folder: _forged(_small_store(folder), forged)


def _with_array(name: str) -> Maker:
    def forged(record: dict[str, Any], metadata: dict[str, Any]) -> None:
        (segment,) = record["segments"]
        record["arrays"][name] = record["arrays"]["features"]
        for _, hashes in segment["leaves"]:
            hashes[name] = hashes["features"]
        path = f"segments/{segment['id']}"
        metadata[f"{path}/{name}"] = metadata[f"{path}/features"]

    return lambda folder: _forged(_small_store(folder), forged)


def _sparse(key: str) -> Maker:
    def make(folder: Path) -> Path:
        os.truncate(_place(folder, key), SPARSE)
        return folder / "s"

    return make


def _with_root(text: Callable[[], bytes]) -> Maker:
    def make(folder: Path) -> Path:
        path = _small_store(folder)
        (path / "zarr.json").write_bytes(text())
        return path

    return make


def _bomb(folder: Path) -> Path:
    path = _small_store(folder, compression="zstd")
    frame = numcodecs.zstd.compress(bytes(1 << 28), 3)
    chunk = segment_folder(_opened(path)) / "features/c.0.0"
    chunk.write_bytes(frame + trailer(crc32c(frame)))
    return path


def _pipe(key: str) -> Maker:
    def make(folder: Path) -> Path:
        file = _place(folder, key)
        file.unlink()
        os.mkfifo(file)
        return folder / "s"

    return make


def _link(key: str) -> Maker:
    def make(folder: Path) -> Path:
        file = _place(folder, key)
        file.unlink()
        file.symlink_to("/dev/zero")
        return folder / "s"

    return make


def _folder_link(key: str) -> Maker:
    """What was there lies elsewhere now, whole."""

    def make(folder: Path) -> Path:
        place = _place(folder, key)
        place.rename(folder / "elsewhere")
        place.symlink_to(folder / "elsewhere")
        return folder / "s"

    return make


def _codes(change: dict[str, Any]) -> Maker:
    def make(folder: Path) -> Path:
        CodeStore.create(folder / "c", np.zeros((4, 2), np.uint8), n_bits=16, model="m")
        return _forged(folder / "c", lambda record, _: record["properties"].update(change))

    return make


# --- models ------------------------------------------------------------------------------------


def _npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), **options)
    return file.getvalue()


def _header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + bytes(64)


def _pickled_npy(path: Path) -> bytes:
    array = np.empty(1, object)
    array[0] = Payload(_canary(path))
    return _npy(array, allow_pickle=True)


def _bare_pickle(path: Path) -> bytes:
    return pickle.dumps(Payload(_canary(path)))


_MEMBERS: dict[str, Callable[[Path], bytes]] = {
    "a pickled array": _pickled_npy,
    "a bare pickle for an array": _bare_pickle,
    "an array of 2^60 numbers": lambda _: _header((1 << 60,), "<f8"),
    "an array of 2^62 x 2^62": lambda _: _header((1 << 62, 1 << 62), "<f8"),
    "object dtype": lambda _: _header((1,), "|O"),
    "a header that calls": lambda _: _header((1,)).replace(b"'<f4'", b"exit()"),
}
_META: dict[str, Callable[[Path], bytes]] = {
    "16 MiB of empty objects": lambda _: b"[" + b"{}," * (FULL_ROOT // 3) + b"{}]",
    "16 MiB of brackets": lambda _: b"[" * FULL_ROOT,
    "48 MiB of JSON": lambda _: b"[" + b"0," * (24 << 20) + b"0]",
    "JSON that is a pickle": _bare_pickle,
}


def _model(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    learner = SADIH(3, anchors=None, n_init=1, max_iter=1)
    learner.fit(rng.normal(size=(12, 2)), np.arange(12) % 3).save(folder / "m.sadih")
    return folder / "m.sadih"


def _with_member(name: str, content: Callable[[Path], bytes]) -> Maker:
    def make(folder: Path) -> Path:
        path = _model(folder)
        with zipfile.ZipFile(path) as archive:
            members = {found: archive.read(found) for found in archive.namelist()}
        members[name] = content(path)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for found, data in members.items():
                archive.writestr(found, data)
        return path

    return make


def _compressed(folder: Path) -> Path:
    path = _model(folder)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("meta.json", b" " * (1 << 28))
    return path


# --- run directories -----------------------------------------------------------------------------


def _record(content: bytes, size: int | None = None) -> Maker:
    def make(folder: Path) -> Path:
        file = folder / "directory/runs/20260101T000000Z-1/record.json"
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
        if size is not None:
            os.truncate(file, size)
        return folder / "directory"

    return make


# --- source files ------------------------------------------------------------------------------


def _plain(content: Callable[[Path], bytes], name: str) -> Maker:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content(folder / name))
        return folder / name

    return make


def _npz(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "x.npz", "w") as archive:
        archive.writestr("features.npy", _pickled_npy(folder / "x.npz"))
    return folder / "x.npz"
