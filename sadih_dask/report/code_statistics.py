"""What a report shows of codes: how often bits are set, and what a few queries find, in pictures.

Both come from one pass over the database codes, on threads or on a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sadih_dask.compute.codes import DatabaseCodes
from sadih_dask.compute.run import Progress, reporting
from sadih_dask.compute.tree import reduce_pairs
from sadih_dask.errors import InputError
from sadih_dask.model.estimator import Hasher
from sadih_dask.retrieval.codes import n_bytes, unpack
from sadih_dask.retrieval.nearest import (
    Neighbours,
    distances_of,
    merge_keys,
    nearest_keys,
    rows_of,
)
from sadih_dask.stores import FeatureStore
from sadih_dask.types import Array, Bytes, Floats, Ints

N_PICTURED = 6
N_FOUND = 10
BUCKET_ROWS, HASHED_ROWS = 1 << 20, 1 << 14
"""Codes among which equal ones are counted: those on file, and those that are hashed for it."""
SEARCHED = 100


@dataclass(frozen=True, eq=False)
class BitCounts:
    """How often bits are set, alone and in pairs: mergeable over blocks of codes.

    n_rows  codes counted
    ones    (n_bits,)         codes in which a bit is set
    both    (n_bits, n_bits)  codes in which two bits are set
    """

    n_rows: int
    ones: Ints
    both: Ints

    @classmethod
    def of_block(cls, packed: Bytes, n_bits: int) -> BitCounts:
        """Count one block of packed codes; O(rows n_bits^2)."""
        ones, both = np.zeros(n_bits, np.int64), np.zeros((n_bits, n_bits), np.int64)
        # float32 products run at BLAS speed and are exact up to 2^24 rows.
        for start in range(0, len(packed), 1 << 16):
            bits = unpack(packed[start : start + (1 << 16)], n_bits).astype(np.float32)
            ones += bits.sum(axis=0).astype(np.int64)
            both += (bits.T @ bits).astype(np.int64)
        return cls(len(packed), ones, both)

    @classmethod
    def learned(cls, model: Hasher) -> BitCounts:
        """Count the rows that a model was learned from, each with the code of its labels."""
        bits = unpack(model.label_codes_, model.hash_function_.n_bits).astype(np.int64)
        counts = np.ones(len(bits), np.int64)
        if model.statistics_ is not None:
            counts = model.statistics_.counts.astype(np.int64)
        weighted = bits * counts[:, None]
        return cls(int(counts.sum()), weighted.sum(axis=0), bits.T @ weighted)

    def merge(self, other: BitCounts) -> BitCounts:
        """Cover the codes of both."""
        return BitCounts(self.n_rows + other.n_rows, self.ones + other.ones, self.both + other.both)

    @property
    def balance(self) -> Floats:
        """Share of codes in which each bit is set, (n_bits,); NaN without codes."""
        return self.ones / self.n_rows if self.n_rows else np.full(len(self.ones), np.nan)

    @property
    def constant(self) -> Ints:
        """Numbers of the bits that are the same in all codes: they tell nothing apart."""
        return np.flatnonzero((self.ones == 0) | (self.ones == self.n_rows))

    @property
    def correlation(self) -> Floats:
        """Pearson correlation of every two bits; NaN where one of them is constant."""
        p = self.balance
        deviation = np.sqrt(p * (1 - p))
        with np.errstate(divide="ignore", invalid="ignore"):
            found = (self.both / self.n_rows - np.outer(p, p)) / np.outer(deviation, deviation)
        return np.where(np.outer(deviation > 0, deviation > 0), np.clip(found, -1, 1), np.nan)


@dataclass(frozen=True)
class Buckets:
    """Codes that are identical, and how long it takes to search among all.

    n_rows      codes that were looked at, the first of many
    n_distinct  different ones
    largest     rows that share the most frequent one
    seconds     of finding 10 neighbours of a query, on one thread of this machine
    """

    n_rows: int
    n_distinct: int
    largest: int
    seconds: float

    @classmethod
    def of(cls, codes: DatabaseCodes, *, hashed: bool = False) -> Buckets | None:
        """Look at the first codes, fewer if they have to be ``hashed``; None if there are none."""
        most = HASHED_ROWS if hashed else BUCKET_ROWS
        parts = [block for _, block in codes.blocks(0, min(codes.n_rows, most))]
        if not parts:
            return None
        packed = np.ascontiguousarray(np.concatenate(parts))
        words = packed.view(np.dtype((np.void, packed.shape[1]))).reshape(-1)
        _, sizes = np.unique(words, return_counts=True)
        asked = packed[:: max(1, len(packed) // SEARCHED)][:SEARCHED]
        nearest_keys(asked[:1], [(0, packed[:1])], 1)  # compiled, or loaded, before it is timed
        began = time.perf_counter()
        nearest_keys(asked, [(0, packed)], min(N_FOUND, len(packed)))
        seconds = (time.perf_counter() - began) / len(asked)
        return cls(len(packed), len(sizes), int(sizes.max()), seconds)


def shares(counts: Array) -> Floats:
    """Counts as parts of their sum; zeros where there is nothing."""
    values = np.asarray(counts, np.float64)
    return values / max(float(values.sum()), 1.0)


def gather(
    database: DatabaseCodes, queries: Bytes, *, k: int = N_FOUND, progress: Progress | None = None
) -> tuple[BitCounts, Neighbours]:
    """Count bits and find the nearest rows of a few queries, or of none, in one pass."""
    question = _BitsAndNearest(database.n_bits, min(k, database.n_rows))
    # All queries in one block: every further one would hash the rows again.
    with reporting(progress):
        ((bits, keys),) = reduce_pairs(question, database, 1, lambda _: queries)
    rows = rows_of(keys)
    return bits, Neighbours(rows, distances_of(keys), rows)


@dataclass(frozen=True)
class _BitsAndNearest:
    n_bits: int
    k: int

    bytes_per_query = 1

    def answer(
        self, database: DatabaseCodes, queries: Bytes, start: int, stop: int
    ) -> tuple[BitCounts, Ints]:
        counted = [BitCounts.of_block(np.zeros((0, n_bytes(self.n_bits)), np.uint8), self.n_bits)]

        def blocks() -> Iterator[tuple[int, Bytes]]:
            for row, codes in database.blocks(start, stop):
                counted.append(counted.pop().merge(BitCounts.of_block(codes, self.n_bits)))
                yield row, codes

        keys = nearest_keys(queries, blocks(), self.k)
        return counted[0], keys

    def merge(
        self, one: tuple[BitCounts, Ints], other: tuple[BitCounts, Ints]
    ) -> tuple[BitCounts, Ints]:
        return one[0].merge(other[0]), merge_keys((one[1], other[1]), self.k)


def spread_of(average_precision: Floats, n: int = N_PICTURED) -> Ints:
    """Pick queries from the worst to the best average precision, evenly over their order.

    >>> spread_of(np.array([0.5, 0.1, 0.9, np.nan, 0.7]), 3)
    array([1, 0, 2])
    """
    order = np.argsort(average_precision, kind="stable")  # NaN last
    known = order[: int(np.isfinite(average_precision).sum())]
    places = np.linspace(0, len(known) - 1, min(n, len(known)))
    return known[np.round(places).astype(np.int64)]


@dataclass(frozen=True, eq=False)
class NeighbourPictures:
    """Query pictures and the pictures of their nearest neighbours, nearest first.

    queries     (q, h, w) or (q, h, w, 3) uint8
    pictures    (q, k, h, w) or (q, k, h, w, 3) uint8
    relevant    (q, k) whether a neighbour shares a label with its query
    distances   (q, k) Hamming distances
    names       q names of what the queries show
    found       q rows of k names of what the neighbours show
    """

    queries: Bytes
    pictures: Bytes
    relevant: Array
    distances: Ints
    names: tuple[str, ...]
    found: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        size = self.queries.shape[1:]
        if self.pictures.shape[2:] != size or size[2:] not in ((), (3,)):
            raise InputError(
                f"pictures have shapes {self.queries.shape} (queries) and {self.pictures.shape} "
                "(neighbours); expected (q, h, w) and (q, k, h, w), or the same with 3 colours last"
            )


def pictured(
    queries: Any, chosen: Ints, database: Any, found: Neighbours, class_names: Sequence[str] = ()
) -> NeighbourPictures:
    """Pictures of chosen queries and of the rows that were found for them, right ones known.

    Both are stores with thumbnails and labels, or pairs of arrays: pictures and labels.
    """
    q, k = found.rows.shape
    pictures, held = _pictures_of(database, found.rows.reshape(-1))
    shown, asked = _pictures_of(queries, chosen)
    held = held.reshape(q, k, *held.shape[1:])
    relevant = held == asked[:, None]
    if asked.ndim == 2:
        relevant = (held.astype(bool) & asked[:, None].astype(bool)).any(axis=2)
    return NeighbourPictures(
        shown,
        pictures.reshape(q, k, *pictures.shape[1:]),
        relevant,
        found.distances,
        tuple(_named(labels, class_names) for labels in asked),
        tuple(tuple(_named(labels, class_names) for labels in row) for row in held),
    )


def _pictures_of(rows: Any, places: Ints) -> tuple[Bytes, Array]:
    """Pictures and labels of some rows."""
    if isinstance(rows, FeatureStore):
        return rows.take("thumbnails", places), rows.take("labels", places)
    pictures, labels = (np.asarray(part)[places] for part in rows)
    return pictures, labels


def _named(labels: Any, class_names: Sequence[str]) -> str:
    """Names of a row's classes; numbers where there are none."""
    if not np.ndim(labels) and not np.issubdtype(np.asarray(labels).dtype, np.integer):
        return str(labels)
    numbers = [int(n) for n in (np.flatnonzero(labels) if np.ndim(labels) else [labels])]
    return ", ".join(class_names[n] if n < len(class_names) else str(n) for n in numbers)
