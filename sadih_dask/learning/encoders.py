"""Hash functions: from features to bits, for rows without labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.linalg as la

from sadih_dask.arrays import Array, Floats
from sadih_dask.learning.autoencoder_updates import encoder_exact, encoder_printed, start_encoder
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.problem import Problem, State
from sadih_dask.learning.statistics import Statistics

EncoderKind = Literal["ridge", "orthogonal", "lemma"]

DESCENT_STEPS = 200
DESCENT_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class HashFunction:
    """bits = [phi(x) A + b > 0]: an anchor map, if any, and one affine map.

    projection (m, l) and offset (l,) act on features as they come: standardisation is folded in.
    """

    anchor_map: AnchorMap | None
    projection: Floats
    offset: Floats

    def project(self, features: Array) -> Floats:
        """Real-valued scores whose signs are the bits, (n, l), in float64."""
        mapped = features if self.anchor_map is None else self.anchor_map(features)
        return np.asarray(mapped.astype(np.float64, copy=False) @ self.projection + self.offset)


def hash_function(
    kind: EncoderKind,
    statistics: Statistics,
    problem: Problem,
    state: State,
    anchor_map: AnchorMap | None,
    ridge: float,
) -> HashFunction:
    """Fit an encoder to the learned state, from statistics alone."""
    if kind == "ridge":
        P, intercept = ridge_encoder(problem, state.B, ridge)
    elif kind == "orthogonal":
        P, intercept = orthogonal_encoder(problem, state), np.zeros(problem.l)
    else:
        P, intercept = encoder_printed(problem, state), np.zeros(problem.l)
    projection = (P / statistics.scale).T
    return HashFunction(anchor_map, projection, intercept - statistics.mean @ projection)


def ridge_encoder(problem: Problem, B: Floats, ridge: float) -> tuple[Floats, Floats]:
    """Regress the learned codes on the features: P (l, d) and intercept (l,); O(d^3 / 3).

    P = B X^T (X X^T + ridge n I)^-1. The features are centred, so the intercept is the mean code.
    """
    factor = problem.factor_gram(1.0, ridge * problem.n)
    P = la.cho_solve(factor, problem.XG @ B.T, check_finite=False).T
    return np.ascontiguousarray(P), (B @ problem.N) / problem.n


def orthogonal_encoder(problem: Problem, state: State) -> Floats:
    """Descend to a minimiser of ||V - P1 X||_F^2 over orthonormal P1. SADIH Eq. (17)."""
    state = state.with_P1(problem, start_encoder(problem, state.W))
    VXt = (problem.XYt @ state.W).T
    before = np.inf
    for _ in range(DESCENT_STEPS):
        state = state.with_P1(problem, encoder_exact(problem, state))
        value = float(np.vdot(state.P1, state.P1XXt) - 2.0 * np.vdot(state.P1, VXt))
        if before - value <= DESCENT_TOLERANCE * abs(value):
            break
        before = value
    return state.P1
