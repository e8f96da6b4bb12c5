"""Small random training problems, in rows as a user would pass them.

`random_problem` draws one from a NumPy generator; `problems` is the Hypothesis strategy over its
options, which therefore shrinks towards few rows, few classes and no special structure.
"""

from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

LabelKind = Literal["int", "multi-hot"]
Grouping = Literal["free", "few-rows", "own"]


@dataclass(frozen=True, eq=False)
class Problem:
    """Features (n, d), labels (n,) or (n, c), and the parameters of the objective."""

    features: NDArray[np.float64]
    labels: NDArray[np.integer]
    n_bits: int
    alpha: float
    beta: float
    gamma: float


def random_problem(
    rng: np.random.Generator,
    *,
    n: int | None = None,
    d: int | None = None,
    c: int | None = None,
    n_bits: int | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    gamma: float | None = None,
    labels: LabelKind = "multi-hot",
    grouping: Grouping = "free",
    correlated: bool = False,
    empty_class: bool = False,
    duplicate_class: bool = False,
    unbalanced: bool = False,
    constant_feature: bool = False,
) -> Problem:
    """Draw a problem; what is not given is drawn too.

    Every row has a label. `grouping` says how many rows share their label set: as it comes, at
    most three where there are enough label sets, or none. `correlated` makes labels follow one
    another, `unbalanced` gives most rows to a few label sets. `empty_class` adds a class without
    rows and `duplicate_class` one that always occurs with another. `n_bits` may exceed c and d.
    """
    extra = empty_class + duplicate_class
    if c is None:
        c = int(rng.integers(6 if grouping == "own" else 1 + extra, 7))
    if n is None:
        n = int(rng.integers(6, 1 + min(40, 2 ** (c - extra) - 1 if grouping == "own" else 40)))
    d = int(rng.integers(2, 13)) if d is None else d
    n_bits = int(rng.integers(2, 17)) if n_bits is None else n_bits

    sets = _label_sets(rng, labels, c - extra, correlated)
    if len(sets) == 0 or (duplicate_class and labels == "int"):
        raise ValueError(f"{c} classes cannot have that structure with {labels} labels")
    group = _group_of_row(rng, n, len(sets), grouping, unbalanced)
    Y = sets[group]
    features = rng.standard_normal((n, d)) + Y @ rng.normal(scale=1.5, size=(c - extra, d))
    features = features * rng.uniform(0.5, 2.0, size=d) + rng.normal(size=d)
    if constant_feature:
        features[:, rng.integers(d)] = 0.3
    return Problem(
        features=features,
        labels=_arrange(rng, Y, labels, empty_class, duplicate_class),
        n_bits=n_bits,
        alpha=float(10 ** rng.uniform(-2, 1)) if alpha is None else alpha,
        beta=float(10 ** rng.uniform(-2, 1)) if beta is None else beta,
        gamma=float(10 ** rng.uniform(-3, 0)) if gamma is None else gamma,
    )


def _label_sets(
    rng: np.random.Generator, labels: LabelKind, c: int, correlated: bool
) -> NDArray[np.uint8]:
    """All label sets over c classes, in random order; the likelier come first."""
    if labels == "int":
        return rng.permutation(np.eye(c, dtype=np.uint8))
    every = np.array(list(product([0, 1], repeat=c))[1:], dtype=np.uint8).reshape(-1, c)
    # A chain: the first label is a coin flip, each next one repeats its neighbour or not.
    repeats = 0.85 if correlated else 0.5
    same = (every[:, 1:] == every[:, :-1]).sum(axis=1)
    likelihood = repeats**same * (1 - repeats) ** (c - 1 - same)
    # Gumbel noise on the logarithm: a weighted draw without replacement.
    return every[np.argsort(-(np.log(likelihood) + rng.gumbel(size=len(every))))]


def _group_of_row(
    rng: np.random.Generator, n: int, available: int, grouping: Grouping, unbalanced: bool
) -> NDArray[np.intp]:
    """Which label set each row has; every set in use has a row."""
    if grouping == "own":
        if available < n:
            raise ValueError(f"{n} rows cannot all differ with {available} label sets")
        return rng.permutation(n)
    if grouping == "few-rows":
        used = min(available, -(-n // (3 if unbalanced else 2)))
    else:
        used = int(rng.integers(1, 1 + min(available, n // 2)))
    rest = n - used
    if unbalanced:
        share = 0.4 ** np.arange(used)
        more = rng.choice(used, size=rest, p=share / share.sum())
    elif grouping == "few-rows":
        more = np.arange(rest) % used
    else:
        more = rng.integers(used, size=rest)
    return rng.permutation(np.concatenate([np.arange(used), more]))


def _arrange(
    rng: np.random.Generator,
    Y: NDArray[np.uint8],
    labels: LabelKind,
    empty_class: bool,
    duplicate_class: bool,
) -> NDArray[np.integer]:
    """Add the special classes, and put labels into the form asked for."""
    if labels == "int":
        numbers: NDArray[np.integer] = Y.argmax(axis=1)
        if not empty_class:
            return numbers
        # Skip a number below the largest: above it nobody could tell that a class is missing.
        gap = rng.integers(numbers.max() + 1)
        shifted: NDArray[np.integer] = numbers + (numbers >= gap)
        return shifted
    columns = [Y]
    if duplicate_class:
        columns.append(Y[:, [rng.integers(Y.shape[1])]])
    if empty_class:
        columns.append(np.zeros((len(Y), 1), dtype=np.uint8))
    return rng.permutation(np.hstack(columns), axis=1)


@st.composite
def problems(
    draw: st.DrawFn,
    labels: LabelKind | None = None,
    max_rows: int = 40,
    max_bits: int = 16,
) -> Problem:
    """Every structure that `random_problem` knows: n 6..40, d 2..12, c 1..6, n_bits 2..16."""
    kinds: list[LabelKind] = ["int", "multi-hot"]
    kind = draw(st.sampled_from(kinds)) if labels is None else labels
    empty_class = draw(st.booleans())
    duplicate_class = kind == "multi-hot" and draw(st.booleans())
    c = draw(st.integers(1 + empty_class + duplicate_class, 6))
    live = c - empty_class - duplicate_class
    groupings: list[Grouping] = ["free", "few-rows"]
    distinct = 2**live - 1 if kind == "multi-hot" else 0
    if distinct >= 6:
        groupings.append("own")
    grouping = draw(st.sampled_from(groupings))
    rows = min(max_rows, distinct) if grouping == "own" else max_rows
    weight = st.sampled_from([1.0, 0.01, 0.1, 10.0])
    return random_problem(
        np.random.default_rng(draw(st.integers(0, 2**32 - 1))),
        n=draw(st.integers(6, rows)),
        d=draw(st.integers(2, 12)),
        c=c,
        n_bits=draw(st.integers(2, max_bits)),
        alpha=draw(weight),
        beta=draw(weight),
        gamma=draw(st.sampled_from([1.0, 0.1, 0.001])),
        labels=kind,
        grouping=grouping,
        correlated=draw(st.booleans()),
        empty_class=empty_class,
        duplicate_class=duplicate_class,
        unbalanced=draw(st.booleans()),
        constant_feature=draw(st.booleans()),
    )
