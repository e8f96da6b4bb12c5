"""Rows of a plain array in a file: uncompressed, compressed, or loaded into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

import numpy as np

from sadih_dask.storage.sources.contract import Block, OpenOptions, Origin, RowSource
from sadih_dask.storage.sources.layout import Layout
from sadih_dask.storage.sources.limits import check_memory, check_rows, native_dtype
from sadih_dask.storage.sources.opened import ByteCursor, Lazy
from sadih_dask.storage.sources.places import open_binary


@dataclass(frozen=True)
class PlainSource(RowSource):
    """Numbers that lie uncompressed in a file from ``offset`` on.

    Each read opens the file, seeks and reads. A memory map would count every page it touches as
    memory of this process, and would end it with SIGBUS if the file shrank meanwhile.
    """

    layout: Layout
    stored: np.dtype[Any]
    offset: int

    def _read(self, start: int, stop: int) -> Block:
        n_rows = stop - start
        flat = np.empty(n_rows * self.width, self.stored)
        with open_binary(self.origin.path) as stream:
            if self.layout.contiguous:
                self._fill(stream, start * self.width, flat)
            else:
                for column in range(self.width):
                    run = flat[column * n_rows : (column + 1) * n_rows]
                    self._fill(stream, column * self.n_rows + start, run)
        return self.layout.arrange(flat, n_rows)

    def _fill(self, stream: IO[bytes], first: int, out: Block) -> None:
        stream.seek(self.offset + first * self.stored.itemsize)
        # IO[bytes] has no readinto, and a plain file has
        filled = stream.readinto(out.view(np.uint8))  # type: ignore[attr-defined]
        if filled != out.nbytes:
            raise EOFError(f"it ends {out.nbytes - filled:,} bytes too early")


@dataclass(frozen=True)
class StreamedSource(RowSource):
    """Numbers in a compressed stream, contiguous by row: one pass forwards, block by block.

    Reading rows in order decompresses once; going back starts the decompression again.
    """

    layout: Layout
    stored: np.dtype[Any]
    offset: int
    padding: int
    cursor: ByteCursor = field(repr=False, compare=False)

    def _read(self, start: int, stop: int) -> Block:
        row_bytes = self.width * self.stored.itemsize
        data = self.cursor.read(self.offset + start * row_bytes, (stop - start) * row_bytes)
        if stop == self.n_rows:
            self.cursor.expect_end(self.offset + stop * row_bytes + self.padding)
        return self.layout.arrange(np.frombuffer(data, self.stored), stop - start)


@dataclass(frozen=True)
class LoadedSource(RowSource):
    """Rows that were loaded whole, on the first read, because their form cannot be streamed.

    Whoever makes one has checked its size against the memory limit first.
    """

    loaded: Lazy[Block] = field(repr=False, compare=False)

    def _read(self, start: int, stop: int) -> Block:
        return np.array(self.loaded.get()[start:stop])


def plain_source(origin: Origin, layout: Layout, stored: np.dtype[Any], offset: int) -> PlainSource:
    """Describe an uncompressed array; the caller has checked that the file is long enough."""
    dtype = native_dtype(origin, stored)
    check_rows(origin, layout.rows_first, dtype)
    return PlainSource(origin, layout.n_rows, layout.row_shape, dtype, layout, stored, offset)


def streamed_source(
    origin: Origin,
    layout: Layout,
    stored: np.dtype[Any],
    offset: int,
    open_stream: Callable[[], IO[bytes]],
    options: OpenOptions,
    padding: int = 0,
) -> RowSource:
    """Describe a compressed array: streamed if rows are contiguous, otherwise loaded if it fits.

    ``padding`` bytes follow the numbers before the stream ends.
    """
    dtype = native_dtype(origin, stored)
    check_rows(origin, layout.rows_first, dtype)
    if layout.contiguous:
        shape = (layout.n_rows, layout.row_shape)
        cursor = ByteCursor(open_stream)
        return StreamedSource(origin, *shape, dtype, layout, stored, offset, padding, cursor)
    # The bytes and the rearranged copy exist together for a moment
    nbytes = 2 * layout.n_rows * layout.width * stored.itemsize
    remedy = "Save it uncompressed (np.save) or in row order, or raise the memory limit."
    check_memory(origin, nbytes, options.memory_limit, remedy)
    loaded = Lazy(partial(_load, layout, stored, offset, open_stream, padding))
    return LoadedSource(origin, layout.n_rows, layout.row_shape, dtype, loaded)


def _load(
    layout: Layout,
    stored: np.dtype[Any],
    offset: int,
    open_stream: Callable[[], IO[bytes]],
    padding: int,
) -> Block:
    cursor = ByteCursor(open_stream)
    size = layout.n_rows * layout.width * stored.itemsize
    data = cursor.read(offset, size)
    cursor.expect_end(offset + size + padding)
    return layout.arrange(np.frombuffer(data, stored), layout.n_rows)
