"""Zarr arrays of others, which a segment may leave where they lie; they are never written.

The location of such an array is recorded when somebody adopts it. Whoever opens the store is told
it, and what is opened there is nothing but a Zarr array of floats whose codecs are on the list
below. Chunks of a segment are runs of whole chunks of the array, and the digest of each stands in
the manifest, so rows that are not what was adopted are an error, never a result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import FormatError, InputError
from sadih_dask.files.filesystem import local_path, reaching
from sadih_dask.stores.chunks import DamagedChunkError
from sadih_dask.stores.layout import (
    DEFAULT_CHUNK_BYTES,
    MAX_CHUNK_BYTES,
    ArrayLayout,
)

logger = logging.getLogger(__name__)

CODECS = frozenset(
    # how bytes are arranged
    {"bytes", "transpose", "sharding_indexed", "shuffle", "bitshuffle", "packbits", "vlen-utf8"}
    # compressors
    | {"blosc", "gzip", "zstd", "zlib", "lz4", "lzma", "bz2"}
    # number filters
    | {"delta", "fixedscaleoffset", "bitround", "quantize", "astype"}
    # checksums
    | {"crc32c", "crc32", "adler32", "fletcher32"}
)
_PROTOCOLS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "memory"})
_told: set[tuple[str, str]] = set()


def check_codecs(where: str, stored: Any) -> None:
    """Refuse an array with a codec that is not known to be harmless, such as ``pickle``."""
    if unknown := set(_codec_names(stored.metadata.to_dict())) - CODECS:
        raise FormatError(
            f"{where}: is stored with the codec {', '.join(sorted(unknown))}, which is not read "
            "here. Write it again with one of: zstd, blosc, gzip, none."
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


def check_location(location: object) -> str:
    """Return where an array lies, as a root may say it: an absolute path, or an object store."""
    if not isinstance(location, str) or len(location) > 4096:
        raise ValueError("the location of an adopted array is no path")
    path = local_path(location)
    known = path.is_absolute() if path is not None else location.partition("://")[0] in _PROTOCOLS
    if not known:
        raise ValueError(f"an adopted array cannot lie at {location[:80]!r}")
    return location


def tell(store: str, location: str) -> None:
    """Say once that rows come from outside a store."""
    if (store, location) not in _told:
        _told.add((store, location))
        logger.warning("%s: features are read where they lie, outside of it: %s", store, location)


@lru_cache(maxsize=64)
def open_array(location: str) -> Any:
    """Open a Zarr array, v2 or v3, for reading."""
    import zarr

    stored: Any = zarr.open(location, mode="r")
    if not isinstance(stored, zarr.Array):
        raise InputError(f"{location}: is a Zarr group. Name one of its arrays")
    check_codecs(location, stored)
    return stored


def chunk_rows_for(location: str) -> int:
    """Return the rows of a segment's chunks over an array; InputError if it cannot be adopted."""
    open_array.cache_clear()  # it may have been written since
    try:
        with reaching(location):
            stored = open_array(location)
    except FileNotFoundError as error:
        raise InputError(f"{location}: there is no Zarr array. Check the path") from error
    shape, chunks = stored.shape, stored.chunks
    if len(shape) != 2 or min(shape) < 1:
        raise InputError(f"{location}: has shape {shape}; rows and features are 2 dimensions")
    if stored.dtype.kind != "f" or stored.dtype.itemsize > 8:
        raise InputError(
            f"{location}: holds {stored.dtype}, and features are float16, float32 or float64. "
            "Ingest it as a copy, which converts them"
        )
    if chunks[1] < shape[1]:
        raise InputError(
            f"{location}: a chunk is {chunks[0]} rows of {chunks[1]} of the {shape[1]} columns, so "
            "rows cannot be read one chunk after the other. Write it again in chunks of "
            f"{max(1, chunks[0] * chunks[1] // shape[1])} x {shape[1]}, or ingest it as a copy"
        )
    size = shape[1] * stored.dtype.itemsize * chunks[0]
    if size > MAX_CHUNK_BYTES:
        raise InputError(
            f"{location}: a chunk of {chunks[0]} rows has {size} bytes, more than "
            f"{MAX_CHUNK_BYTES}. Write it again in smaller chunks, or ingest it as a copy"
        )
    return int(chunks[0] * max(1, DEFAULT_CHUNK_BYTES // size))


def read_rows(location: str, layout: ArrayLayout, start: int, n_rows: int) -> npt.NDArray[Any]:
    """Return rows of an adopted array as they are stored; DamagedChunkError if they cannot be."""
    try:
        stored = open_array(location)
        if (stored.shape[1:], stored.dtype.newbyteorder("<")) != (
            layout.row_shape,
            layout.numpy_dtype,
        ):
            raise DamagedChunkError(f"the array is {stored.shape} {stored.dtype} now")
        rows = np.asarray(stored[start : start + n_rows])
    except (OSError, KeyError, ValueError, RuntimeError, FormatError, InputError) as error:
        raise DamagedChunkError(f"it cannot be read ({error})") from error
    if len(rows) != n_rows:
        raise DamagedChunkError(f"the array has {stored.shape[0]} rows now")
    return np.ascontiguousarray(rows, layout.numpy_dtype)
