"""A scan or an encoding on a cluster that is not here: a simulation of discrete events.

Tasks come from the real graph (`sizing_graph`). The scheduler is one server that needs some time
for every task; as Dask does, it keeps leaves back until a worker has a thread for them, gives them
out in the order of their priority to the worker with the fewest tasks, and puts a merge on a worker
that has one of its operands. A leaf waits for its requests, shares the object store with all other
leaves and then the cores of its worker; a merge fetches what it lacks over the network. A worker
that dies takes its results along: what they were made of is computed again, as Dask would.

Left out: the time to send messages and to notice a dead worker, work stealing, heartbeats, the
sending side of the network, and that blocks of a leaf are read and reduced in turns.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.benchmarks.sizing_cluster import Cluster, Outcome, Work
from tests.benchmarks.sizing_events import Clock, Queue, Shared
from tests.benchmarks.sizing_graph import Task

SATURATION = 1.1
"""Leaves that a worker gets for each of its threads: `distributed.scheduler.worker-saturation`."""


@dataclass
class _Worker:
    """State of one worker: free threads, tasks that it was given, results that it holds."""

    free: int
    processors: Shared
    network: Shared
    given: set[int] = field(default_factory=set)
    ready: list[tuple[int, int]] = field(default_factory=list)
    results: set[int] = field(default_factory=set)
    held: int = 0
    life: int = 0
    alive: bool = True


def simulate(tasks: Sequence[Task], cluster: Cluster, work: Work) -> Outcome:
    """Run the tasks, the last of which is the one that is wanted."""
    return _Run(tasks, cluster, work).outcome()


class _Run:
    """One run; every task but the last has one other that takes its result."""

    def __init__(self, tasks: Sequence[Task], cluster: Cluster, work: Work) -> None:
        self._tasks, self._cluster, self._work = tasks, cluster, work
        self._clock = Clock()
        self._scheduler = Queue(self._clock, cluster.scheduler)
        # Requests of all workers together may be fewer than the bytes would allow.
        store = cluster.store
        self._weight = 1.0
        if not math.isinf(store.requests) and not math.isinf(store.total) and work.row_bytes:
            per_byte = work.row_requests / work.row_bytes
            self._weight = max(1.0, per_byte * store.total / store.requests)
        share = min(store.connection, store.worker / cluster.threads)
        self._store = Shared(self._clock, store.total, self._weight * share)
        self._workers = [
            _Worker(
                cluster.threads,
                Shared(self._clock, cluster.cores, 1.0),
                Shared(self._clock, cluster.network, cluster.network),
            )
            for _ in range(cluster.workers)
        ]
        self._slots = math.ceil(SATURATION * cluster.threads)
        self._parent = [-1] * len(tasks)
        for k, task in enumerate(tasks):
            for child in task.after:
                self._parent[child] = k
        self._waits = [len(task.after) for task in tasks]
        self._home: list[_Worker | None] = [None] * len(tasks)
        self._at: list[_Worker | None] = [None] * len(tasks)
        self._over = [False] * len(tasks)
        self._queued: list[tuple[int, int]] = []
        self._random = random.Random(cluster.seed)
        self._n_done = self._rows_read = self._deaths = 0
        self._requests = self._network_bytes = self._reading = 0.0

    def outcome(self) -> Outcome:
        for k, task in enumerate(self._tasks):
            if not task.after:
                self._queue(k)
        self._give_out()
        for worker in self._workers:
            self._await_death(worker)
        self._clock.run(lambda: self._over[-1])
        seconds = max(self._clock.now, 1e-12)
        cores = self._cluster.workers * self._cluster.cores
        total = self._cluster.store.total
        return Outcome(
            seconds=self._clock.now,
            tasks=self._n_done,
            rows_read=self._rows_read,
            requests=self._requests,
            store_bytes=self._rows_read * self._work.row_bytes,
            network_bytes=self._network_bytes,
            scheduler_busy=self._scheduler.busy / seconds,
            scheduler_peak=self._scheduler.peak(),
            processors_busy=sum(one.processors.served for one in self._workers) / cores / seconds,
            store_busy=self._store.served / total / seconds,
            reading=self._reading / (self._cluster.workers * self._cluster.threads) / seconds,
            held=max(one.held for one in self._workers) * self._work.result_bytes,
            deaths=self._deaths,
        )

    # -- the scheduler ----------------------------------------------------------------------------

    def _queue(self, k: int) -> None:
        heapq.heappush(self._queued, (self._tasks[k].priority, k))

    def _give_out(self) -> None:
        """Give leaves to workers that have threads for them, the least busy first."""
        while self._queued:
            open_ = [one for one in self._workers if one.alive and len(one.given) < self._slots]
            if not open_:
                return
            worker = min(open_, key=lambda one: len(one.given))
            self._give(heapq.heappop(self._queued)[1], worker)

    def _give(self, k: int, worker: _Worker) -> None:
        worker.given.add(k)
        self._at[k] = worker
        missing = [child for child in self._tasks[k].after if child not in worker.results]
        size = len(missing) * self._work.result_bytes
        self._network_bytes += size
        worker.network.start(size, partial(self._arrived, k, missing, worker, worker.life))

    def _arrived(self, k: int, fetched: list[int], worker: _Worker, life: int) -> None:
        if worker.life != life or k not in worker.given:
            return
        for child in fetched:
            self._hold(child, worker)
        heapq.heappush(worker.ready, (self._tasks[k].priority, k))
        self._start_tasks(worker)

    def _told(self, k: int, worker: _Worker, life: int) -> None:
        """The scheduler has heard that a task is done."""
        if worker.life != life:
            return
        worker.given.discard(k)
        self._at[k] = None
        self._over[k] = True
        self._home[k] = worker
        for child in self._tasks[k].after:
            for one in (worker, self._home[child]):
                if one is not None:
                    one.results.discard(child)
            self._home[child] = None
        parent = self._parent[k]
        if parent >= 0:
            self._waits[parent] -= 1
            if not self._waits[parent]:
                self._place(parent)
        self._give_out()

    def _place(self, k: int) -> None:
        """Put a task on the worker that has one of its operands and the fewest tasks."""
        homes = [home for child in self._tasks[k].after if (home := self._home[child]) is not None]
        if len(homes) < len(self._tasks[k].after):
            raise RuntimeError(f"task {k} is to run, but not all of its operands are there")
        self._give(k, min(homes, key=lambda one: len(one.given)))

    # -- a worker ---------------------------------------------------------------------------------

    def _start_tasks(self, worker: _Worker) -> None:
        while worker.free and worker.ready:
            worker.free -= 1
            k = heapq.heappop(worker.ready)[1]
            task, life = self._tasks[k], worker.life
            if task.kind != "leaf":
                self._compute(k, worker, life)
                continue
            n_requests = task.rows * self._work.row_requests + self._work.leaf_requests
            self._requests += n_requests
            wait = n_requests * self._cluster.store.latency
            self._reading -= self._clock.now
            self._clock.after(wait, partial(self._read, k, worker, life))

    def _read(self, k: int, worker: _Worker, life: int) -> None:
        size = self._tasks[k].rows * self._work.row_bytes * self._weight
        self._store.start(size, partial(self._reduce, k, worker, life))

    def _reduce(self, k: int, worker: _Worker, life: int) -> None:
        self._reading += self._clock.now
        self._compute(k, worker, life)

    def _compute(self, k: int, worker: _Worker, life: int) -> None:
        if worker.life != life:
            return
        task, work = self._tasks[k], self._work
        merging = work.merge_seconds if task.kind == "merge" else 0.0
        seconds = task.rows * work.row_seconds + merging + work.task_seconds
        worker.processors.start(seconds, partial(self._done, k, worker, life))

    def _done(self, k: int, worker: _Worker, life: int) -> None:
        if worker.life != life:
            return
        self._rows_read += self._tasks[k].rows
        self._n_done += 1
        worker.free += 1
        self._hold(k, worker)
        self._scheduler.serve(partial(self._told, k, worker, life))
        self._start_tasks(worker)

    def _hold(self, k: int, worker: _Worker) -> None:
        worker.results.add(k)
        worker.held = max(worker.held, len(worker.results))

    # -- death ------------------------------------------------------------------------------------

    def _await_death(self, worker: _Worker) -> None:
        if self._cluster.deaths_per_hour:
            rate = self._cluster.deaths_per_hour / 3600.0
            self._clock.after(self._random.expovariate(rate), partial(self._die, worker))

    def _die(self, worker: _Worker) -> None:
        self._deaths += 1
        given = sorted(worker.given)
        lost = [k for k in sorted(worker.results) if self._home[k] is worker]
        worker.life += 1
        worker.alive, worker.free = False, 0
        worker.given, worker.ready, worker.results = set(), [], set()
        for k in given:
            self._at[k] = None
        for k in lost:
            self._home[k] = None
        for k in given:
            self._want(k)
        for k in lost:
            parent = self._parent[k]
            # One that runs elsewhere has its copy; one that ran here has asked for it just now.
            if self._over[k] and parent >= 0 and self._at[parent] is None:
                self._waits[parent] += 1
                self._want(k)
        self._clock.after(self._cluster.restart, partial(self._come_back, worker))
        self._give_out()

    def _want(self, k: int) -> None:
        """See to it that a task is run, and what its operands were made of, if they are gone."""
        self._over[k] = False
        missing = [child for child in self._tasks[k].after if self._home[child] is None]
        self._waits[k] = len(missing)
        for child in missing:
            if self._over[child]:
                self._want(child)
        if not self._tasks[k].after:
            self._queue(k)
        elif not missing:
            self._place(k)

    def _come_back(self, worker: _Worker) -> None:
        worker.alive, worker.free = True, self._cluster.threads
        self._await_death(worker)
        self._give_out()
