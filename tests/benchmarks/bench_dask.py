"""A fit from a Dask array beside a fit from a store of the same rows: processor time and tasks.

    python -m tests.benchmarks.bench_dask [--rows 1000000] [--features 64] [--anchors 200]

The array is a plain Zarr array in chunks of its own, as `dask.array.from_zarr` reads it, with its
labels in memory. Both run on the threads of this process, in turn, and the fastest of a few runs
counts. Tasks are those that a scheduler ran, the reading of chunks and the sample among them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from dask.callbacks import Callback

from sadih_dask import SADIH, FeatureStore
from tests.benchmarks.table import Row, show

THREADS, N_CLASSES = 2, 10
CHUNKS = 8192, 50_000, 65_536, 200_000


class Tasks(Callback):  # type: ignore[misc]
    """Counts tasks that have run."""

    def __init__(self) -> None:
        self.n = 0
        super().__init__(posttask=self._count)

    def _count(self, *_: Any) -> None:
        self.n += 1


def fit(X: Any, y: Any, anchors: int | None) -> tuple[float, float, int, str]:
    """Processor and wall seconds, tasks, and the model's fingerprint."""
    model = SADIH(16, anchors=anchors, n_init=1, max_iter=1)
    with Tasks() as tasks:
        wall, cpu = time.perf_counter(), time.process_time()
        model.fit(X, y)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return cpu, wall, tasks.n, model.fingerprint_


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--anchors", type=int, default=200, help="0: none")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where there is room for the rows, twice")
    arguments = parser.parse_args(argv)
    anchors = arguments.anchors or None
    rng = np.random.default_rng(0)
    X = rng.standard_normal((arguments.rows, arguments.features), np.float32)
    y = rng.integers(0, N_CLASSES, arguments.rows)
    X[:, 0] += y
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        store = FeatureStore.create(Path(folder, "s"), X, y)
        sources: dict[str, tuple[Any, Any]] = {f"store, {store.chunk_rows}": (store, None)}
        for rows in CHUNKS:
            layout = {"shape": X.shape, "chunks": (rows, X.shape[1]), "compressors": None}
            zarr.create_array(f"{folder}/{rows}", dtype=X.dtype, **layout)[:] = X
            sources[f"array, {rows}"] = da.from_zarr(f"{folder}/{rows}"), y
        del X
        runs: dict[str, list[tuple[float, float, int, str]]] = {name: [] for name in sources}
        with dask.config.set(scheduler="threads", num_workers=THREADS):
            for _ in range(arguments.repeats):
                for name, source in sources.items():
                    runs[name].append(fit(*source, anchors))
    best = {name: min(found) for name, found in runs.items()}
    if len({fingerprint for *_, fingerprint in best.values()}) > 1:
        raise SystemExit("the models differ")
    base_cpu, _, base_tasks, _ = next(iter(best.values()))
    row = "{:18}{:>8}{:>12}{:>8}{:>8}{:>8}"
    print(row.format("source, chunk rows", "tasks", "processor s", "wall s", "tasks x", "time x"))
    for name, (cpu, wall, n_tasks, _) in best.items():
        ratios = f"{n_tasks / base_tasks:.2f}", f"{cpu / base_cpu:.2f}"
        print(row.format(name, n_tasks, f"{cpu:.2f}", f"{wall:.2f}", *ratios))
    arrays = [(name, found[0]) for name, found in best.items() if name.startswith("array")]
    return [
        Row(f"fit, Dask {name}", "floor", "a store", cpu / base_cpu, 1.2) for name, cpu in arrays
    ]


if __name__ == "__main__":
    show(main())
