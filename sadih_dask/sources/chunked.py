"""Arrays in chunks, read by slices: HDF5 (MATLAB v7.3 is HDF5, every axis reversed) and Zarr.

Memory is the block and the chunks it touches. A data file must not decide which other files of
this machine are read, nor run code: HDF5 links to other files are refused, and Zarr codecs are
allow-listed, since a v2 array can name ``pickle`` as a filter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from sadih_dask.errors import DtypeError, FormatError, InputError
from sadih_dask.files.filesystem import head, is_file, is_url, open_binary
from sadih_dask.sources.arrays import loaded_sparse
from sadih_dask.sources.contract import (
    LISTS,
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
    format_library,
    kind_of,
    native_dtype,
    reading,
)
from sadih_dask.stores.foreign import check_codecs

_MAX_LISTED = 1000
_MAX_CHUNK = 2**30
MARKERS = ("zarr.json", ".zarray", ".zgroup")
"""Files that make a folder a Zarr array or group."""


@dataclass(frozen=True)
class ChunkedSource(RowSource):
    """An array read by slices; ``rows_last`` and ``reverse`` are about its axes in the file."""

    rows_last: bool
    reverse: bool
    array: Lazy[Any] = field(repr=False, compare=False)
    chunk: tuple[int, ...]

    def entry(self, row: int) -> int:
        """Return the first row of the chunk."""
        rows = self.chunk[-1 if self.rows_last else 0] if self.chunk else 1
        return row // rows * rows

    @property
    def working_bytes(self) -> int:
        """Return the bytes of a chunk, as it is stored and decoded."""
        return 2 * math.prod(self.chunk or (0,)) * self.dtype.itemsize

    def _read(self, start: int, stop: int) -> Block:
        stored = self.array.get()
        if self.holds_lists:
            return np.fromiter((item.tolist() for item in stored[start:stop]), LISTS)
        if stored.dtype.kind == "O":
            return np.array(stored.asstr()[start:stop], dtype=TEXT)
        block = stored[..., start:stop] if self.rows_last else stored[start:stop]
        rows = np.moveaxis(block, -1, 0) if self.rows_last else block
        if self.reverse:
            rows = rows.transpose(0, *range(rows.ndim - 1, 0, -1))
        return np.ascontiguousarray(rows)


def _chunked(
    origin: Origin, array: Lazy[Any], dtype: np.dtype[Any], rows_last: bool, reverse: bool = False
) -> ChunkedSource:
    """Describe an array; the caller has checked its chunks."""
    stored = array.get()
    if stored.ndim == 0:
        raise InputError(f"{origin}: is a single value. Choose an array that has rows.")
    last = rows_last != reverse and stored.ndim > 1
    n_rows, *row_shape = (stored.shape[-1], *stored.shape[:-1]) if last else stored.shape
    shape = tuple(row_shape[::-1] if reverse else row_shape)
    if dtype != LISTS:
        check_rows(origin, (n_rows, *shape), dtype)
    chunk = tuple(stored.chunks or ())
    return ChunkedSource(origin, n_rows, shape, dtype, last, reverse, array, chunk)


def _check_chunks(origin: Origin, stored: Any) -> None:
    """Refuse chunks that a few bytes could explode into."""
    chunk = math.prod(stored.chunks or (0,)) * stored.dtype.itemsize
    if chunk > _MAX_CHUNK:
        raise FormatError(
            f"{origin}: one chunk {stored.chunks} is {chunk / 2**20:,.0f} MiB, more than "
            f"{_MAX_CHUNK // 2**20} MiB. Write it again with smaller chunks."
        )


def is_zarr(path: str) -> bool:
    """Recognise a folder with Zarr metadata in it, here or behind a URL."""
    if is_url(path) and is_file(path):
        return False
    return any(is_file(f"{path}/{name}") for name in MARKERS)


def list_zarr(path: str, options: OpenOptions) -> tuple[Variable, ...]:  # noqa: ARG001
    """List the arrays: the one that the path names, or those of the group."""
    import zarr  # 8 MiB that no other format needs

    with reading(path):
        opened = _zarr_array(path, "")
        alone = isinstance(opened, zarr.Array)
        members = (("", opened),) if alone else opened.members(max_depth=None)
        return tuple(
            Variable(name, member.shape, kind_of(member.dtype.kind), str(member.dtype))
            for name, member in members
            if isinstance(member, zarr.Array)
        )


def open_zarr(path: str, variable: Variable, options: OpenOptions) -> RowSource:
    """Open one Zarr array (v2 or v3), alone or inside a group."""
    origin = Origin(path, variable.name or None)
    with reading(path):
        array = Lazy(partial(_zarr_array, path, variable.name))
        stored = array.get()
    dtype = native_dtype(origin, stored.dtype)
    check_codecs(str(origin), stored)
    _check_chunks(origin, stored)
    return _chunked(origin, array, dtype, options.rows_last)


def _zarr_array(path: str, name: str) -> Any:
    import zarr

    opened: Any = zarr.open(path, mode="r")
    return opened[name] if name else opened


@dataclass(frozen=True)
class MatlabNames(RowSource):
    """A v7.3 cell array of names: references to one small char array each."""

    cells: Lazy[Any] = field(repr=False, compare=False)

    def _read(self, start: int, stop: int) -> Block:
        cells = self.cells.get()
        texts = []
        for row, reference in enumerate(cells[()].ravel()[start:stop], start):
            item = cells.file[reference]
            if item.attrs.get("MATLAB_class") != b"char" or item.size > 2**16:
                raise DtypeError(
                    f"{self.origin} cell {row}: expected a short text. "
                    "Only cell arrays of names can be read."
                )
            empty = "MATLAB_empty" in item.attrs
            texts.append("" if empty else item[()].T.astype("<u2").tobytes().decode("utf-16-le"))
        return np.array(texts, dtype=TEXT)


def _is_matlab73(path: str) -> bool:
    """Tell a MATLAB v7.3 file by the text in front of the HDF5 data."""
    return head(path).startswith(b"MATLAB 7.3")


def list_hdf5(path: str, options: OpenOptions) -> tuple[Variable, ...]:  # noqa: ARG001
    """List data sets, and MATLAB's sparse matrices, with their shapes; nothing else is read."""
    h5py = format_library("h5py", path)
    reverse = _is_matlab73(path)
    listed: list[Variable] = []

    def visit(name: str, item: Any) -> bool | None:
        if name.startswith("#"):  # MATLAB's own bookkeeping
            return None
        if isinstance(item, h5py.Dataset):
            listed.append(_hdf5_variable(h5py, name, item, reverse))
        elif "MATLAB_sparse" in item.attrs and "jc" in item:
            shape = (int(item.attrs["MATLAB_sparse"]), item["jc"].shape[0] - 1)
            listed.append(Variable(name, shape, "numbers", "sparse"))
        return True if len(listed) >= _MAX_LISTED else None

    with reading(path), _hdf5_file(h5py, path) as file:
        file.visititems(visit)
    inside = tuple(v.name + "/" for v in listed if v.note == "sparse")
    return tuple(v for v in listed if not v.name.startswith(inside))


def _hdf5_variable(h5py: Any, name: str, item: Any, reverse: bool) -> Variable:
    shape = item.shape[::-1] if reverse else item.shape
    if reverse and item.attrs.get("MATLAB_class") == b"cell":
        return Variable(name, (item.size,), "text", "cell")
    kind: Kind = kind_of(item.dtype.kind)
    note = str(item.dtype)
    inner = h5py.check_vlen_dtype(item.dtype)
    if h5py.check_string_dtype(item.dtype) is not None:
        kind, note = "text", "text"
    elif inner is not None:
        kind = "lists" if np.dtype(inner).kind in "iu" else "other"
        note = f"lists of {inner}"
    return Variable(name, tuple(shape or ()), kind, note)


def open_hdf5(path: str, variable: Variable, options: OpenOptions) -> RowSource:
    """Open one data set by its path inside the file."""
    origin = Origin(path, variable.name)
    with reading(path):
        dataset = Lazy(partial(_hdf5_item, path, variable.name))
        stored = dataset.get()
        if variable.note == "sparse":
            nbytes = 3 * sum(stored[name].nbytes for name in ("data", "ir", "jc"))
            remedy = "Save it as a SciPy CSR .npz file, which can be streamed."
            check_memory(origin, nbytes, options.memory_limit, remedy)
            load = partial(_load_sparse, path, variable.name)
            return loaded_sparse(origin, options.rows_last, load, nbytes)
        if stored.external or stored.is_virtual:
            raise FormatError(
                f"{origin}: its data lie in other files. Open those files themselves, as shards."
            )
        if stored.size and stored.id.get_storage_size() == 0:
            raise FormatError(f"{origin}: was declared {stored.shape} but never written.")
        _check_chunks(origin, stored)
        if variable.note == "cell":
            return MatlabNames(origin, stored.size, (), TEXT, dataset)
        if variable.note.startswith("lists"):
            return _chunked(origin, dataset, LISTS, rows_last=False)
        text = variable.kind == "text" and stored.dtype.kind == "O"
        dtype = TEXT if text else native_dtype(origin, stored.dtype)
        return _chunked(origin, dataset, dtype, options.rows_last, _is_matlab73(path))


def _hdf5_file(h5py: Any, path: str) -> Any:
    return h5py.File(open_binary(path) if is_url(path) else path, "r")


def _hdf5_item(path: str, name: str) -> Any:
    h5py = format_library("h5py", path)
    item: Any = _hdf5_file(h5py, path)
    for part in filter(None, name.split("/")):
        if isinstance(item.get(part, getlink=True), h5py.ExternalLink):
            raise FormatError(
                f"{path}:{name}: {part!r} is a link to another file. Open that file itself."
            )
        item = item[part]
    return item


def _load_sparse(path: str, name: str) -> Any:
    group = _hdf5_item(path, name)
    shape = (int(group.attrs["MATLAB_sparse"]), group["jc"].shape[0] - 1)
    parts = tuple(group[part][()] for part in ("data", "ir", "jc"))
    return sparse.csc_array(parts, shape=shape)
