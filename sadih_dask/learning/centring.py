"""Rows about a point near their mean, and their sums by group: one trip through the cache.

A block is taken a few rows at a time. While they are in the cache they are shifted, converted to
float64 and added to the sums of their groups, so a block is fetched from memory once for all of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from sadih_dask.arrays import Array, Floats, Ints

try:  # what SciPy's own product ends in; called directly it adds in place and copies nothing
    from scipy.sparse import _sparsetools

    _add_rows: Any = _sparsetools.csc_matvecs
except (ImportError, AttributeError):  # a SciPy that has moved it: the public way gives the same
    _add_rows = None

SAMPLED_ROWS = 64
"""Rows whose mean a block is shifted by."""
PIECE_VALUES = 2**16
"""Values handled at a time: in float32 and float64 together they fit a second-level cache."""


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
