"""The course of the objective: what a plot of convergence needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sadih_dask.arrays import Floats
from sadih_dask.learning.objective import Objective

STEPS = ("start", "B", "W", "P1", "P2")


@dataclass(frozen=True)
class Record:
    """The objective after one step of one restart."""

    restart: int
    iteration: int
    step: str
    objective: Objective


@dataclass(frozen=True)
class Trace:
    """The objective after every step of every restart, in order, and what was kept.

    best            the restart that was kept
    kept_iteration  its iteration that was kept: 0 for the starting codes, or the last
    """

    records: tuple[Record, ...]
    best: int
    kept_iteration: int

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def of_restart(self, restart: int) -> tuple[Record, ...]:
        """Return the records of one restart."""
        return tuple(r for r in self.records if r.restart == restart)

    @property
    def totals(self) -> Floats:
        """Objective after every step of the kept restart."""
        return np.array([r.objective.total for r in self.of_restart(self.best)])

    @property
    def n_iter(self) -> int:
        """Iterations that the kept restart ran."""
        return self.of_restart(self.best)[-1].iteration

    def __repr__(self) -> str:
        if not self.records:
            return "<Trace without records>"
        starts, totals = len({r.restart for r in self.records}), self.totals
        return (
            f"<Trace of {starts} starts, number {self.best + 1} kept: {self.n_iter} iterations, "
            f"objective from {totals[0]:.6g} to {totals[-1]:.6g}>"
        )
