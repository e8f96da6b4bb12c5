"""NumPy ``.npz`` archives: stored members are read in place, deflated ones are streamed.

An archive that ``scipy.sparse.save_npz`` wrote counts as one variable, the matrix.
"""

from __future__ import annotations

import math
import struct
import zipfile
from functools import partial
from typing import IO

import numpy as np

from sadih_dask.errors import FormatError
from sadih_dask.storage.sources.arrays import plain_source, streamed_source
from sadih_dask.storage.sources.contract import Block, OpenOptions, Origin, RowSource, reading
from sadih_dask.storage.sources.limits import MAX_DEFLATE_RATIO, check_memory, check_size
from sadih_dask.storage.sources.npy import NpyHeader, read_header
from sadih_dask.storage.sources.places import is_url, open_binary, status
from sadih_dask.storage.sources.sparse import compressed_rows, loaded_sparse
from sadih_dask.storage.sources.variables import Variable

_SUFFIX = ".npy"
_SPARSE = "matrix"
_LOCAL_HEADER = struct.Struct("<4s22xHH")


def list_variables(path: str, options: OpenOptions) -> tuple[Variable, ...]:  # noqa: ARG001
    """List the arrays of the archive with their shapes; only headers are decompressed."""
    with reading(path), _archive(path) as archive:
        names = [n for n in archive.namelist() if n.endswith(_SUFFIX)]
        if _is_sparse(names):
            shape, layout = _sparse_shape(path)
            return (Variable(_SPARSE, shape, "numbers", f"sparse {layout}"),)
        listed = []
        for name in names:
            with archive.open(name) as member:
                listed.append(read_header(member).variable(name.removesuffix(_SUFFIX)))
        return tuple(listed)


def open_variable(path: str, variable: Variable, options: OpenOptions) -> RowSource:
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
        return plain_source(origin, layout, header.dtype, offset)
    opener = partial(_open_stream, path, info.filename)
    return streamed_source(origin, layout, header.dtype, header.offset, opener, options)


def _check_member(origin: Origin, info: zipfile.ZipInfo, header: NpyHeader) -> None:
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


def _is_sparse(names: list[str]) -> bool:
    return {"format.npy", "shape.npy", "data.npy"} <= set(names)


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
    parts = [v for v in _members(path) if v.shape and v.name != "shape"]
    nbytes = 3 * sum(math.prod(v.shape) * np.dtype(v.note).itemsize for v in parts)
    remedy = "Save it as CSR: scipy.sparse.save_npz(path, matrix.tocsr())."
    check_memory(origin, nbytes, options.memory_limit, remedy)
    for part in parts:
        _open_member(path, part.name, OpenOptions())
    with reading(path):
        return loaded_sparse(origin, options.rows_last)


_CSR_MEMBERS = ("indptr", "indices", "data")


def _members(path: str) -> list[Variable]:
    listed = []
    with reading(path), _archive(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                listed.append(read_header(member).variable(name.removesuffix(_SUFFIX)))
    return listed
