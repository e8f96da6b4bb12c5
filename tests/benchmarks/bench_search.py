"""Search and evaluation against FAISS and against sorting, in the same run.

    python tests/benchmarks/bench_search.py [--rows 1e6 1e7] [--bits 64] [--rounds 5] [--threads 2]

Ways take turns, so that a machine that does other work as well disturbs all of them alike. Medians
over the rounds; the ratio of processor seconds (of all threads) is the one to look at on a busy
machine. Every way must find the same distances.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dask
import faiss
import numpy as np

from sadih_dask import CodeStore, evaluate, search
from sadih_dask.retrieval.codes import distances, pack

Ways = dict[str, Callable[[], np.ndarray]]


def main() -> None:
    """Compare search at each size, then evaluation, and print ratios to the first way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--bits", type=int, nargs="+", default=[64])
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    faiss.omp_set_num_threads(arguments.threads)
    with dask.config.set(num_workers=arguments.threads):
        for bits in arguments.bits:
            for rows in arguments.rows:
                compare_search(int(rows), bits, arguments)
        compare_evaluation(60_000, 64, arguments)


def compare_search(n_rows: int, bits: int, arguments: argparse.Namespace) -> None:
    """Top-k of random codes: FAISS in memory, this package in memory and from a store on disk."""
    rng = np.random.default_rng(0)
    database = rng.integers(0, 256, (n_rows, bits // 8), dtype=np.uint8)
    queries = rng.integers(0, 256, (arguments.queries, bits // 8), dtype=np.uint8)
    index = faiss.IndexBinaryFlat(bits)
    index.add(database)
    search(database[:1000], queries[:10], arguments.k)  # load the compiled loops
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        store = CodeStore.create(Path(folder) / "c", database, n_bits=bits, model="random")
        ways: Ways = {
            "faiss.IndexBinaryFlat": lambda: index.search(queries, arguments.k)[0],
            "search(array)": lambda: search(database, queries, arguments.k).distances,
            "search(CodeStore)": lambda: search(store, queries, arguments.k).distances,
        }
        print(f"\ntop {arguments.k} of {len(queries)} queries, {n_rows:,} codes of {bits} bits")
        measure(ways, arguments.rounds)
        scores = rng.standard_normal((arguments.queries, bits))
        weighted = pack(scores)
        search(database[:1000], weighted[:10], arguments.k, projections=scores[:10])
        ways = {
            "faiss.IndexBinaryFlat": lambda: index.search(weighted, arguments.k)[0],
            "search(array, weighted)": lambda: (
                search(database, weighted, arguments.k, projections=scores).distances
            ),
        }
        measure(ways, arguments.rounds, tolerance=np.inf)  # it finds others


def compare_evaluation(n_rows: int, bits: int, arguments: argparse.Namespace) -> None:
    """Mean average precision: every ranking sorted, or from histograms."""
    rng = np.random.default_rng(1)
    database = rng.integers(0, 256, (n_rows, bits // 8), dtype=np.uint8)
    queries = rng.integers(0, 256, (arguments.queries, bits // 8), dtype=np.uint8)
    labels, asked = rng.integers(0, 10, n_rows), rng.integers(0, 10, arguments.queries)
    evaluate(database[:20_000], queries, labels[:20_000], asked)  # load the compiled loops
    ways: Ways = {
        "argsort": lambda: by_sorting(database, queries, labels, asked),
        "evaluate (all metrics)": lambda: np.array(
            [evaluate(database, queries, labels, asked).map]
        ),
    }
    print(f"\nevaluation of {len(queries)} queries, {n_rows:,} codes of {bits} bits, 10 classes")
    measure(ways, arguments.rounds, tolerance=5e-4)  # sorting breaks ties by row


def by_sorting(
    database: np.ndarray, queries: np.ndarray, labels: np.ndarray, asked: np.ndarray
) -> np.ndarray:
    """Sort each query's distances and average the precisions at relevant items."""
    places = np.arange(1, len(database) + 1)
    values = []
    for start in range(0, len(queries), 50):
        pairs = distances(queries[start : start + 50], database)
        order = np.argsort(pairs.astype(np.uint8), axis=1, kind="stable")  # radix: the fastest
        hits = labels[order] == asked[start : start + 50, None]
        precisions = np.cumsum(hits, axis=1) / places
        values.append((precisions * hits).sum(axis=1) / hits.sum(axis=1))
    return np.array([np.concatenate(values).mean()])


def measure(ways: Ways, rounds: int, tolerance: float = 0.0) -> None:
    """Let the ways take turns; print medians and ratios to the first."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    results: dict[str, np.ndarray] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            results[name] = way()
            taken[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    first, *_ = ways
    for name in ways:
        np.testing.assert_allclose(results[name], results[first], atol=tolerance)
    base = np.median(taken[first], axis=0)
    for name, times in taken.items():
        wall, cpu = np.median(times, axis=0)
        ratios = f"{base[0] / wall:6.2f} x as fast, {base[1] / cpu:6.2f} x in processor seconds"
        print(f"  {name:24} {wall:8.3f} s {cpu:8.3f} cpu s {ratios}", flush=True)


if __name__ == "__main__":
    main()
