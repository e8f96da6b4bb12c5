"""What a case of so many rows takes, before there is any: time, memory, storage, requests.

Memory is what the plan of `fit` says (`compute.memory`), chunks and tasks are cut by the functions
that cut them in earnest, and times are rates that were measured (`rates`) times the work. What is
assumed about an object store stands in `PLACES`.

A task fetches chunks ahead, so a thread waits for the first one only, unless its connections are
slower than it computes. Threads of a worker wait for that or want one of its cores; with waiting
and computing in equal parts everywhere, that is a closed queueing network, whose mean is exact
whatever the distribution of both times is (Baskett, Chandy, Muntz and Palacios).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from sadih_dask.compute import tree
from sadih_dask.compute.checkpoint import FEWEST_PARTS, ROWS_PER_STATISTIC, part_ranges
from sadih_dask.compute.encode import code_chunk_rows
from sadih_dask.compute.evaluate import Count
from sadih_dask.compute.memory import INTERPRETER, MemoryPlan, ScanShape, plan_scan, solve_bytes
from sadih_dask.compute.scan import MOST_TAIL_NODES, TAIL_NODES, node_rows
from sadih_dask.errors import InputError
from sadih_dask.ingest.ingestion import WRITERS, blocks_per_task
from sadih_dask.jobs.rates import BLOCK_ROWS, Rates
from sadih_dask.learning.features import SAMPLE_BLOCKS, SAMPLE_ROWS
from sadih_dask.model.parameters import MAX_QUERIES
from sadih_dask.retrieval.codes import n_bytes
from sadih_dask.stores.ahead import depth_of
from sadih_dask.stores.layout import default_chunk_rows

LABEL_BYTES = 8
HEADROOM = 1.25
"""Memory of a container over that of its worker, for its nanny and Dask's own."""
BUSY = 0.7
"""Part of its cores from which on a worker is held up by them."""
Where: TypeAlias = Literal["local", "s3"]


@dataclass(frozen=True)
class Place:
    """Where rows are.

    latency             seconds to the first byte
    connection, worker  bytes a second of one connection, and of a worker
    total, requests     bytes and requests a second of all
    """

    latency: float
    connection: float
    worker: float
    total: float
    requests: float


PLACES: dict[str, Place] = {
    "s3": Place(0.030, 80e6, 1.25e9, 100e9, 5500.0),
    "local": Place(0.0, math.inf, math.inf, math.inf, math.inf),
}
"""An object store of a cloud is assumed, not measured: 30 ms, 80 MB/s a connection, 10 Gbit/s a
worker, and as many requests as S3 promises for one prefix. A disk has the rate of the rates."""


@dataclass(frozen=True)
class Case:
    """What somebody wants to do, and with what.

    n_rows, n_features, n_classes   float32 features, one label a row
    anchors, n_bits, n_queries      of model and evaluation; 0 anchors are none
    workers, threads, cores         processes, and what each of them has; 0 threads: one a core
    store                           where everything is
    chunk_rows                      of the store, if not by default
    memory                          bytes that a worker may use, if that is to be checked
    bandwidth                       bytes a second that the store has for all, if not by default
    """

    n_rows: int
    n_features: int
    n_classes: int = 100
    anchors: int = 1000
    n_bits: int = 64
    n_queries: int = MAX_QUERIES
    workers: int = 1
    threads: int = 0
    cores: int = 2
    store: Where = "local"
    chunk_rows: int = 0
    memory: int | None = None
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        for name in ("n_rows", "n_features", "n_classes", "n_bits", "workers", "cores"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        chosen = {
            "threads": self.threads or self.cores,
            "chunk_rows": self.chunk_rows or default_chunk_rows(4 * self.n_features),
            "n_queries": min(self.n_queries or MAX_QUERIES, self.n_rows),
        }
        for name, value in chosen.items():
            object.__setattr__(self, name, value)

    @property
    def columns(self) -> int:
        """Columns of the statistics."""
        return self.anchors or self.n_features

    @property
    def row_bytes(self) -> int:
        """Bytes of a row and its label."""
        return 4 * self.n_features + LABEL_BYTES

    @property
    def n_chunks(self) -> int:
        """Chunks of each array of the store."""
        return -(-self.n_rows // self.chunk_rows)

    @property
    def n_code_chunks(self) -> int:
        """Chunks of the code store, each written by one task."""
        return -(-self.n_rows // code_chunk_rows(self.chunk_rows, BLOCK_ROWS))

    @property
    def all_threads(self) -> int:
        """Threads of all workers."""
        return self.workers * self.threads

    @property
    def shape(self) -> ScanShape:
        """What decides the memory of a fit."""
        read = self.chunk_rows, min(SAMPLE_ROWS, self.n_rows)
        of_it = self.n_rows, self.n_features, np.dtype("float32"), self.anchors or None
        fetched = self.fetched if self.store == "s3" else 0
        return ScanShape(*of_it, self.n_classes, *read, n_bits=self.n_bits, fetched=fetched)

    @property
    def fetched(self) -> int:
        """Chunks of features that a task fetches at a time."""
        return 1 + depth_of(self.chunk_rows * 4 * self.n_features)

    def plan(self, threads: int) -> MemoryPlan:
        """The memory of a worker, as `fit` plans it."""
        return plan_scan(self.shape, BLOCK_ROWS, threads)


@dataclass(frozen=True)
class Stage:
    """One command: how long, what holds it up, and what it asks of the others.

    requests  to the store; ``tasks`` those of the scheduler, 0 where there are none
    cores     that are paid for meanwhile
    """

    name: str
    seconds: float
    limit: str
    requests: int
    tasks: int
    cores: int

    @property
    def core_hours(self) -> float:
        """What is paid for."""
        return self.seconds / 3600 * self.cores


@dataclass(frozen=True)
class Size:
    """What a case takes. ``memory`` and ``storage`` are bytes, by process and by what is kept."""

    case: Case
    stages: list[Stage]
    memory: dict[str, int]
    storage: dict[str, int]
    fitting_threads: int | None = None

    @property
    def total(self) -> Stage:
        """All stages, one after the other."""
        parts = zip(*((s.seconds, s.requests, s.tasks) for s in self.stages), strict=True)
        seconds, requests, tasks = map(sum, parts)
        return Stage("all", seconds, "", requests, tasks, self.stages[0].cores)


def size(case: Case, rates: Rates) -> Size:
    """Compute what a case takes."""
    stages = [_ingest(case, rates), _fit(case, rates), _encode(case, rates), _evaluate(case, rates)]
    tasks = max(stage.tasks for stage in stages)
    memory = {
        "worker": case.plan(case.threads).total,
        "scheduler": int(rates.tasks["empty"] + tasks * rates.tasks["bytes"]),
        "driver": _driver_bytes(case, rates),
    }
    fitting = None
    if case.memory is not None and memory["worker"] > case.memory:
        fits = (n for n in range(case.threads - 1, 0, -1) if case.plan(n).total <= case.memory)
        fitting = next(fits, 0)
    return Size(case, stages, memory, _storage(case, rates), fitting)


def _driver_bytes(case: Case, rates: Rates) -> int:
    """What the process of the command takes: anchors are drawn, codes solved for and judged."""
    solving = case.shape.statistics + solve_bytes(case.shape)
    planned = INTERPRETER + max(case.plan(1).sample, solving)
    judging = rates.of_judging("bytes", case.n_features, case.anchors)
    histograms = 3 * case.n_queries * Count.bytes_of(case.n_bits)
    return int(max(planned, judging + histograms))


def _storage(case: Case, rates: Rates) -> dict[str, int]:
    source = case.n_rows * case.row_bytes
    return {
        "source": source,
        "store": int(source * (rates.reading["compressed"] if case.store == "s3" else 1)),
        "codes": case.n_rows * (n_bytes(case.n_bits) + LABEL_BYTES),
        "checkpoint": _n_parts(case) * case.shape.statistics,
    }


def _n_parts(case: Case) -> int:
    """Files in which a scan is kept until its model is saved."""
    node = node_rows(case.chunk_rows, BLOCK_ROWS)
    parts = len(part_ranges(case.n_rows, node, ROWS_PER_STATISTIC * case.columns))
    return parts if parts >= FEWEST_PARTS else 0


def _ingest(case: Case, rates: Rates) -> Stage:
    """Tasks that read a source of large files beside the store, and write it."""
    blocks = blocks_per_task(case.n_chunks, case.all_threads)
    tasks = -(-case.n_chunks // blocks)
    work = _Work(
        case,
        rates,
        "ingest",
        row_seconds=case.row_bytes * rates.ingesting["zstd" if case.store == "s3" else "plain"],
        row_bytes=2 * case.row_bytes,  # read and written
        tasks=tasks,
        requests=2 * 3 * case.n_chunks,  # features and labels: look at a file, read, write
        connections=1 + WRITERS,
        waits=2 * tasks,  # for the first rows, and until the last are written
        wait_bytes=2 * tasks * case.chunk_rows * case.row_bytes,
        last_rows=blocks * case.chunk_rows,
        compressed=False,
    )
    return work.stage()


def _fit(case: Case, rates: Rates) -> Stage:
    node = node_rows(case.chunk_rows, BLOCK_ROWS)
    nodes = -(-case.n_rows // node)
    cut = min(TAIL_NODES * case.all_threads, MOST_TAIL_NODES, nodes)
    whole = nodes if case.chunk_rows > BLOCK_ROWS or case.store == "s3" else nodes - cut
    leaves = whole + -(-max(0, case.n_rows - whole * node) // BLOCK_ROWS)
    merges, parts = leaves - 1, _n_parts(case)
    work = _Work(
        case,
        rates,
        "fit",
        row_seconds=rates.of_row("scan", case.n_features, case.anchors, case.n_bits),
        row_bytes=case.row_bytes,
        tasks=leaves + merges + parts,
        requests=2 * case.n_chunks + (leaves + parts if parts else 0),
        connections=case.fetched,
        waits=leaves + (leaves + parts if parts else 0),
        wait_bytes=leaves * case.chunk_rows * case.row_bytes,
        more_seconds=merges * case.shape.statistics * rates.merging,
        last_rows=BLOCK_ROWS if whole < nodes else node,
    )
    place = _place(case, rates)
    drawn = min(SAMPLE_BLOCKS * -(-BLOCK_ROWS // case.chunk_rows), case.n_chunks)
    reads = drawn * (2 if case.anchors else 1)  # labels, and rows to draw anchors from
    fetching = reads * place.latency
    if case.anchors:
        fetching += drawn * case.chunk_rows * case.row_bytes / place.connection
    alone = fetching / case.fetched + rates.of_solving(case.columns, case.n_classes)
    return work.stage(alone, reads)


def _encode(case: Case, rates: Rates) -> Stage:
    work = _Work(
        case,
        rates,
        "encode",
        row_seconds=rates.of_row("encode", case.n_features, case.anchors, case.n_bits),
        row_bytes=case.row_bytes,
        tasks=case.n_code_chunks,
        requests=2 * (case.n_chunks + case.n_code_chunks),  # labels go with the codes
        connections=case.fetched,
        waits=3 * case.n_code_chunks,  # for the first chunk, and to write codes and labels
        wait_bytes=case.n_code_chunks * case.chunk_rows * case.row_bytes,
        last_rows=case.n_rows / case.n_code_chunks,
    )
    return work.stage()


def _evaluate(case: Case, rates: Rates) -> Stage:
    """Queries among the codes of all rows, then samples of the rows among each other."""
    most = max(1, tree.PARTIAL_BYTES // Count.bytes_of(case.n_bits))
    chunk = code_chunk_rows(case.chunk_rows, BLOCK_ROWS)
    queries, ranges = tree.plan_grid(case.n_queries, case.n_rows, chunk, most, case.all_threads)
    work = _Work(
        case,
        rates,
        "evaluate",
        row_seconds=case.n_queries * rates.of_pair(case.n_bits),
        row_bytes=len(queries) * (n_bytes(case.n_bits) + LABEL_BYTES),
        tasks=len(queries) * len(ranges),
        requests=len(queries) * (case.n_code_chunks + case.n_chunks),
        connections=case.fetched,
        waits=len(queries) * len(ranges),
        last_rows=len(ranges[0]) / len(queries),
        compressed=False,
    )
    alone = rates.of_judging("seconds", case.n_features, case.anchors)
    found = work.stage(alone)
    return replace(found, limit="the driver") if 2 * alone > found.seconds else found


@dataclass(frozen=True)
class _Work:
    """What workers do in a stage: seconds and bytes of a row, tasks, requests.

    connections         of a thread, over which it fetches ahead or writes behind
    waits, wait_bytes   requests, and bytes of them, that a thread waits for with nothing to compute
    """

    case: Case
    rates: Rates
    name: str
    row_seconds: float
    row_bytes: float
    tasks: int
    requests: int
    connections: int
    waits: int
    wait_bytes: float = 0.0
    more_seconds: float = 0.0
    last_rows: float = 0.0
    compressed: bool = True

    def stage(self, alone: float = 0.0, more_requests: int = 0) -> Stage:
        """The stage, with seconds that the driver works alone, and requests that it makes."""
        case, rates = self.case, self.rates
        place = _place(case, rates)
        n_bytes, wait_bytes = case.n_rows * self.row_bytes, self.wait_bytes
        processor = case.n_rows * self.row_seconds + self.more_seconds
        processor += self.tasks * rates.tasks["worker"]
        if case.store == "s3":
            if self.compressed:
                processor += n_bytes * (rates.reading["zstd"] - rates.reading["plain"])
                n_bytes *= rates.reading["compressed"]
                wait_bytes *= rates.reading["compressed"]
            processor += self.requests * rates.objects["request"] + n_bytes * rates.objects["byte"]
        waiting = self.waits * place.latency + wait_bytes / place.connection
        fetching = self.requests * place.latency + n_bytes / place.connection
        busy = busy_cores(case.threads, case.cores, processor, waiting)
        by = "processors" if busy > BUSY * min(case.threads, case.cores) else "connections"
        seconds, limit = max(
            (processor / (case.workers * busy), by),
            (fetching / (case.all_threads * self.connections), "connections"),
            (n_bytes / place.total, "store"),
            (n_bytes / (case.workers * place.worker), "network"),
            (self.requests / place.requests, "requests"),
            (self.tasks * rates.tasks["scheduler"], "scheduler"),
        )
        # The last tasks do not end together: half of one, on average.
        last = self.last_rows / case.n_rows * (processor + waiting) / 2
        requests, cores = self.requests + more_requests, case.workers * case.cores
        return Stage(self.name, seconds + last + alone, limit, requests, self.tasks, cores)


def _place(case: Case, rates: Rates) -> Place:
    place = PLACES[case.store]
    if case.bandwidth is not None:
        return replace(place, total=case.bandwidth)
    return replace(place, total=1 / rates.reading["disk"]) if case.store == "local" else place


def busy_cores(threads: int, cores: int, computing: float, waiting: float) -> float:
    """Mean number of cores at work, with threads that compute and wait in turn.

    The state is how many threads want a core, k; its probability is proportional to
    waiting^(n - k) / (n - k)! x computing^k / (min(1, c) ... min(k, c)).

    >>> busy_cores(4, 2, computing=1.0, waiting=0.0)
    2.0
    """
    if waiting == 0:
        return float(min(threads, cores))
    share = computing / waiting
    weights = np.ones(threads + 1)
    for k in range(1, threads + 1):
        weights[k] = weights[k - 1] * share * (threads - k + 1) / min(k, cores)
        weights /= weights.max()
    wanted = np.minimum(np.arange(threads + 1), cores)
    return float(weights @ wanted / weights.sum())


def to_json(found: Size) -> dict[str, Any]:
    """The same as plain data."""
    stages = [
        {**vars(stage), "core_hours": stage.core_hours, "kind": "computed"}
        for stage in found.stages
    ]
    return {
        "case": vars(found.case),
        "stages": stages,
        "memory": {name: {"bytes": n, "kind": KINDS[name]} for name, n in found.memory.items()},
        "storage": {name: {"bytes": n, "kind": "computed"} for name, n in found.storage.items()},
        "fitting_threads": found.fitting_threads,
    }


KINDS = {"worker": "predicted", "scheduler": "computed", "driver": "predicted"}
"""How memory is known: by the plan that `fit` checks, or by measured rates."""
