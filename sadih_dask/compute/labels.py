"""Labels of queries and of database rows, as evaluation reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from sadih_dask.arrays import Array, Ints
from sadih_dask.compute.rows import StoreRows
from sadih_dask.errors import LabelError
from sadih_dask.learning.labels import LabelGroups, group_rows
from sadih_dask.storage import FeatureStore

Groups: TypeAlias = tuple[LabelGroups, Ints]
"""A table of label sets, and the set of each row."""


@dataclass(frozen=True, eq=False)
class ArrayLabels:
    """Labels in memory, grouped once."""

    groups: LabelGroups
    ids: Ints

    local = True

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self.ids)

    def between(self, start: int, stop: int) -> Groups:
        """Label groups of rows ``[start, stop)``."""
        return self.groups, self.ids[start:stop]

    def blocks(self, start: int, stop: int, block_rows: int) -> Iterator[Groups]:
        """Label groups of rows ``[start, stop)``, block by block."""
        for row in range(start, stop, block_rows):
            yield self.between(row, min(row + block_rows, stop))


@dataclass(frozen=True)
class StoreLabels:
    """Labels of a feature store, grouped block by block."""

    store: FeatureStore

    local = False

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self.store.n_rows

    def blocks(self, start: int, stop: int, block_rows: int) -> Iterator[Groups]:
        """Label groups of rows ``[start, stop)``, block by block; every chunk is read once."""
        rows = StoreRows(self.store, 0, self.store.n_rows)
        for row, labels in rows.blocks("labels", start, stop, block_rows):
            yield group_rows(labels, first_row=row)


Labels: TypeAlias = ArrayLabels | StoreLabels


def open_labels(database: Any, queries: Any) -> tuple[Labels, ArrayLabels]:
    """Labels of both, in one numbering.

    Each is an array, one class a row or multi-hot (dense or sparse), or a feature store that has
    labels. Class names become numbers where both are in memory.
    """
    for labels, what in ((database, "the database"), (queries, "queries")):
        if labels is None:
            raise LabelError(
                f"{what}: no labels were given; pass an array or the FeatureStore that holds them"
            )
        if isinstance(labels, FeatureStore) and "labels" not in labels.arrays:
            raise LabelError(f"{labels.url} has no labels; ingest it with --labels")
    asked = queries.read("labels") if isinstance(queries, FeatureStore) else _as_array(queries)
    if isinstance(database, FeatureStore):
        _check_forms(database.shape("labels")[1:], asked.shape[1:])
        return StoreLabels(database), ArrayLabels(*group_rows(asked))
    stored = _as_array(database)
    _check_forms(stored.shape[1:], asked.shape[1:])
    if stored.ndim == 1 and (stored.dtype.kind in "SUO" or asked.dtype.kind in "SUO"):
        stored, asked = _numbered(stored, asked)
    return ArrayLabels(*group_rows(stored)), ArrayLabels(*group_rows(asked))


def _as_array(labels: Any) -> Any:
    return labels if sp.issparse(labels) else np.asarray(labels)


def _check_forms(database: tuple[int, ...], queries: tuple[int, ...]) -> None:
    if database != queries:
        raise LabelError(
            f"labels of database rows have shape {database} and those of queries {queries}; both "
            "must be one class a row, or rows of 0 and 1 over the same classes"
        )


def _numbered(stored: Array, asked: Array) -> tuple[Array, Array]:
    """Class names as numbers."""
    if (stored.dtype.kind in "SUO") != (asked.dtype.kind in "SUO"):
        raise LabelError(
            "labels of the database and of the queries are class names and class numbers; use one "
            "kind for both"
        )
    _, numbers = np.unique(np.concatenate([stored, asked]), return_inverse=True)
    return numbers[: len(stored)], numbers[len(stored) :]
