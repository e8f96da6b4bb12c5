"""Eq. (7) and what it is made of, from label groups, against every row."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from sadih_dask.learning.objective import (
    _norms_expanded,
    _norms_formed,
    objective,
    row_norms,
    weights,
)
from sadih_dask.learning.problem import Problem, State
from sadih_dask.learning.statistics import Statistics
from tests.support import dense
from tests.support.groups import Twins, situations, varied


def floor(problem: Problem) -> float:
    """What a row norm is never taken to be below, in D."""
    return 1e-8 * problem.l * float(np.sqrt(problem.n))


@given(situations())
@settings(max_examples=100, deadline=None)
def test_row_norms(situation: tuple[Twins, State]) -> None:
    twins, state = situation
    problem, rows = twins.problem, twins.expand(state)
    V = state.V(problem)
    expected = dense.row_norms(twins.data.S, rows.W.T @ twins.data.Y, rows.B)
    formed = _norms_formed(problem, state, V)[twins.ids]
    # The residual itself has an error of a few roundings of l, the expanded square of l^2 n.
    np.testing.assert_allclose(formed, expected, rtol=1e-12, atol=1e-6 * floor(problem))
    expanded = _norms_expanded(problem, state, V)[twins.ids]
    largest = max(float(problem.energy.max()), float(expected.max()) ** 2)
    np.testing.assert_allclose(expanded**2, expected**2, rtol=1e-12, atol=1e-14 * largest)
    np.testing.assert_array_equal(row_norms(problem, state)[twins.ids], formed)


@given(situations())
@settings(max_examples=50, deadline=None)
def test_weights(situation: tuple[Twins, State]) -> None:
    twins, state = situation
    rows = twins.expand(state)
    expected = dense.weights(twins.data.S, rows.W.T @ twins.data.Y, rows.B)
    np.testing.assert_allclose(weights(twins.problem, state)[twins.ids], expected, rtol=1e-6)


@given(situations())
@settings(max_examples=100, deadline=None)
def test_every_term(situation: tuple[Twins, State]) -> None:
    twins, state = situation
    problem = twins.problem
    found = objective(problem, state)
    expected = dense.objective(twins.data, twins.expand(state))
    # A term is a difference of large numbers: rounding is relative to those, not to the term.
    V = state.W.T @ twins.data.Y
    P2V, P1X = state.P2 @ V, state.P1 @ twins.data.X
    squares = {
        "similarity": float(problem.N @ np.sqrt(problem.energy)) + expected["similarity"],
        "reconstruction": np.sum(twins.data.X**2) + np.sum(P2V**2),
        "encoding": np.sum(V**2) + np.sum(P1X**2),
        "regularisation": expected["regularisation"],
    }
    weight = {"reconstruction": twins.data.alpha, "encoding": twins.data.beta}
    for name, size in squares.items():
        slack = 1e-11 * weight.get(name, 1.0) * size
        assert abs(getattr(found, name) - expected[name]) <= slack, name
    assert found.total == pytest.approx(expected["total"], rel=1e-10)


@given(situations())
@settings(max_examples=30, deadline=None)
def test_the_distinct_columns_of_q(situation: tuple[Twins, State]) -> None:
    problem, ids, data = situation[0].problem, situation[0].ids, situation[0].data
    Q = problem.l * problem.S.apply(problem.Gt.T.toarray() * problem.N)
    expected = dense.label_similarity(data.Y, data.S, data.ell)
    np.testing.assert_allclose(Q[:, ids], expected, rtol=1e-12, atol=1e-10)


def test_terms_without_weight() -> None:
    twins, state = varied(2, alpha=0.0, beta=0.0, gamma=0.0)
    found = objective(twins.problem, state)
    assert (found.reconstruction, found.encoding, found.regularisation) == (0, 0, 0)
    assert found.total == found.similarity > 0


# --- codes that fit S ------------------------------------------------------------------------


def fitting(excess: float, n_classes: int = 4, per_class: int = 25) -> tuple[Problem, State]:
    """Single-label codes of Hadamard rows, V^T B = (1 + excess) l (2 I - 1 1^T) exactly."""
    labels = np.repeat(np.arange(n_classes), per_class)
    statistics = Statistics.of_block(np.arange(2.0 * len(labels)).reshape(-1, 2), labels)
    problem = Problem.from_statistics(statistics, n_classes)
    H = np.array([[1.0]])
    while len(H) < n_classes:
        H = np.block([[H, H], [H, -H]])
    S = 2 * np.eye(n_classes) - 1
    V = (1 + excess) * H @ S  # H^T H = l I
    return problem, State.of(problem, H, V.T, np.eye(n_classes, 2), np.zeros((2, n_classes)))


@pytest.mark.parametrize("excess", [1e-2, 1e-6, 1e-10])
def test_norms_keep_their_digits_where_codes_fit(excess: float) -> None:
    problem, state = fitting(excess)
    exact = excess * problem.l * np.sqrt(problem.n)
    np.testing.assert_allclose(row_norms(problem, state), exact, rtol=1e-14 / excess)
    # The expanded square cannot see what is below 1e-8 of l sqrt(n): that is why there is a floor.
    expanded = _norms_expanded(problem, state, state.V(problem))
    np.testing.assert_allclose(expanded, exact, rtol=1e-14 / excess**2, atol=3 * floor(problem))


def test_a_residual_of_zero_weighs_as_much_as_the_floor_allows() -> None:
    problem, state = fitting(0.0)
    assert np.all(row_norms(problem, state) <= 1e-6 * floor(problem))
    np.testing.assert_allclose(weights(problem, state), 0.5 / floor(problem))
    assert objective(problem, state).similarity <= 1e-6 * floor(problem) * problem.n


def test_many_groups_take_the_expanded_way() -> None:
    rng = np.random.default_rng(0)
    labels = np.concatenate([np.arange(300), rng.integers(300, size=100)])
    statistics = Statistics.of_block(rng.standard_normal((400, 3)), labels)
    problem = Problem.from_statistics(statistics, 8)
    assert not problem.few_groups
    assert replace(problem, l=150).few_groups
    W = rng.standard_normal((300, 8))
    B = np.where(rng.random((8, 300)) < 0.5, -1.0, 1.0)
    state = State.of(problem, B, W, np.eye(8, 3), np.zeros((3, 8)))
    formed = _norms_formed(problem, state, state.V(problem))
    np.testing.assert_allclose(row_norms(problem, state), formed, rtol=1e-12)
