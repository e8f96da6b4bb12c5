"""Every update, from label groups and statistics, against every row."""

import numpy as np
import pytest
from hypothesis import given, settings

import sadih_dask.learning.updates as code_updates
from sadih_dask.learning.objective import objective
from sadih_dask.learning.problem import Problem, State
from sadih_dask.learning.statistics import Statistics
from sadih_dask.learning.updates import (
    codes_l1,
    codes_l1_guarded,
    codes_l21,
    codes_l21_printed,
    complete,
    coordinate_descent,
    decoder_exact,
    decoder_printed,
    embedding_exact,
    embedding_from_codes,
    embedding_printed,
    encoder_exact,
    encoder_printed,
    start_encoder,
)
from sadih_dask.types import Floats
from tests.support import dense
from tests.support.groups import KINDS, Twins, situations, varied

SINGULAR = [
    {"empty_class": True},
    {"duplicate_class": True},
    {"empty_class": True, "duplicate_class": True},
    {"c": 3, "n_bits": 12},
    {"d": 4, "n_bits": 9},
    {"d": 6, "n_bits": 6},
    {"constant_feature": True},
]


def rows_of(situation: tuple[Twins, State]) -> tuple[dense.Data, dense.State, Floats]:
    """The dense twin of a situation, with D of every row."""
    twins, state = situation
    rows = twins.expand(state)
    return twins.data, rows, dense.weights(twins.data.S, rows.W.T @ twins.data.Y, rows.B)


def assert_same_v(found: Floats, expected: Floats, data: dense.Data, rtol: float = 1e-8) -> None:
    """Compare W by what it does, V = W^T Y: where Y Y^T is singular, nothing else is determined."""
    V = expected.T @ data.Y
    np.testing.assert_allclose(found.T @ data.Y, V, rtol=0, atol=rtol * np.abs(V).max())


def rounding(data: dense.Data, state: dense.State, D: Floats) -> float:
    """Relative error to expect of V: the system for W has this condition, up to a small factor.

    Codes that fit S drive D to its floor; V is then known less well where B does not see it.
    """
    largest = D.max() * np.linalg.norm(state.B, 2) ** 2
    largest += data.alpha * np.linalg.norm(state.P2, 2) ** 2
    return 1e-10 + 1e-14 * float(largest) / (data.beta + data.gamma)


# --- B ---------------------------------------------------------------------------------------


@given(situations())
@settings(max_examples=100, deadline=None)
def test_codes(situation: tuple[Twins, State]) -> None:
    twins, state = situation
    data, rows, D = rows_of(situation)
    S, Y, W, B, ids = data.S, data.Y, rows.W, rows.B, twins.ids
    np.testing.assert_array_equal(codes_l1(twins.problem, state)[:, ids], dense.b_l1(S, Y, W, B))
    np.testing.assert_array_equal(
        codes_l21(twins.problem, state)[:, ids], dense.b_l21(S, Y, W, B, D, "exact", 10)
    )
    np.testing.assert_array_equal(
        codes_l21_printed(twins.problem, state)[:, ids], dense.b_l21(S, Y, W, B, D, "paper", 10)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_sums_that_cancel_leave_the_bits_alone(kind: dense.Kind) -> None:
    # tests/unit/test_dense.py has the same example for rows.
    statistics = Statistics.of_block(np.arange(40.0).reshape(20, 2), np.repeat([0, 1], 10))
    problem = Problem.from_statistics(statistics, 2, similarity=kind)
    W = np.array([[0.3, 0.7], [0.3, -0.7]])
    B = np.array([[1.0, 1.0], [1.0, -1.0]])
    state = State.of(problem, B, W, np.eye(2), np.zeros((2, 2)))
    for update in (codes_l1, codes_l21, codes_l21_printed):
        np.testing.assert_array_equal(update(problem, state), B)


@pytest.mark.parametrize("columns", [1, 3, 4096])
def test_descent_by_columns(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_updates, "COLUMNS", columns)
    rng = np.random.default_rng(0)
    A = rng.standard_normal((6, 9))
    H, M = A @ A.T, 3 * rng.standard_normal((6, 10))
    B = np.where(rng.random((6, 10)) < 0.5, -1.0, 1.0)
    scale = np.abs(M) + np.abs(H).sum(axis=1, keepdims=True)
    found = coordinate_descent(H, M, B, scale)
    np.testing.assert_array_equal(found, dense.dcc(B, H, M, scale, max_sweeps=10))
    assert not np.array_equal(found, B)


def test_guarded_l1_codes_never_raise_the_objective() -> None:
    refused = 0
    for seed in range(60):
        twins, state = varied(seed)
        problem = twins.problem
        free, guarded = codes_l1(problem, state), codes_l1_guarded(problem, state)
        before = objective(problem, state).total
        rises = objective(problem, state.with_B(problem, free)).total > before
        np.testing.assert_array_equal(guarded, state.B if rises else free)
        refused += rises
    assert 0 < refused < 60


# --- W ---------------------------------------------------------------------------------------


@given(situations())
@settings(max_examples=100, deadline=None)
def test_embeddings(situation: tuple[Twins, State]) -> None:
    twins, state = situation
    data, rows, D = rows_of(situation)
    rtol = rounding(data, rows, D)
    exact = dense.w_exact(data, rows.B, rows.P1, rows.P2, D)
    assert_same_v(embedding_exact(twins.problem, state), exact, data, rtol)
    printed = dense.w_paper(data, rows.B, rows.P1, rows.P2, D)
    assert_same_v(embedding_printed(twins.problem, state), printed, data, rtol)


@pytest.mark.parametrize("structure", SINGULAR, ids=lambda s: "-".join(s))
@pytest.mark.parametrize("seed", [1, 2, 6])  # multi-label, without special structure of their own
def test_embeddings_where_matrices_are_singular(structure: dict[str, int], seed: int) -> None:
    twins, state = varied(seed, **structure)
    data, rows, D = rows_of((twins, state))
    exact = dense.w_exact(data, rows.B, rows.P1, rows.P2, D)
    printed = dense.w_paper(data, rows.B, rows.P1, rows.P2, D)
    unseen = np.eye(len(data.Y)) - data.Y @ np.linalg.pinv(data.Y)
    for update, expected in ((embedding_exact, exact), (embedding_printed, printed)):
        found = update(twins.problem, state)
        assert_same_v(found, expected, data)
        # What Y does not see is absent, so W stays as small as its V allows it to be.
        assert np.abs(unseen @ found).max() <= 1e-8 * np.abs(found).max()


@pytest.mark.parametrize("seed", range(12))
def test_the_first_embedding_fits_the_codes(seed: int) -> None:
    twins, state = varied(seed, alpha=0.0, beta=0.0, gamma=0.3)
    data, rows = twins.data, twins.expand(state)
    nothing = np.zeros_like(rows.P2)
    D = dense.weights(data.S, np.zeros_like(rows.B), rows.B)
    expected = dense.w_exact(data, rows.B, nothing.T, nothing, D)
    assert_same_v(embedding_from_codes(twins.problem, state.B, state.BS), expected, data)


@pytest.mark.parametrize("seed", range(4))
def test_without_autoencoder_and_regularisation(seed: int) -> None:
    # alpha = beta = gamma = 0 leaves V undetermined off the span of B; what is determined is V^T B.
    twins, state = varied(seed, n_bits=8, alpha=0.0, beta=0.0, gamma=0.0)
    data, rows, D = rows_of((twins, state))
    expected = dense.w_exact(data, rows.B, rows.P1, rows.P2, D)
    found = embedding_exact(twins.problem, state)
    wanted = (expected.T @ data.Y).T @ rows.B
    np.testing.assert_allclose(
        (found.T @ data.Y).T @ rows.B, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max()
    )
    assert np.all(np.isfinite(found))


# --- P1 --------------------------------------------------------------------------------------


def assert_orthonormal(P1: Floats) -> None:
    small = P1 @ P1.T if P1.shape[0] < P1.shape[1] else P1.T @ P1
    np.testing.assert_allclose(small, np.eye(len(small)), atol=1e-10)


@given(situations(solvers=("exact",)))  # Lemma 1 leaves P1 infeasible, no start for descent
@settings(max_examples=100, deadline=None)
def test_encoders(situation: tuple[Twins, State]) -> None:
    twins, state = situation
    problem, data = twins.problem, twins.data
    V = state.W.T @ data.Y
    found = encoder_exact(problem, state)
    assert_orthonormal(found)
    lam = float(np.linalg.eigvalsh(data.X @ data.X.T)[-1])
    expected = dense.p1_exact(data.X, V, state.P1, lam)
    if problem.l < len(data.X):
        # Off the directions that the sum leaves open, the step is unique.
        A = V @ data.X.T + state.P1 @ (lam * np.eye(len(data.X)) - data.X @ data.X.T)
        values = np.linalg.svd(A, compute_uv=False)
        if values[-1] > 1e-6 * values[0]:
            np.testing.assert_allclose(found, expected, atol=1e-7)
        assert np.vdot(found, A) >= np.vdot(expected, A) - 1e-9 * values[0]
    # With l >= d only P1^T on the range of V X^T is determined, and with it the encoding error.
    error, least = (np.linalg.norm(V - P1 @ data.X) for P1 in (found, expected))
    assert error <= least + 1e-7 * np.linalg.norm(V)
    before = np.linalg.norm(V - state.P1 @ data.X)
    assert error <= before + 1e-9 * np.linalg.norm(data.X)


@given(situations())
@settings(max_examples=60, deadline=None)
def test_printed_encoder(situation: tuple[Twins, State]) -> None:
    twins, state = situation
    data = twins.data
    if len(twins.problem.N) == 1:
        return  # the features are centred: X V^T is nothing but rounding
    V = state.W.T @ data.Y
    values = np.linalg.svd(data.X @ V.T, compute_uv=False)
    kept = values[values > 1e-10 * values[0]]
    found, expected = encoder_printed(twins.problem, state), dense.p1_paper(data.X, V)
    # Singular vectors turn by rounding over the smallest value that is kept.
    np.testing.assert_allclose(found, expected, atol=1e-12 * values[0] / kept[-1])
    assert np.linalg.matrix_rank(found, tol=0.5) == len(kept)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("size", [{"d": 9, "n_bits": 3}, {"d": 5, "n_bits": 5}, {"d": 3}])
def test_the_first_encoder_is_feasible_and_agrees_with_lemma_1(
    seed: int, size: dict[str, int]
) -> None:
    twins, state = varied(seed, **size)
    P1 = start_encoder(twins.problem, state.W)
    assert_orthonormal(P1)
    if len(twins.problem.N) > 1:
        VXt = state.W.T @ twins.data.Y @ twins.data.X.T
        nuclear = np.linalg.svd(VXt, compute_uv=False).sum()
        assert np.vdot(P1, VXt) == pytest.approx(nuclear, rel=1e-9)


def test_completion_where_the_guess_leaves_the_same_directions_open() -> None:
    A = np.diag([1.0, 0.0])
    guess = np.array([[0.0, 1.0], [1.0, 0.0]])  # sends the open direction where A's image is
    assert_orthonormal(complete(A, guess))
    np.testing.assert_allclose(np.abs(complete(A, guess)), np.eye(2), atol=1e-12)
    for shape in ((3, 5), (5, 3), (4, 4)):
        assert_orthonormal(complete(np.zeros(shape), np.zeros(shape)))
        np.testing.assert_allclose(complete(np.zeros(shape), np.eye(*shape)), np.eye(*shape))


@pytest.mark.parametrize("n_bits", [2, 3, 4, 6])
def test_whitened_features_keep_the_encoder_feasible(n_bits: int) -> None:
    # X X^T = n I: lambda I - X X^T vanishes, and what is left of the sum has the rank of V.
    X = np.array(np.meshgrid(*[[-1.0, 1.0]] * 4)).reshape(4, -1)
    labels = np.random.default_rng(0).integers(2, size=16)
    problem = Problem.from_statistics(Statistics.of_block(X.T, labels), n_bits)
    rng = np.random.default_rng(1)
    P1 = dense.polar(rng.standard_normal((n_bits, 4)))
    W = rng.standard_normal((2, n_bits))
    state = State.of(problem, np.ones((n_bits, 2)), W, P1, np.zeros((4, n_bits)))
    V = W.T[:, labels]
    error = np.linalg.norm(V - P1 @ X)
    for _ in range(5):
        state = state.with_P1(problem, encoder_exact(problem, state))
        assert_orthonormal(state.P1)
        assert np.linalg.norm(V - state.P1 @ X) <= error + 1e-10
        error = np.linalg.norm(V - state.P1 @ X)


# --- P2 --------------------------------------------------------------------------------------


@given(situations())
@settings(max_examples=60, deadline=None)
def test_decoders(situation: tuple[Twins, State]) -> None:
    twins, state = situation
    data = twins.data
    V = state.W.T @ data.Y
    exact = dense.p2_exact(data.X, V, data.alpha, data.gamma)
    condition = 1 + data.alpha / data.gamma * np.linalg.norm(V, 2) ** 2
    np.testing.assert_allclose(
        decoder_exact(twins.problem, state),
        exact,
        rtol=0,
        atol=1e-13 * condition * (1 + np.abs(exact).max()),
    )
    printed = dense.p2_paper(data.X, V, data.alpha, data.gamma)
    condition = 1 + data.alpha / data.gamma * np.linalg.norm(data.X, 2) ** 2
    np.testing.assert_allclose(
        decoder_printed(twins.problem, state),
        printed,
        rtol=0,
        atol=1e-13 * condition * (1 + np.abs(printed).max()),
    )


@pytest.mark.parametrize("seed", range(6))
def test_decoder_without_regularisation_has_minimum_norm(seed: int) -> None:
    twins, state = varied(seed, n_bits=12, c=4, gamma=0.0)  # V has rank 4 at most
    V = state.W.T @ twins.data.Y
    expected = twins.data.X @ np.linalg.pinv(V, rcond=1e-6)
    found = decoder_exact(twins.problem, state)
    np.testing.assert_allclose(found, expected, atol=1e-7 * (1 + np.abs(expected).max()))


def test_no_weight_on_the_reconstruction_gives_no_decoder() -> None:
    for gamma in (0.0, 1.0):
        twins, state = varied(1, alpha=0.0, gamma=gamma)
        assert not decoder_exact(twins.problem, state).any()
