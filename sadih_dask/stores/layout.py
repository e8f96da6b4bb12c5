"""How one array lies in its chunks, and the Zarr v3 metadata that says so.

Rows are chunked, columns never: a chunk is `chunk_rows` whole rows. Arrays of a store share their
chunk rows, so that one *block* (a chunk, or a shard of several) holds the same rows of each.

The metadata is a pure function of the layout. Reading it back is the inverse: the layout is taken
from the document, and the document must then be exactly the one that this layout has. Whatever is
not on the short list of codecs, types and encodings below therefore cannot be opened at all; in
particular nothing that unpickles, and no object types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sadih_dask.errors import FormatError, InputError

MIB: Final = 1 << 20
DEFAULT_CHUNK_BYTES: Final = 16 * MIB
SMALLEST_CHUNK_BYTES: Final = MIB
MAX_CHUNK_BYTES: Final = 256 * MIB
MAX_BLOCK_BYTES: Final = 1024 * MIB
MAX_ROWS: Final = 1 << 48
ZSTD_LEVEL: Final = 3
COMPRESSIONS: Final = ("none", "zstd")
DTYPES: Final = frozenset(
    ["float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
_CODECS: Final = frozenset(["bytes", "zstd", "crc32c", "sharding_indexed"])
_BYTES: Final[dict[str, Any]] = {"name": "bytes", "configuration": {"endian": "little"}}
_ZSTD: Final[dict[str, Any]] = {
    "name": "zstd",
    "configuration": {"level": ZSTD_LEVEL, "checksum": False},
}
_CRC: Final[dict[str, Any]] = {"name": "crc32c"}


@dataclass(frozen=True)
class ArrayLayout:
    """The layout of one array; `shard_rows` is None where a chunk is a file of its own."""

    name: str
    dtype: str
    row_shape: tuple[int, ...]
    chunk_rows: int
    shard_rows: int | None = None
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
    def block_rows(self) -> int:
        """Return the rows of one stored file: the unit of writing."""
        return self.shard_rows or self.chunk_rows

    @property
    def chunks_per_block(self) -> int:
        """Return how many chunks one stored file holds."""
        return self.block_rows // self.chunk_rows

    def key(self, block: int) -> str:
        """Return the key of a block's file."""
        return f"{self.name}/c.{block}" + ".0" * len(self.row_shape)

    def metadata(self, n_rows: int) -> dict[str, Any]:
        """Return the Zarr v3 array document for `n_rows` rows."""
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [n_rows, *self.row_shape],
            "data_type": self.dtype,
            "chunk_grid": _named("regular", chunk_shape=[self.block_rows, *self.row_shape]),
            "chunk_key_encoding": _named("default", separator="."),
            "fill_value": 0.0 if self.dtype.startswith("float") else 0,
            "codecs": self._codecs(),
            "attributes": {},
            "storage_transformers": [],
        }

    def _codecs(self) -> list[dict[str, Any]]:
        inner = [_BYTES, _ZSTD, _CRC] if self.compression == "zstd" else [_BYTES, _CRC]
        if self.shard_rows is None:
            return inner
        return [
            _named(
                "sharding_indexed",
                chunk_shape=[self.chunk_rows, *self.row_shape],
                codecs=inner,
                index_codecs=[_BYTES, _CRC],
                index_location="end",
            )
        ]

    def check(self, where: str) -> None:
        """Refuse a layout whose chunks could not be held in memory, or that has no elements."""
        if any(length < 1 for length in self.row_shape):
            raise FormatError(f"{where}: rows of shape {self.row_shape} have no elements")
        if self.chunk_bytes > MAX_CHUNK_BYTES or self.block_rows * self.row_bytes > MAX_BLOCK_BYTES:
            raise FormatError(
                f"{where}: chunks of {self.chunk_rows} rows ({self.chunk_bytes} bytes) in files of "
                f"{self.block_rows} rows exceed the limit of {MAX_CHUNK_BYTES} bytes a chunk and "
                f"{MAX_BLOCK_BYTES} a file; choose fewer rows a chunk"
            )


def default_chunk_rows(row_bytes: int, n_rows: int, chunk_bytes: int = DEFAULT_CHUNK_BYTES) -> int:
    """Return a power of two, so that row blocks of any power of two fit whole chunks.

    Chunks of `chunk_bytes`, or down to half of it, by the widest array; less if the store is small
    (its only chunk is padded to full length), but not below 1 MiB, as rows may be appended later.

    >>> default_chunk_rows(2048, n_rows=10**6)
    8192
    >>> default_chunk_rows(2048, n_rows=10)
    512
    """
    largest = _power_of_two_below(chunk_bytes // row_bytes)
    smallest = _power_of_two_below(SMALLEST_CHUNK_BYTES // row_bytes)
    wanted = 1 << (n_rows - 1).bit_length() if n_rows > 0 else largest
    return min(largest, max(smallest, wanted))


def check_chunking(chunk_rows: int, shard_rows: int | None, compression: str) -> None:
    """Refuse parameters of a new store that make no layout."""
    if chunk_rows < 1:
        raise InputError(f"chunk_rows must be at least 1, got {chunk_rows}")
    if shard_rows is not None and (shard_rows < chunk_rows or shard_rows % chunk_rows):
        raise InputError(
            f"shard_rows must be a multiple of chunk_rows, got {shard_rows} and {chunk_rows}; "
            f"for example shard_rows={chunk_rows * max(1, shard_rows // chunk_rows)}"
        )
    if compression not in COMPRESSIONS:
        raise InputError(f"compression must be one of {COMPRESSIONS}, got {compression!r}")


def parse_metadata(name: str, document: object, where: str) -> tuple[ArrayLayout, int]:
    """Return the layout and row count that a Zarr array document describes, or FormatError."""
    if not isinstance(document, Mapping) or document.get("node_type") != "array":
        raise FormatError(f"{where}: its metadata does not describe a Zarr v3 array")
    dtype = document.get("data_type")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FormatError(
            f"{where}: data type {_short(dtype)} is not read; known are {', '.join(sorted(DTYPES))}"
        )
    shape = _sizes(document.get("shape"), f"{where}: shape")
    outer = _sizes(_configuration(document.get("chunk_grid")).get("chunk_shape"), f"{where}: chunk")
    codecs = _codec_list(document.get("codecs"), where)
    sharded = codecs[0].get("name") == "sharding_indexed"
    inner = outer
    if sharded:
        inner = _sizes(_configuration(codecs[0]).get("chunk_shape"), f"{where}: inner chunk")
        codecs = _codec_list(_configuration(codecs[0]).get("codecs"), where)
    layout = ArrayLayout(
        name,
        dtype,
        shape[1:],
        inner[0],
        outer[0] if sharded else None,
        "zstd" if any(codec.get("name") == "zstd" for codec in codecs) else "none",
    )
    _compare(document, layout, shape[0], where)
    layout.check(where)
    return layout, shape[0]


def _compare(document: Mapping[str, Any], layout: ArrayLayout, n_rows: int, where: str) -> None:
    if layout.chunk_rows < 1 or layout.block_rows % layout.chunk_rows:
        raise FormatError(
            f"{where}: files of {layout.block_rows} rows do not hold whole chunks of "
            f"{layout.chunk_rows} rows"
        )
    expected = layout.metadata(n_rows)
    for field in sorted(expected.keys() | document.keys()):
        if field not in expected or field not in document or document[field] != expected[field]:
            raise FormatError(
                f"{where}: metadata field {_short(field)} is {_short(document.get(field))}, "
                f"expected {_short(expected.get(field))}"
            )


def _codec_list(value: object, where: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not value:
        raise FormatError(f"{where}: its metadata has no list of codecs")
    for codec in value:
        name = codec.get("name") if isinstance(codec, Mapping) else codec
        if not isinstance(name, str) or name not in _CODECS:
            raise FormatError(
                f"{where}: codec {_short(name)} is not allowed; allowed are "
                f"{', '.join(sorted(_CODECS))}"
            )
    return value


def _configuration(value: object) -> Mapping[str, Any]:
    found = value.get("configuration") if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _sizes(value: object, where: str) -> tuple[int, ...]:
    if (
        not isinstance(value, list)
        or not 1 <= len(value) <= 4
        or not all(type(size) is int and 0 <= size <= MAX_ROWS for size in value)
    ):
        raise FormatError(f"{where} {_short(value)} is not a list of one to four sane sizes")
    return tuple(value)


def _named(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def _short(value: object) -> str:
    """Quote a value found in a file without repeating megabytes of it."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _power_of_two_below(value: int) -> int:
    return 1 << max(0, value.bit_length() - 1)
