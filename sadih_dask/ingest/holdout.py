"""A random part of the rows, kept apart as queries: decided row by row, remembered nowhere.

Whether a row is held out is a hash of the seed, the name of its file and its number in that file.
So both stores can be filled one after the other, in any blocks, and are disjoint and complete; and
files that are added later, or named in another order, change nothing for the rows before.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import InputError
from sadih_dask.files.filesystem import name_of
from sadih_dask.learning.randomness import splitmix64
from sadih_dask.sources import RowSource

Part = Literal["database", "queries"]
MOST = 0.5
_WORD = 1 << 64


@dataclass(frozen=True)
class HoldOut:
    """Which rows are queries, and which of both parts is wanted here.

    fraction   of the rows that are held out as queries, above 0 and up to 0.5
    seed       another one holds out other rows
    part       "database" for the rows that stay, "queries" for those that are held out
    """

    fraction: float
    seed: int = 0
    part: Part = "database"

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= MOST:
            raise InputError(
                f"the fraction of rows to hold out is {self.fraction}; it must be above 0 and at "
                f"most {MOST}"
            )
        if self.part not in ("database", "queries"):
            raise InputError(f"part must be 'database' or 'queries', got {self.part!r}")

    @property
    def share(self) -> float:
        """Return the expected part of the rows that is taken."""
        return self.fraction if self.part == "queries" else 1 - self.fraction

    def note(self) -> str:
        """Return what a store remembers of it, so that it is never mixed with another one."""
        return f"{self.part}: fraction {self.fraction!r}, seed {self.seed}"


class Chooser:
    """Says of any rows of joined files which are taken; eight bytes a row while it does."""

    def __init__(self, hold_out: HoldOut, parts: Sequence[RowSource]) -> None:
        self._queries = hold_out.part == "queries"
        self._limit = np.uint64(hold_out.fraction * _WORD)
        self._starts = (0, *accumulate(part.n_rows for part in parts))
        self._keys = [_key(hold_out.seed, name_of(part.origin.path)) for part in parts]

    def taken(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return a flag for each of the rows `start` to `stop`."""
        pieces = [self._held_out(*where) for where in self._pieces(start, stop)]
        held_out = np.concatenate([np.empty(0, bool), *pieces])
        return held_out if self._queries else ~held_out

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        file = bisect_right(self._starts, start) - 1
        while start < stop:
            end = min(stop, self._starts[file + 1])
            if end > start:
                yield self._keys[file], start - self._starts[file], end - self._starts[file]
            start, file = end, file + 1

    def _held_out(self, key: int, first: int, last: int) -> npt.NDArray[np.bool_]:
        return splitmix64(np.arange(first, last, dtype=np.uint64), key) < self._limit


def _key(seed: int, name: str) -> int:
    """Return where the sequence of a file begins; its folder does not matter, so it may move."""
    return int.from_bytes(hashlib.sha256(json.dumps([seed, name]).encode()).digest()[:8], "little")
