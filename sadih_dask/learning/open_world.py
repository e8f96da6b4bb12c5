"""Directions for classes that nobody has seen yet.

V = W^T Y is the same for all rows of a class, so nothing in Eq. (7) carries what lies outside the
span of the class means, and rows of a new class are told apart only as far as they resemble known
ones. The directions here come from the other side: how do rows of *one* class differ, and how do
classes differ from one another? If both follow normal laws, the likelihood ratio of "two rows are
of the same class, whichever" (the two-covariance model of speaker verification) is a similarity in
a linear subspace. It is turned onto the codes of the known classes, so that both can be added.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg as la
from scipy.sparse.linalg import eigsh

from sadih_dask.learning.problem import Problem, raised_factor
from sadih_dask.learning.updates import complete, polar
from sadih_dask.types import Floats, Ints

WITHIN = 0.2
"""Part of the mean variance that is added to every direction's variance within classes."""
ELSEWHERE = 0.3
"""How much of the total covariance new classes may differ by, beside that of the known classes."""
DRAWN_ROWS = 2048
ROTATIONS = 20
"""Iterations that turn the directions onto the corners of the cube."""


def open_encoder(problem: Problem, B: Floats, rng: np.random.Generator) -> Floats:
    """Directions P (l, d) of standardised features: open codes are sgn(P x); O(d^3).

    S_w and S_b are the covariances within and between the label groups, T their sum; C C^T = S_w +
    WITHIN tr(T)/d I. The directions are the leading eigenvectors of C^-1 (S_b - g/n S_w + ELSEWHERE
    T) C^-T, eigenvalues psi, each weighted by sqrt(psi / (1 + 2 psi)); g/n S_w is what S_b has only
    because means of few rows scatter.
    """
    l, n, d = len(B), problem.n, len(problem.XXt)  # noqa: E741
    T = problem.XXt / n
    between = (problem.XG / problem.N) @ problem.XG.T / n
    within = T - between
    C = raised_factor(within, WITHIN * (float(np.trace(T)) / d or 1.0))
    M = between - (len(problem.N) / n) * within + ELSEWHERE * T
    M = la.solve_triangular(C, M, lower=True, check_finite=False)
    M = la.solve_triangular(C, M.T, lower=True, check_finite=False)
    psi, U = _leading((M + M.T) / 2.0, min(l, d))
    U = U * np.sqrt(psi / (1.0 + 2.0 * psi))
    A = la.solve_triangular(C, U, lower=True, trans=1, check_finite=False)
    group = np.resize(rng.permutation(len(problem.N)), DRAWN_ROWS)
    R = _rotation(problem, B, A, U, group, rng)
    return np.ascontiguousarray((A @ R).T)


def _leading(M: Floats, k: int) -> tuple[Floats, Floats]:
    """The k largest eigenvalues of a symmetric matrix, none below 0, and their eigenvectors."""
    d = len(M)
    if 4 * k < d and M.any():
        v0 = np.random.default_rng(0).standard_normal(d)  # as in Problem.lambda_max
        values, vectors = eigsh(M, k=k, v0=v0, tol=1e-6, which="LA")
    else:
        values, vectors = la.eigh(M, subset_by_index=(d - k, d - 1), check_finite=False)
    return np.maximum(values, 0.0), vectors


def _rotation(
    problem: Problem, B: Floats, A: Floats, U: Floats, group: Ints, rng: np.random.Generator
) -> Floats:
    """R (k, l) that turns the directions onto the codes of the groups, as ITQ does onto any.

    From rows drawn about the group means, x = m + C e, of which A^T x = A^T m + U^T e is all that
    is needed. Drawn in the space of the features: so it follows the data continuously, while the
    signs of eigenvectors change at a rounding error.
    """
    l = len(B)  # noqa: E741
    codes = np.ascontiguousarray(B.T)[group]
    means = (problem.XG / problem.N).T @ A
    z = means[group] + rng.standard_normal((len(group), len(U))) @ U
    z *= np.sqrt(l) / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    # Few groups leave most of the rotation open; that part is drawn in the same space, too.
    R = complete(z.T @ codes, polar(U.T @ rng.standard_normal((len(U), l))))
    for _ in range(ROTATIONS):
        R = complete(z.T @ np.where(codes + 0.5 * (z @ R) >= 0.0, 1.0, -1.0), R)
    return R
