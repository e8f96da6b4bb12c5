"""The alternation: B, W, P1, P2 in turn, from several starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sadih_dask.learning.objective import Record, Trace, objective
from sadih_dask.learning.problem import MAX_GROUPS, Problem, State
from sadih_dask.learning.start import PREDICTABILITY, random_codes, separated_codes, spectral_codes
from sadih_dask.learning.updates import (
    codes_l1,
    codes_l1_guarded,
    codes_l21,
    codes_l21_printed,
    decoder_exact,
    decoder_printed,
    embedding_exact,
    embedding_from_codes,
    embedding_printed,
    encoder_exact,
    encoder_printed,
    start_encoder,
)
from sadih_dask.types import Floats, Loss, SolverKind, StartKind

Update: TypeAlias = Callable[[Problem, State], State]
Criterion: TypeAlias = Callable[[State], float]
"""A quality of a state, higher is better."""

MARGIN = 1e-9
"""What a later start must be better by: equally good starts must not be told apart by rounding."""


@dataclass(frozen=True)
class Schedule:
    """How to run the alternation.

    loss      "l21" (SADIH) or "l1" (SADIH-L1): the B-step
    solver    "exact" minimisers, or the equations as the "paper" prints them
    start     "separated" codes, or the paper's "random" ones
    max_iter  iterations of B, W, P1, P2
    tol       stop when an iteration lowers the objective by less than this fraction
    n_init    starts to try; the best is kept
    """

    loss: Loss = "l21"
    solver: SolverKind = "exact"
    start: StartKind = "separated"
    max_iter: int = 10
    tol: float = 1e-5
    n_init: int = 8


@dataclass(frozen=True, eq=False)
class Solution:
    """The kept restart's unknowns, and the course of all restarts."""

    state: State
    trace: Trace


def updates(loss: Loss, solver: SolverKind) -> dict[str, Update]:
    """Return the four steps in the paper's order, each from a state to the next."""
    exact = solver == "exact"
    if loss == "l1":
        codes = codes_l1_guarded if exact else codes_l1
    else:
        codes = codes_l21 if exact else codes_l21_printed
    embedding = embedding_exact if exact else embedding_printed
    encoder = encoder_exact if exact else encoder_printed
    decoder = decoder_exact if exact else decoder_printed
    return {
        "B": lambda p, s: s.with_B(p, codes(p, s)),
        "W": lambda p, s: s.with_W(embedding(p, s)),
        "P1": lambda p, s: s.with_P1(p, encoder(p, s)),
        "P2": lambda p, s: s.with_P2(decoder(p, s)),
    }


def starting_state(problem: Problem, B: Floats) -> State:
    """Complete given codes to a state: W that fits them, then P1 and P2 that fit W."""
    W = embedding_from_codes(problem, B, problem.S.apply(B * problem.N))
    P2 = np.zeros((len(problem.XXt), problem.l))
    state = State.of(problem, B, W, start_encoder(problem, W), P2)
    return state.with_P2(decoder_exact(problem, state))


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


def start_codes(
    problem: Problem, kind: StartKind, restart: int, rng: np.random.Generator
) -> Floats:
    """Codes that a restart begins with.

    Separated codes look at every pair of groups, so where there are many they come from the
    spectrum; where rows carry several labels the first restart tries the spectrum as well.
    """
    if kind == "random":
        return random_codes(problem, rng)
    if len(problem.N) > MAX_GROUPS or (restart == 0 and not problem.single_label):
        return spectral_codes(problem, rng)
    return separated_codes(problem, rng, PREDICTABILITY[restart % len(PREDICTABILITY)])


def solve(
    problem: Problem,
    schedule: Schedule,
    rng: np.random.Generator,
    criterion: Criterion | None = None,
) -> Solution:
    """Run the alternation and keep the best state.

    Without a ``criterion`` every start is carried through and the lowest objective is kept. With
    one, it judges the starts, the best is carried through, and the end is kept unless it is judged
    worse than the start.
    """
    streams = rng.spawn(schedule.n_init)
    starts = (
        starting_state(problem, start_codes(problem, schedule.start, k, stream))
        for k, stream in enumerate(streams)
    )
    if criterion is None:
        return _lowest_objective(problem, schedule, starts)
    return _best_judged(problem, schedule, starts, criterion)


def _lowest_objective(problem: Problem, schedule: Schedule, starts: Iterable[State]) -> Solution:
    records: list[Record] = []
    kept: tuple[float, int, int, State] | None = None
    for restart, first in enumerate(starts):
        for iteration, step, state in alternate(problem, first, schedule):
            records.append(Record(restart, iteration, step, objective(problem, state)))
        total = records[-1].objective.total
        if kept is None or total < kept[0] - MARGIN * abs(kept[0]):
            kept = (total, restart, iteration, state)
    assert kept is not None  # noqa: S101 - n_init is at least 1
    _, restart, iteration, state = kept
    return Solution(state, Trace(tuple(records), restart, iteration))


def _best_judged(
    problem: Problem, schedule: Schedule, starts: Iterable[State], criterion: Criterion
) -> Solution:
    records: list[Record] = []
    best: tuple[float, int, State] | None = None
    for restart, first in enumerate(starts):
        quality = criterion(first)
        if best is None or quality > best[0] + MARGIN:
            best = (quality, restart, first)
        records.append(Record(restart, 0, "start", objective(problem, first)))
    assert best is not None  # noqa: S101 - n_init is at least 1
    quality, restart, first = best
    for iteration, step, state in alternate(problem, first, schedule):
        if iteration:
            records.append(Record(restart, iteration, step, objective(problem, state)))
    if criterion(state) < quality - MARGIN:
        return Solution(first, Trace(tuple(records), restart, 0))
    return Solution(state, Trace(tuple(records), restart, iteration))
