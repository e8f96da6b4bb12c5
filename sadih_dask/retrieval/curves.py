"""Curves over a ranking, averaged over queries, exact under ties (see `metrics`)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sadih_dask.arrays import Floats, Ints
from sadih_dask.retrieval.histograms import Histograms
from sadih_dask.retrieval.metrics import Ties

RECALL_GRID = np.linspace(0.0, 1.0, 101)
QUERY_BLOCK = 1024
"""Queries whose curves are computed together: 8 MiB at 1,000 points."""


def precision_curve(histograms: Histograms, k: int = 1000) -> Floats:
    """Mean precision@1, @2, ... @k; shorter if the database is.

    The expected number of relevant items among the first x, for any real x, is the straight line
    between the corners (T, R) of the ties, so a whole curve costs one interpolation a query.
    """
    items = int(histograms.total.sum(axis=1).max(initial=0))
    cutoffs = np.arange(1, min(k, items) + 1)
    total = np.zeros(len(cutoffs))
    for block in _corners(histograms):
        for T, R in zip(*block, strict=True):
            total += np.interp(cutoffs, T, R) / cutoffs
    return total / max(len(histograms), 1)


def recall_curve(histograms: Histograms, cutoffs: Ints) -> Floats:
    """Mean recall at each cutoff, over the queries that have a relevant item."""
    total, known = np.zeros(len(cutoffs)), 0
    for block in _corners(histograms):
        for T, R in zip(*block, strict=True):
            if R[-1] > 0:
                total += np.interp(cutoffs, T, R) / R[-1]
                known += 1
    return total / known if known else np.full(len(cutoffs), np.nan)


def precision_recall_curve(histograms: Histograms, recall: Floats = RECALL_GRID) -> Floats:
    """Mean precision at each level of recall, over the queries that have a relevant item.

    For one query and a level ρ the ranking is cut at the first place k whose expected recall is
    at least ρ, and the value is the expected precision there, R(k)/k with R(k) the expected number
    of relevant items among the first k. Within a tie R(k) = R + (k - T) r/t, so with m relevant
    items wanted, k = ceil(T + (m - R) t/r). Without ties this is the usual precision at the place
    of the m-th relevant item; level 0 is the precision of the first item.
    """
    total, known = np.zeros(len(recall)), 0
    for block in _corners(histograms):
        for T, R in zip(*block, strict=True):
            if R[-1] > 0:
                total += _precisions(T, R, recall)
                known += 1
    return total / known if known else np.full(len(recall), np.nan)


def _precisions(T: Floats, R: Floats, recall: Floats) -> Floats:
    """Precision of one query at each level, from the corners of its ties."""
    rising = np.concatenate([[True], np.diff(R) > 0])  # ties without relevant items are crossed
    wanted = recall * R[-1]
    end = np.searchsorted(R[rising], wanted - 1e-9 * R[-1])
    ends = np.flatnonzero(rising)[end]
    begins = np.maximum(ends - 1, 0)
    gain = np.where(ends > 0, R[ends] - R[begins], 1.0)
    exact = T[begins] + (wanted - R[begins]) * (T[ends] - T[begins]) / gain
    # Rounding must not push a cutoff that is a whole number to the next one.
    places = np.maximum(np.ceil(exact - 1e-9 * np.maximum(exact, 1)), 1)
    return np.interp(places, T, R) / places


def _corners(histograms: Histograms) -> Iterator[tuple[Floats, Floats]]:
    """Items and relevant items up to the end of each tie, from (0, 0) on, for some queries."""
    for start in range(0, len(histograms), QUERY_BLOCK):
        part = slice(start, start + QUERY_BLOCK)
        ties = Ties.of(Histograms(histograms.relevant[part], histograms.total[part]))
        zero = np.zeros((len(ties.t), 1))
        T = np.concatenate([zero, ties.T + ties.t], axis=1)
        R = np.concatenate([zero, ties.R + ties.r], axis=1)
        yield T, R
