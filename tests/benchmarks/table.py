"""What benchmarks have in common: ways that take turns, and rows of one table.

Ratios are of processor seconds (of all threads) of this package to those of a floor, which does the
least that the hardware allows, or of a peer, which does the same job: below 1 is faster. Both run
in one process, on as many threads, in turns; a machine that does other work disturbs both alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Times = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """A ratio to a floor or to a peer, and what it should be at most, if that is said."""

    stage: str
    kind: str  # "floor" or "peer"
    beside: str
    ratio: float
    target: float | None = None

    @property
    def met(self) -> str:
        """Whether the target was met."""
        if self.target is None:
            return "-"
        return "met" if self.ratio <= self.target else "MISSED"


def measure(ways: Mapping[str, Callable[[], Any]], rounds: int) -> Times:
    """Median wall and processor seconds of ways that take turns; the first round only warms up."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            way()
            found[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: (
            statistics.median(w for w, _ in taken[1:]),
            statistics.median(c for _, c in taken[1:]),
        )
        for name, taken in found.items()
    }


def show(rows: Sequence[Row]) -> None:
    """Print the table."""
    width = max((len(row.stage) for row in rows), default=0)
    other = max((len(row.beside) for row in rows), default=0)
    head = f"{'stage':{width}}  {'x floor':>8}{'x peer':>8}{'target':>8}  {'':6}  beside"
    print(f"\n{head}\n{'-' * (width + other + 36)}")
    for row in rows:
        floor, peer = (f"{row.ratio:.2f}" if row.kind == kind else "" for kind in ("floor", "peer"))
        target = "-" if row.target is None else f"{row.target:.2f}"
        print(f"{row.stage:{width}}  {floor:>8}{peer:>8}{target:>8}  {row.met:6}  {row.beside}")
