"""Labelled rows to learn from: arrays in memory, a feature store, or Dask arrays.

All three know how many rows there are (``n_rows``), how many rows cost as much to read as one
(``chunk_rows``), whether they live in this process and should not travel (``local``), whether a
block of them is a copy that its reader may overwrite (``owned``), columns and type of the features,
columns of multi-hot labels (None for one class per row), and can ``take`` single rows. Labels alone
are what evaluation reads of queries and of database rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import dask.array as da
import numpy as np
import scipy.sparse as sp

from sadih_dask.compute.lazy import Chunks
from sadih_dask.errors import Argument, InputError, LabelError, Remedy
from sadih_dask.learning.labels import LabelGroups, as_rows, group_rows
from sadih_dask.stores import FeatureStore
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
    _spare: _SpareBuffers = field(
        default_factory=lambda: _SpareBuffers(), init=False, repr=False, compare=False
    )

    local = False
    owned = True

    @classmethod
    def of(cls, store: FeatureStore, first: int = 0) -> StoreRows:
        """Rows of a labelled store from ``first`` on."""
        check_labelled(store)
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
        """Blocks of rows, each valid until the next; every chunk is read once."""
        start, stop = self.first + start, self.first + stop
        shape = (min(block_rows, self.n_rows), *self.store.shape(name)[1:])
        buffer = self._spare.take(name, shape, self.store.dtype(name))
        read = self.store.reader(name, stop)
        for row in range(start, stop, block_rows):
            block = buffer[: min(block_rows, stop - row)]
            read(row, block)
            yield row, block
        self._spare.give(name, buffer)

    def take(self, name: str, rows: Ints) -> Array:
        """Single rows; each chunk that holds any is read once."""
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
    """Labels of a feature store, grouped block by block, in another numbering if one is given."""

    store: FeatureStore
    numbering: Renumbering | None = None

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self.store.n_rows

    def blocks(self, start: int, stop: int, block_rows: int) -> Iterator[Groups]:
        """Label groups of rows ``[start, stop)``, block by block; every chunk is read once."""
        rows = StoreRows(self.store, 0, self.store.n_rows)
        for row, labels in rows.blocks("labels", start, stop, block_rows):
            yield _grouped(labels, self.numbering, row)


Labels: TypeAlias = ArrayLabels | StoreLabels


@dataclass(frozen=True, eq=False)
class Renumbering:
    """The number of each class in a numbering that two collections share."""

    numbers: Ints
    n_classes: int

    @classmethod
    def of_names(cls, names: Sequence[str], known: Sequence[str]) -> Renumbering:
        """Classes by name in the order of ``known``; those that it lacks come after it.

        >>> Renumbering.of_names(["dog", "ant"], ["ant", "bee"]).numbers.tolist()
        [2, 0]
        """
        place = {name: number for number, name in reversed(list(enumerate(known)))}
        new = (name for name in dict.fromkeys(names) if name not in place)
        place.update((name, number) for number, name in enumerate(new, len(known)))
        numbers = np.array([place[name] for name in names], np.int64)
        return cls(numbers, max(len(known), int(numbers.max(initial=-1)) + 1))

    def __call__(self, labels: Array, first_row: int = 0) -> Any:
        """Labels of some rows, class numbers or multi-hot, in the shared numbering."""
        if labels.ndim == 2:
            rows = sp.csr_array(labels)
            parts = rows.data, self.numbers[rows.indices], rows.indptr
            return sp.csr_array(parts, shape=(len(labels), self.n_classes))
        if len(unnamed := np.flatnonzero((labels < 0) | (labels >= len(self.numbers)))):
            raise LabelError(
                f"the label of row {first_row + unnamed[0]} is {labels[unnamed[0]]}, but only "
                f"{len(self.numbers)} classes have names ({len(unnamed)} such rows); give every "
                "class a name"
            )
        return self.numbers[labels]


def share_numbering(
    names: Sequence[str] | None, other: Sequence[str] | None
) -> tuple[Renumbering | None, Renumbering | None]:
    """How the classes of two collections get one numbering; None: as they are numbered now.

    Classes are the same when their names are. Numbers, that is classes without names (None), meet
    names that are numerals: class 7 is the class that is called "7".
    """
    if names == other:
        return None, None
    if names is not None and other is not None:
        return Renumbering.of_names(names, names), Renumbering.of_names(other, names)
    named = names if other is None else other
    if named is None or not all(name.isdecimal() and str(int(name)) == name for name in named):
        raise LabelError(
            "one side has class names and the other class numbers, which cannot be compared: "
            f"{', '.join(map(repr, (named or ())[:3]))} ... Use one kind for both"
        )
    numbers = np.array([int(name) for name in named], np.int64)
    found = Renumbering(numbers, int(numbers.max(initial=-1)) + 1)
    return (found, None) if other is None else (None, found)


def numbering_of_store(
    store: FeatureStore, classes: Array, names: Sequence[str]
) -> Renumbering | None:
    """How labels of a store get the numbers of learned classes; None: they have them already.

    ``classes`` are names, each numbered by its place, or numbers from ``names``, if that lists any.
    """
    if classes.dtype.kind in "SU":
        names = [str(name) for name in classes]
        if not store.class_names:
            raise LabelError(
                f"the model knows classes like {names[0]!r}, and {store.url} has class numbers "
                "without names; the two cannot be compared"
            )
    if not names or not store.class_names or list(names) == list(store.class_names):
        return None
    return Renumbering.of_names(store.class_names, names)


def check_labelled(store: FeatureStore) -> None:
    """Refuse a store without labels."""
    if "labels" not in store.arrays:
        raise LabelError(
            f"{store.url} has no labels",
            remedy=Remedy("Ingest it with {}", Argument("labels")),
        )


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
        if isinstance(labels, FeatureStore):
            check_labelled(labels)
    (stored, form, known), (asked, asked_form, names) = _named(database), _named(queries)
    numberings: tuple[Renumbering | None, Renumbering | None] = None, None
    if len(form) == len(asked_form) and not any(
        len(form) == 1 and not isinstance(labels, FeatureStore) for labels in (database, queries)
    ):
        numberings = share_numbering(known, names)
    if form != asked_form and (len(form) != len(asked_form) or numberings == (None, None)):
        raise LabelError(
            f"labels of database rows have shape {form} and those of queries {asked_form}; both "
            "must be one class a row, or rows of 0 and 1 over the same classes"
        )
    if isinstance(asked, FeatureStore):
        asked = asked.read("labels")
    rest = ArrayLabels(*_grouped(asked, numberings[1]))
    if isinstance(stored, FeatureStore):
        return StoreLabels(stored, numberings[0]), rest
    return ArrayLabels(*_grouped(stored, numberings[0])), rest


def _named(labels: Any) -> tuple[Any, tuple[int, ...], tuple[str, ...] | None]:
    """Labels as a store or as numbers in an array, columns, and names of the classes, if any."""
    if isinstance(labels, FeatureStore):
        return labels, labels.shape("labels")[1:], labels.class_names or None
    array: Any = labels if sp.issparse(labels) else np.asarray(labels)
    if array.dtype.kind not in "SUO" or array.ndim != 1:
        return array, array.shape[1:], None
    names, numbers = np.unique(array.astype(str), return_inverse=True)
    return numbers, (), tuple(names.tolist())


def _grouped(labels: Any, numbering: Renumbering | None, first_row: int = 0) -> Groups:
    if numbering is not None:
        labels = numbering(labels, first_row)
    return group_rows(labels, first_row=first_row)
