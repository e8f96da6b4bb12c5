"""What has changed since: the rows of a store that somebody has seen, and those that are there now.

A model has learned from the rows of one state of a store, codes were made of them. Later the
store has more rows, or fewer, or the same in other segments. `Coverage` remembers the state by
its leaves (rows that were written together) and the dead rows of each segment; `difference`
compares it with another state, and no row is read for that:

- a segment that is still there may have more dead rows;
- segments that were joined (`compact`, small appends) have their live rows, in order, at the
  beginning of the new segment, and leave their leaves to it;
- what follows the last row that was seen is new.

Anything else (rows that came back, that are gone with their segment, or that stand in another
order) is no difference that can be caught up with: then all has to be done anew.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from sadih_dask.errors import InputError
from sadih_dask.stores.deletions import NONE, live_before, positions_hash
from sadih_dask.stores.root import Leaf, short_hash
from sadih_dask.stores.store import Store
from sadih_dask.types import Ints

Key: TypeAlias = tuple[int, tuple[str, ...]]
"""Rows of a leaf, and the hashes of the arrays that matter."""


@dataclass(frozen=True, eq=False)
class Covered:
    """A segment as it was: what its rows are, and which of them were dead."""

    leaves: tuple[Key, ...]
    dead: Ints = field(default_factory=lambda: NONE)

    @property
    def n_rows(self) -> int:
        """Rows, dead ones included."""
        return sum(n_rows for n_rows, _ in self.leaves)

    @property
    def n_live(self) -> int:
        """Rows that were not dead."""
        return self.n_rows - len(self.dead)

    def live_leaves(self) -> tuple[Key, ...]:
        """What is left of it in a segment that its live rows were joined to."""
        if not len(self.dead) or not self.n_live:
            return self.leaves if self.n_live else ()
        gone = positions_hash(self.dead)
        columns = zip(*(hashes for _, hashes in self.leaves), strict=True)
        return ((self.n_live, tuple(short_hash([*hashes, gone]) for hashes in columns)),)


@dataclass(frozen=True, eq=False)
class Difference:
    """What makes a former state of a store the one that is there now.

    deleted    rows of the former state that are gone, in its numbering, ascending
    places     where they lie: number of a segment of the present state, and positions in it
    first_new  row of the present state from which on rows are new
    n_new      how many they are
    """

    deleted: Ints
    places: tuple[tuple[int, Ints], ...]
    first_new: int
    n_new: int

    @property
    def is_empty(self) -> bool:
        """Whether nothing has changed."""
        return not len(self.deleted) and not self.n_new


@dataclass(frozen=True, eq=False)
class Coverage:
    """One state of a store, as far as some arrays are concerned.

    store      identity of the store
    forgotten  rows that were left out on purpose though the store has them, in its numbering
    """

    url: str
    store: str
    arrays: tuple[str, ...]
    segments: tuple[Covered, ...]
    forgotten: Ints = field(default_factory=lambda: NONE)

    @classmethod
    def of(cls, store: Store, arrays: Sequence[str], url: str = "") -> Coverage:
        """All rows of a store as it is now."""
        snapshot = store._snapshot
        parts = tuple(
            Covered(_keys(segment.leaves, arrays), snapshot.dead(segment))
            for segment in store.segments
        )
        return cls(url or store.url, store.uid, tuple(arrays), parts)

    @property
    def n_rows(self) -> int:
        """Rows of the state, forgotten ones included."""
        return sum(part.n_live for part in self.segments)

    def difference(self, store: Store) -> Difference | None:
        """What has changed in the store since, or None if it cannot be caught up with."""
        if any(name not in store.arrays for name in self.arrays):
            return None
        before, row, first_new = [old for old in self.segments if old.n_live], 0, 0
        deleted: list[Ints] = []
        places: list[tuple[int, Ints]] = []
        for number, part in enumerate(Coverage.of(store, self.arrays).segments):
            if not before:
                break
            seen = _match(before, part)
            if seen is None and not part.n_live:
                continue  # what was dead before, or came and went in the meantime
            if seen is None:
                return None
            n_segments, gone, where, n_seen = seen
            deleted.append(row + gone)
            places.append((number, where))
            row += sum(old.n_live for old in before[:n_segments])
            del before[:n_segments]
            first_new += n_seen
            if n_seen < part.n_live and before:
                return None
        if before:
            return None
        gone = np.concatenate([NONE, *deleted])
        return Difference(gone, tuple(places), first_new, store.n_rows - first_new)

    def renumbered(self, store: Store, difference: Difference) -> Coverage:
        """The state that is there now, with what was forgotten in its numbering."""
        left = np.setdiff1d(self.forgotten, difference.deleted)
        forgotten = left - np.searchsorted(difference.deleted, left)
        return replace(Coverage.of(store, self.arrays, self.url), forgotten=forgotten)

    def without(self, rows: Ints) -> Coverage:
        """The same, after some more rows have been left out."""
        if len(again := np.intersect1d(rows, self.forgotten)):
            raise InputError(f"row {again[0]} of {self.url} has been forgotten already")
        return replace(self, forgotten=np.union1d(self.forgotten, rows))

    def to_json(self) -> dict[str, Any]:
        """Return what JSON can hold; rows are packed."""
        return {
            "url": self.url,
            "store": self.store,
            "arrays": list(self.arrays),
            "segments": [
                [[[n, list(hashes)] for n, hashes in part.leaves], _packed(part.dead)]
                for part in self.segments
            ],
            "forgotten": _packed(self.forgotten),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Coverage:
        """Return what `to_json` wrote; ValueError or KeyError if it is something else."""
        segments = tuple(
            Covered(
                tuple((int(n), tuple(map(str, hashes))) for n, hashes in leaves), _unpacked(dead)
            )
            for leaves, dead in found["segments"]
        )
        arrays = tuple(map(str, found["arrays"]))
        names = str(found["url"]), str(found["store"])
        return cls(*names, arrays, segments, _unpacked(found["forgotten"]))


def _keys(leaves: Sequence[Leaf], arrays: Sequence[str]) -> tuple[Key, ...]:
    return tuple(leaf.of(arrays) for leaf in leaves)


def _match(before: Sequence[Covered], now: Covered) -> tuple[int, Ints, Ints, int] | None:
    """How a segment continues those that were seen (and had live rows).

    Return how many of them it holds, which of their live rows are dead now (counted from the first
    of them), where those lie in it, and how many of its live rows were seen; None if it is
    something else.
    """
    old = before[0]
    if old.leaves == now.leaves:
        if len(np.setdiff1d(old.dead, now.dead)):
            return None
        where = np.setdiff1d(now.dead, old.dead)
        return 1, live_before(old.dead, where), where, now.n_live
    joined: list[Key] = []
    for count, part in enumerate(before, 1):
        joined += part.live_leaves()
        if tuple(joined) != now.leaves[: len(joined)]:
            return None
        if len(joined) == len(now.leaves) or count == len(before):
            n_seen = sum(n_rows for n_rows, _ in joined)
            gone = now.dead[now.dead < n_seen]
            return count, gone, gone, n_seen - len(gone)
    return None


def _packed(rows: Ints) -> str:
    steps = np.diff(rows, prepend=0).astype("<u8").tobytes()
    return base64.b64encode(zlib.compress(steps)).decode() if len(rows) else ""


def _unpacked(text: str) -> Ints:
    if not text:
        return NONE
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(base64.b64decode(text, validate=True), 1 << 30)
    except zlib.error as error:
        raise ValueError(f"no list of rows: {error}") from error
    if not decompressor.eof:
        raise ValueError("a list of rows that is truncated, or longer than any")
    return np.cumsum(np.frombuffer(data, "<u8").astype(np.int64))
