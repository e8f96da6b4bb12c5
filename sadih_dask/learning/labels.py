"""Label groups: the distinct label sets of a collection.

Similarity depends on two rows only through their label sets, so rows with equal label sets are
interchangeable to the learner. A *label group* is one distinct set; a group table and a group id
per row hold all that labels have to say. Single-label data has one group per class.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from sadih_dask.errors import DtypeError, LabelError
from sadih_dask.types import Array, Ints


@dataclass(frozen=True, eq=False)
class LabelGroups:
    """Distinct label sets in canonical order: smaller sets first, then by their labels.

    The order depends on the sets alone, never on the order in which rows arrived, so tables that
    were built from different blocks can be merged and compared.

    ``indices[indptr[k]:indptr[k + 1]]`` are the labels of group ``k``, ascending.
    """

    indptr: Ints
    indices: Ints
    n_classes: int

    @property
    def n_groups(self) -> int:
        """How many distinct label sets there are."""
        return len(self.indptr) - 1

    @cached_property
    def single_label(self) -> bool:
        """Whether every group is exactly one label."""
        return bool(np.all(np.diff(self.indptr) == 1))

    @cached_property
    def matrix(self) -> sp.csr_array:
        """The 0/1 table of groups against labels, (g, c): the transpose of the paper's G."""
        return sp.csr_array(
            (np.ones(len(self.indices)), self.indices, self.indptr),
            shape=(self.n_groups, self.n_classes),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LabelGroups):
            return NotImplemented
        return (
            self.n_classes == other.n_classes
            and np.array_equal(self.indptr, other.indptr)
            and np.array_equal(self.indices, other.indices)
        )

    __hash__ = None  # type: ignore[assignment]  # compared by value, and holds arrays

    def __repr__(self) -> str:
        return f"<LabelGroups: {self.n_groups} of {self.n_classes} classes>"

    def __len__(self) -> int:
        return self.n_groups

    def take(self, keep: Array) -> LabelGroups:
        """Keep some groups: a boolean mask, or ascending positions."""
        part = self.matrix[keep]
        return LabelGroups(
            part.indptr.astype(np.int64), part.indices.astype(np.int64), self.n_classes
        )

    def relabel(self, new_index: Ints, n_classes: int) -> tuple[LabelGroups, Ints | slice]:
        """Rename label ``k`` to ``new_index[k]``; return also which group went to each place.

        An ascending renaming keeps the canonical order; after any other, what is beside the table
        has to follow it.
        """
        indices = new_index[self.indices]
        if np.all(np.diff(new_index) > 0):
            return LabelGroups(self.indptr, indices, n_classes), slice(None)
        of_set = np.repeat(np.arange(self.n_groups), np.diff(self.indptr))
        sets = indices[np.lexsort((indices, of_set))]
        groups, ids = _distinct_sets(self.indptr, sets, n_classes)
        return groups, np.argsort(ids)

    def widen(self, n_classes: int) -> LabelGroups:
        """Count more classes, which no group carries yet."""
        return LabelGroups(self.indptr, self.indices, n_classes)

    def compact(self) -> tuple[LabelGroups, Ints]:
        """Drop the labels that no group carries; also return the labels that are kept."""
        kept = np.unique(self.indices)
        return LabelGroups(self.indptr, np.searchsorted(kept, self.indices), len(kept)), kept

    def union(self, other: LabelGroups) -> tuple[LabelGroups, Ints, Ints]:
        """Merge two tables; also return where each one's groups went."""
        if self.n_classes != other.n_classes:
            raise LabelError(
                f"two label tables count {self.n_classes} and {other.n_classes} classes; "
                "give both the same number of classes"
            )
        if self == other:
            same = np.arange(self.n_groups)
            return self, same, same
        indptr = np.concatenate([self.indptr, self.indptr[-1] + other.indptr[1:]])
        indices = np.concatenate([self.indices, other.indices])
        groups, ids = _distinct_sets(indptr, indices, self.n_classes)
        return groups, ids[: self.n_groups], ids[self.n_groups :]

    def find(self, other: LabelGroups) -> Ints:
        """Position of each group of ``other`` in this table, -1 where it is not there."""
        union, mine, theirs = self.union(other)
        position = np.full(union.n_groups, -1, np.int64)
        position[mine] = np.arange(self.n_groups)
        return position[theirs]


def group_rows(
    labels: Any, n_classes: int | None = None, first_row: int = 0
) -> tuple[LabelGroups, Ints]:
    """Find the label groups of some rows, and the group id of every row.

    ``labels`` is either one integer in ``0 .. n_classes - 1`` per row, or a multi-hot matrix
    (rows, classes), dense or SciPy sparse, of 0 and 1 or booleans. ``n_classes`` defaults to the
    largest integer plus one, or to the number of columns. ``first_row`` is the place of these rows
    in the whole collection, for error messages.
    """
    sparse = sp.issparse(labels)
    array: Any = labels if sparse else np.asarray(labels)
    if array.dtype.kind not in "biuf":
        raise DtypeError(
            f"labels have dtype {array.dtype}; expected class numbers or a 0/1 matrix. "
            "Encode class names as integers first, for example with numpy.unique"
        )
    if array.ndim == 1:
        return _group_integers(array.toarray() if sparse else array, n_classes, first_row)
    if array.ndim == 2:
        return _group_multi_hot(_zero_one(array, first_row), n_classes, first_row)
    raise LabelError(f"labels have {array.ndim} dimensions; expected (rows,) or (rows, classes)")


def as_rows(labels: Any) -> sp.csr_array:
    """A SciPy sparse label matrix of any format, in rows."""
    return sp.csr_array(labels)


def _group_integers(
    labels: Array, n_classes: int | None, first_row: int
) -> tuple[LabelGroups, Ints]:
    def refuse(bad: Array, what: str, remedy: str) -> None:
        if len(rows := np.flatnonzero(bad)):
            raise LabelError(
                f"the label of row {first_row + rows[0]} is {labels[rows[0]]}, which {what} "
                f"({len(rows)} such rows); {remedy}"
            )

    if labels.dtype.kind == "f":
        refuse(~np.isfinite(labels), "is missing", "drop the row or give it a class")
        refuse(labels != np.floor(labels), "is not a whole number", "encode the classes")
    values = labels.astype(np.int64)
    refuse(values < 0, "is negative", "drop unlabelled rows; classes count from 0")
    classes = int(values.max(initial=-1)) + 1 if n_classes is None else n_classes
    refuse(values >= classes, f"is not below n_classes={classes}", "raise n_classes")
    present, ids = _distinct_numbers(values, classes)
    return LabelGroups(np.arange(len(present) + 1), present, classes), ids


def _distinct_numbers(values: Ints, bound: int) -> tuple[Ints, Ints]:
    """Distinct values below ``bound``, ascending, and the position of each value among them."""
    if bound > 8 * len(values):
        present, ids = np.unique(values, return_inverse=True)
        return present, ids.astype(np.int64).reshape(-1)
    present = np.flatnonzero(np.bincount(values, minlength=bound))  # several times faster
    position = np.empty(bound, np.int64)
    position[present] = np.arange(len(present))
    return present, position[values]


def _group_multi_hot(
    labels: sp.csr_array, n_classes: int | None, first_row: int
) -> tuple[LabelGroups, Ints]:
    if n_classes is not None and labels.shape[1] != n_classes:
        raise LabelError(
            f"the label matrix has {labels.shape[1]} columns; expected n_classes={n_classes}"
        )
    empty = np.flatnonzero(np.diff(labels.indptr) == 0)
    if len(empty):
        raise LabelError(
            f"row {first_row + empty[0]} of the labels has no label ({len(empty)} such rows); "
            "drop unlabelled rows or give them a class of their own"
        )
    return _distinct_sets(
        labels.indptr.astype(np.int64), labels.indices.astype(np.int64), labels.shape[1]
    )


def _distinct_sets(indptr: Ints, indices: Ints, n_classes: int) -> tuple[LabelGroups, Ints]:
    """Distinct sets in canonical order and the id of every input set; cost O(nnz log)."""
    sizes = np.diff(indptr)
    ids = np.empty(len(sizes), np.int64)
    tables: list[Ints] = []
    found = 0
    for size in np.unique(sizes):  # sets of equal size form a rectangular table
        rows = np.flatnonzero(sizes == size)
        table = indices[indptr[rows, None] + np.arange(size)]
        distinct, inverse = np.unique(table, axis=0, return_inverse=True)
        ids[rows] = found + inverse.reshape(-1)
        found += len(distinct)
        tables.append(distinct)
    counts = [np.full(len(t), t.shape[1], np.int64) for t in tables]
    lengths = np.concatenate([np.zeros(1, np.int64), *counts])
    flat = np.concatenate([np.zeros(0, np.int64), *(t.reshape(-1) for t in tables)])
    return LabelGroups(np.cumsum(lengths), flat, n_classes), ids


def _zero_one(labels: Any, first_row: int) -> sp.csr_array:
    """Check a multi-hot matrix, dense or sparse; return it with sorted indices and no zeros."""
    if sp.issparse(labels):
        matrix = as_rows(labels).copy()
        matrix.sum_duplicates()  # also sorts the indices
        matrix.eliminate_zeros()
        bad = np.flatnonzero(matrix.data != 1)
        rows, columns = matrix.nonzero() if len(bad) else (bad, bad)
        rows, columns, values = rows[bad], columns[bad], matrix.data[bad]
    else:
        matrix = sp.csr_array(labels != 0)
        rows, columns = np.nonzero((labels != 0) & (labels != 1))
        values = labels[rows, columns]
    if len(rows):
        raise LabelError(
            f"the label matrix holds {values[0]!r} at row {first_row + rows[0]}, column "
            f"{columns[0]}; a multi-hot matrix holds only 0 and 1. For one class number per row "
            "pass a one-dimensional array"
        )
    return matrix
