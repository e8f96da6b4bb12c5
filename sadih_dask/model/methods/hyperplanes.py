"""Hash functions that nothing is learned for: random hyperplanes, circulant ones, plain signs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sadih_dask.errors import InputError
from sadih_dask.learning.encoders import HashFunction
from sadih_dask.learning.randomness import generator
from sadih_dask.model.estimator import Hasher, Learned
from sadih_dask.model.scanning import Scanned
from sadih_dask.types import Floats


def through_mean(scanned: Scanned, P: Floats) -> HashFunction:
    """Bits are the sides of hyperplanes through the mean, with normals P (d, l)."""
    return HashFunction(scanned.anchor_map, P, -(scanned.statistics.mean @ P))


class LSH(Hasher):
    """Random hyperplanes (Charikar, 2002): two rows differ in a bit as often as by their angle.

    Deviation: planes go through the mean of the rows instead of the origin; features that are never
    negative would all lie on one side of most planes.
    """

    method: ClassVar = "lsh"
    supervised: ClassVar = False
    learns_from: ClassVar = "the mean of all rows"

    def _solve(self, scanned: Scanned) -> Learned:
        P = self._normals(scanned.statistics.n_features, scanned.seed)
        return Learned(through_mean(scanned, P))

    def _normals(self, n_features: int, seed: int) -> Floats:
        return generator(seed, "hyperplanes").standard_normal((n_features, self.n_bits))


class CBE(LSH):
    """Circulant binary embedding (Yu et al., 2014), its random form: h(x) = sgn(circ(r) D x).

    D flips the signs of features at random, and row k of circ(r) is r, drawn from N(0, 1), moved on
    by k places. As good as random hyperplanes, from d numbers instead of d l. Beyond d bits another
    r and D begin.
    """

    method: ClassVar = "cbe"

    def _normals(self, n_features: int, seed: int) -> Floats:
        rng, parts = generator(seed, "hyperplanes"), []
        for first in range(0, self.n_bits, n_features):
            r, flips = rng.standard_normal(n_features), rng.choice([-1.0, 1.0], n_features)
            moved = np.arange(min(n_features, self.n_bits - first))
            places = np.arange(n_features)[:, None] - moved
            parts.append(flips[:, None] * r[places % n_features])
        return np.hstack(parts)


class BinaryQuantisation(LSH):
    """Signs of the first features themselves: what vector databases call binary quantisation.

    With ``n_bits`` as many as there are features it is `quantize_embeddings(..., "ubinary")` of
    sentence-transformers, but for the order of the bits. Thresholds are 0: nothing is learned.
    """

    method: ClassVar = "bq"
    learns_from: ClassVar = "nothing"

    def _solve(self, scanned: Scanned) -> Learned:
        n_features = scanned.statistics.n_features
        if self.n_bits > n_features:
            raise InputError(
                f"n_bits={self.n_bits}, but rows have {n_features} features, and each gives one bit"
            )
        P = np.eye(n_features, self.n_bits)
        return Learned(HashFunction(scanned.anchor_map, P, np.zeros(self.n_bits)))
