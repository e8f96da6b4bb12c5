"""Latent factor hashing (Zhang et al., 2014)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy.linalg as la
import scipy.sparse as sp
from scipy.special import expit

from sadih_dask.learning.randomness import generator
from sadih_dask.model.methods.sampled import LabelCodes, shared
from sadih_dask.types import Floats, Ints

BETA = 30.0
"""Variance of the factors before labels are seen."""
STEPS = 50
"""Samples of columns; both as published."""
MAX_COLUMNS = 128
"""A step costs as many solves of the size of the codes."""


class LFH(LabelCodes):
    """Real factors U of rows whose products predict shared labels; codes are their signs.

    max sum_ij s_ij t_ij - log(1 + exp t_ij) - ||U||^2 / (2 beta), t_ij = u_i^T u_j / 2, s_ij = 1
    where rows share a label, else 0. Each step draws columns O, as many as bits, and moves the
    other rows by the columns O, then the rows of O one after the other by all others, each to the
    maximum of a quadratic lower bound:

    u_i += (U_J^T U_J / 8 + I / beta)^-1 (sum_{j in J} (s_ij - a_ij) u_j - u_i / beta),
    a_ij = 1 / (1 + exp(-t_ij)).

    The hash function is regressed to U, as published.

    Deviations: U starts at random normal numbers instead of principal components, so that codes
    follow from labels alone. O has as many rows as there are bits, as published, but no more than
    128.
    """

    method: ClassVar = "lfh"

    def _row_codes(self, labels: sp.csr_array, seed: int) -> Floats:
        rng, n = generator(seed, "codes"), labels.shape[0]
        U = rng.standard_normal((n, self.n_bits))
        for _ in range(STEPS):
            columns = rng.choice(n, min(self.n_bits, MAX_COLUMNS, n), replace=False)
            S, rest = shared(labels, columns), np.setdiff1d(np.arange(n), columns)
            V = U[columns]
            U[rest] += towards(V, (S[rest] - expit(U[rest] @ V.T / 2.0)) @ V, U[rest])
            _move_columns(U, columns, S)
        return U


def _move_columns(U: Floats, columns: Ints, S: Floats) -> None:
    """Move the rows in the columns, one after the other, by all others, in place."""
    M = bound(U)
    for k, i in enumerate(columns):
        error = S[:, k] - expit(U @ U[i] / 2.0)
        error[i] = 0.0
        M -= np.outer(U[i], U[i]) / 8.0
        U[i] += la.solve(M, error @ U - U[i] / BETA, assume_a="pos")
        M += np.outer(U[i], U[i]) / 8.0


def towards(V: Floats, gain: Floats, U: Floats) -> Floats:
    """The step of rows U (m, l) by columns V, given the slope of the likelihood."""
    step = la.solve(bound(V), (gain - U / BETA).T, assume_a="pos")
    return np.asarray(step.T)


def bound(V: Floats) -> Floats:
    """V^T V / 8 + I / beta: minus a lower bound of the second derivative."""
    M = V.T @ V / 8.0
    M[np.diag_indices(len(M))] += 1.0 / BETA
    return np.asarray(M)
