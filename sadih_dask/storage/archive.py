"""One-file archives: arrays and JSON in an uncompressed zip, never pickle.

The members are ordinary ``.npy`` files and one ``.json``, so ``numpy.load`` and ``unzip`` open them
too. The zip's CRC-32 guards every member; members are stored, not compressed, so an archive cannot
unfold into more than its own size. Equal contents give equal bytes.
"""

from __future__ import annotations

import io
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sadih_dask.arrays import Array
from sadih_dask.errors import FormatError, IntegrityError

META = "meta.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the zip format's zero: contents alone decide the bytes


def write_archive(
    path: str | os.PathLike[str],
    kind: str,
    version: int,
    meta: Mapping[str, Any],
    arrays: Mapping[str, Array],
) -> None:
    """Write an archive in one atomic step: readers see the old file or the new, never a part."""
    target = Path(path)
    head = {"kind": kind, "format_version": version, **meta}
    text = json.dumps(head, indent=1, sort_keys=True, allow_nan=True)
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr(zipfile.ZipInfo(META, _EPOCH), text)
                for name in sorted(arrays):
                    info = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
                    with archive.open(info, "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, arrays[name], allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        Path(scratch).replace(target)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def read_archive(
    path: str | os.PathLike[str], kind: str, version: int
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read an archive of a given kind and version; every byte is checked."""
    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist")
    try:
        with zipfile.ZipFile(source) as archive:
            _refuse_compressed(archive, source)
            meta = json.loads(archive.read(META))
            _check_head(meta, source, kind, version)
            arrays = {
                name.removesuffix(".npy"): _read_array(archive, name, source)
                for name in archive.namelist()
                if name.endswith(".npy")
            }
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError, EOFError) as error:
        raise IntegrityError(
            f"{source} is damaged or not a {kind}: {error}. Restore it from a copy or write it anew"
        ) from error
    except KeyError as error:
        raise FormatError(f"{source} is not a {kind}: it has no member {META}") from error
    return meta, arrays


def _refuse_compressed(archive: zipfile.ZipFile, source: Path) -> None:
    for info in archive.infolist():
        if info.compress_type != zipfile.ZIP_STORED:
            raise FormatError(
                f"{source}: member {info.filename} is compressed; archives hold stored members "
                "only. Unzip and store it again, or write the file anew"
            )


def _check_head(meta: Any, source: Path, kind: str, version: int) -> None:
    found = meta.get("kind") if isinstance(meta, dict) else None
    if found != kind:
        raise FormatError(f"{source} holds {found!r}; expected {kind!r}")
    if meta.get("format_version") != version:
        raise FormatError(
            f"{source} has format version {meta.get('format_version')}; this release reads "
            f"version {version}. Use the release that wrote it, or write it anew"
        )


def _read_array(archive: zipfile.ZipFile, name: str, source: Path) -> Array:
    content = archive.read(name)  # whole and checked (CRC-32) before its header is believed
    file = io.BytesIO(content)
    try:
        read_header = {(1, 0): np.lib.format.read_array_header_1_0}
        read_header[2, 0] = np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header[np.lib.format.read_magic(file)](file)
    except (ValueError, KeyError) as error:
        raise FormatError(f"{source}: member {name} is not an .npy array: {error}") from error
    rest = len(content) - file.tell()
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != rest:
        raise FormatError(
            f"{source}: member {name} declares {shape} of {dtype} but holds {rest} bytes; "
            "expected a plain array of that size"
        )
    flat: Array = np.frombuffer(content, dtype, offset=file.tell()).copy()
    return flat.reshape(shape, order="F" if fortran else "C")
