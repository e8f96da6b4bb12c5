"""Ridge regression to the label groups, against the same on every row."""

from typing import Any

import numpy as np
import pytest

from sadih_dask.learning.labels import group_rows
from sadih_dask.learning.problem import GroupRegression, Problem
from sadih_dask.learning.statistics import Statistics
from tests.support import dense
from tests.support.datasets import blobs, tagged_blobs


def both(
    make: Any = blobs, lam: float = 0.01, n: int = 60, **options: Any
) -> tuple[GroupRegression, Any, Any]:
    """The regression from statistics; standardised rows (n, d) and group indicators (n, g)."""
    features, labels = make(n, **options)
    problem = Problem.from_statistics(Statistics.of_block(features, labels), 8, ridge=lam)
    ids = group_rows(labels)[1]
    return problem.regression, dense.standardise(features.T).T, np.eye(ids.max() + 1)[ids]


def hat(X: Any, lam: float) -> Any:
    """The hat matrix: predictions are H times targets about their mean."""
    return X @ np.linalg.solve(X.T @ X + lam * len(X) * np.eye(X.shape[1]), X.T)


@pytest.mark.parametrize("make", [blobs, tagged_blobs])
@pytest.mark.parametrize("lam", [1e-5, 0.01, 1.0])
def test_everything_against_rows(make: Any, lam: float) -> None:
    found, X, T = both(make, lam)
    H = hat(X, lam)
    fitted = H @ (T - T.mean(axis=0))  # f(x) of every row
    np.testing.assert_allclose(X @ found.A, fitted, atol=1e-10)
    np.testing.assert_allclose(found.fitted, T.T @ fitted, atol=1e-9)
    np.testing.assert_allclose(found.scatter, fitted.T @ fitted, atol=1e-9)
    np.testing.assert_allclose(found.share, T.mean(axis=0))
    h = np.trace(H) / len(X)
    assert found.leverage == pytest.approx(h, rel=1e-9)
    # What is said of rows left out: leave-one-out with the mean leverage for each row's own.
    left_out = (fitted - h * (T - T.mean(axis=0))) / (1 - h)
    means = T.T @ left_out / T.sum(axis=0)[:, None]
    np.testing.assert_allclose(found.means, means, atol=1e-9)
    np.testing.assert_allclose(found.predictability, T.T @ left_out / len(X), atol=1e-9)
    within = fitted - (T @ (T.T @ fitted / T.sum(axis=0)[:, None]))
    covariance = within.T @ within / len(X) / (1 - h) ** 2
    np.testing.assert_allclose(found.spread @ found.spread.T, covariance, atol=1e-9)
    np.testing.assert_allclose(found.spread, found.spread.T, atol=1e-12)


def test_scores_of_any_codes_are_sums_of_group_scores() -> None:
    found, X, T = both()
    B = np.random.default_rng(0).choice([-1.0, 1.0], size=(5, T.shape[1]))
    P, intercept = dense.ridge(X.T, B @ T.T, 0.01)
    np.testing.assert_allclose(X @ found.A @ B.T, X @ P.T, atol=1e-10)
    np.testing.assert_allclose(B @ found.share, intercept, atol=1e-12)


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
    counts = T.sum(axis=0)[:, None]
    for corrected, plain, expected in [
        (found.means, found.fitted / counts, T.T @ truth / counts),
        (found.predictability, found.fitted / 40, T.T @ truth / 40),
    ]:
        assert np.abs(corrected - expected).mean() < 0.4 * np.abs(plain - expected).mean()


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
    found, _, T = both(lam=1e-9, n=12, d=30)
    assert 0 < found.leverage <= 0.9
    for values in (found.means, found.predictability, found.spread):
        assert values.shape == (T.shape[1], T.shape[1])
        assert np.isfinite(values).all()


def test_features_without_information() -> None:
    statistics = Statistics.of_block(np.ones((12, 3)), np.arange(12) % 3)
    found = Problem.from_statistics(statistics, 8).regression
    assert found.leverage == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(found.predictability, 0.0, atol=1e-9)


def test_simulated_rows_have_the_means_and_the_spread() -> None:
    found, _, T = both(tagged_blobs)
    g = T.shape[1]
    scores, group = found.simulate(4000 * g, np.random.default_rng(0))
    assert np.bincount(group).tolist() == [4000] * g
    for k in range(g):
        mine = scores[group == k]
        size = np.sqrt(np.diagonal(found.spread @ found.spread.T) / 4000)
        assert np.all(np.abs(mine.mean(axis=0) - found.means[k]) <= 5 * size + 1e-12)
    centred = scores - found.means[group]
    np.testing.assert_allclose(
        centred.T @ centred / len(centred), found.spread @ found.spread.T, atol=2e-3
    )


def test_few_simulated_rows_are_one_a_group() -> None:
    found, _, _ = both(tagged_blobs)
    scores, group = found.simulate(1, np.random.default_rng(0))
    assert group.tolist() == list(range(len(scores)))
