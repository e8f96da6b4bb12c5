"""What the driver and the scheduler hold, by the number of rows: tasks, bytes, memory, seconds.

    python -m tests.benchmarks.bench_graph [--rows 1e6 1e7 1e8 1e9] [--threads 64] [--queries 1000]

Builds the graphs of a fit, an encoding, a search and an evaluation as a cluster of that many
threads would get them, and stops before they run. The rows are those of a small store of 512
features that is said to be longer than it is: graphs are built from the number of rows, and no row
is read. Code stores to be written are really allocated. Values that are sent to workers once (the
model, the queries) do not count.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import numpy as np
from dask.utils import format_bytes
from distributed.protocol.pickle import dumps

from sadih_dask import CodeStore, FeatureStore
from sadih_dask.compute import encode, scan, tree
from sadih_dask.compute.codes import DatabaseCodes
from sadih_dask.compute.evaluate import Count
from sadih_dask.compute.reduction import Reduction
from sadih_dask.compute.rows import StoreLabels, StoreRows
from sadih_dask.compute.search import Nearest

N_FEATURES, N_BITS, N_ROWS = 512, 64, 16_384
BLOCK_ROWS = 8192


def long_codes(store: CodeStore, n_rows: int) -> DatabaseCodes:
    """Codes that are said to be longer than they are."""
    return replace(DatabaseCodes.of_store(store), n_rows=n_rows)


class Built(Exception):
    """Carries a graph out of the call that would have run it."""


def stop(graph: Any, wanted: Any, *_: Any) -> None:
    """Stand in for `run` and for `run_each_key`."""
    raise Built(graph, wanted)


@contextmanager
def not_run() -> Any:
    """Let everything be as on a cluster, up to the moment when a graph would be sent."""
    with patch.object(tree, "run", stop), patch.object(tree, "run_each_key", stop):
        yield


class Jobs:
    """The calls whose graphs are measured, each with a number of rows."""

    def __init__(self, folder: Path, n_queries: int) -> None:
        rng = np.random.default_rng(0)
        X = rng.random((N_ROWS, N_FEATURES), np.float32)
        self.store = FeatureStore.create(folder / "s", X, rng.integers(0, 10, N_ROWS))
        codes = rng.integers(0, 256, (N_ROWS, N_BITS // 8), np.uint8)
        self.codes = CodeStore.create(folder / "c", codes, n_bits=N_BITS, model="m")
        self.folder = folder
        self.n_queries = n_queries

    def fit(self, n_rows: int) -> None:
        """The one pass."""
        scan.scan(StoreRows(self.store, 0, n_rows), Reduction(BLOCK_ROWS, None, None))

    def encode(self, n_rows: int) -> None:
        """Codes of all rows, with the allocation of their store."""
        with tempfile.TemporaryDirectory(dir=self.folder) as url:
            chunk_rows = encode.code_chunk_rows(self.store.chunk_rows, BLOCK_ROWS)
            target = Path(url, "codes")
            writer = CodeStore.allocate(
                target, n_rows, n_bits=N_BITS, model="m", chunk_rows=chunk_rows
            )
            tree.fill(writer, encode._encode_block, None)

    def search(self, n_rows: int) -> None:
        """The ten nearest."""
        self._ask(Nearest(10), long_codes(self.codes, n_rows))

    def evaluate(self, n_rows: int) -> None:
        """Histograms of distances."""
        question = Count(N_BITS, StoreLabels(self.store), None, compiled=True)
        self._ask(question, long_codes(self.codes, n_rows))

    def _ask(self, question: Any, database: Any) -> None:
        tree.reduce_pairs(
            question, database, self.n_queries, lambda block: np.zeros((len(block), 8))
        )


def graph_of(job: Callable[[int], None], n_rows: int) -> Any:
    """What a job would have run."""
    try:
        job(n_rows)
    except Built as built:
        return built.args[0]
    raise AssertionError("nothing was run")


def measure(job: Callable[[int], None], n_rows: int) -> tuple[int, int, int, float]:
    """Tasks, pickled bytes, peak of memory that Python took, seconds."""
    began = time.perf_counter()
    graph = graph_of(job, n_rows)
    seconds = time.perf_counter() - began
    tasks, size = len(graph), len(dumps(graph))
    del graph
    tracemalloc.start()
    graph_of(job, n_rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return tasks, size, peak, seconds


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7, 1e8, 1e9])
    parser.add_argument("--threads", type=int, default=64, help="of the cluster")
    parser.add_argument("--queries", type=int, default=1000)
    arguments = parser.parse_args()
    head = ("", "rows", "tasks", "a million rows", "graph", "driver", "seconds")
    print("{:10}{:>15}{:>10}{:>16}{:>12}{:>12}{:>9}".format(*head))
    with (
        tempfile.TemporaryDirectory() as folder,
        dask.config.set(num_workers=arguments.threads),
        not_run(),
    ):
        jobs = Jobs(Path(folder), arguments.queries)
        for name in ("fit", "encode", "search", "evaluate"):
            for n_rows in map(int, arguments.rows):
                tasks, size, peak, seconds = measure(getattr(jobs, name), n_rows)
                print(
                    f"{name:10}{n_rows:>15,}{tasks:>10,}{tasks / n_rows * 1e6:>16,.2f}"
                    f"{format_bytes(size):>12}{format_bytes(peak):>12}{seconds:>9.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
