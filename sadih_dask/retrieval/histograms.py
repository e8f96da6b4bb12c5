"""Per-query Hamming histograms: all that a ranking metric needs, in O(queries x bits).

Hamming distance has ``n_bits + 1`` values, so a ranking is known, up to the order inside a
distance, from two counts per distance: items, and relevant items. Histograms of database blocks
add up, which makes evaluation a reduction over a database of any size, without sorting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sadih_dask.errors import InputError, LabelError
from sadih_dask.learning.labels import LabelGroups
from sadih_dask.retrieval.codes import check_packed, check_widths, columns, distances, words
from sadih_dask.types import Array, Bytes, Floats, Ints

BLOCK_PAIRS = 2**22
"""Query-item pairs looked at together in NumPy."""
FEW_PAIRS = 2**24
"""Up to so many pairs NumPy is done before the compiled loops are loaded (a second, 100 MiB)."""


@dataclass(frozen=True, eq=False)
class Histograms:
    """Counts per query and distance: relevant items and all items, (q, n_bits + 1)."""

    relevant: Ints
    total: Ints

    def merge(self, other: Histograms) -> Histograms:
        """Add the counts of another part of the database."""
        return Histograms(self.relevant + other.relevant, self.total + other.total)

    @classmethod
    def stack(cls, parts: Sequence[Histograms]) -> Histograms:
        """Histograms of several sets of queries, one behind the other."""
        return cls(
            np.concatenate([part.relevant for part in parts]),
            np.concatenate([part.total for part in parts]),
        )

    def take(self, queries: Array) -> Histograms:
        """Those of some queries."""
        return Histograms(self.relevant[queries], self.total[queries])

    def interleave(self, mine: Array, other: Histograms) -> Histograms:
        """Histograms of two sets of queries; ``mine`` says of each query whether it is one here."""
        place = np.argsort(np.argsort(~mine, kind="stable"), kind="stable")
        return Histograms.stack([self, other]).take(place)

    def __len__(self) -> int:
        return len(self.total)


def hamming_histograms(
    queries: Bytes,
    query_groups: tuple[LabelGroups, Ints],
    database: Bytes,
    database_groups: tuple[LabelGroups, Ints],
    n_bits: int,
    counts: Ints | None = None,
    *,
    compiled: bool | None = None,
) -> Histograms:
    """Count database items by Hamming distance and relevance for every query.

    Groups come as a table of label sets and the set of each row; an item is relevant to a query
    when their label sets share a label. ``counts`` says how many items each database row stands
    for. ``compiled`` chooses compiled loops or NumPy; by default what is done sooner if this is the
    only call.
    """
    _check_rows(queries, query_groups, "queries")
    _check_rows(database, database_groups, "the database")
    check_widths(queries, database)
    check_packed(queries, n_bits, "queries")
    if counts is not None and len(counts) != len(database):
        raise InputError(f"{len(counts)} counts were given for {len(database)} database rows")
    if compiled is None:
        compiled = len(queries) * len(database) > FEW_PAIRS
    count = _count_compiled if compiled else _count_in_numpy
    counted = count(queries, query_groups, database, database_groups, counts)
    if counted.total[:, n_bits + 1 :].any():
        raise InputError(
            f"codes differ in more than their {n_bits} bits; the spare bits of the last byte must "
            "be zero. Pack bits with sadih_dask.retrieval.codes.pack"
        )
    return Histograms(counted.relevant[:, : n_bits + 1], counted.total[:, : n_bits + 1])


def group_histograms(
    queries: Bytes,
    query_groups: tuple[LabelGroups, Ints],
    label_codes: Bytes,
    groups: LabelGroups,
    counts: Ints,
    n_bits: int,
) -> Histograms:
    """Count the rows of label groups, each with its group's code; costs queries x groups."""
    held = groups, np.arange(len(groups))
    return hamming_histograms(queries, query_groups, label_codes, held, n_bits, counts)


def histograms_within(
    codes: Bytes, groups: tuple[LabelGroups, Ints], asked: Ints, n_bits: int
) -> Histograms:
    """Look rows ``asked`` up among all rows but themselves."""
    sets, ids = groups
    found = hamming_histograms(codes[asked], (sets, ids[asked]), codes, groups, n_bits)
    found.total[:, 0] -= 1
    found.relevant[:, 0] -= 1
    return found


def ranked_histograms(scores: Floats, relevant: Array, counted: Array) -> Histograms:
    """Histograms of a ranking by real-valued scores, largest first: bins are distinct scores.

    All are (q, n): ``relevant`` says what a query looks for, ``counted`` which items there are.
    """
    q, n = scores.shape
    order = np.argsort(-scores, axis=1, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=1)
    bins = np.zeros((q, n), np.int64)
    np.cumsum(ranked[:, 1:] != ranked[:, :-1], axis=1, out=bins[:, 1:])
    total = np.take_along_axis(counted, order, axis=1).astype(np.float64)
    shares = np.take_along_axis(relevant & counted, order, axis=1).astype(np.float64)
    return Histograms(_bin(bins, shares, n), _bin(bins, total, n))


def _count_compiled(
    queries: Bytes,
    query_groups: tuple[LabelGroups, Ints],
    database: Bytes,
    database_groups: tuple[LabelGroups, Ints],
    counts: Ints | None,
) -> Histograms:
    """Count for all distances that the bytes allow."""
    from sadih_dask.retrieval.kernels import histogram_kernel, tile_buffer

    order = np.argsort(query_groups[1], kind="stable")
    prepared = np.ascontiguousarray(words(queries)[order])
    relevant = np.zeros((len(queries), 64 * prepared.shape[1] + 1), np.int64)
    total = np.zeros_like(relevant)
    sets, ids = database_groups
    holders = sets.matrix.tocsc()
    histogram_kernel(
        prepared,
        _int64(query_groups[1][order]),
        (_int64(query_groups[0].indptr), _int64(query_groups[0].indices)),
        columns(database),
        ids.astype(np.uint32),
        (_int64(holders.indptr), _int64(holders.indices)),
        np.zeros(sets.n_groups, np.uint8),
        np.zeros(0, np.int64) if counts is None else _int64(counts),
        relevant,
        total,
        tile_buffer(prepared.shape[1]),
    )
    back = np.argsort(order, kind="stable")
    return Histograms(relevant[back], total[back])


def _int64(values: Array) -> Ints:
    return np.ascontiguousarray(values, np.int64)


def _count_in_numpy(
    queries: Bytes,
    query_groups: tuple[LabelGroups, Ints],
    database: Bytes,
    database_groups: tuple[LabelGroups, Ints],
    counts: Ints | None,
) -> Histograms:
    """Count for all distances that the bytes allow."""
    weights = None if counts is None else counts.astype(np.float64)
    bins = 8 * queries.shape[1] + 1
    relevant = np.zeros((len(queries), bins), np.int64)
    total = np.zeros_like(relevant)
    classes = max(groups.n_classes for groups, _ in (query_groups, database_groups))
    asked, held = (g.widen(classes).matrix for g, _ in (query_groups, database_groups))
    rows = max(1, BLOCK_PAIRS // max(len(database), 1))
    for start in range(0, len(queries), rows):
        part = slice(start, start + rows)
        distance = distances(queries[part], database)
        present, local = np.unique(query_groups[1][part], return_inverse=True)
        common = (asked[present] @ held.T).toarray() > 0  # label sets that share a label
        shares = common[local.reshape(-1)][:, database_groups[1]].astype(np.float64)
        total[part] = _bin(distance, weights, bins)
        relevant[part] = _bin(distance, shares if weights is None else shares * weights, bins)
    return Histograms(relevant, total)


def _bin(distance: Ints, weights: Array | None, bins: int) -> Ints:
    keys = distance + np.arange(len(distance))[:, None] * bins
    flat = None if weights is None else np.broadcast_to(weights, distance.shape).reshape(-1)
    counted = np.bincount(keys.reshape(-1), flat, minlength=len(distance) * bins)
    # Weighted counts are sums of integers in float64: exact below 2^53 items.
    return np.rint(counted).astype(np.int64).reshape(len(distance), bins)


def _check_rows(codes: Bytes, groups: tuple[LabelGroups, Ints], name: str) -> None:
    sets, ids = groups
    if len(codes) != len(ids):
        raise LabelError(f"{name} hold {len(codes)} codes but {len(ids)} rows of labels")
    if len(ids) and not 0 <= ids.min() <= ids.max() < len(sets):
        raise LabelError(
            f"label groups of {name} are numbered {ids.min()} to {ids.max()}, but the table has "
            f"{len(sets)} groups"
        )
