"""What a simulation is told, and what it tells."""

from __future__ import annotations

import math
from dataclasses import dataclass

BUSY = 0.7
"""Part of the time from which on something holds up the others."""


@dataclass(frozen=True)
class Store:
    """Where the rows are: bytes a second of one connection, of a worker and of all, requests."""

    latency: float = 0.0
    connection: float = math.inf
    worker: float = math.inf
    total: float = math.inf
    requests: float = math.inf


@dataclass(frozen=True)
class Cluster:
    """Workers of so many threads and cores, a scheduler, a network, and how often workers die."""

    workers: int
    threads: int = 1
    cores: int = 1
    store: Store = Store()
    network: float = math.inf
    scheduler: float = 0.0
    deaths_per_hour: float = 0.0
    restart: float = 30.0
    seed: int = 0


@dataclass(frozen=True)
class Work:
    """What tasks cost: seconds of a processor, bytes and requests of a row; merges and results."""

    row_seconds: float
    row_bytes: float
    row_requests: float = 0.0
    leaf_requests: float = 0.0
    merge_seconds: float = 0.0
    result_bytes: float = 0.0
    task_seconds: float = 0.0


@dataclass
class Outcome:
    """What a simulated run has come to."""

    seconds: float
    tasks: int
    rows_read: int
    requests: float
    store_bytes: float
    network_bytes: float
    scheduler_busy: float
    scheduler_peak: float
    processors_busy: float
    store_busy: float
    reading: float
    held: float
    deaths: int

    @property
    def bottleneck(self) -> str:
        """What would have to be faster first."""
        for name, share in (("scheduler", self.scheduler_busy), ("store", self.store_busy)):
            if share > BUSY:
                return name
        if self.processors_busy + self.reading < BUSY:
            return "too few tasks"
        return "processors" if self.processors_busy > self.reading else "connections"
