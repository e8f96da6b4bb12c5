"""Exact search over codes that may not fit in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from sadih_dask.compute.codes import StoreCodes, StoredCodes, open_database, read_queries
from sadih_dask.compute.run import Progress
from sadih_dask.compute.tree import Question, Result, reduce_pairs
from sadih_dask.errors import InputError
from sadih_dask.retrieval.nearest import (
    Finds,
    Neighbours,
    WithinRadius,
    asymmetric_order,
    check_finds,
    distances_of,
    keys_within,
    merge_keys,
    nearest_keys,
    rows_of,
)
from sadih_dask.stores import CodeStore
from sadih_dask.types import Array, Bytes, Ints

MAX_RESULTS = 50_000_000


@overload
def search(
    database: Any,
    queries: Any,
    k: int = ...,
    *,
    projections: Any = ...,
    candidates: int | None = ...,
    progress: Progress | None = ...,
) -> Neighbours: ...


@overload
def search(
    database: Any,
    queries: Any,
    *,
    radius: int,
    max_results: int = ...,
    progress: Progress | None = ...,
) -> WithinRadius: ...


def search(
    database: Any,
    queries: Any,
    k: int | None = None,
    *,
    radius: int | None = None,
    max_results: int = MAX_RESULTS,
    projections: Any = None,
    candidates: int | None = None,
    progress: Progress | None = None,
) -> Neighbours | WithinRadius:
    """Find the nearest items of each query by Hamming distance, ties by row order.

    ``database`` and ``queries`` are packed codes, uint8 (rows, bytes), or code stores; queries must
    fit in memory, the database need not. The result has the database's ids where it is a store
    with ids, and row numbers otherwise.

    ``k`` neighbours of each query are found (default 10), or all rows if there are fewer. With
    ``radius`` instead, all items up to that distance are; a search that finds more than
    ``max_results`` of them is stopped, and memory is a few times 8 bytes for each.

    ``projections``, the real-valued scores of the same queries (`SADIH.project`), re-rank the first
    ``candidates`` (default 10 k) by inner product with their codes and keep the first ``k``; the
    distances are still Hamming distances.
    """
    scores = None if projections is None else np.asarray(projections)
    codes = open_database(database, None if scores is None else scores.shape[-1])
    packed = read_queries(queries, codes)
    if radius is not None:
        if k is not None or scores is not None:
            raise InputError("give k or radius, not both; projections re-rank the first k")
        if radius < 0:
            raise InputError(f"radius is {radius}; distances begin at 0")
        return _within(codes, packed, radius, max_results, progress)
    k = 10 if k is None else k
    if k < 1:
        raise InputError(f"k is {k}; ask for at least one neighbour")
    if scores is None:
        if candidates is not None:
            raise InputError("candidates are re-ranked by projections; give both or neither")
        return _named(codes, _nearest(codes, packed, k, progress))
    found = _nearest(codes, packed, max(k, 10 * k if candidates is None else candidates), progress)
    return _named(codes, _rerank(codes, found, scores)[:, :k])


@dataclass(frozen=True)
class Nearest:
    """The question for the ``k`` first rows."""

    k: int

    @property
    def bytes_per_query(self) -> int:
        """Size of a partial result."""
        return 8 * self.k

    def answer(self, database: StoredCodes, queries: Bytes, start: int, stop: int) -> Ints:
        """Smallest keys over rows ``[start, stop)``."""
        return nearest_keys(queries, database.blocks(start, stop), self.k)

    def merge(self, parts: list[Ints]) -> Ints:
        """Smallest keys of several ranges."""
        return merge_keys(parts, self.k)


@dataclass(frozen=True)
class Within:
    """The question for all rows within a radius, refused when they are more than the limit."""

    radius: int
    limit: int

    bytes_per_query = 1  # what is found decides, and the limit bounds that

    def answer(self, database: StoredCodes, queries: Bytes, start: int, stop: int) -> Finds:
        """Finds in rows ``[start, stop)``."""
        return keys_within(queries, database.blocks(start, stop), self.radius, self.limit)

    def merge(self, parts: list[Finds]) -> Finds:
        """Finds in several ranges."""
        check_finds(sum(len(part.keys) for part in parts), self.limit, self.radius)
        return Finds.join(parts)


def _nearest(database: StoredCodes, queries: Bytes, k: int, progress: Progress | None) -> Ints:
    """Smallest keys of all queries, (q, k)."""
    question = Nearest(max(min(k, database.n_rows), 1))
    return np.concatenate(_ask(question, database, queries, progress))


def _within(
    database: StoredCodes, queries: Bytes, radius: int, limit: int, progress: Progress | None
) -> WithinRadius:
    parts = _ask(Within(radius, limit), database, queries, progress)
    counts = np.concatenate([part.counts for part in parts])
    check_finds(int(counts.sum()), limit, radius)
    keys = np.concatenate([part.keys for part in parts])
    lims = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    rows = rows_of(keys)
    distances = distances_of(keys).astype(np.int32)
    return WithinRadius(radius, lims, rows, distances, _ids(database, rows))


def _ask(
    question: Question[Bytes, Result],
    database: StoredCodes,
    queries: Bytes,
    progress: Progress | None,
) -> list[Result]:
    def cut(block: range) -> Bytes:
        return queries[block.start : block.stop]

    return reduce_pairs(question, database, len(queries), cut, progress)


def _rerank(database: StoredCodes, keys: Ints, projections: Array) -> Ints:
    """Keys in the order of inner products; the candidates' codes are read once."""
    rows = rows_of(keys)
    wanted = np.unique(rows)
    if isinstance(database, StoreCodes):
        codes = database.store.take("codes", wanted)
    else:
        codes = database.codes[wanted]
    if projections.shape != (len(keys), database.n_bits):
        raise InputError(
            f"projections have shape {projections.shape}; {len(keys)} queries of "
            f"{database.n_bits} bits have ({len(keys)}, {database.n_bits})"
        )
    return np.take_along_axis(keys, asymmetric_order(projections, rows, codes, wanted), axis=1)


def _named(database: StoredCodes, keys: Ints) -> Neighbours:
    rows = rows_of(keys)
    return Neighbours(rows, distances_of(keys).astype(np.int32), _ids(database, rows))


def _ids(database: StoredCodes, rows: Ints) -> Array:
    """Ids of rows where the store has ids, else the row numbers."""
    if not isinstance(database, StoreCodes) or "ids" not in database.store.arrays:
        return rows
    store: CodeStore = database.store
    wanted, places = np.unique(rows, return_inverse=True)
    return store.take("ids", wanted)[places.reshape(rows.shape)]
