"""The Dask scheduler is killed while ``sadih run`` works on its cluster.

    python -m tests.faults.scheduler [--kills 12] [--seed 20]

The scheduler is killed at random moments of the stages that use it, another one is started at the
same address, and the command is repeated. What must hold: the command ends within `BOUND` seconds
with exit code 4 and one line that says what happened and that repeating resumes; the repeated
command ends with 0 and the very same result; finished stages are not done again.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

from tests.faults.forks import Forks
from tests.faults.jobs import Job, Run, Size
from tests.faults.table import Outcome, main
from tests.faults.workers import SIZE, stage_of
from tests.support.processes import DaskProcesses, dask_processes

N_WORKERS = 2
BOUND = 60.0
"""Seconds: twice the time that a scheduler may be silent (sadih.scheduler-timeout)."""
CLUSTER_FAILED = 4
USING_IT = ("fit", "encode", "evaluate")


def run(folder: Path, kills: int, seed: int) -> Outcome:
    """Kill the scheduler in every stage that uses it."""
    outcome = Outcome("kill -9 of the scheduler")
    rng = random.Random(seed)
    with dask_processes(N_WORKERS) as cluster, Forks(folder) as forks:
        lost = Lost(forks, folder, cluster, SIZE)
        for trial in range(kills):
            outcome.trials += 1
            try:
                lost.kill_in(USING_IT[trial % len(USING_IT)], rng.random())
            except AssertionError as error:
                outcome.failures.append(str(error))
    stages = ", ".join(f"{stage} {n}" for stage, n in lost.killed.items())
    outcome.figures = {
        "killed in": stages or "none",
        "exit code 4 after": f"at most {max(lost.noticed, default=0):.1f} s",
        "resumed identical": f"{lost.resumed}",
    }
    return outcome


class Lost:
    """Runs of one job whose scheduler is killed."""

    def __init__(self, forks: Forks, folder: Path, cluster: DaskProcesses, size: Size) -> None:
        self._forks, self._cluster = forks, cluster
        job = Job(folder / "sources", folder, size)
        job.make_sources()
        self._run = Run(job, folder / "run")
        self._words = [*self._run.words, "--scheduler", cluster.address]
        ended = forks.start(*self._words).wait(600)
        assert ended.code == 0, ended.said
        self._undisturbed = ended.seconds
        self.expected = self._run.digests()
        self.killed: Counter[str] = Counter()
        self.noticed: list[float] = []
        self.resumed = 0

    def kill_in(self, stage: str, share: float) -> None:
        """Kill the scheduler somewhere in a stage, start another, repeat the command."""
        shutil.rmtree(self._run.directory)
        child = self._forks.start(*self._words)
        while child.poll() is None and stage_of(self._run.directory) != stage:
            time.sleep(0.01)
        time.sleep(share * 0.3 * self._undisturbed / len(USING_IT))
        for worker in self._cluster.workers:
            self._cluster.kill(worker, signal.SIGSTOP)  # so that it is not over before the kill
        time.sleep(0.2)
        if child.poll() is not None:
            self._restart()
            return  # it was
        self.killed[stage_of(self._run.directory)] += 1
        finished = set(self._run.directory.glob("artefacts/*/done.json"))
        changed = {path: path.stat().st_mtime_ns for path in finished}
        self._cluster.kill(self._cluster.scheduler)
        began = time.monotonic()
        ended = child.wait(self._undisturbed + 3 * BOUND)
        if ended.code == 0:
            self._restart()
            return  # the result was on its way already
        self.noticed.append(time.monotonic() - began)
        assert ended.code == CLUSTER_FAILED, f"exit code {ended.code}: {ended.said[-1500:]}"
        assert self.noticed[-1] <= BOUND, f"noticed after {self.noticed[-1]:.0f} s"
        assert "Traceback" not in ended.said, ended.said[-1500:]
        assert "scheduler" in ended.said, ended.said
        assert "repeat" in ended.said, ended.said
        self._restart()
        again = self._forks.start(*self._words).wait(self._undisturbed * 5 + 3 * BOUND)
        assert again.code == 0, f"not resumed: {again.code} {again.said[-1500:]}"
        assert self._run.digests() == self.expected, "resumed to another result"
        assert all(path.stat().st_mtime_ns == changed[path] for path in finished), "done again"
        self.resumed += 1

    def _restart(self) -> None:
        """Another scheduler at the same address, and other workers."""
        for process in (*self._cluster.workers, self._cluster.scheduler):
            if process.poll() is None:
                self._cluster.kill(process)
        self._cluster.workers.clear()
        self._cluster.start_scheduler(int(self._cluster.address.rpartition(":")[2]))
        for _ in range(N_WORKERS):
            self._cluster.start_worker()
        self._cluster.wait()


if __name__ == "__main__":
    main(run, trials=12, counted="kills")
