"""Workers that are slow, that stand still for a while, or that have too little memory.

    python -m tests.faults.starved [--trials 2] [--seed 20]

Each trial runs ``sadih fit`` four times on a cluster of worker processes: with one worker that gets
a quarter of the time it wants; with one that stands still for some seconds; with workers whose
memory is too small for the job; and with workers that another program has filled with data, so that
they have to spill. What must hold: the same model to the last bit, or, where memory is too small, a
refusal that says so before any work is done; and in no case do workers die and come back in a loop.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from sadih_dask import FeatureStore
from tests.faults.forks import Ended, Forks
from tests.faults.table import Outcome, main
from tests.faults.workers import worker_processes
from tests.support.processes import DaskProcesses, dask_processes

N_ROWS, N_FEATURES, ANCHORS = 40_000, 16, 300
ROOMY, FILLED = "1GiB", "400MiB"
TIGHT, MANY_ANCHORS = "320MiB", 4000
"""A worker, and anchors whose statistics do not fit into it."""
SHARE, CYCLE = 0.25, 0.4
"""Of the time, and seconds: shorter than a cycle the kernel of a busy machine gives it nothing."""
STILL = 5.0
PATIENCE = 400.0


def run(folder: Path, trials: int, seed: int) -> Outcome:
    """Starve workers in four ways."""
    outcome = Outcome("slow and memory-starved workers")
    rng = random.Random(seed)
    with Forks(folder) as forks:
        job = Fit(forks, folder)
        times: dict[str, list[float]] = {"slow": [], "still": []}
        died = refused = spilled = 0
        for _ in range(trials):
            with dask_processes(3, memory_limit=ROOMY) as cluster:
                before = pids(cluster)
                whole = job.run(cluster)
                for name, hamper in (("slow", slowed), ("still", stopped)):
                    outcome.trials += 1
                    with hamper(rng.choice(list(worker_processes(cluster)))):
                        ended = job.run(cluster)
                    times[name].append(ended.seconds / whole.seconds)
                    job.check_same(outcome, name, ended)
                lost = len(before - pids(cluster))
                died += lost
                outcome.check(not lost, f"{lost} workers died though none was killed")
            outcome.trials += 2
            refused += job.in_too_little_memory(outcome)
            spilled += job.beside_other_data(outcome)
    outcome.figures = {
        "a worker at a quarter of its speed": f"{_mean(times['slow']):.2f} x undisturbed",
        f"one that stood still for {STILL:.0f} s": f"{_mean(times['still']):.2f} x",
        "refused for memory": f"{refused}",
        "finished beside data that were spilled": f"{spilled}",
        "workers that died": f"{died}",
    }
    return outcome


class Fit:
    """A store, the command that learns from it, and the model that it must give."""

    def __init__(
        self, forks: Forks, folder: Path, n_rows: int = N_ROWS, anchors: int = ANCHORS
    ) -> None:
        rng = np.random.default_rng(0)
        y = rng.integers(5, size=n_rows)
        x = (y[:, None] + rng.normal(size=(n_rows, N_FEATURES))).astype(np.float32)
        self._store = FeatureStore.create(folder / "s", x, y, chunk_rows=2048)
        self._forks, self._model = forks, folder / "m.sadih"
        learning = ("--bits", 16, "--anchors", anchors, "--block-rows", 512, "--n-init", 1)
        self._words = ("fit", self._store.url, self._model, *learning, "--overwrite", "--quiet")
        ended = forks.run(*self._words)
        assert ended.code == 0, ended.said
        self._expected = self._model.read_bytes()

    def run(self, cluster: DaskProcesses) -> Ended:
        """Fit on a cluster."""
        return self._forks.start(*self._words, "--scheduler", cluster.address).wait(PATIENCE)

    def check_same(self, outcome: Outcome, name: str, ended: Ended) -> None:
        """It ended well, with the same model."""
        outcome.check(ended.code == 0, f"{name}: exit code {ended.code}: {ended.said[-800:]}")
        outcome.check(self._model.read_bytes() == self._expected, f"{name}: another model")

    def in_too_little_memory(self, outcome: Outcome) -> int:
        """Workers that are smaller than what the plan of memory says: refused at once."""
        with dask_processes(2, memory_limit=TIGHT) as cluster:
            before = pids(cluster)
            place = ("--scheduler", cluster.address, "--anchors", MANY_ANCHORS)
            ended = self._forks.start(*self._words, *place).wait(PATIENCE)
            died = len(before - pids(cluster))
        said = ended.said
        fine = ended.code == 1 and "memory" in said.lower() and "Traceback" not in said
        outcome.check(fine, f"too little memory: exit code {ended.code}: {said[-800:]}")
        outcome.check(not died, f"{died} workers died of too little memory")
        return int(fine and not died)

    def beside_other_data(self, outcome: Outcome) -> int:
        """Workers that hold somebody else's data: these are spilled to disk, and the fit ends."""
        with dask_processes(2, memory_limit=FILLED) as cluster:
            before = pids(cluster)
            with cluster.client(set_as_default=False) as client:
                held = [client.submit(_ballast, number, pure=False) for number in range(24)]
                client.gather([client.submit(len, one) for one in held])
                ended = self.run(cluster)
                on_disk = sum(client.run(_spilled).values())
                died = len(before - pids(cluster))
        self.check_same(outcome, "beside other data", ended)
        outcome.check(on_disk > 0, "nothing was spilled: the test does not starve anybody")
        outcome.check(died <= 2, f"{died} workers died beside other data")
        return int(ended.code == 0 and on_disk > 0)


def _ballast(_: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).random(2_000_000)


def _spilled(dask_worker: Any) -> int:
    """On a worker: values that lie on its disk."""
    return len(getattr(dask_worker.data, "slow", ()) or ())


def pids(cluster: DaskProcesses) -> set[int]:
    """Of the processes that work."""
    return {process.pid for process in worker_processes(cluster)}


@contextmanager
def slowed(process: psutil.Process) -> Iterator[None]:
    """Let a process run a quarter of the time only."""
    with _meanwhile(process, lambda over: _stutter(process, over)):
        yield


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """Let a process stand still for some seconds, soon after the beginning."""

    def still(over: threading.Event) -> None:
        over.wait(1.0)
        process.send_signal(signal.SIGSTOP)
        time.sleep(STILL)

    with _meanwhile(process, still):
        yield


def _stutter(process: psutil.Process, over: threading.Event) -> None:
    while not over.is_set():
        process.send_signal(signal.SIGSTOP)
        over.wait(CYCLE * (1 - SHARE))
        process.send_signal(signal.SIGCONT)
        over.wait(CYCLE * SHARE)


@contextmanager
def _meanwhile(
    process: psutil.Process, hamper: Callable[[threading.Event], None]
) -> Iterator[None]:
    over = threading.Event()

    def act() -> None:
        with suppress(psutil.NoSuchProcess):
            hamper(over)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


def _mean(values: list[float]) -> float:
    return sum(values) / max(1, len(values))


if __name__ == "__main__":
    main(run, trials=2)
