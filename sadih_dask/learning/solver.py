"""The alternation: B, W, P1, P2 in turn, from several starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from sadih_dask.learning.objective import Record, Trace, objective
from sadih_dask.learning.problem import Problem, State
from sadih_dask.learning.updates import decoder_exact, embedding_from_codes, start_encoder, updates
from sadih_dask.types import Floats, Loss, SolverKind

Criterion: TypeAlias = Callable[[Floats], float]
"""A quality of codes (l, g), higher is better."""

MARGIN = 1e-9
"""What a later start must be better by: equally good starts must not be told apart by rounding."""


@dataclass(frozen=True)
class Schedule:
    """How to run the alternation.

    loss      "l21" (SADIH) or "l1" (SADIH-L1): the B-step
    solver    "exact" minimisers, or the equations as the "paper" prints them
    max_iter  iterations of B, W, P1, P2
    tol       stop when an iteration lowers the objective by less than this fraction
    """

    loss: Loss = "l21"
    solver: SolverKind = "exact"
    max_iter: int = 10
    tol: float = 1e-5


@dataclass(frozen=True, eq=False)
class Solution:
    """The kept restart's unknowns, and the course of all restarts."""

    state: State
    trace: Trace


def starting_state(problem: Problem, B: Floats) -> State:
    """Complete given codes to a state: W that fits them, then P1 and P2 that fit W."""
    W = embedding_from_codes(problem, B, problem.S.apply(B * problem.N))
    P2 = np.zeros((len(problem.XXt), problem.l))
    state = State.of(problem, B, W, start_encoder(problem, W), P2)
    return replace(state, P2=decoder_exact(problem, state))


def alternate(
    problem: Problem, state: State, schedule: Schedule
) -> Iterator[tuple[int, str, State]]:
    """Yield the state after every step: iteration, step, state. SADIH's Optimization section."""
    steps = updates(schedule.loss, schedule.solver)
    yield 0, "start", state
    before = objective(problem, state).total
    for iteration in range(1, schedule.max_iter + 1):
        codes = state.B
        for step, update in steps.items():
            state = update(problem, state)
            yield iteration, step, state
        after = objective(problem, state).total
        settled = np.array_equal(codes, state.B) and before - after <= schedule.tol * abs(before)
        if settled:
            return
        before = after


def n_steps(schedule: Schedule, n_starts: int, judged: bool) -> int:
    """How often `solve` says that it has come on, at most; starts are ``judged`` by a criterion."""
    updated = len(updates(schedule.loss, schedule.solver)) * schedule.max_iter
    return 2 * n_starts + updated if judged else n_starts * (1 + updated)


def solve(
    problem: Problem,
    schedule: Schedule,
    starts: Sequence[Floats],
    criterion: Criterion | None = None,
    *,
    traced: bool = True,
    stepped: Callable[[], object] = int,
) -> Solution:
    """Run the alternation from given codes and keep the best state.

    Without a ``criterion`` every start is carried through and the lowest objective is kept. With
    one, it judges the starts, the best is carried through, and the end is kept unless it is judged
    worse than the start. Unless it is ``traced`` nothing is computed for the trace's sake: it has
    no records then. ``stepped`` is called at most `n_steps` times.
    """
    records: list[Record] = []

    def note(restart: int, iteration: int, step: str, state: State) -> None:
        stepped()
        if traced:
            records.append(Record(restart, iteration, step, objective(problem, state)))

    if criterion is None:
        lowest = 0.0
        for restart, codes in enumerate(starts):
            first = starting_state(problem, codes)
            for iteration, step, state in alternate(problem, first, schedule):
                note(restart, iteration, step, state)
            total = objective(problem, state).total
            if restart == 0 or total < lowest - MARGIN * abs(lowest):
                lowest, best, kept, reached = total, restart, state, iteration
        return Solution(kept, Trace(tuple(records), best, reached))
    qualities = []
    for codes in starts:
        qualities.append(criterion(codes))
        stepped()
    best = 0
    for restart, quality in enumerate(qualities):
        if quality > qualities[best] + MARGIN:
            best = restart
    first = starting_state(problem, starts[best])
    for restart, codes in enumerate(starts if traced else ()):
        note(restart, 0, "start", first if restart == best else starting_state(problem, codes))
    for iteration, step, state in alternate(problem, first, schedule):
        if iteration:
            note(best, iteration, step, state)
    if criterion(state.B) < qualities[best] - MARGIN:
        state, iteration = first, 0
    return Solution(state, Trace(tuple(records), best, iteration))
