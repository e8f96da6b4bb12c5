"""From statistics to codes and a hash function, as the estimator's parameters say.

Many solves of the same statistics, which share what they have in common.

Most of a solve does not depend on the weights of the objective: the regression of the label groups,
the starting codes and the forecasts that choose among them. A *family* is the solves that agree in
all parameters which these follow from; they are found once for it. Every member has the bits that
`sadih_dask.model.solve.learn` gives it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sadih_dask.compute.blas import one_blas_thread
from sadih_dask.compute.similarity import tasked_similarity
from sadih_dask.learning.encoders import HashFunction, hash_function
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.objective import Trace, objective
from sadih_dask.learning.problem import MAX_GROUPS, Problem, State
from sadih_dask.learning.randomness import generator
from sadih_dask.learning.similarity import group_similarity
from sadih_dask.learning.solver import (
    MARGIN,
    Schedule,
    alternate,
    solve,
    start_codes,
    starting_state,
)
from sadih_dask.learning.statistics import Statistics
from sadih_dask.retrieval.forecast import Forecast
from sadih_dask.types import EncoderKind, Floats

RESTARTS = 8
CLEAR_GAIN = 0.025
"""Forecast gain in mean average precision from which on "auto" prefers the posterior encoder.

The forecast flatters that encoder a little; below this the two do equally well on real data.
"""


@dataclass(frozen=True, eq=False)
class Learned:
    """What solving leaves: codes of the label groups (l, g), the hash function, its course."""

    codes: Floats
    hash_function: HashFunction
    trace: Trace


def learn(
    parameters: Any, statistics: Statistics, anchor_map: AnchorMap | None, seed: int
) -> Learned:
    """Solve; ``parameters`` has the estimator's constructor arguments as attributes."""
    groups = statistics.groups
    few = len(groups) <= MAX_GROUPS
    n_init = parameters.n_init if parameters.n_init != "auto" else RESTARTS if few else 1
    schedule = Schedule(
        parameters.loss,
        parameters.solver,
        parameters.start,
        parameters.max_iter,
        parameters.tol,
        n_init,
    )
    with one_blas_thread():
        problem = Problem.from_statistics(
            statistics,
            parameters.n_bits,
            alpha=parameters.alpha,
            beta=parameters.beta,
            gamma=parameters.gamma,
            ridge=parameters.ridge,
            similarity=tasked_similarity(groups, parameters.similarity),
        )
        encoder: EncoderKind = "ridge" if parameters.encoder == "auto" else parameters.encoder
        judge = None
        if few and encoder in ("posterior", "ridge"):
            judge = Forecast(problem, groups, encoder, generator(seed, "forecast"))
        solution = solve(problem, schedule, generator(seed, "starts"), judge)
        if parameters.encoder == "auto" and judge is not None:
            encoder = _better_encoder(judge, solution.state)
        function = hash_function(encoder, statistics, problem, solution.state, anchor_map)
    return Learned(solution.state.B, function, solution.trace)


def _better_encoder(judge: Forecast, state: State) -> EncoderKind:
    gain = judge.with_encoder("posterior")(state) - judge(state)
    return "posterior" if gain > CLEAR_GAIN else "ridge"


SHARED_PARAMETERS = ("n_bits", "ridge", "similarity", "start", "n_init", "encoder")
"""What members of a family agree in; they may differ in all else that a solve depends on."""

_WITHOUT_WEIGHTS = (
    "XYt",
    "energy",
    "dense_S",
    "lambda_max",
    "label_counts",
    "label_basis",
    "ridge_factor",
    "regression",
    "quiet_directions",
)
"""Results that a `Problem` keeps and that do not depend on alpha, beta and gamma."""


class Family:
    """Solves of one set of statistics with parameters that agree in `SHARED_PARAMETERS`.

    Parameters are any object with the estimator's constructor arguments as attributes.
    """

    def __init__(self, parameters: Any, statistics: Statistics, seed: int) -> None:
        self._statistics = statistics
        self._encoder: str = parameters.encoder
        self._known: dict[str, Any] = {}
        problem = Problem.from_statistics(
            statistics,
            parameters.n_bits,
            ridge=parameters.ridge,
            # In this process: a task starts no tasks, and the bits are the same.
            similarity=group_similarity(statistics.groups, parameters.similarity),
        )
        self._problem = problem
        few = len(statistics.groups) <= MAX_GROUPS
        kind: EncoderKind = "ridge" if self._encoder == "auto" else parameters.encoder
        self._judge: _Judge | None = None
        if few and kind in ("posterior", "ridge"):
            rng = generator(seed, "forecast")
            self._judge = _Judge(Forecast(problem, statistics.groups, kind, rng))
        n_init = RESTARTS if few else 1
        self._n_init: int = n_init if parameters.n_init == "auto" else parameters.n_init
        streams = generator(seed, "starts").spawn(self._n_init)
        self._starts = [
            start_codes(problem, parameters.start, k, stream) for k, stream in enumerate(streams)
        ]
        if self._judge is not None:
            self._starts = [self._judge.best_of(problem, self._starts)]
        self._remember(problem)

    @property
    def hashes_by_codes_alone(self) -> bool:
        """Whether members with equal codes have equal hash functions."""
        return self._encoder not in ("orthogonal", "lemma")

    def solve(self, parameters: Any) -> State:
        """Run the alternation with the weights of a member; return the state that is kept."""
        problem = self._member(parameters.alpha, parameters.beta, parameters.gamma)
        schedule = Schedule(
            parameters.loss,
            parameters.solver,
            parameters.start,
            parameters.max_iter,
            parameters.tol,
            self._n_init,
        )
        if self._judge is None:
            state = _lowest_objective(problem, schedule, self._starts)
        else:
            first = starting_state(problem, self._starts[0])
            last = _last(problem, first, schedule)
            state = first if self._judge(last) < self._judge(first) - MARGIN else last
        self._remember(problem)
        return state

    def hash_function(self, state: State) -> HashFunction:
        """The encoder of a member, for features that are mapped to anchors already, if any."""
        encoder: Any = self._encoder
        if encoder == "auto":
            clear = self._judge is not None and self._judge.gain_of_posterior(state) > CLEAR_GAIN
            encoder = "posterior" if clear else "ridge"
        problem = self._member(0.0, 0.0, 0.0)  # an encoder does not depend on the weights
        return hash_function(encoder, self._statistics, problem, state, None)

    def _member(self, alpha: float, beta: float, gamma: float) -> Problem:
        """The problem with given weights, and with all that is known of it already."""
        problem = replace(self._problem, alpha=alpha, beta=beta, gamma=gamma)
        problem.__dict__.update(self._known)
        return problem

    def _remember(self, problem: Problem) -> None:
        """Keep what one member's problem has computed for the others."""
        held = problem.__dict__
        self._known |= {name: held[name] for name in _WITHOUT_WEIGHTS if name in held}


@dataclass(frozen=True, eq=False)
class _Judge:
    """Forecasts of codes, each made once: different weights often lead to the same codes."""

    forecast: Forecast
    known: dict[bytes, float] = field(default_factory=dict)

    def __call__(self, state: State) -> float:
        key = state.B.tobytes()
        if key not in self.known:
            self.known[key] = self.forecast(state)
        return self.known[key]

    def best_of(self, problem: Problem, starts: list[Floats]) -> Floats:
        """The codes with the best forecast, which depends on the codes alone; the first of ties."""
        best, kept = -1.0, starts[0]
        for codes in starts:
            quality = self(starting_state(problem, codes))
            if quality > best + MARGIN:
                best, kept = quality, codes
        return kept

    def gain_of_posterior(self, state: State) -> float:
        """What the posterior encoder is forecast to add."""
        return self.forecast.with_encoder("posterior")(state) - self(state)


def _lowest_objective(problem: Problem, schedule: Schedule, starts: list[Floats]) -> State:
    """Carry every start through and keep the lowest objective, the first of ties."""
    ends = (_last(problem, starting_state(problem, codes), schedule) for codes in starts)
    kept: tuple[float, State] | None = None
    for state in ends:
        total = objective(problem, state).total
        if kept is None or total < kept[0] - MARGIN * abs(kept[0]):
            kept = (total, state)
    assert kept is not None  # noqa: S101 - n_init is at least 1
    return kept[1]


def _last(problem: Problem, first: State, schedule: Schedule) -> State:
    for _, _, state in alternate(problem, first, schedule):
        last = state
    return last
