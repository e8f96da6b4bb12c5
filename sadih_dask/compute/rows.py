"""Labelled rows to learn from: arrays in memory, a feature store, or Dask arrays.

All three know how many rows there are (``n_rows``), how many rows cost as much to read as one
(``chunk_rows``), whether they live in this process and should not travel (``local``), columns and
type of the features, columns of multi-hot labels (None for one class per row), and can ``take``
single rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import dask.array as da
import numpy as np

from sadih_dask.arrays import Array, Ints
from sadih_dask.errors import InputError, LabelError
from sadih_dask.storage import FeatureStore


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """Rows in memory: features (n, d) and labels (n,), or (n, c) dense or sparse in rows."""

    features: Array
    labels: Any

    chunk_rows = 1
    local = True

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self.features)

    @property
    def label_columns(self) -> int | None:
        """Columns of multi-hot labels."""
        return int(self.labels.shape[1]) if self.labels.ndim == 2 else None

    @property
    def shape_of_features(self) -> tuple[int, np.dtype[Any]]:
        """Columns and type of the features."""
        return self.features.shape[1], self.features.dtype

    def blocks(
        self, name: str, start: int, stop: int, block_rows: int
    ) -> Iterator[tuple[int, Any]]:
        """Views of the arrays."""
        array = getattr(self, name)
        for row in range(start, stop, block_rows):
            yield row, array[row : min(row + block_rows, stop)]

    def take(self, name: str, rows: Ints) -> Any:
        """Single rows."""
        return getattr(self, name)[rows]


@dataclass(frozen=True)
class StoreRows:
    """Rows ``[first, last)`` of a feature store; sent to workers by its address."""

    store: FeatureStore
    first: int
    last: int

    local = False

    @classmethod
    def of(cls, store: FeatureStore, first: int = 0) -> StoreRows:
        """Rows of a labelled store from ``first`` on."""
        if "labels" not in store.arrays:
            raise LabelError(
                f"{store.url} has no labels; codes follow labels. Ingest it with --labels"
            )
        return cls(store, first, store.n_rows)

    @property
    def n_rows(self) -> int:
        """How many rows there are to read."""
        return self.last - self.first

    @property
    def label_columns(self) -> int | None:
        """Columns of multi-hot labels."""
        shape = self.store.shape("labels")
        return shape[1] if len(shape) == 2 else None

    @property
    def chunk_rows(self) -> int:
        """Rows of a storage chunk: it is read and checked whole."""
        return self.store.chunk_rows

    @property
    def shape_of_features(self) -> tuple[int, np.dtype[Any]]:
        """Columns and type of the features."""
        return self.store.n_features, self.store.dtype("features")

    def blocks(
        self, name: str, start: int, stop: int, block_rows: int
    ) -> Iterator[tuple[int, Array]]:
        """Blocks of rows; every chunk is read once."""
        read = _ChunkReader(self.store, name)
        for row in range(self.first + start, self.first + stop, block_rows):
            yield row, read(row, min(row + block_rows, self.first + stop))

    def take(self, name: str, rows: Ints) -> Array:
        """Single rows; each chunk that holds any is read once."""
        return self.store.take(name, rows + self.first)


@dataclass(frozen=True, eq=False)
class LazyRows:
    """Dask arrays of features (n, d) and labels (n,) or (n, c), of known chunk sizes."""

    features: da.Array
    labels: da.Array

    local = False

    @classmethod
    def of(cls, features: da.Array, labels: Any) -> LazyRows:
        """Check that the arrays describe the same rows, as far as can be known."""
        if labels is None:
            raise LabelError("the target y is None; codes follow labels, so pass them too")
        if not isinstance(labels, da.Array):
            labels = da.from_array(
                np.asarray(labels), chunks=(features.chunks[0], -1)[: np.ndim(labels)]
            )
        if features.ndim != 2 or labels.ndim not in (1, 2):
            raise InputError(
                f"features have {features.ndim} dimensions and labels {labels.ndim}; expected "
                "(rows, columns), and (rows,) or (rows, classes)"
            )
        for array, what in ((features, "X"), (labels, "y")):
            if np.isnan(array.shape[0]):
                raise InputError(
                    f"the number of rows of {what} is unknown; call {what}.compute_chunk_sizes() "
                    "first"
                )
        if features.shape[0] != labels.shape[0]:
            raise LabelError(
                f"X has {features.shape[0]} rows but y has {labels.shape[0]}; both must describe "
                "the same rows"
            )
        return cls(features, labels)

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return int(self.features.shape[0])

    @property
    def chunk_rows(self) -> int:
        """Rows of the largest chunk."""
        return int(max(self.features.chunks[0], default=1))

    @property
    def label_columns(self) -> int | None:
        """Columns of multi-hot labels."""
        return int(self.labels.shape[1]) if self.labels.ndim == 2 else None

    @property
    def shape_of_features(self) -> tuple[int, np.dtype[Any]]:
        """Columns and type of the features."""
        return int(self.features.shape[1]), self.features.dtype

    def take(self, name: str, rows: Ints) -> Array:
        """Single rows; the chunks that hold any are computed for it."""
        return np.asarray(getattr(self, name)[rows].compute())


ReadableRows: TypeAlias = ArrayRows | StoreRows
"""Rows that a task can read by itself, in blocks."""
Rows: TypeAlias = ReadableRows | LazyRows


def find_ids(store: FeatureStore, ids: Any) -> Ints:
    """Rows of the given ids, ascending; the ids are read chunk by chunk."""
    if "ids" not in store.arrays:
        raise InputError(f"{store.url} has no ids; ingest it with --ids to remove rows by id")
    wanted = np.unique(np.asarray(ids))
    found: list[Ints] = []
    for start in range(0, store.n_rows, store.chunk_rows):
        held = store.read("ids", start, min(start + store.chunk_rows, store.n_rows))
        found.append(start + np.flatnonzero(np.isin(held, wanted)))
    rows = np.concatenate(found) if found else np.zeros(0, np.int64)
    if len(rows) < len(wanted):
        known = store.take("ids", rows) if len(rows) else wanted[:0]
        missing = np.setdiff1d(wanted, known)
        raise InputError(f"{store.url} has no row with id {missing[0]!r} ({len(missing)} such ids)")
    return rows


class _ChunkReader:
    """Reads ranges of rows in ascending order and remembers the chunk that it was in.

    Blocks that end where chunks end are read straight into place. Others share chunks, and a
    chunk is the unit in which bytes are checked, so the last one is kept for the next block.
    """

    def __init__(self, store: FeatureStore, name: str) -> None:
        self._store = store
        self._name = name
        self._held: tuple[int, Array] | None = None

    def __call__(self, start: int, stop: int) -> Array:
        size, n_rows = self._store.chunk_rows, self._store.n_rows
        if start % size == 0 and (stop % size == 0 or stop == n_rows):
            return self._store.read(self._name, start, stop)
        parts = []
        for chunk in range(start // size, -(-stop // size)):
            low, high = max(start - chunk * size, 0), min(stop - chunk * size, size)
            parts.append(self._chunk(chunk)[low:high])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _chunk(self, chunk: int) -> Array:
        if self._held is None or self._held[0] != chunk:
            size, n_rows = self._store.chunk_rows, self._store.n_rows
            rows = self._store.read(self._name, chunk * size, min((chunk + 1) * size, n_rows))
            self._held = (chunk, rows)
        return self._held[1]
