"""Hash functions: from features to bits, for rows without labels.

`ENCODERS` is the place to name a new kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg as la

from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.problem import Problem, State
from sadih_dask.learning.statistics import Statistics
from sadih_dask.learning.updates import encoder_exact, encoder_printed, start_encoder
from sadih_dask.types import Array, EncoderKind, Floats

DESCENT_STEPS = 200
DESCENT_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class HashFunction:
    """Scores whose signs are the bits: an anchor map, if any, an affine map, a mixture, if any.

    projection (m, k), offset (k,)  act on features as they come: standardisation is folded in.
    mixture    (k, l)  codes of the label groups, for the "posterior" encoder; else k = l
    """

    anchor_map: AnchorMap | None
    projection: Floats
    offset: Floats
    mixture: Floats | None = None

    @property
    def n_bits(self) -> int:
        """Length of the codes."""
        return (self.projection if self.mixture is None else self.mixture).shape[1]

    def __repr__(self) -> str:
        source = "features" if self.anchor_map is None else "anchor features"
        voting = "" if self.mixture is None else f", mixing the codes of {len(self.mixture)} groups"
        return f"<HashFunction: {len(self.projection)} {source} to {self.n_bits} bits{voting}>"

    def project(self, features: Array) -> Floats:
        """Real-valued scores whose signs are the bits, (n, l), in float64."""
        mapped = features if self.anchor_map is None else self.anchor_map(features)
        affine = mapped.astype(np.float64, copy=False) @ self.projection + self.offset
        return np.asarray(affine if self.mixture is None else _sharpen(affine) @ self.mixture)


def hash_function(
    kind: EncoderKind,
    statistics: Statistics,
    problem: Problem,
    state: State,
    anchor_map: AnchorMap | None,
) -> HashFunction:
    """Fit an encoder to the learned state, from statistics alone."""
    P, intercept = ENCODERS[kind](problem, state)
    projection = (P / statistics.scale).T
    mixture = np.ascontiguousarray(state.B.T) if kind == "posterior" else None
    return HashFunction(anchor_map, projection, intercept - statistics.mean @ projection, mixture)


def group_scores_to_codes(kind: EncoderKind, scores: Floats, B: Floats) -> Floats:
    """Codes, by sign, of rows whose regression to the label groups is given; (n, g) to (n, l).

    "ridge": regression is linear in its targets, so the scores of codes are sums of group scores.
    "posterior": the group scores estimate the probability of each group; negative ones are noise,
    and squaring gives the vote to the likely groups.
    """
    return (_sharpen(scores) if kind == "posterior" else scores) @ B.T


def _sharpen(scores: Floats) -> Floats:
    return np.square(np.maximum(scores, 0.0))


def posterior_encoder(problem: Problem, _: State) -> tuple[Floats, Floats]:
    """Regress the label groups on the features: P (g, d) and intercept (g,)."""
    return problem.regression.A.T, problem.regression.share


def ridge_encoder(problem: Problem, state: State) -> tuple[Floats, Floats]:
    """Regress the learned codes on the features: P (l, d) and intercept (l,); O(d^3 / 3).

    P = B X^T (X X^T + ridge n I)^-1. The features are centred, so the intercept is the mean code.
    """
    B = state.B
    P = la.cho_solve(problem.ridge_factor, problem.XG @ B.T, check_finite=False).T
    return np.ascontiguousarray(P), (B @ problem.N) / problem.n


def orthogonal_encoder(problem: Problem, state: State) -> tuple[Floats, Floats]:
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
    return state.P1, np.zeros(problem.l)


def lemma_encoder(problem: Problem, state: State) -> tuple[Floats, Floats]:
    """Lemma 1's P1. SADIH Eq. (17)."""
    return encoder_printed(problem, state), np.zeros(problem.l)


ENCODERS: dict[EncoderKind, Callable[[Problem, State], tuple[Floats, Floats]]] = {
    "posterior": posterior_encoder,
    "ridge": ridge_encoder,
    "orthogonal": orthogonal_encoder,
    "lemma": lemma_encoder,
}
"""What each kind projects standardised features by: P (k, d) and an intercept (k,)."""
BY_REGRESSION: tuple[EncoderKind, ...] = ("posterior", "ridge")
"""Encoders that follow from the codes and the group regression alone, and can be forecast."""
