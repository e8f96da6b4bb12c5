"""HDF5 files, and MATLAB v7.3 files, which are HDF5 with every axis reversed.

Rows are read straight from the file; memory is the block plus HDF5's chunk cache. Links to other
files are refused: a data file must not decide which other files of this machine are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from sadih_dask.errors import DtypeError, FormatError, InputError
from sadih_dask.files.filesystem import head, is_url, open_binary
from sadih_dask.sources.arrays import loaded_sparse
from sadih_dask.sources.contract import (
    Block,
    Kind,
    OpenOptions,
    Origin,
    Ragged,
    RaggedSource,
    RowSource,
    Variable,
    check_memory,
    check_rows,
    format_library,
    kind_of,
    native_dtype,
    reading,
)
from sadih_dask.sources.streams import Lazy

_MAX_LISTED = 1000
_MAX_CHUNK = 2**30
_TEXT = np.dtypes.StringDType()


@dataclass(frozen=True)
class Hdf5Source(RowSource):
    """A data set read by slices; ``rows_last`` and ``reverse`` are about its axes in HDF5."""

    rows_last: bool
    reverse: bool
    dataset: Lazy[Any] = field(repr=False, compare=False)

    def _read(self, start: int, stop: int) -> Block:
        stored = self.dataset.get()
        if stored.dtype.kind == "O":
            return np.array(stored.asstr()[start:stop], dtype=_TEXT)
        block = stored[..., start:stop] if self.rows_last else stored[start:stop]
        rows = np.moveaxis(block, -1, 0) if self.rows_last else block
        if self.reverse:
            rows = rows.transpose(0, *range(rows.ndim - 1, 0, -1))
        return np.ascontiguousarray(rows)


@dataclass(frozen=True)
class Hdf5Lists(RaggedSource):
    """A data set of variable-length integer lists."""

    dataset: Lazy[Any] = field(repr=False, compare=False)

    def _read(self, start: int, stop: int) -> Ragged:
        lists = [np.asarray(item) for item in self.dataset.get()[start:stop]]
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        return Ragged(np.concatenate([np.empty(0, np.int64), *lists]), offsets)


@dataclass(frozen=True)
class MatlabNames(RowSource):
    """A v7.3 cell array of names: references to one small char array each."""

    dataset: Lazy[Any] = field(repr=False, compare=False)

    def _read(self, start: int, stop: int) -> Block:
        cells = self.dataset.get()
        return np.array(_cell_texts(cells, start, stop), dtype=_TEXT)


def is_matlab73(path: str) -> bool:
    """Tell a MATLAB v7.3 file by the text in front of the HDF5 data."""
    return head(path).startswith(b"MATLAB 7.3")


def list_variables(path: str, options: OpenOptions) -> tuple[Variable, ...]:  # noqa: ARG001
    """List data sets, and MATLAB's sparse matrices, with their shapes; nothing else is read."""
    h5py = format_library("h5py", path)
    reverse = is_matlab73(path)
    listed: list[Variable] = []

    def visit(name: str, item: Any) -> bool | None:
        if name.startswith("#"):  # MATLAB's own bookkeeping
            return None
        if isinstance(item, h5py.Dataset):
            listed.append(_variable(h5py, name, item, reverse))
        elif "MATLAB_sparse" in item.attrs and "jc" in item:
            shape = (int(item.attrs["MATLAB_sparse"]), item["jc"].shape[0] - 1)
            listed.append(Variable(name, shape, "numbers", "sparse"))
        return True if len(listed) >= _MAX_LISTED else None

    with reading(path), _file(h5py, path) as file:
        file.visititems(visit)
    inside = tuple(v.name + "/" for v in listed if v.note == "sparse")
    return tuple(v for v in listed if not v.name.startswith(inside))


def open_variable(path: str, variable: Variable, options: OpenOptions) -> RowSource | RaggedSource:
    """Open one data set by its path inside the file."""
    h5py = format_library("h5py", path)
    origin = Origin(path, variable.name)
    with reading(path):
        dataset = Lazy(partial(_open, path, variable.name))
        stored = dataset.get()
        if variable.note == "sparse":
            nbytes = 3 * sum(stored[name].nbytes for name in ("data", "ir", "jc"))
            remedy = "Save it as a SciPy CSR .npz file, which can be streamed."
            check_memory(origin, nbytes, options.memory_limit, remedy)
            load = partial(_load_sparse, variable.name)
            return loaded_sparse(origin, options.rows_last, load)
        _check_stored(origin, stored)
        if variable.note == "cell":
            return MatlabNames(origin, stored.size, (), _TEXT, dataset)
        if h5py.check_vlen_dtype(stored.dtype) not in (None, str, bytes):
            return Hdf5Lists(origin, stored.shape[0], dataset)
        return _array(h5py, origin, stored, dataset, options.rows_last)


def _array(
    h5py: Any, origin: Origin, stored: Any, dataset: Lazy[Any], rows_last: bool
) -> Hdf5Source:
    text = h5py.check_string_dtype(stored.dtype) is not None and stored.dtype.kind == "O"
    dtype = _TEXT if text else native_dtype(origin, stored.dtype)
    if stored.ndim == 0:
        raise InputError(f"{origin}: is a single value. Choose a data set that has rows.")
    reverse = is_matlab73(origin.path)
    last = rows_last != reverse and stored.ndim > 1
    row_shape = stored.shape[:-1] if last else stored.shape[1:]
    row_shape = row_shape[::-1] if reverse else row_shape
    n_rows = stored.shape[-1 if last else 0]
    check_rows(origin, (n_rows, *row_shape), dtype)
    return Hdf5Source(origin, n_rows, row_shape, dtype, last, reverse, dataset)


def _check_stored(origin: Origin, stored: Any) -> None:
    """Refuse data sets that live elsewhere, were never written, or have explosive chunks."""
    if stored.external or stored.is_virtual:
        raise FormatError(
            f"{origin}: its data lie in other files. Open those files themselves, as shards."
        )
    if stored.size and stored.id.get_storage_size() == 0:
        raise FormatError(f"{origin}: was declared {stored.shape} but never written.")
    chunk = math.prod(stored.chunks or (0,)) * stored.dtype.itemsize
    if chunk > _MAX_CHUNK:
        raise FormatError(
            f"{origin}: one chunk {stored.chunks} is {chunk / 2**20:,.0f} MiB, more than "
            f"{_MAX_CHUNK // 2**20} MiB. Write it again with smaller chunks (h5repack -l)."
        )


def _variable(h5py: Any, name: str, item: Any, reverse: bool) -> Variable:
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


def _file(h5py: Any, path: str) -> Any:
    return h5py.File(open_binary(path) if is_url(path) else path, "r")


def _open(path: str, name: str) -> Any:
    h5py = format_library("h5py", path)
    item: Any = _file(h5py, path)
    for part in filter(None, name.split("/")):
        if isinstance(item.get(part, getlink=True), h5py.ExternalLink):
            raise FormatError(
                f"{path}:{name}: {part!r} is a link to another file. Open that file itself."
            )
        item = item[part]
    return item


def _load_sparse(name: str, path: str) -> Any:
    group = _open(path, name)
    shape = (int(group.attrs["MATLAB_sparse"]), group["jc"].shape[0] - 1)
    parts = tuple(group[part][()] for part in ("data", "ir", "jc"))
    return sparse.csc_array(parts, shape=shape)


def _cell_texts(cells: Any, start: int, stop: int) -> list[str]:
    texts = []
    references = cells[()].ravel()[start:stop]
    for row, reference in enumerate(references, start):
        item = cells.file[reference]
        if item.attrs.get("MATLAB_class") != b"char" or item.size > 2**16:
            raise DtypeError(
                f"{cells.file.filename}:{cells.name} cell {row}: expected a short text. "
                "Only cell arrays of names can be read."
            )
        empty = "MATLAB_empty" in item.attrs
        texts.append("" if empty else item[()].T.astype("<u2").tobytes().decode("utf-16-le"))
    return texts
