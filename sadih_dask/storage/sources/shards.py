"""Several files as one source: names and globs expanded, shards checked against each other."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from os import PathLike, fspath
from pathlib import Path
from typing import TypeAlias

import numpy as np

from sadih_dask.errors import DtypeError, InputError, NoFilesError
from sadih_dask.storage.sources.contract import (
    Block,
    Origin,
    Ragged,
    RaggedSource,
    RowSource,
)
from sadih_dask.storage.sources.places import is_url, matches

Paths: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]

_MAGIC = re.compile(r"[*?\[]")


def expand(paths: Paths) -> tuple[str, ...]:
    """Resolve names and globs to files; a glob sorts numbers as numbers (2 before 10).

    >>> expand("x.npy")
    ('x.npy',)
    """
    given = [paths] if isinstance(paths, str | PathLike) else list(paths)
    found: list[str] = []
    for name in given:
        item = fspath(name)
        if _MAGIC.search(item) and (is_url(item) or not Path(item).exists()):
            matching = sorted(matches(item), key=_natural)
            if not matching:
                raise NoFilesError(f"{item}: no file matches. Check the pattern and the folder.")
            found += matching
        else:
            found.append(item)
    if not found:
        raise InputError("No source file was given. Name at least one.")
    if len(set(found)) < len(found):
        twice = next(name for name, count in Counter(found).items() if count > 1)
        raise InputError(f"{twice}: was given twice. Its rows would be counted twice.")
    return tuple(found)


def _natural(name: str) -> list[tuple[int, str]]:
    pieces = re.split(r"(\d+)", name)
    return [(int(p), "") if p.isdigit() else (-1, p) for p in pieces]


@dataclass(frozen=True)
class _Joined:
    """The arithmetic of shards: which rows of which shard make a row range."""

    starts: tuple[int, ...]

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (shard, first row in it, end row in it)."""
        shard = max(bisect_right(self.starts, start) - 1, 0)
        while start < stop:
            end = min(stop, self.starts[shard + 1])
            yield shard, start - self.starts[shard], end - self.starts[shard]
            start, shard = end, shard + 1

    def find(self, row: int) -> tuple[int, int]:
        """Return the shard of a row and the row's number in it."""
        shard = min(bisect_right(self.starts, row), len(self.starts) - 1) - 1
        return shard, row - self.starts[shard]


@dataclass(frozen=True)
class JoinedRows(RowSource):
    """Shards of equal rows, one after the other."""

    parts: tuple[RowSource, ...]
    joined: _Joined

    def _read(self, start: int, stop: int) -> Block:
        out = np.empty((stop - start, *self.row_shape), self.dtype)
        at = 0
        for shard, first, end in self.joined.pieces(start, stop):
            out[at : at + end - first] = self.parts[shard].read(first, end)
            at += end - first
        return out

    def locate(self, row: int) -> str:
        """Name the shard and the row in it."""
        shard, inner = self.joined.find(row)
        return self.parts[shard].locate(inner)

    def files(self) -> tuple[str, ...]:
        """Return the paths of all shards."""
        return tuple(name for part in self.parts for name in part.files())

    def stamps(self) -> list[list[object]]:
        """Return the state of every shard."""
        return [stamp for part in self.parts for stamp in part.stamps()]


@dataclass(frozen=True)
class JoinedLists(RaggedSource):
    """Shards of lists, one after the other."""

    parts: tuple[RaggedSource, ...]
    joined: _Joined

    def _read(self, start: int, stop: int) -> Ragged:
        pieces = [self.parts[s].read(i, j) for s, i, j in self.joined.pieces(start, stop)]
        lengths = np.concatenate([[0], *(np.diff(piece.offsets) for piece in pieces)])
        # Lists without any label carry no type of their own
        values = [p.values for p in pieces if len(p.values)] or [np.empty(0, np.int64)]
        return Ragged(np.concatenate(values), np.cumsum(lengths, dtype=np.int64))

    def locate(self, row: int) -> str:
        """Name the shard and the row in it."""
        shard, inner = self.joined.find(row)
        return self.parts[shard].locate(inner)

    def files(self) -> tuple[str, ...]:
        """Return the paths of all shards."""
        return tuple(name for part in self.parts for name in part.files())

    def stamps(self) -> list[list[object]]:
        """Return the state of every shard."""
        return [stamp for part in self.parts for stamp in part.stamps()]


def join(parts: Sequence[RowSource | RaggedSource]) -> RowSource | RaggedSource:
    """Make one source of shards; shards of another form, width or dtype are refused."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    joined = _Joined((0, *accumulate(part.n_rows for part in parts)))
    origin = Origin(f"{first.origin} and {len(parts) - 1} more")
    same = tuple(part for part in parts if isinstance(part, RowSource))
    lists = tuple(part for part in parts if isinstance(part, RaggedSource))
    if same and lists:
        raise InputError(
            f"{lists[0].origin} and {same[0].origin} hold rows of different form: "
            "lists in one, single values or vectors in the other. Ingest them apart."
        )
    if lists:
        return JoinedLists(origin, joined.starts[-1], lists, joined)
    _check_alike(same, lambda part: part.row_shape, "row shape", InputError)
    _check_alike(same, _element, "element type", DtypeError)
    dtype = np.result_type(*(part.dtype for part in same))
    return JoinedRows(origin, joined.starts[-1], same[0].row_shape, dtype, same, joined)


def _element(part: RowSource) -> str:
    return "text" if part.dtype.kind in "UST" else str(part.dtype)


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
