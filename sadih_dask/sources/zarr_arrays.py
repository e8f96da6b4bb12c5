"""An existing Zarr array (v2 or v3), alone or inside a group, at a path or an fsspec URL.

Codecs are allow-listed: a v2 array can name ``pickle`` as a filter, which would run code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import zarr

from sadih_dask.errors import FormatError, InputError
from sadih_dask.files.filesystem import is_file, is_url
from sadih_dask.sources.contract import (
    Block,
    OpenOptions,
    Origin,
    RowSource,
    Variable,
    check_rows,
    kind_of,
    native_dtype,
    reading,
)
from sadih_dask.sources.streams import Lazy

_CODECS = frozenset(
    # how bytes are arranged
    {"bytes", "transpose", "sharding_indexed", "shuffle", "bitshuffle", "packbits", "vlen-utf8"}
    # compressors
    | {"blosc", "gzip", "zstd", "zlib", "lz4", "lzma", "bz2"}
    # number filters
    | {"delta", "fixedscaleoffset", "bitround", "quantize", "astype"}
    # checksums
    | {"crc32c", "crc32", "adler32", "fletcher32"}
)
MARKERS = ("zarr.json", ".zarray", ".zgroup")
_MAX_CHUNK = 2**30


@dataclass(frozen=True)
class ZarrSource(RowSource):
    """Rows of a Zarr array, read by slices; memory is the block and the chunks it touches."""

    rows_last: bool
    array: Lazy[Any] = field(repr=False, compare=False)

    def _read(self, start: int, stop: int) -> Block:
        stored = self.array.get()
        if self.rows_last:
            return np.ascontiguousarray(np.moveaxis(stored[..., start:stop], -1, 0))
        return np.asarray(stored[start:stop])


def is_zarr(path: str) -> bool:
    """Recognise a folder with Zarr metadata in it, here or behind a URL."""
    if is_url(path) and is_file(path):
        return False
    return any(is_file(f"{path}/{name}") for name in MARKERS)


def list_variables(path: str, options: OpenOptions) -> tuple[Variable, ...]:  # noqa: ARG001
    """List the arrays: the one that the path names, or those of the group."""
    with reading(path):
        return tuple(
            Variable(name, array.shape, kind_of(array.dtype.kind), str(array.dtype))
            for name, array in _arrays(_open(path))
        )


def open_variable(path: str, variable: Variable, options: OpenOptions) -> RowSource:
    """Open one array."""
    origin = Origin(path, variable.name or None)
    with reading(path):
        array = Lazy(partial(_open_array, path, variable.name))
        stored = array.get()
    dtype = native_dtype(origin, stored.dtype)
    if stored.ndim == 0:
        raise InputError(f"{origin}: is a single value. Choose an array that has rows.")
    _check_codecs(origin, stored)
    last = options.rows_last and stored.ndim > 1
    row_shape = stored.shape[:-1] if last else stored.shape[1:]
    n_rows = stored.shape[-1 if last else 0]
    check_rows(origin, (n_rows, *row_shape), dtype)
    return ZarrSource(origin, n_rows, row_shape, dtype, last, array)


def _open(path: str) -> Any:
    return zarr.open(path, mode="r")


def _open_array(path: str, name: str) -> Any:
    opened = _open(path)
    return opened[name] if name else opened


def _arrays(opened: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(opened, zarr.Array):
        yield "", opened
        return
    for name, member in opened.members(max_depth=None):
        if isinstance(member, zarr.Array):
            yield name, member


def _check_codecs(origin: Origin, stored: Any) -> None:
    unknown = set(_codec_names(stored.metadata.to_dict())) - _CODECS
    if unknown:
        raise FormatError(
            f"{origin}: is stored with the codec {', '.join(sorted(unknown))}, which is not read "
            "here. Write it again with one of: zstd, blosc, gzip, none."
        )
    chunk = math.prod(stored.chunks) * stored.dtype.itemsize
    if chunk > _MAX_CHUNK:
        raise FormatError(
            f"{origin}: one chunk {stored.chunks} is {chunk / 2**20:,.0f} MiB, more than "
            f"{_MAX_CHUNK // 2**20} MiB. Write it again with smaller chunks."
        )


def _codec_names(document: Any) -> Iterator[str]:
    """Walk the codec part of a v2 or v3 metadata document, shards included."""
    if document.get("zarr_format") == 2:
        codecs = [document.get("compressor"), *(document.get("filters") or ())]
        for codec in filter(None, codecs):
            yield str(codec["id"] if isinstance(codec, dict) else codec.codec_id)
        return
    for codec in document.get("codecs", ()):
        yield str(codec["name"]).removeprefix("numcodecs.")
        inner = codec.get("configuration", {})
        yield from _codec_names({"codecs": inner.get("codecs", ())})
        yield from _codec_names({"codecs": inner.get("index_codecs", ())})
