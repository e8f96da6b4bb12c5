"""Where random numbers come from: one seed, and a stream of its own for every purpose."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray


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


def splitmix64(numbers: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """The ``numbers``-th outputs, from 0, of SplitMix64 started at ``key`` (Steele et al., 2014).

    A hash of 64 bits: what a row gets follows from its number and the key, and nothing else.
    """
    z = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z
