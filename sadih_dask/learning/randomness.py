"""Where random numbers come from: one seed, and a stream of its own for every purpose."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np


def draw_seed(random_state: Any) -> int:
    """One integer from whatever was given, from which every random number follows."""
    if isinstance(random_state, Integral):
        return int(random_state)
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    return int(np.random.default_rng(random_state).integers(2**63))


def generator(seed: int, purpose: str) -> np.random.Generator:
    """Independent random numbers for each purpose, so that one does not shift the other."""
    return np.random.default_rng([seed, *purpose.encode()])
