"""Sparse matrices as dense row blocks, never as one dense array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from sadih_dask.errors import FormatError
from sadih_dask.storage.sources.contract import Block, Origin, RowSource
from sadih_dask.storage.sources.limits import check_rows, native_dtype
from sadih_dask.storage.sources.opened import Lazy
from sadih_dask.storage.sources.places import open_binary


@dataclass(frozen=True)
class CompressedRows(RowSource):
    """A matrix in compressed sparse rows, its three arrays read as rows themselves.

    Memory is that of the dense block and of its non-zeros; nothing grows with the file.
    """

    indptr: RowSource
    indices: RowSource
    data: RowSource

    def _read(self, start: int, stop: int) -> Block:
        bounds = self.indptr.read(start, stop + 1).astype(np.int64)
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


@dataclass(frozen=True)
class LoadedSparse(RowSource):
    """A sparse matrix held in memory as CSR, given out as dense blocks."""

    loaded: Lazy[Any] = field(repr=False, compare=False)

    def _read(self, start: int, stop: int) -> Block:
        block: Block = self.loaded.get()[start:stop].toarray()
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
    origin: Origin, rows_last: bool, load: Callable[[str], Any] | None = None
) -> LoadedSparse:
    """Describe a sparse matrix that has to be loaded; its size was checked by the caller."""
    held = Lazy(partial(_load_rows, load or _load_npz, origin, rows_last))
    matrix = held.get()
    dtype = native_dtype(origin, matrix.dtype)
    check_rows(origin, matrix.shape, dtype)
    return LoadedSparse(origin, matrix.shape[0], (matrix.shape[1],), dtype, held)


def _load_npz(path: str) -> Any:
    with open_binary(path) as stream:
        return sparse.load_npz(stream)


def _load_rows(load: Callable[[str], Any], origin: Origin, rows_last: bool) -> Any:
    matrix = load(origin.path)
    if hasattr(matrix, "check_format"):
        # A forged index would make SciPy write outside its memory
        matrix.check_format(full_check=True)
    rows = (matrix.T if rows_last else matrix).tocsr()
    rows.sum_duplicates()
    return rows
