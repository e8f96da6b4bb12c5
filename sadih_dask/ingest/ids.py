"""No id twice: neither among new rows, nor beside those of the store.

Ids are compared by 64-bit hashes, sorted, and those few with a hash in common as they are. Memory
is eight bytes an id, up to 256 MiB: of more than 32 million new ids the files are read once for
each part of the hashes. Ids of the store stream by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sadih_dask.errors import Argument, InputError, Remedy
from sadih_dask.learning.randomness import splitmix64
from sadih_dask.sources import RowSource
from sadih_dask.sources.contract import Block
from sadih_dask.stores.columns import as_bytes
from sadih_dask.stores.features import FeatureStore
from sadih_dask.types import Array

MOST_HASHES = 2**25
_BLOCK_ROWS = 65_536
_WORD = 8
Hashes = NDArray[np.uint64]
_OTHERS = Remedy("Give other ids ({}), or none ({})", Argument("ids"), Argument("ids_variable", ""))


def hashes(ids: Array) -> Hashes:
    """A 64-bit hash of each id; text hashes alike whatever the longest one beside it.

    >>> one, two = hashes(np.array(["a", "bb"])), hashes(np.array(["a", "a much longer text"]))
    >>> bool(one[0] == two[0]), bool(one[1] == two[1])
    (True, False)
    """
    if ids.dtype.kind in "iu":
        return splitmix64(ids.astype(np.int64).view(np.uint64), 0)
    data = as_bytes(ids)
    width = -(-data.dtype.itemsize // _WORD) * _WORD
    words = data.astype(f"S{width}").view(np.uint64).reshape(len(data), -1)
    found = np.zeros(len(data), np.uint64)
    for place, word in enumerate(words.T):  # the padding of shorter text counts for nothing
        found += np.where(word != 0, splitmix64(word, int(splitmix64(_at(place), 1)[0])), 0)
    return found


def _at(place: int) -> Hashes:
    return np.array([place], np.uint64)


class NewIds:
    """The ids of rows that are to be written, by row ranges of their source."""

    def __init__(self, source: RowSource, ranges: Sequence[tuple[int, int]]) -> None:
        self._source, self._ranges = source, ranges
        self._n_rows = sum(stop - start for start, stop in ranges)
        self._n_parts = -(-self._n_rows // MOST_HASHES)
        self._compared: set[tuple[str, str]] = set()

    def check_distinct(self) -> None:
        """Refuse an id that two rows have, with the places of both."""
        for part in range(self._n_parts):
            found = self._sorted(part)
            if len(twice := found[1:][found[1:] == found[:-1]]):
                self._refuse(twice)

    def check_absent(self, store: FeatureStore) -> None:
        """Refuse an id that the store has; segments that were compared before are passed over.

        So it can be called again with what others have added in the meantime.
        """
        rows, keys = _unknown(store, self._compared)
        if not rows:
            return
        for part in range(self._n_parts):
            new = self._sorted(part)
            for first, held in _stored(store, rows):
                found = hashes(held)
                at = np.searchsorted(new, found).clip(max=len(new) - 1)
                if len(new) and len(suspects := np.flatnonzero(new[at] == found)):
                    self._refuse(found[suspects], store, held[suspects], first + suspects)
        self._compared |= keys

    def _blocks(self) -> Iterator[tuple[int, Block]]:
        for begin, end in self._ranges:
            for start in range(begin, end, _BLOCK_ROWS):
                yield start, self._source.read(start, min(start + _BLOCK_ROWS, end))

    def _sorted(self, part: int) -> Hashes:
        """Return one part of the hashes, ascending."""
        expected = self._n_rows // self._n_parts
        kept, n_kept = np.empty(expected + expected // 64 + _BLOCK_ROWS, np.uint64), 0
        for _, block in self._blocks():
            found = hashes(block)
            if self._n_parts > 1:
                high = found >> np.uint64(32)
                found = found[(high * np.uint64(self._n_parts)) >> np.uint64(32) == part]
            if n_kept + len(found) > len(kept):  # the same id over and over
                kept = np.concatenate([kept[:n_kept], np.empty(len(kept), np.uint64)])
            kept[n_kept : n_kept + len(found)] = found
            n_kept += len(found)
        kept = kept[:n_kept]
        kept.sort()
        return kept

    def _refuse(
        self,
        suspects: Hashes,
        store: FeatureStore | None = None,
        held: Array | None = None,
        rows: Array | None = None,
    ) -> None:
        """Look at the ids that share a hash; if two are one and the same, say where they are."""
        seen: dict[object, str] = {}
        if store is not None and held is not None and rows is not None:
            for row, name in zip(rows.tolist(), held.tolist(), strict=True):
                seen[name] = f"row {row} of {store.url}"
        wanted = np.unique(suspects)
        for start, block in self._blocks():
            for at in np.flatnonzero(np.isin(hashes(block), wanted)).tolist():
                name, here = block[at : at + 1].tolist()[0], self._source.locate(start + at)
                if name in seen:
                    raise InputError(
                        f"{here}: the id {name!r} is that of {seen[name]} too, and an id names one "
                        "row",
                        remedy=_OTHERS,
                    )
                if store is None:
                    seen[name] = here


def _unknown(
    store: FeatureStore, compared: set[tuple[str, str]]
) -> tuple[list[tuple[int, int]], set[tuple[str, str]]]:
    """Return the row ranges of segments that were not compared, and what tells these."""
    ends = np.cumsum([0, *(segment.n_live for segment in store.segments)]).tolist()
    keys = [
        (segment.id, "" if segment.deleted is None else segment.deleted.hash)
        for segment in store.segments
    ]
    spans = zip(pairwise(ends), keys, strict=True)
    return [span for span, key in spans if key not in compared], set(keys)


def _stored(store: FeatureStore, ranges: list[tuple[int, int]]) -> Iterator[tuple[int, Array]]:
    for begin, end in ranges:
        for start in range(begin, end, store.chunk_rows):
            yield start, store.read("ids", start, min(start + store.chunk_rows, end))
