"""What one row of the table has shown, and how a row is run as a command."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SEED = 20
SHOWN = 5


@dataclass
class Outcome:
    """One row: how often a fault was made, how often what must hold did, and figures.

    failures   a sentence for every trial in which it did not hold
    """

    fault: str
    trials: int = 0
    failures: list[str] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every trial held, and there were any."""
        return self.trials > 0 and not self.failures

    def check(self, holds: bool, otherwise: str) -> None:
        """Count what does not hold."""
        if not holds:
            self.failures.append(otherwise)

    def row(self) -> str:
        """The line of the table."""
        held = self.trials - len(self.failures)
        share = f"{held:,} of {self.trials:,}"
        figures = "; ".join(f"{name} {value}" for name, value in self.figures.items())
        return f"| {self.fault} | {share} | {figures} | {self.seconds:.0f} s |"


HEAD = "| fault | held | figures | took |\n|---|---|---|---|"
Row = Callable[..., Outcome]
"""Runs a row in an empty folder, with a number of trials, a seed, and options of its own."""


def timed(
    row: Row, trials: int, seed: int, parent: Path | None = None, **options: object
) -> Outcome:
    """Run a row in a folder of its own, which is removed afterwards."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="faults-", dir=parent) as folder:
        found = row(Path(folder), trials, seed, **options)
    found.seconds = time.perf_counter() - began
    return found


def show(*outcomes: Outcome) -> None:
    """Print the table, and what failed below it."""
    print(HEAD)
    for outcome in outcomes:
        print(outcome.row())
    show_failures(*outcomes)


def show_failures(*outcomes: Outcome) -> None:
    """Print the first of what failed."""
    for outcome in outcomes:
        for failure in outcome.failures[:SHOWN]:
            print(f"\nFAILED, {outcome.fault}: {failure}")
    sys.stdout.flush()


def main(
    row: Row, *, trials: int, counted: str = "trials", stage: Sequence[str] = (), **options: float
) -> None:
    """The command of one row; of each of its stages, if it has any, a line of the table."""
    parser = argparse.ArgumentParser(description=(sys.modules["__main__"].__doc__ or ""))
    parser.add_argument(f"--{counted}", type=int, default=trials, dest="trials")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--folder", type=Path, help="where there is room for files")
    if stage:
        parser.add_argument("--stage", action="append", choices=stage, help="may be repeated")
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clusters are taken down
    said = {name: getattr(given, name) for name in options}
    words = ", ".join(f"{name} {value}" for name, value in {"seed": given.seed, **said}.items())
    print(f"{counted} {given.trials}, {words}\n", flush=True)
    stages = [{"stage": name} for name in given.stage or stage] if stage else [{}]
    outcomes = []
    print(HEAD)
    for one in stages:
        outcomes.append(timed(row, given.trials, given.seed, given.folder, **one, **said))
        print(outcomes[-1].row(), flush=True)
    show_failures(*outcomes)
    sys.exit(0 if all(outcome.ok for outcome in outcomes) else 1)
