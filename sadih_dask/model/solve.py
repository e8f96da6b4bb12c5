"""From statistics to codes and a hash function, as the estimator's parameters say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sadih_dask.compute.process import one_blas_thread
from sadih_dask.compute.run import Steps
from sadih_dask.compute.tree import Tasks
from sadih_dask.learning.encoders import (
    BY_REGRESSION,
    SHARPNESS,
    VOTING,
    HashFunction,
    Opening,
    hash_function,
    unstandardised,
)
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.held_out import SHRINKAGES, choose_penalty, hold_out
from sadih_dask.learning.labels import LabelGroups
from sadih_dask.learning.open_world import open_encoder
from sadih_dask.learning.problem import MAX_GROUPS, Problem, State
from sadih_dask.learning.randomness import generator
from sadih_dask.learning.similarity import SharedLabel, Similarity, group_similarity
from sadih_dask.learning.solver import Schedule, Solution, n_steps, solve
from sadih_dask.learning.start import FEW_GROUPS, start_codes
from sadih_dask.learning.statistics import Statistics
from sadih_dask.retrieval.trial import (
    OPENNESS_GRID,
    SHARPNESS_GRID,
    Choice,
    Trial,
    best_of,
)
from sadih_dask.types import EncoderKind, Floats, SimilarityKind

RESTARTS = 8
AT_AN_ANCHOR = 0.999
"""What an anchor feature has of rows that are the anchor itself, or nearly."""
LEAST_JUDGES = 256
"""Rows that are no anchors, below which anchors are asked as well."""


class Validation:
    """What rows that are left out say of one set of statistics, whatever the code length.

    Found when it is first asked for, and held: solves of several lengths share it.
    """

    def __init__(self, statistics: Statistics, seed: int, *, anchored: bool = False) -> None:
        """Leave rows of the sample out; of ``anchored`` features, those that are no anchors.

        An anchor is like no row to come: it has 1 where all others may have next to nothing, and
        without it that column hardly varies. Of delicious, errors of 300 times the labels' variance
        came of them, and with these the largest penalty.
        """
        if anchored:
            rows = statistics.sample
            others = np.asarray((rows.features < AT_AN_ANCHOR).all(axis=1))
            if others.sum() >= LEAST_JUDGES:
                statistics = replace(statistics, sample=rows.take(others))
        self._statistics, self._seed = statistics, seed
        self._trials: dict[tuple[float, str, bool], Trial | None] = {}

    @cached_property
    def penalty(self) -> float:
        """The penalty that predicts labels of the rows best."""
        return choose_penalty(self._statistics, generator(self._seed, "penalty"))

    def trial(self, ridge: float, kind: EncoderKind, nested: bool = False) -> Trial | None:
        """What judges codes; None where no row can be left out."""
        if (key := (ridge, kind, nested)) not in self._trials:
            parts = hold_out(self._statistics, ridge, balanced=kind in VOTING)
            found = Trial(self._statistics, parts, kind, self._seed, nested) if parts else None
            self._trials[key] = found
        return self._trials[key]


def learn(
    parameters: Any,
    statistics: Statistics,
    anchor_map: AnchorMap | None,
    seed: int,
    validation: Validation | None = None,
) -> tuple[Solution, HashFunction]:
    """Solve; ``parameters`` has the estimator's constructor arguments as attributes."""
    with one_blas_thread():
        similarity = tasked_similarity(statistics.groups, parameters.similarity)
        family = Family(parameters, statistics, seed, similarity, validation)
        solution = family.solve(parameters, traced=True)
        steps = Steps(1, "Choosing a hash function")
        function = family.hash_function(parameters, solution.state, anchor_map)
        steps.end()
        return solution, function


class Family:
    """Solves of one set of statistics, which share what they have in common.

    Most of a solve does not depend on the weights of the objective: the penalty, the regression of
    the label groups, the starting codes and the trials that choose among them. Members agree in the
    parameters that decide the start (`Parameter.decides`), so these are found once for all, and
    differ in what decides the steps. What a member comes to does not depend on the others.
    """

    def __init__(
        self,
        parameters: Any,
        statistics: Statistics,
        seed: int,
        similarity: Similarity | None,
        validation: Validation | None = None,
    ) -> None:
        """Find the start; without a ``similarity`` it is applied in this thread."""
        groups = statistics.groups
        self._statistics, self._seed = statistics, seed
        ridge: float | str = parameters.ridge
        n_init = _count_starts(parameters.n_init, len(groups))
        begun = Steps(1 + n_init, f"Starting codes of {len(groups):,} label groups")
        anchored = parameters.anchors is not None
        validation = validation or Validation(statistics, seed, anchored=anchored)
        if isinstance(ridge, str):
            ridge = validation.penalty
        begun()
        self._problem = Problem.from_statistics(
            statistics,
            parameters.n_bits,
            ridge=ridge,
            similarity=similarity or group_similarity(groups, parameters.similarity),
        )
        few = len(groups) <= MAX_GROUPS
        # A vote of label sets that hardly ever come twice is none.
        auto: EncoderKind = "posterior" if few or groups.single_label else "ridge"
        self._encoder: EncoderKind = auto if parameters.encoder == "auto" else parameters.encoder
        self._trial: Trial | None = None
        self._balanced = self._encoder in VOTING
        self._kinds: tuple[EncoderKind, ...] = (self._encoder,)
        if parameters.encoder == "auto" and groups.single_label:
            self._kinds = VOTING  # which of both says better whose a row is depends on the data
        if self._encoder in BY_REGRESSION:
            self._trial = validation.trial(ridge, self._encoder, parameters.start == "nested")
        self._starts = []
        for restart, stream in enumerate(generator(seed, "starts").spawn(n_init)):
            self._starts.append(start_codes(self._problem, parameters.start, restart, stream))
            begun()
        self._choices: dict[tuple[Any, ...], Choice] = {}

    def solve(self, parameters: Any, *, traced: bool = False) -> Solution:
        """Run the alternation with the weights and the rules of a member."""
        weights = parameters.alpha, parameters.beta, parameters.gamma
        # From the problem of the member before, which has all that was computed so far.
        self._problem = self._problem.with_weights(*weights)
        schedule = Schedule(parameters.loss, parameters.solver, parameters.max_iter, parameters.tol)
        given = self._problem, schedule, self._starts, self._trial
        steps = Steps(n_steps(schedule, len(self._starts), self._trial is not None), "Solving")
        found = solve(*given, traced=traced, stepped=steps)
        steps.end()
        return found

    @property
    def hashes_by_codes_alone(self) -> bool:
        """Whether members with equal codes, sharpness and openness have equal hash functions."""
        return self._encoder in BY_REGRESSION

    def hash_function(
        self, parameters: Any, state: State, anchor_map: AnchorMap | None = None
    ) -> HashFunction:
        """The encoder of a member; without a map, for features that are mapped already, if any."""
        choice = self._choose(parameters.sharpness, parameters.openness, state.B)
        statistics, problem = self._regressed
        if choice.kind == "discriminant":
            shrinkage = SHRINKAGES[-1] if self._trial is None else self._trial.shrinkage
            problem = replace(problem, ridge=shrinkage)
        common = statistics, problem, state, anchor_map
        function = hash_function(choice.kind, *common, choice.sharpness)
        if not choice.openness:
            return function
        P = open_encoder(problem, state.B, generator(self._seed, "open"))
        affine = unstandardised(P, np.zeros(len(P)), statistics)
        return replace(function, opening=Opening(*affine, choice.openness * choice.reach))

    @cached_property
    def _regressed(self) -> tuple[Statistics, Problem]:
        """What the hash function is read off: a vote is the better for weighing classes alike."""
        balanced = self._statistics.balanced() if self._balanced else self._statistics
        if balanced is self._statistics:
            return balanced, self._problem
        l, ridge, S = self._problem.l, self._problem.ridge, self._problem.S  # noqa: E741
        return balanced, Problem.from_statistics(balanced, l, ridge=ridge, similarity=S)

    def _choose(self, sharpness: float | str, openness: float | str, codes: Floats) -> Choice:
        """How to weigh label scores and open code: as asked, or as rows left out say."""
        if self._trial is None:
            given = SHARPNESS if isinstance(sharpness, str) else sharpness
            closed = isinstance(openness, str) or self._encoder not in BY_REGRESSION
            return Choice(self._encoder, given, 0.0 if closed else float(openness))
        key = sharpness, openness, codes.tobytes()
        if key not in self._choices:
            if isinstance(sharpness, str):
                grids = {kind: SHARPNESS_GRID.get(kind, (SHARPNESS,)) for kind in self._kinds}
                votes = [(kind, power) for kind, powers in grids.items() for power in powers]
            else:  # a power is one of the first kind's scores
                votes = [(self._encoder, sharpness)]
            opennesses = OPENNESS_GRID if isinstance(openness, str) else (openness,)
            self._choices[key] = best_of(self._trial.attempt(codes, votes, opennesses))
        return self._choices[key]


def _count_starts(asked: int | str, n_groups: int) -> int:
    """How many starts are tried: all of what was asked for, or fewer the more groups there are."""
    if isinstance(asked, str):
        return max(1, RESTARTS * FEW_GROUPS // max(n_groups, FEW_GROUPS))
    return asked


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
