"""Between the reference, which has one column per row, and the library, one per label group."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from sadih_dask.learning.labels import group_rows
from sadih_dask.learning.problem import Problem, State
from sadih_dask.learning.statistics import Statistics
from sadih_dask.learning.updates import updates
from tests.support import dense
from tests.support.dense import Array, Data, Kind, Loss, Solver
from tests.support.problems import Grouping, problems, random_problem
from tests.support.problems import Problem as Rows

KINDS: tuple[Kind, ...] = ("shared-label", "cosine")
LOSSES: tuple[Loss, ...] = ("l21", "l1")
SOLVERS: tuple[Solver, ...] = ("exact", "paper")
GROUPINGS: tuple[Grouping, ...] = ("free", "few-rows", "own")


@dataclass(frozen=True, eq=False)
class Twins:
    """The same problem twice: `data` for the reference, on standardised rows, and `problem`."""

    data: Data
    problem: Problem
    ids: NDArray[np.integer]

    @classmethod
    def of(cls, rows: Rows, kind: Kind = "shared-label") -> "Twins":
        standardised = dense.standardise(rows.features.T).T
        return cls(
            data=dense.dense_data(replace(rows, features=standardised), kind),
            problem=Problem.from_statistics(
                Statistics.of_block(rows.features, rows.labels),
                rows.n_bits,
                alpha=rows.alpha,
                beta=rows.beta,
                gamma=rows.gamma,
                similarity=kind,
            ),
            ids=group_rows(rows.labels)[1],
        )

    def expand(self, state: State) -> dense.State:
        """Repeat the column of each group for its rows."""
        return dense.State(B=state.B[:, self.ids], W=state.W, P1=state.P1, P2=state.P2)

    def collapse(self, state: dense.State) -> State:
        """Keep one column per group; its rows must agree."""
        first = np.unique(self.ids, return_index=True)[1]
        B: Array = np.ascontiguousarray(state.B[:, first])
        assert np.array_equal(B[:, self.ids], state.B)
        return State.of(self.problem, B, state.W, state.P1, state.P2)

    def random_start(self, rng: np.random.Generator) -> State:
        """Codes equal within groups and an orthogonal P1; for both, through `expand`."""
        return self.collapse(dense.random_start(self.data, rng))


def varied(seed: int, kind: Kind | None = None, **fixed: Any) -> tuple[Twins, State]:
    """A problem whose structure changes with the seed, one in four single-label, and a start.

    `fixed` are options of `random_problem` that do not change.
    """
    rng = np.random.default_rng(seed)
    single = seed % 4 == 3
    options: dict[str, Any] = {
        "labels": "int" if single else "multi-hot",
        "grouping": "free" if single else GROUPINGS[seed % 3],
        "correlated": seed % 2 == 0,
        "empty_class": seed % 5 == 0,
        "duplicate_class": not single and seed % 7 == 0,
        "unbalanced": seed % 4 == 1,
        "constant_feature": seed % 11 == 0,
    }
    twins = Twins.of(
        random_problem(rng, **options | fixed), KINDS[seed // 2 % 2] if kind is None else kind
    )
    return twins, twins.random_start(rng)


@st.composite
def situations(
    draw: st.DrawFn, solvers: tuple[Solver, ...] = SOLVERS, max_iter: int = 3
) -> tuple[Twins, State]:
    """A problem and a state in it: random, or one that an alternation has passed through."""
    twins = Twins.of(draw(problems()), draw(st.sampled_from(KINDS)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    state = twins.random_start(rng)
    steps = updates(draw(st.sampled_from(LOSSES)), draw(st.sampled_from(solvers)))
    for _ in range(draw(st.integers(0, max_iter))):
        for step in steps.values():
            state = step(twins.problem, state)
    return twins, state
