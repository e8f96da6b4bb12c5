"""From statistics to codes and a hash function, as the estimator's parameters say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sadih_dask.arrays import Floats
from sadih_dask.compute.running import one_blas_thread
from sadih_dask.compute.similarity import tasked_similarity
from sadih_dask.learning.encoders import HashFunction, hash_function
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.kinds import EncoderKind
from sadih_dask.learning.problem import MAX_GROUPS, Problem, State
from sadih_dask.learning.solver import Schedule, solve
from sadih_dask.learning.statistics import Statistics
from sadih_dask.learning.trace import Trace
from sadih_dask.randomness import generator
from sadih_dask.retrieval.forecast import Forecast

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
