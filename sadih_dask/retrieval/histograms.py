"""Per-query Hamming histograms: all that a ranking metric needs, in O(queries x bits).

Hamming distance has ``n_bits + 1`` values, so a ranking is known, up to the order inside a
distance, from two counts per distance: items, and relevant items. Histograms of database blocks
add up, which makes evaluation a reduction over a database of any size, without sorting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sadih_dask.arrays import Array, Bytes, Floats, Ints
from sadih_dask.errors import LabelError
from sadih_dask.learning.labels import LabelGroups
from sadih_dask.retrieval.hamming import distances

BLOCK_PAIRS = 2**22
"""Query-item pairs looked at together."""


@dataclass(frozen=True, eq=False)
class Histograms:
    """Counts per query and distance: relevant items and all items, (q, n_bits + 1)."""

    relevant: Ints
    total: Ints

    def merge(self, other: Histograms) -> Histograms:
        """Add the counts of another part of the database."""
        return Histograms(self.relevant + other.relevant, self.total + other.total)


def hamming_histograms(
    queries: Bytes,
    query_groups: tuple[LabelGroups, Ints],
    database: Bytes,
    database_groups: tuple[LabelGroups, Ints],
    n_bits: int,
    counts: Ints | None = None,
) -> Histograms:
    """Count database items by Hamming distance and relevance for every query.

    Groups come as a table of label sets and the set of each row; an item is relevant to a query
    when their label sets share a label. ``counts`` says how many items each database row stands
    for: with the codes and counts of label groups as the database the cost is queries x groups,
    whatever the size of the collection.
    """
    _check_rows(queries, query_groups, "queries")
    _check_rows(database, database_groups, "the database")
    weights = None if counts is None else counts.astype(np.float64)
    relevant = np.zeros((len(queries), n_bits + 1), np.int64)
    total = np.zeros_like(relevant)
    rows = max(1, BLOCK_PAIRS // max(len(database), 1))
    for start in range(0, len(queries), rows):
        part = slice(start, start + rows)
        distance = distances(queries[part], database)
        shares = _share_labels(query_groups, part, database_groups)
        total[part] = _count(distance, weights, n_bits)
        relevant[part] = _count(distance, shares if weights is None else shares * weights, n_bits)
    return Histograms(relevant, total)


def _check_rows(codes: Bytes, groups: tuple[LabelGroups, Ints], name: str) -> None:
    if len(codes) != len(groups[1]):
        raise LabelError(f"{name} hold {len(codes)} codes but {len(groups[1])} rows of labels")


def _share_labels(
    query_groups: tuple[LabelGroups, Ints], part: slice, database_groups: tuple[LabelGroups, Ints]
) -> Floats:
    """1.0 where a query of this part and a database row share a label, (q, n)."""
    (query_sets, query_ids), (database_sets, database_ids) = query_groups, database_groups
    present, local = np.unique(query_ids[part], return_inverse=True)
    common = (query_sets.matrix[present] @ database_sets.matrix.T).toarray() > 0
    return common[local.reshape(-1)][:, database_ids].astype(np.float64)


def _count(distance: Ints, weights: Array | None, n_bits: int) -> Ints:
    bins = n_bits + 1
    keys = distance + np.arange(len(distance))[:, None] * bins
    flat = None if weights is None else np.broadcast_to(weights, distance.shape).reshape(-1)
    counted = np.bincount(keys.reshape(-1), flat, minlength=len(distance) * bins)
    # Weighted counts are sums of integers in float64: exact below 2^53 items.
    return np.rint(counted).astype(np.int64).reshape(len(distance), bins)
