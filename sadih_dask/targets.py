"""Targets as users write them: class names, class numbers or multi-hot rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import column_or_1d

from sadih_dask.arrays import Array, Ints
from sadih_dask.errors import LabelError


def as_targets(y: Any) -> Any:
    """An array or a sparse matrix of whatever array-like was given."""
    if y is None:
        raise LabelError(
            "SADIH requires y to be passed, but the target y is None: codes follow labels"
        )
    try:
        values: Any = y if sp.issparse(y) else np.asarray(y)
    except ValueError as error:
        raise LabelError(
            "y holds lists of unequal length; for several labels a row pass a 0/1 matrix, for "
            "example from sklearn.preprocessing.MultiLabelBinarizer"
        ) from error
    if values.ndim not in (1, 2):
        raise LabelError(f"y has shape {values.shape}; expected (rows,) or (rows, classes)")
    if sp.issparse(y) and values.ndim == 1:
        raise LabelError(
            "y is a sparse vector, in which class 0 and no class look alike; pass a dense one"
        )
    if 0 in values.shape[1:]:
        raise LabelError(f"y has shape {values.shape}, without a column; expected class columns")
    return values


def is_multi_label(y: Any) -> bool:
    """Whether targets are a multi-hot matrix rather than one class per row."""
    return sp.issparse(y) or (y.ndim == 2 and y.shape[1] > 1)


def class_names(y: Any) -> Array:
    """Distinct class names of one-class-per-row targets, sorted."""
    names: Array = np.unique(_column(y))
    return names


def join_classes(known: Array, new: Array) -> Array:
    """Both sets of class names, sorted; names and numbers do not mix."""
    if (known.dtype.kind in "SU") != (new.dtype.kind in "SU"):
        raise LabelError(
            f"the known classes are like {known[0]!r} and the new ones like {new[0]!r}; "
            "use class names or class numbers throughout"
        )
    joined = np.union1d(known, new)
    if _has_unlabelled(joined):
        raise LabelError(
            f"-1 marks rows without a label in scikit-learn, not a class, and here it is beside "
            f"{len(joined) - 1} other classes; drop its rows or give them a class"
        )
    return joined


def class_numbers(y: Any, classes: Array) -> Ints:
    """Position of every target in ``classes``."""
    values = _column(y)
    place = np.searchsorted(classes, values).clip(max=max(len(classes) - 1, 0))
    unknown = np.flatnonzero(classes[place] != values) if len(classes) else np.arange(len(values))
    if len(unknown):
        row = int(unknown[0])
        raise LabelError(
            f"the label of row {row} is {values[row]!r}, which is none of the {len(classes)} known "
            f"classes ({len(unknown)} such rows); fit or partial_fit rows of that class first"
        )
    return place.astype(np.int64)


def _column(y: Array) -> Array:
    """One-dimensional targets of one comparable kind, without missing ones."""
    if y.dtype.kind not in "biufOSU":
        raise LabelError(f"y has dtype {y.dtype}; expected class names or class numbers")
    values: Array = column_or_1d(y, warn=True)
    if values.dtype.kind == "f":
        _refuse_rows(np.isnan(values), values, "Input y contains NaN")
        _refuse_rows(np.isinf(values), values, "Input y contains infinity")
        _refuse_rows(
            values != np.floor(values), values, "Unknown label type: continuous targets in y"
        )
    elif values.dtype.kind == "O":
        _refuse_rows(
            np.array([not isinstance(v, str | int | np.bool_ | np.integer) for v in values], bool),
            values,
            "y holds something that is neither a class name nor a class number",
        )
        if len({isinstance(v, str) for v in values}) > 1:
            raise LabelError("y mixes class names and class numbers; use one kind")
        values = np.asarray(list(values))
    if _has_unlabelled(values):
        _refuse_rows(
            values == -1, values, "-1 marks rows without a label in scikit-learn, not a class"
        )
    return values


def _has_unlabelled(values: Array) -> bool:
    """Whether -1 is beside two or more other classes: so scikit-learn marks unlabelled rows."""
    if values.dtype.kind not in "if" or len(values) == 0 or values.min() != -1:
        return False
    return len(np.unique(values)) > 2


def _refuse_rows(bad: Array, values: Array, what: str) -> None:
    rows = np.flatnonzero(bad)
    if len(rows):
        raise LabelError(
            f"{what} (row {rows[0]}: {values[rows[0]]!r}, {len(rows)} such rows); "
            "drop these rows or give them a class"
        )
