"""MATLAB ``.mat`` files of version 5 (up to v7); v7.3 files are HDF5 and read as such.

A file is a 128-byte header and a row of elements, each an 8-byte tag (type, size) and its data.
A matrix element holds flags, dimensions, name and numbers as elements of their own, padded to
8 bytes; a compressed element is a zlib stream around a matrix element. That much is parsed here,
because SciPy's reader crashes the interpreter on one wrong byte in a tag or on deeply nested cells.

Numbers that are not compressed are read in place. Everything else is loaded when it is first read,
provided it fits into the memory limit; the format ends at 2 GiB a variable.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from sadih_dask.errors import DtypeError, InputError
from sadih_dask.files.filesystem import open_binary
from sadih_dask.sources.arrays import Layout, LoadedSource, array_source, loaded_sparse
from sadih_dask.sources.contract import (
    MAX_DEFLATE_RATIO,
    TEXT,
    Block,
    Kind,
    Lazy,
    OpenOptions,
    Origin,
    RowSource,
    Variable,
    check_memory,
    check_rows,
    check_size,
    native_dtype,
    reading,
)

_MATRIX, _COMPRESSED = 14, 15
_CHAR, _OPAQUE = 4, 17
_CLASSES: dict[int, tuple[str, Kind]] = {
    1: ("cell", "text"),
    _CHAR: ("char", "text"),
    5: ("sparse", "numbers"),
    **dict.fromkeys(range(6, 16), ("numeric", "numbers")),
}
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8"}
_STORED |= {12: "i8", 13: "u8", 16: "u1", 17: "u2", 18: "u4"}
_HEADER, _HEAD, _MAX_DIMS = 128, 4096, 64
_MAX_TEXT = 2**26
_REMEDY = "Save it with -v7.3 or as .npy, which can be streamed, or raise the memory limit."


class Tag(NamedTuple):
    """The head of an element: type, size, and where its data and its successor begin."""

    code: int
    size: int
    data: int
    end: int


@dataclass(frozen=True)
class Matrix:
    """A matrix of a file: its header, and where its bytes lie.

    ``position`` is that of the outer element's data in the file and ``size`` its length there.
    ``length`` is that of the matrix element, decompressed and its tag included; ``body`` is where
    the numbers (or cells) begin in it, and ``numbers`` their tag.
    """

    path: str
    position: int
    size: int
    compressed: bool
    order: str
    name: str
    mx_class: int
    is_complex: bool
    shape: tuple[int, ...]
    length: int
    body: int
    numbers: Tag

    def load(self) -> bytes:
        """Read the whole element; the caller has held its length against the memory limit."""
        with open_binary(self.path) as stream:
            stream.seek(self.position)
            data = stream.read(self.size)
        if self.compressed:
            inflater = zlib.decompressobj()
            data = inflater.decompress(data, self.length + 1)
            if not inflater.eof:  # its checksum comes last
                raise ValueError(f"the compressed data of {self.name!r} do not end where they must")
        if len(data) != self.length:
            raise ValueError(f"{self.name!r} is longer or shorter than the file says")
        return data

    def parts(self, data: bytes) -> Iterator[Block]:
        """Yield the numbers of one element after the other, from ``body`` on."""
        at = self.body
        while at + 8 <= len(data):
            tag = _tag(data, at, self.order)
            part = np.frombuffer(data[tag.data : tag.data + tag.size], self.dtype(tag))
            yield part.astype(part.dtype.newbyteorder("="), copy=False)
            at = tag.end

    def dtype(self, tag: Tag) -> np.dtype[Any]:
        """Return how the numbers of an element are stored."""
        if tag.code not in _STORED:
            raise ValueError(f"the numbers of {self.name!r} have the unknown type {tag.code}")
        return np.dtype(self.order + _STORED[tag.code])


def _tag(data: bytes, at: int, order: str) -> Tag:
    """Read the tag at ``at``; up to four bytes of data may be packed into the tag itself."""
    code, size = struct.unpack_from(f"{order}2I", data, at)
    if code >> 16:
        return Tag(code & 0xFFFF, min(code >> 16, 4), at + 4, at + 8)
    return Tag(code, size, at + 8, at + 8 + -(-size // 8) * 8)


def _walk(path: str) -> Iterator[Matrix]:
    """Yield the matrices of a file; only the beginning of each is decompressed."""
    with open_binary(path) as stream:
        order = "<" if stream.read(_HEADER)[126:128] == b"IM" else ">"
        end, position = stream.seek(0, os.SEEK_END), _HEADER
        while position < end:
            stream.seek(position)
            code, size = struct.unpack(f"{order}2I", stream.read(8))
            if position + 8 + size > end:
                raise ValueError(f"it ends inside the element at byte {position}")
            if code == _COMPRESSED:
                head = zlib.decompressobj().decompress(stream.read(min(size, _HEAD)), _HEAD)
                found = _parse(path, head, order, (position + 8, size, True))
            else:
                stream.seek(position)
                head = stream.read(min(size + 8, _HEAD))
                found = _parse(path, head, order, (position, size + 8, False))
            if found is not None and found.name:
                yield found
            position += 8 + size


def _parse(path: str, head: bytes, order: str, lies: tuple[int, int, bool]) -> Matrix | None:
    """Read flags, dimensions and name of a matrix element; None for what is not one."""
    outer = _tag(head, 0, order)
    if outer.code != _MATRIX or outer.size == 0:
        return None
    flags_tag = _tag(head, 8, order)
    (flags,) = struct.unpack_from(f"{order}I", head, flags_tag.data)
    if flags & 0xFF == _OPAQUE:  # objects are laid out differently
        return None
    dims = _tag(head, flags_tag.end, order)
    if dims.size > 4 * _MAX_DIMS:
        raise ValueError(f"a variable claims {dims.size // 4} dimensions")
    shape = struct.unpack_from(f"{order}{dims.size // 4}i", head, dims.data)
    name = _tag(head, dims.end, order)
    text = head[name.data : name.data + name.size].decode("latin-1")
    if not shape or min(shape) < 0:
        raise ValueError(f"the variable {text!r} has the shape {shape}")
    has_body = name.end + 8 <= len(head)
    numbers = _tag(head, name.end, order) if has_body else Tag(2, 0, name.end, name.end)
    kind = (flags & 0xFF, bool(flags & 0x0800))
    return Matrix(path, *lies, order, text, *kind, shape, outer.size + 8, name.end, numbers)


def is_matlab5(head: bytes) -> bool:
    """Recognise version and byte order mark at the end of the 128-byte header."""
    return head[124:128] in (b"\x00\x01IM", b"\x01\x00MI")


def list_variables(path: str, options: OpenOptions) -> tuple[Variable, ...]:  # noqa: ARG001
    """List name, shape and class; only the beginning of each variable is decompressed."""
    with reading(path):
        return tuple(_variable(matrix) for matrix in _walk(path))


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
        matrix = next(m for m in _walk(path) if m.name == variable.name)
        on_disk = matrix.size * (MAX_DEFLATE_RATIO if matrix.compressed else 1)
        check_size(origin, matrix.length, on_disk)
        if variable.kind == "text":
            return _open_text(origin, matrix, options)
        if variable.note == "sparse":
            nbytes = 3 * matrix.length
            check_memory(origin, nbytes, options.memory_limit, _REMEDY)
            return loaded_sparse(origin, options.rows_last, partial(_load_sparse, matrix), nbytes)
        return _open_numbers(origin, matrix, options)


def _open_numbers(origin: Origin, matrix: Matrix, options: OpenOptions) -> RowSource:
    stored, tag = matrix.dtype(matrix.numbers), matrix.numbers
    needed = math.prod(matrix.shape) * stored.itemsize
    if tag.size != needed or not 0 <= matrix.length - tag.data - needed < 8:
        raise ValueError(
            f"{matrix.name!r} has {tag.size:,} bytes of numbers in {matrix.length:,}, "
            f"but its shape {matrix.shape} takes {needed:,}"
        )
    layout = Layout(matrix.shape, fortran=True, rows_last=options.rows_last)
    if not matrix.compressed:
        offset = matrix.position + tag.data
        return array_source(origin, layout, stored, offset, options.memory_limit)
    dtype = native_dtype(origin, stored)
    check_rows(origin, layout.rows_first, dtype)
    # The element and the rows made of it exist together for a moment
    nbytes = 2 * matrix.length
    check_memory(origin, nbytes, options.memory_limit, _REMEDY)
    loaded = Lazy(partial(_load_numbers, matrix, layout))
    return LoadedSource(origin, layout.n_rows, layout.row_shape, dtype, loaded, nbytes)


def _load_numbers(matrix: Matrix, layout: Layout) -> Block:
    return layout.arrange(next(matrix.parts(matrix.load())), layout.n_rows)


def _load_sparse(matrix: Matrix) -> Any:
    """Read row numbers, column pointers and values; ``loaded_sparse`` checks that they fit."""
    rows, columns, values = list(matrix.parts(matrix.load()))[:3]
    # MATLAB may reserve room for more values than there are
    used = int(columns[-1])
    n_first, n_second = matrix.shape
    return sparse.csc_array((values[:used], rows[:used], columns), shape=(n_first, n_second))


def _open_text(origin: Origin, matrix: Matrix, options: OpenOptions) -> RowSource:
    check_memory(origin, 2 * matrix.length, min(options.memory_limit, _MAX_TEXT), _REMEDY)
    loaded = Lazy(partial(_texts, origin, matrix))
    n_rows = len(loaded.get())
    if n_rows == 0:
        raise InputError(f"{origin}: is empty. Choose a variable that has rows.")
    return LoadedSource(origin, n_rows, (), TEXT, loaded, 2 * matrix.length)


def _texts(origin: Origin, matrix: Matrix) -> Block:
    """Decode the lines of a char matrix, or the cells of a cell array, which is never nested."""
    data = matrix.load()
    if matrix.mx_class == _CHAR:
        return np.array(_lines(matrix, data), dtype=TEXT)
    texts: list[str] = []
    at = matrix.body
    while len(texts) < math.prod(matrix.shape):
        outer = _tag(data, at, matrix.order)
        at, cell = outer.data + outer.size, data[at : outer.data + outer.size]
        parsed = _parse(matrix.path, cell, matrix.order, (0, 0, False))
        empty = outer.code == _MATRIX and outer.size == 0
        if not empty and (parsed is None or parsed.mx_class != _CHAR or parsed.shape[0] > 1):
            raise DtypeError(
                f"{origin} cell {len(texts)}: does not hold one line of text. "
                "Only cell arrays of names can be read."
            )
        texts += ("" if parsed is None else "".join(_lines(parsed, cell)),)
    return np.array(texts, dtype=TEXT)


def _lines(matrix: Matrix, data: bytes) -> list[str]:
    """Decode a char matrix, one text a row; MATLAB stores it by column."""
    tag = _tag(data, matrix.body, matrix.order)
    if tag.code == 16 and matrix.shape[0] == 1:
        return [data[tag.data : tag.data + tag.size].decode("utf-8")]
    units = next(matrix.parts(data), np.empty(0, np.uint16))
    if len(matrix.shape) != 2 or len(units) != math.prod(matrix.shape):
        raise ValueError(f"the text {matrix.name!r} does not fit its shape {matrix.shape}")
    rows = units.reshape(matrix.shape, order="F").tolist()
    return ["".join(map(chr, row)).rstrip() for row in rows]
