"""One-file archives: arrays and JSON in an uncompressed zip, never pickle.

The members are ordinary ``.npy`` files and one ``.json``, so ``numpy.load`` and ``unzip`` open them
too. The zip's CRC-32 guards every member and the JSON lists them, so none can go missing; they are
stored, not compressed, so an archive cannot unfold into more than its own size. Equal contents give
equal bytes, at a local path as behind a URL.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
import tokenize
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from sadih_dask.errors import FormatError, InputError, IntegrityError, SadihError
from sadih_dask.files.file import locate
from sadih_dask.types import Array

META = "meta.json"
META_BYTES = 16 * 2**20
"""Limit of the JSON member: parsed, JSON takes many times its size."""
_DAMAGE = (
    zipfile.BadZipFile,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)
"""What zipfile and json raise on damaged bytes, encryption flags and deep nesting included."""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the zip format's zero: contents alone decide the bytes


def write_archive(
    url: str | os.PathLike[str],
    kind: str,
    version: int,
    meta: Mapping[str, Any],
    arrays: Mapping[str, Array],
    *,
    durable: bool = True,
    since: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Write an archive in one atomic step: readers see the old file or the new, never a part.

    What is not ``durable`` may be damaged by a power cut, which its reader then notices. With
    ``since`` a file of another version is not replaced: ConflictError.
    """
    place = locate(url, storage_options)
    head = {"kind": kind, "format_version": version, "arrays": sorted(arrays), **meta}
    text = json.dumps(head, indent=1, sort_keys=True, allow_nan=True)
    if len(text) > META_BYTES:
        raise InputError(
            f"{META} of {place} would take {len(text)} bytes; at most {META_BYTES} are allowed. "
            "Shorten the feature names or lower n_init and max_iter"
        )

    def pack(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(zipfile.ZipInfo(META, _EPOCH), text)
            for name in sorted(arrays):
                info = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
                with archive.open(info, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, arrays[name], allow_pickle=False)

    place.write(pack, durable=durable, since=since)


def read_archive(
    url: str | os.PathLike[str],
    kind: str,
    version: int,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read an archive of a kind and version; nothing that it holds goes unchecked."""
    place = locate(url, storage_options)
    source = str(place)
    with place.open() as file:
        try:
            size = file.seek(0, os.SEEK_END)
            with zipfile.ZipFile(file) as archive:
                return _read_members(archive, size, source, kind, version)
        except SadihError:
            raise
        except _DAMAGE as error:
            raise IntegrityError(
                f"{source} is damaged or not a {kind}: {error}. "
                "Restore it from a copy or write it anew"
            ) from error


def _read_members(
    archive: zipfile.ZipFile, size: int, source: str, kind: str, version: int
) -> tuple[dict[str, Any], dict[str, Array]]:
    members = {info.filename: info for info in archive.infolist()}
    if META not in members:
        raise FormatError(f"{source} is not a {kind}: it has no member {META}")
    _check_sizes(archive, size, source)
    meta = json.loads(archive.read(META))
    _check_head(meta, source, kind, version)
    arrays = meta.pop("arrays", None)
    if not isinstance(arrays, list):
        raise FormatError(f"{source}: {META} does not list the arrays. Write the file anew")
    expected = sorted([META, *(f"{name}.npy" for name in arrays)])
    if sorted(archive.namelist()) != expected:
        differing = sorted(set(expected) ^ set(members)) or "one of them twice"
        raise IntegrityError(
            f"{source} does not hold the members that it lists: {differing}. "
            "Restore it from a copy or write it anew"
        )
    return meta, {name: _read_array(archive, f"{name}.npy", source) for name in arrays}


def _check_sizes(archive: zipfile.ZipFile, size: int, source: str) -> None:
    """Refuse what could unfold into more than the size of the file."""
    for info in archive.infolist():
        if info.compress_type != zipfile.ZIP_STORED:
            raise FormatError(
                f"{source}: member {info.filename} is compressed; archives hold stored members "
                "only. Unzip and store it again, or write the file anew"
            )
    declared = sum(info.compress_size for info in archive.infolist())
    if declared > size:
        raise IntegrityError(
            f"{source} declares {declared} bytes of members but has {size} bytes. "
            "Restore it from a copy or write it anew"
        )
    if archive.getinfo(META).file_size > META_BYTES:
        raise FormatError(
            f"{source}: {META} takes {archive.getinfo(META).file_size} bytes; expected at most "
            f"{META_BYTES}. It was not written by this package"
        )


def _check_head(meta: Any, source: str, kind: str, version: int) -> None:
    found = meta.get("kind") if isinstance(meta, dict) else None
    if found != kind:
        raise FormatError(f"{source} holds {found!r}; expected {kind!r}")
    if meta.get("format_version") != version:
        raise FormatError(
            f"{source} has format version {meta.get('format_version')}; this release reads "
            f"version {version}. Use the release that wrote it, or write it anew"
        )


def _read_array(archive: zipfile.ZipFile, name: str, source: str) -> Array:
    content = archive.read(name)  # whole and checked (CRC-32) before its header is believed
    file = io.BytesIO(content)
    try:
        read_header = {(1, 0): np.lib.format.read_array_header_1_0}
        read_header[2, 0] = np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header[np.lib.format.read_magic(file)](file)
        rest = len(content) - file.tell()
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != rest:
            raise FormatError(
                f"{source}: member {name} declares {shape} of {dtype} but holds {rest} bytes; "
                "expected a plain array of that size"
            )
        flat: Array = np.frombuffer(content, dtype, offset=file.tell()).copy()
        return flat.reshape(shape, order="F" if fortran else "C")
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, tokenize.TokenError) as e:
        raise FormatError(f"{source}: member {name} is not an .npy array: {e}") from e
