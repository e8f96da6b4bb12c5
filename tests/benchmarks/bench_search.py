"""Search and evaluation against FAISS and against sorting, in the same run.

    python -m tests.benchmarks.bench_search [--rows 1e6 1e7] [--bits 64 128] [--queries 1000]
        [--threads 2] [--approximate] [--avx2]

Codes lie in a store on disk, which is read in blocks; FAISS has all of them in memory. They are
those of 10,000 clusters (an eighth of the bits of a centre flipped), as learned
codes are: random ones have no neighbours. Every exact way must find the same distances. "where" is
the same search among the rows of one of a hundred labels. Peak is that of a process of its own.

``--approximate`` looks into the exported inverted lists and multi-hash tables, too: the recall is
the part of what they find that is as near as what is found exactly. ``--avx2`` runs it all on a
processor without AVX-512.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import dask
import faiss
import numpy as np

from sadih_dask import CodeStore, evaluate, search
from sadih_dask.jobs.export import export_faiss
from sadih_dask.retrieval.codes import distances
from tests.benchmarks.table import Row, measure, show

N_LABELS = 100
AVX2 = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "", "FAISS_SIMD_LEVEL": "AVX2"}
PEAK = """
import json, re, sys, time
import dask, numpy as np
from sadih_dask import CodeStore, search
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
store, queries = CodeStore.open(sys.argv[1]), np.load(sys.argv[2])
with dask.config.set(num_workers=int(sys.argv[4])):
    search(store.read("codes", 0, 1000), queries[:2], 10)
    before = peak()
    search(store, queries, int(sys.argv[3]))
print(json.dumps([before, peak()]))
"""


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Compare search at each size, then evaluation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--bits", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--approximate", action="store_true")
    parser.add_argument("--avx2", action="store_true")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args(argv)
    if arguments.avx2 and os.environ.get("NUMBA_CPU_NAME") != AVX2["NUMBA_CPU_NAME"]:
        with tempfile.TemporaryDirectory() as cache:
            given = sys.argv[1:] if argv is None else list(argv)
            command = [sys.executable, "-m", "tests.benchmarks.bench_search", *given]
            subprocess.run(command, env=os.environ | AVX2 | {"NUMBA_CACHE_DIR": cache}, check=True)
        return []
    faiss.omp_set_num_threads(arguments.threads)
    rows: list[Row] = []
    with dask.config.set(num_workers=arguments.threads):
        for bits in arguments.bits:
            for n_rows in arguments.rows:
                rows += compare_search(int(n_rows), bits, arguments)
        rows += compare_evaluation(60_000, 64, arguments)
    return rows


def clustered(n_rows: int, bits: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Codes and labels in blocks: centres with an eighth of their bits flipped."""
    centres = np.random.default_rng(0).integers(0, 256, (10_000, bits // 8), dtype=np.uint8)
    rng = np.random.default_rng(seed)
    for start in range(0, n_rows, 1 << 18):
        size = min(1 << 18, n_rows - start)
        flips = np.full((size, bits // 8), 255, np.uint8)
        for _ in range(3):  # an eighth of the bits
            flips &= rng.integers(0, 256, flips.shape, dtype=np.uint8)
        yield centres[rng.integers(0, len(centres), size)] ^ flips, rng.integers(0, N_LABELS, size)


def write(path: Path, n_rows: int, bits: int) -> CodeStore:
    """Codes and labels of clusters as a store, block by block."""
    form = {"n_bits": bits, "model": "clusters", "label_dtype": "uint8", "chunk_rows": 1 << 18}
    writer = CodeStore.allocate(path, n_rows, **form)
    for block, (codes, labels) in enumerate(clustered(n_rows, bits, 1)):
        writer.write(block << 18, codes, None, labels)
    return writer.finalise()


def compare_search(n_rows: int, bits: int, arguments: argparse.Namespace) -> list[Row]:
    """The k nearest: FAISS in memory, this package from a store on disk."""
    (queries, _), *_ = clustered(arguments.queries, bits, 2)
    rng, k = np.random.default_rng(3), arguments.k
    scores = np.where(np.unpackbits(queries, axis=1, bitorder="little"), 1.0, -1.0)
    scores *= np.abs(rng.standard_normal(scores.shape))
    title = f"{n_rows:.0e} x {bits} bits"
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        store = write(Path(folder) / "c", n_rows, bits)
        index = faiss.IndexBinaryFlat(bits)
        for start in range(0, n_rows, 1 << 18):
            index.add(store.read("codes", start, min(start + (1 << 18), n_rows)))
        ways: dict[str, Callable[[], np.ndarray]] = {
            "faiss.IndexBinaryFlat": lambda: index.search(queries, k)[0],
            "search": lambda: search(store, queries, k).distances,
            "search, where": lambda: search(store, queries, k, where={"label": 7}).distances,
            "search, weighted": lambda: search(store, queries, k, projections=scores).distances,
        }
        exact = ways["search"]()
        np.testing.assert_array_equal(exact, ways["faiss.IndexBinaryFlat"]())
        times = measure(ways, arguments.rounds)
        before, peak = peak_of(store, queries, arguments)
        print(
            f"\n{k} nearest of {len(queries)} queries, {title}, {arguments.threads} threads; peak "
            f"{peak:.0f} MiB, {peak - before:.0f} of them for the search ({store.nbytes >> 20} MiB)"
        )
        for name, (wall, cpu) in times.items():
            each = 1e3 / len(queries)
            print(f"  {name:24}{each * wall:>10.3f} ms a query{each * cpu:>10.3f} of processors")
        if arguments.approximate:
            compare_approximate(store, queries, exact, times["search"], Path(folder), arguments)
    own = times["search"][1]
    flat, where = times["faiss.IndexBinaryFlat"][1], times["search, where"][1]
    return [
        Row(f"search {title}", "peer", "faiss.IndexBinaryFlat", own / flat, 1.0),
        Row(f"search {title}, 1 % of rows", "peer", "the whole scan", where / own, 0.2),
    ]


def peak_of(
    store: CodeStore, queries: np.ndarray, arguments: argparse.Namespace
) -> tuple[float, float]:
    """MiB of a process before and after a search."""
    path = Path(store.url).with_name("queries.npy")
    np.save(path, queries)
    words = [store.url, str(path), str(arguments.k), str(arguments.threads)]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *words], stdout=subprocess.PIPE, text=True, check=True
    )
    before, peak = json.loads(done.stdout)
    return before, peak


def compare_approximate(
    store: CodeStore,
    queries: np.ndarray,
    exact: np.ndarray,
    own: tuple[float, float],
    folder: Path,
    arguments: argparse.Namespace,
) -> None:
    """Recall and time of the indexes that `sadih export` writes."""

    def report(what: str, index: faiss.IndexBinary) -> None:
        found: list[np.ndarray] = []
        way = {"": lambda: found.append(index.search(queries, arguments.k)[0])}
        _, cpu = measure(way, 1)[""]
        recall = (found[-1] <= exact[:, -1:]).mean()
        speed = own[1] / cpu
        print(f"  {what:34}recall {recall:6.1%}{speed:>8.2f} x the speed of search", flush=True)

    path = export_faiss(store, folder / "ivf", "ivf", n_lists=min(4096, int(store.n_rows**0.5)))
    index = faiss.read_index_binary(str(path))
    for n_probe in (1, 8, 64):
        index.nprobe = n_probe
        report(f"ivf, {index.nlist} lists, {n_probe} looked into", index)
    form = {"n_hashes": store.n_bits // 16, "hash_bits": 16}
    path = export_faiss(store, folder / "multihash", "multihash", **form)
    index = faiss.read_index_binary(str(path))
    for index.nflip in (0, 1):
        report(f"multihash, {form['n_hashes']} x 16 bits, {index.nflip} flipped", index)


def compare_evaluation(n_rows: int, bits: int, arguments: argparse.Namespace) -> list[Row]:
    """Mean average precision: every ranking sorted, or from histograms."""
    rng = np.random.default_rng(1)
    database = rng.integers(0, 256, (n_rows, bits // 8), dtype=np.uint8)
    queries = rng.integers(0, 256, (1000, bits // 8), dtype=np.uint8)
    labels, asked = rng.integers(0, 10, n_rows), rng.integers(0, 10, 1000)
    found: dict[str, float] = {}
    ways = {
        "argsort": lambda: found.update(a=by_sorting(database, queries, labels, asked)),
        "evaluate": lambda: found.update(b=evaluate(database, queries, labels, asked).map),
    }
    times = measure(ways, arguments.rounds)
    np.testing.assert_allclose(found["a"], found["b"], atol=5e-4)  # sorting breaks ties by row
    ratio = times["evaluate"][1] / times["argsort"][1]
    return [Row(f"evaluate {n_rows:.0e} x {bits} bits", "peer", "argsort", ratio, 0.25)]


def by_sorting(
    database: np.ndarray, queries: np.ndarray, labels: np.ndarray, asked: np.ndarray
) -> float:
    """Sort each query's distances and average the precisions at relevant items."""
    places = np.arange(1, len(database) + 1)
    values = []
    for start in range(0, len(queries), 50):
        pairs = distances(queries[start : start + 50], database)
        order = np.argsort(pairs.astype(np.uint8), axis=1, kind="stable")  # radix: the fastest
        hits = labels[order] == asked[start : start + 50, None]
        precisions = np.cumsum(hits, axis=1) / places
        values.append((precisions * hits).sum(axis=1) / hits.sum(axis=1))
    return float(np.concatenate(values).mean())


if __name__ == "__main__":
    show(main())
