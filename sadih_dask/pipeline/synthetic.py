"""Synthetic labelled features of any size: Gaussian clouds about one centre for every class.

Rows are made in blocks of fixed length, each from random numbers of its own, seeded by the seed of
the whole and the number of the block. So a store has the same rows whatever its chunks are, however
many workers wrote it, and whether or not it was interrupted; and a longer store begins with the
rows of a shorter one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from sadih_dask.arrays import Array
from sadih_dask.compute.fill import fill
from sadih_dask.compute.running import Progress
from sadih_dask.errors import InputError
from sadih_dask.storage import FeatureStore
from sadih_dask.storage.features import FeatureWriter

SEEDED_ROWS = 1024
"""Rows that come from the same random numbers."""
MOST_LABELS = 3
"""Labels of a row with several."""

Dtype = Literal["float16", "float32", "float64"]


@dataclass(frozen=True)
class Clouds:
    """The distribution that rows are drawn from.

    spread  distance of the class centres from the middle, in standard deviations of a cloud
    """

    n_features: int
    n_classes: int
    dtype: Dtype = "float32"
    seed: int = 0
    multi_label: bool = False
    spread: float = 1.0

    @cached_property
    def centres(self) -> Array:
        """Class centres, (classes, features)."""
        rng = np.random.default_rng([self.seed, 0])
        return self.spread * rng.standard_normal(
            (self.n_classes, self.n_features), dtype=np.float32
        )

    def rows(self, start: int, stop: int) -> tuple[Array, Array]:
        """Features and labels of rows ``start`` to ``stop``."""
        features = np.empty((stop - start, self.n_features), self.dtype)
        shape = (stop - start, self.n_classes) if self.multi_label else (stop - start,)
        labels = np.empty(shape, np.uint8 if self.multi_label else np.int64)
        for block in range(start // SEEDED_ROWS, -(-stop // SEEDED_ROWS)):
            first = block * SEEDED_ROWS
            here = slice(max(start, first), min(stop, first + SEEDED_ROWS))
            x, y = self._block(block)
            part, place = (slice(here.start - o, here.stop - o) for o in (first, start))
            features[place], labels[place] = x[part], y[part]
        return features, labels

    def _block(self, block: int) -> tuple[Array, Array]:
        rng = np.random.default_rng([self.seed, 1, block])
        noise = rng.standard_normal((SEEDED_ROWS, self.n_features), dtype=np.float32)
        if not self.multi_label:
            labels = rng.integers(self.n_classes, size=SEEDED_ROWS)
            return noise + self.centres[labels], labels
        ranks = rng.random((SEEDED_ROWS, self.n_classes)).argsort(axis=1)
        size = rng.integers(1, min(MOST_LABELS, self.n_classes) + 1, size=(SEEDED_ROWS, 1))
        labels = (ranks < size).astype(np.uint8)
        return noise + (labels / np.sqrt(size)).astype(np.float32) @ self.centres, labels


def generate(
    url: str | os.PathLike[str],
    n_rows: int,
    n_features: int,
    n_classes: int,
    *,
    dtype: Dtype = "float32",
    seed: int = 0,
    multi_label: bool = False,
    spread: float = 1.0,
    progress: Progress | None = None,
    **storage: Any,
) -> FeatureStore:
    """Write a store of random rows, in parallel; the same call completes one that was interrupted.

    ``storage`` are further options of `FeatureStore.allocate`: chunk_rows, compression, overwrite.
    """
    for name, value in (("rows", n_rows), ("features", n_features), ("classes", n_classes)):
        if value < 1:
            raise InputError(f"the number of {name} is {value}; it must be at least 1")
    clouds = Clouds(n_features, n_classes, dtype, seed, multi_label, spread)
    with FeatureStore.allocate(
        url,
        n_rows,
        n_features,
        dtype=dtype,
        n_labels=n_classes if multi_label else None,
        source=f"synthetic: {clouds}",
        **storage,
    ) as writer:
        fill(writer, _write_block, clouds, progress)
        return writer.finalise()


def _write_block(writer: FeatureWriter, block: int, clouds: Clouds) -> None:
    start, stop = writer.rows_of(block)
    writer.write(start, *clouds.rows(start, stop))
