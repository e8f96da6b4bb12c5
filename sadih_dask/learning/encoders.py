"""Hash functions: from features to bits, for rows without labels.

`ENCODERS` is the place to name a new kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy.linalg as la

from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.problem import Problem, State, raised_factor
from sadih_dask.learning.statistics import Statistics
from sadih_dask.learning.updates import encoder_exact, encoder_printed, start_encoder
from sadih_dask.types import Array, EncoderKind, Floats

DESCENT_STEPS = 200
DESCENT_TOLERANCE = 1e-6
SHARPNESS = 2.0
PIECE_VALUES = 2**24
"""Scores of rows by label groups that a vote holds at a time: 128 MiB."""
Product: TypeAlias = Callable[[Floats, Floats], Floats]
"""The product of two matrices."""


@dataclass(frozen=True, eq=False)
class Opening:
    """An affine map to open codes, (m, l) and (l,), and their weight beside the labels."""

    projection: Floats
    offset: Floats
    weight: float


@dataclass(frozen=True, eq=False)
class HashFunction:
    """Scores whose signs are the bits: an anchor map, if any, affine maps, a vote, if any.

    projection (m, k), offset (k,)  act on features as they come: standardisation is folded in.
    mixture    (k, l)  codes of the label groups, where they vote; else k = l
    sharpness          power that the weights of the groups are raised to before they vote
    logarithmic        whether the scores of the groups are logarithms of their weights
    opening            what rows get that no class claims; None for nothing
    """

    anchor_map: AnchorMap | None
    projection: Floats
    offset: Floats
    mixture: Floats | None = None
    sharpness: float = SHARPNESS
    opening: Opening | None = None
    logarithmic: bool = False

    @property
    def n_bits(self) -> int:
        """Length of the codes."""
        return (self.projection if self.mixture is None else self.mixture).shape[1]

    def __repr__(self) -> str:
        source = "features" if self.anchor_map is None else "anchor features"
        voting = "" if self.mixture is None else f", mixing the codes of {len(self.mixture)} groups"
        opened = "" if self.opening is None else ", open to other classes"
        shape = f"{len(self.projection)} {source} to {self.n_bits} bits"
        return f"<HashFunction: {shape}{voting}{opened}>"

    def mapped(self, features: Array) -> Array:
        """What the affine maps act on."""
        return features if self.anchor_map is None else self.anchor_map(features)

    def project(self, features: Array) -> Floats:
        """Real-valued scores whose signs are the bits, (n, l), in float64.

        Where there are many groups to vote, a few rows at a time.
        """
        mapped = self.mapped(features)
        rows = max(1, PIECE_VALUES // self.projection.shape[1])
        found = np.empty((len(mapped), self.n_bits))
        for start in range(0, len(mapped), rows):
            part = mapped[start : start + rows].astype(np.float64, copy=False)
            found[start : start + rows] = self.score(part)
        return found

    def score(self, mapped: Floats, product: Product = np.matmul) -> Floats:
        """Scores of rows that are mapped already."""
        scores = product(mapped, self.projection) + self.offset
        if self.mixture is not None:
            voting = vote_by_logarithms if self.logarithmic else vote
            scores = voting(scores, self.mixture, self.sharpness, product)
        if (opening := self.opening) is not None:
            open_scores = product(mapped, opening.projection) + opening.offset
            scores += opening.weight * unit(open_scores)
        return scores


def hash_function(
    kind: EncoderKind,
    statistics: Statistics,
    problem: Problem,
    state: State,
    anchor_map: AnchorMap | None,
    sharpness: float = SHARPNESS,
) -> HashFunction:
    """Fit an encoder to the learned state, from statistics alone."""
    P, intercept = ENCODERS[kind](problem, state)
    projection, offset = unstandardised(P, intercept, statistics)
    mixture = np.ascontiguousarray(state.B.T) if kind in VOTING else None
    logarithmic = kind == "discriminant"
    return HashFunction(anchor_map, projection, offset, mixture, sharpness, logarithmic=logarithmic)


def unstandardised(P: Floats, intercept: Floats, statistics: Statistics) -> tuple[Floats, Floats]:
    """An affine map of standardised features, P (k, d), for features as they come: (d, k), (k,)."""
    projection = (P / statistics.scale).T
    return projection, intercept - statistics.mean @ projection


def vote(scores: Floats, codes: Floats, sharpness: float, product: Product = np.matmul) -> Floats:
    """The sum of the groups' codes (g, l), weighted by their scores (n, g); (n, l).

    The scores estimate the probability of each group; negative ones are noise. Raised to a power
    they give the vote to the likely groups: all of it to the likeliest, if the power is large. The
    result is as long as the highest score: a row that no group claims has little to say. With an
    infinite power the highest score decides alone, whatever its sign.
    """
    if np.isinf(sharpness):
        return np.asarray(codes[scores.argmax(axis=1)])
    likely = np.maximum(scores, 0.0)
    top = likely.max(axis=1, keepdims=True)
    likely /= np.where(top > 0.0, top, 1.0)
    return unit(product(np.power(likely, sharpness, out=likely), codes)) * top


def vote_by_logarithms(
    scores: Floats, codes: Floats, sharpness: float, product: Product = np.matmul
) -> Floats:
    """The same with weights exp(sharpness scores); as long as the likeliest group is probable."""
    if np.isinf(sharpness):
        return np.asarray(codes[scores.argmax(axis=1)])
    weights = scores - scores.max(axis=1, keepdims=True)
    weights *= sharpness
    np.exp(weights, out=weights)
    return unit(product(weights, codes)) / weights.sum(axis=1, keepdims=True)


def unit(rows: Floats) -> Floats:
    """Rows of length 1; those of length 0 stay."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(length > 0.0, length, 1.0))


def posterior_encoder(problem: Problem, _: State) -> tuple[Floats, Floats]:
    """Regress the label groups on the features: P (g, d) and intercept (g,)."""
    return problem.group_coefficients.T, problem.N / problem.n


def discriminant_encoder(problem: Problem, _: State) -> tuple[Floats, Floats]:
    """Logarithms of the groups' likelihoods, up to what all share: P (g, d) and intercept (g,).

    If rows of all groups scatter alike about their means m, with covariance S_w, they are
    m^T S_w^-1 x - m^T S_w^-1 m / 2 + log N/n (linear discriminant analysis). Regression compares
    groups by m^T T^-1 x alone, T the covariance of all rows: with more groups than features it
    takes rows for groups whose means are long.
    """
    C, whitened, intercept = _discriminants(problem)
    P = la.solve_triangular(C, whitened, lower=True, trans=1, check_finite=False)
    return P.T, intercept


def group_likelihoods(problem: Problem, features: Floats, groups: Array | slice) -> Floats:
    """What that encoder finds for standardised rows (q, d) and some of the groups: (q, g')."""
    C, whitened, intercept = _discriminants(problem, groups)
    rows = la.solve_triangular(C, features.T, lower=True, check_finite=False)
    return np.asarray(rows.T @ whitened + intercept)


def _discriminants(
    problem: Problem, groups: Array | slice = slice(None)
) -> tuple[Floats, Floats, Floats]:
    """C with C C^T = S_w + ridge I, C^-1 m, and what does not depend on rows; O(d^3 + d^2 g)."""
    within = problem.XXt - (problem.XG / problem.N) @ problem.XG.T
    C = raised_factor(within / problem.n, problem.ridge)
    N = problem.N[groups]
    whitened = la.solve_triangular(C, problem.XG[:, groups] / N, lower=True, check_finite=False)
    return C, whitened, np.log(N / problem.n) - 0.5 * np.square(whitened).sum(axis=0)


def ridge_encoder(problem: Problem, state: State) -> tuple[Floats, Floats]:
    """Regress the learned codes on the features: P (l, d) and intercept (l,); O(d^3 / 3).

    P = B X^T (X X^T + ridge n I)^-1. The features are centred, so the intercept is the mean code.
    """
    coefficients, intercept = regress_codes(problem, state.B)
    return np.ascontiguousarray(coefficients.T), intercept


def regress_codes(problem: Problem, B: Floats) -> tuple[Floats, Floats]:
    """Ridge regression of the groups' codes (l, g): coefficients (d, l) and intercept (l,)."""
    coefficients = la.cho_solve(problem.ridge_factor, problem.XG @ B.T, check_finite=False)
    return np.asarray(coefficients), (B @ problem.N) / problem.n


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
    "discriminant": discriminant_encoder,
    "ridge": ridge_encoder,
    "orthogonal": orthogonal_encoder,
    "lemma": lemma_encoder,
}
"""What each kind projects standardised features by: P (k, d) and an intercept (k,)."""
VOTING: tuple[EncoderKind, ...] = ("posterior", "discriminant")
"""Encoders that find how likely each label group is, and mix their codes."""
BY_REGRESSION: tuple[EncoderKind, ...] = (*VOTING, "ridge")
"""Encoders that follow from the codes and the group regression alone, and can be judged by them."""
