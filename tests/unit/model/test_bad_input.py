"""What SADIH refuses: with an error that says what, where and what to do, and without harm."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

from sadih_dask import SADIH, search
from sadih_dask.errors import DtypeError, InputError, LabelError, NonFiniteError, SadihError
from tests.support.datasets import blobs, tagged_blobs
from tests.support.models import QUICK

X, Y1 = blobs(30)
_, YM = tagged_blobs(30)


def model(**parameters: Any) -> SADIH:
    return SADIH(**{"n_bits": 8, **QUICK, "anchors": None, **parameters})


def put(values: Any, row: int, column: int, value: Any) -> Any:
    changed = values.copy()
    changed[row, column] = value
    return changed


def with_label(row: int, value: Any, dtype: Any = None) -> Any:
    labels = Y1.astype(dtype or np.asarray([value]).dtype)
    labels[row] = value
    return labels


# --- features --------------------------------------------------------------------------------

FEATURES: dict[str, tuple[Any, type[Exception], str]] = {
    "nan": (put(X, 17, 3, np.nan), NonFiniteError, "nan at row 17, column 3.*Remove or impute"),
    "inf": (put(X, 17, 3, np.inf), NonFiniteError, "inf at row 17, column 3.*Remove or impute"),
    "-inf, float16": (
        put(X.astype(np.float16), 0, 4, -np.inf),
        NonFiniteError,
        "-inf at row 0, column 4",
    ),
    "no rows": (X[:0], InputError, r"0 sample\(s\).*minimum of 1"),
    "no columns": (X[:, :0], InputError, r"0 feature\(s\).*minimum of 1"),
    "one dimension": (X[0], InputError, "Expected 2D array.*[Rr]eshape"),
    "three dimensions": (X[None], InputError, r"dim 3.*dim <= 2.*X\.reshape\(len\(X\), -1\)"),
    "complex": (X + 1j, InputError, "Complex data not supported"),
    "text": (X.astype(str), InputError, "bytes/strings.*[Cc]onvert"),
    "objects": (np.full((30, 5), {}, object), DtypeError, "must be a string or a real number"),
    "dates": (X.astype("M8[s]"), DtypeError, "dtype datetime64.*Convert"),
    "ragged": ([[1.0, 2.0], [3.0]], InputError, "inhomogeneous|sequence"),
    "sparse": (sp.csr_array(X), DtypeError, "Sparse data.*toarray"),
    "masked": (np.ma.masked_greater(X, 1), DtypeError, "X is a masked array.*Fill them"),
}


@pytest.mark.parametrize("case", FEATURES)
@pytest.mark.parametrize("anchors", [None, 10])
def test_features_that_cannot_be_used(case: str, anchors: int | None) -> None:
    features, error, message = FEATURES[case]
    labels = Y1[: features.shape[0] if hasattr(features, "shape") else 2]
    with pytest.raises(error, match=f"(?s){message}"):
        model(anchors=anchors).fit(features, labels)


@pytest.mark.parametrize("case", [case for case in FEATURES if case != "no columns"])
def test_rows_that_cannot_be_hashed(case: str) -> None:
    features, error, message = FEATURES[case]
    fitted = model().fit(X, Y1)
    for use in (fitted.transform, fitted.project):
        with pytest.raises(error, match=f"(?s){message}"):
            use(features)


@pytest.mark.parametrize("case", ["sparse", "masked", "objects"])
@pytest.mark.parametrize("lazy", [False, True])
def test_kinds_of_array_that_no_method_takes(case: str, lazy: bool) -> None:
    features, error, message = FEATURES[case]
    labels: Any = Y1
    if lazy:
        blocks = da.from_array(X, chunks=(10, -1))
        labels = da.from_array(Y1, chunks=10)
        features = {
            "sparse": blocks.map_blocks(sp.csr_array, meta=sp.csr_array((0, 5))),
            "masked": da.ma.masked_greater(blocks, 1),
            "objects": blocks.astype(object),
        }[case]
        message = {"sparse": "sparse blocks", "objects": "dtype object"}.get(case, message)
    fitted = model().fit(X, Y1)
    before = dict(vars(fitted))
    for use in (model().fit, model().partial_fit, fitted.partial_fit, fitted.forget):
        with pytest.raises(error, match=f"(?s){message}"):
            use(features, labels)
    for use in (fitted.transform, fitted.project):
        with pytest.raises(error, match=f"(?s){message}"):
            np.asarray(use(features))
    assert vars(fitted) == before


@pytest.mark.parametrize("lazy", [False, True])
def test_masked_labels_that_no_method_takes(lazy: bool) -> None:
    features, labels = X, np.ma.masked_greater(Y1, 1)
    if lazy:
        features, labels = (da.from_array(rows, chunks=10) for rows in (X, labels))
    fitted = model().fit(X, Y1)
    before = dict(vars(fitted))
    for use in (model().fit, model().partial_fit, fitted.partial_fit, fitted.forget, fitted.score):
        with pytest.raises(DtypeError, match=r"y is a masked array.*Fill them"):
            use(features, labels)
    with pytest.raises(DtypeError, match=r"y is a masked array.*Fill them"):
        np.asarray(fitted.learned_codes(labels))
    assert vars(fitted) == before


def test_the_first_of_several_bad_values_is_named() -> None:
    bad = put(put(X, 21, 0, np.nan), 9, 4, np.inf)
    with pytest.raises(NonFiniteError, match="inf at row 9, column 4"):
        model(block_rows=4).fit(bad, Y1)


@pytest.mark.parametrize("anchors", [None, 10])
def test_numbers_whose_squares_overflow(anchors: int | None) -> None:
    with pytest.raises(NonFiniteError, match=r"so large.*rescale"):
        model(anchors=anchors).fit(X * 1e200, Y1)


# --- labels ----------------------------------------------------------------------------------

LABELS: dict[str, tuple[Any, type[Exception], str]] = {
    "missing": (None, LabelError, "requires y"),
    "masked": (np.ma.masked_greater(Y1, 1), DtypeError, "y is a masked array.*Fill them"),
    "too few": (Y1[:-1], LabelError, "X has 30 rows but y has 29; both"),
    "too many, multi-hot": (np.vstack([YM, YM]), LabelError, "X has 30 rows but y has 60; both"),
    "a number": (3, LabelError, r"shape \(\); expected \(rows,\)"),
    "three dimensions": (YM[None], LabelError, r"shape \(1, 30, 4\); expected \(rows,\)"),
    "no columns": (np.zeros((30, 0)), LabelError, r"\(30, 0\), without a column"),
    "one class": (np.zeros(30), LabelError, "one class.*Add rows of another class"),
    "one label set": (np.tile([1, 0, 1], (30, 1)), LabelError, "one class.*Add rows"),
    "nan": (with_label(7, np.nan), LabelError, "NaN.*row 7.*drop these rows"),
    "inf": (with_label(7, np.inf), LabelError, "infinity.*row 7.*drop these rows"),
    "fractions": (with_label(7, 0.5), LabelError, "continuous.*row 7.*1 such rows"),
    "None": (with_label(7, None, object), LabelError, "neither.*row 7: None.*drop these rows"),
    "-1 beside classes": (with_label(7, -1), LabelError, r"-1 marks.*row 7.*drop these rows"),
    "-1.0 beside classes": (with_label(7, -1.0), LabelError, r"-1 marks.*row 7.*drop"),
    "sets": ([{0}, {1}] * 15, LabelError, r"neither.*row 0: \{0\}"),
    "ragged": ([[0], [1, 2]] * 15, LabelError, "unequal length.*MultiLabelBinarizer"),
    "names and numbers": (with_label(7, "cat", object), LabelError, "mixes class names and"),
    "complex": (Y1 + 0j, LabelError, "dtype complex128; expected class names or"),
    "dates": (Y1.astype("M8[D]"), LabelError, "dtype datetime64.*expected class names or"),
    "a sparse vector": (sp.coo_array(Y1), LabelError, "sparse vector.*pass a dense one"),
    "a 2 in multi-hot": (put(YM, 17, 2, 2), LabelError, "2.* at row 17, column 2.*only 0 and 1"),
    "a 2 in sparse": (sp.csr_array(put(YM, 17, 2, 2)), LabelError, "at row 17, column 2.*only 0"),
    "nan in multi-hot": (put(YM * 1.0, 17, 2, np.nan), LabelError, "nan.* at row 17, column 2"),
    "a row without label": (YM * (np.arange(30) != 17)[:, None], LabelError, "row 17.*no label"),
    "a sparse row without label": (
        sp.coo_array(YM * (np.arange(30) != 17)[:, None]),
        LabelError,
        "row 17.*no label.*drop unlabelled",
    ),
    "text in a matrix": (YM.astype(str), DtypeError, "dtype <U.*0/1 matrix"),
}


@pytest.mark.parametrize("case", LABELS)
@pytest.mark.parametrize("block_rows", [8192, 5])
def test_labels_that_cannot_be_used(case: str, block_rows: int) -> None:
    labels, error, message = LABELS[case]
    with pytest.raises(error, match=f"(?s){message}"):
        model(block_rows=block_rows).fit(X, labels)


@pytest.mark.parametrize("labels", [Y1 + 1, ["cat"] * 30], ids=["numbers", "names"])
def test_labels_outside_the_classes(labels: Any) -> None:
    fitted = model().fit(X, Y1)
    with pytest.raises(LabelError, match=r"label of row .* none of the 3 known.*partial_fit"):
        fitted.forget(X, labels)
    assert 0 <= fitted.score(X, labels) <= 1  # classes to come are looked up among each other


def test_learned_codes_of_labels_outside_the_classes() -> None:
    with pytest.raises(LabelError, match=r"label of row 1 is .*5.* none of the 3 known classes"):
        model().fit(X, Y1).learned_codes([0, 5, 1])
    with pytest.raises(LabelError, match=r"label of row 0 is .*'b'.* none of the 3 known classes"):
        model().fit(X, np.array(["a", "c", "d"])[Y1]).learned_codes(["b"])


def test_a_label_set_that_no_row_had() -> None:
    fitted = model().fit(X, np.eye(4)[np.arange(30) % 4])
    with pytest.raises(LabelError, match=r"row 1 has a label set that no learned row had.*1 such"):
        fitted.learned_codes([[1, 0, 0, 0], [1, 1, 0, 0]])
    assert 0 <= fitted.score(X[:2], [[1, 0, 0, 0], [1, 1, 0, 0]]) <= 1  # relevance still has sense


# --- adding and taking out -------------------------------------------------------------------

ADD, OUT = "partial_fit", "forget"
STEPS: dict[str, tuple[str, Any, Any, type[Exception], str]] = {
    "nan": (ADD, put(X, 3, 1, np.nan), Y1, NonFiniteError, "row 3, column 1"),
    "overflow": (ADD, X * 1e200, Y1, NonFiniteError, "so large.*rescale"),
    "other columns": (ADD, X[:, :4], Y1, InputError, "4 features.*expecting 5"),
    "other length": (ADD, X, Y1[:5], LabelError, "30 rows but y has 5"),
    "names after numbers": (ADD, X, ["cat"] * 30, LabelError, "names or class numbers throughout"),
    "multi-hot after classes": (ADD, X, YM, LabelError, "use one form throughout"),
    "-1 beside classes": (ADD, X[:2], [-1, 0], LabelError, "-1 marks.*drop its rows"),
    "unlabelled": (ADD, X[:2], [np.nan, 0], LabelError, "NaN.*row 0"),
    "no rows": (ADD, X[:0], Y1[:0], InputError, r"0 sample\(s\)"),
    "forget nan": (OUT, put(X, 3, 1, np.nan), Y1, NonFiniteError, "row 3, column 1"),
    "forget other columns": (OUT, X[:, :4], Y1, InputError, "4 features.*expecting 5"),
    "forget other length": (OUT, X, Y1[:5], LabelError, "30 rows but y has 5"),
    "forget other classes": (OUT, X, Y1 + 1, LabelError, "none of the 3 known classes"),
    "forget names": (OUT, X, ["cat"] * 30, LabelError, "none of the 3 known classes"),
    "forget multi-hot": (OUT, X, YM, LabelError, "use one form throughout"),
    "forget too many": (OUT, X[[0] * 11], Y1[[0] * 11], LabelError, "hold fewer times"),
    "forget everything": (OUT, X, Y1, InputError, "nothing is left"),
    "forget all but a class": (OUT, X[Y1 > 0], Y1[Y1 > 0], LabelError, "one class"),
}


@pytest.mark.parametrize(
    ("case", "anchors"),
    # Anchor features are bounded: there, a row too large to square is merely far from all anchors.
    [*((case, None) for case in STEPS), *((case, 10) for case in STEPS if case != "overflow")],
)
def test_a_refused_step_changes_nothing(case: str, anchors: int | None) -> None:
    step, features, labels, error, message = STEPS[case]
    fitted = model(anchors=anchors).fit(X, Y1)
    before, codes = dict(vars(fitted)), fitted.transform(X)
    with pytest.raises(error, match=message):
        getattr(fitted, step)(features, labels)
    assert vars(fitted).keys() == before.keys()
    for name, value in before.items():
        assert vars(fitted)[name] is value, name
    np.testing.assert_array_equal(fitted.transform(X), codes)


def test_a_refused_multi_label_step_changes_nothing() -> None:
    fitted = model().fit(X, YM)
    before = dict(vars(fitted))
    for labels, message in [
        (YM[:, :3], "3 columns but the model knows 4 labels"),
        (Y1, "use one form throughout"),
        (put(YM, 17, 2, 2), "row 17, column 2"),
        (sp.csr_array(YM * (np.arange(30) != 17)[:, None]), "row 17.*no label"),
    ]:
        for step in (fitted.partial_fit, fitted.forget):
            with pytest.raises(LabelError, match=message):
                step(X, labels)
    assert vars(fitted) == before


def test_rows_that_were_never_learned_cannot_be_forgotten() -> None:
    fitted = model().fit(X, np.eye(4)[np.arange(30) % 4])
    with pytest.raises(LabelError, match="only rows that were put in can be taken out"):
        fitted.forget(X[:1], [[1, 1, 0, 0]])


@pytest.mark.parametrize("anchors", [None, 10])
def test_features_that_were_never_learned_cannot_be_forgotten_where_it_shows(
    anchors: int | None,
) -> None:
    fitted = model(anchors=anchors).fit(X, Y1)
    before = dict(vars(fitted))
    one_class = Y1 == 0
    with pytest.raises(InputError, match="sums that no rows could have"):  # nothing may be left
        fitted.forget(X[one_class] + 1.0, Y1[one_class])
    with pytest.raises(InputError, match=r"sums that no rows could have|negative eigenvalues"):
        fitted.forget(X[:5] * 50.0, Y1[:5])  # further out than all rows together
    with pytest.raises(InputError, match=r"at least 5 of the rows .* are not among those"):
        fitted.forget(X[:5] + 1e-9, Y1[:5])
    assert vars(fitted) == before
    fitted.forget(X[one_class], Y1[one_class])


def test_a_gram_matrix_that_no_rows_have_is_an_error_with_words() -> None:
    along, across = np.random.default_rng(0).standard_normal((2, 40))
    labels = np.arange(40) % 2
    rows = np.column_stack([along, along + 0.1 * across])
    fitted = model(ridge=0.0).fit(rows, labels)
    sample = fitted.statistics_.sample  # without rows to compare with
    nothing = replace(sample.take(slice(0, 0)), limit=np.uint64(0))
    fitted.statistics_ = replace(fitted.statistics_, sample=nothing)
    turned = rows[:12] * [0.5, -0.5]  # no column scatters too much, but a direction does
    with pytest.raises(InputError, match=r"negative eigenvalues.*never been put in"):
        fitted.forget(turned, labels[:12])


# --- parameters ------------------------------------------------------------------------------

PARAMETERS: dict[str, list[Any]] = {
    "n_bits": [0, -8, 8.0, "8", None, True],
    "loss": ["l2", None, ["l1"], np.array(["l1", "l21"])],
    "solver": ["fast", 1],
    "start": ["zeros", None],
    "encoder": ["linear", None],
    "similarity": ["dot", None],
    "anchors": [0, -1, 10.5, "all"],
    "sigma": [0.0, -1.0, np.nan, np.inf, "auto"],
    "alpha": [-1.0, np.nan, np.inf, None, "1"],
    "beta": [-1.0, np.nan],
    "gamma": [-1e-9, None],
    "ridge": [-1.0, "no"],
    "sharpness": [0.0, np.inf, "no"],
    "openness": [-0.1, 1.1, None],
    "max_iter": [-1, 2.5, None],
    "tol": [-1e-9, np.nan],
    "n_init": [0, None, "all"],
    "block_rows": [0, 10.0],
    "random_state": [-1, 1.5, "seed", [1, 2], True],
}


def test_every_parameter_is_tried() -> None:
    assert set(PARAMETERS) == set(SADIH().get_params())


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in PARAMETERS.items() for value in values]
)
def test_parameters_out_of_range(name: str, value: Any) -> None:
    message = rf"(?s)^{name}={re.escape(repr(value))}.*(expected|choose one of)"
    for refused in (model(**{name: value}).fit, model(**{name: value}).partial_fit):
        with pytest.raises(InputError, match=message):
            refused(X, Y1)
    fitted = model().fit(X, Y1).set_params(**{name: value})
    codes = fitted.label_codes_
    for call in (lambda: fitted.forget(X[:1], Y1[:1]), fitted.refit):
        with pytest.raises(InputError, match=message):
            call()
    assert fitted.label_codes_ is codes


# --- without a model, without statistics -----------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.transform(X),
        lambda m: m.project(X),
        lambda m: m.score(X, Y1),
        lambda m: m.learned_codes(Y1),
        lambda m: m.forget(X, Y1),
        lambda m: m.refit(),
        lambda m: m.save("nowhere"),
        lambda m: m.label_groups_,
        lambda m: m.get_feature_names_out(),
    ],
)
def test_before_fitting(use: Callable[[SADIH], Any]) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        use(SADIH())


def test_a_model_without_statistics_hashes_and_does_not_learn(tmp_path: Path) -> None:
    fitted = model().fit(X, Y1)
    fitted.save(tmp_path / "small.sadih", statistics=False)
    small = SADIH.load(tmp_path / "small.sadih")
    np.testing.assert_array_equal(small.transform(X), fitted.transform(X))
    np.testing.assert_array_equal(small.learned_codes(Y1), fitted.learned_codes(Y1))
    assert small.score(X, Y1) == fitted.score(X, Y1)
    for use in (small.partial_fit, small.forget, lambda *_: small.refit()):
        with pytest.raises(InputError, match=r"without statistics.*statistics=True"):
            use(X, Y1)
    np.testing.assert_array_equal(small.fit(X, Y1).label_codes_, fitted.label_codes_)


def test_every_error_is_of_this_package_and_of_a_built_in() -> None:
    for error in (InputError, LabelError, NonFiniteError):
        assert issubclass(error, SadihError)
        assert issubclass(error, ValueError)
    assert issubclass(DtypeError, SadihError)
    assert issubclass(DtypeError, TypeError)


def test_a_failed_fit_leaves_a_fitted_model_as_it_was() -> None:
    data = blobs(60, 5, 3)
    model = SADIH(n_bits=8, anchors=None).fit(*data)
    codes = model.transform(data[0])
    labels = data[1].astype(float)
    labels[7] = np.nan
    with pytest.raises(LabelError, match=r"NaN .*row 7"):
        model.fit(data[0][:, :3], labels)
    assert model.n_features_in_ == 5
    assert np.array_equal(model.transform(data[0]), codes)


def test_a_path_where_rows_or_codes_belong_is_refused_with_what_opens_it() -> None:
    data = blobs(60, 5, 3)
    model = SADIH(n_bits=8, anchors=None).fit(*data)
    codes = model.transform(data[0])
    with pytest.raises(InputError, match=r"'codes\.zarr' is a path; .*CodeStore\.open"):
        model.search("codes.zarr", data[0])
    with pytest.raises(InputError, match=r"CodeStore\.open"):
        search(Path("codes.zarr"), codes)
    for use in (model.transform, model.fit, partial(model.search, codes)):
        with pytest.raises(InputError, match=r"'x\.npy' is a path; .*FeatureStore\.open.*np\.load"):
            use(Path("x.npy"))
