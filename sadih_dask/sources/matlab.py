"""The elements of a MATLAB v5 file: where each matrix lies and what its header says.

A file is a 128-byte header and a row of elements, each an 8-byte tag (type, size) and its data.
A matrix element holds flags, dimensions, name and numbers as elements of their own, padded to
8 bytes; a compressed element is a zlib stream around a matrix element. Only this much is parsed
here, because SciPy's reader can crash the interpreter on a damaged file.

MATLAB ``.mat`` files of version 5 (up to v7); v7.3 files are HDF5 and read as such.

MATLAB stores by column and compresses each variable as a whole. So a variable whose rows lie along
the last axis (c x n labels) is streamed; one with rows first is read in place if it is not
compressed, and loaded when it is first read if it is, provided it fits into the memory limit.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, cast

import numpy as np
from scipy import sparse

from sadih_dask.errors import DtypeError, InputError
from sadih_dask.files.filesystem import open_binary
from sadih_dask.sources.arrays import (
    Layout,
    LoadedSource,
    loaded_sparse,
    plain_source,
    streamed_source,
)
from sadih_dask.sources.contract import (
    MAX_DEFLATE_RATIO,
    Block,
    OpenOptions,
    Origin,
    RowSource,
    check_memory,
    check_size,
    reading,
)
from sadih_dask.sources.streams import Lazy
from sadih_dask.sources.variables import Kind, Variable

MATRIX, COMPRESSED = 14, 15
CELL, CHAR, SPARSE = 1, 4, 5
_HEADER, _HEAD, _MAX_DIMS, _OPAQUE = 128, 4096, 64, 17
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8"}
_STORED |= {12: "i8", 13: "u8", 16: "u1", 17: "u2", 18: "u4"}


@dataclass(frozen=True)
class Tag:
    """The head of an element: type, size, and where its data and its successor begin."""

    code: int
    size: int
    data: int
    end: int


@dataclass(frozen=True)
class Matrix:
    """A matrix of a file: its header, and where its bytes lie.

    ``position`` is that of the outer element's data in the file and ``size`` its length there.
    ``body`` is where the numbers (or cells) begin, counted from the matrix element's own tag.
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

    def stored_dtype(self, tag: Tag) -> np.dtype[Any]:
        """Return how the numbers of an element are stored."""
        if tag.code not in _STORED:
            raise ValueError(f"the numbers of {self.name!r} have the unknown type {tag.code}")
        return np.dtype(_STORED[tag.code]).newbyteorder(self.order)  # type: ignore[arg-type]

    def open(self) -> IO[bytes]:
        """Open the bytes of the matrix element, its tag first, decompressed."""
        return cast(IO[bytes], MatrixStream(self))

    def load(self, limit: int) -> bytes:
        """Read the whole element; refuse more than ``limit`` bytes."""
        with self.open() as stream:
            data = stream.read(min(self.length, limit) + 1)
        if len(data) != self.length:
            raise ValueError(f"{self.name!r} is longer or shorter than the file says")
        return data


class MatrixStream(io.RawIOBase):
    """The bytes of one matrix, decompressed piece by piece."""

    def __init__(self, matrix: Matrix) -> None:
        self._file = open_binary(matrix.path)
        self._file.seek(matrix.position)
        self._left = matrix.size
        self._inflater = zlib.decompressobj() if matrix.compressed else None

    def readable(self) -> bool:
        """Say yes."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Read up to ``size`` bytes; fewer only at the end."""
        wanted = _HEAD if size is None or size < 0 else size
        pieces, got = [], 0
        while got < wanted and (piece := self._piece(wanted - got)):
            pieces.append(piece)
            got += len(piece)
        return b"".join(pieces)

    def _piece(self, size: int) -> bytes:
        if self._inflater is None:
            piece = self._file.read(min(size, self._left))
            self._left -= len(piece)
            return piece
        while not self._inflater.eof:
            raw = self._inflater.unconsumed_tail
            if not raw:
                raw = self._file.read(min(self._left, 2**16))
                self._left -= len(raw)
            piece = self._inflater.decompress(raw, size)
            if piece:
                return piece
            if not raw:
                raise EOFError("its compressed data end too early")
        return b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def walk(path: str) -> Iterator[Matrix]:
    """Yield the matrices of a file; only the beginning of each is decompressed."""
    with open_binary(path) as stream:
        header = stream.read(_HEADER)
        order = "<" if header[126:128] == b"IM" else ">"
        end, position = stream.seek(0, os.SEEK_END), _HEADER
        while position < end:
            stream.seek(position)
            code, size = struct.unpack(f"{order}2I", stream.read(8))
            if position + 8 + size > end:
                raise ValueError(f"it ends inside the element at byte {position}")
            if code == COMPRESSED:
                head = zlib.decompressobj().decompress(stream.read(min(size, _HEAD)), _HEAD)
                found = _parse(path, head, order, (position + 8, size, True))
            else:
                stream.seek(position)
                head = stream.read(min(size + 8, _HEAD))
                found = _parse(path, head, order, (position, size + 8, False))
            if found is not None and found.name:
                yield found
            position += 8 + size


def read_tag(data: bytes, at: int, order: str) -> Tag:
    """Read the tag at ``at``; up to four bytes of data may be packed into the tag itself."""
    code, size = struct.unpack_from(f"{order}2I", data, at)
    if code >> 16:
        return Tag(code & 0xFFFF, min(code >> 16, 4), at + 4, at + 8)
    return Tag(code, size, at + 8, at + 8 + -(-size // 8) * 8)


def _parse(path: str, head: bytes, order: str, lies: tuple[int, int, bool]) -> Matrix | None:
    """Read flags, dimensions and name of a matrix element; None for what is not one."""
    outer = read_tag(head, 0, order)
    if outer.code != MATRIX or outer.size == 0:
        return None
    flags_tag = read_tag(head, 8, order)
    (flags,) = struct.unpack_from(f"{order}I", head, flags_tag.data)
    if flags & 0xFF == _OPAQUE:  # objects are laid out differently
        return None
    dims = read_tag(head, flags_tag.end, order)
    if dims.size > 4 * _MAX_DIMS:
        raise ValueError(f"a variable claims {dims.size // 4} dimensions")
    shape = struct.unpack_from(f"{order}{dims.size // 4}i", head, dims.data)
    name = read_tag(head, dims.end, order)
    text = head[name.data : name.data + name.size].decode("latin-1")
    has_body = name.end + 8 <= len(head)
    numbers = read_tag(head, name.end, order) if has_body else Tag(2, 0, name.end, name.end)
    if not shape or min(shape) < 0:
        raise ValueError(f"the variable {text!r} has the shape {shape}")
    return Matrix(
        path,
        *lies,
        order=order,
        name=text,
        mx_class=flags & 0xFF,
        is_complex=bool(flags & 0x0800),
        shape=tuple(shape),
        length=outer.size + 8,
        body=name.end,
        numbers=numbers,
    )


def char_rows(matrix: Matrix, data: bytes) -> list[str]:
    """Decode a char matrix, one text a row; MATLAB stores it by column."""
    return _decode_chars(data, matrix.body, matrix.shape, matrix)


def cell_texts(matrix: Matrix, data: bytes) -> list[str | None]:
    """Decode a cell array of texts; None for a cell that holds anything else. Never recurses."""
    texts: list[str | None] = []
    at = matrix.body
    for _ in range(math.prod(matrix.shape)):
        tag = read_tag(data, at, matrix.order)
        child = data[at : tag.data + tag.size]
        texts.append(_cell_text(matrix, child))
        at = tag.data + tag.size
        if tag.code != MATRIX:
            break
    return texts


def _cell_text(matrix: Matrix, child: bytes) -> str | None:
    if read_tag(child, 0, matrix.order).size == 0:
        return ""
    parsed = _parse(matrix.path, child, matrix.order, (0, 0, False))
    if parsed is None or parsed.mx_class != CHAR or parsed.shape[0] > 1:
        return None
    rows = _decode_chars(child, parsed.body, parsed.shape, matrix)
    return rows[0] if rows else ""


def _decode_chars(data: bytes, at: int, shape: tuple[int, ...], matrix: Matrix) -> list[str]:
    tag = read_tag(data, at, matrix.order)
    raw = data[tag.data : tag.data + tag.size]
    if tag.code == 16 and shape[0] == 1:
        return [raw.decode("utf-8")]
    units = np.frombuffer(raw, matrix.stored_dtype(tag))
    if len(shape) != 2 or len(units) != math.prod(shape):
        raise ValueError(f"the text {matrix.name!r} does not fit its shape {shape}")
    return ["".join(map(chr, row)).rstrip() for row in units.reshape(shape, order="F").tolist()]


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
