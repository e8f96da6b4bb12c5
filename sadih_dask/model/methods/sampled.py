"""What methods share whose published form needs a matrix of all rows: they learn from a sample.

The scan keeps ``sample_rows`` rows beside the statistics, those with the smallest hashes of their
features, and these are what such a method learns from. Whatever it can take from the statistics
instead (the mean; the regression from features to codes) comes from all rows. Rows that are taken
out again leave a smaller sample than a fit without them would have, where there were more rows than
are kept.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.linalg as la
import scipy.sparse as sp

from sadih_dask.learning.encoders import HashFunction, regress_codes, unstandardised
from sadih_dask.learning.problem import RANK_TOLERANCE, Problem
from sadih_dask.learning.sample import KEPT_ROWS
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model.estimator import Hasher, Learned
from sadih_dask.model.scanning import Scanned
from sadih_dask.retrieval.codes import pack
from sadih_dask.types import Floats, Ints


@dataclass(eq=False, repr=False)
class SampleHasher(Hasher):
    """A method that learns from ``sample_rows`` rows at most."""

    learns_from: ClassVar = "a sample"
    sample_rows: int = KEPT_ROWS


@dataclass(eq=False, repr=False)
class LabelCodes(SampleHasher):
    """Codes of sampled rows that follow from their labels alone, and a ridge regression to them.

    What the code of a row has beyond the mean of its label group is then noise to the features, so
    the regression is of the groups' means: exact, and from the statistics of all rows.

    Deviation: rows of a label group share its learned code, the signs of its mean. A group that
    the sample misses gets the mean of the rows that it shares labels with; where these say
    nothing, the code that the hash function gives to the mean of its features.
    """

    learns_from: ClassVar = "a sample, regression from all rows"
    anchors: int | None = 1000
    ridge: float = 1e-5

    @abstractmethod
    def _row_codes(self, labels: sp.csr_array, seed: int) -> Floats:
        """Codes of rows with such labels (n, c), or real numbers whose signs they are; (n, l)."""

    def _solve(self, scanned: Scanned) -> Learned:
        statistics = scanned.statistics
        labels = statistics.groups.matrix[statistics.sample.group]
        targets = group_means(statistics, self._row_codes(labels, scanned.seed)).T
        problem = Problem.from_statistics(statistics, self.n_bits, ridge=self.ridge)
        P, intercept = regress_codes(problem, targets)
        of_means = P.T @ (problem.XG / problem.N) + intercept[:, None]
        codes = np.where(np.where(targets == 0.0, of_means, targets) >= 0.0, 1.0, -1.0)
        affine = unstandardised(P.T, intercept, statistics)
        return Learned(HashFunction(scanned.anchor_map, *affine), pack(codes.T))


def centred_rows(statistics: Statistics) -> Floats:
    """The sampled rows about the mean of all rows, (n, d)."""
    return np.asarray(statistics.sample.features.astype(np.float64) - statistics.mean)


def group_means(statistics: Statistics, values: Floats) -> Floats:
    """Mean of each label group over its sampled rows, or those that share labels; (n, l), (g, l).

    Rows count once for every label that they share. Zero where there are none.
    """
    G, group = statistics.groups.matrix, statistics.sample.group
    members = sp.csr_array(
        (np.ones(len(group)), (group, np.arange(len(group)))), shape=(G.shape[0], len(group))
    )
    # The last column counts the rows.
    sums = np.asarray(members @ np.column_stack([values, np.ones(len(group))]))
    sums = np.where(sums[:, -1:] == 0.0, np.asarray(G @ (G.T @ sums)), sums)
    return np.asarray(sums[:, :-1] / np.maximum(sums[:, -1:], 1.0))


def shared(labels: sp.csr_array, columns: Ints) -> Floats:
    """1 where a row shares a label with one of those in the columns, else 0; (n, m)."""
    return (np.asarray((labels @ labels[columns].T).toarray()) > 0.0).astype(np.float64)


def top_direction(M: Floats, N: Floats) -> Floats:
    """The w that maximises w^T M w with w^T N w = 1; its largest component is positive.

    N is raised by a trifle, as it is singular where columns are constant or rows are few.
    """
    d = len(N)
    N = N.copy()
    N[np.diag_indices(d)] += max(RANK_TOLERANCE * float(np.trace(N)), np.finfo(float).tiny)
    w = la.eigh((M + M.T) / 2.0, N, subset_by_index=(d - 1, d - 1), check_finite=False)[1][:, 0]
    return np.asarray(w * np.copysign(1.0, w[np.argmax(np.abs(w))]))
