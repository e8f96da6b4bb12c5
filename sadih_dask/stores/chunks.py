"""Rows to stored bytes and back, and reading them at the speed of the disk.

    plain    row bytes, crc32c
    zstd     zstd(row bytes), crc32c

These are exactly what Zarr's codecs `bytes`, `zstd` and `crc32c` produce; the tests read both
with zarr and let zarr write what is read here. They are spelled out, and not left to zarr's
pipeline, because then decoding never takes more memory than one chunk, whatever a hostile file
declares.

A chunk's *digest* is the CRC-32C of its stored bytes: the four bytes at the end of its file.

zarr's own path reaches a tenth to a fifth of a raw file read. Here the bytes of plain local
chunks go by `readv` straight into the caller's array, in pieces that are checksummed while they
are still in the processor's second-level cache: the checksum then costs a fraction of a second
pass.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from sadih_dask.files.checksum import TRAILER_BYTES, as_bytes_view, crc32c, trailer
from sadih_dask.files.filesystem import LocalFiles
from sadih_dask.stores.layout import ZSTD_LEVEL, ArrayLayout

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class DamagedChunkError(Exception):
    """Stored bytes that are not a chunk; the caller knows which, and says so."""


def encode_chunk(rows: npt.NDArray[Any], layout: ArrayLayout) -> tuple[tuple[Any, bytes], int]:
    """Return the parts of a chunk's file and its digest; missing rows are padded with zeros."""
    if rows.dtype != layout.numpy_dtype or rows.shape[1:] != layout.row_shape:
        raise AssertionError(f"unprepared rows: {rows.dtype} {rows.shape} for {layout}")
    if len(rows) < layout.chunk_rows:
        padded = np.zeros((layout.chunk_rows, *layout.row_shape), layout.numpy_dtype)
        padded[: len(rows)] = rows
        rows = padded
    stored: Any = as_bytes_view(np.ascontiguousarray(rows))
    if layout.compression == "zstd":
        from numcodecs.zstd import compress  # type: ignore[import-untyped]

        stored = compress(stored, ZSTD_LEVEL)
    digest = crc32c(stored)
    return (stored, trailer(digest)), digest


def stored_limit(layout: ArrayLayout) -> int:
    """Return the most bytes that one stored chunk can have."""
    # zstd's own bound for input that does not compress, rounded up.
    return layout.chunk_bytes + layout.chunk_bytes // 128 + 1024


def decode_chunk(
    stored: bytes, layout: ArrayLayout, expected: int | None = None
) -> npt.NDArray[np.uint8]:
    """Return the row bytes of one stored chunk after checking its length, checksum and digest."""
    if layout.compression == "none":
        check_length(len(stored), layout)
    if len(stored) < TRAILER_BYTES:
        raise DamagedChunkError(f"it is truncated to {len(stored)} bytes")
    body = np.frombuffer(stored, np.uint8, len(stored) - TRAILER_BYTES)
    check_crc(crc32c(body), stored[-TRAILER_BYTES:], expected)
    return body if layout.compression == "none" else _decompress(body, layout.chunk_bytes)


def check_length(found: int, layout: ArrayLayout) -> None:
    """Raise if a plain chunk's file is not as long as it must be."""
    expected = layout.chunk_bytes + TRAILER_BYTES
    if found != expected:
        what = "truncated to" if found < expected else "too long with"
        raise DamagedChunkError(f"it is {what} {found} bytes of {expected}")


def check_crc(computed: int, stored: bytes, expected: int | None) -> None:
    """Raise if the checksum behind a chunk is not that of its bytes, or not the committed one."""
    if trailer(computed) != stored:
        raise DamagedChunkError(
            f"its checksum is {computed:08x}, the file says {int.from_bytes(stored, 'little'):08x}"
        )
    if expected is not None and computed != expected:
        raise DamagedChunkError(
            f"it is a valid chunk, but not the one that was committed (digest {computed:08x}, "
            f"expected {expected:08x}): swapped, stale or overwritten"
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


# Fits the second-level cache of common processors (1 to 2 MiB) beside what else is there.
PIECE_BYTES = 512 << 10


def read_plain(
    files: LocalFiles,
    key: str,
    layout: ArrayLayout,
    want: tuple[int, int],
    out: npt.NDArray[np.uint8],
    expected: int,
) -> None:
    """Read the bytes `want` of an uncompressed chunk into `out`, and check all of it.

    The whole file is read, since its checksum covers all of it; what lies outside `want` passes
    through a small buffer.
    """
    descriptor, size = files.open_for_reading(key)
    try:
        check_length(size, layout)
        scratch = np.empty(0, np.uint8)
        if want != (0, layout.chunk_bytes):
            scratch = np.empty(PIECE_BYTES, np.uint8)
        crc = _pass(descriptor, want[0], scratch, 0)
        crc = _fill(descriptor, out, crc)
        crc = _pass(descriptor, layout.chunk_bytes - want[1], scratch, crc)
        check_crc(crc, os.read(descriptor, TRAILER_BYTES), expected)
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
