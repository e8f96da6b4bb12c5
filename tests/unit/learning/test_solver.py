"""The alternation as a whole: seeds, restarts, stopping, and the trace that it leaves."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from sadih_dask.learning.objective import STEPS, Objective, Trace, objective
from sadih_dask.learning.problem import Problem
from sadih_dask.learning.solver import Schedule, Solution, alternate, solve
from sadih_dask.learning.start import start_codes
from sadih_dask.learning.statistics import Statistics
from sadih_dask.types import Floats, Loss, SolverKind, StartKind
from tests.support.groups import LOSSES, SOLVERS, varied

STARTS: tuple[StartKind, ...] = ("separated", "random")


def starts(problem: Problem, n_init: int, kind: StartKind, seed: int = 0) -> list[Floats]:
    streams = np.random.default_rng(seed).spawn(n_init)
    return [start_codes(problem, kind, k, stream) for k, stream in enumerate(streams)]


def run(
    problem: Problem, seed: int = 0, n_init: int = 3, start: StartKind = "separated", **options: Any
) -> Solution:
    schedule = Schedule(**{"max_iter": 5, **options})
    return solve(problem, schedule, starts(problem, n_init, start, seed))


def ends(solution: Solution) -> list[float]:
    """The objective at the end of every restart."""
    count = 1 + max(record.restart for record in solution.trace)
    return [solution.trace.of_restart(k)[-1].objective.total for k in range(count)]


# --- seeds and restarts ----------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("start", STARTS)
def test_the_seed_decides_everything(loss: Loss, solver: SolverKind, start: StartKind) -> None:
    problem = varied(9, gamma=0.1)[0].problem
    first, again, other = (
        run(problem, seed, loss=loss, solver=solver, start=start) for seed in (7, 7, 8)
    )
    for name in ("B", "W", "P1", "P2"):
        np.testing.assert_array_equal(getattr(first.state, name), getattr(again.state, name))
    assert first.trace == again.trace
    assert first.trace != other.trace


@pytest.mark.parametrize("seed", range(6))
def test_the_lowest_objective_is_kept(seed: int) -> None:
    problem = varied(seed, n_bits=8, c=5, grouping="free")[0].problem
    solution = run(problem, n_init=6, start="random")
    totals = ends(solution)
    assert len(totals) == 6
    assert objective(problem, solution.state).total == totals[solution.trace.best]
    # Starts that are better by rounding alone do not win.
    assert totals[solution.trace.best] <= min(totals) * (1 + 1e-8)
    assert solution.trace.kept_iteration == solution.trace.n_iter


@pytest.mark.parametrize("seed", range(6))
def test_more_restarts_are_never_worse(seed: int) -> None:
    problem = varied(seed, n_bits=8, c=5, grouping="free")[0].problem
    few, more = (run(problem, seed, n_init=k, start="random") for k in (2, 7))
    assert ends(more)[:2] == ends(few)  # the same restarts, and then others
    kept = [objective(problem, solution.state).total for solution in (few, more)]
    assert kept[1] <= kept[0]


def test_restarts_differ() -> None:
    problem = varied(1, n_bits=8, c=5, grouping="free")[0].problem
    assert len(set(ends(run(problem, n_init=6, start="random")))) > 1


@pytest.mark.parametrize("kind", STARTS)
def test_codes_to_start_from_are_codes(kind: StartKind) -> None:
    for seed, restart in ((1, 0), (3, 0), (3, 1), (6, 2), (11, 1)):
        problem = varied(seed)[0].problem
        B = start_codes(problem, kind, restart, np.random.default_rng(seed))
        assert B.shape == (problem.l, len(problem.N))
        assert set(np.unique(B)) <= {-1.0, 1.0}


# --- a criterion other than the objective ----------------------------------------------------


def test_a_criterion_chooses_the_start_that_is_carried_through() -> None:
    problem = varied(9)[0].problem
    seen = []

    def ones(codes: Floats) -> float:
        seen.append(float((codes > 0).sum()))
        return seen[-1]

    solution = solve(problem, Schedule(max_iter=3), starts(problem, 5, "random"), ones)
    assert len(seen) == 6  # every start, and the end of the best
    assert solution.trace.best == int(np.argmax(seen[:5]))
    worse = seen[5] < max(seen[:5])
    assert solution.trace.kept_iteration == (0 if worse else solution.trace.n_iter)
    assert (solution.state.B > 0).sum() == max(seen)


def test_an_end_that_is_judged_worse_is_not_kept() -> None:
    problem = varied(9)[0].problem
    value = iter([1.0, 2.0, 0.0])
    begun = starts(problem, 2, "random")
    solution = solve(problem, Schedule(max_iter=2), begun, lambda _: next(value))
    assert (solution.trace.best, solution.trace.kept_iteration) == (1, 0)
    start = next(r for r in solution.trace.of_restart(1) if r.step == "start")
    assert objective(problem, solution.state) == start.objective


# --- stopping --------------------------------------------------------------------------------


def test_max_iter_bounds_the_iterations() -> None:
    problem = varied(9)[0].problem
    for most in (0, 1, 4):
        trace = run(problem, max_iter=most, tol=-np.inf).trace
        assert trace.n_iter == most
        assert len(trace.of_restart(0)) == 1 + 4 * most


def test_a_tolerance_stops_when_codes_are_settled_and_little_is_gained() -> None:
    twins, start = varied(9)
    problem = twins.problem
    lengths = []
    for tol in (1.0, 1e-2, 1e-4):
        schedule = Schedule(max_iter=200, tol=tol)
        ends = [s for _, step, s in alternate(problem, start, schedule) if step in ("start", "P2")]
        totals = [objective(problem, state).total for state in ends]
        gains = [(a - b) / a for a, b in pairwise(totals)]
        moved = [not np.array_equal(a.B, b.B) for a, b in pairwise(ends)]
        assert gains[-1] <= tol
        assert not moved[-1]
        assert all(gain > tol or move for gain, move in zip(gains[:-1], moved[:-1], strict=True))
        lengths.append(len(gains))
    assert 1 < lengths[0] < lengths[1] < lengths[2] < 200  # all is gained by 1.0, but codes moved


# --- the trace -------------------------------------------------------------------------------


def test_the_trace_has_what_a_plot_needs() -> None:
    problem = varied(9)[0].problem
    solution = run(problem, max_iter=3, tol=-np.inf)
    trace = solution.trace
    assert len(trace) == len(list(trace)) == 3 * (1 + 4 * 3)
    assert Counter(r.restart for r in trace) == {0: 13, 1: 13, 2: 13}
    for restart in range(3):
        records = trace.of_restart(restart)
        assert [r.step for r in records] == ["start"] + 3 * ["B", "W", "P1", "P2"]
        assert [r.iteration for r in records] == [0] + [k for k in (1, 2, 3) for _ in range(4)]
    assert {r.step for r in trace} == set(STEPS)
    np.testing.assert_array_equal(
        trace.totals, [r.objective.total for r in trace.of_restart(trace.best)]
    )
    last = trace.of_restart(trace.best)[-1].objective
    assert isinstance(last, Objective)
    assert last == objective(problem, solution.state)
    parts = (last.similarity, last.reconstruction, last.encoding, last.regularisation)
    assert last.total == pytest.approx(sum(parts))
    assert np.all(np.diff(trace.totals) <= 1e-10 * trace.totals[:-1])


@pytest.mark.parametrize("criterion", [None, lambda codes: float(codes[:2].sum())])
def test_the_same_is_kept_without_a_trace(criterion: Any) -> None:
    problem = varied(9, n_bits=8, c=5, grouping="free")[0].problem
    begun = starts(problem, 4, "random")
    traced, not_traced = (
        solve(problem, Schedule(max_iter=3), begun, criterion, traced=traced)
        for traced in (True, False)
    )
    np.testing.assert_array_equal(traced.state.P2, not_traced.state.P2)
    assert not_traced.trace == Trace((), traced.trace.best, traced.trace.kept_iteration)


# --- degenerate data -------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("value", [0.0, 0.1, 7.0])
@pytest.mark.parametrize("d", [3, 80])
def test_features_that_are_all_constant(
    loss: Loss, solver: SolverKind, value: float, d: int
) -> None:
    # Nothing to encode from; codes still follow from the labels.
    statistics = Statistics.of_block(np.full((12, d), value), np.arange(12) % 3)
    for start in STARTS:
        solution = run(
            Problem.from_statistics(statistics, 4), loss=loss, solver=solver, start=start
        )
        assert np.all(np.isfinite(solution.trace.totals))
        for name in ("B", "W", "P1", "P2"):
            assert np.all(np.isfinite(getattr(solution.state, name)))


@pytest.mark.parametrize("solver", SOLVERS)
def test_one_row_per_group_and_one_group(solver: SolverKind) -> None:
    rng = np.random.default_rng(0)
    for labels in (np.arange(8), np.zeros(8, int)):
        statistics = Statistics.of_block(rng.standard_normal((8, 3)), labels)
        solution = run(Problem.from_statistics(statistics, 6), solver=solver)
        assert np.all(np.isfinite(solution.trace.totals))
