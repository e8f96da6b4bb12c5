"""Principal and canonical directions, and the rotations that turn them onto bits.

Directions come from the statistics of all rows. What a rotation is fitted to are the rows that the
scan keeps beside them, up to 2,560: enough for l (l - 1) / 2 angles.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.linalg as la

from sadih_dask.errors import InputError
from sadih_dask.learning.objective import Trace
from sadih_dask.learning.randomness import generator
from sadih_dask.learning.statistics import Statistics
from sadih_dask.learning.updates import polar
from sadih_dask.model.estimator import Hasher, Learned
from sadih_dask.model.methods.hyperplanes import through_mean
from sadih_dask.model.methods.sampled import centred_rows
from sadih_dask.model.scanning import Scanned
from sadih_dask.types import Floats

USUAL_BITS = 128
CANONICAL_RIDGE = 1e-4
"""Added to both covariances of the canonical analysis, as in the authors' code."""


def fit_rotation(V: Floats, R: Floats, n_steps: int) -> Floats:
    """R (k, l) that brings V R near the corners of the cube. Gong and Lazebnik, Eq. (2).

    In turns B = sgn(V R), and R the orthogonal Procrustes solution of V R = B.
    """
    for _ in range(n_steps):
        R = polar(V.T @ np.where(V @ R >= 0.0, 1.0, -1.0))
    return R


def random_rotation(seed: int, n: int) -> Floats:
    """Drawn evenly from all orthogonal matrices."""
    return polar(generator(seed, "rotation").standard_normal((n, n)))


@dataclass(eq=False, repr=False)
class Directions(Hasher):
    """Bits are signs of rotated projections; ``max_iter`` steps fit the rotation."""

    learns_from: ClassVar = "all rows, rotation from a sample"
    max_iter: int = 50

    @abstractmethod
    def _directions(self, statistics: Statistics, n: int) -> Floats:
        """Columns (d, n) that rows about their mean are projected onto, the foremost first."""

    def _rotation(self, X: Floats, P: Floats, seed: int) -> Floats:
        """What turns the projections X P of sampled rows onto bits, (l, l)."""
        return fit_rotation(X @ P, random_rotation(seed, P.shape[1]), self.max_iter)

    def _solve(self, scanned: Scanned) -> Learned:
        statistics = scanned.statistics
        if self.n_bits > statistics.n_features:
            raise InputError(
                f"n_bits={self.n_bits}, but rows have {statistics.n_features} features and no more "
                "directions"
            )
        # More than are needed, and the same for all lengths: they are what takes the time.
        n = max(self.n_bits, min(USUAL_BITS, statistics.n_features))
        if (self.method, n) not in scanned.shared:
            scanned.shared[self.method, n] = self._directions(statistics, n)
        P = scanned.shared[self.method, n][:, : self.n_bits]
        R = self._rotation(centred_rows(statistics), P, scanned.seed)
        return Learned(through_mean(scanned, P @ R), trace=Trace((), 0, self.max_iter))


class ITQ(Directions):
    """Iterative quantisation (Gong and Lazebnik, 2011): principal directions, rotated to bits."""

    method: ClassVar = "itq"
    supervised: ClassVar = False

    def _directions(self, statistics: Statistics, n: int) -> Floats:
        d = statistics.n_features
        kept = (d - n, d - 1)
        # Of the features as they are: what varies little says little.
        return np.asarray(la.eigh(statistics.gram, subset_by_index=kept)[1][:, ::-1])


class PCAH(ITQ):
    """Signs of the principal components."""

    method: ClassVar = "pcah"
    learns_from: ClassVar = "all rows"

    def _rotation(self, X: Floats, P: Floats, seed: int) -> Floats:  # noqa: ARG002
        return np.eye(P.shape[1])


class PCARR(ITQ):
    """Signs of the principal components after a random rotation, which spreads their variance."""

    method: ClassVar = "pca-rr"
    learns_from: ClassVar = "all rows"

    def _rotation(self, X: Floats, P: Floats, seed: int) -> Floats:  # noqa: ARG002
        return random_rotation(seed, P.shape[1])


class ITQCCA(Directions):
    """ITQ with canonical directions of features and labels (Gong and Lazebnik, 2011).

    C_xy (C_yy + rho I)^-1 C_yx w = r^2 (C_xx + rho I) w, all from the statistics of standardised
    features; directions are scaled by their correlation r. Beyond the number of classes r is 0, and
    so are the directions: the rotation then shares out what there is.
    """

    method: ClassVar = "itq-cca"

    def _directions(self, statistics: Statistics, n: int) -> Floats:
        rows, G = statistics.n_samples, statistics.groups.matrix.toarray().astype(np.float64)
        share = statistics.counts / rows
        rate = share @ G
        Cyy = (G * share[:, None]).T @ G - np.outer(rate, rate)
        Cxy = statistics.standardised_sums().T @ G / rows
        Cxx = statistics.standardised_gram() / rows
        for C in (Cxx, Cyy):
            C[np.diag_indices(len(C))] += CANONICAL_RIDGE
        M = Cxy @ la.solve(Cyy, Cxy.T, assume_a="pos")
        d = len(Cxx)
        squared, w = la.eigh((M + M.T) / 2.0, Cxx, subset_by_index=(d - n, d - 1))
        w = (w * np.sqrt(np.maximum(squared, 0.0)))[:, ::-1]
        return np.asarray(w / statistics.scale[:, None])
