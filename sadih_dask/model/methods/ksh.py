"""Supervised hashing with kernels (Liu et al., 2012): bits one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse as sp

from sadih_dask.learning.objective import Trace
from sadih_dask.learning.similarity import group_similarity
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model.estimator import Learned
from sadih_dask.model.methods.hyperplanes import through_mean
from sadih_dask.model.methods.sampled import SampleHasher, centred_rows, top_direction
from sadih_dask.model.scanning import Scanned
from sadih_dask.types import Floats

MAX_DOUBLINGS = 50
TOLERANCE = 1e-2
"""Change of the cost per row that ends the descent; both as in the authors' code."""

Product = Callable[[Floats], Floats]


@dataclass(eq=False, repr=False)
class KSH(SampleHasher):
    """Supervised hashing with kernels: inner products of codes follow the labels, bit by bit.

    min ||l S - sum_k h_k h_k^T||^2 with h_k = sgn(K a_k), Eq. (9), over sampled rows; K their
    anchor features about the mean of all rows. With R the residual of the bits so far, a bit
    begins at the a that maximises (K a)^T R (K a), Eq. (13), goes down -f^T R f, f = phi(K a),
    phi a sigmoid from -1 to 1, by ``max_iter`` steps of Nesterov's method at most (Eq. 15), and
    ends where h^T R h is larger.

    S, 1 where rows share a label and -1 elsewhere, is applied by way of the label groups, and
    nothing of the size of all pairs is formed.
    """

    method: ClassVar = "ksh"
    anchors: int | None = 300
    max_iter: int = 500

    def _solve(self, scanned: Scanned) -> Learned:
        K, S = centred_rows(scanned.statistics), pairwise(scanned.statistics)
        A, H = np.empty((K.shape[1], self.n_bits)), np.empty((len(K), 0))
        KSK, KK = K.T @ S(K), K.T @ K
        for k in range(self.n_bits):
            KH = K.T @ H
            start = top_direction(self.n_bits * KSK - KH @ KH.T, KK)
            start *= np.sqrt(len(K) / max(float(start @ KK @ start), np.finfo(float).tiny))

            def residual(v: Floats, H: Floats = H) -> Floats:
                return self.n_bits * S(v[:, None])[:, 0] - H @ (H.T @ v)

            ends = [start, descend(K, residual, start, self.max_iter)]
            bits = [np.where(K @ a > 0.0, 1.0, -1.0) for a in ends]
            best = int(bits[1] @ residual(bits[1]) > bits[0] @ residual(bits[0]))
            A[:, k], H = ends[best], np.column_stack([H, bits[best]])
        return Learned(through_mean(scanned, A), trace=Trace((), 0, self.max_iter))


def pairwise(statistics: Statistics) -> Product:
    """S V for V (n, k): S (n, n) says which sampled rows share a label."""
    present, place = np.unique(statistics.sample.group, return_inverse=True)
    n = len(place)
    similarity = group_similarity(statistics.groups.take(present), "shared-label")
    members = sp.csr_array((np.ones(n), (place, np.arange(n))), shape=(len(present), n))
    return lambda V: np.asarray(similarity.apply(np.asarray(members @ V).T).T[place])


def descend(K: Floats, residual: Product, a: Floats, max_steps: int) -> Floats:
    """Go down g(a) = -f^T R f, f = 2 / (1 + exp(-K a)) - 1: Nesterov's method, steps by trial."""
    before, curvature = a, 1.0
    t_before, t = 0.0, 1.0
    cost = _cost(K, residual, a)[0]
    for _ in range(max_steps):
        v = a + (t_before - 1.0) / t * (a - before)
        value, f, Rf = _cost(K, residual, v)
        slope = -(K.T @ (Rf * (1.0 - f**2)))  # half the gradient over phi's, Eq. (16)
        for _ in range(MAX_DOUBLINGS + 1):
            z = v - slope / curvature
            step = z - v
            reached = _cost(K, residual, z)[0]
            if reached <= value + slope @ step + curvature / 2.0 * step @ step:
                break
            curvature *= 2.0
        else:
            break
        before, a = a, z
        t_before, t = t, (1.0 + np.sqrt(1.0 + 4.0 * t**2)) / 2.0
        cost, change = reached, abs(reached - cost)
        if change / len(K) <= TOLERANCE:
            break
    return a


def _cost(K: Floats, residual: Product, a: Floats) -> tuple[float, Floats, Floats]:
    """The smoothed cost, and f and R f that it is made of."""
    f = np.tanh(K @ a / 2.0)
    Rf = residual(f)
    return -float(f @ Rf), f, Rf
