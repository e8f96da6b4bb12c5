"""What an estimator accepts as rows and as targets, and how it compares with what was learned.

Rows are arrays, Dask arrays or a feature store; targets are class names, class numbers or multi-hot
rows, as users write them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from sklearn.utils import column_or_1d
from sklearn.utils.validation import validate_data

from sadih_dask.compute.rows import ArrayRows, LazyRows, Rows, StoreRows
from sadih_dask.compute.run import is_lazy
from sadih_dask.errors import Argument, DtypeError, InputError, LabelError, Remedy
from sadih_dask.learning.encoders import HashFunction
from sadih_dask.learning.labels import LabelGroups, as_rows, group_rows
from sadih_dask.learning.statistics import Statistics, check_finite, compute_dtype
from sadih_dask.stores import FeatureStore
from sadih_dask.stores.coverage import Coverage
from sadih_dask.types import Array, Ints


class Learner(Protocol):
    """An estimator: the parameters that decide the scan, and what it has learned."""

    anchors: int | None
    sigma: float | None
    block_rows: int
    random_state: Any
    classes_: Array
    class_names_: tuple[str, ...]
    multi_label_: bool
    n_features_in_: int
    statistics_: Statistics | None
    hash_function_: HashFunction
    seed_: int
    coverage_: Coverage | None


@dataclass(frozen=True, eq=False)
class Opened:
    """Validated rows, the names behind their label numbers, and whether labels are multi-hot.

    ``classes`` is None where class numbers are only known once the rows have been read.
    """

    rows: Rows
    classes: Array | None
    multi_label: bool


def open_rows(
    model: Learner,
    X: Any,
    y: Any,
    *,
    reset: bool,
    first: int = 0,
    classes: Array | None = None,
) -> Opened:
    """Validate labelled rows; ``reset`` takes note of their columns, else they are compared.

    ``classes`` are the only ones that rows in memory may have. A store is read from row ``first``.
    """
    if isinstance(X, FeatureStore) or is_lazy(X):
        if y is not None and isinstance(X, FeatureStore):
            raise LabelError(f"{X.url} holds its own labels; pass no y beside it")
        check_width(model, X, reset=reset)
        rows = StoreRows.of(X, first) if isinstance(X, FeatureStore) else LazyRows.of(X, y)
        columns = rows.label_columns
        if columns is None:
            return Opened(rows, None, False)
        return Opened(rows, _label_columns(model, columns, reset), True)
    y = as_targets(y)
    features = check_features(model, X, reset=reset)
    if y.shape[0] != len(features):
        raise LabelError(
            f"X has {len(features)} rows but y has {y.shape[0]}; both must describe the same rows"
        )
    if is_multi_label(y):
        labels = as_rows(y) if sp.issparse(y) else y
        return Opened(ArrayRows(features, labels), _label_columns(model, y.shape[1], reset), True)
    if classes is None:
        classes = class_names(y)
        if not reset:
            classes = join_classes(model.classes_, classes)
    return Opened(ArrayRows(features, class_numbers(y, classes)), classes, False)


def _label_columns(model: Learner, columns: int, reset: bool) -> Ints:
    if not reset:
        _check_form(model, multi_label=True)
    if not reset and columns != len(model.classes_):
        raise LabelError(
            f"y has {columns} columns but the model knows {len(model.classes_)} labels; "
            "multi-hot labels keep the columns of the first fit"
        )
    return np.arange(columns)


def check_features(model: Learner, X: Any, *, reset: bool) -> Array:
    """Features in memory as a finite, numeric array of the columns that the model knows."""
    refuse_masked(X, "X")
    try:
        features: Array = validate_data(
            model, X, reset=reset, dtype="numeric", ensure_all_finite=False
        )
    except ValueError as error:  # the same message, as an error of this package
        raise InputError(str(error)) from error
    except TypeError as error:
        raise DtypeError(str(error)) from error
    compute_dtype(features.dtype)  # refuses what is not a number
    check_finite(features)
    return features


def check_width(model: Learner, X: Any, *, reset: bool = False) -> None:
    """Compare the columns of rows that are not in memory."""
    refuse_masked(X, "X")
    if sp.issparse(getattr(X, "_meta", None)):
        raise DtypeError("X has sparse blocks, but dense data is required; densify them first")
    shape = X.shape("features") if isinstance(X, FeatureStore) else X.shape
    if len(shape) != 2:
        raise InputError(f"X has shape {shape}; expected (rows, columns)")
    if reset:
        model.n_features_in_ = int(shape[1])
        if hasattr(model, "feature_names_in_"):
            del model.feature_names_in_
    elif shape[1] != model.n_features_in_:
        raise InputError(
            f"X has {shape[1]} features, but SADIH is expecting {model.n_features_in_} features "
            "as input"
        )


def refuse_masked(values: Any, name: str) -> None:
    """Refuse arrays, also lazy ones, whose masked values would count as all others do."""
    if isinstance(getattr(values, "_meta", values), np.ma.MaskedArray):
        raise DtypeError(
            f"{name} is a masked array; masked values cannot be left out of a row. Fill them, for "
            f"example with {name}.filled(0), or drop their rows"
        )


def known_statistics(model: Learner, multi_label: bool) -> Statistics:
    """What the model has learned from, in labels of the given form."""
    if model.statistics_ is None:
        raise InputError(
            "this model was saved without statistics, so it hashes but cannot learn or score",
            remedy=Remedy("Save it with {}", Argument("statistics", True)),
        )
    _check_form(model, multi_label)
    return model.statistics_


def _check_form(model: Learner, multi_label: bool) -> None:
    if multi_label != model.multi_label_:
        kinds = ("one class per row", "a multi-hot matrix")
        raise LabelError(
            f"y is {kinds[multi_label]} but the model was fitted with "
            f"{kinds[model.multi_label_]}; use one form throughout"
        )


def group_targets(model: Learner, y: Any) -> tuple[LabelGroups, Ints]:
    """Label groups of targets in the form that the model knows."""
    y = as_targets(y)
    _check_form(model, multi_label := is_multi_label(y))
    if multi_label:
        return group_rows(y, len(_label_columns(model, y.shape[1], reset=False)))
    return group_rows(class_numbers(y, model.classes_), len(model.classes_))


def group_labels(labels: Any) -> tuple[LabelGroups, Ints]:
    """Label groups of targets in a numbering of their own."""
    if is_multi_label(labels):
        return group_rows(labels)
    return group_rows(np.unique(_column(labels), return_inverse=True)[1].reshape(-1))


def as_targets(y: Any) -> Any:
    """An array or a sparse matrix of whatever array-like was given."""
    if y is None:
        raise LabelError(
            "SADIH requires y to be passed, but the target y is None: codes follow labels"
        )
    refuse_masked(y, "y")
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
