"""From statistics to codes and a hash function, as the estimator's parameters say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sadih_dask.compute.blas import one_blas_thread
from sadih_dask.compute.tree import Tasks
from sadih_dask.learning.encoders import BY_REGRESSION, HashFunction, hash_function
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.labels import LabelGroups
from sadih_dask.learning.problem import MAX_GROUPS, Problem, State
from sadih_dask.learning.randomness import generator
from sadih_dask.learning.similarity import SharedLabel, Similarity, group_similarity
from sadih_dask.learning.solver import Schedule, Solution, solve
from sadih_dask.learning.start import start_codes
from sadih_dask.learning.statistics import Statistics
from sadih_dask.retrieval.forecast import Forecast
from sadih_dask.types import EncoderKind, Floats, SimilarityKind

RESTARTS = 8
CLEAR_GAIN = 0.025
"""Forecast gain in mean average precision from which on "auto" prefers the posterior encoder.

The forecast flatters that encoder a little; below this the two do equally well on real data.
"""


def learn(
    parameters: Any, statistics: Statistics, anchor_map: AnchorMap | None, seed: int
) -> tuple[Solution, HashFunction]:
    """Solve; ``parameters`` has the estimator's constructor arguments as attributes."""
    with one_blas_thread():
        similarity = tasked_similarity(statistics.groups, parameters.similarity)
        family = Family(parameters, statistics, seed, similarity)
        solution = family.solve(parameters, traced=True)
        return solution, family.hash_function(solution.state, anchor_map)


class Family:
    """Solves of one set of statistics, which share what they have in common.

    Most of a solve does not depend on the weights of the objective: the regression of the label
    groups, the starting codes and the forecasts that choose among them. Members agree in the
    parameters that decide the start (`Parameter.decides`), so these are found once for all, and
    differ in what decides the steps. What a member comes to does not depend on the others.
    """

    def __init__(
        self, parameters: Any, statistics: Statistics, seed: int, similarity: Similarity | None
    ) -> None:
        """Find the start; without a ``similarity`` it is applied in this thread."""
        groups = statistics.groups
        self._statistics = statistics
        self._problem = Problem.from_statistics(
            statistics,
            parameters.n_bits,
            ridge=parameters.ridge,
            similarity=similarity or group_similarity(groups, parameters.similarity),
        )
        self._choose = parameters.encoder == "auto"
        self._encoder: EncoderKind = "ridge" if self._choose else parameters.encoder
        few = len(groups) <= MAX_GROUPS
        self._forecast: Forecast | None = None
        if few and self._encoder in BY_REGRESSION:
            rng = generator(seed, "forecast")
            self._forecast = Forecast(self._problem, groups, self._encoder, rng)
        auto = RESTARTS if few else 1
        n_init: int = auto if parameters.n_init == "auto" else parameters.n_init
        self._starts = [
            start_codes(self._problem, parameters.start, restart, stream)
            for restart, stream in enumerate(generator(seed, "starts").spawn(n_init))
        ]

    def solve(self, parameters: Any, *, traced: bool = False) -> Solution:
        """Run the alternation with the weights and the rules of a member."""
        weights = parameters.alpha, parameters.beta, parameters.gamma
        # From the problem of the member before, which has all that was computed so far.
        self._problem = self._problem.with_weights(*weights)
        schedule = Schedule(parameters.loss, parameters.solver, parameters.max_iter, parameters.tol)
        return solve(self._problem, schedule, self._starts, self._forecast, traced=traced)

    @property
    def hashes_by_codes_alone(self) -> bool:
        """Whether members with equal codes have equal hash functions."""
        return self._encoder in BY_REGRESSION

    def hash_function(self, state: State, anchor_map: AnchorMap | None = None) -> HashFunction:
        """The encoder of a member; without a map, for features that are mapped already, if any."""
        encoder, forecast = self._encoder, self._forecast
        if self._choose and forecast is not None:
            gain = forecast.with_encoder("posterior")(state.B) - forecast(state.B)
            encoder = "posterior" if gain > CLEAR_GAIN else encoder
        return hash_function(encoder, self._statistics, self._problem, state, anchor_map)


MANY_GROUPS = 4096
"""Label groups from which on blocks of S are worth a task.

The product with S is nearly all of the work of learning then: k g^2 operations, where every other
step is linear in g.
"""


@dataclass(frozen=True, eq=False)
class TaskedSharedLabel(SharedLabel):
    """Shared-label similarity whose blocks are tasks on the current scheduler.

    The blocks are those of the product in one process, so the result has the same bits.
    """

    @cached_property
    def _table(self) -> SharedLabel:
        """What tasks get; on threads it keeps what it has found out."""
        return SharedLabel(self.groups)

    def sum_all_sharing(self, m: Floats) -> Floats:
        """M [G^T G > 0]; only columns of the product travel back."""
        tasks = Tasks("similarity")
        table, operand = tasks.share(self._table, "groups"), tasks.share(m, "operand")
        columns = [
            tasks.after("similarity", SharedLabel.sum_sharing, table, operand, start, stop)
            for start, stop in self.blocks()
        ]
        return np.hstack(tasks.run_each(columns))


def tasked_similarity(groups: LabelGroups, kind: SimilarityKind) -> Similarity:
    """Choose how S is applied: in this process, or as tasks where there are many groups."""
    if kind == "shared-label" and not groups.single_label and len(groups) > MANY_GROUPS:
        return TaskedSharedLabel(groups)
    return group_similarity(groups, kind)
