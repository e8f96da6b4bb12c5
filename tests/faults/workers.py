"""Worker processes of a Dask cluster are killed, again and again, in every stage.

    python -m tests.faults.workers [--kills 100] [--seed 20]

``sadih run`` works on a cluster of ``dask worker`` processes, each of which its nanny replaces when
it dies. First undisturbed; then, as often as it takes for that many kills, while random workers are
killed. What must hold: the model and the codes have the same SHA-256; nothing hangs; and it takes
at most three times as long as undisturbed. A command that ends with 4 (the cluster failed) is
repeated, as it says; its time counts.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.faults.forks import Child, Ended, Forks, Hang
from tests.faults.jobs import Job, Run, Size
from tests.faults.table import Outcome, main
from tests.support.processes import DaskProcesses, dask_processes

SIZE = Size(
    n_rows=150_000,
    n_features=32,
    anchors=400,
    chunk_rows=4096,
    block_rows=1024,
    n_queries=200,
    bits=32,
)
N_WORKERS = 4
PAUSE = 2.0
"""Seconds, about, from one kill to the next; it also waits until all workers but one are there."""
SOON = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s"}
"""By default Dask's processes try for 30 s to reach one that is dead."""
SLOWER = 3.0
CLUSTER_FAILED = 4
REPEATS = 5
STAGES = ("ingest", "fit", "encode", "evaluate", "export", "report")


def run(folder: Path, kills: int, seed: int) -> Outcome:
    """Run undisturbed, then disturbed until there were enough kills."""
    outcome = Outcome("kill -9 of random workers")
    with dask_processes(N_WORKERS, environment=SOON) as cluster, Forks(folder) as forks:
        disturbed = Disturbed(forks, folder, cluster, SIZE, report=True)
        rng = random.Random(seed)
        while sum(disturbed.killed.values()) < kills:
            outcome.trials += 1
            try:
                disturbed.run(rng, PAUSE)
            except AssertionError as error:
                outcome.failures.append(str(error))
                if len(outcome.failures) > 2:
                    break
    slower = max(disturbed.seconds, default=0.0) / disturbed.undisturbed
    mean = sum(disturbed.seconds) / max(1, len(disturbed.seconds)) / disturbed.undisturbed
    outcome.check(slower <= SLOWER, f"the slowest run took {slower:.2f} x the undisturbed time")
    stages = ", ".join(f"{stage} {disturbed.killed[stage]}" for stage in STAGES)
    outcome.figures = {
        "kills": f"{sum(disturbed.killed.values())} ({stages})",
        "identical models and codes": f"{len(disturbed.seconds)} of {outcome.trials} runs",
        "time": f"{mean:.2f} x undisturbed ({disturbed.undisturbed:.0f} s), at most {slower:.2f} x",
        "repeated with exit code 4": f"{disturbed.repeats}",
        "hangs": f"{disturbed.hangs}",
    }
    return outcome


class Disturbed:
    """Runs of one job on a cluster whose workers are killed."""

    def __init__(
        self, forks: Forks, folder: Path, cluster: DaskProcesses, size: Size, *, report: bool
    ) -> None:
        self._forks, self._cluster = forks, cluster
        job = Job(folder / "sources", folder, size)
        job.make_sources()
        self._run = Run(job, folder / "run", report)
        self._words = [*self._run.words, "--scheduler", cluster.address]
        ended = forks.start(*self._words).wait(600)
        assert ended.code == 0, ended.said
        self.undisturbed = ended.seconds
        self.expected = self._run.digests()
        self.killed: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.repeats = self.hangs = 0
        self._most = math.inf

    def run(self, rng: random.Random, pause: float, most: float = math.inf) -> None:
        """One run from the start, while workers die, not more than ``most`` of them."""
        shutil.rmtree(self._run.directory)
        self._most = self.killed.total() + most
        began = time.monotonic()
        for _ in range(REPEATS):
            child = self._forks.start(*self._words)
            try:
                ended = self._watch(child, rng, pause)
            except Hang as hang:
                self.hangs += 1
                raise AssertionError(f"a hang: {hang}") from hang
            if ended.code != CLUSTER_FAILED:
                break
            self.repeats += 1
        assert ended.code == 0, f"exit code {ended.code}: {ended.said[-1500:]}"
        assert self._run.digests() == self.expected, "another result"
        self.seconds.append(time.monotonic() - began)

    def _watch(self, child: Child, rng: random.Random, pause: float) -> Ended:
        """Kill a worker now and then, and in every stage at once, until the command ends."""
        enough = max(1, len(self._cluster.workers) - 1)
        following = time.monotonic() + rng.uniform(0.2, pause)
        with self._cluster.client(set_as_default=False) as client:
            while child.poll() is None:
                time.sleep(0.02)
                if time.monotonic() - child.began > 10 * SLOWER * self.undisturbed:
                    child.kill()
                    raise Hang(child.log.read_text()[-1500:])
                untouched = self.killed[stage_of(self._run.directory)] == 0
                early = time.monotonic() < following and not untouched
                enough_killed = self.killed.total() >= self._most
                if early or enough_killed or len(client.nthreads()) < enough:
                    continue
                self._kill_one(rng)
                following = time.monotonic() + rng.uniform(0.2, 1.8) * pause
        return child.wait()

    def _kill_one(self, rng: random.Random) -> None:
        alive = list(worker_processes(self._cluster))
        if not alive:
            return
        victim = rng.choice(alive)
        if time.time() - victim.create_time() < 1.0:
            return  # it has not come to anything yet
        os.kill(victim.pid, signal.SIGKILL)
        self.killed[stage_of(self._run.directory)] += 1


def worker_processes(cluster: DaskProcesses) -> Iterator[psutil.Process]:
    """The processes that nannies have started, which do the work."""
    for nanny in cluster.workers:
        try:
            for process in psutil.Process(nanny.pid).children():
                if "spawn_main" in " ".join(process.cmdline()):
                    yield process
        except psutil.NoSuchProcess:
            continue


def stage_of(directory: Path) -> str:
    """The stage that a run is at: the first whose artefact is not finished."""
    done = {path.parent.name.rpartition("-")[0] for path in directory.glob("artefacts/*/done.json")}
    return next((stage for stage in STAGES if stage not in done), STAGES[-1])


if __name__ == "__main__":
    main(run, trials=100, counted="kills")
