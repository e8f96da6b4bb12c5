"""What a fitted or unfitted estimator accepts as rows and labels.

Targets as users write them: class names, class numbers or multi-hot rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import column_or_1d
from sklearn.utils.validation import validate_data

from sadih_dask.compute.rows import ArrayRows, LazyRows, Rows, StoreRows
from sadih_dask.compute.run import is_lazy
from sadih_dask.errors import Argument, DtypeError, InputError, LabelError, Remedy
from sadih_dask.learning.labels import LabelGroups, as_rows, group_rows
from sadih_dask.learning.statistics import Statistics, check_finite, compute_dtype
from sadih_dask.stores import FeatureStore
from sadih_dask.types import Array, Ints


class CheckedInputs:
    """Opens rows and labels in every form, and compares them with what was learned."""

    classes_: Array
    multi_label_: bool
    n_features_in_: int
    statistics_: Statistics | None

    def _open(
        self,
        X: Any,
        y: Any,
        *,
        reset: bool,
        first: int = 0,
        classes: Array | None = None,
    ) -> tuple[Rows, Array | None, bool]:
        """Validated rows, their classes in the order of label numbers, whether they are multi-hot.

        ``classes`` are the only ones that rows in memory may have. None comes back for rows whose
        class numbers are only known once they have been read.
        """
        if isinstance(X, FeatureStore) or is_lazy(X):
            if y is not None and isinstance(X, FeatureStore):
                raise LabelError(f"{X.url} holds its own labels; pass no y beside it")
            rows = StoreRows.of(X, first) if isinstance(X, FeatureStore) else LazyRows.of(X, y)
            self._check_width(X, reset=reset)
            columns = rows.label_columns
            if columns is None:
                return rows, None, False
            return rows, self._label_columns(columns, reset), True
        y = as_targets(y)
        features = self._check_features(X, reset=reset)
        if y.shape[0] != len(features):
            raise LabelError(
                f"X has {len(features)} rows but y has {y.shape[0]}; "
                "both must describe the same rows"
            )
        if is_multi_label(y):
            labels = as_rows(y) if sp.issparse(y) else y
            return ArrayRows(features, labels), self._label_columns(y.shape[1], reset), True
        if classes is None:
            classes = class_names(y)
            if not reset:
                classes = join_classes(self.classes_, classes)
        return ArrayRows(features, class_numbers(y, classes)), classes, False

    def _label_columns(self, columns: int, reset: bool) -> Ints:
        if not reset:
            self._check_form(multi_label=True)
        if not reset and columns != len(self.classes_):
            raise LabelError(
                f"y has {columns} columns but the model knows {len(self.classes_)} labels; "
                "multi-hot labels keep the columns of the first fit"
            )
        return np.arange(columns)

    def _known_as(
        self, classes: Array | None, multi_label: bool
    ) -> tuple[Statistics, Array | None]:
        """Statistics so far, labels numbered as in ``classes``, or by the classes themselves."""
        known = self._known_statistics(multi_label)
        if multi_label:
            return known, classes
        if classes is None:
            if self.classes_.dtype.kind not in "iu":
                raise LabelError(
                    f"the model knows classes like {self.classes_[0]!r} and the new rows have "
                    "class numbers; use one kind throughout"
                )
            return known.relabel(self.classes_.astype(np.int64), int(self.classes_[-1]) + 1), None
        return known.relabel(np.searchsorted(classes, self.classes_), len(classes)), classes

    def _check_features(self, X: Any, *, reset: bool) -> Array:
        try:
            features: Array = validate_data(
                self, X, reset=reset, dtype="numeric", ensure_all_finite=False
            )
        except ValueError as error:  # the same message, as an error of this package
            raise InputError(str(error)) from error
        except TypeError as error:
            raise DtypeError(str(error)) from error
        compute_dtype(features.dtype)  # refuses what is not a number
        check_finite(features)
        return features

    def _check_width(self, X: Any, *, reset: bool = False) -> None:
        """Compare the columns of rows that are not in memory."""
        shape = X.shape("features") if isinstance(X, FeatureStore) else X.shape
        if len(shape) != 2:
            raise InputError(f"X has shape {shape}; expected (rows, columns)")
        if reset:
            self.n_features_in_ = int(shape[1])
            if hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
        elif shape[1] != self.n_features_in_:
            raise InputError(
                f"X has {shape[1]} features, but SADIH is expecting {self.n_features_in_} features "
                "as input"
            )

    def _known_statistics(self, multi_label: bool) -> Statistics:
        if self.statistics_ is None:
            raise InputError(
                "this model was saved without statistics, so it hashes but cannot learn or score",
                remedy=Remedy("Save it with {}", Argument("statistics", True)),
            )
        self._check_form(multi_label)
        return self.statistics_

    def _check_form(self, multi_label: bool) -> None:
        if multi_label != self.multi_label_:
            kinds = ("one class per row", "a multi-hot matrix")
            raise LabelError(
                f"y is {kinds[multi_label]} but the model was fitted with "
                f"{kinds[self.multi_label_]}; use one form throughout"
            )

    def _group_targets(self, y: Any) -> tuple[LabelGroups, Ints]:
        """Label groups of targets in the form that the model knows."""
        y = as_targets(y)
        self._check_form(multi_label := is_multi_label(y))
        if multi_label:
            return group_rows(y, len(self._label_columns(y.shape[1], reset=False)))
        return group_rows(class_numbers(y, self.classes_), len(self.classes_))


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
