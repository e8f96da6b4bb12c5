"""The update rules: each unknown in turn, with everything else fixed.

First the codes B, then the label embedding W, then the autoencoder's P1 and P2. A rule takes the
problem and the state and returns the new value of its unknown; `updates` says which rules a loss
and a solver mean, and is the place to name a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import scipy.linalg as la

from sadih_dask.learning.objective import objective, weights
from sadih_dask.learning.problem import RANK_TOLERANCE, Problem, State
from sadih_dask.types import Floats, Loss, SolverKind

Rule: TypeAlias = Callable[[Problem, State], Floats]
Update: TypeAlias = Callable[[Problem, State], State]

TIE = 1e-9
"""Values below this fraction of the terms they are a sum of are rounding, not evidence."""
MAX_SWEEPS = 10
COLUMNS = 4096
"""Groups handled together, so that their codes stay in cache while the bits are swept."""


# -- codes ------------------------------------------------------------------------------------


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


# -- label embedding --------------------------------------------------------------------------


def embedding_exact(problem: Problem, state: State) -> Floats:
    """Solve the stationarity condition of Eq. (15). SADIH Eq. (16).

    Y D Y^T W B B^T + Y Y^T W (alpha P2^T P2 + (beta + gamma) I)
        = l Y D S B^T + Y X^T (alpha P2 + beta P1^T)

    Deviation: Eq. (16) as printed replaces the first term's Y D Y^T and B B^T by Y Y^T and B D B^T,
    which is not the stationarity condition, and raises Eq. (7).
    """
    ND = problem.N * weights(problem, state)
    similarity = problem.l * np.asarray(problem.Gt.T @ (state.BS * ND).T)
    autoencoder = problem.XYt.T @ (problem.alpha * state.P2 + problem.beta * state.P1.T)
    F = _latent_ridge(problem, state)
    return _solve_two_sided(problem, state.B, ND, F, similarity + autoencoder)


def embedding_from_codes(problem: Problem, B: Floats, BS: Floats) -> Floats:
    """W that fits given codes, before there is an autoencoder: Eq. (15) with alpha = beta = 0.

    The weights are those of W = 0, where every residual is l s^i.
    """
    ND = problem.N * 0.5 / np.sqrt(problem.energy)
    similarity = problem.l * np.asarray(problem.Gt.T @ (BS * ND).T)
    ridge = max(problem.gamma, 1e-9 * float(ND.sum()))
    return _solve_two_sided(problem, B, ND, ridge * np.eye(problem.l), similarity)


def _solve_two_sided(problem: Problem, B: Floats, ND: Floats, F: Floats, C: Floats) -> Floats:
    """Solve A1 W K + A2 W F = C: A1 = Y D Y^T, A2 = Y Y^T, K = B B^T, F positive definite.

    Two simultaneous diagonalisations turn it into one division: Z^T A2 Z = I, Z^T A1 Z = diag(p);
    E^T F E = I, E^T K E = diag(q); then W = Z Omega E^T with Omega = Z^T C E / (1 + p q^T).
    Eigenproblems of size c and l; single-label A1 and A2 are diagonal already.
    """
    K = (B * problem.N) @ B.T
    q, E = la.eigh(K, F)
    q = np.maximum(q, 0.0)
    if problem.single_label:
        rows = np.maximum(problem.label_counts, 1.0)[:, None]
        p = np.asarray(problem.Gt.T @ ND)[:, None] / rows
        return np.asarray(((C @ E) / rows / (1.0 + p * q)) @ E.T)
    p, rotation = la.eigh(problem.label_basis.T @ problem.label_gram(ND) @ problem.label_basis)
    Z = problem.label_basis @ rotation
    return np.asarray(Z @ ((Z.T @ C @ E) / (1.0 + np.outer(np.maximum(p, 0.0), q))) @ E.T)


def embedding_printed(problem: Problem, state: State) -> Floats:
    """Eq. (16) as printed, with the transposes without which its shapes do not fit.

    W = L (Q D B^T + Y X^T (alpha P2 + beta P1^T)) (B D B^T + alpha P2^T P2 + (beta + gamma) I)^-1
    """
    ND = problem.N * weights(problem, state)
    QDBt = problem.l * np.asarray(problem.Gt.T @ (problem.S.apply(state.B * ND) * problem.N).T)
    autoencoder = problem.XYt.T @ (problem.alpha * state.P2 + problem.beta * state.P1.T)
    K = (state.B * ND) @ state.B.T + _latent_ridge(problem, state)
    return problem.solve_label_gram(la.solve(K, (QDBt + autoencoder).T, assume_a="pos").T)


def _latent_ridge(problem: Problem, state: State) -> Floats:
    """Alpha P2^T P2 + (beta + gamma) I, kept definite when beta and gamma are zero."""
    decoded = problem.alpha * state.P2.T @ state.P2
    least = RANK_TOLERANCE * max(float(np.trace(decoded)) / problem.l, 1.0)
    return np.asarray(decoded + max(problem.beta + problem.gamma, least) * np.eye(problem.l))


# -- autoencoder ------------------------------------------------------------------------------


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


# -- which rules ------------------------------------------------------------------------------

CODES: dict[tuple[Loss, SolverKind], Rule] = {
    ("l21", "exact"): codes_l21,
    ("l21", "paper"): codes_l21_printed,
    ("l1", "exact"): codes_l1_guarded,
    ("l1", "paper"): codes_l1,
}
OTHERS: dict[SolverKind, tuple[Rule, Rule, Rule]] = {
    "exact": (embedding_exact, encoder_exact, decoder_exact),
    "paper": (embedding_printed, encoder_printed, decoder_printed),
}
"""Rules of W, P1 and P2, which do not depend on the loss."""


def updates(loss: Loss, solver: SolverKind) -> dict[str, Update]:
    """Return the four steps in the paper's order, each from a state to the next."""
    codes, (embedding, encoder, decoder) = CODES[loss, solver], OTHERS[solver]
    return {
        "B": lambda p, s: s.with_B(p, codes(p, s)),
        "W": lambda p, s: replace(s, W=embedding(p, s)),
        "P1": lambda p, s: s.with_P1(p, encoder(p, s)),
        "P2": lambda p, s: replace(s, P2=decoder(p, s)),
    }
