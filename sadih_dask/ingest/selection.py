"""Rows on their way from files into a store: which of them, and in what type.

A random part of the rows may be kept apart as queries. Whether a row is held out is a hash of the
seed, the name of its file and its number in that file: decided row by row, remembered nowhere. So
both stores can be filled one after the other, in any blocks, and are disjoint and complete; and
files that are added later, or named in another order, change nothing for the rows before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import InputError
from sadih_dask.files.filesystem import name_of
from sadih_dask.ingest.inputs import HoldOut, Inputs, Unlabelled, parts_of
from sadih_dask.learning.randomness import splitmix64
from sadih_dask.sources import RowSource
from sadih_dask.sources.contract import Block, pieces
from sadih_dask.stores.columns import fitting

_SEGMENT_ROWS = 65_536
_SEGMENT_CELLS = 2**24
_SEGMENT_BYTES = 2**24
_EXACT_IN_FLOAT32 = 2**24
_ID_STEP = 8
LABEL_DTYPE = "int32"


class Chooser:
    """Says of any rows of joined files which are taken; eight bytes a row while it does."""

    def __init__(self, hold_out: HoldOut, parts: Sequence[RowSource]) -> None:
        self._queries = hold_out.part == "queries"
        self._limit = np.uint64(hold_out.fraction * 2**64)
        self._starts = (0, *accumulate(part.n_rows for part in parts))
        self._keys = [_key(hold_out.seed, name_of(part.origin.path)) for part in parts]

    def taken(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return a flag for each of the rows `start` to `stop`."""
        hashes = [
            splitmix64(np.arange(first, last, dtype=np.uint64), self._keys[file])
            for file, first, last in pieces(self._starts, start, stop)
        ]
        held_out = np.concatenate([np.empty(0, np.uint64), *hashes]) < self._limit
        return held_out if self._queries else ~held_out


def _key(seed: int, name: str) -> int:
    """Return where the sequence of a file begins; its folder does not matter, so it may move."""
    return int.from_bytes(hashlib.sha256(json.dumps([seed, name]).encode()).digest()[:8], "little")


@dataclass(frozen=True)
class Selection:
    """Which rows of the sources are taken, as segments of consecutive source rows.

    spans      first and one past the last source row of each segment
    kept       rows that are taken of all segments before, and of all: one entry more
    labelled   whether rows without a label are left out
    chooser    says which rows belong to this part of the data, if it is split
    n_dropped  rows of this part that were left out because they have no label
    """

    spans: tuple[tuple[int, int], ...]
    kept: tuple[int, ...]
    labelled: bool = False
    chooser: Chooser | None = None
    n_dropped: int = 0

    @property
    def sparse(self) -> bool:
        """Say whether rows inside a segment may be left out."""
        return self.labelled or self.chooser is not None

    @property
    def n_rows(self) -> int:
        """Return how many rows are taken."""
        return self.kept[-1]


def select(
    inputs: Inputs,
    unlabelled: Unlabelled,
    ranges: Sequence[tuple[int, int]] | None = None,
    hold_out: HoldOut | None = None,
) -> Selection:
    """Select source row ranges (all by default): one part of them, and only labelled ones, if so.

    Then the labels are read once more to count them: a segment needs its number of rows only.
    """
    ranges = [(0, inputs.n_rows)] if ranges is None else ranges
    labels = inputs.labels
    labelled = unlabelled == "drop" and labels is not None and labels.multi_label
    chooser = None if hold_out is None else Chooser(hold_out, parts_of(inputs.features))
    if not labelled and chooser is None:
        return Selection(tuple(ranges), _running([stop - start for start, stop in ranges]))
    step = _segment_rows(inputs, labelled)
    spans = tuple(
        (start, min(start + step, end))
        for begin, end in ranges
        for start in range(begin, end, step)
    )
    counts: list[int] = []
    n_dropped = 0
    for start, stop in spans:
        taken = _chosen(chooser, start, stop)
        n_chosen = int(taken.sum())
        if labelled and labels is not None:
            taken &= labels.read(start, stop).any(axis=1)
        counts.append(int(taken.sum()))
        n_dropped += n_chosen - counts[-1]
    if not any(counts) and chooser is None and labels is not None:
        raise InputError(f"{labels.describe()}: no row has a label, so none would be kept")
    return Selection(spans, _running(counts), labelled, chooser, n_dropped)


def _segment_rows(inputs: Inputs, labelled: bool) -> int:
    """Return rows that are read at once though few of them may be wanted: 16 MiB at most."""
    widest = max(
        source.width * source.dtype.itemsize
        for name, source in inputs.sources.items()
        if name in ("features", "thumbnails")
    )
    step = min(_SEGMENT_ROWS, _SEGMENT_BYTES // widest)
    if labelled and inputs.labels is not None:
        step = min(step, _SEGMENT_CELLS // inputs.labels.width)
    return max(1, step)


def _chosen(chooser: Chooser | None, start: int, stop: int) -> npt.NDArray[np.bool_]:
    return np.ones(stop - start, bool) if chooser is None else chooser.taken(start, stop)


def _running(lengths: Sequence[int]) -> tuple[int, ...]:
    return (0, *np.cumsum(lengths, dtype=np.int64).tolist())


class Feed:
    """Reads taken rows of any array, in the type that the store keeps; forwards is cheapest."""

    def __init__(self, inputs: Inputs, selection: Selection, dtype: str) -> None:
        self.inputs = inputs
        self.selection = selection
        self.dtype = dtype
        self._sources = inputs.sources
        self._segment: tuple[int, npt.NDArray[np.int64], Block | None] | None = None

    @property
    def n_rows(self) -> int:
        """Return how many rows are taken."""
        return self.selection.n_rows

    @property
    def n_bytes(self) -> int:
        """Return the bytes of the rows in a new store, but for their ids."""
        row = {name: source.width for name, source in self._sources.items()}
        size = row["features"] * np.dtype(self.dtype).itemsize + row.get("thumbnails", 0)
        if (labels := self.inputs.labels) is not None:
            size += row["labels"] if labels.multi_label else np.dtype(LABEL_DTYPE).itemsize
        return size * self.n_rows

    def id_dtype(self) -> str | None:
        """Return the type of the ids; text of the longest in bytes, rounded up for rows to come."""
        ids = self.inputs.ids
        if ids is None or not ids.holds_text:
            return None if ids is None else "int64"
        longest = 1
        for start in range(0, ids.n_rows, _SEGMENT_ROWS):
            block = ids.read(start, min(start + _SEGMENT_ROWS, ids.n_rows))
            longest = max(longest, int(fitting(block)[1:]))
        return f"U{-(-longest // _ID_STEP) * _ID_STEP}"

    def rows(self, first: int, last: int) -> dict[str, Block]:
        """Return rows of every array."""
        return {name: self.read(name, first, last) for name in self._sources}

    def read(self, name: str, first: int, last: int) -> Block:
        """Return rows `first` to `last` of those that are taken."""
        taken = pieces(self.selection.kept, first, last)
        blocks = [self._piece(name, *where) for where in taken] or [self._sources[name].read(0, 0)]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def _piece(self, name: str, segment: int, first: int, last: int) -> Block:
        source, (start, _) = self._sources[name], self.selection.spans[segment]
        if not self.selection.sparse:
            begin, end = start + first, start + last
            return self._typed(name, source.read(begin, end), begin)
        rows, labels = self._taken(segment)
        if name == "labels" and labels is not None:
            return labels[first:last]
        wanted = rows[first:last]
        begin = int(wanted[0])
        block = self._typed(name, source.read(begin, int(wanted[-1]) + 1), begin)
        return block if len(block) == len(wanted) else block[wanted - begin]

    def _taken(self, segment: int) -> tuple[npt.NDArray[np.int64], Block | None]:
        """Return the taken source rows of a segment, and their labels if those decide.

        The last segment is kept: it spans several blocks, and compressed label files are slow to
        read backwards.
        """
        if self._segment is None or self._segment[0] != segment:
            start, stop = self.selection.spans[segment]
            taken, labels = _chosen(self.selection.chooser, start, stop), None
            if self.selection.labelled:
                labels = self._sources["labels"].read(start, stop)
                taken &= labels.any(axis=1)
                labels = labels[taken]
            self._segment = (segment, start + np.flatnonzero(taken), labels)
        return self._segment[1], self._segment[2]

    def _typed(self, name: str, block: Block, first_row: int) -> Block:
        if name != "features":
            return block
        return convert(block, np.dtype(self.dtype), self._sources[name], first_row)


def stored_dtype(source: RowSource, dtype: str | None) -> str:
    """Return the type that features are kept in: their own, float32 for integers, or the wish."""
    if dtype is not None:
        if dtype not in ("float16", "float32", "float64"):
            raise InputError(f"dtype must be float16, float32 or float64, got {dtype!r}")
        return dtype
    return source.dtype.name if source.dtype.kind == "f" else "float32"


def convert(block: Block, dtype: np.dtype[Any], source: RowSource, first_row: int) -> Block:
    """Return features in another type; a number that it cannot hold is an error, not infinity."""
    if block.dtype == dtype:
        return block
    with np.errstate(over="ignore"):
        converted = block.astype(dtype)
    if block.dtype.kind in "iu" and block.dtype.itemsize > 2 and dtype.itemsize < 8:
        bad = np.abs(block.astype(np.float64)) > min(_EXACT_IN_FLOAT32, float(np.finfo(dtype).max))
        problem, wider = "cannot be kept exactly", "float64"
    else:
        bad = ~np.isfinite(converted)
        problem, wider = "is too large", "float32" if dtype == np.float16 else "float64"
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise InputError(
            f"{source.locate(first_row + row)}, column {column}: {block[row, column]} {problem} "
            f"as {dtype}. Choose dtype={wider!r}, or scale the features"
        )
    return converted
