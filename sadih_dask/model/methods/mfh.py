"""Multiple feature hashing (Song et al., 2011), with the labels as the second kind of feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.linalg as la
from scipy.spatial.distance import cdist

from sadih_dask.errors import Argument, InputError, Remedy
from sadih_dask.learning.similarity import group_similarity
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model.estimator import Learned
from sadih_dask.model.methods.hyperplanes import through_mean
from sadih_dask.model.methods.sampled import SampleHasher, centred_rows
from sadih_dask.model.scanning import Scanned
from sadih_dask.types import Floats

NEIGHBOURS = 5
ALPHA, GAMMA = 1.0, 100.0
"""Weights of the hash function and of the agreement of both graphs."""


@dataclass(eq=False, repr=False)
class MFH(SampleHasher):
    """Codes that are smooth on a graph of the features and on one of the labels, and predictable.

    min sum_g tr(Y_g^T L_g Y_g) + gamma sum_g ||Y - Y_g||^2 + alpha (||Z W - Y||^2 + beta ||W||^2)

    with Y^T Y = I: L_1 the Laplacian of the graph of nearest neighbours, L_2 of rows that share a
    label, Z the standardised rows. Y_g and W follow from Y; what is left is the trace of Y^T D Y,

    D = gamma sum_g (I - gamma (L_g + gamma I)^-1) + alpha (I - Z (Z^T Z + beta I)^-1 Z^T),

    least at the first eigenvectors of D without the constant one. Bits are the signs of Z W. beta
    is ``ridge`` times the rows.

    Deviations: the second kind of feature is the labels, which rows to be hashed do not have, so
    that W reads the first alone. All of it of sampled rows, whose pairs are held: 8 bytes each, a
    few times over.
    """

    method: ClassVar = "mfh"
    ridge: float = 1e-1

    def _solve(self, scanned: Scanned) -> Learned:
        statistics = scanned.statistics
        X = centred_rows(statistics) / statistics.scale
        if len(X) <= self.n_bits:
            raise InputError(
                f"{self.n_bits} bits need as many eigenvectors, but {len(X)} rows were sampled",
                remedy=Remedy("{} or fewer bits", Argument("sample_rows", self.n_bits + 1)),
            )
        Z = X - X.mean(axis=0)
        ZZ = Z.T @ Z
        ZZ[np.diag_indices(len(ZZ))] += self.ridge * len(Z)
        factor = la.cho_factor(ZZ)
        D = -ALPHA * Z @ la.cho_solve(factor, Z.T)
        D -= GAMMA**2 * smoothed_by_neighbours(X)
        D -= GAMMA**2 * smoothed_by_labels(statistics)
        D += 10.0 * (ALPHA + GAMMA) / len(D)  # the constant vector comes last
        Y = la.eigh(D, subset_by_index=(0, self.n_bits - 1), overwrite_a=True)[1]
        W = la.cho_solve(factor, Z.T @ Y)
        W *= np.copysign(1.0, W[np.abs(W).argmax(axis=0), np.arange(W.shape[1])])
        return Learned(through_mean(scanned, W / statistics.scale[:, None]))


def smoothed_by_neighbours(X: Floats) -> Floats:
    """(L + gamma I)^-1 of the graph in which one of two rows is among the nearest of the other."""
    between = cdist(X, X, "sqeuclidean")
    np.fill_diagonal(between, np.inf)
    n, k = len(X), min(NEIGHBOURS, len(X) - 1)
    near = np.argpartition(between, k - 1, axis=1)[:, :k]
    L = np.zeros((n, n))
    L[np.arange(n)[:, None], near] = -1.0
    L = np.minimum(L, L.T)
    L[np.diag_indices(n)] = GAMMA - L.sum(axis=1)
    return np.asarray(la.cho_solve(la.cho_factor(L, overwrite_a=True), np.eye(n)))


def smoothed_by_labels(statistics: Statistics) -> Floats:
    """(L + gamma I)^-1 of the graph in which rows share a label, by way of their groups.

    With the groups' graph A (g, g), sizes N and delta = A N + gamma, it is 1 / delta on the
    diagonal and the entry of (I - A diag(N / delta))^-1 A, over both deltas, for every pair.
    """
    present, group = np.unique(statistics.sample.group, return_inverse=True)
    groups = statistics.groups.take(present)
    A = (group_similarity(groups, "shared-label").apply(np.eye(len(present))) + 1.0) / 2.0
    N = np.bincount(group).astype(np.float64)
    delta = A @ N + GAMMA
    M = la.solve(np.eye(len(N)) - A * (N / delta), A) / np.outer(delta, delta)
    found = M[np.ix_(group, group)]
    found[np.diag_indices(len(found))] += 1.0 / delta[group]
    return np.asarray(found)
