"""Supervised discrete hashing and its relatives: codes that labels can be regressed from, or to.

Their alternations read labels and codes, and features only through a regression. Here the rows of a
label group share one code, so that every step is of the size of the groups, and the regression is
of the statistics: all rows are learned from, and they are never in memory.

Deviation: the published steps give each row a code of its own, and begin with random ones. Where
each row has one class, one turn gives nearly all rows of a class one code, a random one, which no
further turn moves: the label term is then least at the codes as they are. So codes are drawn for
groups to begin with. With more bits than classes some rows leave the code of their class by a few
bits again; what that does to retrieval is within the spread of the draws
(`tests/benchmarks/bench_sdh_rows.py`).

G (g, c) label groups; N (g,) rows of each; X_G (d, g) sums of the standardised features;
B (l, g) codes in {-1, 1}; F (l, g) mean score of each group by the hash function.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.linalg as la

from sadih_dask.learning.encoders import HashFunction, regress_codes, unstandardised
from sadih_dask.learning.objective import Trace
from sadih_dask.learning.problem import Problem
from sadih_dask.learning.randomness import generator
from sadih_dask.learning.updates import coordinate_descent
from sadih_dask.model.estimator import Hasher, Learned
from sadih_dask.model.scanning import Scanned
from sadih_dask.retrieval.codes import pack
from sadih_dask.types import Floats


@dataclass(eq=False, repr=False)
class CodeRegression(Hasher):
    """Codes of label groups in turns with a ridge regression of the features to them.

    ``nu`` weighs the features beside the labels, ``ridge`` is the penalty of the regression per
    row, ``max_iter`` the number of turns.
    """

    anchors: int | None = 1000
    nu: float = 1e-5
    ridge: float = 1e-5
    max_iter: int = 5

    @abstractmethod
    def _codes(self, G: Floats, N: Floats, B: Floats, F: Floats) -> Floats:
        """The next codes (l, g)."""

    def _solve(self, scanned: Scanned) -> Learned:
        statistics = scanned.statistics
        problem = Problem.from_statistics(statistics, self.n_bits, ridge=self.ridge)
        G, N = problem.Gt.toarray().astype(np.float64), problem.N
        B = generator(scanned.seed, "codes").choice([-1.0, 1.0], (self.n_bits, len(N)))
        means = problem.XG / N
        n_turns = 0
        P, intercept = regress_codes(problem, B)
        for _ in range(self.max_iter):
            n_turns += 1
            before, B = B, self._codes(G, N, B, P.T @ means + intercept[:, None])
            P, intercept = regress_codes(problem, B)
            if np.array_equal(B, before):
                break
        affine = unstandardised(P.T, intercept, statistics)
        function = HashFunction(scanned.anchor_map, *affine)
        return Learned(function, pack(B.T), Trace((), 0, n_turns))


class SDH(CodeRegression):
    """Supervised discrete hashing (Shen et al., 2015): labels are regressed from codes.

    min ||Y - W^T B||^2 + ||W||^2 + nu ||B - F(X)||^2, Eq. (5): W by least squares (G-step), the
    bits one after the other (discrete cyclic coordinate descent, Eq. 11).
    """

    method: ClassVar = "sdh"

    def _codes(self, G: Floats, N: Floats, B: Floats, F: Floats) -> Floats:
        return _bits_for(self._targets(G, N, B), N, B, self.nu * F)

    def _targets(self, G: Floats, N: Floats, B: Floats) -> Floats:  # noqa: ARG002
        """What is regressed from the codes, (g, c)."""
        return G


class SDHR(SDH):
    """Supervised discrete hashing with relaxation (Gui et al., 2016): margins instead of 0 and 1.

    What is regressed from the codes only has to be larger by 1 for the labels of a row than for
    others, and is as near as it can be to what the codes give (Zhang et al.'s retargeting).
    """

    method: ClassVar = "sdhr"

    def _targets(self, G: Floats, N: Floats, B: Floats) -> Floats:
        scores = B.T @ _weights(G, N, B)
        return np.vstack([_with_margin(s, own > 0) for s, own in zip(scores, G, strict=True)])


class FSDH(CodeRegression):
    """Fast supervised discrete hashing (Gui et al., 2018): codes are regressed from labels.

    min ||B - W^T Y||^2 + ||W||^2 + nu ||B - F(X)||^2, whose code step is one sign:
    B = sgn(W^T Y + nu F(X)).
    """

    method: ClassVar = "fsdh"

    def _codes(self, G: Floats, N: Floats, B: Floats, F: Floats) -> Floats:
        GN = G.T * N
        M = GN @ G
        M[np.diag_indices(len(M))] += 1.0
        W = la.solve(M, GN @ B.T, assume_a="pos")
        return np.where((G @ W).T + self.nu * F >= 0.0, 1.0, -1.0)


def _weights(T: Floats, N: Floats, B: Floats) -> Floats:
    """W (l, c) = (B N B^T + I)^-1 B N T: ridge regression of the targets from codes."""
    BN = B * N
    M = BN @ B.T
    M[np.diag_indices(len(M))] += 1.0
    return np.asarray(la.solve(M, BN @ T, assume_a="pos"))


def _bits_for(T: Floats, N: Floats, B: Floats, evidence: Floats) -> Floats:
    """Minimise ||T - B^T W||^2 - 2 <B, evidence> over the bits of each group, W fixed."""
    W = _weights(T, N, B)
    H, M = W @ W.T, W @ T.T + evidence
    scale = np.abs(H).sum(axis=1, keepdims=True) + np.abs(M)
    return coordinate_descent(H, M, B, scale)


def _with_margin(scores: Floats, own: Any) -> Floats:
    """The nearest targets in which every own label is above every other by 1 or more.

    min ||t - s||^2 with t_j >= m for the own labels and t_k <= m - 1 for the others: for a given m
    each is clipped, and the best m is where what clipping costs on both sides balances.
    """
    # Breakpoints: an own label is lifted while s_j < m, another is lowered while s_k + 1 > m.
    points = np.sort(np.concatenate([scores[own], scores[~own] + 1.0]))
    lift = np.maximum(points[:, None] - scores[own], 0.0).sum(axis=1)
    lower = np.maximum(scores[~own] + 1.0 - points[:, None], 0.0).sum(axis=1)
    k = int(np.searchsorted(lift - lower, 0.0))
    if k == 0 or k == len(points):
        m = points[min(k, len(points) - 1)]
    else:
        low, high = (lift - lower)[k - 1], (lift - lower)[k]
        m = points[k - 1] + (points[k] - points[k - 1]) * (-low / (high - low))
    t = scores.copy()
    t[own] = np.maximum(t[own], m)
    t[~own] = np.minimum(t[~own], m - 1.0)
    return np.asarray(t)
