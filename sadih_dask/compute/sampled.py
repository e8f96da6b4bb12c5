"""Some rows as they were read, gathered in the pass over the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from sadih_dask.arrays import Array, Ints
from sadih_dask.learning.labels import as_rows


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Some rows as they were read: their numbers, ascending, features and labels.

    labels  (q,) class numbers, or sparse (q, c) for several labels a row
    """

    rows: Ints
    features: Array
    labels: Any

    @classmethod
    def of_block(cls, rows: Ints, features: Array, labels: Array, first_row: int) -> SampledRows:
        """Copies of the given rows of a block."""
        place = rows - first_row
        kept = labels[place]
        return cls(
            rows, np.take(features, place, axis=0), as_rows(kept) if kept.ndim == 2 else kept
        )

    def merge(self, other: SampledRows) -> SampledRows:
        """These rows, then those of a later part."""
        join: Any = np.concatenate if self.labels.ndim == 1 else sp.vstack
        return SampledRows(
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.features, other.features]),
            join([self.labels, other.labels]),
        )

    def take(self, keep: Array) -> SampledRows:
        """Some of the rows, by a mask."""
        return SampledRows(self.rows[keep], self.features[keep], self.labels[keep])

    def __len__(self) -> int:
        return len(self.rows)

    def to_arrays(self) -> dict[str, Array]:
        """The rows as plain arrays."""
        arrays = {"rows": self.rows, "features": self.features}
        if self.labels.ndim == 1:
            return {**arrays, "labels": self.labels}
        shape = np.array(self.labels.shape, np.int64)
        parts = {name: getattr(self.labels, name) for name in ("data", "indices", "indptr")}
        return {**arrays, "shape": shape, **parts}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> SampledRows:
        """The same rows again; ValueError or KeyError if they cannot be rows."""
        labels: Any = arrays.get("labels")
        if labels is None:
            parts = tuple(arrays[name] for name in ("data", "indices", "indptr"))
            n_rows, n_classes = (int(n) for n in arrays["shape"])
            labels = sp.csr_array(parts, shape=(n_rows, n_classes))
        found = cls(arrays["rows"], arrays["features"], labels)
        if not len(found.rows) == len(found.features) == labels.shape[0]:
            raise ValueError("sampled rows, their features and labels differ in number")
        return found
