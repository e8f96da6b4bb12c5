"""Sufficient statistics of labelled features: one pass, mergeable, removable.

Everything that the learner needs of n rows is in five quantities of fixed size: the row count per
label group, the feature sums per group, the mean, the Gram matrix and n. Sums and Gram are kept
*about the mean*, and two sets of them are combined with Chan's update, so a large mean loses no
precision. All accumulation is in float64; the products inside one block run in the precision of
the data (float32 for float16 and float32), about a point near the block's own mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg.blas import dger

from sadih_dask.errors import DtypeError, InputError, LabelError, NonFiniteError
from sadih_dask.learning.labels import LabelGroups, group_rows
from sadih_dask.learning.sample import KEPT_ROWS, Sample, row_keys
from sadih_dask.types import Array, Floats, Ints

try:  # what SciPy's own product ends in; called directly it adds in place and copies nothing
    from scipy.sparse import _sparsetools

    _add_rows: Any = _sparsetools.csc_matvecs
except (ImportError, AttributeError):  # a SciPy that has moved it: the public way gives the same
    _add_rows = None

SAMPLED_ROWS = 64
"""Rows whose mean a block is shifted by."""
PIECE_VALUES = 2**16
"""Values handled at a time: in float32 and float64 together they fit a second-level cache."""
BALANCE = 0.75
"""1 would give all classes the same weight."""
MERGE_FAN_IN = 8
"""Partial statistics folded into one at every level of the reduction tree."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """What one pass over labelled rows leaves behind.

    groups   the label groups that occur
    counts   (g,)    rows in each group, all positive
    mean     (d,)    mean of the features
    sums     (g, d)  sum over each group's rows of (feature - mean)
    gram     (d, d)  sum over rows of (feature - mean)(feature - mean)^T
    sample   some of the rows as they are, to judge what is learned from the rest
    """

    groups: LabelGroups
    counts: Ints
    mean: Floats
    sums: Floats
    gram: Floats
    sample: Sample

    @classmethod
    def of_block(
        cls,
        features: Array,
        labels: Any,
        n_classes: int | None = None,
        first_row: int = 0,
        *,
        keys: Array | None = None,
        sample_rows: int = KEPT_ROWS,
        overwrite: bool = False,
    ) -> Statistics:
        """Compute the statistics of one block of rows; O(rows d^2).

        ``first_row`` is the block's place in the whole collection, for error messages. ``keys``
        are those of the rows (`sample.row_keys`) where the features were made of other ones;
        ``sample_rows`` are kept as they are. With ``overwrite`` the features may be centred where
        they are.
        """
        if features.ndim != 2 or len(features) == 0:
            raise InputError(
                f"features have shape {features.shape}; expected (rows, columns) with a row or more"
            )
        check_numbers(features, first_row)
        groups, ids = group_rows(labels, n_classes, first_row)
        if len(ids) != len(features):
            raise LabelError(
                f"{len(features)} rows of features but {len(ids)} rows of labels; "
                "both must describe the same rows"
            )
        n, n_groups = len(features), groups.n_groups
        work = compute_dtype(features.dtype)
        keys = row_keys(features) if keys is None else keys
        sample = Sample.of_block(keys, features, ids, sample_rows)
        sample = replace(sample, features=sample.features.astype(work, copy=False))
        with np.errstate(over="ignore", invalid="ignore"):
            shift = choose_shift(features, work)
            centre = shift.astype(np.float64)
            centred = shift_rows(features, shift, overwrite=overwrite)
            sums, product = sums_by_group(centred, ids, n_groups), centred.T @ centred
            rest = sums.sum(axis=0) / n
            if is_far(rest, shift, np.diagonal(product) / n):  # the sample was unlike the block
                shift = representable(rest, shift.dtype)
                centre += shift
                centred = shift_rows(centred, shift, overwrite=overwrite)
                sums, product = sums_by_group(centred, ids, n_groups), centred.T @ centred
                rest = sums.sum(axis=0) / n
        _check_finite(features, sums, product, first_row)
        # `centred` is about a point near the mean; the remainder is moved into the mean exactly.
        counts = np.bincount(ids, minlength=n_groups).astype(np.int64)
        _add_outer(sums, counts, -rest)
        gram = product.astype(np.float64, order="C", copy=False)
        _add_outer(gram, rest, -n * rest)
        return cls(groups, counts, centre + rest, sums, gram, sample)

    @property
    def n_samples(self) -> int:
        """How many rows are covered."""
        return int(self.counts.sum())

    @property
    def n_features(self) -> int:
        """How many feature columns there are."""
        return len(self.mean)

    @property
    def variance(self) -> Floats:
        """Population variance of every column, never negative."""
        return np.maximum(np.diagonal(self.gram), 0.0) / self.n_samples

    @property
    def scale(self) -> Floats:
        """Divisor that gives every column unit variance; 1 for a constant column."""
        deviation = np.sqrt(self.variance)
        # A constant column leaves rounding noise about its mean, never an exact zero.
        constant = deviation <= 1e-12 * np.abs(self.mean)
        return np.where(constant | (deviation == 0.0), 1.0, deviation)

    def __repr__(self) -> str:
        return (
            f"<Statistics of {self.n_samples} rows: {self.n_features} features, "
            f"{self.groups.n_groups} label groups of {self.groups.n_classes} classes>"
        )

    def standardised_sums(self) -> Floats:
        """Group sums of the centred, unit-variance features, (g, d)."""
        return self.sums / self.scale

    def standardised_gram(self) -> Floats:
        """Gram matrix of the centred, unit-variance features, (d, d)."""
        return self.gram / self.scale / self.scale[:, None]

    def merge(self, other: Statistics, *, overwrite: bool = False) -> Statistics:
        """Cover the rows of both: Chan's update about the common mean; O(d^2 + g d).

        Classes are numbered alike in both; one may know more of them than the other. With
        ``overwrite`` the result takes the place of these statistics, which are void after it.
        """
        _check_width(self, other)
        n_classes = max(self.groups.n_classes, other.groups.n_classes)
        groups, mine, theirs = self.groups.widen(n_classes).union(other.groups.widen(n_classes))
        n_a, n_b = self.n_samples, other.n_samples
        step = other.mean - self.mean
        mean = self.mean + step * (n_b / (n_a + n_b))
        in_a, in_b = (np.zeros(groups.n_groups, np.int64) for _ in range(2))
        in_a[mine], in_b[theirs] = self.counts, other.counts
        if len(mine) == len(theirs) == groups.n_groups:  # the usual case: both have all groups
            sums = np.add(self.sums, other.sums, out=self.sums if overwrite else None)
        else:
            sums = np.zeros((groups.n_groups, len(mean)))
            sums[mine] += self.sums
            sums[theirs] += other.sums
        _add_outer(sums, in_a, self.mean - mean)
        _add_outer(sums, in_b, other.mean - mean)
        gram = np.add(self.gram, other.gram, out=self.gram if overwrite else None)
        _add_outer(gram, step, step * (n_a * n_b / (n_a + n_b)))
        sample = self.sample.merge(other.sample, mine, theirs)
        return Statistics(groups, in_a + in_b, mean, sums, gram, sample)

    def without(self, other: Statistics, *, known: bool = False) -> Statistics:
        """Take rows out again: the inverse of `merge`, to rounding; O(d^2 + g d).

        Rows that are not ``known`` to be among these are refused where it shows.
        """
        _check_width(self, other)
        place = self.groups.find(other.groups)
        left = self.counts.copy()
        if np.all(place >= 0):
            left[place] -= other.counts
        if np.any(place < 0) or np.any(left < 0):
            raise LabelError(
                "the rows to take out carry label sets that the statistics do not hold, or hold "
                "fewer times; only rows that were put in can be taken out"
            )
        n_a, n_b = self.n_samples, other.n_samples
        n = n_a - n_b
        if n == 0:
            raise InputError(f"all {n_a} rows would be taken out; nothing is left to learn from")
        mean = self.mean + (self.mean - other.mean) * (n_b / n)
        sums = self.sums + self.counts[:, None] * (self.mean - mean)
        sums[place] -= other.sums + other.counts[:, None] * (other.mean - mean)
        step = other.mean - mean
        gram = self.gram - other.gram - np.outer(step, step * (n * n_b / n_a))
        if not known:
            self._check_explained(left, sums, gram)
        keep = left > 0
        number = np.where(keep, np.cumsum(keep) - 1, -1)
        sample = self.sample.without(other.sample, place, number)
        return Statistics(self.groups.take(keep), left[keep], mean, sums[keep], gram, sample)

    def weighted(self, weights: Floats) -> Statistics:
        """As if each label group had about ``weights`` (g,) rows, 0 if it is gone; O(d^2 g).

        Group means stay as they are, and rows scatter about them as all rows do on average: of the
        scatter within single groups nothing is known. The sample loses the groups that are gone.
        """
        keep = weights > 0
        means = self.sums / self.counts[:, None]
        within = self.gram - (means * self.counts[:, None]).T @ means
        left, counts = means[keep], np.maximum(np.rint(weights[keep]), 1.0).astype(np.int64)
        step = counts @ left / counts.sum()
        left -= step
        gram = within * (counts.sum() / self.n_samples) + (left * counts[:, None]).T @ left
        number = np.where(keep, np.cumsum(keep) - 1, -1)
        kept = self.sample.take(np.flatnonzero(keep[self.sample.group]))
        sample = replace(kept, group=number[kept.group])
        sums = left * counts[:, None]
        return Statistics(self.groups.take(keep), counts, self.mean + step, sums, gram, sample)

    def balanced(self) -> Statistics:
        """As if large groups were not as much larger than small ones: ``BALANCE`` of the way to it.

        What follows from it serves rare classes far better, and frequent ones as well as before.
        """
        if not self.groups.single_label or self.counts.min() == self.counts.max():
            return self
        weights = self.counts ** (1.0 - BALANCE)
        return self.weighted(weights * (self.n_samples / weights.sum()))

    def _check_explained(self, counts: Ints, sums: Floats, gram: Floats) -> None:
        """Refuse what is left of these statistics if no rows could have it.

        The sums of a group without rows are zero, and no column scatters less than its group means
        do. Both hold to the rounding of float32 products, so rows that are nearly like some that
        were put in pass here; those of the sample are compared value by value.
        """
        slack = 1e-3 * np.sqrt(self.variance) + 1e-5 * np.abs(self.mean)
        gone = counts == 0
        moved = np.abs(sums[gone]) > self.counts[gone, None] * slack
        between = (np.square(sums[~gone]) / counts[~gone, None]).sum(axis=0)
        beyond = between - np.diagonal(gram) > self.n_samples * np.square(slack)
        if moved.any() or beyond.any():
            column = int(np.argmax(beyond | moved.any(axis=0)))
            raise InputError(
                f"without these rows column {column} of the features has sums that no rows could "
                "have, so they are not all among those that were put in; only such rows can be "
                "taken out"
            )

    def relabel(self, new_index: Ints, n_classes: int) -> Statistics:
        """Rename the labels, each to one of its own, within a larger or equal set of classes."""
        groups, order = self.groups.relabel(new_index, n_classes)
        place = np.argsort(np.arange(len(self.counts))[order])
        sample = replace(self.sample, group=place[self.sample.group])
        counts, sums = self.counts[order], self.sums[order]
        return replace(self, groups=groups, counts=counts, sums=sums, sample=sample)

    def regroup(self, groups: LabelGroups) -> Statistics:
        """Take every label for the number of a group, in a table that these are the rows of."""
        return replace(self, groups=groups.take(self.groups.indices))

    def compact(self) -> tuple[Statistics, Ints]:
        """Drop the labels that no row carries; also return the labels that are kept."""
        groups, kept = self.groups.compact()
        return replace(self, groups=groups), kept


# -- one block: rows about a point near their mean, and their sums by group --------------------


def choose_shift(features: Array, work: np.dtype[Any]) -> Array:
    """A point near the mean of the rows, in the working precision, from a sample of them.

    Zero in columns whose mean is less than half their deviation: squares about zero then lose a
    third of a bit at most, and a column that stays where it is costs nothing.
    """
    step = max(1, len(features) // SAMPLED_ROWS)
    sample = features[::step].astype(np.float64)
    mean = sample.mean(axis=0)
    near_zero = 4 * np.square(mean) <= sample.var(axis=0)
    return representable(np.where(near_zero, 0.0, mean), work)


def representable(point: Floats, work: np.dtype[Any]) -> Array:
    """Round to the working precision; zero where that is impossible.

    A NaN in the shift would make a whole column NaN, and hide which row it came from.
    """
    rounded = point.astype(work)
    return np.where(np.isfinite(rounded), rounded, work.type(0))


def shift_rows(features: Array, shift: Array, *, overwrite: bool) -> Array:
    """``features - shift`` as a C-contiguous array: where they are, if that is allowed, or a copy.

    Subtracting a *representable* number close to the values is exact or nearly so, which is what
    keeps float32 products accurate for features with a large mean. Columns with a zero shift keep
    their bits in every case.
    """
    columns = np.flatnonzero(shift)
    fits = features.dtype == shift.dtype and features.flags.c_contiguous
    if fits and not len(columns):
        return features
    if not (fits and overwrite and features.flags.writeable):
        out = np.empty(features.shape, shift.dtype)
        return np.subtract(features, shift, out=out, dtype=shift.dtype)
    if 16 * len(columns) < len(shift):
        features[:, columns] -= shift[columns]
        return features
    return np.subtract(features, shift, out=features)


def sums_by_group(values: Array, ids: Ints, n_groups: int) -> Floats:
    """Sum rows by group in float64, (g, d), in the order of the rows.

    In float32 a long sum of equal terms drifts by far more than one rounding. A few rows are
    converted at a time, and added while they are in the cache.
    """
    n, d = values.shape
    if _add_rows is None:
        return sums_by_columns(values, ids, n_groups)
    rows = min(n, max(1, PIECE_VALUES // d))
    sums, double = np.zeros((n_groups, d)), np.empty((rows, d))
    ones, indptr = np.ones(rows), np.arange(rows + 1, dtype=np.int64)
    for start in range(0, n, rows):
        k = min(rows, n - start)
        double[:k] = values[start : start + k]
        members = indptr[: k + 1], ids[start : start + k], ones[:k]
        _add_rows(n_groups, k, d, *members, double[:k].reshape(-1), sums.reshape(-1))
    return sums


def sums_by_columns(values: Array, ids: Ints, n_groups: int) -> Floats:
    """The same additions in the same order by public calls; a few columns at a time."""
    n, d = values.shape
    members = sp.csr_array((np.ones(n), ids, np.arange(n + 1)), shape=(n, n_groups)).T
    sums = np.empty((n_groups, d))
    for start in range(0, d, 64):
        sums[:, start : start + 64] = members @ values[:, start : start + 64]
    return sums


def is_far(rest: Floats, shift: Array, mean_square: Floats) -> bool:
    """Whether the mean is further from the shift than the rows scatter about it, in any column.

    Then squares about the shift have lost a digit. ``mean_square`` is that of the shifted rows.
    """
    beyond_rounding = np.abs(rest) > 4 * np.finfo(shift.dtype).eps * np.abs(shift)
    return bool(np.any(beyond_rounding & (2 * np.square(rest) > mean_square)))


def _add_outer(matrix: Floats, u: Floats | Ints, v: Floats) -> None:
    """Add u v^T to a C-contiguous matrix, in place: BLAS needs no memory for the product."""
    dger(1.0, v, u, a=matrix.T, overwrite_a=1)


# -- many blocks ------------------------------------------------------------------------------


def canonical_blocks(n_samples: int, block_rows: int) -> Iterator[slice]:
    """Row ranges of the one-pass scan: fixed by the row count alone, never by storage."""
    for start in range(0, n_samples, block_rows):
        yield slice(start, min(start + block_rows, n_samples))


def merge_in_order(parts: Iterable[Statistics], *, overwrite: bool = False) -> Statistics:
    """Merge partial statistics through a tree whose shape depends on their number alone.

    The first ``MERGE_FAN_IN`` parts are folded from the left into one, so are the next, and so on;
    the results are folded likewise until one is left. Any scheduler that folds the same way gets
    the same bits. Holds one partial result per level of the tree. With ``overwrite`` the parts are
    void after it.
    """

    def merge(a: Statistics, b: Statistics) -> Statistics:
        return a.merge(b, overwrite=True) if overwrite else a.merge(b)

    levels: list[tuple[Statistics, int]] = []  # of every level the node so far, and its parts
    for part in parts:
        node, k = part, 0
        while k < len(levels):
            held, count = levels[k]
            node, count = (merge(held, node), count + 1) if count else (node, 1)
            levels[k] = (node, count % MERGE_FAN_IN)
            if count < MERGE_FAN_IN:
                break
            k += 1
        else:
            levels.append((node, 1))
    if not levels:
        raise InputError("there are no rows to learn from")
    total: Statistics | None = None
    for held, count in levels:  # unfinished nodes, the lowest level first
        if count:
            total = held if total is None else merge(held, total)
    assert total is not None  # noqa: S101 - at least one part was pushed
    return total


# -- what features may be ---------------------------------------------------------------------


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Precision in which products of such data are formed inside a block."""
    if dtype.kind not in "fiub":
        raise DtypeError(
            f"features have dtype {dtype}; expected real numbers. "
            "Convert them first, for example with .astype('float32')"
        )
    small = dtype.itemsize <= (4 if dtype.kind == "f" else 2)
    return np.dtype(np.float32 if small else np.float64)


def check_numbers(features: Array, first_row: int) -> None:
    """Raise an error that names the rows of a block which is of another type than the rest."""
    if isinstance(features, np.ma.MaskedArray):
        raise DtypeError(
            f"rows {first_row} to {first_row + len(features) - 1} of the features are a masked "
            "array; masked values cannot be left out of a row. Fill them, or drop their rows"
        )
    if features.dtype.kind not in "fiub":
        raise DtypeError(
            f"features have dtype {features.dtype} in rows {first_row} to "
            f"{first_row + len(features) - 1}; expected real numbers. Convert them first, for "
            "example with .astype('float32')"
        )


def check_finite(features: Array, first_row: int = 0, name: str = "features") -> None:
    """Raise an error that names the first NaN or infinity by row and column."""
    if features.dtype.kind != "f" or np.isfinite(features).all():
        return
    row, column = (int(i) for i in np.argwhere(~np.isfinite(features))[0])
    raise NonFiniteError(
        f"{name} hold {features[row, column]} at row {first_row + row}, column {column}; every "
        "value must be finite. Remove or impute it (NaN and infinity are not supported)"
    )


def _check_finite(features: Array, sums: Floats, gram: Array, first_row: int) -> None:
    # NaN and infinity spread into the sums, so the data need no second look in the usual case.
    if np.isfinite(sums).all() and np.isfinite(np.diagonal(gram)).all():
        return
    check_finite(features, first_row)
    column = int(np.argmin(np.isfinite(np.diagonal(gram)) & np.isfinite(sums).all(axis=0)))
    raise NonFiniteError(
        f"features of rows {first_row} to {first_row + len(features) - 1}, column {column}, are so "
        "large that their squares overflow; rescale the column"
    )


def _check_width(a: Statistics, b: Statistics) -> None:
    if a.n_features != b.n_features:
        raise InputError(
            f"statistics of {a.n_features} features cannot be combined with statistics of "
            f"{b.n_features}; both must come from the same columns"
        )
