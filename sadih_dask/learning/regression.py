"""Ridge regression from features to label groups, and what it says about new rows.

Ridge regression is linear in its targets: the scores of *any* codes B are B f(x) plus the mean
code, where f(x) = A^T x, A = (X X^T + ridge n I)^-1 X_G, regresses the group indicators. Solved
once, it serves every restart and every code length. It also tells, from statistics alone, how well
codes will do on rows that were not learned from: f(x) has a known mean in each group and a known
pooled covariance, both corrected for the rows having been seen (leave-one-out, with the mean
leverage h standing for each row's own).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg as la

from sadih_dask.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class GroupRegression:
    """Ridge regression of the group indicators on the features.

    A         (d, g)  coefficients
    fitted    (g, g)  X_G^T A: sum of f(x) over the rows of each group
    scatter   (g, g)  A^T X X^T A: sum of f(x) f(x)^T over all rows
    leverage          mean leverage of a row: effective degrees of freedom / n, below 1
    N         (g,)    rows in each group
    """

    A: Floats
    fitted: Floats
    scatter: Floats
    leverage: float
    N: Floats

    @classmethod
    def of(
        cls, XXt: Floats, XG: Floats, N: Floats, factor: tuple[Floats, bool], penalty: float
    ) -> GroupRegression:
        """Solve with the Cholesky factor of X X^T + penalty I; O(d^3 / 3 + d^2 g)."""
        A = np.asarray(la.cho_solve(factor, XG, check_finite=False))
        inverse = la.solve_triangular(
            factor[0], np.eye(len(XXt)), lower=factor[1], check_finite=False
        )
        freedom = len(XXt) - penalty * float(np.vdot(inverse, inverse))
        leverage = min(max(freedom, 0.0) / float(N.sum()), 0.9)
        return cls(A, XG.T @ A, A.T @ (XXt @ A), leverage, N)

    @property
    def share(self) -> Floats:
        """Part of the rows in each group, (g,): what f(x) is about, the features being centred."""
        return self.N / self.N.sum()

    @cached_property
    def predictability(self) -> Floats:
        """K (g, g): ridge regression explains b^T K b of the variance of a bit with group signs b.

        Of rows left out; a bit that can only be memorised counts for nothing.
        """
        own = np.diag(self.N) - np.outer(self.N, self.share)
        h = self.leverage
        return (self.fitted - h * own) / ((1.0 - h) * self.N.sum())

    @cached_property
    def means(self) -> Floats:
        """Mean of f(x) over each group's rows, left out, (g, g): row i for group i."""
        h = self.leverage
        return (self.fitted / self.N[:, None] - h * (np.eye(len(self.N)) - self.share)) / (1.0 - h)

    @cached_property
    def spread(self) -> Floats:
        """Symmetric square root R (g, g) of the pooled within-group covariance of f(x).

        Symmetric, because it then follows the covariance continuously: eigenvectors change sign
        and turn into one another at a rounding error, and with them everything simulated.
        """
        centres = self.fitted / self.N[:, None]
        within = (self.scatter - (centres * self.N[:, None]).T @ centres) / self.N.sum()
        values, vectors = la.eigh(within)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        return np.asarray(root) / (1.0 - self.leverage)

    def simulate(self, n_rows: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
        """Scores f(x) of rows that were not learned from, (rows, g), and the group of each.

        Every group gets an equal number of rows; f(x) is drawn normal about the group's mean.
        """
        g = len(self.N)
        group = np.repeat(np.arange(g), max(1, n_rows // g))
        noise = rng.standard_normal((len(group), g))
        return self.means[group] + noise @ self.spread.T, group
