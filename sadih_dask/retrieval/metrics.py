"""Ranking metrics from Hamming histograms, exact under ties.

**The tie rule.** Items at equal Hamming distance have no order, so every metric here is its
expected value over a uniformly random order within each distance. Results therefore do not depend
on the order of rows. Queries without any relevant item have no average precision and are left out
of the mean.
"""

from __future__ import annotations

import numpy as np
from scipy.special import digamma

from sadih_dask.arrays import Floats
from sadih_dask.retrieval.histograms import Histograms


def average_precision(histograms: Histograms) -> Floats:
    """Expected average precision of each query over the whole ranking, NaN without relevant items.

    In a tie of t items, r of them relevant, behind T items with R relevant, the j-th place holds a
    relevant item with probability r/t, and the precision there is then
    (R + 1 + (j - 1)(r - 1)/(t - 1)) / (T + j). The sum over j has a closed form in harmonic
    numbers, so the cost does not depend on the size of the database.
    """
    r = histograms.relevant.astype(np.float64)
    t = histograms.total.astype(np.float64)
    R = np.cumsum(r, axis=1) - r
    T = np.cumsum(t, axis=1) - t
    slope = np.where(t > 1, (r - 1) / np.maximum(t - 1, 1), 0.0)
    harmonic = digamma(T + t + 1) - digamma(T + 1)
    places = slope * t + (R + 1 - slope * (T + 1)) * harmonic
    gained = np.where(t > 0, r / np.maximum(t, 1) * places, 0.0).sum(axis=1)
    relevant = r.sum(axis=1)
    return np.where(relevant > 0, gained / np.maximum(relevant, 1), np.nan)


def mean_average_precision(histograms: Histograms) -> float:
    """Mean of :func:`average_precision` over the queries that have a relevant item."""
    values = average_precision(histograms)
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def precision_at(histograms: Histograms, k: int) -> Floats:
    """Expected precision of each query's first ``k`` items (of all, if there are fewer)."""
    r = histograms.relevant.astype(np.float64)
    t = histograms.total.astype(np.float64)
    before = np.cumsum(t, axis=1) - t
    taken = np.clip(k - before, 0, t)
    hits = (r * taken / np.maximum(t, 1)).sum(axis=1)
    return np.asarray(hits / np.maximum(np.minimum(k, t.sum(axis=1)), 1))
