"""Files of plain arrays: NumPy's ``.npy`` and ``.npz``, the IDX of the MNIST family, ``.fbin``.

``.fbin``, ``.u8bin`` and ``.i8bin`` are those of the big-ann benchmarks: rows and columns as two
32-bit numbers, then the numbers. ``.npy`` and IDX may lie inside gzip. Stored members of an
``.npz`` archive are read in place, deflated ones are streamed; one that ``scipy.sparse.save_npz``
wrote counts as one variable.
"""

from __future__ import annotations

import math
import struct
import warnings
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from scipy import sparse

from sadih_dask.errors import FormatError
from sadih_dask.files.filesystem import is_url, open_binary, status
from sadih_dask.sources.arrays import (
    Layout,
    array_source,
    compressed_rows,
    is_gzip,
    loaded_sparse,
    open_bytes,
    open_gzip,
)
from sadih_dask.sources.contract import (
    MAX_DEFLATE_RATIO,
    Block,
    OpenOptions,
    Origin,
    RowSource,
    Variable,
    check_memory,
    check_size,
    kind_of,
    reading,
)

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

_BIN_TYPES = {".fbin": "<f4", ".u8bin": "u1", ".i8bin": "i1"}


@dataclass(frozen=True)
class Header:
    """What the header of an array claims, and where the numbers begin."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int

    @property
    def nbytes(self) -> int:
        """Count the bytes of numbers that must follow; exact for any claimed shape."""
        return math.prod(self.shape) * self.dtype.itemsize

    def variable(self, name: str) -> Variable:
        """List it."""
        return Variable(name, self.shape, kind_of(self.dtype.kind), str(self.dtype))

    def layout(self, options: OpenOptions) -> Layout:
        """Return how the rows lie."""
        return Layout(self.shape, self.fortran, options.rows_last)


def is_idx(head: bytes) -> bool:
    """Recognise the four-byte magic: two zeros, a type, a number of dimensions."""
    return len(head) >= 4 and head[:2] == b"\0\0" and head[2] in _IDX_TYPES and 1 <= head[3] <= 8


def is_bin(path: str) -> bool:
    """Recognise ``.fbin`` and its like, which have nothing but their names to be known by."""
    return Path(path).suffix in _BIN_TYPES


def _bin_header(path: str) -> Header:
    """Read the two numbers, which must fit the length of the file to the byte."""
    with open_binary(path) as stream:
        shape = struct.unpack("<2I", stream.read(8))
    header = Header(shape, False, np.dtype(_BIN_TYPES[Path(path).suffix]), 8)
    if (size := status(path).size) != header.offset + header.nbytes:
        raise ValueError(
            f"it claims {shape[0]:,} rows of {shape[1]:,} numbers, which are "
            f"{header.offset + header.nbytes:,} bytes, and has {size:,}"
        )
    return header


def read_header(stream: IO[bytes]) -> Header:
    """Parse a ``.npy`` header; NumPy bounds its length and evaluates literals only."""
    version = npy_format.read_magic(stream)
    with warnings.catch_warnings():
        # Files of Python 2 are read like any other; NumPy would warn about their spelling
        warnings.simplefilter("ignore", UserWarning)
        if version == (1, 0):
            parsed = npy_format.read_array_header_1_0(stream)
        elif version == (2, 0):
            parsed = npy_format.read_array_header_2_0(stream)
        else:
            # Version 3 is only for records with names outside Latin-1
            raise ValueError(f"a header of version {version} is not read here")
    shape, fortran, dtype = parsed
    if any(length < 0 for length in shape):
        raise ValueError(f"its shape {shape} has a negative length")
    return Header(tuple(map(int, shape)), bool(fortran), dtype, stream.tell())


def _file_header(path: str) -> Header:
    """Parse the header of a ``.npy``, IDX or ``.fbin`` file."""
    if is_bin(path):
        with reading(path):
            return _bin_header(path)
    with reading(path), open_bytes(path) as stream:
        magic = stream.read(4)
        if not is_idx(magic):
            stream.seek(0)
            return read_header(stream)
        ndim = magic[3]
        shape = struct.unpack(f">{ndim}I", stream.read(4 * ndim))
        return Header(shape, False, np.dtype(_IDX_TYPES[magic[2]]), 4 + 4 * ndim)


def list_array(path: str, options: OpenOptions) -> tuple[Variable, ...]:  # noqa: ARG001
    """List the one array of a ``.npy`` or IDX file under the file's name."""
    return (_file_header(path).variable(Path(path).name.partition(".")[0]),)


def open_array(path: str, variable: Variable, options: OpenOptions) -> RowSource:  # noqa: ARG001
    """Open the array of the file: read in place, or streamed from gzip."""
    header, origin = _file_header(path), Origin(path)
    size, compressed = status(path).size, not is_bin(path) and is_gzip(path)
    room = size * MAX_DEFLATE_RATIO if compressed else size - header.offset
    check_size(origin, header.nbytes, room)
    opener = partial(open_gzip, path) if compressed else None
    where = (header.offset, options.memory_limit)
    return array_source(origin, header.layout(options), header.dtype, *where, opener)


_SUFFIX = ".npy"
_SPARSE = "matrix"
_LOCAL_HEADER = struct.Struct("<4s22xHH")


def list_npz(path: str, options: OpenOptions) -> tuple[Variable, ...]:  # noqa: ARG001
    """List the arrays of the archive with their shapes; only headers are decompressed."""
    with reading(path):
        members = _members(path)
        if {"format", "shape", "data"} <= {member.name for member in members}:
            shape, layout = _sparse_shape(path)
            return (Variable(_SPARSE, shape, "numbers", f"sparse {layout}"),)
        return members


def open_npz(path: str, variable: Variable, options: OpenOptions) -> RowSource:
    """Open one array of the archive, or the sparse matrix that the archive is."""
    if variable.note.startswith("sparse "):
        return _open_sparse(path, variable, options)
    return _open_member(path, variable.name, options)


def _open_member(path: str, name: str, options: OpenOptions) -> RowSource:
    origin = Origin(path, name)
    with reading(path), _archive(path) as archive:
        info = archive.getinfo(name + _SUFFIX)
        with archive.open(info) as member:
            header = read_header(member)
    _check_member(origin, info, header)
    layout = header.layout(options)
    if info.compress_type == zipfile.ZIP_STORED:
        with reading(path):
            offset = _data_offset(path, info) + header.offset
        return array_source(origin, layout, header.dtype, offset, options.memory_limit)
    opener = partial(_open_stream, path, info.filename)
    where = (header.offset, options.memory_limit)
    return array_source(origin, layout, header.dtype, *where, opener)


def _check_member(origin: Origin, info: zipfile.ZipInfo, header: Header) -> None:
    """Hold header, archive directory and file size against each other: each can be forged."""
    held = info.file_size - header.offset
    check_size(origin, header.nbytes, held)
    if header.nbytes < held:
        raise FormatError(
            f"{origin}: holds {held - header.nbytes:,} bytes more than its shape {header.shape} "
            "takes. The archive is damaged: save it again."
        )
    on_disk = min(info.compress_size, status(origin.path).size)
    stored = info.compress_type == zipfile.ZIP_STORED
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    if stored or deflated:
        check_size(origin, info.file_size, on_disk * (MAX_DEFLATE_RATIO if deflated else 1))


def _data_offset(path: str, info: zipfile.ZipInfo) -> int:
    """Find the first byte of a stored member, behind the local header that precedes it."""
    if info.flag_bits & 0x1:
        raise ValueError("it is encrypted")
    with open_binary(path) as stream:
        stream.seek(info.header_offset)
        magic, name_size, extra_size = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
    if magic != b"PK\x03\x04":
        raise ValueError(f"member {info.filename!r} is not where the directory says")
    return info.header_offset + _LOCAL_HEADER.size + int(name_size) + int(extra_size)


def _archive(path: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(open_binary(path) if is_url(path) else path)


def _open_stream(path: str, name: str) -> IO[bytes]:
    # The member keeps the file open for itself when the archive object goes
    with _archive(path) as archive:
        return archive.open(name)


def _sparse_shape(path: str) -> tuple[tuple[int, ...], str]:
    shape = _small(path, "shape")
    layout = _small(path, "format").item()
    text = layout.decode("ascii") if isinstance(layout, bytes) else str(layout)
    return tuple(int(length) for length in shape), text


def _small(path: str, name: str) -> Block:
    """Read a tiny member whole, such as a shape or a format name."""
    with _archive(path) as archive, archive.open(name + _SUFFIX) as member:
        header = read_header(member)
        if header.nbytes > 1024:
            raise ValueError(f"its member {name!r} is too long for a sparse matrix")
        data = member.read(header.nbytes)
    # frombuffer refuses object dtypes, so nothing is ever unpickled
    return np.frombuffer(data, header.dtype).reshape(header.shape)


def _open_sparse(path: str, variable: Variable, options: OpenOptions) -> RowSource:
    """Stream what is compressed by row; load the other sparse layouts if they fit."""
    origin = Origin(path)
    if len(variable.shape) != 2:
        raise FormatError(f"{origin}: a sparse matrix of shape {variable.shape} is not 2-d.")
    n_first, n_second = variable.shape
    row_layout = "csc" if options.rows_last else "csr"
    if variable.note.endswith(row_layout):
        shape = (n_second, n_first) if options.rows_last else (n_first, n_second)
        indptr, indices, data = (_open_member(path, m, OpenOptions()) for m in _CSR_MEMBERS)
        return compressed_rows(origin, shape, indptr, indices, data)
    with reading(path):
        parts = [v for v in _members(path) if v.shape and v.name != "shape"]
    nbytes = 3 * sum(math.prod(v.shape) * np.dtype(v.note).itemsize for v in parts)
    remedy = "Save it as CSR: scipy.sparse.save_npz(path, matrix.tocsr())."
    check_memory(origin, nbytes, options.memory_limit, remedy)
    for part in parts:
        _open_member(path, part.name, OpenOptions())
    with reading(path):
        return loaded_sparse(origin, options.rows_last, partial(_load_npz, path), nbytes)


def _load_npz(path: str) -> Any:
    with open_binary(path) as stream:
        return sparse.load_npz(stream)


_CSR_MEMBERS = ("indptr", "indices", "data")


def _members(path: str) -> tuple[Variable, ...]:
    listed = []
    with _archive(path) as archive:
        for name in archive.namelist():
            if name.endswith(_SUFFIX):
                with archive.open(name) as member:
                    listed.append(read_header(member).variable(name.removesuffix(_SUFFIX)))
    return tuple(listed)
