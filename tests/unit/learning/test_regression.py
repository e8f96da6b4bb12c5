"""Ridge regression to the label groups, against the same on every row."""

from typing import Any

import numpy as np
import pytest

from sadih_dask.learning.labels import group_rows
from sadih_dask.learning.problem import Problem
from sadih_dask.learning.statistics import Statistics
from tests.support import dense
from tests.support.datasets import blobs, tagged_blobs


def both(
    make: Any = blobs, lam: float = 0.01, n: int = 60, **options: Any
) -> tuple[Problem, Any, Any]:
    """The problem from statistics; standardised rows (n, d) and group indicators (n, g)."""
    features, labels = make(n, **options)
    problem = Problem.from_statistics(Statistics.of_block(features, labels), 8, ridge=lam)
    ids = group_rows(labels)[1]
    return problem, dense.standardise(features.T).T, np.eye(ids.max() + 1)[ids]


def hat(X: Any, lam: float) -> Any:
    """The hat matrix: predictions are H times targets about their mean."""
    return X @ np.linalg.solve(X.T @ X + lam * len(X) * np.eye(X.shape[1]), X.T)


@pytest.mark.parametrize("make", [blobs, tagged_blobs])
@pytest.mark.parametrize("lam", [1e-5, 0.01, 1.0])
def test_everything_against_rows(make: Any, lam: float) -> None:
    problem, X, T = both(make, lam)
    found = problem.regression
    H = hat(X, lam)
    fitted = H @ (T - T.mean(axis=0))  # f(x) of every row
    np.testing.assert_allclose(X @ problem.group_coefficients, fitted, atol=1e-10)
    np.testing.assert_allclose(found.fitted, T.T @ fitted, atol=1e-9)
    h = np.trace(H) / len(X)
    assert found.leverage == pytest.approx(h, rel=1e-9)
    # What is said of rows left out: leave-one-out with the mean leverage for each row's own.
    left_out = (fitted - h * (T - T.mean(axis=0))) / (1 - h)
    np.testing.assert_allclose(found.predictability, T.T @ left_out / len(X), atol=1e-9)


def test_scores_of_any_codes_are_sums_of_group_scores() -> None:
    problem, X, T = both()
    B = np.random.default_rng(0).choice([-1.0, 1.0], size=(5, T.shape[1]))
    P, intercept = dense.ridge(X.T, B @ T.T, 0.01)
    np.testing.assert_allclose(X @ problem.group_coefficients @ B.T, X @ P.T, atol=1e-10)
    np.testing.assert_allclose(B @ problem.N / problem.n, intercept, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_correction_comes_closer_to_true_leave_one_out(seed: int) -> None:
    """Few rows, many features: without correction the regression looks better than it is."""
    features, labels = blobs(40, 12, seed=seed)
    features += np.random.default_rng(seed).normal(scale=2.0, size=features.shape)
    statistics = Statistics.of_block(features, labels)
    found = Problem.from_statistics(statistics, 8, ridge=1e-3).regression
    X, T = dense.standardise(features.T).T, np.eye(3)[labels]
    truth = np.empty_like(T)
    for i in range(40):
        others = np.arange(40) != i
        P, mean = dense.ridge(X[others].T, T[others].T, 1e-3)
        truth[i] = P @ (X[i] - X[others].mean(axis=0)) + mean - T.mean(axis=0)
    expected = T.T @ truth / 40
    off, plain = (np.abs(a - expected).mean() for a in (found.predictability, found.fitted / 40))
    assert off < 0.4 * plain


def test_what_can_only_be_memorised_counts_for_nothing() -> None:
    rng = np.random.default_rng(0)
    seen, left_out = [], []
    for _ in range(40):
        features, labels = rng.normal(size=(200, 50)), np.arange(200) % 2
        statistics = Statistics.of_block(features, labels)
        regression = Problem.from_statistics(statistics, 8, ridge=1e-6).regression
        b = np.array([-1.0, 1.0])
        seen.append(b @ regression.fitted @ b / 200)
        left_out.append(b @ regression.predictability @ b)
    assert np.mean(seen) == pytest.approx(0.25, abs=0.02)  # fifty features of two hundred rows
    assert np.mean(left_out) == pytest.approx(0.0, abs=0.02)


def test_more_features_than_rows() -> None:
    problem, _, T = both(lam=1e-9, n=12, d=30)
    found = problem.regression
    assert 0 < found.leverage <= 0.9
    assert found.predictability.shape == (T.shape[1], T.shape[1])
    assert np.isfinite(found.predictability).all()


def test_features_without_information() -> None:
    statistics = Statistics.of_block(np.ones((12, 3)), np.arange(12) % 3)
    found = Problem.from_statistics(statistics, 8).regression
    assert found.leverage == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(found.predictability, 0.0, atol=1e-9)
