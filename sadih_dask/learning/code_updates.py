"""The B-step: codes of the label groups, with everything else fixed."""

from __future__ import annotations

import numpy as np

from sadih_dask.arrays import Floats
from sadih_dask.learning.objective import objective, weights
from sadih_dask.learning.problem import Problem, State

TIE = 1e-9
"""Values below this fraction of the terms they are a sum of are rounding, not evidence."""

MAX_SWEEPS = 10
COLUMNS = 4096
"""Groups handled together, so that their codes stay in cache while the bits are swept."""


def sign(value: Floats, previous: Floats, scale: Floats) -> Floats:
    """Signs of ``value``; a tie keeps the previous bit.

    In balanced problems exact ties are common and rounding would decide them; keeping the bit
    makes the codes independent of the order of summation, and lowers no objective less.
    """
    return np.where(np.abs(value) <= TIE * scale, previous, np.where(value > 0.0, 1.0, -1.0))


def codes_l1(problem: Problem, state: State) -> Floats:
    """B = sgn(W^T Q), W^T Q = l V diag(N) S. SADIH Eq. (8).

    A constant-factor approximation for the l1 loss; it is not monotone in Eq. (7).
    """
    V = state.V(problem)
    evidence = problem.l * problem.S.apply(V * problem.N)
    scale = problem.l * (np.abs(V) @ problem.N)[:, None]
    return sign(evidence, state.B, scale)


def codes_l1_guarded(problem: Problem, state: State) -> Floats:
    """sgn(W^T Q) where that does not raise Eq. (7), else the codes as they are. SADIH Eq. (8).

    Deviation: sgn(W^T Q) is not the minimiser of Eq. (8) that the paper takes it for. With many
    classes S is mostly -1, its constant part drowns the rest, and bits turn equal for all groups.
    """
    codes = codes_l1(problem, state)
    moved = state.with_B(problem, codes)
    return state.B if objective(problem, moved).total > objective(problem, state).total else codes


def codes_l21(problem: Problem, state: State) -> Floats:
    """DCC on min b^T H b - 2 b^T m for every group, H = R D R^T, M = l R D S. SADIH Eq. (14).

    Deviation: Eq. (10) prints M = W^T D Q, whose shapes do not fit. Expanding Eq. (9) gives
    M = l R D S, and only with it does the step lower Eq. (9).
    """
    V = state.V(problem)
    ND = problem.N * weights(problem, state)
    M = problem.l * problem.S.apply(V * ND)
    scale = _quadratic_scale(V, ND) + problem.l * (np.abs(V) @ ND)[:, None]
    return coordinate_descent((V * ND) @ V.T, M, state.B, scale)


def codes_l21_printed(problem: Problem, state: State) -> Floats:
    """DCC with M = W^T Q D, the nearest reading of Eq. (10) whose shapes fit. SADIH Eq. (14)."""
    V = state.V(problem)
    D = weights(problem, state)
    M = problem.l * problem.S.apply(V * problem.N) * D
    scale = _quadratic_scale(V, problem.N * D) + problem.l * np.outer(np.abs(V) @ problem.N, D)
    return coordinate_descent((V * (problem.N * D)) @ V.T, M, state.B, scale)


def _quadratic_scale(V: Floats, ND: Floats) -> Floats:
    """Bound of sum_{j != k} |H_kj b_j| that does not cancel when H does, (l, 1)."""
    size = np.abs(V)
    return ((size * ND) @ size.sum(axis=0) - (size**2) @ ND)[:, None]


def coordinate_descent(H: Floats, M: Floats, B: Floats, scale: Floats) -> Floats:
    """Bits one at a time, b_k = sgn(m_k - sum_{j != k} H_kj b_j), until none changes.

    Columns are independent of each other. ``scale`` (l, 1) or (l, g) is the size of the sums whose
    sign is taken. Costs O(l^2 g) a sweep.
    """
    off = H - np.diag(np.diagonal(H))
    scale = np.broadcast_to(scale, M.shape)
    result = np.empty_like(B)
    for start in range(0, B.shape[1], COLUMNS):
        columns = slice(start, start + COLUMNS)
        block = B[:, columns].copy()
        for _ in range(MAX_SWEEPS):
            before = block.copy()
            for k in range(len(block)):
                value = M[k, columns] - off[k] @ block
                block[k] = sign(value, block[k], scale[k, columns])
            if np.array_equal(block, before):
                break
        result[:, columns] = block
    return result
