"""Quantities of a problem that never change while it is solved."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg as la

from sadih_dask.learning.problem import Problem
from sadih_dask.learning.statistics import Statistics
from sadih_dask.types import Floats
from tests.support.groups import varied


def of_features(features: Floats, n_bits: int = 4, **options: float) -> Problem:
    statistics = Statistics.of_block(features, np.arange(len(features)) % 3)
    return Problem.from_statistics(statistics, n_bits, **options)


@pytest.mark.parametrize("seed", range(12))
def test_matrices_equal_those_of_the_rows(seed: int) -> None:
    twins, _ = varied(seed)
    problem, X, Y, S = twins.problem, twins.data.X, twins.data.Y, twins.data.S
    np.testing.assert_allclose(problem.XXt, X @ X.T, atol=1e-10)
    np.testing.assert_allclose(problem.XYt, X @ Y.T, atol=1e-10)
    np.testing.assert_allclose(problem.label_gram(problem.N), Y @ Y.T)
    np.testing.assert_allclose(problem.label_counts, Y.sum(axis=1))
    np.testing.assert_allclose(problem.dense_S[np.ix_(twins.ids, twins.ids)], S, atol=1e-14)
    rows = problem.l**2 * (S**2).sum(axis=1)
    np.testing.assert_allclose(problem.energy[twins.ids], rows, rtol=1e-12)
    assert problem.n == X.shape[1]


@pytest.mark.parametrize("seed", range(20))
def test_label_basis_spans_the_labels_that_occur(seed: int) -> None:
    twins, _ = varied(seed)
    problem, Y = twins.problem, twins.data.Y
    Z, YYt = problem.label_basis, Y @ Y.T
    assert Z.shape == (len(Y), np.linalg.matrix_rank(YYt))
    np.testing.assert_allclose(Z.T @ YYt @ Z, np.eye(Z.shape[1]), atol=1e-9)
    C = Y @ np.random.default_rng(seed).standard_normal((Y.shape[1], 2))
    np.testing.assert_allclose(YYt @ problem.solve_label_gram(C), C, atol=1e-9)


def test_a_rare_label_is_not_a_missing_one() -> None:
    # One row of a label beside ten million of another: (c, c) entries 1 and 1e7.
    labels = np.array([[1, 0, 0], [0, 1, 1], [1, 1, 1], [1, 0, 0]])
    statistics = Statistics.of_block(np.random.default_rng(0).standard_normal((4, 2)), labels)
    counts = statistics.counts.astype(float)
    counts[0] = 1e7
    problem = replace(Problem.from_statistics(statistics, 2), N=counts)
    assert problem.label_basis.shape[1] == 2  # labels 1 and 2 always occur together


# --- features --------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [2, 64, 65, 130])
@pytest.mark.parametrize("rank", [1, 10, 200])
def test_lambda_max_is_a_tight_upper_bound(d: int, rank: int) -> None:
    rng = np.random.default_rng(d)
    features = rng.standard_normal((300, rank)) @ rng.standard_normal((rank, d))
    problem = of_features(features)
    largest = np.linalg.eigvalsh(problem.XXt)[-1]
    assert (1 - 1e-12) * largest <= problem.lambda_max <= 1.002 * largest


def test_lambda_max_where_the_top_direction_sums_to_zero() -> None:
    # Features in pairs: what most sets them apart has equal and opposite weights in each pair, and
    # is invisible to a power iteration that starts from ones.
    rng = np.random.default_rng(0)
    half = 128

    def spectrum(top: float) -> Floats:
        Q = np.linalg.qr(rng.standard_normal((half, half))).Q
        return np.asarray((Q * np.r_[top, 0.9 * rng.random(half - 1)]) @ Q.T)

    same, opposite = spectrum(1.0), spectrum(2.0)
    XXt = np.block([[same + opposite, same - opposite], [same - opposite, same + opposite]]) / 2
    problem = replace(of_features(rng.standard_normal((9, 2))), XXt=XXt)
    assert problem.lambda_max >= np.linalg.eigvalsh(XXt)[-1]


def test_lambda_max_of_constant_features() -> None:
    for d in (3, 100):
        assert of_features(np.full((9, d), 0.5)).lambda_max == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("shift", [0.0, 1e-30, 2.0])
@pytest.mark.parametrize("rank", [0, 1, 5])
def test_a_singular_gram_matrix_has_a_factor(shift: float, rank: int) -> None:
    rng = np.random.default_rng(rank)
    features = rng.standard_normal((40, rank)) @ rng.standard_normal((rank, 60)) + 1.0
    problem = of_features(features)
    factor = problem.factor_gram(0.5, shift)
    x = la.cho_solve(factor, np.ones(60))
    assert np.all(np.isfinite(x))
    if shift == 2.0:
        expected = np.linalg.solve(0.5 * problem.XXt + 2.0 * np.eye(60), np.ones(60))
        np.testing.assert_allclose(x, expected, rtol=1e-9)


@pytest.mark.parametrize(("d", "n_bits"), [(8, 3), (5, 5), (3, 7)])
def test_quiet_directions_have_little_variance(d: int, n_bits: int) -> None:
    rng = np.random.default_rng(0)
    loud = rng.standard_normal((200, 2)) @ rng.standard_normal((2, d))
    problem = of_features(loud + 0.1 * rng.standard_normal((200, d)), n_bits)
    quiet = problem.quiet_directions
    assert quiet.shape == (min(n_bits, d), d)
    np.testing.assert_allclose(quiet @ quiet.T, np.eye(len(quiet)), atol=1e-10)
    if n_bits < d - 2:
        assert np.trace(quiet @ problem.XXt @ quiet.T) < 0.1 * np.trace(problem.XXt) * n_bits / d
