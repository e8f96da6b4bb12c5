"""What a scan does to every block of rows, and how its partial results are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.labels import LabelGroups
from sadih_dask.learning.statistics import Statistics, check_numbers
from sadih_dask.types import Array

Partial = TypeVar("Partial", covariant=True)


class BlockReduction(Protocol[Partial]):
    """What a scan needs: partial results are merged by ``partial.merge(other, overwrite=...)``."""

    @property
    def block_rows(self) -> int:
        """Rows of a block."""

    def of_block(
        self, features: Array, labels: Array, first_row: int, *, overwrite: bool = False
    ) -> Partial:
        """The partial result of one block."""


@runtime_checkable
class Resumable(Protocol):
    """What a reduction needs beside that for its passes to be resumed."""

    def identity(self) -> str:
        """A hash of everything, beside the rows, that decides the partial results."""

    def columns(self, n_features: int) -> int:
        """Columns of the partial results for rows of so many features."""

    def to_arrays(self, partial: Any) -> dict[str, Array]:
        """A partial result as arrays."""

    def from_arrays(self, arrays: Mapping[str, Array], n_rows: int) -> Any:
        """The same partial result again; ValueError or KeyError if it cannot be one of so many."""


@dataclass(frozen=True)
class Reduction:
    """Statistics of every block, of the features themselves or of anchor features."""

    block_rows: int
    n_classes: int | None
    anchor_map: AnchorMap | None

    def of_block(
        self, features: Array, labels: Array, first_row: int, *, overwrite: bool = False
    ) -> Statistics:
        """Statistics of one block."""
        check_numbers(features, first_row)
        if self.anchor_map is not None:
            # A product of the same numbers in another memory layout has other last bits.
            features, overwrite = self.anchor_map(np.ascontiguousarray(features)), True
        return Statistics.of_block(features, labels, self.n_classes, first_row, overwrite=overwrite)

    def identity(self) -> str:
        """A hash of everything, beside the rows, that decides the statistics."""
        classes = None if self.n_classes is None else int(self.n_classes)
        digest = hashlib.sha256(repr((int(self.block_rows), classes)).encode())
        if (known := self.anchor_map) is not None:
            for part in (known.anchors, known.centre, np.array(known.sigma)):
                digest.update(repr((part.shape, part.dtype.str)).encode())
                digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()

    def columns(self, n_features: int) -> int:
        """Columns of the statistics for rows of so many features."""
        return n_features if self.anchor_map is None else self.anchor_map.n_features

    def to_arrays(self, partial: Statistics) -> dict[str, Array]:
        """Statistics as arrays."""
        return {
            "n_classes": np.array(partial.groups.n_classes, np.int64),
            "indptr": partial.groups.indptr,
            "indices": partial.groups.indices,
            "counts": partial.counts,
            "mean": partial.mean,
            "sums": partial.sums,
            "gram": partial.gram,
        }

    def from_arrays(self, arrays: Mapping[str, Array], n_rows: int) -> Statistics:
        """The same statistics again; ValueError or KeyError if they cannot be of so many rows."""
        groups = LabelGroups(arrays["indptr"], arrays["indices"], int(arrays["n_classes"]))
        found = Statistics(groups, *(arrays[name] for name in ("counts", "mean", "sums", "gram")))
        g, d = groups.n_groups, found.n_features
        shapes = found.counts.shape, found.sums.shape, found.gram.shape
        if shapes != ((g,), (g, d), (d, d)) or found.n_samples != n_rows:
            raise ValueError(f"these are not statistics of {n_rows} rows")
        return found
