"""The learning problem: Eq. (7) with the data replaced by their statistics, and its unknowns.

`GroupRegression` is what the problem knows of the features beyond Eq. (7): starting codes and
encoders are read off it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import scipy.linalg as la
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh

from sadih_dask.errors import InputError
from sadih_dask.learning.similarity import Similarity, group_similarity
from sadih_dask.learning.statistics import Statistics
from sadih_dask.types import Floats, SimilarityKind

MAX_GROUPS = 2048
"""Label groups up to which g x g matrices are cheap beside the rest."""
RANK_TOLERANCE = 1e-10
"""Eigenvalues below this fraction of the largest count as zero."""


@dataclass(frozen=True, eq=False)
class GroupRegression:
    """How well ridge regression of the group indicators on the features predicts any codes.

    Ridge regression is linear in its targets: the scores of *any* codes B are B f(x) plus the mean
    code, where f(x) = A^T x, A = (X X^T + ridge n I)^-1 X_G, regresses the group indicators
    (`Problem.group_coefficients`). How well it does on rows that were not learned from is corrected
    for the rows having been seen: leave-one-out, with the mean leverage h for each row's own.

    fitted    (g, g)  X_G^T A: sum of f(x) over the rows of each group
    leverage          mean leverage of a row: effective degrees of freedom / n, below 1
    N         (g,)    rows in each group
    """

    fitted: Floats
    leverage: float
    N: Floats

    @cached_property
    def predictability(self) -> Floats:
        """K (g, g): ridge regression explains b^T K b of the variance of a bit with group signs b.

        Of rows left out; a bit that can only be memorised counts for nothing.
        """
        n, h = self.N.sum(), self.leverage
        own = np.diag(self.N) - np.outer(self.N, self.N / n)
        return (self.fitted - h * own) / ((1.0 - h) * n)


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything that the updates read and that never changes while they run.

    l                bits
    alpha, beta, gamma   weights of Eq. (7)
    ridge            penalty per row of the regression from features to codes
    Gt   (g, c)      label groups, sparse: the transpose of G
    N    (g,)        rows in each group
    S                g x g similarity of the groups, as an operator
    XG   (d, g)      sums of the standardised features over each group
    XXt  (d, d)      Gram matrix of the standardised features
    """

    l: int  # noqa: E741 - the paper's letter
    alpha: float
    beta: float
    gamma: float
    ridge: float
    Gt: sp.csr_array
    N: Floats
    S: Similarity
    XG: Floats
    XXt: Floats
    single_label: bool

    @classmethod
    def from_statistics(
        cls,
        statistics: Statistics,
        l: int,  # noqa: E741
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        gamma: float = 1e-3,
        ridge: float = 1e-3,
        similarity: SimilarityKind | Similarity = "shared-label",
    ) -> Problem:
        """Pose the problem on standardised features."""
        groups = statistics.groups
        if isinstance(similarity, str):
            similarity = group_similarity(groups, similarity)
        return cls(
            l=l,
            alpha=alpha,
            beta=beta,
            gamma=gamma,
            ridge=ridge,
            Gt=groups.matrix,
            N=statistics.counts.astype(np.float64),
            S=similarity,
            XG=np.ascontiguousarray(statistics.standardised_sums().T),
            XXt=statistics.standardised_gram(),
            single_label=groups.single_label,
        )

    def with_weights(self, alpha: float, beta: float, gamma: float) -> Problem:
        """The problem with other weights, and with all that is known of it already."""
        other = replace(self, alpha=alpha, beta=beta, gamma=gamma)
        known = {name: value for name, value in vars(self).items() if name not in vars(other)}
        known.pop("decoder_factor", None)  # the one result that depends on the weights
        vars(other).update(known)
        return other

    @property
    def n(self) -> float:
        """Rows of the collection."""
        return float(self.N.sum())

    @cached_property
    def XYt(self) -> Floats:
        """X Y^T = X_G G^T, (d, c)."""
        return np.asarray(self.XG @ self.Gt)

    @cached_property
    def energy(self) -> Floats:
        """||l s^i||^2 for a row of each group, (g,): l^2 sum_j N_j s_ij^2."""
        return self.l**2 * self.S.energy(self.N)

    @property
    def few_groups(self) -> bool:
        """Whether S is small beside the matrices of every step."""
        return len(self.N) <= max(2 * self.l, 256)

    @cached_property
    def dense_S(self) -> Floats:
        """S itself, (g, g); only where there are few groups."""
        return self.S.apply(np.eye(len(self.N)))

    @cached_property
    def lambda_max(self) -> float:
        """An upper bound, tight to 0.1 %, of the largest eigenvalue of X X^T."""
        d = len(self.XXt)
        if d <= 64 or not self.XXt.any():
            return float(la.eigvalsh(self.XXt)[-1])
        # A start without structure: from one orthogonal to the top direction Lanczos misses it.
        v0 = np.random.default_rng(0).standard_normal(d)
        top = eigsh(self.XXt, k=1, v0=v0, tol=1e-4, return_eigenvectors=False)
        return 1.001 * float(top[0])

    def label_gram(self, weights: Floats) -> Floats:
        """G diag(weights) G^T, (c, c); with N it is Y Y^T, with N d it is Y D Y^T."""
        return np.asarray((self.Gt.T @ sp.diags_array(weights) @ self.Gt).toarray())

    @cached_property
    def label_counts(self) -> Floats:
        """Rows that carry each label, (c,): the diagonal of Y Y^T."""
        return np.asarray(self.Gt.T @ self.N)

    @cached_property
    def label_basis(self) -> Floats:
        """Z (c, r) with Z^T (Y Y^T) Z = I, spanning the range of Y Y^T.

        Y Y^T is singular when a class has no rows or when two labels always occur together; W is
        then determined only up to directions that V = W^T Y does not see, and those are left out.
        Scaling by the diagonal first keeps a rare label apart from a missing one.
        """
        size = np.sqrt(np.maximum(self.label_counts, 1.0))
        values, vectors = la.eigh(self.label_gram(self.N) / size / size[:, None])
        keep = values > RANK_TOLERANCE * values[-1]
        return np.asarray(vectors[:, keep] / np.sqrt(values[keep]) / size[:, None])

    def solve_label_gram(self, C: Floats) -> Floats:
        """(Y Y^T)^-1 C on the range of Y Y^T; for single-label data a division."""
        if self.single_label:
            return np.asarray(C / np.maximum(self.label_counts, 1.0)[:, None])
        return np.asarray(self.label_basis @ (self.label_basis.T @ C))

    def factor_gram(self, weight: float, shift: float) -> tuple[Floats, bool]:
        """Cholesky factor of weight X X^T + shift I, for scipy.linalg.cho_solve; O(d^3 / 3).

        A shift too small to make a singular X X^T definite is raised to where it does.
        """
        d = len(self.XXt)
        least = 1e-12 * (weight * float(np.trace(self.XXt)) / d or 1.0)
        matrix = weight * self.XXt
        matrix[np.diag_indices(d)] += max(shift, least)
        try:
            factor, lower = la.cho_factor(matrix, overwrite_a=True, check_finite=False)
        except la.LinAlgError as error:
            raise InputError(
                "the statistics are of no rows: their Gram matrix has negative eigenvalues, as "
                "when rows were taken out that had never been put in; learn again from all rows"
            ) from error
        return np.asarray(factor), bool(lower)

    @cached_property
    def decoder_factor(self) -> tuple[Floats, bool]:
        """Factor of alpha X X^T + gamma I: the T of Eq. (19), the same in every iteration."""
        return self.factor_gram(self.alpha, self.gamma)

    @cached_property
    def ridge_factor(self) -> tuple[Floats, bool]:
        """Factor of X X^T + ridge n I."""
        return self.factor_gram(1.0, self.ridge * self.n)

    def whiten(self, rows: Floats, transposed: bool = False) -> Floats:
        """Rows times C^-T (or C^-1 if ``transposed``), C C^T = X X^T + ridge n I; (k, d)."""
        factor, lower = self.ridge_factor
        # The factor is C^T, upper triangular.
        side: Literal[0, 1] = 0 if transposed else 1
        solved = la.solve_triangular(factor, rows.T, trans=side, lower=lower, check_finite=False)
        return np.ascontiguousarray(solved.T)

    @cached_property
    def group_coefficients(self) -> Floats:
        """A (d, g): ridge regression of the group indicators; O(d^3 / 3 + d^2 g)."""
        return np.asarray(la.cho_solve(self.ridge_factor, self.XG, check_finite=False))

    @cached_property
    def regression(self) -> GroupRegression:
        """How well the groups can be predicted; holds g x g; O(d^3 / 3 + d g^2)."""
        (factor, lower), d = self.ridge_factor, len(self.XXt)
        inverse = la.solve_triangular(factor, np.eye(d), lower=lower, check_finite=False)
        freedom = d - self.ridge * self.n * float(np.vdot(inverse, inverse))
        leverage = min(max(freedom, 0.0) / self.n, 0.9)
        return GroupRegression(self.XG.T @ self.group_coefficients, leverage, self.N)

    @cached_property
    def quiet_directions(self) -> Floats:
        """Orthonormal directions of little variance in the features, (min(l, d), d).

        Two steps of inverse subspace iteration: enough for a start that descent improves.
        """
        d = len(self.XXt)
        basis = np.random.default_rng(0).standard_normal((d, min(self.l, d)))
        for _ in range(2):
            basis = np.linalg.qr(la.cho_solve(self.ridge_factor, basis, check_finite=False)).Q
        return np.ascontiguousarray(basis.T)


@dataclass(frozen=True, eq=False)
class State:
    """The four unknowns, with two products of them that several steps read.

    BS    (l, g)  B diag(N) S
    P1XXt (l, d)  P1 X X^T
    """

    B: Floats
    W: Floats
    P1: Floats
    P2: Floats
    BS: Floats
    P1XXt: Floats

    @classmethod
    def of(cls, problem: Problem, B: Floats, W: Floats, P1: Floats, P2: Floats) -> State:
        """Assemble a state from its four unknowns."""
        return cls(B, W, P1, P2, problem.S.apply(B * problem.N), P1 @ problem.XXt)

    def with_B(self, problem: Problem, B: Floats) -> State:
        """Change the codes."""
        return replace(self, B=B, BS=problem.S.apply(B * problem.N))

    def with_P1(self, problem: Problem, P1: Floats) -> State:
        """Change the encoder."""
        return replace(self, P1=P1, P1XXt=P1 @ problem.XXt)

    def V(self, problem: Problem) -> Floats:
        """Latent embedding of each group, W^T G, (l, g)."""
        return np.ascontiguousarray((problem.Gt @ self.W).T)


def raised_factor(within: Floats, shift: float) -> Floats:
    """Lower Cholesky factor of a covariance plus a multiple of I, larger if need be."""
    while True:
        C = within.copy()
        C[np.diag_indices(len(C))] += shift
        try:
            return np.asarray(la.cholesky(C, lower=True, overwrite_a=True, check_finite=False))
        except la.LinAlgError:
            if not np.isfinite(shift):
                raise
            shift *= 10.0
