"""The dense reference, checked against definitions alone: the library is not imported here."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings

from tests.support.dense import (
    Array,
    Data,
    Kind,
    Loss,
    Solver,
    State,
    b_l1,
    b_l21,
    dcc,
    dense_data,
    iterate,
    label_matrix,
    label_similarity,
    objective,
    p1_exact,
    p1_paper,
    p2_exact,
    p2_paper,
    polar,
    random_start,
    ridge,
    row_norms,
    sgn,
    similarity,
    standardise,
    w_exact,
    w_paper,
    weights,
)
from tests.support.problems import Grouping, Problem, problems, random_problem

GROUPINGS: tuple[Grouping, ...] = ("free", "few-rows", "own")


def varied(seed: int, **fixed: int | float) -> tuple[Data, State]:
    """A multi-label problem whose structure changes with the seed, and a start for it."""
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng,
        grouping=GROUPINGS[seed % 3],
        correlated=seed % 2 == 0,
        empty_class=seed % 3 == 0,
        duplicate_class=seed % 5 == 0,
        unbalanced=seed % 4 == 1,
        **fixed,  # type: ignore[arg-type]
    )
    data = dense_data(problem)
    return data, random_start(data, rng)


def gradient(f: Callable[[Array], float], at: Array, step: float = 1e-3) -> Array:
    """Central differences: exact for the quadratics below, up to rounding."""
    slope = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        h = np.zeros_like(at)
        h[index] = step
        slope[index] = (f(at + h) - f(at - h)) / (2 * step)
    return slope


def reweighted(data: Data, state: State, W: Array, D: Array) -> float:
    """Eq. (15), one row at a time."""
    V = W.T @ data.Y
    U = data.ell * data.S - V.T @ state.B
    loss = sum(float(d * u @ u) for d, u in zip(D, U, strict=True))
    loss += data.alpha * float(np.sum((data.X - state.P2 @ V) ** 2))
    loss += data.beta * float(np.sum((V - state.P1 @ data.X) ** 2))
    return loss + data.gamma * float(np.sum(V**2))


def rises(data: Data, start: State, loss: Loss, solver: Solver) -> bool:
    """Whether any step raises Eq. (7) by more than rounding and the floor under the norms allow.

    With the floor eps, the steps lower a smoothed norm that lies within eps / 2 of the norm.
    """
    n = data.X.shape[1]
    slack = n * (1e-8 * data.ell * np.sqrt(n)) / 2
    last = objective(data, start)["total"]
    for _, _, _, terms in iterate(start, data, loss, solver, n_iter=6, sweeps=10):
        if terms["total"] > last * (1 + 1e-10) + slack:
            return True
        last = terms["total"]
    return False


# --- similarity, sign, weights, objective: small cases by hand --------------------------------


def test_similarity_by_hand() -> None:
    Y = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    r = np.sqrt(2) - 1
    assert similarity(Y, "shared-label").tolist() == [[1, 1, -1], [1, 1, 1], [-1, 1, 1]]
    np.testing.assert_allclose(similarity(Y, "cosine"), [[1, r, -1], [r, 1, r], [-1, r, 1]])
    Q = label_similarity(Y, similarity(Y, "shared-label"), 4)
    assert Q.tolist() == [[8, 8, 0], [0, 8, 8]]


def test_label_matrix_keeps_a_skipped_class() -> None:
    assert label_matrix(np.array([0, 2, 2])).tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 1]]
    assert label_matrix(np.array([[1, 0], [1, 1]])).tolist() == [[1, 1], [0, 1]]


def test_sgn_keeps_the_previous_bit_at_a_tie_only() -> None:
    value = np.array([2.0, -2.0, 0.0, 0.0, 1e-10, -1e-8])
    previous = np.array([-1.0, 1.0, 1.0, -1.0, -1.0, 1.0])
    scale = np.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    assert sgn(value, previous, scale).tolist() == [1, -1, 1, -1, -1, -1]


def test_row_norms_and_weights_by_hand() -> None:
    S = np.array([[1.0, -1.0], [-1.0, 1.0]])
    B = np.array([[1.0, -1.0], [1.0, -1.0]])
    V = np.array([[1.0, 0.0], [1.0, 0.0]])  # 2 S - V^T B = [[0, 0], [-2, 2]]
    np.testing.assert_allclose(row_norms(S, V, B), [0, np.sqrt(8)])
    np.testing.assert_allclose(weights(S, V, B), [1 / (4e-8 * np.sqrt(2)), 1 / (2 * np.sqrt(8))])


@pytest.mark.parametrize("seed", range(5))
def test_objective_is_eq_7_written_in_loops(seed: int) -> None:
    data, state = varied(seed)
    V = state.W.T @ data.Y
    n = data.X.shape[1]
    similar = reconstruct = encode = 0.0
    for i in range(n):
        u = [data.ell * data.S[i, j] - V[:, i] @ state.B[:, j] for j in range(n)]
        similar += float(np.sqrt(sum(x**2 for x in u)))
        reconstruct += data.alpha * sum((data.X[:, i] - state.P2 @ V[:, i]) ** 2)
        encode += data.beta * sum((V[:, i] - state.P1 @ data.X[:, i]) ** 2)
    regular = data.gamma * (sum(state.P2.ravel() ** 2) + sum(V.ravel() ** 2))
    terms = objective(data, state)
    assert terms["similarity"] == pytest.approx(similar)
    assert terms["reconstruction"] == pytest.approx(reconstruct)
    assert terms["encoding"] == pytest.approx(encode)
    assert terms["regularisation"] == pytest.approx(regular)
    assert terms["total"] == pytest.approx(similar + reconstruct + encode + regular)


# --- B ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(15))
def test_dcc_ends_in_a_coordinatewise_minimum(seed: int) -> None:
    data, state = varied(seed, n_bits=2 + seed % 5)
    D = weights(data.S, state.W.T @ data.Y, state.B)

    def loss(B: Array) -> Array:
        """Eq. (9), the part of each sample: column i of the residual, weighted by row."""
        U = data.ell * data.S - (state.W.T @ data.Y).T @ B
        columns: Array = (D[:, None] * U**2).sum(axis=0)
        return columns

    previous = loss(state.B)
    for sweeps in range(1, 6):
        B = b_l21(data.S, data.Y, state.W, state.B, D, "exact", sweeps)
        assert np.all(loss(B) <= previous * (1 + 1e-9))
        previous = loss(B)

    B = b_l21(data.S, data.Y, state.W, state.B, D, "exact", 100)
    found = loss(B)
    for k in range(data.ell):
        flipped = B.copy()
        flipped[k] *= -1
        assert np.all(found <= loss(flipped) * (1 + 1e-9))
    every = [
        np.array(bits)[:, None] * np.ones(B.shape[1])
        for bits in product([-1.0, 1.0], repeat=data.ell)
    ]
    best = np.min([loss(candidate) for candidate in every], axis=0)
    assert np.all(best <= found * (1 + 1e-9))


def test_dcc_by_hand() -> None:
    H = np.array([[2.0, 1.0], [1.0, 2.0]])
    M = np.array([[0.5, 3.0], [-0.5, -2.0]])
    # Column 0: b_0 = sgn(0.5 - 1) = -1, then b_1 = sgn(-0.5 + 1) = 1, and both stay.
    # Column 1: b_0 = sgn(3 - 1) = 1, then b_1 = sgn(-2 - 1) = -1, and both stay.
    scale = np.ones((2, 2))
    assert dcc(np.ones((2, 2)), H, M, scale, max_sweeps=5).tolist() == [[-1, 1], [1, -1]]
    # Where the terms are so large that the sums are rounding, every bit stays.
    for B in (np.ones((2, 2)), -np.ones((2, 2))):
        assert np.array_equal(dcc(B, H, M, 1e10 * scale, max_sweeps=5), B)


@pytest.mark.parametrize("solver", ["exact", "paper"])
def test_sums_that_cancel_leave_the_bits_alone(solver: Solver) -> None:
    # Two classes of ten: row 0 of V D S and both off-diagonals of H are sums of equal numbers with
    # opposite signs. Each row of the collection adds them up in its own order, and what is left
    # of them differs between rows of one class.
    Y = np.repeat(np.eye(2), 10, axis=1)
    S = similarity(Y, "shared-label")
    W = np.array([[0.3, 0.7], [0.3, -0.7]])
    B = np.array([np.ones(20), np.repeat([1.0, -1.0], 10)])
    D = weights(S, W.T @ Y, B)
    np.testing.assert_array_equal(b_l21(S, Y, W, B, D, solver, sweeps=10), B)
    np.testing.assert_array_equal(b_l1(S, Y, W, B), B)


def test_sgn_of_wq_is_the_l1_step_but_not_a_minimiser_of_eq_8() -> None:
    beaten = 0
    for seed in range(20):
        data, state = varied(seed, n_bits=3)
        B = b_l1(data.S, data.Y, state.W, state.B)
        V = state.W.T @ data.Y
        np.testing.assert_array_equal(B, np.sign(data.ell * V @ data.S))

        def loss(B: Array, data: Data = data, V: Array = V) -> Array:
            columns: Array = np.abs(data.ell * data.S - V.T @ B).sum(axis=0)
            return columns

        every = [np.array(b)[:, None] * np.ones(B.shape[1]) for b in product([-1.0, 1.0], repeat=3)]
        best = np.min([loss(candidate) for candidate in every], axis=0)
        beaten += bool(np.any(best < loss(B) * (1 - 1e-9)))
    assert beaten > 0


# --- W ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_w_exact_is_a_minimiser_and_the_printed_one_is_not(seed: int) -> None:
    data, state = varied(seed, n_bits=2 + seed % 6)
    D = weights(data.S, state.W.T @ data.Y, state.B)
    W = w_exact(data, state.B, state.P1, state.P2, D)
    slope = gradient(lambda W: reweighted(data, state, W, D), W)
    start_slope = gradient(lambda W: reweighted(data, state, W, D), state.W)
    assert np.abs(slope).max() <= 1e-7 * np.abs(start_slope).max()

    printed = w_paper(data, state.B, state.P1, state.P2, D)
    excess = reweighted(data, state, printed, D) / reweighted(data, state, W, D) - 1
    assert excess > (1e-9 if np.ptp(D) > 1e-6 * D.max() else -1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_w_exact_has_minimum_norm(seed: int) -> None:
    data, state = varied(seed)
    D = weights(data.S, state.W.T @ data.Y, state.B)
    W = w_exact(data, state.B, state.P1, state.P2, D)
    # What Y does not see is absent from W: V = W^T Y is unique, this part would not be.
    unseen = np.eye(len(data.Y)) - data.Y @ np.linalg.pinv(data.Y)
    assert np.abs(unseen @ W).max() <= 1e-8 * np.abs(W).max()


def test_w_paper_is_exact_where_all_samples_weigh_the_same() -> None:
    # With D = t I, Y D Y^T W B B^T = Y Y^T W B D B^T: nothing separates the two equations.
    data, state = varied(1)
    D = np.full(data.X.shape[1], 0.3)
    exact = w_exact(data, state.B, state.P1, state.P2, D)
    printed = w_paper(data, state.B, state.P1, state.P2, D)
    np.testing.assert_allclose(printed.T @ data.Y, exact.T @ data.Y, atol=1e-8)


# --- P1, P2 ----------------------------------------------------------------------------------


def assert_orthogonal(P1: Array) -> None:
    small = P1 @ P1.T if P1.shape[0] < P1.shape[1] else P1.T @ P1
    np.testing.assert_allclose(small, np.eye(len(small)), atol=1e-10)


@pytest.mark.parametrize("seed", range(30))
def test_p1_descent_never_raises_the_encoding_error(seed: int) -> None:
    data, state = varied(seed)
    V = state.W.T @ data.Y
    largest = float(np.linalg.eigvalsh(data.X @ data.X.T)[-1])
    for lam in (largest, 3 * largest):
        P1 = state.P1
        error = np.linalg.norm(V - P1 @ data.X)
        for _ in range(5):
            P1 = p1_exact(data.X, V, P1, lam)
            assert_orthogonal(P1)
            assert np.linalg.norm(V - P1 @ data.X) <= error * (1 + 1e-12)
            error = np.linalg.norm(V - P1 @ data.X)


@pytest.mark.parametrize("seed", range(10))
def test_p1_with_more_bits_than_dimensions_is_a_minimiser(seed: int) -> None:
    data, state = varied(seed, n_bits=12, d=4)
    V = state.W.T @ data.Y
    P1 = p1_exact(data.X, V, state.P1, lam=0.0)
    rng = np.random.default_rng(seed)
    for size in (1e-3, 1e-1, 10.0):
        for _ in range(20):
            other = polar(P1 + size * rng.standard_normal(P1.shape))
            assert np.linalg.norm(V - P1 @ data.X) <= np.linalg.norm(V - other @ data.X) + 1e-10


def test_p1_of_lemma_1() -> None:
    beaten = 0
    for seed in range(20):
        data, state = varied(seed, n_bits=3, d=8)
        V = state.W.T @ data.Y
        P1 = p1_paper(data.X, V)
        values = np.linalg.svd(P1, compute_uv=False)
        rank = np.linalg.matrix_rank(data.X @ V.T, tol=1e-8)
        np.testing.assert_allclose(values, [1.0] * rank + [0.0] * (3 - rank), atol=1e-10)
        if rank == 3:
            lam = float(np.linalg.eigvalsh(data.X @ data.X.T)[-1])
            better = p1_exact(data.X, V, P1, lam)
            gain = np.linalg.norm(V - P1 @ data.X) - np.linalg.norm(V - better @ data.X)
            beaten += bool(gain > 1e-6)
    assert beaten > 0
    np.testing.assert_array_equal(p1_paper(np.ones((3, 4)), np.zeros((2, 4))), np.zeros((2, 3)))


@pytest.mark.parametrize("seed", range(10))
def test_p2_exact_is_a_minimiser_and_the_printed_one_is_not(seed: int) -> None:
    data, state = varied(seed)
    V = state.W.T @ data.Y

    def loss(P2: Array) -> float:
        fit = data.alpha * np.sum((data.X - P2 @ V) ** 2)
        return float(fit + data.gamma * np.sum(P2**2))

    P2 = p2_exact(data.X, V, data.alpha, data.gamma)
    scale = np.abs(gradient(loss, state.P2)).max()
    assert np.abs(gradient(loss, P2)).max() <= 1e-8 * scale
    inverse = np.linalg.inv(data.alpha * V @ V.T + data.gamma * np.eye(data.ell))
    np.testing.assert_allclose(P2, data.alpha * data.X @ V.T @ inverse, atol=1e-8)
    assert loss(p2_paper(data.X, V, data.alpha, data.gamma)) > loss(P2)


def test_p2_exact_without_regularisation_has_minimum_norm() -> None:
    data, state = varied(2, n_bits=12, c=4)  # V has rank 4 at most
    V = state.W.T @ data.Y
    expected = data.X @ np.linalg.pinv(V, rcond=1e-10)
    np.testing.assert_allclose(p2_exact(data.X, V, 2.0, 0.0), expected, atol=1e-8)
    np.testing.assert_array_equal(p2_exact(data.X, V, 0.0, 0.0), np.zeros((len(data.X), 12)))


# --- features and hash function --------------------------------------------------------------


def test_standardise() -> None:
    X = np.random.default_rng(0).normal(3, 5, size=(4, 30))
    X[2] = 0.1
    Z = standardise(X)
    np.testing.assert_allclose(Z.mean(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose((Z**2).mean(axis=1), [1, 1, 0, 1], atol=1e-12)


def test_ridge_is_the_minimiser_with_a_free_intercept() -> None:
    data, state = varied(3)
    P, intercept = ridge(data.X, state.B, lam=0.2)
    n = data.X.shape[1]
    centred = data.X - data.X.mean(axis=1, keepdims=True)

    def loss(joined: Array) -> float:
        error = state.B - joined[:, :-1] @ centred - joined[:, -1:]
        return float(np.sum(error**2) + 0.2 * n * np.sum(joined[:, :-1] ** 2))

    slope = gradient(loss, np.column_stack([P, intercept]))
    np.testing.assert_allclose(slope, 0, atol=1e-6)


# --- the alternation -------------------------------------------------------------------------


def test_exact_l21_never_rises_and_the_printed_updates_do() -> None:
    # Theorem 1 needs minimisers at every step.
    sixty = [varied(seed) for seed in range(60)]
    assert sum(rises(*problem, "l21", "exact") for problem in sixty) == 0
    assert sum(rises(*problem, "l21", "paper") for problem in sixty) > 0
    assert sum(rises(*problem, "l1", "paper") for problem in sixty) > 0
    assert sum(rises(*problem, "l1", "exact") for problem in sixty) == 0


@pytest.mark.parametrize("kind", ["shared-label", "cosine"])
@pytest.mark.parametrize("solver", ["exact", "paper"])
@pytest.mark.parametrize("loss", ["l21", "l1"])
def test_codes_stay_equal_within_label_groups(kind: Kind, solver: Solver, loss: Loss) -> None:
    for seed in range(0, 60, 4):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, correlated=seed % 8 == 0, unbalanced=seed % 12 == 0)
        data = dense_data(problem, kind)
        groups = np.unique(data.Y, axis=1, return_inverse=True)[1].ravel()
        for _, step, state, _ in iterate(random_start(data, rng), data, loss, solver, 4, 10):
            if step == "B":
                for group in np.unique(groups):
                    codes = state.B[:, groups == group]
                    assert np.all(codes == codes[:, :1])


def test_iterate_yields_the_steps_in_the_papers_order() -> None:
    data, start = varied(0)
    trace = list(iterate(start, data, "l21", "exact", n_iter=2, sweeps=3))
    assert [(i, step) for i, step, _, _ in trace] == list(product([0, 1], ["B", "W", "P1", "P2"]))
    for _, _, state, terms in trace:
        assert terms == objective(data, state)
        assert_orthogonal(state.P1)


# --- the problems themselves -----------------------------------------------------------------


@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_every_drawn_problem_is_well_formed_and_solvable(problem: Problem) -> None:
    n, d = problem.features.shape
    Y = label_matrix(problem.labels)
    assert 6 <= n <= 40
    assert 2 <= d <= 12
    assert 1 <= len(Y) <= 6
    assert 2 <= problem.n_bits <= 16
    assert Y.shape[1] == n
    assert np.all(Y.sum(axis=0) >= 1)
    data = dense_data(problem)
    start = random_start(data, np.random.default_rng(0))
    assert not rises(data, start, "l21", "exact")


def test_the_options_do_what_they_say() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        own = random_problem(rng, grouping="own").labels
        assert len(np.unique(own, axis=0)) == len(own)
        few = random_problem(rng, grouping="few-rows", c=6).labels
        assert np.unique(few, axis=0, return_counts=True)[1].max() <= 3
        assert np.any(random_problem(rng, empty_class=True).labels.sum(axis=0) == 0)
        twins = random_problem(rng, duplicate_class=True).labels
        assert len(np.unique(twins, axis=1).T) < twins.shape[1]
        numbers = random_problem(rng, labels="int", empty_class=True).labels
        assert len(np.unique(numbers)) < numbers.max() + 1
    with pytest.raises(ValueError, match="cannot all differ"):
        random_problem(rng, n=10, c=3, grouping="own")
