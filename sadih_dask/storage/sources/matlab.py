"""MATLAB ``.mat`` files of version 5 (up to v7); v7.3 files are HDF5 and read as such.

MATLAB stores by column and compresses each variable as a whole. So a variable whose rows lie along
the last axis (c x n labels) is streamed; one with rows first is read in place if it is not
compressed, and loaded when it is first read if it is, provided it fits into the memory limit.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from sadih_dask.errors import DtypeError, InputError
from sadih_dask.storage.sources.arrays import LoadedSource, plain_source, streamed_source
from sadih_dask.storage.sources.contract import Block, OpenOptions, Origin, RowSource, reading
from sadih_dask.storage.sources.layout import Layout
from sadih_dask.storage.sources.limits import MAX_DEFLATE_RATIO, check_memory, check_size
from sadih_dask.storage.sources.mat_elements import (
    CELL,
    CHAR,
    SPARSE,
    Matrix,
    cell_texts,
    char_rows,
    read_tag,
    walk,
)
from sadih_dask.storage.sources.opened import Lazy
from sadih_dask.storage.sources.sparse import loaded_sparse
from sadih_dask.storage.sources.variables import Kind, Variable

_CLASSES: dict[int, tuple[str, Kind]] = {
    CELL: ("cell", "text"),
    CHAR: ("char", "text"),
    SPARSE: ("sparse", "numbers"),
    **dict.fromkeys(range(6, 16), ("numeric", "numbers")),
}
_MAX_TEXT = 2**26
_TEXT = np.dtypes.StringDType()
_REMEDY = "Save it with -v7.3 or as .npy, which can be streamed, or raise the memory limit."


def is_matlab5(head: bytes) -> bool:
    """Recognise version and byte order mark at the end of the 128-byte header."""
    return head[124:128] in (b"\x00\x01IM", b"\x01\x00MI")


def list_variables(path: str, options: OpenOptions) -> tuple[Variable, ...]:  # noqa: ARG001
    """List name, shape and class; only the beginning of each variable is decompressed."""
    with reading(path):
        return tuple(_variable(matrix) for matrix in walk(path))


def _variable(matrix: Matrix) -> Variable:
    note, kind = _CLASSES.get(matrix.mx_class, ("object", "other"))
    if matrix.is_complex:
        note, kind = "complex", "other"
    shape = (math.prod(matrix.shape),) if note == "cell" else matrix.shape
    return Variable(matrix.name, shape[:1] if note == "char" else shape, kind, note)


def open_variable(path: str, variable: Variable, options: OpenOptions) -> RowSource:
    """Open one variable."""
    origin = Origin(path, variable.name)
    if variable.kind == "other":
        raise DtypeError(
            f"{origin}: a MATLAB {variable.note} variable has no rows to read. "
            "Choose a matrix of real numbers, or a cell array of names."
        )
    with reading(path):
        matrix = next(m for m in walk(path) if m.name == variable.name)
        on_disk = matrix.size * (MAX_DEFLATE_RATIO if matrix.compressed else 1)
        check_size(origin, matrix.length, on_disk)
        if variable.kind == "text":
            return _open_text(origin, matrix, options)
        if variable.note == "sparse":
            check_memory(origin, 3 * matrix.length, options.memory_limit, _REMEDY)
            load = partial(_load_sparse, matrix, options.memory_limit)
            return loaded_sparse(origin, options.rows_last, load)
        return _open_numbers(origin, matrix, options)


def _open_numbers(origin: Origin, matrix: Matrix, options: OpenOptions) -> RowSource:
    stored = matrix.stored_dtype(matrix.numbers)
    layout = Layout(matrix.shape, fortran=True, rows_last=options.rows_last)
    held, needed = matrix.numbers.size, math.prod(matrix.shape) * stored.itemsize
    if held != needed or matrix.numbers.data + held > matrix.length:
        raise ValueError(
            f"{matrix.name!r} has {held:,} bytes of numbers, "
            f"but its shape {matrix.shape} takes {needed:,}"
        )
    offset = matrix.numbers.data
    if not matrix.compressed:
        return plain_source(origin, layout, stored, matrix.position + offset)
    # Padding to 8 bytes ends the element
    padding = matrix.length - (offset + held)
    if padding >= 8:
        raise ValueError(f"{matrix.name!r} goes on after its numbers")
    return streamed_source(origin, layout, stored, offset, matrix.open, options, padding)


def _open_text(origin: Origin, matrix: Matrix, options: OpenOptions) -> RowSource:
    check_memory(origin, 2 * matrix.length, min(options.memory_limit, _MAX_TEXT), _REMEDY)
    loaded = Lazy(partial(_texts, matrix))
    n_rows = len(loaded.get())
    if n_rows == 0:
        raise InputError(f"{origin}: is empty. Choose a variable that has rows.")
    return LoadedSource(origin, n_rows, (), _TEXT, loaded)


def _texts(matrix: Matrix) -> Block:
    data = matrix.load(_MAX_TEXT)
    if matrix.mx_class == CHAR:
        return np.array(char_rows(matrix, data), dtype=_TEXT)
    texts = cell_texts(matrix, data)
    if None in texts:
        raise DtypeError(
            f"{matrix.path}:{matrix.name} cell {texts.index(None)}: does not hold one line of "
            "text. Only cell arrays of names can be read."
        )
    return np.array(texts, dtype=_TEXT)


def _load_sparse(matrix: Matrix, limit: int, path: str) -> Any:  # noqa: ARG001
    """Read row numbers, column pointers and values; ``loaded_sparse`` checks that they fit."""
    data, parts, at = matrix.load(limit), [], matrix.body
    for _ in range(3):
        tag = read_tag(data, at, matrix.order)
        raw = data[tag.data : tag.data + tag.size]
        parts.append(np.frombuffer(raw, matrix.stored_dtype(tag)))
        at = tag.end
    rows, columns, values = (part.astype(part.dtype.newbyteorder("=")) for part in parts)
    # MATLAB may reserve room for more values than there are
    used = int(columns[-1])
    n_first, n_second = matrix.shape
    return sparse.csc_array((values[:used], rows[:used], columns), shape=(n_first, n_second))
