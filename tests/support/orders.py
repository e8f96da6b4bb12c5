"""Ranking metrics by their definition: one order of the items after the other."""

from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sadih_dask.retrieval.histograms import Histograms

Array = NDArray[Any]


def histograms(distance: Array, relevant: Array, n_bits: int) -> Histograms:
    """Count items by distance, (q, n), with a loop."""
    total = np.zeros((len(distance), n_bits + 1), np.int64)
    hits = np.zeros_like(total)
    for q in range(len(distance)):
        for far, good in zip(distance[q], relevant[q], strict=True):
            total[q, far] += 1
            hits[q, far] += bool(good)
    return Histograms(hits, total)


def average_precision(ranking: Array) -> float:
    """Mean precision at the places of the relevant items, True in the ranking."""
    places = np.flatnonzero(ranking) + 1
    return float(np.mean(np.arange(1, len(places) + 1) / places)) if len(places) else np.nan


def precision_at(ranking: Array, k: int) -> float:
    return float(np.mean(ranking[:k]))


def all_orders(distance: Array, relevant: Array) -> list[Array]:
    """Every ranking that the distances of one query allow; few items only."""
    places = permutations(range(len(distance)))
    return [
        relevant[list(order)] for order in places if np.all(np.diff(distance[list(order)]) >= 0)
    ]


def random_order(distance: Array, relevant: Array, rng: np.random.Generator) -> Array:
    """One ranking, ties in random order."""
    return relevant[np.lexsort((rng.random(len(distance)), distance))]
