"""Classes and their numbers, wherever labels come from.

A class is a name or a value: text, a whole number, a truth value. Its *number* is its place in a
`Vocabulary`, and everything that learns or compares works on numbers. Collections that number
their classes differently meet by name: the one of a vocabulary, `renumbering` into another.

Numbers meet names by one rule: class 7 is the class that is called "7".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from sadih_dask.errors import DtypeError, LabelError
from sadih_dask.learning.labels import as_rows
from sadih_dask.types import Array, Ints

_NUMERAL = re.compile(r"0|-?[1-9][0-9]{0,17}")
_SEPARATORS = ";|,"
_COLLECTIONS = (list, tuple, set, frozenset, np.ndarray)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Distinct classes in the order of their numbers: class k is ``values[k]``."""

    values: Array

    @classmethod
    def of_names(cls, names: Sequence[str]) -> Vocabulary:
        """Classes by the names of a store; those that spell numbers or truth values are these.

        >>> Vocabulary.of_names(["2", "10"]).values.tolist(), Vocabulary.of_names(["2", "b"]).names
        ([2, 10], ('2', 'b'))
        """
        found = cls.of_columns(names)
        if all(_NUMERAL.fullmatch(name) for name in names):
            return cls(np.array([int(name) for name in names], np.int64))
        if set(names) <= {"False", "True"}:
            return cls(np.array([name == "True" for name in names], bool))
        return found

    @classmethod
    def of_columns(cls, names: Sequence[str]) -> Vocabulary:
        """Classes by the names of columns, text always: numbers are columns without names."""
        if len(set(names)) < len(names):
            twice = next(name for k, name in enumerate(names) if name in names[:k])
            raise LabelError(f"two classes are called {twice!r}; give each class a name of its own")
        return cls(np.array(names, str))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_text(self) -> bool:
        """Whether classes have names, rather than numbers or truth values."""
        return self.values.dtype.kind in "SU"

    @property
    def are_places(self) -> bool:
        """Whether classes are their own numbers, as columns without names are."""
        return self.values.dtype.kind in "iu" and np.array_equal(
            self.values, np.arange(len(self.values))
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Every class as text."""
        return tuple(_as_text(self.values).tolist())

    @cached_property
    def _order(self) -> Ints:
        return np.argsort(self.values, kind="stable")

    def find(self, other: Vocabulary) -> Ints:
        """Number here of each class of ``other``, -1 where it is none of these."""
        if not len(self) or not len(other):
            return np.full(len(other), -1, np.int64)
        known, values, order = self.values, other.values, self._order
        if known.dtype.kind != values.dtype.kind and (self.is_text or other.is_text):
            known, values = _as_text(known), _as_text(values)
            order = np.argsort(known, kind="stable")
        place = order[np.searchsorted(known, values, sorter=order).clip(max=len(known) - 1)]
        return np.where(known[place] == values, place, -1)

    def lacks(self, other: Vocabulary) -> tuple[str, ...]:
        """Names of the classes of ``other`` that are none of these."""
        return other.take(np.flatnonzero(self.find(other) < 0)).names

    def take(self, numbers: Ints) -> Vocabulary:
        """Some of the classes."""
        return Vocabulary(self.values[numbers])

    def joined(self, other: Vocabulary, order: Vocabulary | None = None) -> Vocabulary:
        """The classes of both: as in ``order``, if that has all of these so, else ascending.

        Where these are not ascending, new classes come after them.
        """
        if order is not None and np.all(np.diff(order.find(self), prepend=-1) > 0):
            return order.take(np.union1d(order.find(self), order.find(other)))
        one, two = _of_one_kind(self, other)
        if all(np.array_equal(v._order, np.arange(len(v))) for v in (one, two)):
            return Vocabulary(np.union1d(one.values, two.values))
        new = np.sort(two.values[one.find(two) < 0])
        return Vocabulary(np.concatenate([one.values, new]))

    def check_labelled(self) -> None:
        """Refuse -1 beside two or more other classes: so scikit-learn marks unlabelled rows."""
        if self.values.dtype.kind in "if" and len(self) > 2 and np.any(self.values == -1):
            raise LabelError(
                f"-1 marks rows without a label in scikit-learn, not a class, and here it is "
                f"beside {len(self) - 1} other classes; drop its rows or give them a class"
            )

    def separator(self) -> str | None:
        """What seems to separate tags within the names: parted there, they are no more words.

        >>> Vocabulary(np.array(["beach;car", "beach;sea", "car;sea", "sea;sky"])).separator()
        ';'
        """
        names = self.names if self.is_text and len(self) > 3 else ()
        for mark in _SEPARATORS:
            tags = {tag.strip() for name in names for tag in name.split(mark)}
            if sum(mark in name for name in names) > 1 and len(tags) <= len(names):
                return mark
        return None


@dataclass(frozen=True, eq=False)
class Targets:
    """Labels in memory, in numbers.

    labels      (n,) places in the vocabulary, or multi-hot rows (n, c), dense or sparse in rows
    vocabulary  None: columns without names, which stand for themselves
    tags        whether columns are those of tags that were found, and mean nothing by their place
    """

    labels: Any
    vocabulary: Vocabulary | None
    tags: bool = False

    @classmethod
    def of(cls, y: Any, first_row: int = 0) -> Targets:
        """Names, numbers, lists of tags, or a 0/1 matrix, of whatever array-like was given.

        Column names of a data frame name its classes. ``first_row`` is for messages.
        """
        if isinstance(y, list | tuple) and (tags := _as_tags(y)) is not None:
            return _of_tags(tags, first_row)
        try:
            values: Any = y if sp.issparse(y) else np.asarray(y)
        except ValueError as error:
            raise LabelError(
                "y holds lists of unequal length; for several labels a row pass lists of tags as "
                "text, or a 0/1 matrix, for example from sklearn.preprocessing.MultiLabelBinarizer"
            ) from error
        if values.ndim not in (1, 2):
            raise LabelError(f"y has shape {values.shape}; expected (rows,) or (rows, classes)")
        if sp.issparse(y) and values.ndim == 1:
            raise LabelError(
                "y is a sparse vector, in which class 0 and no class look alike; pass a dense one"
            )
        if 0 in values.shape[1:]:
            raise LabelError(
                f"y has shape {values.shape}, without a column; expected class columns"
            )
        if values.ndim == 1 and (tags := _as_tags(values)) is not None:
            return _of_tags(tags, first_row)
        if values.ndim == 1 or (values.shape[1] == 1 and not sp.issparse(values)):
            return cls(*_distinct(_column(values.reshape(-1), first_row)))
        if values.dtype.kind not in "biuf":
            raise DtypeError(
                f"y has dtype {values.dtype} and shape {values.shape}; expected class names, lists "
                "of tags, or a 0/1 matrix of numbers"
            )
        columns = list(getattr(y, "columns", ()))
        named = bool(columns) and all(isinstance(name, str) for name in columns)
        rows = as_rows(values) if sp.issparse(values) else values
        return cls(rows, Vocabulary.of_columns(columns) if named else None)

    @property
    def multi_label(self) -> bool:
        """Whether rows may have several labels."""
        return bool(self.labels.ndim == 2)

    @property
    def classes(self) -> Vocabulary:
        """The classes, columns by their numbers where they have no names."""
        if self.vocabulary is not None:
            return self.vocabulary
        return Vocabulary(np.arange(self.labels.shape[1]))

    def within(self, known: Vocabulary) -> Any:
        """Labels in the numbers of known classes; LabelError names the first row of another."""
        if self.vocabulary is None:
            if self.labels.shape[1] != len(known):
                raise LabelError(
                    f"y has {self.labels.shape[1]} columns but the model knows {len(known)} "
                    "labels; multi-hot labels keep the columns of the first fit"
                )
            return self.labels
        place = known.find(self.vocabulary)
        if len(unknown := np.flatnonzero(place < 0)):
            rows = np.flatnonzero(
                sp.csr_array(self.labels)[:, unknown].sum(axis=1)
                if self.multi_label
                else np.isin(self.labels, unknown)
            )
            if len(rows):
                row, names = int(rows[0]), self.vocabulary.values
                bad = _plain(names[unknown[0] if self.multi_label else self.labels[row]])
                raise LabelError(
                    f"the label of row {row} is {bad!r}, which is none of the {len(known)} known "
                    f"classes ({len(rows)} such rows); fit or partial_fit rows of that class first"
                )
        return Renumbering(place.clip(0), len(known))(self.labels)


@dataclass(frozen=True, eq=False)
class Renumbering:
    """The number of each class in another numbering.

    rest  the number of classes beyond the table; None: there are none, and one is an error
    """

    numbers: Ints
    n_classes: int
    rest: int | None = None

    def __call__(self, labels: Any, first_row: int = 0) -> Any:
        """Labels of some rows, class numbers or multi-hot, in the other numbering."""
        if labels.ndim == 2:
            rows = sp.csr_array(labels)
            rows.eliminate_zeros()
            parts = rows.data, self.numbers[rows.indices], rows.indptr
            return sp.csr_array(parts, shape=(labels.shape[0], self.n_classes))
        beyond = (labels < 0) | (labels >= len(self.numbers))
        if not beyond.any():
            return self.numbers[labels]
        if self.rest is None or np.any(labels < 0):
            bad = np.flatnonzero(beyond if self.rest is None else labels < 0)
            raise LabelError(
                f"the label of row {first_row + bad[0]} is {labels[bad[0]]}, but only "
                f"{len(self.numbers)} classes have names ({len(bad)} such rows); give every "
                "class a name"
            )
        return np.where(beyond, self.rest, self.numbers[np.where(beyond, 0, labels)])


def renumbering(known: Vocabulary | None, other: Vocabulary | None) -> Renumbering | None:
    """How labels in the numbering of ``other`` get that of ``known``; None: they have it already.

    A collection whose classes are numbers from 0 without names has no vocabulary (None). Classes
    that ``known`` lacks come after it.

    >>> dogs, bees = Vocabulary.of_names(["dog", "ant"]), Vocabulary.of_names(["ant", "bee"])
    >>> renumbering(bees, dogs).numbers.tolist()
    [2, 0]
    """
    named = known if other is None else other
    if named is None or (known is not None and other is not None and known.names == other.names):
        return None
    if known is None or other is None:
        if named.is_text or np.any(named.values < 0):
            raise _incomparable(named)
        values = named.values.astype(np.int64)
        if known is None:
            return Renumbering(values, int(values.max(initial=-1)) + 1)
        other = Vocabulary(np.arange(values.max(initial=-1) + 1))
        place, rest = named.find(other), len(named)
        return Renumbering(np.where(place < 0, rest, place), rest + 1, rest)
    place = known.find(other)
    new = place < 0
    if new.all() and known.is_text != other.is_text:
        raise _incomparable(known if known.is_text else other)
    place[new] = len(known) + np.arange(np.count_nonzero(new))
    return Renumbering(place, len(known) + int(np.count_nonzero(new)))


def in_short(names: Sequence[str]) -> str:
    """The first names of classes, and how many more there are.

    >>> in_short(["ant", "bee", "cat", "dog"])
    "'ant', 'bee', 'cat' and 1 more"
    """
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more


def _incomparable(named: Vocabulary) -> LabelError:
    return LabelError(
        "one side has class names and the other class numbers, which cannot be compared: "
        f"{in_short(named.names)}. Use one kind for both"
    )


def _of_one_kind(known: Vocabulary, new: Vocabulary) -> tuple[Vocabulary, Vocabulary]:
    """Both as names or both as numbers, if every class of the one kind is one of the other."""
    if known.is_text == new.is_text or not len(known) or not len(new):
        return known, new
    text, numbers = (known, new) if known.is_text else (new, known)
    spelled = Vocabulary.of_names(text.names)
    if not spelled.is_text:
        return (spelled, new) if known.is_text else (known, spelled)
    if np.any(text.find(numbers) < 0):
        raise LabelError(
            f"the known classes are like {known.values[0]!r} and the new ones like "
            f"{new.values[0]!r}; use class names or class numbers throughout"
        )
    named = Vocabulary(_as_text(numbers.values))
    return (known, named) if known.is_text else (named, new)


def _as_text(values: Array) -> Array:
    if values.dtype.kind == "f":
        values = values.astype(np.int64)
    return np.strings.decode(values, "utf-8") if values.dtype.kind == "S" else values.astype(str)


def _distinct(values: Array) -> tuple[Ints, Vocabulary]:
    """The number of each value among the distinct ones, ascending, and these."""
    if values.dtype.kind not in "SU":
        distinct, numbers = np.unique(values, return_inverse=True)
        return numbers.astype(np.int64).reshape(-1), Vocabulary(distinct)
    names = values.tolist()  # by hashes: sorting every row would cost many times that
    distinct = np.array(sorted(set(names)), values.dtype.kind)
    place = {name: number for number, name in enumerate(distinct.tolist())}
    return np.fromiter(map(place.__getitem__, names), np.int64, len(names)), Vocabulary(distinct)


def _plain(value: Any) -> Any:
    """A label as its owner wrote it, not as a scalar of NumPy."""
    return value.item() if isinstance(value, np.generic) else value


def _column(y: Array, first_row: int) -> Array:
    """One-dimensional labels of one comparable kind, without missing ones."""
    if y.dtype.kind not in "biufOSUT":
        raise LabelError(f"y has dtype {y.dtype}; expected class names or class numbers")

    def refuse(bad: Array, what: str) -> None:
        if len(rows := np.flatnonzero(bad)):
            raise LabelError(
                f"{what} (row {first_row + rows[0]}: {_plain(y[rows[0]])!r}, {len(rows)} such "
                "rows); drop these rows or give them a class"
            )

    if y.dtype.kind == "f":
        refuse(np.isnan(y), "Input y contains NaN")
        refuse(np.isinf(y), "Input y contains infinity")
        refuse(y != np.floor(y), "Unknown label type: continuous targets in y")
    elif y.dtype.kind in "OT":
        kinds = str | int | np.bool_ | np.integer
        refuse(
            np.array([not isinstance(value, kinds) for value in y], bool),
            "y holds something that is neither a class name nor a class number",
        )
        if len({isinstance(value, str) for value in y}) > 1:
            raise LabelError("y mixes class names and class numbers; use one kind")
        return np.array(y.tolist()) if len(y) else np.zeros(0, str)
    if y.dtype.kind in "if" and len(y) and y.min() == -1 and len(np.unique(y)) > 2:
        refuse(y == -1, "-1 marks rows without a label in scikit-learn, not a class")
    return y


def _as_tags(rows: Any) -> list[Any] | None:
    """Rows of tags, if that is what was given: collections of text, one a row."""
    rows = [] if isinstance(rows, np.ndarray) and rows.dtype.kind != "O" else list(rows)
    if not any(isinstance(row, _COLLECTIONS) for row in rows):
        return None
    tags = (tag for row in rows if isinstance(row, _COLLECTIONS) for tag in row)
    return rows if isinstance(next(iter(tags), None), str) else None


def _of_tags(rows: list[Any], first_row: int) -> Targets:
    for row, tags in enumerate(rows):
        if not isinstance(tags, _COLLECTIONS) or not all(isinstance(tag, str) for tag in tags):
            raise LabelError(
                f"y holds lists of tags, but row {first_row + row} is {tags!r}; expected a list of "
                "text in every row"
            )
    sets = [sorted(set(tags)) for tags in rows]
    flat = np.array([tag for tags in sets for tag in tags], str)
    numbers, vocabulary = _distinct(flat)
    indptr = np.cumsum([0, *map(len, sets)])
    shape = len(sets), len(vocabulary)
    matrix = sp.csr_array((np.ones(len(flat), np.uint8), numbers, indptr), shape)
    return Targets(matrix, vocabulary, tags=True)
