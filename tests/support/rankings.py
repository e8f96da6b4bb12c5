"""Rankings and their metrics by definition: every pair, every order of tied items, at any cost."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sadih_dask.retrieval.histograms import Histograms

Array = NDArray[Any]


def random_codes(rng: np.random.Generator, n: int, n_bits: int) -> NDArray[np.uint8]:
    """Packed codes with few distinct distances, so that ties abound."""
    return np.packbits(rng.random((n, n_bits)) < 0.3, axis=1, bitorder="little")


def naive_distances(queries: NDArray[np.uint8], database: NDArray[np.uint8]) -> NDArray[np.int64]:
    a, b = np.unpackbits(queries, axis=1), np.unpackbits(database, axis=1)
    return (a[:, None] != b[None]).sum(axis=2)


def histograms(distances: Array, relevant: Array, n_bits: int | None = None) -> Histograms:
    """Count items by distance with a loop: (q, n), or (n,) of one query."""
    distances, relevant = np.atleast_2d(distances, relevant)
    most = int(distances.max()) if n_bits is None else n_bits
    total = np.zeros((len(distances), most + 1), np.int64)
    hits = np.zeros_like(total)
    for q in range(len(distances)):
        for far, good in zip(distances[q], relevant[q], strict=True):
            total[q, far] += 1
            hits[q, far] += bool(good)
    return Histograms(hits, total)


def all_orders(distances: Array, relevant: Array) -> list[Array]:
    """Relevance of the ranked items, for every order of the items of every tie; few items only."""
    ties = [relevant[distances == d] for d in np.unique(distances)]
    return [
        np.array([item for part in parts for item in part], float)
        for parts in itertools.product(*(itertools.permutations(tie) for tie in ties))
    ]


def random_orders(distances: Array, relevant: Array, count: int, seed: int = 0) -> list[Array]:
    """The same for ties in random order."""
    rng = np.random.default_rng(seed)
    orders = (np.lexsort((rng.random(len(distances)), distances)) for _ in range(count))
    return [relevant[order].astype(float) for order in orders]


def average_precision(ranked: Array, k: int | None = None) -> float:
    """Mean precision at the places of the relevant items, of at most ``k`` of them."""
    gained = ranked * np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
    if k is None:
        return float(gained.sum() / ranked.sum())
    return float(gained[:k].sum() / min(k, ranked.sum()))


def precision(ranked: Array, k: int) -> float:
    return float(ranked[:k].mean())


def recall(ranked: Array, k: int) -> float:
    return float(ranked[:k].sum() / ranked.sum())


def ndcg(ranked: Array, k: int) -> float:
    discount = 1 / np.log2(np.arange(len(ranked)) + 2)
    ideal = np.sort(ranked)[::-1]
    return float((ranked * discount)[:k].sum() / (ideal * discount)[:k].sum())
