"""How one array lies in its chunks, and the Zarr v3 metadata that says so.

Rows are chunked, columns never: a chunk is `chunk_rows` whole rows, and a file of its own. Arrays
of a segment share their chunk rows, so that one *block* holds the same rows of each.

The metadata is a pure function of the layout, and is never read back: the root says what the
layout is, and a document that is not the one of this layout is damaged. Whatever is not on the
short list of codecs and types below therefore cannot be opened at all; in particular nothing that
unpickles, and no object types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, get_args

import numpy as np

from sadih_dask.errors import FormatError, InputError
from sadih_dask.files.checksum import TRAILER_BYTES
from sadih_dask.types import Compression, FloatType

MIB: Final = 1 << 20
DEFAULT_CHUNK_BYTES: Final = 16 * MIB
MAX_CHUNK_BYTES: Final = 256 * MIB
MAX_ROWS: Final = 1 << 48
ZSTD_LEVEL: Final = 3
COMPRESSIONS: Final = get_args(Compression)
DTYPES: Final = frozenset(
    [*get_args(FloatType)] + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
_BYTES: Final[dict[str, Any]] = {"name": "bytes", "configuration": {"endian": "little"}}
_ZSTD: Final[dict[str, Any]] = {
    "name": "zstd",
    "configuration": {"level": ZSTD_LEVEL, "checksum": False},
}
_CRC: Final[dict[str, Any]] = {"name": "crc32c"}
_DIMENSIONS: Final = {
    "features": ("feature",),
    "labels": ("class",),
    "ids": ("id_byte",),
    "thumbnails": ("y", "x", "channel"),
    "codes": ("byte",),
    "label_bits": ("label_byte",),
}
"""What the dimensions behind the rows are called, for xarray."""


@dataclass(frozen=True)
class ArrayLayout:
    """The layout of one array."""

    name: str
    dtype: str
    row_shape: tuple[int, ...]
    chunk_rows: int
    compression: str = "none"

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Return the stored type, which is little-endian on every machine."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row."""
        size = self.numpy_dtype.itemsize
        for length in self.row_shape:
            size *= length
        return size

    @property
    def chunk_bytes(self) -> int:
        """Return the bytes of one chunk before any compression."""
        return self.chunk_rows * self.row_bytes

    @property
    def stored_bytes(self) -> int | None:
        """Return the length of a chunk's file, or None where that depends on the rows."""
        return self.chunk_bytes + TRAILER_BYTES if self.compression == "none" else None

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Return the names of the dimensions."""
        return ("row", *_DIMENSIONS[self.name][: len(self.row_shape)])

    def key(self, chunk: int) -> str:
        """Return the key of a chunk's file."""
        return f"{self.name}/c.{chunk}" + ".0" * len(self.row_shape)

    def metadata(self, n_rows: int) -> dict[str, Any]:
        """Return the Zarr v3 array document for `n_rows` rows."""
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [n_rows, *self.row_shape],
            "data_type": self.dtype,
            "chunk_grid": _named("regular", chunk_shape=[self.chunk_rows, *self.row_shape]),
            "chunk_key_encoding": _named("default", separator="."),
            "fill_value": 0.0 if self.dtype.startswith("float") else 0,
            "codecs": [_BYTES, _ZSTD, _CRC] if self.compression == "zstd" else [_BYTES, _CRC],
            "attributes": {},
            "dimension_names": list(self.dimensions),
            "storage_transformers": [],
        }

    def check(self, where: str) -> None:
        """Refuse a layout whose chunks could not be held in memory, or that has no elements."""
        if any(length < 1 for length in self.row_shape):
            raise FormatError(f"{where}: rows of shape {self.row_shape} have no elements")
        if self.chunk_bytes > MAX_CHUNK_BYTES:
            raise FormatError(
                f"{where}: chunks of {self.chunk_rows} rows ({self.chunk_bytes} bytes) exceed the "
                f"limit of {MAX_CHUNK_BYTES} bytes; choose fewer rows a chunk"
            )


def default_chunk_rows(row_bytes: int, chunk_bytes: int = DEFAULT_CHUNK_BYTES) -> int:
    """Return a power of two, so that row blocks of any power of two fit whole chunks.

    Chunks of `chunk_bytes`, or down to half of it, by the widest array.

    >>> default_chunk_rows(2048)
    8192
    """
    return 1 << max(0, (chunk_bytes // row_bytes).bit_length() - 1)


def check_chunking(chunk_rows: int, compression: str) -> None:
    """Refuse parameters of a new store that make no layout."""
    if chunk_rows < 1:
        raise InputError(f"chunk_rows must be at least 1, got {chunk_rows}")
    if compression not in COMPRESSIONS:
        raise InputError(f"compression must be one of {COMPRESSIONS}, got {compression!r}")


def _named(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}
