"""What an estimator accepts as rows and as targets, and how it compares with what was learned.

Rows are arrays, Dask arrays or a feature store; targets are class names, class numbers or multi-hot
rows, as users write them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import scipy.sparse as sp
from sklearn.utils import column_or_1d
from sklearn.utils.validation import validate_data

from sadih_dask.compute.encode import LookUpLabels
from sadih_dask.compute.lazy import refuse_sparse
from sadih_dask.compute.rows import (
    ArrayRows,
    LazyRows,
    Rows,
    StoreRows,
    check_labelled,
    classes_of,
)
from sadih_dask.compute.run import is_lazy
from sadih_dask.errors import Advice, Argument, DtypeError, InputError, LabelError, Remedy
from sadih_dask.ingest.provenance import columns_of
from sadih_dask.learning.classes import Targets, Vocabulary, renumbering
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.labels import LabelGroups, group_rows
from sadih_dask.learning.statistics import Statistics, check_finite, compute_dtype
from sadih_dask.model.collections import as_arrays, column_names
from sadih_dask.sources import RowSource
from sadih_dask.stores import FeatureStore
from sadih_dask.stores.coverage import Coverage
from sadih_dask.types import Array, Ints


class Learner(Protocol):
    """An estimator: the parameters that decide the scan, and what it has learned."""

    supervised: ClassVar[bool]
    anchors: int | Array | None
    sigma: float | None
    block_rows: int
    sample_rows: int
    random_state: Any
    classes_: Array
    multi_label_: bool
    n_features_in_: int
    columns_: str
    statistics_: Statistics | None
    anchor_map_: AnchorMap | None
    seed_: int
    coverage_: Coverage | None


@dataclass(frozen=True, eq=False)
class Opened:
    """Validated rows, and the classes behind their label numbers.

    vocabulary   None where classes are known once the rows have been read, are numbers without
                 names, or columns that stand for themselves
    multi_label  None where only the rows can tell
    groups       the label sets behind the numbers, where each stands for a set of labels
    """

    rows: Rows
    vocabulary: Vocabulary | None
    multi_label: bool | None
    groups: LabelGroups | None = None

    @property
    def label_columns(self) -> int | None:
        """Columns of multi-hot labels."""
        return self.rows.label_columns if self.groups is None else self.groups.n_classes


def open_rows(
    model: Learner,
    X: Any,
    y: Any,
    *,
    reset: bool,
    first: int = 0,
    within: Vocabulary | None = None,
) -> Opened:
    """Validate labelled rows; ``reset`` takes note of their columns, else they are compared.

    ``within`` are the only classes that rows in memory may have, and they get its numbers. A store
    is read from row ``first``.
    """
    names, X = column_names(X), as_arrays(X)
    if isinstance(X, FeatureStore):
        if model.supervised:
            check_labelled(X)
        if y is not None:
            raise LabelError(f"{X.url} holds its own labels; pass no y beside it")
        check_width(model, X, reset=reset)
        stored = StoreRows.of(X, first)
        named, multi_label = classes_of(X), stored.label_columns is not None
        if multi_label and not reset and Vocabulary(model.classes_).are_places:
            named = None  # the model knows columns by their place
        opened = Opened(stored, named, multi_label)
    elif is_lazy(X):
        check_width(model, X, reset=reset, names=names)
        opened = _open_lazily(model, X, _or_alike(model, X, y), within)
    else:
        features = check_features(model, X, reset=reset)
        given = _given_targets(model, _or_alike(model, features, y), within)
        if given.labels.shape[0] != len(features):
            raise LabelError(
                f"X has {len(features)} rows but y has {given.labels.shape[0]}; both must describe "
                "the same rows"
            )
        opened = Opened(ArrayRows(features, given.labels), given.vocabulary, given.multi_label)
    if not reset:
        _check_comparable(model, opened)
    return opened


def _or_alike(model: Learner, X: Any, y: Any) -> Any:
    """Labels, all alike where a method needs none and none are given."""
    if y is not None or model.supervised:
        return y
    return np.zeros(0 if np.isnan(X.shape[0]) else int(X.shape[0]), np.int64)


def _open_lazily(model: Learner, X: Any, y: Any, within: Vocabulary | None) -> Opened:
    """Lazy rows, with labels that are lazy as well or in memory."""
    columns = column_names(y)
    labels = as_arrays(y, lengths=True)
    if is_lazy(labels):
        refuse_masked(labels, "y")
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels, columns = labels[:, 0], None
        rows = LazyRows.of(X, labels, model.block_rows)
        named = None if columns is None else Vocabulary.of_columns([*map(str, columns.columns)])
        return Opened(rows, named, True if labels.ndim == 2 else None)
    given = _given_targets(model, labels, within)
    if not given.multi_label:
        rows = LazyRows.of(X, given.labels, model.block_rows)
        return Opened(rows, given.vocabulary, False)
    groups, ids = group_rows(given.labels)  # a number goes to workers for each row, not a row
    return Opened(LazyRows.of(X, ids, model.block_rows), given.vocabulary, True, groups)


def _given_targets(model: Learner, y: Any, within: Vocabulary | None) -> Targets:
    given = as_targets(y)
    if within is None:
        return given
    _check_form(model, given.multi_label)
    return Targets(given.within(within), within)


def _check_comparable(model: Learner, opened: Opened) -> None:
    """Refuse labels that could not be merged with those that are known, before rows are read."""
    if opened.multi_label is None:
        return
    _check_form(model, opened.multi_label)
    columns, known = opened.label_columns, Vocabulary(model.classes_)
    if opened.vocabulary is not None:
        known.joined(opened.vocabulary)
    elif columns is None:
        renumbering(known, None)
    elif columns != len(known):
        raise LabelError(
            f"y has {columns} columns but the model knows {len(known)} labels; multi-hot labels "
            "keep the columns of the first fit"
        )


def check_features(model: Learner, X: Any, *, reset: bool) -> Array:
    """Features in memory as a finite, numeric array of the columns that the model knows."""
    refuse_masked(X, "X")
    if isinstance(X, np.ndarray) and X.ndim == 1:
        raise InputError(
            f"Expected 2D array, got 1D array of {len(X)} values instead. Reshape your data: "
            "X.reshape(1, -1) is one row, X.reshape(-1, 1) one column"
        )
    if len(shape := getattr(X, "shape", ())) > 2:
        raise InputError(
            f"Found array with dim {len(shape)}, while dim <= 2 is required: X has shape "
            f"{tuple(shape)}. Make one row of each item: X.reshape(len(X), -1)"
        )
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
    if reset:
        model.columns_ = ""
    return features


def check_width(model: Learner, X: Any, *, reset: bool = False, names: Any = None) -> None:
    """Compare the columns of rows that are not in memory.

    ``names`` is a data frame that has their names, if there are any.
    """
    refuse_masked(X, "X")
    refuse_sparse(getattr(X, "_meta", None))
    if is_lazy(X):
        compute_dtype(X.dtype)  # refuses what is not a number
    shape = X.shape("features") if isinstance(X, FeatureStore) else X.shape
    if len(shape) != 2:
        raise InputError(f"X has shape {shape}; expected (rows, columns)")
    if reset:
        model.columns_ = columns_of(X) if isinstance(X, FeatureStore) else ""
    elif isinstance(X, FeatureStore):
        check_columns(model, X, X.url)
    if names is not None:
        try:
            validate_data(model, names, reset=reset, skip_check_array=True)
        except ValueError as error:
            raise InputError(str(error)) from error
    elif reset:
        model.n_features_in_ = int(shape[1])
        if hasattr(model, "feature_names_in_"):
            del model.feature_names_in_
    elif shape[1] != model.n_features_in_:
        raise InputError(
            f"X has {shape[1]} features, but SADIH is expecting {model.n_features_in_} features "
            "as input"
        )


def check_columns(model: Learner, rows: FeatureStore | RowSource, where: str) -> None:
    """Refuse rows of a table whose columns are not those that the model has learned from."""
    if model.columns_ and (found := columns_of(rows)) and found != model.columns_:
        raise InputError(
            f"{where} is of tables with other columns of features than those that the model has "
            "learned from, or in another order; write them with the same columns in the same order"
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
    given = as_targets(y)
    _check_form(model, given.multi_label)
    return group_rows(given.within(Vocabulary(model.classes_)), len(model.classes_))


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Learned codes of lazy rows by their labels, in the form that a model knows.

    known  the model's classes and whether it has several labels a row, under its names for them
    """

    known: Any
    codes: LookUpLabels

    dtype = np.dtype(np.uint8)

    @property
    def columns(self) -> int:
        """Bytes of a code."""
        return int(self.codes.label_codes.shape[1])

    def __call__(self, labels: Any, first_row: int) -> Array:
        """Packed codes of a block."""
        try:
            groups, ids = group_targets(self.known, labels)
        except LabelError as error:  # which counts the rows of the block
            last = first_row + len(labels) - 1
            raise LabelError(f"in rows {first_row} to {last} of y: {error}") from error
        return self.codes.of(groups, ids, first_row)


def as_targets(y: Any) -> Targets:
    """Labels of whatever array-like was given, in numbers."""
    if isinstance(y, Targets):
        return y
    if y is None:
        raise LabelError(
            "SADIH requires y to be passed, but the target y is None: codes follow labels"
        )
    refuse_masked(y, "y")
    if getattr(y, "shape", ())[1:] == (1,) and not sp.issparse(y):
        y = column_or_1d(y, warn=True)
    return Targets.of(y)


def stored_targets(store: FeatureStore, labels: Array | None = None) -> Targets | None:
    """Labels as a store has them, None if it has none."""
    if labels is None:
        return None
    known = classes_of(store)
    return Targets.of(labels) if known is None and labels.ndim == 1 else Targets(labels, known)


def warn_of_labels(classes: Array, counts: Ints, multi_label: bool, n_bits: int) -> None:
    """Warn of labels that probably do not mean what they say, and of codes too short for them.

    ``counts`` are the rows of each label group.
    """
    n_groups, told = len(counts), partial(warnings.warn, stacklevel=3)
    if (mark := Vocabulary(classes).separator()) is not None:
        shown = next(name for name in map(str, classes) if mark in name)
        told(
            Advice(
                f"some of the {len(classes)} classes are several tags with {mark!r} between them, "
                f"such as {shown!r}, and two rows are only similar if they have all of them in "
                "common. For several labels a row pass lists of tags: "
                f"[tags.split({mark!r}) for tags in y]"
            )
        )
    if multi_label:
        return
    if n_groups > 2 and counts.max() == 1:
        told(
            Advice(
                f"each of the {n_groups} classes has one row, so no two rows are similar, and "
                "codes cannot learn what rows of a class have in common. Are the labels ids?"
            )
        )
    if n_bits < 62 and 2**n_bits < n_groups:
        least = Argument("n_bits", (n_groups - 1).bit_length())
        few = f"codes of {n_bits} bits tell {2**n_bits} classes apart, and there are {n_groups}"
        told(Advice(few, remedy=Remedy("Choose {} or more", least)))
