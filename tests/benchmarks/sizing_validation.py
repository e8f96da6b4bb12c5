"""Real runs beside simulated ones, on this machine.

Two kinds: scans of a store by threads and by worker processes, which take processors; and many
threads whose leaves only sleep, for the scheduler, the tail and the tree.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import dask
import psutil

from sadih_dask.compute.reduction import Reduction
from sadih_dask.compute.rows import StoreRows
from sadih_dask.compute.scan import scan
from sadih_dask.ingest.synthetic import generate
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.randomness import generator
from sadih_dask.stores import FeatureStore
from tests.benchmarks.sizing_cluster import Cluster, Store, Work
from tests.benchmarks.sizing_graph import BLOCK_ROWS, scan_tasks
from tests.benchmarks.sizing_model import Job, work_of
from tests.benchmarks.sizing_simulation import simulate
from tests.support.processes import dask_processes

N_CLASSES = 100
LOOPBACK = 1e9
"""Bytes a second between two processes of one machine, about."""


@dataclass(frozen=True)
class SleepingRows:
    """Rows that are never looked at."""

    n_rows: int

    chunk_rows, local, owned = BLOCK_ROWS, False, True

    def blocks(
        self, name: str, start: int, stop: int, block_rows: int
    ) -> Iterator[tuple[int, int]]:
        """How many rows each block has."""
        del name
        for row in range(start, stop, block_rows):
            yield row, min(block_rows, stop - row)


@dataclass(frozen=True)
class Sleep:
    """A reduction that waits for every row as long as an object store would let it."""

    row_seconds: float
    block_rows: int = BLOCK_ROWS

    def of_block(self, features: int, labels: int, first_row: int, *, overwrite: bool) -> Counted:
        """Wait."""
        del labels, first_row, overwrite
        time.sleep(features * self.row_seconds)
        return Counted(features)


@dataclass(frozen=True)
class Counted:
    """Rows that were slept for."""

    n_rows: int

    def merge(self, other: Counted, *, overwrite: bool = False) -> Counted:
        """Add up."""
        del overwrite
        return Counted(self.n_rows + other.n_rows)


def scans(rates: dict[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    """A store scanned by one and by two processes of one thread."""
    stores = _stores(folder)
    for workers in (1, 2):
        with dask_processes(workers, nanny=False, memory_limit="4GiB") as cluster:
            processes = [psutil.Process(one.pid) for one in cluster.workers]
            with cluster.client():
                for anchors, store in stores.items():
                    rows = StoreRows.of(store)
                    reduction = Reduction(BLOCK_ROWS, N_CLASSES, _anchors(store, anchors))
                    scan(rows, reduction)  # pages in memory, stores open
                    before, start = _used(processes), time.perf_counter()
                    scan(rows, reduction)
                    wall = time.perf_counter() - start
                    used = _used(processes) - before
                    place = Cluster(workers, network=LOOPBACK)
                    yield _beside(rates, Job(store.n_rows, 512, anchors), place, wall, used)


def threads(rates: dict[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    """The same stores, scanned by two threads of this process."""
    own = [psutil.Process()]
    bare = {**rates, "scheduling": {"scheduler": 0.0, "worker": 0.0}}
    for anchors, store in _stores(folder).items():
        reduction = Reduction(BLOCK_ROWS, N_CLASSES, _anchors(store, anchors))
        with dask.config.set(scheduler="threads", num_workers=2):
            scan(StoreRows.of(store), reduction)
            before, start = _used(own), time.perf_counter()
            scan(StoreRows.of(store), reduction)
        wall, used = time.perf_counter() - start, _used(own) - before
        yield _beside(bare, Job(store.n_rows, 512, anchors), Cluster(1, 2, 2), wall, used)


def _stores(folder: Path) -> dict[int, FeatureStore]:
    """Stores by the number of anchors that they are scanned with; made once."""
    return {
        anchors: generate(folder / f"scan-{n_rows}", n_rows, 512, N_CLASSES)
        for n_rows, anchors in ((1_000_000, 0), (200_000, 1000))
    }


def sustained(runs: list[dict[str, Any]]) -> float:
    """Processor seconds of real scans over those by the rates of a few blocks: the median."""
    scanned = [run for run in runs if "processor" in run]
    return median(run["processor"] / run["simulated processor"] for run in scanned)


def _anchors(store: FeatureStore, n_anchors: int) -> AnchorMap | None:
    if not n_anchors:
        return None
    sample = store.read("features", 0, 10_000)
    return AnchorMap.from_sample(sample, n_anchors, generator(0, "anchors"))


def _used(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))


def _beside(
    rates: dict[str, Any], job: Job, cluster: Cluster, wall: float, used: float
) -> dict[str, Any]:
    n_threads = cluster.workers * cluster.threads
    cluster = replace(cluster, scheduler=rates["scheduling"]["scheduler"])
    work = work_of(rates, job, remote=False)
    found = simulate(scan_tasks(job.n_rows, n_threads), cluster, work)
    where = f"{cluster.workers} processes" if rates["scheduling"]["worker"] else "threads"
    return {
        "run": f"{job.n_rows:,} x 512, {job.anchors or 'no'} anchors, {n_threads} threads, {where}",
        "wall": wall,
        "simulated": found.seconds,
        "processor": used,
        "simulated processor": found.processors_busy * found.seconds * n_threads,
    }


def sleeps(rates: dict[str, Any], workers: int = 8, n_threads: int = 4) -> Iterator[dict[str, Any]]:
    """Many threads that wait: leaves of a second, and of an eighth of it at the end."""
    row_seconds = 1.0 / (8 * BLOCK_ROWS)
    with dask_processes(workers, nanny=False, threads=n_threads) as cluster, cluster.client():
        scan(SleepingRows(10**6), Sleep(0.0))  # type: ignore[arg-type]
        for n_rows in (10_000_000, 40_000_000):
            start = time.perf_counter()
            done: Any = scan(SleepingRows(n_rows), Sleep(row_seconds))[0]  # type: ignore[arg-type]
            wall = time.perf_counter() - start
            if done.n_rows != n_rows:
                raise AssertionError(f"{done.n_rows} rows of {n_rows} were read")
            work = Work(0.0, 0.0, row_requests=1.0, task_seconds=rates["scheduling"]["worker"])
            place = Cluster(
                workers,
                n_threads,
                store=Store(latency=row_seconds),
                scheduler=rates["scheduling"]["scheduler"],
            )
            found = simulate(scan_tasks(n_rows, workers * n_threads), place, work)
            yield {
                "run": f"{n_rows:,} rows, sleeping leaves, {workers} x {n_threads} threads",
                "wall": wall,
                "simulated": found.seconds,
            }
