"""The process that runs a stage is killed: around every commit, and at random moments.

    python -m tests.faults.driver [--kills 30] [--seed 20] [--stage run]... [--processes 0]

Everything that is committed is committed by giving a file its name, in one step. An undisturbed run
tells how many such steps there are; then a run of its own is killed *before* and one *after* every
single one of them, and further ones at random moments (``--kills`` of them). After each kill the
same command is run again. What must hold: it ends with 0 and the result is the same to the last
bit; no finished stage of a ``sadih run`` is done again, and no chunk that was there is written
again, in the same segment or in another; nothing is left that was begun. With ``--processes`` the
work is done by so many processes of its own: kills are at random moments only, and no process may
outlive the one that has started it.
"""

from __future__ import annotations

import random
import re
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil

from tests.faults.forks import Forks, read_tally
from tests.faults.jobs import STAGES, Job, Size
from tests.faults.table import Outcome, main

SMALL = Size(n_rows=200, chunk_rows=40, block_rows=20, n_features=4, anchors=6, n_queries=10)
RESUMABLE = -signal.SIGKILL
ONCE_MORE = 5
"""Every so many trials the command is run a third time, and must find nothing wrong."""
ORPHANED = 120.0
"""Seconds in which processes must have noticed that the one which started them is gone."""
When = Literal["before", "after"]


def run(folder: Path, kills: int, seed: int, *, stage: str, processes: int = 0) -> Outcome:
    """Kill around every step, then at random moments."""
    outcome = Outcome(f"kill -9 of the driver, {stage}")
    with Forks(folder) as forks:
        ordeal = Ordeal(forks, folder, outcome, stage=stage, processes=processes)
        for number in range(0 if processes else ordeal.n_steps):
            for when in ("before", "after"):
                ordeal.at_step(when, number)
        exact = outcome.trials
        rng = random.Random(seed)
        for _ in range(kills):
            ordeal.at_moment(rng.random())
    outcome.figures = {
        "steps": f"{ordeal.n_steps}",
        "kills around them": f"{exact}",
        "at random moments": f"{outcome.trials - exact}",
        "finished stages done again": f"{ordeal.repeated['stage']}",
        "chunks written again": f"{ordeal.repeated['chunk']}",
        "chunks read, of an undisturbed run": f"{ordeal.share_read:.2f} x",
    }
    return outcome


class Ordeal:
    """Runs of one stage that are killed and resumed, and the undisturbed run to compare with."""

    def __init__(
        self,
        forks: Forks,
        folder: Path,
        outcome: Outcome,
        *,
        stage: str = "run",
        processes: int = 0,
    ) -> None:
        self._job, self._stage = Job(folder / "sources", folder, SMALL), stage
        self._job.make_sources()
        self._forks, self._outcome = forks, outcome
        for before in self._job.needs(stage):
            assert forks.run(*self._job.words(before)).code == 0, before
        self._tally = folder / "tally"
        self._words = self._job.words(stage)
        self._words += ["--processes", processes] if processes else []
        ended = forks.run(*self._words, tally=self._tally)
        assert ended.code == 0, ended.said
        self.expected = self._job.digest(stage, ended.said)
        self.seconds = ended.seconds
        done = read_tally(self._tally)
        self.n_steps = sum(n for what, n in done.items() if what.startswith("name "))
        self._n_reads = max(1, _n_reads(done))
        self.repeated: Counter[str] = Counter()
        self._reads: list[int] = []

    @property
    def share_read(self) -> float:
        """Chunks read by a killed and its resumed run, as a multiple of an undisturbed one."""
        return sum(self._reads) / max(1, len(self._reads)) / self._n_reads

    def at_step(self, when: When, number: int) -> None:
        """Kill before or after a file gets its name, resume, compare."""
        self._start_anew()
        ended = self._forks.run(*self._words, kill=(when, number), tally=self._tally)
        self._judge(f"{when} step {number}", ended.code, RESUMABLE)

    def at_moment(self, share: float) -> None:
        """Kill after a share of the time of an undisturbed run, resume, compare."""
        self._start_anew()
        child = self._forks.start(*self._words, tally=self._tally)
        end = child.began + share * self.seconds
        while child.poll() is None and time.monotonic() < end:
            time.sleep(0.003)
        workers = []
        with suppress(psutil.NoSuchProcess):
            workers = psutil.Process(child.pid).children(recursive=True)
        child.kill()
        child.wait()
        _, alive = psutil.wait_procs(workers, timeout=ORPHANED)
        when = f"after {share:.2f} of its time"
        self._outcome.check(not alive, f"{when}: {len(alive)} processes have outlived it")
        self._judge(when, child.poll() or 0, None)

    def _start_anew(self) -> None:
        self._job.remove(self._stage)
        self._tally.unlink(missing_ok=True)

    def _judge(self, when: str, code: int, expected: int | None) -> None:
        self._outcome.trials += 1
        before = read_tally(self._tally)
        self._tally.unlink(missing_ok=True)
        after: Counter[str] = Counter()
        try:
            assert expected in (None, code), f"ended with {code}"
            ended = self._forks.run(*self._words, tally=self._tally)
            assert ended.code == 0, f"resumed with {ended.code}: {ended.said[-800:]}"
            after = read_tally(self._tally)
            assert self._job.digest(self._stage, ended.said) == self.expected, "another result"
            left = self._job.unfinished(self._stage)
            assert not left, f"begun and left: {left}"
            self._compare(before, after)
            if self._outcome.trials % ONCE_MORE == 0:
                third = self._forks.run(*self._words)
                assert third.code == 0, f"a third run: {third.said[-800:]}"
        except AssertionError as error:
            self._outcome.failures.append(f"{when}: {error}")
        self._reads.append(_n_reads(before) + _n_reads(after))

    def _compare(self, before: Counter[str], after: Counter[str]) -> None:
        """No finished work is done again."""
        stages = _stages(before) & _stages(after)
        chunks = _chunks(before) & _chunks(after)
        self.repeated["stage"] += len(stages)
        self.repeated["chunk"] += len(chunks)
        assert not stages, f"done again: {stages}"
        assert not chunks, f"written again: {chunks}"


def _n_reads(tally: Counter[str]) -> int:
    return sum(n for what, n in tally.items() if what.startswith("read") and " features " in what)


def _stages(tally: Counter[str]) -> set[str]:
    return {what for what in tally if what.endswith("/done.json")}


def _chunks(tally: Counter[str]) -> set[tuple[str, str]]:
    """Store, and array and number of every chunk that got its name, whatever its segment."""
    found = (re.fullmatch(r"name (.*)/segments/[0-9a-f]+/(\w+/c\.[\d.]+)", what) for what in tally)
    return {(match[1], match[2]) for match in found if match}


if __name__ == "__main__":
    main(run, trials=30, counted="kills", stage=STAGES, processes=0)
