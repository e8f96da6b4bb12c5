"""SADIH among scikit-learn's tools."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from sadih_dask import SADIH
from sadih_dask.model.methods import METHODS, method_class
from tests.support.datasets import blobs, tagged_blobs
from tests.support.models import QUICK, few_steps, same_model


@pytest.mark.filterwarnings("ignore:codes of 1 bits tell 2 classes apart")
@parametrize_with_checks(
    [
        SADIH(n_bits=16, **QUICK),
        SADIH(n_bits=16, anchors=None),
        *(
            method_class(name)(n_bits=1, anchors=None, **few_steps(name))
            for name in METHODS
            if name != "sadih"
        ),
    ]
)
def test_estimator_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def model(**parameters: Any) -> SADIH:
    return SADIH(**{"n_bits": 8, **QUICK, "anchors": 20, **parameters})


# --- pipelines -------------------------------------------------------------------------------


def test_in_a_pipeline_behind_other_steps() -> None:
    X, y = blobs(90)
    pipeline = make_pipeline(StandardScaler(), PCA(3), model()).fit(X, y)
    by_hand = PCA(3).fit_transform(StandardScaler().fit_transform(X))
    expected = model().fit(by_hand, y)
    np.testing.assert_array_equal(pipeline.transform(X), expected.transform(by_hand))
    assert pipeline.score(X, y) == expected.score(by_hand, y)
    assert pipeline.get_feature_names_out().tolist() == ["sadih0"]


def test_in_a_pipeline_before_a_classifier() -> None:
    X, y = blobs(90)
    bits = make_pipeline(model(), BernoulliNB())
    assert bits.fit(X, y).predict(X).shape == (90,)
    X, Y = tagged_blobs(90)
    many = make_pipeline(model(), OneVsRestClassifier(BernoulliNB()))
    assert many.fit(X, Y).predict(X).shape == Y.shape


def test_fit_transform() -> None:
    X, y = blobs()
    np.testing.assert_array_equal(model().fit_transform(X, y), model().fit(X, y).transform(X))


# --- clones and searches ---------------------------------------------------------------------


@pytest.mark.parametrize("random_state", [3, np.random.default_rng(3), None])
def test_clone_copies_parameters_and_nothing_learned(random_state: Any) -> None:
    X, y = blobs()
    fitted = model(encoder="posterior", random_state=random_state).fit(X, y)
    copy = clone(fitted)
    assert repr(copy.get_params()).split(" at ")[0] == repr(fitted.get_params()).split(" at ")[0]
    assert not hasattr(copy, "label_codes_")
    assert clone(model(random_state=3)).fit(X, y).seed_ == 3


def test_a_clone_of_a_loaded_model_learns_the_same(tmp_path: Any) -> None:
    X, y = blobs()
    fitted = model().fit(X, y)
    fitted.save(tmp_path / "model")
    same_model(clone(SADIH.load(tmp_path / "model")).fit(X, y), fitted, X)


@pytest.mark.filterwarnings("ignore:codes of 1 bits tell 2 classes apart")
def test_grid_search_with_the_default_scorer() -> None:
    X, y = blobs(120, 4, 4)
    grid = {"n_bits": [1, 16], "encoder": ["ridge", "orthogonal"]}
    search = GridSearchCV(model(), grid, cv=StratifiedKFold(3)).fit(X, y)
    assert search.best_params_["n_bits"] == 16  # one bit cannot tell four classes apart
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.score(X, y) == search.best_estimator_.score(X, y)
    same_model(search.best_estimator_, model(**search.best_params_).fit(X, y), X)


def test_cross_validation_of_rows_with_several_labels() -> None:
    X, Y = tagged_blobs(90)
    scores = cross_val_score(model(), X, Y, cv=3)
    assert np.all((scores > 0) & (scores <= 1))


# --- names and frames ------------------------------------------------------------------------


def test_a_column_of_bytes_has_a_name() -> None:
    X, y = blobs()
    fitted = model(n_bits=20).fit(X, y)
    assert fitted.get_feature_names_out().tolist() == ["sadih0", "sadih1", "sadih2"]
    assert not hasattr(fitted, "feature_names_in_")


def test_codes_in_a_frame() -> None:
    X, y = blobs()
    rows = pd.DataFrame(X, columns=list("abcde"), index=np.arange(60) * 10)
    fitted = model(n_bits=20).set_output(transform="pandas").fit(rows, y)
    assert fitted.feature_names_in_.tolist() == list("abcde")
    codes = fitted.transform(rows)
    assert isinstance(codes, pd.DataFrame)
    assert codes.columns.tolist() == ["sadih0", "sadih1", "sadih2"]
    assert codes.index.tolist() == rows.index.tolist()
    assert set(codes.dtypes) == {np.dtype(np.uint8)}
    plain = model(n_bits=20).fit(X, y)
    np.testing.assert_array_equal(codes.to_numpy(), plain.transform(X))
    assert fitted.score(rows, y) == plain.score(X, y)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_features_and_labels_from_frames(library: str) -> None:
    made = pytest.importorskip(library, reason="optional; pandas comes with the dev extra")
    X, y = blobs()
    names = np.array(["cat", "dog", "eel"])[y]
    rows = made.DataFrame({name: X[:, k] for k, name in enumerate("abcde")})
    fitted = model().fit(rows, made.Series(names.tolist()))
    assert fitted.feature_names_in_.tolist() == list("abcde")
    plain = model().fit(X, names)
    np.testing.assert_array_equal(fitted.transform(rows), plain.transform(X))
    np.testing.assert_array_equal(fitted.label_codes_, plain.label_codes_)
    assert fitted.partial_fit(rows, made.Series(names.tolist())).statistics_.n_samples == 120


def test_classes_as_a_categorical_and_labels_as_a_frame() -> None:
    X, y = blobs()
    kinds = pd.Series(pd.Categorical.from_codes(y, ["cat", "dog", "eel"]))
    assert model().fit(X, kinds).classes_.tolist() == ["cat", "dog", "eel"]
    X, Y = tagged_blobs()
    same_model(model().fit(X, pd.DataFrame(Y)), model().fit(X, Y), X)


def test_other_names_are_refused() -> None:
    X, y = blobs()
    rows = pd.DataFrame(X, columns=list("abcde"))
    fitted = model().fit(rows, y)
    other = rows.rename(columns={"a": "z"})
    for use in (lambda: fitted.transform(other), lambda: fitted.partial_fit(other, y)):
        with pytest.raises(ValueError, match="feature names should match"):
            use()
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        fitted.transform(X)
