"""What a fitted or unfitted estimator accepts as rows and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import validate_data

from sadih_dask import targets
from sadih_dask.arrays import Array, Ints
from sadih_dask.compute.rows import ArrayRows, LazyRows, Rows, StoreRows
from sadih_dask.compute.running import is_lazy
from sadih_dask.errors import DtypeError, InputError, LabelError
from sadih_dask.learning.labels import LabelGroups, as_rows, group_rows
from sadih_dask.learning.statistics import Statistics, check_finite, compute_dtype
from sadih_dask.storage import FeatureStore


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
        y = targets.as_targets(y)
        features = self._check_features(X, reset=reset)
        if y.shape[0] != len(features):
            raise LabelError(
                f"X has {len(features)} rows but y has {y.shape[0]}; "
                "both must describe the same rows"
            )
        if targets.is_multi_label(y):
            labels = as_rows(y) if sp.issparse(y) else y
            return ArrayRows(features, labels), self._label_columns(y.shape[1], reset), True
        if classes is None:
            classes = targets.class_names(y)
            if not reset:
                classes = targets.join_classes(self.classes_, classes)
        return ArrayRows(features, targets.class_numbers(y, classes)), classes, False

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
                "this model was saved without statistics, so it hashes but cannot learn or score; "
                "save it with statistics=True"
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
        y = targets.as_targets(y)
        self._check_form(multi_label := targets.is_multi_label(y))
        if multi_label:
            return group_rows(y, len(self._label_columns(y.shape[1], reset=False)))
        return group_rows(targets.class_numbers(y, self.classes_), len(self.classes_))
