"""Rows to stored bytes and back, for the three layouts that a store may have.

    plain    row bytes, crc32c
    zstd     zstd(row bytes), crc32c
    sharded  chunks of either kind one after another, their offsets and lengths, crc32c

These are exactly what Zarr's codecs `bytes`, `zstd`, `crc32c` and `sharding_indexed` produce; the
tests read every layout with zarr and let zarr write what is read here. They are spelled out, and
not left to zarr's pipeline, for three reasons: a whole file can be encoded and replaced in one
step, nothing is read back to be modified, and decoding never takes more memory than one chunk
whatever a hostile file declares.

A chunk's *digest* is the CRC-32C of its committed rows before compression. It belongs to the rows,
not to the file: it stays the same when rows are added behind them in the same chunk.

Reading plain local chunks at the speed of the disk, checksums included.

zarr's own path reaches a tenth to a fifth of a raw file read. Here the bytes go by `readv` straight
into the caller's array, in pieces that are checksummed while they are still in the processor's
second-level cache: the checksum then costs a fraction of a second pass over memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sadih_dask.files.checksum import TRAILER_BYTES, as_bytes_view, crc32c, trailer
from sadih_dask.files.filesystem import LocalFiles
from sadih_dask.stores.layout import ZSTD_LEVEL, ArrayLayout

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ABSENT = (1 << 64) - 1


class DamagedChunkError(Exception):
    """Stored bytes that are not a chunk; the caller knows which, and says so."""


@dataclass(frozen=True)
class EncodedBlock:
    """What goes into a block's file, and the digests of the rows in each of its chunks."""

    parts: tuple[Any, ...]
    digests: tuple[int, ...]


def encode_block(rows: npt.NDArray[Any], layout: ArrayLayout) -> EncodedBlock:
    """Encode up to `block_rows` rows as one file; rows that are wanting are padded with zeros."""
    if rows.dtype != layout.numpy_dtype or rows.shape[1:] != layout.row_shape:
        raise AssertionError(f"unprepared rows: {rows.dtype} {rows.shape} for {layout}")
    filled = rows.shape[0]
    if filled < layout.block_rows:
        padded = np.zeros((layout.block_rows, *layout.row_shape), layout.numpy_dtype)
        padded[:filled] = rows
        rows = padded
    data = as_bytes_view(np.ascontiguousarray(rows))
    parts: list[Any] = []
    digests: list[int] = []
    index: list[tuple[int, int]] = []
    offset = 0
    for chunk in range(layout.chunks_per_block):
        raw = data[chunk * layout.chunk_bytes : (chunk + 1) * layout.chunk_bytes]
        committed = min(layout.chunk_rows, filled - chunk * layout.chunk_rows) * layout.row_bytes
        digest = crc32c(raw[: max(0, committed)])
        if committed > 0:
            digests.append(digest)
        stored, crc = _compress(raw, digest, max(0, committed), layout)
        parts += [stored, trailer(crc)]
        index.append((offset, len(stored) + TRAILER_BYTES))
        offset += index[-1][1]
    if layout.shard_rows is not None:
        table = np.array(index, dtype="<u8").tobytes()
        parts += [table, trailer(crc32c(table))]
    return EncodedBlock(tuple(parts), tuple(digests))


def _compress(
    raw: npt.NDArray[np.uint8], digest: int, committed: int, layout: ArrayLayout
) -> tuple[Any, int]:
    if layout.compression == "none":
        # The digest already covers the committed part: continue it over the padding.
        return raw, crc32c(raw[committed:], digest)
    from numcodecs.zstd import compress  # type: ignore[import-untyped]

    stored = compress(raw, ZSTD_LEVEL)
    return stored, crc32c(stored)


def chunk_digests(rows: npt.NDArray[Any], layout: ArrayLayout) -> list[int]:
    """Return the digests that these rows of one block have when they are stored."""
    data = as_bytes_view(np.ascontiguousarray(rows))
    starts = range(0, len(data), layout.chunk_bytes)
    return [crc32c(data[start : start + layout.chunk_bytes]) for start in starts]


def stored_limit(layout: ArrayLayout) -> int:
    """Return the most bytes that one stored chunk can have."""
    # zstd's own bound for input that does not compress, rounded up.
    return layout.chunk_bytes + layout.chunk_bytes // 128 + 1024


def decode_chunk(stored: bytes, layout: ArrayLayout) -> npt.NDArray[np.uint8]:
    """Return the row bytes of one stored chunk after checking its checksum and its length."""
    if layout.compression == "none":
        check_length(len(stored), layout)
    if len(stored) < TRAILER_BYTES:
        raise DamagedChunkError(f"it is truncated to {len(stored)} bytes")
    body = np.frombuffer(stored, np.uint8, len(stored) - TRAILER_BYTES)
    check_crc(crc32c(body), stored[-TRAILER_BYTES:])
    return body if layout.compression == "none" else _decompress(body, layout.chunk_bytes)


def check_length(found: int, layout: ArrayLayout) -> None:
    """Raise if a plain chunk's file is not as long as it must be."""
    expected = layout.chunk_bytes + TRAILER_BYTES
    if found != expected:
        what = "truncated to" if found < expected else "too long with"
        raise DamagedChunkError(f"it is {what} {found} bytes of {expected}")


def check_crc(computed: int, stored: bytes) -> None:
    """Raise if the checksum behind a chunk is not that of its bytes."""
    if trailer(computed) != stored:
        raise DamagedChunkError(
            f"its checksum is {computed:08x}, the file says {int.from_bytes(stored, 'little'):08x}"
        )


def _decompress(frame: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    from numcodecs.zstd import decompress

    # The frame's own claim is checked first, since zstd would allocate whatever it says.
    declared = zstd_content_size(frame[:18].tobytes())
    if declared != size:
        raise DamagedChunkError(f"its zstd frame declares {declared} bytes instead of {size}")
    out = np.empty(size, np.uint8)
    try:
        decompress(frame, out)
    except (RuntimeError, ValueError) as error:
        raise DamagedChunkError(f"zstd cannot decode it ({error})") from error
    return out


def zstd_content_size(header: bytes) -> int | None:
    """Return the content size that a zstd frame header declares (RFC 8878, 3.1.1.1)."""
    if len(header) < 6 or header[:4] != _ZSTD_MAGIC:
        return None
    descriptor = header[4]
    single_segment = descriptor >> 5 & 1
    width = (single_segment, 2, 4, 8)[descriptor >> 6]
    start = 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if width == 0 or len(header) < start + width:
        return None
    size = int.from_bytes(header[start : start + width], "little")
    return size + 256 if width == 2 else size


def index_bytes(layout: ArrayLayout) -> int:
    """Return the length of the index at the end of a shard."""
    return 16 * layout.chunks_per_block + TRAILER_BYTES


def decode_index(stored: bytes, layout: ArrayLayout) -> list[tuple[int, int]]:
    """Return offset and length of every chunk in a shard."""
    if len(stored) != index_bytes(layout):
        raise DamagedChunkError(f"its shard is truncated: {len(stored)} bytes of index")
    check_crc(crc32c(stored[:-TRAILER_BYTES]), stored[-TRAILER_BYTES:])
    table = np.frombuffer(stored, "<u8", 2 * layout.chunks_per_block).reshape(-1, 2)
    return [(int(offset), int(length)) for offset, length in table]


def check_entry(entry: tuple[int, int], layout: ArrayLayout) -> None:
    """Raise if a shard's index says that a chunk is absent, or is longer than any chunk."""
    if _ABSENT in entry:
        raise DamagedChunkError("it is missing from its shard")
    if entry[1] > stored_limit(layout) or entry[0] >= 1 << 62:
        raise DamagedChunkError(f"its shard says that it has {entry[1]} bytes at {entry[0]}")


# Fits the second-level cache of common processors (1 to 2 MiB) beside what else is there.
PIECE_BYTES = 512 << 10


def can_read(layout: ArrayLayout) -> bool:
    """Say whether this reader understands a local array's layout."""
    return layout.shard_rows is None and layout.compression == "none"


def read_plain(
    files: LocalFiles,
    layout: ArrayLayout,
    block: int,
    committed: int,
    want: tuple[int, int],
    out: npt.NDArray[np.uint8],
) -> int:
    """Read the bytes `want` of a chunk into `out` and return the digest of its committed bytes.

    The whole file is read and checked, since its checksum covers all of it; what lies outside
    `want` passes through a small buffer.
    """
    descriptor, size = files.open_for_reading(layout.key(block))
    try:
        check_length(size, layout)
        scratch = np.empty(0, np.uint8)
        if want != (0, layout.chunk_bytes):
            scratch = np.empty(PIECE_BYTES, np.uint8)
        crc = _pass(descriptor, want[0], scratch, 0)
        crc = _fill(descriptor, out, crc)
        digest = _pass(descriptor, committed - want[1], scratch, crc)
        crc = _pass(descriptor, layout.chunk_bytes - committed, scratch, digest)
        check_crc(crc, os.read(descriptor, TRAILER_BYTES))
        return digest
    finally:
        os.close(descriptor)


def _fill(descriptor: int, out: npt.NDArray[np.uint8], crc: int) -> int:
    """Fill `out` from the file and return the checksum continued over it."""
    for start in range(0, len(out), PIECE_BYTES):
        piece = out[start : start + PIECE_BYTES]
        done = os.readv(descriptor, [piece.data])
        while done < len(piece):
            more = os.readv(descriptor, [piece[done:].data])
            if more == 0:
                raise DamagedChunkError("it was truncated while it was being read")
            done += more
        crc = crc32c(piece, crc)
    return crc


def _pass(descriptor: int, length: int, scratch: npt.NDArray[np.uint8], crc: int) -> int:
    """Read `length` bytes that nobody wants, for their checksum alone."""
    while length > 0:
        piece = scratch[:length]
        crc = _fill(descriptor, piece, crc)
        length -= len(piece)
    return crc
