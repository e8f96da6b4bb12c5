"""Run all rows and print one table.

python -m tests.faults [--only NAME]... [--scale 1.0] [--seed 20] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from pathlib import Path

from tests.faults.table import SEED, Outcome, Row, show, timed

ROWS = {
    "workers": 100,
    "scheduler": 12,
    "driver": 30,
    "full_disk": 20,
    "power_cut": 640,
    "flips": 2000,
    "poison": 10,
    "starved": 2,
    "hostile": 1,
    "fuzz": 1000,
    "two_writers": 200,
}
"""Trials or kills of each row, of each of its stages if it has any."""


def main() -> None:
    """Run, print, and end with 1 if anything did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=ROWS, help="a row; may be repeated")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all trials")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--folder", type=Path, help="where there is room for files")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clusters are taken down
    print(f"seed {given.seed}, scale {given.scale}", flush=True)
    outcomes = []
    for name in given.only or ROWS:
        module = importlib.import_module(f"tests.faults.{name}")
        for stage in getattr(module, "STAGES", ("",)):
            options = {"stage": stage} if stage else {}
            outcomes.append(_run(module.run, name, options, given))
            print(f"{name} {stage}: {'held' if outcomes[-1].ok else 'FAILED'}", flush=True)
    print()
    show(*outcomes)
    sys.exit(0 if all(outcome.ok for outcome in outcomes) else 1)


def _run(row: Row, name: str, options: dict[str, str], given: argparse.Namespace) -> Outcome:
    """One row; what stops it altogether is a failure of that row, and not of the others."""
    trials = max(1, round(ROWS[name] * given.scale))
    try:
        return timed(row, trials, given.seed, given.folder, **options)
    except Exception as error:
        what = " ".join([name, *options.values()])
        return Outcome(what, 1, [f"{type(error).__name__}: {error}"])


if __name__ == "__main__":
    main()
