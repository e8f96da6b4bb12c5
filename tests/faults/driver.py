"""The process that runs ``sadih run`` is killed: around every commit, and at random moments.

    python -m tests.faults.driver [--kills 30] [--seed 20]

Everything that is committed is committed by renaming a file. An undisturbed run tells how many
renames there are; then a run of its own is killed *before* and one *after* every single one of
them, and further ones at random moments (``--kills`` of them, with figures and a report). After
each kill the same command is run again. What must hold: it ends with 0 and the result is the same
to the last bit; no finished stage is done again, and no block that had its receipt is written
again; nothing is left that a later run does not find or remove.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Literal

from tests.faults.forks import Forks, read_tally
from tests.faults.jobs import Job, Run, Size
from tests.faults.table import Outcome, main

SMALL = Size(n_rows=200, chunk_rows=40, block_rows=20, n_features=4, anchors=6, n_queries=10)
RESUMABLE = -signal.SIGKILL
ONCE_MORE = 5
"""Every so many trials the command is run a third time, and must find nothing wrong."""
When = Literal["before", "after"]


def run(folder: Path, kills: int, seed: int) -> Outcome:
    """Kill around every rename, then at random moments."""
    outcome = Outcome("kill -9 of the driver")
    with Forks(folder) as forks:
        ordeal = Ordeal(forks, folder, outcome)
        renames = ordeal.n_renames
        for number in range(renames):
            for when in ("before", "after"):
                ordeal.at_rename(when, number)
        exact = outcome.trials
        drawn = Ordeal(forks, folder / "drawn", outcome, report=True)
        rng = random.Random(seed)
        for _ in range(kills):
            drawn.at_moment(rng.random())
    outcome.figures = {
        "renames in a run": f"{renames}",
        "kills around them": f"{exact}",
        "at random moments": f"{outcome.trials - exact}",
        "finished stages done again": f"{ordeal.repeated['stage'] + drawn.repeated['stage']}",
        "blocks with a receipt written again": f"{ordeal.repeated['block']}",
        "chunks read, of an undisturbed run": f"{ordeal.share_read:.2f} x",
    }
    return outcome


class Ordeal:
    """Runs of one job that are killed and resumed, and the undisturbed run to compare with."""

    def __init__(
        self,
        forks: Forks,
        folder: Path,
        outcome: Outcome,
        *,
        size: Size = SMALL,
        report: bool = False,
    ) -> None:
        folder.mkdir(exist_ok=True)
        job = Job(folder / "sources", folder, size)
        job.make_sources()
        self._forks, self._outcome = forks, outcome
        self._run = Run(job, folder / "run", report)
        self._tally = folder / "tally"
        ended = forks.run(*self._run.words, tally=self._tally)
        assert ended.code == 0, ended.said
        self.expected = self._run.digests()
        self.seconds = ended.seconds
        done = read_tally(self._tally)
        self.n_renames = sum(n for what, n in done.items() if what.startswith("rename"))
        self._n_reads = _n_reads(done)
        self.repeated: Counter[str] = Counter()
        self._reads: list[int] = []

    @property
    def share_read(self) -> float:
        """Chunks read by a killed and its resumed run, as a multiple of an undisturbed one."""
        return sum(self._reads) / max(1, len(self._reads)) / self._n_reads

    def at_rename(self, when: When, number: int) -> None:
        """Kill before or after one rename, resume, compare."""
        self._start_anew()
        ended = self._forks.run(*self._run.words, kill=(when, number), tally=self._tally)
        self._judge(f"{when} rename {number}", ended.code, RESUMABLE)

    def at_moment(self, share: float) -> None:
        """Kill after a share of the time of an undisturbed run, resume, compare."""
        self._start_anew()
        child = self._forks.start(*self._run.words, tally=self._tally)
        try:
            child.wait(share * self.seconds)
        except TimeoutError:
            child.wait()
        self._judge(f"after {share:.2f} of its time", child.poll() or 0, None)

    def _start_anew(self) -> None:
        shutil.rmtree(self._run.directory, ignore_errors=True)
        self._tally.unlink(missing_ok=True)

    def _judge(self, when: str, code: int, expected: int | None) -> None:
        self._outcome.trials += 1
        before = read_tally(self._tally)
        self._tally.unlink(missing_ok=True)
        after: Counter[str] = Counter()
        try:
            assert expected in (None, code), f"ended with {code}"
            ended = self._forks.run(*self._run.words, tally=self._tally)
            assert ended.code == 0, f"resumed with {ended.code}: {ended.said[-800:]}"
            after = read_tally(self._tally)
            assert self._run.digests() == self.expected, "another result"
            self._compare(before, after)
            if self._outcome.trials % ONCE_MORE == 0:
                third = self._forks.run(*self._run.words)
                assert third.code == 0, f"a third run: {third.said[-800:]}"
        except AssertionError as error:
            self._outcome.failures.append(f"{when}: {error}")
        self._reads.append(_n_reads(before) + _n_reads(after))

    def _compare(self, before: Counter[str], after: Counter[str]) -> None:
        """No finished work is done again."""
        stages = _stages(before) & _stages(after)
        blocks = _blocks(before) & _written(after)
        self.repeated["stage"] += len(stages)
        self.repeated["block"] += len(blocks)
        assert not stages, f"done again: {stages}"
        assert not blocks, f"written again: {blocks}"


def _n_reads(tally: Counter[str]) -> int:
    return sum(n for what, n in tally.items() if what.startswith("read") and " features " in what)


def _stages(tally: Counter[str]) -> set[str]:
    return {what for what in tally if what.endswith("/done.json")}


def _blocks(tally: Counter[str]) -> set[tuple[str, str]]:
    """Store and number of every block that has its receipt."""
    found = (re.fullmatch(r"rename (.*)/_commits/pending/(\d+)", what) for what in tally)
    return {(match[1], match[2]) for match in found if match}


def _written(tally: Counter[str]) -> set[tuple[str, str]]:
    """Store and number of every block of which a chunk was written."""
    found = (re.fullmatch(r"rename (.*)/\w+/c\.(\d+)[.0]*", what) for what in tally)
    return {(match[1], match[2]) for match in found if match}


if __name__ == "__main__":
    main(run, trials=30, counted="kills")
