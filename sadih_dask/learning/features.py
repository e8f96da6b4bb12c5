"""Anchor features: radial basis functions about rows of the training data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sadih_dask.arrays import Array, Floats, Ints
from sadih_dask.learning.statistics import compute_dtype

SAMPLE_ROWS = 10_000
"""Rows looked at for the input scale and the kernel width."""
SAMPLE_BLOCKS = 64
"""Row blocks that they come from."""


@dataclass(frozen=True, eq=False)
class AnchorMap:
    """phi(x)_j = exp(-||z - a_j||^2 / (2 sigma^2)), z = (x - centre) / scale.

    anchors  (m, d)  standardised training rows
    centre, scale (d,)  of the rows they were drawn from
    """

    anchors: Floats
    centre: Floats
    scale: Floats
    sigma: float

    @classmethod
    def from_sample(
        cls,
        sample: Array,
        n_anchors: int,
        rng: np.random.Generator,
        *,
        width: float = 0.5,
        sigma: float | None = None,
    ) -> AnchorMap:
        """Draw anchors from sampled training rows.

        Without a given ``sigma`` the kernel is ``width`` times the mean distance between rows and
        anchors wide. With fewer rows than anchors every row becomes one.
        """
        rows = sample.astype(np.float64)
        centre = rows.mean(axis=0)
        deviation = rows.std(axis=0)
        constant = deviation <= 1e-12 * np.abs(centre)
        scale = np.where(constant | (deviation == 0.0), 1.0, deviation)
        z = (rows - centre) / scale
        chosen = np.sort(rng.permutation(len(z))[:n_anchors])
        anchors = z[chosen]
        if sigma is None:
            sigma = width * float(np.sqrt(_squared_distances(z, anchors)).mean())
        # Identical rows are at distance zero; any width then gives the same constant features.
        return cls(anchors, centre, scale, sigma if sigma > 0 else 1.0)

    @property
    def n_features(self) -> int:
        """Columns of the mapped features."""
        return len(self.anchors)

    def __call__(self, features: Array) -> Array:
        """Map rows (n, d) to (n, m), in float32 for float16 and float32 input; O(n d m)."""
        work = compute_dtype(features.dtype)
        z = np.subtract(features, self.centre.astype(work), dtype=work)
        z /= self.scale.astype(work)
        squared = _squared_distances(z, self.anchors.astype(work))
        squared *= -0.5 / self.sigma**2
        return np.exp(squared, out=squared)


def sample_rows(n_samples: int, size: int, block_rows: int, rng: np.random.Generator) -> Ints:
    """Ascending row numbers of a sample that is cheap to read.

    Rows are stored in chunks, and single rows from everywhere would read the whole collection. So
    rows come in equal parts from up to ``SAMPLE_BLOCKS`` row blocks, one at random from each equal
    stretch of the collection.
    """
    if size >= n_samples:
        return np.arange(n_samples)
    n_blocks = -(-n_samples // block_rows)
    edges = np.linspace(0, n_blocks, min(n_blocks, SAMPLE_BLOCKS) + 1).astype(int)
    blocks = rng.integers(edges[:-1], edges[1:])
    lengths = np.minimum((blocks + 1) * block_rows, n_samples) - blocks * block_rows
    parts = np.minimum(lengths, np.ceil(size * lengths / lengths.sum()).astype(int))
    picked = [
        block * block_rows + np.sort(rng.choice(length, part, replace=False))
        for block, length, part in zip(blocks, lengths, parts, strict=True)
    ]
    return np.concatenate(picked)


def _squared_distances(a: Array, b: Array) -> Array:
    """||a_i - b_j||^2 by one matrix product; both are standardised, so little cancels."""
    squared = a @ b.T
    squared *= -2.0
    squared += np.einsum("ij,ij->i", a, a)[:, None]
    squared += np.einsum("ij,ij->i", b, b)
    return np.maximum(squared, 0.0, out=squared)
