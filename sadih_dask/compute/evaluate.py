"""Evaluation over databases of any size: histograms as a reduction over blocks of rows.

Counts are integers and add up in any order, so results are the same for any chunking, on threads
and on a cluster. Memory is O(queries x bits) for the result, and a bounded number of partial
results for blocks of queries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sadih_dask.compute.codes import DatabaseCodes, open_codes
from sadih_dask.compute.encode import check_rows
from sadih_dask.compute.rows import ArrayLabels, Groups, Labels, open_labels
from sadih_dask.compute.run import Progress, reporting
from sadih_dask.compute.tree import reduce_pairs
from sadih_dask.errors import InputError, LabelError
from sadih_dask.retrieval.evaluation import CURVE_LENGTH, CUTOFFS, RADIUS, Evaluation
from sadih_dask.retrieval.histograms import FEW_PAIRS, Histograms, hamming_histograms
from sadih_dask.types import BitOrder, Bytes, Ints


def evaluate(
    database: Any,
    queries: Any,
    database_labels: Any,
    query_labels: Any,
    *,
    counts: Any = None,
    n_bits: int | None = None,
    bitorder: BitOrder | None = None,
    cutoffs: Iterable[int] = CUTOFFS,
    radius: int = RADIUS,
    curve_length: int = CURVE_LENGTH,
    progress: Progress | None = None,
) -> Evaluation:
    """Retrieval quality of codes: an item is relevant to a query when they share a label.

    ``database`` and ``queries`` are packed codes, uint8 (rows, bytes), or code stores; labels are
    arrays (one class a row, or multi-hot) or the feature stores that hold them, in the same order
    of rows. Queries must fit in memory, the database need not.

    ``counts`` says how many items each database row stands for. With the codes of label groups,
    their label sets and their counts as the database (`SADIH.label_codes_`, `label_groups_`,
    `statistics_.counts`) the cost does not depend on the number of rows.

    ``n_bits`` is the length of codes in arrays, if it is not 8 bits a byte, and ``bitorder`` how
    they are packed, if not in little bit order; stores know both. ``cutoffs`` are the k
    of MAP@k, precision@k, recall@k and NDCG@k.
    """
    check_rows(database, database_labels)
    check_rows(queries, query_labels)
    codes, packed = open_codes(database, queries, n_bits, bitorder)
    labels, asked = open_labels(database_labels, query_labels)
    weights = None if counts is None else np.asarray(counts)
    with reporting(progress):
        histograms = compare(codes, labels, packed, asked, weights)
    return Evaluation.of(histograms, cutoffs=cutoffs, radius=radius, curve_length=curve_length)


def compare(
    codes: DatabaseCodes,
    labels: Labels,
    queries: Bytes,
    query_labels: ArrayLabels,
    counts: Ints | None = None,
    drawn: Ints | None = None,
    known: Counted | None = None,
) -> Histograms:
    """Histograms of all queries, or of those at the numbers ``drawn``, over the whole database.

    What is ``known`` of them is added to: only other rows, and other queries, are looked at.
    """
    _check(codes, labels, counts, queries, query_labels)
    asked = np.arange(len(queries)) if drawn is None else drawn

    def count(numbers: Ints, first: int) -> Histograms:
        some = queries[numbers]
        their_labels = replace(query_labels, ids=query_labels.ids[numbers])

        def cut(block: range) -> tuple[Bytes, Groups]:
            return some[block.start : block.stop], their_labels.between(block.start, block.stop)

        compiled = len(some) * (codes.n_rows - first) > FEW_PAIRS
        question = Count(codes.n_bits, labels, counts, compiled)
        return Histograms.stack(reduce_pairs(question, codes, len(some), cut, first))

    if known is None:
        return count(asked, 0)
    again = np.isin(asked, known.queries)
    new, old = count(asked[~again], 0), count(asked[again], known.n_rows)
    before = np.isin(known.queries, asked)
    return new.interleave(~again, old.merge(known.histograms.take(before)))


@dataclass(frozen=True, eq=False)
class Counted:
    """Histograms of queries, by their ascending numbers, over the first rows of a database."""

    queries: Ints
    n_rows: int
    histograms: Histograms


@dataclass(frozen=True, eq=False)
class Count:
    """The question for histograms.

    labels  of the database rows; those in memory go to the codes of a store
    counts  how many items each row stands for, if not one
    """

    n_bits: int
    labels: Labels
    counts: Ints | None
    compiled: bool

    @property
    def bytes_per_query(self) -> int:
        """Size of a partial result."""
        return self.bytes_of(self.n_bits)

    @staticmethod
    def bytes_of(n_bits: int) -> int:
        """The same, of codes of that length."""
        return 16 * (n_bits + 1)

    def answer(
        self, database: DatabaseCodes, queries: tuple[Bytes, Groups], start: int, stop: int
    ) -> Histograms:
        """Histograms over rows ``[start, stop)``."""
        codes, groups = queries
        shape = (len(codes), self.n_bits + 1)
        relevant, total = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        labels = self.labels.blocks(start, stop, database.block_rows)
        for (row, block), held in zip(database.blocks(start, stop), labels, strict=True):
            counts = None if self.counts is None else self.counts[row : row + len(block)]
            found = hamming_histograms(
                codes, groups, block, held, self.n_bits, counts, compiled=self.compiled
            )
            relevant += found.relevant
            total += found.total
        return Histograms(relevant, total)

    def merge(self, one: Histograms, other: Histograms) -> Histograms:
        """Sum of two ranges."""
        return one.merge(other)


def _check(
    codes: DatabaseCodes,
    labels: Labels,
    counts: Ints | None,
    queries: Bytes,
    query_labels: ArrayLabels,
) -> None:
    for n_rows, n_labels, what in (
        (codes.n_rows, labels.n_rows, "the database"),
        (len(queries), query_labels.n_rows, "queries"),
    ):
        if n_rows != n_labels:
            raise LabelError(
                f"{what} hold {n_rows} codes but {n_labels} rows of labels; both must describe the "
                "same rows"
            )
    if counts is not None:
        if len(counts) != codes.n_rows or counts.dtype.kind not in "iu":
            raise InputError(
                f"counts have shape {counts.shape} and type {counts.dtype}; expected "
                f"{codes.n_rows} integers, one for each database row"
            )
        if not codes.local:
            raise InputError("counts belong to codes in memory, such as those of label groups")
