"""Rankings written down naively: every pair, every order of tied items, no attention to cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sadih_dask.retrieval.histograms import Histograms

Array = NDArray[np.floating]


def naive_distances(queries: NDArray[np.uint8], database: NDArray[np.uint8]) -> NDArray[np.int64]:
    a, b = np.unpackbits(queries, axis=1), np.unpackbits(database, axis=1)
    return (a[:, None] != b[None]).sum(axis=2)


def random_codes(rng: np.random.Generator, n: int, n_bits: int) -> NDArray[np.uint8]:
    """Packed codes with few distinct distances, so that ties abound."""
    return np.packbits(rng.random((n, n_bits)) < 0.3, axis=1, bitorder="little")


def histograms_of(distances: NDArray[np.int64], relevant: NDArray[np.bool_]) -> Histograms:
    """Histograms of one query, from one distance and one relevance for each item."""
    bins = int(distances.max()) + 1
    counts = np.bincount(distances, minlength=bins)[None]
    hits = np.bincount(distances[relevant], minlength=bins)[None]
    return Histograms(hits.astype(np.int64), counts.astype(np.int64))


def all_orders(distances: NDArray[np.int64], relevant: NDArray[np.bool_]) -> Iterator[Array]:
    """Relevance of the ranked items, for every order of the items of every tie."""
    ties = [relevant[distances == d] for d in np.unique(distances)]
    for parts in itertools.product(*(itertools.permutations(tie) for tie in ties)):
        yield np.concatenate([np.array(part) for part in parts]).astype(float)


def random_orders(
    distances: NDArray[np.int64], relevant: NDArray[np.bool_], count: int, seed: int = 0
) -> Iterator[Array]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        order = np.lexsort((rng.random(len(distances)), distances))
        yield relevant[order].astype(float)


def average_precision(ranked: Array, k: int | None = None) -> float:
    places = np.arange(1, len(ranked) + 1)
    gained = ranked * np.cumsum(ranked) / places
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
