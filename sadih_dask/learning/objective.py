"""The objective of Eq. (7), term by term, from statistics, and its course over the steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sadih_dask.learning.problem import Problem, State
from sadih_dask.types import Floats


@dataclass(frozen=True)
class Objective:
    """The terms of Eq. (7), each with its weight."""

    similarity: float
    """||l S - V^T B||_21"""
    reconstruction: float
    """alpha ||X - P2 V||_F^2"""
    encoding: float
    """beta ||V - P1 X||_F^2"""
    regularisation: float
    """gamma (||P2||_F^2 + ||V||_F^2)"""

    @property
    def total(self) -> float:
        """The value that the alternation lowers."""
        return self.similarity + self.reconstruction + self.encoding + self.regularisation


def row_norms(problem: Problem, state: State) -> Floats:
    """||u^i|| of the residual l S - V^T B, one value per group, (g,). SADIH Eq. (9).

    With few groups the codes can fit S exactly, where the expanded square would be a difference of
    large, nearly equal numbers; there the residual itself is formed.
    """
    form = _norms_formed if problem.few_groups else _norms_expanded
    return form(problem, state, state.V(problem))


def _norms_formed(problem: Problem, state: State, V: Floats) -> Floats:
    residual = problem.l * problem.dense_S - V.T @ state.B
    return np.sqrt((residual**2) @ problem.N)


def _norms_expanded(problem: Problem, state: State, V: Floats) -> Floats:
    """||u^i||^2 = ||l s^i||^2 - 2 l v_i^T (B diag(N) S)_i + v_i^T (B diag(N) B^T) v_i; O(l^2 g)."""
    BBt = (state.B * problem.N) @ state.B.T
    cross = np.einsum("kg,kg->g", V, state.BS)
    square = np.einsum("kg,kg->g", V, BBt @ V)
    return np.sqrt(np.maximum(problem.energy - 2.0 * problem.l * cross + square, 0.0))


def weights(problem: Problem, state: State) -> Floats:
    """D: 1 / (2 ||u^i||) per group, (g,). SADIH Eq. (9).

    A vanishing residual would weigh infinitely; the floor is far below what float64 resolves in
    the sum of squares behind it.
    """
    floor = 1e-8 * problem.l * np.sqrt(problem.n)
    return 0.5 / np.maximum(row_norms(problem, state), floor)


def objective(problem: Problem, state: State) -> Objective:
    """Evaluate Eq. (7) from statistics alone; O(l^2 g + d l (c + l))."""
    XVt = problem.XYt @ state.W
    V = state.V(problem)
    VVt = (V * problem.N) @ V.T
    P1, P2 = state.P1, state.P2
    reconstruction = (
        np.trace(problem.XXt) - 2.0 * np.vdot(P2, XVt) + np.vdot(P2.T @ P2, VVt)
        if problem.alpha
        else 0.0
    )
    encoding = np.trace(VVt) - 2.0 * np.vdot(P1.T, XVt) + np.vdot(P1, state.P1XXt)
    return Objective(
        similarity=float(problem.N @ row_norms(problem, state)),
        reconstruction=float(problem.alpha * max(reconstruction, 0.0)),
        encoding=float(problem.beta * max(encoding, 0.0)),
        regularisation=float(problem.gamma * (np.vdot(P2, P2) + np.trace(VVt))),
    )


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
    kept_iteration  its iteration that was kept: 0 for the starting codes, or the last; without
                    records, how many there were
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
        return self.of_restart(self.best)[-1].iteration if self.records else self.kept_iteration

    def __repr__(self) -> str:
        if not self.records:
            return "<Trace without records>"
        starts, totals = len({r.restart for r in self.records}), self.totals
        return (
            f"<Trace of {starts} starts, number {self.best + 1} kept: {self.n_iter} iterations, "
            f"objective from {totals[0]:.6g} to {totals[-1]:.6g}>"
        )
