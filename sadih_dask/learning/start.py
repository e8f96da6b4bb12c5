"""Starting codes: the alternation moves codes little, so where it starts decides much."""

from __future__ import annotations

import numpy as np

from sadih_dask.arrays import Floats
from sadih_dask.learning.problem import Problem


def random_codes(problem: Problem, rng: np.random.Generator) -> Floats:
    """B = sgn(W^T Q) for a standard normal W: the start that the paper implies."""
    W = rng.standard_normal((problem.Gt.shape[1], problem.l))
    V = np.ascontiguousarray((problem.Gt @ W).T)
    return np.where(problem.S.apply(V * problem.N) >= 0.0, 1.0, -1.0)


def separated_codes(problem: Problem, rng: np.random.Generator) -> Floats:
    """Placeholder for measured choice."""
    return random_codes(problem, rng)
