"""Ranking metrics from Hamming histograms, exact under ties.

**The tie rule.** Items at equal Hamming distance have no order, so every metric here is its
expected value over a uniformly random order within each distance. Results therefore do not depend
on the order of rows.

**Letters.** A *tie* is the items at one distance: t of them, r relevant, behind T items with R
relevant at smaller distances. In a random order each of its places holds a relevant item with
probability r/t, and behind a relevant item at place j the j - 1 places before it hold
(j - 1)(r - 1)/(t - 1) relevant ones on average.

**Who is counted.** Functions return one value a query. A query without any relevant item has no
average precision, recall or NDCG: NaN, left out of means. Its precision is zero and counts. A
cutoff beyond the database is the whole database. Curves, at the end, are means over queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma

from sadih_dask.errors import InputError
from sadih_dask.retrieval.histograms import Histograms
from sadih_dask.types import Floats

RECALL_GRID = np.linspace(0.0, 1.0, 101)
QUERY_BLOCK = 1024
"""Queries whose curves are computed together: 8 MiB at 1,000 points."""


@dataclass(frozen=True, eq=False)
class Ties:
    """The ties of every query, (q, n_bits + 1), as floats: r and t in each, R and T before."""

    r: Floats
    t: Floats
    R: Floats
    T: Floats

    @classmethod
    def of(cls, histograms: Histograms) -> Ties:
        """Read the ties off histograms."""
        r = histograms.relevant.astype(np.float64)
        t = histograms.total.astype(np.float64)
        return cls(r, t, np.cumsum(r, axis=1) - r, np.cumsum(t, axis=1) - t)

    @property
    def density(self) -> Floats:
        """r/t, zero for an empty tie."""
        return self.r / np.maximum(self.t, 1)

    def taken(self, k: float | None) -> Floats:
        """How many places of each tie are among the first ``k``."""
        return self.t if k is None else np.clip(k - self.T, 0, self.t)

    def hits(self, k: int) -> Floats:
        """Expected number of each query's relevant items among its first ``k``."""
        return (self.density * self.taken(k)).sum(axis=1)

    @property
    def relevant(self) -> Floats:
        """Relevant items of each query in the whole database."""
        return self.r.sum(axis=1)

    @property
    def items(self) -> Floats:
        """Items in the database, for each query."""
        return self.t.sum(axis=1)


def average_precision(histograms: Histograms, k: int | None = None) -> Floats:
    """Expected average precision over the whole ranking, or AP@k over the first ``k`` places.

    AP@k is the sum of the precisions at relevant items among the first k, divided by the smaller of
    k and the number of relevant items, so that a perfect ranking has 1.

    Place j of a tie adds (r/t) (R + 1 + (j - 1) s) / (T + j) with s = (r - 1)/(t - 1). Written as
    s + (R + 1 - s (T + 1)) / (T + j), the sum over its first m places is
    s m + (R + 1 - s (T + 1)) (H(T + m) - H(T)), H the harmonic numbers: the cost does not depend
    on the size of the database.
    """
    ties = Ties.of(histograms)
    slope = np.where(ties.t > 1, (ties.r - 1) / np.maximum(ties.t - 1, 1), 0.0)
    m = ties.taken(_cutoff(k))
    harmonic = digamma(ties.T + m + 1) - digamma(ties.T + 1)
    places = slope * m + (ties.R + 1 - slope * (ties.T + 1)) * harmonic
    gained = (ties.density * places).sum(axis=1)
    best = ties.relevant if k is None else np.minimum(ties.relevant, k)
    return _ratio(gained, best)


def mean_average_precision(histograms: Histograms) -> float:
    """Mean of :func:`average_precision` over the queries that have a relevant item."""
    return mean_of_known(average_precision(histograms))


def precision_at(histograms: Histograms, k: int) -> Floats:
    """Expected precision of each query's first ``k`` items (of all, if there are fewer).

    The first m places of a tie hold m r/t relevant items on average.
    """
    ties = Ties.of(histograms)
    return np.asarray(ties.hits(k) / np.maximum(np.minimum(k, ties.items), 1))


def recall_at(histograms: Histograms, k: int) -> Floats:
    """Expected share of each query's relevant items that is among its first ``k``."""
    ties = Ties.of(histograms)
    return _ratio(ties.hits(k), ties.relevant)


def ndcg_at(histograms: Histograms, k: int) -> Floats:
    """Expected normalised discounted cumulative gain of the first ``k``, relevance 0 or 1.

    A relevant item at place j of the ranking gains 1/log2(j + 1). With G the running sum of these,
    a tie adds (r/t) (G(T + m) - G(T)) for its m places among the first k. The ideal ranking gains
    G(min(k, relevant)). Takes memory for k numbers.
    """
    ties = Ties.of(histograms)
    k = int(min(_cutoff(k) or 0, ties.items.max(initial=0)))
    gains = np.concatenate([np.zeros(1), np.cumsum(1 / np.log2(np.arange(k) + 2.0))])
    first = np.minimum(ties.T, k).astype(np.int64)
    last = np.minimum(ties.T + ties.t, k).astype(np.int64)
    gained = (ties.density * (gains[last] - gains[first])).sum(axis=1)
    return _ratio(gained, gains[np.minimum(ties.relevant, k).astype(np.int64)])


def precision_within(histograms: Histograms, radius: int) -> Floats:
    """Precision of all items within a Hamming radius; no ties are cut, so nothing is random.

    A query with nothing within the radius has precision 0, as is usual for look-ups in a hash
    table: a code length that leaves buckets empty is not rewarded for it.
    """
    hits = histograms.relevant[:, : radius + 1].sum(axis=1)
    return np.asarray(hits / np.maximum(histograms.total[:, : radius + 1].sum(axis=1), 1))


def mean_of_known(values: Floats) -> float:
    """Mean over the queries that have a value, NaN if none has."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def standard_error(values: Floats) -> float:
    """Standard error of `mean_of_known`, the queries being drawn at random; NaN below two."""
    known = values[np.isfinite(values)]
    return float(known.std(ddof=1) / len(known) ** 0.5) if len(known) > 1 else float("nan")


def _ratio(values: Floats, whole: Floats) -> Floats:
    """Quotient, NaN where there is nothing to divide by."""
    return np.where(whole > 0, values / np.where(whole > 0, whole, 1.0), np.nan)


def _cutoff(k: int | None) -> int | None:
    if k is not None and k < 1:
        raise InputError(f"k is {k}; a ranking is cut behind its first item at the earliest")
    return k


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
