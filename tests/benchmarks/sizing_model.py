"""From measured rates to what a row costs somewhere, and to memory: the inputs of a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sadih_dask.compute.memory import MemoryPlan, ScanShape, plan_scan
from sadih_dask.learning.features import SAMPLE_BLOCKS, SAMPLE_ROWS
from sadih_dask.stores.layout import default_chunk_rows
from tests.benchmarks.sizing_cluster import Store, Work
from tests.benchmarks.sizing_graph import BLOCK_ROWS, scan_tasks

LISTED = 1000
"""Names that one request lists."""
LABEL_BYTES = 8
CLOUD = Store(latency=0.030, connection=80e6, worker=1.25e9, total=100e9, requests=5500)
"""An object store of a cloud. Assumed, not measured: 30 ms to the first byte, 80 MB/s a connection,
10 Gbit/s a worker; requests are what S3 promises for one prefix."""
HOUSE = Store(latency=0.005, connection=200e6, worker=1.25e9, total=5e9, requests=10_000)
"""An object store or a file server of one's own. Assumed, too: 40 Gbit/s in all."""
NETWORK = 1.25e9
"""Bytes a second between workers: 10 Gbit/s, assumed."""


@dataclass(frozen=True)
class Job:
    """Rows of float32 features, 100 classes, and what is done with them."""

    n_rows: int
    n_features: int = 512
    anchors: int = 0
    kind: str = "scan"

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk by default."""
        return default_chunk_rows(4 * self.n_features)

    @property
    def width(self) -> int:
        """Columns of the statistics."""
        return self.anchors or self.n_features


def work_of(rates: dict[str, Any], job: Job, *, remote: bool) -> Work:
    """What the tasks of a job cost, by the measured rates.

    "sustained" is how much more real scans took than the best blocks, whose rows were in a cache.
    Behind a network rows are compressed by default, and the client works for every object and byte.
    """
    [row] = [
        one for one in rates["rows"] if one["d"] == job.n_features and one["anchors"] == job.anchors
    ]
    seconds = row[job.kind] * rates.get("sustained", 1.0)
    size = 4.0 * job.n_features + LABEL_BYTES
    arrays = 2 if job.kind == "scan" else 1
    requests = arrays / job.chunk_rows
    if remote:
        reading, objects = rates["reading"], rates["objects"]
        seconds += size * (reading["zstd"] - reading["plain"])
        size *= reading["compressed"]
        seconds += requests * objects["object"] + size * objects["byte"]
    merge = merge_of(rates, job.width)
    return Work(
        row_seconds=seconds,
        row_bytes=size,
        row_requests=requests,
        leaf_requests=0.0 if job.kind == "scan" else 1.0,  # a chunk of codes is written
        merge_seconds=merge["seconds"] if job.kind == "scan" else 0.0,
        result_bytes=merge["bytes"] if job.kind == "scan" else 0.0,
        task_seconds=rates["scheduling"]["worker"],
    )


def merge_of(rates: dict[str, Any], width: int) -> dict[str, float]:
    """Seconds and bytes of a merge of statistics of that many columns."""
    [found] = [one for one in rates["merges"] if one["width"] == width]
    return found


def driver_seconds(rates: dict[str, Any], job: Job, store: Store) -> float:
    """What one process does before or after the tasks.

    A fit reads labels, and rows to draw anchors from, of up to 64 blocks, one after the other, and
    solves; an encoding lists the chunks before and after, and writes some ten small files.
    """
    if job.kind != "scan":
        return (10 + 2 * -(-job.n_rows // (65_536 * LISTED))) * store.latency
    n_chunks = min(SAMPLE_BLOCKS * -(-BLOCK_ROWS // job.chunk_rows), -(-job.n_rows // BLOCK_ROWS))
    seconds = n_chunks * store.latency
    if job.anchors:
        size = job.chunk_rows * 4 * job.n_features
        seconds += n_chunks * (store.latency + size / store.connection)
    solving = {one["width"]: one["seconds"] for one in rates["solving"] if one["classes"] == 100}
    return seconds + solving[job.width]


def parts_of(job: Job) -> int:
    """Files of the checkpoint of a scan."""
    tasks = scan_tasks(job.n_rows, 1, job.n_features, checkpoint_width=job.width)
    return sum(task.kind == "keep" for task in tasks)


def most_groups(job: Job, threads: int, memory: int) -> int:
    """Label groups up to which a worker's memory suffices by the package's own prediction."""
    low, high = 1, 1 << 30
    while high - low > 1:
        middle = (low + high) // 2
        fits = memory_of(job, threads, middle).total <= memory
        low, high = (middle, high) if fits else (low, middle)
    return low


def memory_of(job: Job, threads: int, n_groups: int = 100) -> MemoryPlan:
    """The package's own prediction for a worker of that many threads."""
    shape = ScanShape(
        job.n_rows,
        job.n_features,
        np.dtype("float32"),
        job.anchors or None,
        n_groups,
        job.chunk_rows,
        SAMPLE_ROWS,
    )
    return plan_scan(shape, BLOCK_ROWS, threads)
