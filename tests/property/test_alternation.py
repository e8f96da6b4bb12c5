"""The whole alternation on label groups equals the one on rows, step by step."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sadih_dask.learning.objective import objective, row_norms
from sadih_dask.learning.problem import State
from sadih_dask.learning.solver import Schedule, alternate, starting_state
from sadih_dask.learning.start import random_codes
from sadih_dask.learning.updates import MAX_SWEEPS
from tests.support import dense
from tests.support.dense import Array
from tests.support.groups import KINDS, Twins, varied
from tests.support.problems import Problem as Rows
from tests.support.problems import problems

ITERATIONS = 6
WAYS: list[tuple[dense.Loss, dense.Solver]] = [
    ("l21", "exact"),
    ("l21", "paper"),
    ("l1", "exact"),
    ("l1", "paper"),
]


def assert_close(found: Array, expected: Array, size: float, rtol: float = 1e-7) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * size)


def assert_same(twins: Twins, state: State, rows: dense.State) -> None:
    """Equal codes; the rest equal in all that Eq. (7) determines."""
    X, Y = twins.data.X, twins.data.Y
    np.testing.assert_array_equal(state.B[:, twins.ids], rows.B)
    V = rows.W.T @ Y
    assert_close(state.W.T @ Y, V, float(np.abs(V).max()))
    decoded = rows.P2 @ V
    assert_close(state.P2 @ state.W.T @ Y, decoded, 1 + float(np.abs(decoded).max()))
    # P1 is determined on the range of X V^T.
    VXt = V @ X.T
    size = float(np.linalg.norm(V) * np.linalg.norm(X))
    assert_close(VXt @ state.P1.T, VXt @ rows.P1.T, size)
    found, expected = objective(twins.problem, state), dense.objective(twins.data, rows)
    for term in ("similarity", "reconstruction", "encoding", "regularisation"):
        slack = 1e-8 * expected["total"]
        assert getattr(found, term) == pytest.approx(expected[term], rel=1e-6, abs=slack), term


def vanishing(twins: Twins, state: State) -> bool:
    """Whether a residual is within a factor 100 of the floor under the row norms.

    Its weight in D then depends on digits of S - V^T B that are rounding, and where B does not see
    V the system for W loses all the digits that D spans, 8 and more.
    """
    floor = 1e-8 * twins.problem.l * np.sqrt(twins.problem.n)
    return bool(row_norms(twins.problem, state).min() < 100 * floor)


def run(twins: Twins, start: State, loss: dense.Loss, solver: dense.Solver) -> Iterator[State]:
    """The library's alternation, every step of it."""
    schedule = Schedule(loss=loss, solver=solver, max_iter=ITERATIONS, tol=-np.inf)
    steps = alternate(twins.problem, start, schedule)
    assert next(steps)[1] == "start"
    names = []
    for iteration, name, state in steps:
        names.append((iteration, name))
        yield state
    assert names == list(product(range(1, ITERATIONS + 1), ("B", "W", "P1", "P2")))


def run_rows(
    twins: Twins, rows: dense.State, loss: dense.Loss, solver: dense.Solver, n_iter: int
) -> Iterator[dense.State]:
    """The reference's alternation, every step of it."""
    for _, _, state, _ in dense.iterate(rows, twins.data, loss, solver, n_iter, MAX_SWEEPS):
        yield state


def slightly_other(rows: dense.State) -> dense.State:
    """A state that differs in the twelfth digit of P2."""
    noise = 1e-12 * np.random.default_rng(0).standard_normal(rows.P2.shape)
    return replace(rows, P2=rows.P2 + np.abs(rows.P2).max() * noise)


def parted(twins: Twins, one: dense.State, two: dense.State) -> bool:
    """Whether two runs of the reference from such states differ in the tenth digit by now."""
    Y = twins.data.Y
    V, decoded = one.W.T @ Y, one.P2 @ one.W.T @ Y
    return bool(
        np.abs(two.W.T @ Y - V).max() > 1e-10 * np.abs(V).max()
        or np.abs(two.P2 @ two.W.T @ Y - decoded).max() > 1e-10 * (1 + np.abs(decoded).max())
    )


def follow(twins: Twins, start: State, loss: dense.Loss, solver: dense.Solver) -> int:
    """Run both from one start, compare after every step and return how many were compared.

    The comparison ends where residuals vanish, and where two runs of the reference part. Along
    directions that B does not see, V = 0 is a saddle from which rounding grows a thousandfold in an
    iteration, and the printed updates run away from it without end.
    """
    rows, compared = twins.expand(start), 0
    for state, one, two in zip(
        run(twins, start, loss, solver),
        run_rows(twins, rows, loss, solver, ITERATIONS),
        run_rows(twins, slightly_other(rows), loss, solver, ITERATIONS),
        strict=True,
    ):
        if parted(twins, one, two) or vanishing(twins, state):
            break
        assert_same(twins, state, one)
        compared += 1
    return compared


def drawn(rows: Rows, kind: dense.Kind, solver: dense.Solver) -> Twins:
    twins = Twins.of(rows, kind)
    # With one label set X V^T = 0, the features being centred, and Lemma 1 asks for its SVD.
    assume(solver == "exact" or len(twins.problem.N) > 1)
    return twins


@pytest.mark.parametrize(("loss", "solver"), WAYS)
@given(rows=problems(), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_the_same_after_every_step(
    loss: dense.Loss, solver: dense.Solver, rows: Rows, kind: dense.Kind, seed: int
) -> None:
    twins = drawn(rows, kind, solver)
    follow(twins, twins.random_start(np.random.default_rng(seed)), loss, solver)


@pytest.mark.parametrize(("loss", "solver"), WAYS)
@given(rows=problems(), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_every_iteration_of_a_fit(
    loss: dense.Loss, solver: dense.Solver, rows: Rows, kind: dense.Kind, seed: int
) -> None:
    # A fit starts from a W that fits the codes, on the saddle: the reference begins every
    # iteration where the library stands, so that what rounding grows into does not add up.
    twins = drawn(rows, kind, solver)
    codes = random_codes(twins.problem, np.random.default_rng(seed))
    state = starting_state(twins.problem, codes)
    ours = run(twins, state, loss, solver)
    for _ in range(ITERATIONS):
        rows_state = twins.expand(state)
        for one, two in zip(
            run_rows(twins, rows_state, loss, solver, 1),
            run_rows(twins, slightly_other(rows_state), loss, solver, 1),
            strict=True,
        ):
            state = next(ours)
            if vanishing(twins, state):
                return
            if not parted(twins, one, two):
                assert_same(twins, state, one)


def test_most_runs_are_compared_to_their_end() -> None:
    compared = []
    for seed, (loss, solver) in product(range(0, 60, 3), WAYS):
        twins, start = varied(seed)
        if len(twins.problem.N) > 1:
            compared.append(follow(twins, start, loss, solver))
    assert np.mean(np.array(compared) == 4 * ITERATIONS) > 0.7
    assert min(compared) > 0


@pytest.mark.parametrize(("loss", "solver"), WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_equal_labels_keep_equal_codes(
    loss: dense.Loss, solver: dense.Solver, kind: dense.Kind
) -> None:
    # Bit for bit those of the groups, also where codes fit S and V is no longer compared.
    for seed in range(1, 40, 4):
        twins, start = varied(seed, kind, gamma=0.1)
        if len(twins.problem.N) == 1:
            continue
        ours = run(twins, start, loss, solver)
        theirs = run_rows(twins, twins.expand(start), loss, solver, ITERATIONS)
        for state, row_state in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(state.B[:, twins.ids], row_state.B)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("loss", "solver"), WAYS)
def test_an_exact_tie_stays_equal_within_groups(
    loss: dense.Loss, solver: dense.Solver, kind: dense.Kind
) -> None:
    # The symmetric example of tests/unit/test_dense.py, carried through the alternation.
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 10)
    twins = Twins.of(Rows(rng.standard_normal((20, 3)), labels, 2, 1.0, 1.0, 0.1), kind)
    B = np.array([np.ones(20), np.repeat([1.0, -1.0], 10)])
    W = np.array([[0.3, 0.7], [0.3, -0.7]])
    rows = dense.State(B, W, dense.polar(rng.standard_normal((2, 3))), np.zeros((3, 2)))
    start = twins.collapse(rows)
    assert follow(twins, start, loss, solver) > 0
    for state in run_rows(twins, rows, loss, solver, ITERATIONS):
        for group in (0, 1):
            codes = state.B[:, labels == group]
            assert np.all(codes == codes[:, :1])
