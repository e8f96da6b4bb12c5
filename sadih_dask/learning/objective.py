"""The objective of Eq. (7), term by term, from statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sadih_dask.arrays import Floats
from sadih_dask.learning.problem import Problem, State


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
