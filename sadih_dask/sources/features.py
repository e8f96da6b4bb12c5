"""Features, thumbnails and ids of a data set, from whatever files it comes in.

Several files are one source: names and globs expanded, shards checked against each other.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sadih_dask.errors import DtypeError, InputError, LabelError, NoFilesError, NonFiniteError
from sadih_dask.files.filesystem import is_file, is_url, local_path, matches, name_of
from sadih_dask.sources.chunked import is_zarr
from sadih_dask.sources.contract import (
    DEFAULT_MEMORY_LIMIT,
    TEXT,
    Block,
    OpenOptions,
    Origin,
    RowSource,
    pieces,
)
from sadih_dask.sources.formats import Purpose, open_file
from sadih_dask.sources.text import texts_of


@dataclass(frozen=True)
class View(RowSource):
    """Another source seen differently; names and state are those of the inner one."""

    inner: RowSource

    def locate(self, row: int) -> str:
        """Name the row as the inner source does."""
        return self.inner.locate(row)

    def files(self) -> tuple[str, ...]:
        """Return the inner source's paths."""
        return self.inner.files()

    def entry(self, row: int) -> int:
        """Return where the inner source begins."""
        return self.inner.entry(row)

    def reopened(self, start: int, stop: int) -> RowSource:
        """Return it with the inner source reopened."""
        return replace(self, inner=self.inner.reopened(start, stop))

    @property
    def working_bytes(self) -> int:
        """Return what the inner source takes."""
        return self.inner.working_bytes


@dataclass(frozen=True)
class FeatureRows(View):
    """Rows as vectors of finite numbers, scaled if the file keeps a scale beside them."""

    scale: tuple[float, ...] | None

    def _read(self, start: int, stop: int) -> Block:
        block = self.inner.read(start, stop).reshape(stop - start, self.width)
        if block.dtype.kind == "f":
            self._check_finite(block, start)
        if self.scale is not None:
            block = block.astype(self.dtype) * np.asarray(self.scale, self.dtype)
        return block

    def _check_finite(self, block: Block, start: int) -> None:
        finite = np.isfinite(block)
        if not finite.all():
            row, column = (int(i) for i in np.argwhere(~finite)[0])
            raise NonFiniteError(
                f"{self.locate(start + row)}, column {column}: is {block[row, column]}. Features "
                "must be finite: drop the row or fill the value."
            )


@dataclass(frozen=True)
class IdRows(View):
    """One integer or text per row, none missing."""

    def _read(self, start: int, stop: int) -> Block:
        block = self.inner.read(start, stop).reshape(stop - start)
        if self.dtype.kind == "T":
            names = texts_of(block, lambda position: self.locate(start + position))
            if "" in names:
                row = start + names.index("")
                raise InputError(f"{self.locate(row)}: has no id. Every row needs one.")
            return np.array(names, self.dtype)
        if block.dtype.kind == "u" and (block > np.iinfo(np.int64).max).any():
            row = start + int((block > np.iinfo(np.int64).max).argmax())
            raise InputError(f"{self.locate(row)}: the id does not fit into 63 bits.")
        return block


@dataclass(frozen=True)
class RowNumbers(View):
    """The number of each row as its id; rows of file i are counted from ``firsts[i]`` on."""

    starts: tuple[int, ...]
    firsts: tuple[int, ...]

    def entry(self, row: int) -> int:
        """Return the row itself: no file is read."""
        return row

    def reopened(self, start: int, stop: int) -> RowSource:  # noqa: ARG002
        """Return itself."""
        return self

    def _read(self, start: int, stop: int) -> Block:
        ids = [np.empty(0, np.int64)]
        for file, first, last in pieces(self.starts, start, stop):
            ids.append(self.firsts[file] + np.arange(first, last))
        return np.concatenate(ids)


def row_numbers(features: RowSource, firsts: Sequence[int]) -> RowSource:
    """Return ids that point into the files of the features."""
    starts = (0, *accumulate(part.n_rows for part in parts_of(features)))
    rows = (features.origin, features.n_rows, (), np.dtype(np.int64), features)
    return RowNumbers(*rows, starts, tuple(firsts))


def parts_of(source: RowSource) -> tuple[RowSource, ...]:
    """Return the files of a source, one source each."""
    while isinstance(source, View):
        source = source.inner
    return source.parts if isinstance(source, JoinedRows) else (source,)


def open_features(
    paths: Paths,
    variable: str | None = None,
    *,
    transpose: bool = False,
    scale: str | float | None = None,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
    taken: Sequence[str] = (),
) -> RowSource:
    """Open feature vectors: (n_rows, width) blocks of finite numbers in the file's own dtype.

    ``paths`` is a file, a folder, a glob, a Zarr directory or URL, or a list of them, read as
    shards. Without ``variable`` the only variable with two or more axes is taken, or the only one
    of those with a usual name (features, data, X, embedding, ...). Of a table with a column for
    each feature it is a pattern, such as ``e*``; without one all columns are taken that are not
    named like labels or ids, or ``taken`` by them. Rows lie along the first axis, as MATLAB or
    HDF5 shows it, unless ``transpose`` says the last. Images are flattened. ``scale`` is a number,
    or a variable of the same file, that multiplies each row (float32).
    """
    options = OpenOptions(rows_last=transpose, memory_limit=memory_limit, taken=tuple(taken))
    source = _open_rows(paths, variable, "features", options)
    if source.dtype.kind not in "biuf":
        raise DtypeError(
            f"{source.origin}: features must be numbers, found {source.shape_note()}. "
            "Choose another variable."
        )
    if not source.row_shape:
        raise InputError(
            f"{source.origin}: has one number per row ({source.shape_note()}), expected vectors. "
            "Choose another variable, or reshape it to (n, 1)."
        )
    factors = _scale_factors(source, scale, memory_limit)
    dtype = source.dtype if factors is None else np.dtype(np.float32)
    if dtype.kind == "b":
        dtype = np.dtype(np.uint8)
    return FeatureRows(source.origin, source.n_rows, (source.width,), dtype, source, factors)


def open_thumbnails(paths: Paths, *, n_rows: int | None = None) -> RowSource:
    """Open small pictures: uint8 blocks (rows, height, width) or (rows, height, width, 3)."""
    source = _open_rows(paths, None, "thumbnails", OpenOptions())
    grey, colour = len(source.row_shape) == 2, source.row_shape[2:] == (3,)
    if source.dtype != np.uint8 or not (grey or colour):
        raise InputError(
            f"{source.origin}: thumbnails must be uint8 of shape (n, h, w) or (n, h, w, 3), "
            f"found {source.shape_note()}. Convert the pictures."
        )
    check_row_count(source, n_rows, "thumbnails")
    return source


def open_ids(paths: Paths, variable: str | None = None, *, n_rows: int | None = None) -> RowSource:
    """Open row ids: int64 or text (``StringDType``), one a row."""
    names = expand(paths)
    source = _open_rows(names, variable, "ids", OpenOptions(n_rows=rows_of_one(names, n_rows)))
    if source.width != 1 or source.dtype.kind not in "iuUST":
        raise InputError(
            f"{source.origin}: ids must be one integer or text per row, "
            f"found {source.shape_note()}. Choose another variable."
        )
    check_row_count(source, n_rows, "ids")
    dtype: np.dtype[Any] = TEXT if source.holds_text else np.dtype(np.int64)
    return IdRows(source.origin, source.n_rows, (), dtype, source)


def check_pairs(source: RowSource, features: RowSource | None, what: str) -> None:
    """Refuse shards that have not as many rows as those of the features beside them."""
    mine, theirs = parts_of(source), () if features is None else parts_of(features)
    if not 1 < len(mine) == len(theirs):
        return
    for part, beside in zip(mine, theirs, strict=True):
        if part.n_rows != beside.n_rows:
            raise LabelError(
                f"{part.origin}: has {what} for {part.n_rows:,} rows, but {beside.origin}, the "
                f"file of features in its place, has {beside.n_rows:,}. Give the files in the same "
                f"order and cut them alike, or join the {what} into one file."
            )


def check_row_count(source: RowSource, n_rows: int | None, what: str) -> None:
    """Refuse what has another number of rows than the features."""
    if n_rows is not None and source.n_rows != n_rows:
        raise InputError(
            f"{source.origin}: has {source.n_rows:,} {what} for {n_rows:,} rows of features. "
            "Each row needs exactly one: check that both come from the same files."
        )


def rows_of_one(names: Sequence[str], n_rows: int | None) -> int | None:
    """Return the rows that a single file must have; of several nobody knows how many each has."""
    return n_rows if len(names) == 1 else None


def _open_rows(
    paths: Paths, variable: str | None, purpose: Purpose, options: OpenOptions
) -> RowSource:
    names = expand(paths)
    source = join([open_file(name, variable, purpose, options) for name in names])
    if source.holds_lists:
        raise InputError(
            f"{source.origin}: holds lists of different lengths, which cannot be {purpose}. "
            "Choose another variable."
        )
    return source


def _scale_factors(
    source: RowSource, scale: str | float | None, memory_limit: int
) -> tuple[float, ...] | None:
    if scale is None:
        return None
    if not isinstance(scale, str):
        return (float(scale),) * source.width
    options = OpenOptions(memory_limit=memory_limit)
    held = open_file(source.files()[0], scale, "ids", options)
    if held.holds_lists or held.width * held.n_rows not in (1, source.width):
        raise InputError(
            f"{held.origin}: is {held.shape_note()}, but a scale has one number, or one for each "
            f"of the {source.width} columns."
        )
    factors: NDArray[np.float64] = held.read(0, held.n_rows).astype(np.float64).ravel()
    if not np.isfinite(factors).all():
        raise NonFiniteError(f"{held.origin}: a scale must be finite.")
    return tuple(np.broadcast_to(factors, source.width).tolist())


Paths: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]

_MAGIC = re.compile(r"[*?\[]")
_IN_FOLDERS = frozenset(
    {".npy", ".npz", ".mat", ".h5", ".hdf5", ".fbin", ".u8bin", ".i8bin", ".parquet", ".pq"}
    | {".arrow", ".feather", ".csv", ".tsv", ".txt", ".zarr"}
)
"""Endings of what is taken from a folder; what has another one may be anything."""


def expand(paths: Paths) -> tuple[str, ...]:
    """Resolve names, globs and folders to files; numbers sort as numbers (2 before 10).

    >>> expand("x.npy")
    ('x.npy',)
    """
    given = [paths] if isinstance(paths, str | PathLike) else list(paths)
    found: list[str] = []
    for name in given:
        item = str(local_path(name) or name)
        if _MAGIC.search(item) and (is_url(item) or not Path(item).exists()):
            matching = sorted(matches(item), key=_natural)
            if not matching:
                raise NoFilesError(f"{item}: no file matches. Check the pattern and the folder.")
            found += matching
        elif _is_folder(item):
            found += _files_in(item.rstrip("/"))
        else:
            found.append(item)
    if not found:
        raise InputError("No source file was given. Name at least one.")
    if len(set(found)) < len(found):
        twice = next(name for name, count in Counter(found).items() if count > 1)
        raise InputError(f"{twice}: was given twice. Its rows would be counted twice.")
    return tuple(found)


def _is_folder(item: str) -> bool:
    if is_url(item):
        return item.endswith("/") and not is_zarr(item.rstrip("/"))
    return Path(item).is_dir() and not is_zarr(item)


def _files_in(folder: str) -> list[str]:
    """Return the files of one kind that a folder holds; hidden ones, and ``_SUCCESS``, are none."""
    inside = sorted(matches(f"{folder}/*"), key=_natural)
    named = [name for name in inside if not name_of(name).startswith((".", "_"))]
    kinds: dict[str, list[str]] = {}
    for name in named:
        plain = name.removesuffix(".gz")
        if (kind := Path(plain).suffix) in _IN_FOLDERS and (is_file(name) or is_zarr(name)):
            kinds.setdefault(kind, []).append(name)
    if len(kinds) == 1:
        return next(iter(kinds.values()))
    if not kinds:
        others = ", ".join(map(name_of, named[:5])) or "nothing"
        raise NoFilesError(
            f"{folder}: this folder has no file of rows in it. It has: {others}"
            f"{f' and {len(named) - 5} more' if len(named) > 5 else ''}."
        )
    counts = ", ".join(f"{len(names)} {kind}" for kind, names in kinds.items())
    raise InputError(
        f"{folder}: this folder has files of several kinds ({counts}). "
        f"Name those that are meant, for example '{folder}/*{next(iter(kinds))}'."
    )


def _natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Sort numbers as numbers; the name itself decides between ``x1`` and ``x01``."""
    pieces = re.split("([0-9]+)", name)
    return [(int(p), "") if odd % 2 else (-1, p) for odd, p in enumerate(pieces)], name


@dataclass(frozen=True)
class JoinedRows(RowSource):
    """Shards of equal rows, one after the other; rows of shard i begin at ``starts[i]``."""

    parts: tuple[RowSource, ...]
    starts: tuple[int, ...]

    def locate(self, row: int) -> str:
        """Name the shard and the row in it."""
        shard = min(bisect_right(self.starts, row), len(self.parts)) - 1
        return self.parts[shard].locate(row - self.starts[shard])

    def files(self) -> tuple[str, ...]:
        """Return the paths of all shards."""
        return tuple(name for part in self.parts for name in part.files())

    def entry(self, row: int) -> int:
        """Return where the shard begins to be read."""
        shard = min(bisect_right(self.starts, row), len(self.parts)) - 1
        return self.starts[shard] + self.parts[shard].entry(row - self.starts[shard])

    def reopened(self, start: int, stop: int) -> RowSource:
        """Return it with the shards of these rows reopened."""
        parts = list(self.parts)
        for shard, first, end in pieces(self.starts, start, stop):
            parts[shard] = parts[shard].reopened(first, end)
        return replace(self, parts=tuple(parts))

    @property
    def working_bytes(self) -> int:
        """Return what the most demanding shard takes."""
        return max(part.working_bytes for part in self.parts)

    def _read(self, start: int, stop: int) -> Block:
        out = np.empty((stop - start, *self.row_shape), self.dtype)
        at = 0
        for shard, first, end in pieces(self.starts, start, stop):
            out[at : at + end - first] = self.parts[shard].read(first, end)
            at += end - first
        return out


def join(parts: Sequence[RowSource]) -> RowSource:
    """Make one source of shards; shards of another form, width or dtype are refused."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    lists = next((part for part in parts if part.holds_lists), None)
    other = next((part for part in parts if not part.holds_lists), None)
    if lists is not None and other is not None:
        raise InputError(
            f"{lists.origin} and {other.origin} hold rows of different form: "
            "lists in one, single values or vectors in the other. Ingest them apart."
        )
    parts = [part.in_order_of(first) for part in parts]
    _check_alike(parts, lambda part: part.row_shape, "row shape", InputError)
    _check_alike(parts, lambda part: part.element, "element type", DtypeError)
    starts = (0, *accumulate(part.n_rows for part in parts))
    origin = Origin(f"{first.origin} and {len(parts) - 1} more")
    dtype = np.result_type(*(part.dtype for part in parts))
    return JoinedRows(origin, starts[-1], first.row_shape, dtype, tuple(parts), starts)


def _check_alike(
    parts: Sequence[RowSource],
    feature: Callable[[RowSource], object],
    name: str,
    error: type[InputError | DtypeError],
) -> None:
    for part in parts[1:]:
        if feature(part) != feature(parts[0]):
            raise error(
                f"{part.origin} has {name} {feature(part)}, but {parts[0].origin} has "
                f"{feature(parts[0])}. Shards of one data set must agree: convert one of them."
            )
