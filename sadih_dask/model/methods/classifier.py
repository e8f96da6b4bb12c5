"""The plain classifier: rows get the code of the class that they are taken for."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy.linalg as la

from sadih_dask.errors import LabelError
from sadih_dask.learning.encoders import HashFunction
from sadih_dask.learning.randomness import generator
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model.estimator import Hasher, Learned
from sadih_dask.model.scanning import Scanned
from sadih_dask.retrieval.codes import pack
from sadih_dask.types import Floats

SHRINKAGE = 0.1
"""Of the covariance within classes, towards a multiple of I: singular ones would need it, others
hardly mind."""


class ClassCodes(Hasher):
    """Linear discriminant analysis, and one random code per class: what codes cannot do without.

    A hash function is worth its name where it does better than this: for rows of other classes, or
    of several, or between classes that are alike.
    """

    method: ClassVar = "class-codes"

    def _solve(self, scanned: Scanned) -> Learned:
        statistics = scanned.statistics
        if not statistics.groups.single_label:
            raise LabelError("rows have several labels; class codes need one class a row")
        shape = len(statistics.counts), self.n_bits
        codes = generator(scanned.seed, "codes").choice([-1.0, 1.0], shape)
        if self.method not in scanned.shared:
            scanned.shared[self.method] = discriminants(statistics)
        projection, offset = scanned.shared[self.method]
        # The likeliest class alone has a say.
        function = HashFunction(scanned.anchor_map, projection, offset, codes, np.inf)
        return Learned(function, pack(codes))


def discriminants(statistics: Statistics) -> tuple[Floats, Floats]:
    """Affine scores (d, g) and (g,) whose largest is the likeliest class, if classes are normal.

    delta_k(x) = x^T S^-1 m_k - m_k^T S^-1 m_k / 2 + log p_k with the covariance S within classes.
    """
    n, d = statistics.n_samples, statistics.n_features
    means = statistics.sums / statistics.counts[:, None]  # about the mean of all
    within = (statistics.gram - statistics.sums.T @ means) / n
    within *= 1.0 - SHRINKAGE
    within[np.diag_indices(d)] += SHRINKAGE * (float(np.trace(within)) / (1 - SHRINKAGE) / d or 1.0)
    projection = la.solve(within, means.T, assume_a="pos")
    offset = np.log(statistics.counts / n) - 0.5 * np.einsum("kd,dk->k", means, projection)
    return projection, offset - statistics.mean @ projection
