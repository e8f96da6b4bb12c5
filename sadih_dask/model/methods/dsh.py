"""Density sensitive hashing (Jin et al., 2014): planes between neighbouring clusters."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.spatial.distance import cdist

from sadih_dask.errors import Argument, InputError, Remedy
from sadih_dask.learning.encoders import HashFunction
from sadih_dask.learning.randomness import generator
from sadih_dask.model.estimator import Learned
from sadih_dask.model.methods.sampled import SampleHasher, centred_rows
from sadih_dask.model.scanning import Scanned
from sadih_dask.types import Floats, Ints

CLUSTERS_PER_BIT, ADJACENT, STEPS = 1.5, 3, 3
"""Clusters, neighbours of each that planes are put between, and steps of k-means; as published."""


class DSH(SampleHasher):
    """Planes halfway between neighbouring clusters that divide the rows most evenly.

    k-means with 1.5 clusters a bit; for every pair of clusters where one is among the three nearest
    of the other, the plane (m_1 - m_2)^T x = (m_1 - m_2)^T (m_1 + m_2) / 2; of these the ones whose
    sides, in rows of the clusters there, have the largest entropy. All of it of sampled rows.
    """

    method: ClassVar = "dsh"
    supervised: ClassVar = False

    def _solve(self, scanned: Scanned) -> Learned:
        X = centred_rows(scanned.statistics)
        n_clusters = round(CLUSTERS_PER_BIT * self.n_bits)
        if len(X) < n_clusters:
            raise InputError(
                f"{self.n_bits} bits need {n_clusters} clusters, but n_samples={len(X)} are kept",
                remedy=Remedy("{} or fewer bits", Argument("sample_rows", n_clusters)),
            )
        centres, sizes = clusters(X, n_clusters, scanned.seed)
        one, two = adjacent(centres)
        normals = centres[one] - centres[two]
        middle = np.einsum("kd,kd->k", normals, (centres[one] + centres[two]) / 2.0)
        share = sizes @ (centres @ normals.T > middle) / sizes.sum()
        # Entropy rises with the smaller side; pairs come in order, so ties have one.
        kept = np.argsort(-np.minimum(share, 1.0 - share), kind="stable")[: self.n_bits]
        P = normals[kept].T
        offset = -middle[kept] - scanned.statistics.mean @ P
        return Learned(HashFunction(scanned.anchor_map, P, offset))


def clusters(X: Floats, k: int, seed: int) -> tuple[Floats, Ints]:
    """Centres (k, d) and sizes (k,) after a few steps of k-means, from rows drawn at random.

    A cluster that has lost all its rows stays where it is.
    """
    centres = X[generator(seed, "clusters").choice(len(X), k, replace=False)]
    for _ in range(STEPS):
        nearest = np.argmin(cdist(X, centres, "sqeuclidean"), axis=1)
        sizes = np.bincount(nearest, minlength=k)
        members = nearest == np.arange(k)[:, None]
        sums = members.astype(np.float64) @ X
        centres = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], centres)
    return centres, sizes


def adjacent(centres: Floats) -> tuple[Ints, Ints]:
    """Pairs of which one is among the nearest of the other, each once, in order."""
    between = cdist(centres, centres, "sqeuclidean")
    np.fill_diagonal(between, np.inf)
    near = np.argsort(between, axis=1, kind="stable")[:, : min(ADJACENT, len(centres) - 1)]
    flags = np.zeros(between.shape, bool)
    flags[np.arange(len(centres))[:, None], near] = True
    one, two = np.nonzero(np.triu(flags | flags.T))
    return one, two
