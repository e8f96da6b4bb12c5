"""Ordinal constraint hashing (Liu et al., 2017): rankings among landmarks are kept."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import expit

from sadih_dask.learning.updates import polar
from sadih_dask.model.methods.dsh import clusters
from sadih_dask.model.methods.itq import ITQ, random_rotation
from sadih_dask.types import Floats, Ints

LANDMARKS, NEAREST = 256, 10
"""Clusters that stand for the rows, and neighbours of each that farther ones are compared with."""
HALVINGS = 20


class OCH(ITQ):
    """Principal directions, rotated so that codes rank landmarks as distances do.

    The landmarks c are the centres of k-means; for each, q, one of its nearest, i, and any that is
    farther, j, have to come in this order in codes, too. With h = tanh(R^T P^T c), t_qi = h_q^T h_i

    min_R sum_qij sigma(t_qj - t_qi)  with  R^T R = I,

    the number of triples in the wrong order if sigma and tanh were steps; ``max_iter`` steps of
    gradient descent at most, each back on the orthogonal matrices by its polar factor.

    Deviations: a step looks at all landmarks instead of one at random, and is halved until the cost
    falls, so that it never rises. Projections are scaled to a mean square of 1: where tanh is a
    line, every rotation is as good as another. As many directions are kept as bits.
    """

    method: ClassVar = "och"

    def _rotation(self, X: Floats, P: Floats, seed: int) -> Floats:
        centres = clusters(X, min(LANDMARKS, len(X)), seed)[0]
        near, order = ordered(centres)
        Z = centres @ P
        Z /= max(float(np.sqrt(np.square(Z).mean())), np.finfo(float).tiny)
        R, length = random_rotation(seed, Z.shape[1]), 1.0
        value, slope = cost(Z @ R, near, order)
        for _ in range(self.max_iter):
            for _ in range(HALVINGS):
                moved = polar(R - length * (Z.T @ slope))
                reached, next_slope = cost(Z @ moved, near, order)
                if reached < value:
                    break
                length /= 2.0
            else:
                break
            R, value, slope, length = moved, reached, next_slope, 2.0 * length
        return R


def ordered(centres: Floats) -> tuple[Ints, Ints]:
    """The nearest others of each landmark (m, k), and the rank of every landmark for it (m, m)."""
    between = cdist(centres, centres, "sqeuclidean")
    np.fill_diagonal(between, -1.0)  # each is its own first
    by_distance = np.argsort(between, axis=1, kind="stable")
    rank = np.argsort(by_distance, axis=1, kind="stable")
    return by_distance[:, 1 : NEAREST + 1], rank


def cost(V: Floats, near: Ints, rank: Ints) -> tuple[float, Floats]:
    """The mean of sigma(t_qj - t_qi) over all triples, and its gradient by V = Z R, (m, l)."""
    H = np.tanh(V)
    T = H @ H.T
    k = np.arange(1, near.shape[1] + 1)
    farther = rank[:, None, :] > k[:, None]  # (m, k, m)
    wrong = expit(T[:, None, :] - np.take_along_axis(T, near, axis=1)[:, :, None])
    n = max(int(farther.sum()), 1)
    by_pair = farther * wrong * (1.0 - wrong) / n
    G = by_pair.sum(axis=1)
    np.put_along_axis(G, near, np.take_along_axis(G, near, axis=1) - by_pair.sum(axis=2), axis=1)
    return float((farther * wrong).sum()) / n, ((G + G.T) @ H) * (1.0 - H**2)
