"""The F- and P-steps: encoder P1 and decoder P2, with everything else fixed."""

from __future__ import annotations

import numpy as np
import scipy.linalg as la

from sadih_dask.arrays import Floats
from sadih_dask.learning.problem import RANK_TOLERANCE, Problem, State


def _compact_svd(A: Floats, least: float) -> tuple[Floats, Floats]:
    """Left and right singular vectors of A whose singular values exceed ``least``."""
    left, values, right = la.svd(A, full_matrices=False, check_finite=False)
    keep = values > max(least, RANK_TOLERANCE * values[0])
    return np.asarray(left[:, keep]), np.asarray(right[keep])


def polar(A: Floats) -> Floats:
    """Partial isometry of A's polar decomposition: directions in which A vanishes stay zero."""
    left, right = _compact_svd(A, 0.0)
    return left @ right


def complete(A: Floats, guess: Floats) -> Floats:
    """Isometry nearest to A, taken from the isometry ``guess`` in directions that A leaves open.

    Of all matrices with orthonormal rows (columns, if A is tall) it has the largest inner product
    with A. V has rank c at most, so A = V X^T often leaves directions open; an SVD alone would
    fill them with rounding noise.
    """
    left, right = _compact_svd(A, 0.0)
    if len(right) < min(A.shape):
        rest = guess - left @ (left.T @ guess)
        rest = rest - (rest @ right.T) @ right
        more_left, more_right = _compact_svd(rest, 1e-6)
        left, right = np.hstack([left, more_left]), np.vstack([right, more_right])
    missing = min(A.shape) - len(right)
    if missing:  # the guess, too, maps a direction that A leaves open onto one that it does not
        left = np.hstack([left, _complement(left)[:, :missing]])
        right = np.vstack([right, _complement(right.T)[:, :missing].T])
    return left @ right


def _complement(basis: Floats) -> Floats:
    """Orthonormal columns that complete orthonormal ``basis`` to a basis of the whole space."""
    return np.linalg.qr(basis, mode="complete")[0][:, basis.shape[1] :]


def start_encoder(problem: Problem, W: Floats) -> Floats:
    """Feasible P1 to start from: Lemma 1's, completed to orthonormal rows.

    Latent directions that V leaves empty are paired with directions of the features of little
    variance, which is where the exact minimiser puts them.
    """
    quiet = problem.quiet_directions
    guess = quiet if len(quiet) == problem.l else np.eye(problem.l, len(quiet)) @ quiet
    return complete((problem.XYt @ W).T, guess)


def encoder_exact(problem: Problem, state: State) -> Floats:
    """One descent step on ||V - P1 X||_F^2 over orthonormal P1. SADIH Eq. (17).

    P1 <- polar factor of V X^T + P1 (lambda I - X X^T), lambda >= lambda_max(X X^T); O(d l^2).

    Deviation: Lemma 1 takes the polar factor of V X^T alone, which is optimal only if X X^T is a
    multiple of the identity, or for l >= d, where P1^T P1 = I makes ||P1 X|| constant.
    """
    VXt = (problem.XYt @ state.W).T
    if problem.l >= len(problem.XXt):
        return complete(VXt, state.P1)
    # Rows of P1 in the top eigenspace of X X^T vanish from the sum: all do on whitened features.
    return complete(VXt + problem.lambda_max * state.P1 - state.P1XXt, state.P1)


def encoder_printed(problem: Problem, state: State) -> Floats:
    """Lemma 1: the polar factor of (X Y^T W)^T by its compact SVD. SADIH Eq. (17)."""
    return polar((problem.XYt @ state.W).T)


def decoder_exact(problem: Problem, state: State) -> Floats:
    """P2 = alpha X V^T (alpha V V^T + gamma I)^-1, an l x l system. SADIH Eq. (18).

    Deviation: Eq. (19) as printed regresses V on X where Eq. (18) regresses X on V.
    """
    V = state.V(problem)
    values, vectors = la.eigh(problem.alpha * (V * problem.N) @ V.T)
    values = np.maximum(values, 0.0) + problem.gamma
    keep = values > RANK_TOLERANCE * max(values[-1], np.finfo(float).tiny)
    basis = vectors[:, keep]
    XVt = problem.XYt @ (state.W @ basis)
    return np.asarray(problem.alpha * (XVt / values[keep]) @ basis.T)


def decoder_printed(problem: Problem, state: State) -> Floats:
    """P2 = (alpha X X^T + gamma I)^-1 X Y^T W. SADIH Eq. (19)."""
    return np.asarray(
        la.cho_solve(problem.decoder_factor, problem.XYt @ state.W, check_finite=False)
    )
