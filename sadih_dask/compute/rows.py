"""Labelled rows to learn from: arrays in memory, a feature store, or Dask arrays.

All three know how many rows there are (``n_rows``), how many rows cost as much to read as one
(``chunk_rows``), whether they live in this process and should not travel (``local``), whether a
block of them is a copy that its reader may overwrite (``owned``), columns and type of the features,
columns of multi-hot labels (None for one class per row), and can ``take`` single rows. Labels alone
are what evaluation reads of queries and of database rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import dask.array as da
import numpy as np
import scipy.sparse as sp

from sadih_dask.compute.lazy import Chunks
from sadih_dask.errors import Argument, InputError, LabelError, Remedy
from sadih_dask.files.filesystem import is_url
from sadih_dask.learning.classes import Targets, Vocabulary, renumbering
from sadih_dask.learning.labels import LabelGroups, as_rows, group_rows
from sadih_dask.stores import FeatureStore
from sadih_dask.stores.ahead import MOST_CHUNKS, depth_of
from sadih_dask.stores.reader import BlockReader
from sadih_dask.types import Array, Ints


@dataclass(frozen=True, eq=False)
class _TwoArrays:
    features: Any
    labels: Any

    owned = False

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return int(self.features.shape[0])

    @property
    def label_columns(self) -> int | None:
        """Columns of multi-hot labels."""
        return int(self.labels.shape[1]) if self.labels.ndim == 2 else None

    @property
    def shape_of_features(self) -> tuple[int, np.dtype[Any]]:
        """Columns and type of the features."""
        return int(self.features.shape[1]), self.features.dtype


class ArrayRows(_TwoArrays):
    """Rows in memory: features (n, d) and labels (n,), or (n, c) dense or sparse in rows."""

    chunk_rows = 1
    local = True
    remote = False

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
    """Rows ``[first, last)`` of a feature store; sent to workers by its address.

    ahead   chunks that a task fetches ahead, at most, where they are behind a network
    """

    store: FeatureStore
    first: int
    last: int
    ahead: int = MOST_CHUNKS
    _spare: _SpareBuffers = field(
        default_factory=lambda: _SpareBuffers(), init=False, repr=False, compare=False
    )

    local = False
    owned = True

    @classmethod
    def of(cls, store: FeatureStore, first: int = 0) -> StoreRows:
        """Rows of a store from ``first`` on; without labels all are alike."""
        return cls(store, first, store.n_rows)

    @property
    def remote(self) -> bool:
        """Whether chunks are behind a network, and fetched ahead."""
        adopted = (segment.foreign for segment in self.store.segments if segment.foreign)
        return any(is_url(place) for place in (self.store.url, *adopted))

    def fetched(self) -> int:
        """Chunks as they are stored that a task has in memory, where they are fetched."""
        n_features, dtype = self.shape_of_features
        depth = depth_of(self.chunk_rows * n_features * dtype.itemsize, self.ahead)
        return 1 + depth if self.remote else 0

    @property
    def n_rows(self) -> int:
        """How many rows there are to read."""
        return self.last - self.first

    @property
    def label_columns(self) -> int | None:
        """Columns of multi-hot labels."""
        shape = self.store.shape("labels") if self._labelled else ()
        return shape[1] if len(shape) == 2 else None

    @property
    def _labelled(self) -> bool:
        return "labels" in self.store.arrays

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
        """Blocks of rows, each valid until the next; every chunk is read once."""
        start, stop = self.first + start, self.first + stop
        if name == "labels" and not self._labelled:
            starts = range(start, stop, block_rows)
            return ((row, np.zeros(min(block_rows, stop - row), np.int64)) for row in starts)
        read = self.store.reader(name, stop, self.ahead)
        read.expect(start)  # before the first block is asked for: others are read beside it
        return self._filled(name, read, start, stop, block_rows)

    def _filled(
        self, name: str, read: BlockReader, start: int, stop: int, block_rows: int
    ) -> Iterator[tuple[int, Array]]:
        shape = (min(block_rows, self.n_rows), *self.store.shape(name)[1:])
        buffer = self._spare.take(name, shape, self.store.dtype(name))
        with closing(read):
            for row in range(start, stop, block_rows):
                block = buffer[: min(block_rows, stop - row)]
                read(row, block)
                yield row, block
        self._spare.give(name, buffer)

    def take(self, name: str, rows: Ints) -> Array:
        """Single rows; each chunk that holds any is read once."""
        if name == "labels" and not self._labelled:
            return np.zeros(len(rows), np.int64)
        return self.store.take(name, rows + self.first)


@dataclass(frozen=True, eq=False)
class LazyRows(_TwoArrays):
    """Dask arrays of features (n, d) and labels (n,) or (n, c), of known chunk sizes.

    Labels may be in memory, dense or sparse in rows. ``block_rows`` are those of the scan to come.
    """

    block_rows: int

    local = False

    @classmethod
    def of(cls, features: da.Array, labels: Any, block_rows: int) -> LazyRows:
        """Check that the arrays describe the same rows, as far as can be known."""
        if labels is None:
            raise LabelError("the target y is None; codes follow labels, so pass them too")
        if not isinstance(labels, da.Array):
            labels = as_rows(labels) if sp.issparse(labels) else np.asarray(labels)
        if features.ndim != 2 or labels.ndim not in (1, 2):
            raise InputError(
                f"features have {features.ndim} dimensions and labels {labels.ndim}; expected "
                "(rows, columns), and (rows,) or (rows, classes)"
            )
        for array, what in ((features, "X"), (labels, "y")):
            if np.isnan(array.shape[0]):
                raise InputError(
                    f"the number of rows of {what} is unknown; call {what}.compute_chunk_sizes() "
                    f"first, or pass {what}.to_dask_array(lengths=True) of a data frame"
                )
        if features.shape[0] != labels.shape[0]:
            raise LabelError(
                f"X has {features.shape[0]} rows but y has {labels.shape[0]}; both must describe "
                "the same rows"
            )
        return cls(features, labels, block_rows)

    @cached_property
    def chunks(self) -> Chunks:
        """The chunks of both, as tasks compute them."""
        return Chunks(self.features, self.labels, self.block_rows)

    @property
    def chunk_rows(self) -> int:
        """Rows that are computed together, and as many that may wait for their neighbours."""
        return 2 * max((part.last - part.first for part in self.chunks.ranges), default=1)

    def take(self, name: str, rows: Ints) -> Any:
        """Single rows; the chunks that hold any are computed for it."""
        return self.chunks.take(name, rows)


ReadableRows: TypeAlias = ArrayRows | StoreRows
"""Rows that a task can read by itself, in blocks."""
Rows: TypeAlias = ReadableRows | LazyRows


class _SpareBuffers:
    """Buffers that the tasks of one process hand on to one another: new memory is slow memory."""

    def __init__(self) -> None:
        self._free: dict[str, list[Array]] = {"features": [], "labels": []}

    def take(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A buffer that nobody uses."""
        try:
            found = self._free[name].pop()
        except IndexError:
            return np.empty(shape, dtype)
        return found if found.shape == shape else np.empty(shape, dtype)

    def give(self, name: str, buffer: Array) -> None:
        """Return a buffer."""
        self._free[name].append(buffer)

    def __reduce__(self) -> tuple[Any, ...]:
        return _SpareBuffers, ()


Groups: TypeAlias = tuple[LabelGroups, Ints]
"""A table of label sets, and the set of each row."""


@dataclass(frozen=True, eq=False)
class ArrayLabels:
    """Labels in memory, grouped once."""

    groups: LabelGroups
    ids: Ints

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

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self.store.n_rows

    def blocks(self, start: int, stop: int, block_rows: int) -> Iterator[Groups]:
        """Label groups of rows ``[start, stop)``, block by block; every chunk is read once."""
        rows = StoreRows(self.store, 0, self.store.n_rows)
        blocks = rows.blocks("labels", start, stop, block_rows)
        return (group_rows(labels, first_row=row) for row, labels in blocks)


Labels: TypeAlias = ArrayLabels | StoreLabels


def check_labelled(store: FeatureStore) -> None:
    """Refuse a store without labels."""
    if "labels" not in store.arrays:
        raise LabelError(
            f"{store.url} has no labels",
            remedy=Remedy("Ingest it with {}", Argument("labels")),
        )


def classes_of(store: FeatureStore) -> Vocabulary | None:
    """The classes of a store by name, or None if they are numbers without names."""
    if not store.class_names:
        return None
    several = "labels" in store.arrays and len(store.shape("labels")) > 1
    return (Vocabulary.of_columns if several else Vocabulary.of_names)(store.class_names)


def open_labels(database: Any, queries: Any) -> tuple[Labels, ArrayLabels]:
    """Labels of both, in one numbering.

    Each is an array, one class a row or multi-hot (dense or sparse), or a feature store that has
    labels. Classes of one name are the same, however each side numbers them; columns of multi-hot
    arrays have no names and are taken as they stand.
    """
    for labels, what in ((database, "the database"), (queries, "queries")):
        if labels is None:
            raise LabelError(
                f"{what}: no labels were given; pass an array or the FeatureStore that holds them"
            )
    if isinstance(database, FeatureStore):
        check_labelled(database)
        columns = database.shape("labels")[1:]
        asked = labels_as(classes_of(database), columns, queries)
        return StoreLabels(database), asked
    stored = Targets.of(database)
    asked = labels_as(stored.vocabulary, stored.labels.shape[1:], queries, tags=stored.tags)
    return ArrayLabels(*group_rows(stored.labels)), asked


def labels_as(
    known: Vocabulary | None,
    columns: tuple[int, ...],
    labels: FeatureStore | Any,
    *,
    tags: bool = False,
) -> ArrayLabels:
    """Labels, of a store or an array, in the numbering of known classes.

    ``columns`` are those of multi-hot labels, () for one class a row. Classes that are not known
    get numbers of their own. Columns that have names meet those that have none by their place,
    unless they are ``tags`` that were found.
    """
    if isinstance(labels, FeatureStore):
        check_labelled(labels)
        given = Targets(labels.read("labels"), classes_of(labels))
    else:
        given = Targets.of(labels)
    form = given.labels.shape[1:]
    by_place = len(columns) == 1 and None in (known, given.vocabulary)
    if by_place and (tags or given.tags):
        raise LabelError(
            "one side has tags and the other columns without names, which cannot be compared; name "
            "the columns, for example with a pandas.DataFrame"
        )
    if len(form) != len(columns) or (by_place and form != columns):
        raise LabelError(
            f"labels of database rows have shape {columns} and those of queries {form}; both "
            "must be one class a row, or rows of 0 and 1 over the same classes"
        )
    numbering = None if by_place else renumbering(known, given.vocabulary)
    return ArrayLabels(*group_rows(given.labels if numbering is None else numbering(given.labels)))
