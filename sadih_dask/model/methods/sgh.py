"""Scalable graph hashing with feature transformation (Jiang and Li, 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sadih_dask.learning.randomness import generator
from sadih_dask.model.estimator import Learned
from sadih_dask.model.methods.hyperplanes import through_mean
from sadih_dask.model.methods.sampled import SampleHasher, centred_rows, top_direction
from sadih_dask.model.scanning import Scanned
from sadih_dask.types import Floats

RHO = 2.0
"""Width of the similarity, for rows within the unit ball; as published."""
SINGULAR = 1e-6
"""Added to X^T X, as published."""


@dataclass(eq=False, repr=False)
class SGH(SampleHasher):
    """Bits that follow the whole graph of similarities, which is never formed.

    s_ij = 2 exp(-||x_i - x_j||^2 / rho) - 1 is p(x_i)^T q(x_j) to first order, Eq. (2):

    p(x) = [a e(x) x, b e(x), 1], q(x) = [a e(x) x, b e(x), -1], e(x) = exp(-||x||^2 / rho),
    a^2 = 2 (e - 1/e) / rho, b^2 = e + 1/e, with rows about their mean in the unit ball.

    min ||l S - sum_k h_k h_k^T||^2, h_k = sgn(X w_k): each w the top direction of X^T R X against
    X^T X, R the residual of the bits so far, and once more each in turn with all others as they
    are (Algorithm 1). All of it of sampled rows.

    Deviation: published hash functions are of 300 radial basis functions, similarities of the
    features. A sample has its rows in one form only, so here both are of what ``anchors`` says: by
    default of 300 radial basis functions.
    """

    method: ClassVar = "sgh"
    supervised: ClassVar = False
    anchors: int | None = 300

    def _solve(self, scanned: Scanned) -> Learned:
        X = centred_rows(scanned.statistics)
        X /= max(float(np.linalg.norm(X, axis=1).max()), np.finfo(float).tiny)
        p, q = transform(X)
        order = generator(scanned.seed, "order").permutation(self.n_bits)
        return Learned(through_mean(scanned, directions(X, p, q, order)))


def transform(X: Floats) -> tuple[Floats, Floats]:
    """p(x) and q(x) of every row."""
    e = np.exp(-np.square(X).sum(axis=1, keepdims=True) / RHO)
    a, b = np.sqrt(4.0 * np.sinh(1.0) / RHO), np.sqrt(2.0 * np.cosh(1.0))
    one = np.ones_like(e)
    return np.hstack([a * e * X, b * e, one]), np.hstack([a * e * X, b * e, -one])


def directions(X: Floats, p: Floats, q: Floats, order: np.ndarray) -> Floats:
    """W (d, l), each direction to the residual of the others; ``order`` is that of the revision."""
    n_bits = len(order)
    XX = X.T @ X
    XX[np.diag_indices(len(XX))] += SINGULAR
    residual = n_bits * (X.T @ p) @ (X.T @ q).T
    W, V = np.empty((X.shape[1], n_bits)), np.zeros((X.shape[1], n_bits))
    for k in (*range(n_bits), *order):
        residual += np.outer(V[:, k], V[:, k])  # without this bit, where it had one
        W[:, k] = top_direction(residual, XX)
        V[:, k] = X.T @ np.sign(X @ W[:, k])
        residual -= np.outer(V[:, k], V[:, k])
    return W
