"""Exact search over codes that may not fit in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from sadih_dask.compute.codes import DatabaseCodes, Where, open_codes
from sadih_dask.compute.run import Progress, reporting
from sadih_dask.compute.tree import Question, Result, reduce_pairs
from sadih_dask.errors import InputError
from sadih_dask.retrieval.codes import pack, unpack
from sadih_dask.retrieval.kernels import ROW_BITS
from sadih_dask.retrieval.nearest import (
    Finds,
    Neighbours,
    WithinRadius,
    bit_weights,
    check_finds,
    distances_of,
    keys_within,
    merge_keys,
    nearest_keys,
    rows_of,
    weighted_distances,
)
from sadih_dask.types import Array, BitOrder, Bytes, Ints

MAX_RESULTS = 50_000_000
NOTHING = np.iinfo(np.int64).max


@overload
def search(
    database: Any,
    queries: Any,
    k: int = ...,
    *,
    projections: Any = ...,
    where: Where | None = ...,
    bitorder: BitOrder | None = ...,
    progress: Progress | None = ...,
) -> Neighbours: ...


@overload
def search(
    database: Any,
    queries: Any,
    *,
    radius: int,
    max_results: int = ...,
    where: Where | None = ...,
    bitorder: BitOrder | None = ...,
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
    where: Where | None = None,
    bitorder: BitOrder | None = None,
    progress: Progress | None = None,
) -> Neighbours | WithinRadius:
    """Find the nearest items of each query by Hamming distance, ties by row order.

    ``database`` and ``queries`` are packed codes, uint8 (rows, bytes), or code stores; queries must
    fit in memory, the database need not. The result has the database's ids where it is a store
    with ids, and row numbers otherwise.

    ``k`` neighbours of each query are found (default 10), or all rows if there are fewer. With
    ``radius`` instead, all items up to that distance are; a search that finds more than
    ``max_results`` of them is stopped, and memory is a few times 8 bytes for each.

    ``projections``, the real-valued scores of the same queries (`SADIH.project`), weight the bits:
    those of which a query was certain count more. That finds better (`evaluate_model` says how much
    better, as "asymmetric"), as exactly, and costs a little more. Distances are then sums of the
    weights of the bits that differ, which are 1 on average.

    ``where`` confines the search to some rows, exactly, and compares no others: a mapping from
    "label" or "id" of a code store to a value, several of which any will do, or a range of whole
    numbers; rows must meet all of its conditions. Or it is one truth value for each row. Fewer than
    ``k`` such rows are all found.

    ``bitorder`` is that of codes in arrays, which may be left out where it is little. Stores know
    theirs: two that differ are compared bit by bit, as any others.
    """
    scores = None if projections is None else np.asarray(projections)
    n_bits = None if scores is None else scores.shape[-1]
    codes, packed = open_codes(database, queries, n_bits, bitorder, where)
    if radius is not None:
        if k is not None or scores is not None:
            raise InputError("give k or radius, not both; projections weight the bits of the k")
        if radius < 0:
            raise InputError(f"radius is {radius}; distances begin at 0")
        with reporting(progress):
            return _within(codes, packed, radius, max_results)
    k = 10 if k is None else k
    if k < 1:
        raise InputError(f"k is {k}; ask for at least one neighbour")
    question = Nearest(max(min(k, codes.n_rows), 1))
    weights = None if scores is None else _weights(codes, packed, scores)
    with reporting(progress):
        keys = np.concatenate(_ask(question, codes, packed, weights))
    rows = rows_of(keys)
    if weights is None:
        distances: Array = distances_of(keys).astype(np.int32)
    else:
        distances = weighted_distances(keys, weights, codes.n_bits)
    return Neighbours(rows, distances, _ids(codes, rows))


def rescore(
    database: Any, candidates: Any, k: int, *, projections: Any, bitorder: BitOrder | None = None
) -> Neighbours:
    """Order what another index has found by weighted bits, and keep the first ``k``.

    ``candidates`` (queries, oversampling x k) are row numbers of ``database``, as an index without
    ids finds them; -1 is nothing found. `search` needs no shortlist: it weights the bits of all
    rows, and this gives the same where the shortlist holds what that finds.
    """
    scores, rows = np.asarray(projections), np.asarray(candidates).astype(np.int64)
    codes, packed = open_codes(
        database, pack(scores, bitorder or "little"), scores.shape[-1], bitorder or "little"
    )
    weights = _weights(codes, packed, scores)
    if rows.shape[:1] != (len(packed),) or rows.ndim != 2 or not 1 <= k <= rows.shape[1]:
        raise InputError(
            f"candidates of shape {rows.shape} for {len(packed)} queries and k={k}: give each "
            "query a row of at least k"
        )
    if rows.size and not -1 <= rows.min() <= rows.max() < codes.n_rows:
        raise InputError(f"candidates are not rows of {codes.n_rows:,} codes; leave ids out")
    wanted, places = np.unique(rows.clip(min=0), return_inverse=True)
    taken = unpack(codes.take(wanted), codes.n_bits)[places.reshape(rows.shape)]
    differ = taken != unpack(packed, codes.n_bits)[:, None]
    sums = np.einsum("qmb,qb->qm", differ, weights[:, : codes.n_bits], dtype=np.int64)
    keys = np.sort(np.where(rows < 0, NOTHING, (sums << ROW_BITS) | rows), axis=1)[:, :k]
    found, none = rows_of(keys), keys == NOTHING
    if none.any():
        raise InputError(
            f"query {int(none.any(axis=1).argmax())} has fewer than k={k} candidates; look into "
            "more lists of the index"
        )
    return Neighbours(found, weighted_distances(keys, weights, codes.n_bits), _ids(codes, found))


def _weights(database: DatabaseCodes, queries: Bytes, scores: Array) -> Ints:
    """Weights of bits, after a check that the scores are those of the queries."""
    if scores.shape != (len(queries), database.n_bits):
        raise InputError(
            f"projections have shape {scores.shape}; {len(queries)} queries of "
            f"{database.n_bits} bits have ({len(queries)}, {database.n_bits})"
        )
    if not np.isfinite(scores).all():
        raise InputError("projections hold values that are not finite")
    if not np.array_equal(pack(scores), queries):
        raise InputError("projections are not those of the queries: their signs are other bits")
    return bit_weights(scores)


@dataclass(frozen=True)
class Nearest:
    """The question for the ``k`` first rows."""

    k: int

    @property
    def bytes_per_query(self) -> int:
        """Size of a partial result."""
        return 8 * self.k

    def answer(
        self, database: DatabaseCodes, queries: tuple[Bytes, Ints | None], start: int, stop: int
    ) -> Ints:
        """Smallest keys over rows ``[start, stop)``."""
        codes, weights = queries
        return nearest_keys(codes, database.selected(start, stop), self.k, weights)

    def merge(self, one: Ints, other: Ints) -> Ints:
        """Smallest keys of two ranges."""
        return merge_keys([one, other], self.k)


@dataclass(frozen=True)
class Within:
    """The question for all rows within a radius, refused when they are more than the limit."""

    radius: int
    limit: int

    bytes_per_query = 1  # what is found decides, and the limit bounds that

    def answer(
        self, database: DatabaseCodes, queries: tuple[Bytes, Ints | None], start: int, stop: int
    ) -> Finds:
        """Finds in rows ``[start, stop)``."""
        return keys_within(queries[0], database.selected(start, stop), self.radius, self.limit)

    def merge(self, one: Finds, other: Finds) -> Finds:
        """Finds in two ranges."""
        check_finds(len(one.keys) + len(other.keys), self.limit, self.radius)
        return Finds.join([one, other])


def _within(database: DatabaseCodes, queries: Bytes, radius: int, limit: int) -> WithinRadius:
    parts = _ask(Within(radius, limit), database, queries)
    counts = np.concatenate([part.counts for part in parts])
    check_finds(int(counts.sum()), limit, radius)
    keys = np.concatenate([part.keys for part in parts])
    lims = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    rows = rows_of(keys)
    distances = distances_of(keys).astype(np.int32)
    return WithinRadius(radius, lims, rows, distances, _ids(database, rows))


def _ask(
    question: Question[tuple[Bytes, Ints | None], Result],
    database: DatabaseCodes,
    queries: Bytes,
    weights: Ints | None = None,
) -> list[Result]:
    def cut(block: range) -> tuple[Bytes, Ints | None]:
        part = slice(block.start, block.stop)
        return queries[part], None if weights is None else weights[part]

    return reduce_pairs(question, database, len(queries), cut)


def _ids(database: DatabaseCodes, rows: Ints) -> Array:
    """Ids of rows where the store has ids, else the row numbers."""
    store = database.store
    if store is None or "ids" not in store.arrays:
        return rows
    wanted, places = np.unique(rows, return_inverse=True)
    return store.take("ids", wanted)[places.reshape(rows.shape)]
