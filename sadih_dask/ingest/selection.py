"""Rows on their way from files into a store: which of them, and in what type.

A random part of the rows may be kept apart as queries. Whether a row is held out is a hash of the
seed, the name of its file and its number in that file: decided row by row, remembered nowhere. So
both stores can be filled one after the other, in any blocks, and are disjoint and complete; and
files that are added later, or named in another order, change nothing for the rows before.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from copy import copy
from itertools import accumulate
from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import InputError
from sadih_dask.files.filesystem import is_url, name_of
from sadih_dask.ingest.inputs import HoldOut, Inputs
from sadih_dask.learning.randomness import splitmix64
from sadih_dask.sources import RowSource
from sadih_dask.sources.contract import Block, pieces
from sadih_dask.sources.features import parts_of
from sadih_dask.stores.columns import fitting
from sadih_dask.types import FloatType, Unlabelled

_SEGMENT_ROWS = 65_536
_SEGMENT_CELLS = 2**24
_SEGMENT_BYTES = 2**24
_EXACT_IN_FLOAT32 = 2**24
_ID_STEP = 8
LABEL_DTYPE = "int32"
Flags: TypeAlias = npt.NDArray[np.bool_]


class Chooser:
    """Says of any rows of joined files which are taken; eight bytes a row while it does."""

    def __init__(self, hold_out: HoldOut, parts: Sequence[RowSource]) -> None:
        self._queries = hold_out.part == "queries"
        self._limit = np.uint64(hold_out.fraction * 2**64)
        self._starts = (0, *accumulate(part.n_rows for part in parts))
        self._keys = [_key(hold_out.seed, name_of(part.origin.path)) for part in parts]

    def taken(self, start: int, stop: int) -> Flags:
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


class Feed:
    """The rows of files that are taken, in the type that the store keeps; forwards is cheapest.

    It travels to the tasks that read them: a description of files, never rows. Without `ranges` of
    source rows all are taken; of these one part, if rows are held out, and only those with a label,
    if others are to be dropped. Then the labels are read once more to count them. Source rows are
    taken in spans, of which only the number of taken rows is remembered.

    ranges     of source rows that may be taken
    n_rows     rows that are taken
    n_dropped  rows of this part that are left out because they have no label
    takes_all  whether every row of the ranges is taken
    """

    def __init__(
        self,
        inputs: Inputs,
        dtype: str,
        unlabelled: Unlabelled = "error",
        ranges: Sequence[tuple[int, int]] | None = None,
        hold_out: HoldOut | None = None,
    ) -> None:
        labels = inputs.labels
        drops = unlabelled == "drop" and labels is not None and labels.multi_label
        self.inputs = inputs
        self.dtype = dtype
        self.n_dropped = 0
        self._sources = inputs.sources
        self._deciding: RowSource | None = labels if drops else None
        self._chooser = None if hold_out is None else Chooser(hold_out, parts_of(inputs.features))
        self.takes_all = not drops and hold_out is None
        self.ranges = [(0, inputs.n_rows)] if ranges is None else list(ranges)
        self._spans = self.ranges
        self._segment: tuple[int, npt.NDArray[np.int64], Block | None] | None = None
        counts = [stop - start for start, stop in self._spans]
        if not self.takes_all:
            step = self._step()
            self._spans = [
                (start, min(start + step, end))
                for begin, end in self._spans
                for start in range(begin, end, step)
            ]
            counts = []
            for start, stop in self._spans:
                part, taken, _ = self._flags(start, stop)
                counts.append(int(taken.sum()))
                self.n_dropped += int(part.sum()) - counts[-1]
        self._kept = (0, *accumulate(counts))
        self.n_rows = self._kept[-1]
        if drops and hold_out is None and not self.n_rows and labels is not None:
            raise InputError(f"{labels.describe()}: no row has a label, so none would be kept")

    def _step(self) -> int:
        """Return rows that are read at once though few of them may be wanted: 16 MiB at most."""
        widest = max(
            source.width * source.dtype.itemsize
            for name, source in self._sources.items()
            if name in ("features", "thumbnails")
        )
        step = min(_SEGMENT_ROWS, _SEGMENT_BYTES // widest)
        if self._deciding is not None:
            step = min(step, _SEGMENT_CELLS // self._deciding.width)
        return max(1, step)

    def _flags(self, start: int, stop: int) -> tuple[Flags, Flags, Block | None]:
        """Say which source rows are of this part, and which are taken; and labels that decide."""
        part = np.ones(stop - start, bool)
        if self._chooser is not None:
            part = self._chooser.taken(start, stop)
        if self._deciding is None:
            return part, part, None
        labels = self._deciding.read(start, stop)
        return part, part & labels.any(axis=1), labels

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

    def _source_row(self, row: int) -> int:
        """Return the source row of a taken one, or one of the same span that is not behind it."""
        span = bisect_right(self._kept, row) - 1
        return self._spans[span][0] + row - self._kept[span]

    def _source_rows(self, first: int, last: int) -> tuple[int, int]:
        """Return source rows that taken ones are among."""
        if self.takes_all:
            return self._source_row(first), self._source_row(last - 1) + 1
        low, high = (bisect_right(self._kept, row) - 1 for row in (first, last - 1))
        return self._spans[low][0], self._spans[high][1]

    def units(
        self, blocks: Sequence[int], block_rows: int, most: int
    ) -> tuple[list[range], tuple[str, ...]]:
        """Cut ascending blocks of rows into units that are read by one task each.

        A unit is up to `most` adjacent blocks, or more where a file has to be read from a row
        before them: a stream, a row group or what is loaded is read by one task. Returned as well:
        arrays, but never the features, that have to be read from further back than that, such as
        all labels from one text file. They are short: who cuts writes them himself.
        """
        sources = {name: source for name, source in self._sources.items() if name != "features"}
        deciding = [self._sources["features"]]
        if self._deciding is not None:
            deciding.append(sources.pop("labels"))
        units: list[range] = []
        apart: set[str] = set()
        before = 0
        for block in blocks:
            row = self._source_row(block * block_rows)
            if units and units[-1].stop == block:
                bound = min(source.entry(row) for source in deciding) <= before
                if bound or len(units[-1]) < most:
                    units[-1] = range(units[-1].start, block + 1)
                    before = row
                    continue
            apart |= {name for name, each in sources.items() if each.entry(row) <= before < row}
            units.append(range(block, block + 1))
            before = row
        return units, tuple(name for name in sources if name in apart)

    def only(self, names: Iterable[str]) -> Feed:
        """Return the same rows of some arrays."""
        found = copy(self)
        found._sources = {name: self._sources[name] for name in names}
        return found

    def reopened(self, first: int, last: int) -> Feed:
        """Return the same for a task that reads rows `first` to `last`, on its own."""
        found, rows = copy(self), self._source_rows(first, last)
        found._sources = {name: s.reopened(*rows) for name, s in self._sources.items()}
        if self._deciding is not None:
            found._deciding = found._sources["labels"]
        return found

    def fetches(self, rows: Iterable[int] = ()) -> bool:
        """Say whether files are behind a network, and can be entered at each of these rows."""
        source = self._sources.get("features")
        if source is None or self._deciding is not None:
            return False
        urls = all(is_url(part.origin.path) for part in parts_of(source))
        starts = [self._source_row(row) for row in rows]
        return urls and all(s.entry(r) == r for s in self._sources.values() for r in starts)

    def working_bytes(self, block_rows: int, n_written: int) -> int:
        """Return the bytes of a task that reads one block while it writes others.

        Read, joined and converted; what is written is encoded beside it.
        """
        total = 0
        for name, source in self._sources.items():
            stored = np.dtype(self.dtype if name == "features" else source.dtype).itemsize
            row = 2 * source.dtype.itemsize + (1 + 2 * n_written) * stored
            total += block_rows * source.width * row + source.working_bytes
        return total if self.takes_all else total + 2 * _SEGMENT_BYTES

    def rows(self, first: int, last: int) -> dict[str, Block]:
        """Return rows of every array."""
        return {name: self.read(name, first, last) for name in self._sources}

    def read(self, name: str, first: int, last: int) -> Block:
        """Return rows `first` to `last` of those that are taken."""
        taken = pieces(self._kept, first, last)
        blocks = [self._piece(name, *where) for where in taken] or [self._sources[name].read(0, 0)]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def _piece(self, name: str, span: int, first: int, last: int) -> Block:
        if self.takes_all:
            start, _ = self._spans[span]
            return self._typed(name, start + first, start + last)
        rows, labels = self._taken(span)
        if name == "labels" and labels is not None:
            return labels[first:last]
        wanted = rows[first:last]
        block = self._typed(name, int(wanted[0]), int(wanted[-1]) + 1)
        return block if len(block) == len(wanted) else block[wanted - wanted[0]]

    def _taken(self, span: int) -> tuple[npt.NDArray[np.int64], Block | None]:
        """Return the taken source rows of a span, and their labels if those decide.

        The last span is kept: it holds several blocks, and compressed label files are slow to
        read backwards.
        """
        if self._segment is None or self._segment[0] != span:
            start, stop = self._spans[span]
            _, taken, labels = self._flags(start, stop)
            rows = start + np.flatnonzero(taken)
            self._segment = (span, rows, None if labels is None else labels[taken])
        return self._segment[1], self._segment[2]

    def _typed(self, name: str, start: int, stop: int) -> Block:
        """Return source rows as the store keeps them."""
        source = self._sources[name]
        block = source.read(start, stop)
        dtype = np.dtype(self.dtype)
        return convert(block, dtype, source, start) if name == "features" else block


def stored_dtype(source: RowSource, dtype: str | None) -> str:
    """Return the type that features are kept in: their own, float32 for integers, or the wish."""
    if dtype is not None:
        if dtype not in get_args(FloatType):
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
