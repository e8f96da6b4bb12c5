"""Worker processes of a Dask cluster are killed or stopped, again and again, in every stage.

    python -m tests.faults.workers [--kills 100] [--seed 20] [--stage fit]... [--every 0.5]
                                   [--workers 2] [--anchors N] [--stop SECONDS]

A stage works on a cluster of ``dask worker`` processes, each of which its nanny replaces when it
dies. First undisturbed; then, as often as it takes for that many kills, while workers are killed: a
random one of those that have joined, about every so many seconds, as long as one is left; every
tenth time all of them. With ``--stop`` they are stopped for so long instead, and go on; the
scheduler gives up one of which it has not heard for five seconds. ``--anchors`` is the size of what
all tasks share.

What must hold: model, codes, metrics and finds have the same SHA-256; nothing hangs; it takes at
most three times as long as undisturbed; and what is finished is not read again: rows whose part of
a scan is on file, or whose codes are written. A command that ends with 4 (the cluster failed) is
repeated, as it says; its time counts.
"""

from __future__ import annotations

import math
import os
import random
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from sadih_dask import CodeStore
from tests.faults.forks import TALLY, Child, Ended, Forks, Hang, observed
from tests.faults.jobs import Job, Size
from tests.faults.table import Outcome, main
from tests.support.processes import DaskProcesses, dask_processes

SIZE = Size(100_000, 32, anchors=500, chunk_rows=4096, block_rows=1024, n_queries=200, bits=32)
LONG = replace(SIZE, n_features=4, chunk_rows=65_536, block_rows=8192)
SIZES = {
    "fit": replace(SIZE, anchors=1000),
    "encode": replace(LONG, n_rows=1_000_000, anchors=300, chunk_rows=16_384),
    "evaluate": replace(LONG, n_rows=1_000_000, anchors=50, n_queries=4000),
    "search": replace(LONG, n_rows=2_000_000, anchors=50, n_queries=2000),
    "tune": replace(SIZE, n_rows=60_000, anchors=300),
    "run": SIZE,
}
STAGES = tuple(SIZES)
ALL_OF_THEM = 10
"""Every so many times all workers are killed."""
ENVIRONMENT = {
    # By default Dask's processes try for 30 s to reach one that is dead.
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s",
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "5s",
    # By default a task that was on three workers as they died is taken for the cause.
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "100",
}
SLOWER = 3.0
CLUSTER_FAILED = 4
REPEATS = 5
STAGES_OF_A_RUN = ("ingest", "fit", "encode", "evaluate", "export", "report")


def run(
    folder: Path,
    kills: int,
    seed: int,
    *,
    stage: str,
    every: float = 0.5,
    workers: int = 2,
    anchors: int = 0,
    stop: float = 0.0,
) -> Outcome:
    """Work undisturbed, then disturbed until there were enough kills."""
    what = f"{'stop' if stop else 'kill -9'} of random workers, {stage}"
    outcome = Outcome(what)
    size = replace(SIZES[stage], anchors=anchors) if anchors else SIZES[stage]
    environment = {**ENVIRONMENT, **observed(folder)}
    with (
        dask_processes(workers, environment=environment) as cluster,
        Forks(folder) as forks,
    ):
        disturbed = Disturbed(forks, folder, cluster, stage, size, timed=True)
        rng = random.Random(seed)
        while disturbed.killed.total() < kills:
            outcome.trials += 1
            try:
                disturbed.run(Disturbance(rng, every, stop, kills - disturbed.killed.total()))
            except AssertionError as error:
                outcome.failures.append(str(error))
                if len(outcome.failures) > 2:
                    break
    outcome.check(disturbed.mean <= SLOWER, f"it took {disturbed.mean:.2f} x the undisturbed time")
    outcome.check(not disturbed.read_again, f"{disturbed.read_again:,} finished rows read again")
    outcome.figures = disturbed.figures()
    return outcome


@dataclass
class Disturbance:
    """How workers are disturbed: about every so many seconds, at most so many of them.

    stop  seconds that one is stopped for, instead of being killed
    """

    rng: random.Random
    every: float
    stop: float = 0.0
    most: float = math.inf

    def pause(self) -> float:
        """Seconds to the next time."""
        return self.rng.uniform(0.5, 1.5) * self.every


class Disturbed:
    """One stage of a job, again and again, on a cluster whose workers are killed.

    killed      kills, by the stage that a run was at
    seconds     that each time took which held
    read_again  rows that were read after what they come to was on file
    """

    def __init__(
        self,
        forks: Forks,
        folder: Path,
        cluster: DaskProcesses,
        stage: str = "run",
        size: Size = SIZE,
        *,
        timed: bool = False,
    ) -> None:
        self._forks, self._cluster, self._folder, self._stage = forks, cluster, folder, stage
        place = Path(tempfile.mkdtemp(prefix=f"{stage}-", dir=folder))
        self._job = Job(place / "sources", place, size)
        self._job.make_sources()
        for before in self._job.needs(stage):
            ended = forks.start(*self._job.words(before)).wait(600)
            assert ended.code == 0, ended.said
        self._words = [*self._job.words(stage), "--scheduler", cluster.address]
        for _ in range(1 + timed):  # the first one finds workers that have imported nothing
            self._begin()
            ended = forks.start(*self._words, tally=folder / TALLY).wait(600)
            assert ended.code == 0, ended.said
        self.undisturbed, self._reads = ended.seconds, len(self._tally("read "))
        self.expected = self._job.digest(stage, ended.said)
        self.killed: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.shares: list[float] = []
        self.repeats = self.hangs = self.read_again = 0
        self._working = 0.0

    @property
    def mean(self) -> float:
        """How many times as long as undisturbed it took, on average."""
        return sum(self.seconds) / max(1, len(self.seconds)) / self.undisturbed

    def figures(self) -> dict[str, str]:
        """What a table says of it."""
        kills = self.killed.total()
        by_stage = ", ".join(f"{stage} {n}" for stage, n in self.killed.items())
        slowest = max(self.seconds, default=math.nan) / self.undisturbed
        read = sum(self.shares) / max(1, len(self.shares))
        return {
            "kills": f"{kills}" + (f" ({by_stage})" if self._stage == "run" else ""),
            "one in": f"{self._working / max(1, kills):.1f} s",
            "identical": f"{len(self.seconds)}",
            "hangs": f"{self.hangs}",
            "exit code 4, repeated": f"{self.repeats}",
            "time": f"{self.mean:.2f} x undisturbed ({self.undisturbed:.1f} s), "
            f"at most {slowest:.2f} x",
            "chunks read": f"{read:.2f} x",
            "finished rows read again": f"{self.read_again:,}",
        }

    def run(self, disturbance: Disturbance) -> None:
        """Do the stage once, from its start, while workers are killed."""
        self._begin()
        began, before = time.monotonic(), self.killed.total()
        for _ in range(REPEATS):
            child = self._forks.start(*self._words, tally=self._folder / TALLY)
            try:
                ended = self._watch(child, disturbance)
            except Hang as hang:
                self.hangs += 1
                raise AssertionError(f"a hang: {hang}") from hang
            if ended.code != CLUSTER_FAILED:
                break
            self.repeats += 1
            print(f"exit code {ended.code}: {ended.said[-700:]}", flush=True)
        seconds = time.monotonic() - began
        self._working += seconds
        assert ended.code == 0, f"exit code {ended.code}: {ended.said[-1500:]}"
        assert self._job.digest(self._stage, ended.said) == self.expected, "another result"
        self.seconds.append(seconds)
        self.shares.append(len(self._tally("read ")) / max(1, self._reads))
        self.read_again += self._finished_rows_read(self.killed.total() - before)

    def _begin(self) -> None:
        """Undo the stage, and forget what was read."""
        self._job.remove(self._stage)
        (self._folder / TALLY).write_bytes(b"")
        self._cluster.wait()

    def _watch(self, child: Child, disturbance: Disturbance) -> Ended:
        """Kill workers now and then, and in every stage of a run at once, until the end."""
        most = self.killed.total() + disturbance.most
        following = time.monotonic() + disturbance.pause()
        stopped: dict[int, float] = {}
        while child.poll() is None:
            time.sleep(0.02)
            now = time.monotonic()
            if now - child.began > max(120.0, 10 * SLOWER * self.undisturbed):
                child.kill()
                raise Hang(child.log.read_text()[-1500:])
            for pid in [pid for pid, end in stopped.items() if now > end]:
                _signal(pid, signal.SIGCONT)
                del stopped[pid]
            early = now < following and self.killed[self._stage_now()] > 0
            joined = sorted(self._joined() - stopped.keys())
            if early or self.killed.total() >= most or len(joined) < 2:
                continue
            disturbance.rng.shuffle(joined)
            everyone = self.killed.total() % ALL_OF_THEM == ALL_OF_THEM - 1
            for pid in joined if everyone else joined[:1]:
                self.killed[self._stage_now()] += 1
                if disturbance.stop:
                    _signal(pid, signal.SIGSTOP)
                    stopped[pid] = now + disturbance.stop
                else:
                    (self._folder / str(pid)).unlink(missing_ok=True)
                    _signal(pid, signal.SIGKILL)
            following = now + disturbance.pause()
        for pid in stopped:
            _signal(pid, signal.SIGCONT)
        return child.wait()

    def _joined(self) -> set[int]:
        """Process numbers of workers that have joined and live.

        Asked many times a second: looking for children would read about every process there is.
        """
        names = [path.name for path in self._folder.iterdir()]
        joined = {int(name) for name in names if name.isdecimal()}
        return {pid for pid in joined if _lives(pid)}

    def _stage_now(self) -> str:
        return stage_of(self._job.outputs["run"]) if self._stage == "run" else self._stage

    def _tally(self, start: str = "") -> list[str]:
        lines = (self._folder / TALLY).read_text().splitlines()
        return [line for line in lines if line.startswith(start)]

    def _finished_rows_read(self, kills: int) -> int:
        """Rows read, chunk by chunk, after what they come to had got its name.

        A worker that is killed just after it has written a block of codes could not say so: one
        block for every kill is not counted.
        """
        if self._stage not in ("fit", "encode", "tune", "run"):
            return 0
        store = self._job.outputs["ingest"]
        codes = self._job.outputs["encode"]
        if self._stage == "run":
            directory = self._job.outputs["run"]
            store, codes = directory / "database.zarr", directory / "latest/codes.zarr"
        size = self._job.size.chunk_rows
        step = CodeStore.open(codes).chunk_rows if codes.exists() else 0
        parts: set[int] = set()
        blocks: set[int] = set()
        scanned = hashed = 0
        for line in self._tally():
            if part := re.fullmatch(r"name .*/scan-\w+-(\d+)-(\d+)\.part", line):
                parts.update(range(int(part[1]) // size, int(part[2]) // size))
            elif block := re.fullmatch(r"name .*/codes/c\.(\d+)\.0", line):
                first = int(block[1]) * step // size
                blocks.update(range(first, first + step // size))
            elif line.startswith("name ") and line.endswith(".sadih"):
                parts.clear()  # the scan is over; the next stage reads all rows
            elif read := re.fullmatch(rf"read {re.escape(str(store))}/\S+ features (\d+)", line):
                scanned += size * (int(read[1]) in parts)
                hashed += size * (int(read[1]) in blocks)
        return scanned + max(0, hashed - kills * step)


def _lives(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _signal(pid: int, which: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, which)


def worker_processes(cluster: DaskProcesses) -> Iterator[psutil.Process]:
    """The processes that do the work: those that the process a nanny forks from has forked."""
    for nanny in cluster.workers:
        with suppress(psutil.NoSuchProcess):
            for server in psutil.Process(nanny.pid).children():
                yield from server.children()


def stage_of(directory: Path) -> str:
    """The stage that a run is at: the first whose artefact is not finished."""
    done = {path.parent.name.rpartition("-")[0] for path in directory.glob("artefacts/*/done.json")}
    return next((stage for stage in STAGES_OF_A_RUN if stage not in done), STAGES_OF_A_RUN[-1])


if __name__ == "__main__":
    main(run, trials=100, counted="kills", stage=STAGES, every=0.5, workers=2, anchors=0, stop=0.0)
