"""Anchor features: radial basis functions about rows of the training data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sadih_dask.errors import NonFiniteError
from sadih_dask.learning.statistics import compute_dtype
from sadih_dask.types import Array, Floats, Ints

WIDTH = 0.6
"""Kernel width as a part of the mean distance between rows and anchors."""
SAMPLE_ROWS = 10_000
"""Rows looked at for the kernel width."""
SAMPLE_BLOCKS = 64
"""Row blocks that they come from."""


@dataclass(frozen=True, eq=False)
class AnchorMap:
    """phi(x)_j = exp(-||x - a_j||^2 / (2 sigma^2)).

    anchors  (m, d)  training rows, about the centre
    centre   (d,)    subtracted from rows first, which changes no distance but keeps them precise
    """

    anchors: Floats
    centre: Floats
    sigma: float

    def count_among(self, rows: Array) -> int:
        """Count the anchors that are one of these rows."""
        mine = {anchor.tobytes() for anchor in self.anchors.astype(np.float64)}
        return len(mine & {row.tobytes() for row in rows.astype(np.float64) - self.centre})

    @classmethod
    def from_sample(
        cls,
        sample: Array,
        wanted: int | Array,
        rng: np.random.Generator,
        *,
        sigma: float | None = None,
    ) -> AnchorMap:
        """Draw anchors from sampled training rows, or take given ones.

        Without a given ``sigma`` the kernel is ``WIDTH`` times the mean distance between rows and
        anchors wide. With fewer rows than anchors every row becomes one.
        """
        rows = sample.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            centre = rows.mean(axis=0)
            rows -= centre
            if isinstance(wanted, np.ndarray):
                anchors = wanted.astype(np.float64) - centre
            else:
                anchors = rows[np.sort(rng.permutation(len(rows))[:wanted])]
            if sigma is None:
                sigma = WIDTH * float(np.sqrt(_squared_distances(rows, anchors)).mean())
        if not np.isfinite(sigma) or not np.isfinite(centre).all():
            raise NonFiniteError(
                "features are so large that the squares of their distances overflow; rescale them"
            )
        # Identical rows are at distance zero; any width then gives the same constant features.
        return cls(anchors, centre, sigma if sigma > 0 else 1.0)

    @property
    def n_features(self) -> int:
        """Columns of the mapped features."""
        return len(self.anchors)

    def __repr__(self) -> str:
        m, d = self.anchors.shape
        return f"<AnchorMap: {m} anchors of {d} features, sigma {self.sigma:.6g}>"

    def __call__(self, features: Array) -> Array:
        """Map rows (n, d) to (n, m), in float32 for float16 and float32 input; O(n d m)."""
        work = compute_dtype(features.dtype)
        centred = np.subtract(features, self.centre.astype(work), dtype=work)
        squared = _squared_distances(centred, self.anchors.astype(work))
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
    """||a_i - b_j||^2 by one matrix product; both are about the centre, so little cancels."""
    squared = a @ b.T
    squared *= -2.0
    squared += np.einsum("ij,ij->i", a, a)[:, None]
    squared += np.einsum("ij,ij->i", b, b)
    return np.maximum(squared, 0.0, out=squared)
