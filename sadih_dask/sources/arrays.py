"""Arrays in files: how their numbers lie, and how rows are made of them.

Plain numbers are read in place and compressed ones streamed where their order allows; what can only
be loaded must fit into the memory limit. Sparse matrices come as dense row blocks, never as one
dense array.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, Any, cast

import numpy as np
from numpy import ascontiguousarray, moveaxis
from scipy import sparse

from sadih_dask.errors import FormatError
from sadih_dask.files.filesystem import head, is_url, open_binary
from sadih_dask.sources.contract import (
    Block,
    Lazy,
    Origin,
    RowSource,
    check_memory,
    check_rows,
    native_dtype,
)


@dataclass(frozen=True)
class Layout:
    """The shape and order of an array in a file, and the axis that holds the rows.

    ``fortran`` is column-major order; ``rows_last`` says that the last axis holds the rows.
    A transposed C array is a Fortran array, so two booleans cover every case:

    >>> Layout((2, 3), fortran=False, rows_last=True).contiguous
    False
    >>> Layout((2, 3), fortran=True, rows_last=True).contiguous
    True
    """

    shape: tuple[int, ...]
    fortran: bool = False
    rows_last: bool = False

    @property
    def n_rows(self) -> int:
        """Count the rows."""
        return self.shape[-1] if self.rows_last else self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of one row."""
        return self.shape[:-1] if self.rows_last else self.shape[1:]

    @property
    def rows_first(self) -> tuple[int, ...]:
        """Return the shape as it is read: rows first."""
        return (self.n_rows, *self.row_shape) if self.shape else ()

    @property
    def contiguous(self) -> bool:
        """Tell whether the numbers of a row lie together, so that a row range is one piece."""
        return self.fortran == self.rows_last or len(self.shape) == 1

    def arrange(self, flat: Block, n_rows: int) -> Block:
        """Turn numbers in file order into rows, (n_rows, *row_shape).

        When rows are not contiguous, ``flat`` is the row range of each column in turn.
        """
        inner = self.row_shape[::-1] if self.fortran else self.row_shape
        if self.contiguous:
            rows = flat.reshape(n_rows, *inner)
        else:
            rows = moveaxis(flat.reshape(*inner, n_rows), -1, 0)
        if self.fortran:
            rows = rows.transpose(0, *range(rows.ndim - 1, 0, -1))
        return ascontiguousarray(rows)


GZIP_MAGIC = b"\x1f\x8b"


def is_gzip(path: str) -> bool:
    """Tell by its first bytes whether a file is gzip."""
    return head(path).startswith(GZIP_MAGIC)


def open_bytes(path: str) -> IO[bytes]:
    """Open a file for reading, decompressing it if it is gzip."""
    return open_gzip(path) if is_gzip(path) else open_binary(path)


def open_gzip(path: str) -> IO[bytes]:
    """Open a gzip file for reading."""
    return cast(IO[bytes], gzip.open(open_binary(path) if is_url(path) else path, "rb"))


def array_source(
    origin: Origin,
    layout: Layout,
    stored: np.dtype[Any],
    offset: int,
    memory_limit: int,
    open_stream: Callable[[], IO[bytes]] | None = None,
) -> RowSource:
    """Describe the array that starts at ``offset`` of a file, or of a compressed stream.

    The caller has checked that the file can be long enough. A stream whose rows are not contiguous
    is loaded, if it fits into the memory limit.
    """
    dtype = native_dtype(origin, stored)
    check_rows(origin, layout.rows_first, dtype)
    form = (origin, layout.n_rows, layout.row_shape, dtype)
    stream = None if open_stream is None else Lazy(open_stream)
    source = ArraySource(*form, layout, stored, offset, stream)
    if stream is None or layout.contiguous:
        return source
    # The bytes and the rearranged copy exist together for a moment
    nbytes = 2 * math.prod(layout.shape) * stored.itemsize
    remedy = "Save it uncompressed (np.save) or in row order, or raise the memory limit."
    check_memory(origin, nbytes, memory_limit, remedy)
    return LoadedSource(*form, Lazy(partial(source.read, 0, source.n_rows)), nbytes)


@dataclass(frozen=True)
class ArraySource(RowSource):
    """Numbers that lie in a file, or in a compressed stream, from ``offset`` on.

    Each read opens the file, seeks and reads. A memory map would count every page it touches as
    memory of this process, and would end it with SIGBUS if the file shrank meanwhile. A stream
    stays open: reading rows in order decompresses once, going back starts again.
    """

    layout: Layout
    stored: np.dtype[Any]
    offset: int
    stream: Lazy[IO[bytes]] | None = field(repr=False, compare=False)

    def entry(self, row: int) -> int:
        """Return row 0 of a stream."""
        return row if self.stream is None else 0

    def reopened(self, start: int, stop: int) -> RowSource:  # noqa: ARG002
        """Return a stream at its beginning."""
        return self if self.stream is None else replace(self, stream=copy(self.stream))

    def _read(self, start: int, stop: int) -> Block:
        n_rows = stop - start
        flat = np.empty(n_rows * self.width, self.stored)
        opened = open_binary(self.origin.path) if self.stream is None else self.stream.held()
        with opened as file:
            if self.layout.contiguous:
                self._fill(file, start * self.width, flat)
            else:
                for column in range(self.width):
                    run = flat[column * n_rows : (column + 1) * n_rows]
                    self._fill(file, column * self.n_rows + start, run)
            if self.stream is not None and stop == self.n_rows:
                # Looking behind the end makes the stream check its checksum
                if file.read(1):
                    raise EOFError("it holds more data than its header says")
                self.stream.forget()
        return self.layout.arrange(flat, n_rows)

    def _fill(self, file: IO[bytes], first: int, out: Block) -> None:
        file.seek(self.offset + first * self.stored.itemsize)
        # IO[bytes] has no readinto, and every file here has
        filled = file.readinto(out.view(np.uint8))  # type: ignore[attr-defined]
        if filled != out.nbytes:
            raise EOFError(f"it ends {out.nbytes - filled:,} bytes too early")


@dataclass(frozen=True)
class LoadedSource(RowSource):
    """Rows that were loaded whole, on the first read, because their form cannot be streamed.

    Whoever makes one has checked its size against the memory limit first. A sparse matrix is held
    as CSR and given out as dense blocks.
    """

    loaded: Lazy[Any] = field(repr=False, compare=False)
    loaded_bytes: int

    def entry(self, row: int) -> int:  # noqa: ARG002
        """Return row 0: all are loaded together."""
        return 0

    def reopened(self, start: int, stop: int) -> RowSource:  # noqa: ARG002
        """Return it unloaded."""
        return replace(self, loaded=copy(self.loaded))

    @property
    def working_bytes(self) -> int:
        """Return the bytes that were held against the memory limit."""
        return self.loaded_bytes

    def _read(self, start: int, stop: int) -> Block:
        rows = self.loaded.get()[start:stop]
        return np.asarray(rows.toarray()) if hasattr(rows, "toarray") else np.array(rows)


@dataclass(frozen=True)
class CompressedRows(RowSource):
    """A matrix in compressed sparse rows, its three arrays read as rows themselves.

    Memory is that of the dense block and of its non-zeros; nothing grows with the file.
    """

    indptr: RowSource
    indices: RowSource
    data: RowSource
    last_bound: dict[int, int] = field(default_factory=dict, repr=False, compare=False)

    def entry(self, row: int) -> int:
        """Return row 0 if one of the arrays is a stream."""
        return min(row, *(part.entry(row) for part in (self.indptr, self.indices, self.data)))

    def reopened(self, start: int, stop: int) -> RowSource:
        """Return it with the arrays reopened."""
        parts = (self.indptr, self.indices, self.data)
        indptr, indices, data = (part.reopened(start, stop) for part in parts)
        return replace(self, indptr=indptr, indices=indices, data=data, last_bound={})

    def _bounds(self, start: int, stop: int) -> Block:
        """Read row pointers; the last one is kept, so that reading on need not go back for it."""
        last = self.last_bound.get(start)
        known = np.array([] if last is None else [last], np.int64)
        read = self.indptr.read(start + len(known), stop + 1).astype(np.int64)
        bounds = np.concatenate([known, read])
        self.last_bound.clear()
        self.last_bound[stop] = int(bounds[-1])
        return bounds

    def _read(self, start: int, stop: int) -> Block:
        bounds = self._bounds(start, stop)
        lengths = np.diff(bounds)
        if bounds[0] < 0 or bounds[-1] > self.data.n_rows or (lengths < 0).any():
            raise ValueError(f"row pointers of rows {start} to {stop} point outside the data")
        low, high = int(bounds[0]), int(bounds[-1])
        columns = self.indices.read(low, high)
        outside = (columns < 0) | (columns >= self.width)
        if outside.any():
            # SciPy would write outside the block
            at = int(outside.argmax())
            row = start + int(np.searchsorted(bounds - low, at, side="right")) - 1
            raise ValueError(f"row {row} has a value in column {columns[at]} of {self.width}")
        values = self.data.read(low, high).astype(self.dtype, copy=False)
        matrix = sparse.csr_array((values, columns, bounds - low), shape=(stop - start, self.width))
        block: Block = matrix.toarray()
        return block


def compressed_rows(
    origin: Origin,
    shape: tuple[int, int],
    indptr: RowSource,
    indices: RowSource,
    data: RowSource,
) -> CompressedRows:
    """Describe a CSR matrix after checking that its arrays fit each other."""
    lengths_fit = indptr.n_rows == shape[0] + 1 and indices.n_rows == data.n_rows
    flat = all(part.row_shape == () for part in (indptr, indices, data))
    integers = indptr.dtype.kind in "iu" and indices.dtype.kind in "iu"
    if not (lengths_fit and flat and integers):
        raise FormatError(
            f"{origin}: the arrays of the sparse matrix do not fit its shape {shape}: "
            f"{indptr.n_rows} row pointers, {indices.n_rows} column numbers, {data.n_rows} values. "
            "The file is damaged: save it again."
        )
    dtype = native_dtype(origin, data.dtype)
    if dtype.kind == "b":
        dtype = np.dtype(np.uint8)
    check_rows(origin, shape, dtype)
    return CompressedRows(origin, shape[0], shape[1:], dtype, indptr, indices, data)


def loaded_sparse(
    origin: Origin, rows_last: bool, load: Callable[[], Any], nbytes: int
) -> LoadedSource:
    """Describe a sparse matrix that has to be loaded; its size was checked by the caller."""
    held = Lazy(partial(_load_rows, load, rows_last))
    matrix = held.get()
    dtype = native_dtype(origin, matrix.dtype)
    check_rows(origin, matrix.shape, dtype)
    held.forget()  # it may be read elsewhere
    return LoadedSource(origin, matrix.shape[0], (matrix.shape[1],), dtype, held, nbytes)


def _load_rows(load: Callable[[], Any], rows_last: bool) -> Any:
    matrix = load()
    if hasattr(matrix, "check_format"):
        # A forged index would make SciPy write outside its memory
        matrix.check_format(full_check=True)
    rows = (matrix.T if rows_last else matrix).tocsr()
    rows.sum_duplicates()
    return rows
