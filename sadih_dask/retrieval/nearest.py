"""Exact nearest codes of packed arrays: the ``k`` first, or all within a radius.

The ranking is by Hamming distance, ties by row number. A place in it is one integer, the *key*
``distance << 46 | row``, so that parts of a database are merged by keeping the smallest keys, and
the result is the same for any division into parts and any order of merging.

A query's bits are the signs of its scores, and the sizes are thrown away: a bit that was nearly
zero counts as much as one that was certain. `bit_weights` puts them back: the distance is then the
sum of the weights of the bits that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from sadih_dask.errors import Argument, InputError, Remedy, require
from sadih_dask.retrieval.codes import check_widths, columns, words
from sadih_dask.retrieval.kernels import (
    LEVELS,
    ROW_BITS,
    nearest_kernel,
    tile_buffer,
    weighted_kernel,
    within_kernel,
)
from sadih_dask.types import Array, Bytes, Ints

MAX_ROWS = 1 << ROW_BITS
CACHE_BYTES = 2**19
"""Codes that all queries are compared with before the next are: they stay in the second cache."""
MAX_DISTANCE = (1 << (63 - ROW_BITS)) - 1
Block: TypeAlias = tuple[int | Ints, Bytes]
"""The first row and the codes of consecutive rows, or all rows, ascending, and their codes."""


class _Found:
    """What a search has found, as a table."""

    rows: Ints
    distances: Array
    ids: Array

    @property
    def counts(self) -> Ints:
        """How many items each query has."""
        raise NotImplementedError

    def columns(self, query_ids: Array | None = None) -> dict[str, Array]:
        """One entry a find, nearest first; ``query_ids`` name the queries, else their numbers."""
        counts = self.counts
        query = np.repeat(np.arange(len(counts)), counts)
        return {
            "query": query if query_ids is None else np.asarray(query_ids)[query],
            "rank": np.arange(len(query)) - (np.cumsum(counts) - counts)[query],
            "id": self.ids.reshape(-1),
            "row": self.rows.reshape(-1),
            "distance": self.distances.reshape(-1),
        }

    def to_pandas(self, query_ids: Array | None = None) -> Any:
        """The `columns` as a pandas data frame."""
        return require("pandas", "a data frame of finds").DataFrame(self.columns(query_ids))


@dataclass(frozen=True, eq=False)
class Neighbours(_Found):
    """The first ``k`` items of every query: row numbers and distances, (q, k), nearest first.

    Distances are Hamming distances, or weighted ones. ``ids`` are the ids of the rows where the
    database has ids, and the row numbers otherwise.
    """

    rows: Ints
    distances: Array
    ids: Array

    @property
    def k(self) -> int:
        """Items of each query: as many as were asked for, or all if there are fewer."""
        return self.rows.shape[1]

    @property
    def counts(self) -> Ints:
        """How many items each query has: the same for all."""
        return np.full(len(self), self.k)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        d = self.distances
        span = f", distances {d.min():.3g} to {d.max():.3g}" if d.size else ""
        return f"<Neighbours of {len(self)} queries, {self.k} each{span}>"


@dataclass(frozen=True, eq=False)
class WithinRadius(_Found):
    """All items within a radius: those of query ``i`` stand at ``lims[i]:lims[i + 1]``.

    Nearest first, ties by row number. ``ids`` are as in `Neighbours`.
    """

    radius: int
    lims: Ints
    rows: Ints
    distances: Array
    ids: Array

    @property
    def counts(self) -> Ints:
        """How many items each query has."""
        return np.diff(self.lims)

    def __len__(self) -> int:
        return len(self.lims) - 1

    def of(self, query: int) -> tuple[Array, Array]:
        """Ids and distances of one query."""
        part = slice(self.lims[query], self.lims[query + 1])
        return self.ids[part], self.distances[part]

    def __repr__(self) -> str:
        return (
            f"<WithinRadius {self.radius}: {len(self.rows)} items of {len(self)} queries, "
            f"{int(np.sum(self.counts == 0))} without any>"
        )


def nearest_keys(
    queries: Bytes, blocks: Iterable[Block], k: int, weights: Ints | None = None
) -> Ints:
    """Smallest keys of each query over blocks of rows, ascending, (q, up to k).

    Blocks come in order of rows; a block is seen once and let go. With ``weights`` distances are
    weighted by the bit.
    """
    prepared = words(queries)
    buffer = tile_buffer(prepared.shape[1])
    held = np.empty((len(queries), k), np.int64)
    known = 0
    if weights is not None:
        planes, buffer = _planes(weights), tile_buffer(LEVELS * prepared.shape[1])
    for rows, block in blocks:
        check_widths(queries, block)
        first_row = _first(rows)
        step = max(8 * k, CACHE_BYTES // block.shape[1])  # what is held is ranked after each
        for start in range(0, len(block), step):
            part = columns(block[start : start + step])
            place = first_row + start
            if weights is None:
                nearest_kernel(prepared, part, place, held, known, buffer)
            else:
                weighted_kernel(prepared, weights, planes, part, place, held, known, buffer)
            known = min(k, known + part.shape[1])
        if not isinstance(rows, int):
            _renumber(held[:, :known], rows)
    return held[:, :known]


def _planes(weights: Ints) -> Array:
    """Bits of weights rounded down to levels, (q, 4, words): bit ``b`` of all in plane ``b``."""
    levels = weights.astype(np.int64) * LEVELS // weights.max(axis=1, keepdims=True, initial=1)
    planes = np.stack([levels >> b & 1 for b in range(LEVELS.bit_length())], axis=1)
    return np.packbits(planes.astype(bool), axis=2, bitorder="little").view(np.uint64)


def _first(rows: int | Ints) -> int:
    return rows if isinstance(rows, int) else int(rows[0])


def _renumber(keys: Ints, rows: Ints) -> None:
    """Give keys of a block, whose rows were counted from the first, the numbers of these rows.

    The order is the same by either, and keys of rows before the first stay.
    """
    place = rows_of(keys) - rows[0]
    keys += np.where(place < 0, 0, rows[place.clip(min=0)] - rows[0] - place)


def bit_weights(scores: Array) -> Ints:
    """How much each bit of real-valued queries (q, n_bits) counts, as whole numbers.

    In proportion to the sizes of the scores, and so many that the farthest item has the largest
    distance that a key holds; zero scores count nothing, and if all are, all bits count alike.
    """
    q, n_bits = scores.shape
    sizes = np.abs(scores).astype(np.float64)
    sizes[sizes.max(axis=1) == 0] = 1.0
    shares = sizes / sizes.sum(axis=1, keepdims=True)
    weights = np.zeros((q, -(-n_bits // 64) * 64), np.int32)
    weights[:, :n_bits] = np.rint(shares * (MAX_DISTANCE - n_bits))
    return weights


def weighted_distances(keys: Ints, weights: Ints, n_bits: int) -> Array:
    """Distances in keys, in bits: of mean weight 1."""
    unit = np.maximum(weights.sum(axis=1, keepdims=True), 1) / n_bits
    return (distances_of(keys) / unit).astype(np.float32)


def merge_keys(parts: Sequence[Ints], k: int) -> Ints:
    """Keep the ``k`` smallest keys of each query."""
    joined = np.concatenate(parts, axis=1)
    joined.sort(axis=1)
    return np.ascontiguousarray(joined[:, :k])


@dataclass(frozen=True, eq=False)
class Finds:
    """Keys of the items within a radius of each query, ``counts[i]`` for query ``i`` in turn."""

    counts: Ints
    keys: Ints

    @classmethod
    def join(cls, parts: Sequence[Finds]) -> Finds:
        """Finds in all parts of a database, each query's in ascending order."""
        queries = [np.repeat(np.arange(len(part.counts)), part.counts) for part in parts]
        query = np.concatenate(queries)
        keys = np.concatenate([part.keys for part in parts])
        counts = np.stack([part.counts for part in parts]).sum(axis=0)
        return cls(counts, keys[np.lexsort((keys, query))])


def keys_within(queries: Bytes, blocks: Iterable[Block], radius: int, limit: int) -> Finds:
    """Find all items within a radius; refuse when they are more than ``limit``."""
    prepared = words(queries)
    buffer = tile_buffer(prepared.shape[1])
    parts = [Finds(np.zeros(len(queries), np.int64), np.zeros(0, np.int64))]
    found = 0
    for rows, block in blocks:
        check_widths(queries, block)
        first_row, laid = _first(rows), columns(block)
        counts = np.zeros(len(queries), np.int64)
        within_kernel(prepared, laid, first_row, radius, counts, np.zeros(0, np.int64), buffer)
        found += (here := int(counts.sum()))
        check_finds(found, limit, radius)
        if here:
            keys = np.empty(here, np.int64)
            ends = np.cumsum(counts) - counts
            within_kernel(prepared, laid, first_row, radius, ends, keys, buffer)
            if not isinstance(rows, int):
                _renumber(keys, rows)
            parts.append(Finds(counts, keys))
    return Finds.join(parts)


def check_finds(found: int, limit: int, radius: int) -> None:
    """Refuse a range search whose result is larger than was allowed."""
    if found > limit:
        raise InputError(
            f"more than {limit} items lie within radius {radius} of the queries; the search was "
            "stopped",
            remedy=Remedy(
                "Use a smaller radius, fewer queries at a time or a larger {}",
                Argument("max_results"),
            ),
        )


def rows_of(keys: Ints) -> Ints:
    """Row numbers in keys."""
    return keys & (MAX_ROWS - 1)


def distances_of(keys: Ints) -> Ints:
    """Distances in keys."""
    return keys >> ROW_BITS
