"""The W-step: the label embedding, with everything else fixed."""

from __future__ import annotations

import numpy as np
import scipy.linalg as la

from sadih_dask.arrays import Floats
from sadih_dask.learning.objective import weights
from sadih_dask.learning.problem import RANK_TOLERANCE, Problem, State


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
