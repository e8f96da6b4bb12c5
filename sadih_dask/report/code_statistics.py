"""What a report shows of database codes, from one pass over them: bits, and what queries find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sadih_dask.compute.codes import DatabaseCodes
from sadih_dask.compute.run import Progress
from sadih_dask.compute.tree import reduce_pairs
from sadih_dask.model.estimator import SADIH
from sadih_dask.report.measurements import BitCounts, Neighbours
from sadih_dask.retrieval.codes import distances, unpack
from sadih_dask.retrieval.nearest import Neighbours as NearestRows
from sadih_dask.types import Array, Bytes, Floats, Ints

N_PICTURED = 6
N_FOUND = 10
PIECE_ROWS = 2**17
"""Rows that queries are compared with at a time; there are few queries."""


class PicturedRows(Protocol):
    """Rows with ``thumbnails`` and ``labels``; a `FeatureStore` that has both is one."""

    def take(self, name: str, rows: Any, /) -> Array:
        """Return single rows of an array."""


@dataclass(frozen=True, eq=False)
class ArrayPictures:
    """The same in memory: pictures (n, h, w) or (n, h, w, 3) of uint8, and labels."""

    thumbnails: Bytes
    labels: Array

    def take(self, name: str, rows: Any, /) -> Array:
        """Return single rows of an array."""
        found: Array = getattr(self, name)[rows]
        return found


@dataclass(frozen=True, eq=False)
class Glance:
    """Counts of bits, and the nearest rows of a few queries, (q, k), with their distances."""

    bits: BitCounts
    rows: Ints
    distances: Ints


def glance(
    database: DatabaseCodes, queries: Bytes, *, k: int = N_FOUND, progress: Progress | None = None
) -> Glance:
    """Pass over the codes once, on threads or on a cluster.

    ``queries`` are a few packed codes, or none at all. Ties in distance are ordered by row.
    """
    look = _Look(database.n_bits, max(1, database.n_rows), min(k, database.n_rows))
    # All queries in one block: every further one would hash the rows again.
    (found,) = reduce_pairs(look, database, 1, lambda _: queries, progress)
    return Glance(found.bits, found.keys % look.n_rows, found.keys // look.n_rows)


@dataclass(frozen=True, eq=False)
class _Seen:
    """Partial result; a key is distance x n_rows + row."""

    bits: BitCounts
    keys: Ints


@dataclass(frozen=True)
class _Look:
    n_bits: int
    n_rows: int
    k: int

    bytes_per_query = 1

    def answer(self, database: DatabaseCodes, queries: Bytes, start: int, stop: int) -> _Seen:
        seen = _Seen(_no_bits(self.n_bits), np.zeros((len(queries), 0), np.int64))
        for row, block in database.blocks(start, stop):
            for first in range(0, len(block), PIECE_ROWS):
                codes = block[first : first + PIECE_ROWS]
                rows = row + first + np.arange(len(codes))
                keys = distances(queries, codes) * self.n_rows + rows
                seen = self.merge([seen, _Seen(BitCounts.of_block(codes, self.n_bits), keys)])
        return seen

    def merge(self, parts: Sequence[_Seen]) -> _Seen:
        bits = parts[0].bits
        for part in parts[1:]:
            bits = bits.merge(part.bits)
        return _Seen(bits, self._first([part.keys for part in parts]))

    def _first(self, keys: list[Ints]) -> Ints:
        joined = np.concatenate(keys, axis=1)
        if joined.shape[1] > self.k:
            joined = np.partition(joined, self.k - 1, axis=1)[:, : self.k]
        return np.sort(joined, axis=1)


def _no_bits(n_bits: int) -> BitCounts:
    return BitCounts(0, np.zeros(n_bits, np.int64), np.zeros((n_bits, n_bits), np.int64))


def learned_bits(model: SADIH) -> BitCounts:
    """Bits of the codes of the rows that were learned from, each with the code of its labels."""
    bits = unpack(model.label_codes_, model.hash_function_.n_bits).astype(np.int64)
    counts = np.ones(len(bits), np.int64)
    if model.statistics_ is not None:
        counts = model.statistics_.counts.astype(np.int64)
    weighted = bits * counts[:, None]
    return BitCounts(int(counts.sum()), weighted.sum(axis=0), bits.T @ weighted)


def spread_of(average_precision: Floats, n: int = N_PICTURED) -> Ints:
    """Pick queries from the worst to the best average precision, evenly over their order.

    >>> spread_of(np.array([0.5, 0.1, 0.9, np.nan, 0.7]), 3)
    array([1, 0, 2])
    """
    order = np.argsort(average_precision, kind="stable")  # NaN last
    known = order[: int(np.isfinite(average_precision).sum())]
    places = np.linspace(0, len(known) - 1, min(n, len(known)))
    return known[np.round(places).astype(np.int64)]


def pictured(
    queries: PicturedRows,
    chosen: Ints,
    database: PicturedRows,
    found: Glance | NearestRows,
    class_names: Sequence[str] = (),
) -> Neighbours:
    """Pictures of chosen queries and of the rows that were found for them, right ones known."""
    q, k = found.rows.shape
    nearest = found.rows.reshape(-1)
    pictures = database.take("thumbnails", nearest)
    asked, held = queries.take("labels", chosen), database.take("labels", nearest)
    held = held.reshape(q, k, *held.shape[1:])
    relevant = held == asked[:, None]
    if asked.ndim == 2:
        relevant = (held.astype(bool) & asked[:, None].astype(bool)).any(axis=2)
    return Neighbours(
        queries.take("thumbnails", chosen),
        pictures.reshape(q, k, *pictures.shape[1:]),
        relevant,
        found.distances,
        tuple(_named(labels, class_names) for labels in asked),
        tuple(tuple(_named(labels, class_names) for labels in row) for row in held),
    )


def _named(labels: Any, class_names: Sequence[str]) -> str:
    """Names of a row's classes; numbers where there are none."""
    numbers = [int(n) for n in (np.flatnonzero(labels) if np.ndim(labels) else [labels])]
    names = [class_names[n] if n < len(class_names) else str(n) for n in numbers]
    return ", ".join(names)
