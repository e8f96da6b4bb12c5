"""The estimator's parameters, each declared once, and the combinations that a search tries.

Whoever offers them (the constructor, a configuration, the command line) takes kind, bounds,
default and help from `PARAMETERS`; what a value decides is said there too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from itertools import product
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from sadih_dask.errors import InputError
from sadih_dask.learning.sample import KEPT_ROWS
from sadih_dask.types import EncoderKind, Loss, SimilarityKind, SolverKind, StartKind

MAX_BITS = 2048
"""Steps solve eigenproblems of this size, so time grows with its cube: minutes here, then hours."""


@dataclass(frozen=True)
class Parameter:
    """One argument of the constructor.

    kind      int, float (a finite one) or str
    default   that of the constructor
    help      what it is, in a few words
    decides   "scan": the statistics, so that another value needs another scan of the data;
              "start": the first codes, which solves that differ in the others can share;
              "steps": the steps from there, and the hash function
    choices   the words that are allowed, of a str
    least, most   bounds of a number, which it may reach
    positive  whether a number must be above 0
    also      what may stand in place of a number: None or a word
    objects   classes whose instances may
    """

    kind: type[int] | type[float] | type[str]
    default: Any
    help: str
    decides: Literal["scan", "start", "steps"]
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None
    positive: bool = False
    also: tuple[str | None, ...] = ()
    objects: tuple[type, ...] = ()

    def check(self, name: str, value: Any) -> None:
        """Refuse a value that means nothing, naming what is allowed."""
        if isinstance(value, str | None):
            if value not in self.choices + self.also:
                raise InputError(f"{name}={value!r}{self._expected}")
        elif not isinstance(value, self.objects) and not self._in_range(value):
            raise InputError(f"{name}={value!r}{self._expected}")

    def _in_range(self, value: Any) -> bool:
        if self.kind is int:
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            return whole and self.least <= value <= (value if self.most is None else self.most)
        if self.kind is float and isinstance(value, Real):
            within = 0 <= float(value) < np.inf and (self.most is None or value <= self.most)
            return within and not (self.positive and value == 0)
        return False

    @property
    def _expected(self) -> str:
        if self.kind is str:
            return f" is unknown; choose one of {self.choices}"
        if self.kind is float:
            range_ = "a finite positive number" if self.positive else "a finite number of 0 or more"
            if self.most is not None:
                range_ = f"a number from 0 to {self.most}"
        elif self.most is None:
            range_ = f"a whole number of {self.least} or more"
        else:
            range_ = f"a whole number from {self.least} to {self.most}"
        others = [
            "an array" if kind is np.ndarray else f"a numpy.random.{kind.__name__}"
            for kind in self.objects
        ]
        return "; expected " + " or ".join([range_, *others, *map(repr, self.also)])


def _words(kind: Any) -> tuple[str, ...]:
    return get_args(kind)


PARAMETERS: dict[str, Parameter] = {
    "n_bits": Parameter(int, 64, "code length", "start", least=1, most=MAX_BITS),
    "loss": Parameter(str, "l21", "loss of the codes", "steps", _words(Loss)),
    "solver": Parameter(str, "exact", "update rules", "steps", _words(SolverKind)),
    "start": Parameter(str, "separated", "starting codes", "start", _words(StartKind)),
    "encoder": Parameter(str, "auto", "hash function", "start", ("auto", *_words(EncoderKind))),
    "anchors": Parameter(
        int, 1000, "radial basis functions", "scan", least=1, also=(None,), objects=(np.ndarray,)
    ),
    "sigma": Parameter(float, None, "their width", "scan", positive=True, also=(None,)),
    "alpha": Parameter(float, 0.01, "weight of reconstruction", "steps"),
    "beta": Parameter(float, 0.01, "weight of encoding", "steps"),
    "gamma": Parameter(float, 1e-3, "weight of regularisation", "steps"),
    "ridge": Parameter(float, "auto", "penalty of the encoder", "start", also=("auto",)),
    "sharpness": Parameter(
        float, "auto", "power of the vote of classes", "steps", positive=True, also=("auto",)
    ),
    "openness": Parameter(
        float, "auto", "weight of other classes than those known", "steps", most=1, also=("auto",)
    ),
    "similarity": Parameter(
        str, "shared-label", "similarity of labels", "start", _words(SimilarityKind)
    ),
    "max_iter": Parameter(int, 10, "iterations of a start at most", "steps"),
    "tol": Parameter(float, 1e-5, "relative decrease that ends the iterations", "steps"),
    "n_init": Parameter(int, "auto", "starts to try", "start", least=1, also=("auto",)),
    "block_rows": Parameter(int, 8192, "rows that are read at a time", "scan", least=1),
    "random_state": Parameter(
        int,
        0,
        "seed of all random numbers",
        "scan",
        also=(None,),
        objects=(np.random.Generator, np.random.RandomState),
    ),
}

OTHER_PARAMETERS: dict[str, Parameter] = {
    "nu": Parameter(float, 1e-5, "weight of features beside labels", "steps"),
    "sample_rows": Parameter(int, KEPT_ROWS, "rows that are learned from", "scan", least=2),
}
"""What other methods have beside parameters of SADIH."""

ALL_PARAMETERS = PARAMETERS | OTHER_PARAMETERS


def parameters_of(method: type) -> dict[str, Parameter]:
    """What the constructor of a method takes, each with the default that it has there."""
    said = signature(method).parameters
    return {name: replace(ALL_PARAMETERS[name], default=p.default) for name, p in said.items()}


SEARCH_PARAMETERS: dict[str, Parameter] = {
    "n_folds": Parameter(int, 5, "parts that are left out in turn", "scan", least=2),
    "n_queries": Parameter(int, 1000, "rows of each part that are looked up", "scan", least=1),
}
"""What a search by cross-validation (`SADIHCV`) has beside a grid."""

DECIDED_BY_THE_SCAN = tuple(name for name, p in ALL_PARAMETERS.items() if p.decides == "scan")
"""Parameters that the statistics depend on; any other can be changed without reading rows."""


def check_parameters(estimator: Any) -> None:
    """Refuse constructor arguments that mean nothing."""
    for name, parameter in parameters_of(type(estimator)).items():
        parameter.check(name, getattr(estimator, name))


def check_lengths(lengths: Iterable[int]) -> list[int]:
    """Code lengths, each one that a model can have."""
    found = list(lengths)
    for n_bits in found:
        PARAMETERS["n_bits"].check("n_bits", n_bits)
    return found


# -- combinations -----------------------------------------------------------------------------

Grid: TypeAlias = Mapping[str, Sequence[Any]]

MAX_QUERIES = 10_000
"""Queries that an evaluation looks up unless told otherwise: their standard error is 0.005 at most,
and all of a large collection would take queries x rows."""

CLASS_FOLDS = 4
"""Parts of the classes that an evaluation leaves out in turn, to look them up as unseen ones."""

DEFAULT_GRID: dict[str, tuple[float, ...]] = {
    "ridge": (1e-5, 1e-3, 1e-1),
    "sharpness": (1.0, 2.0, 4.0),
    "openness": (0.0, 0.5),
}
"""What decides the quality. The weights that the paper chooses, alpha and beta, leave codes as they
are over ten decades."""


def candidates(grid: Grid, n_bits: Any) -> list[dict[str, Any]]:
    """Every combination of the grid at every code length, the lengths first, all checked.

    Lengths are those of the grid, if it has "n_bits", else ``n_bits``.
    """
    columns = {"n_bits": _values("n_bits", [n_bits] if np.ndim(n_bits) == 0 else n_bits)}
    columns |= {name: _values(name, values) for name, values in _checked_names(grid).items()}
    for name, values in columns.items():
        for value in values:
            PARAMETERS[name].check(name, value)
    return [dict(zip(columns, values, strict=True)) for values in product(*columns.values())]


def _checked_names(grid: Grid) -> Grid:
    if not isinstance(grid, Mapping):
        raise InputError(
            f"param_grid is a {type(grid).__name__}; expected a dict of parameter names and lists "
            "of values, such as {'alpha': [0.01, 0.1, 1]}"
        )
    for name in grid:
        if name in DECIDED_BY_THE_SCAN:
            raise InputError(
                f"{name!r} cannot be in the grid: another value needs another scan of the data, "
                "and a search makes one. Set it on the estimator, and search again for another"
            )
        if name not in PARAMETERS:
            allowed = sorted(set(PARAMETERS) - set(DECIDED_BY_THE_SCAN))
            raise InputError(
                f"{name!r} is no parameter of SADIH; a grid may have {', '.join(allowed)}"
            )
    return grid


def _values(name: str, values: Any) -> list[Any]:
    """Values of a parameter as plain Python objects, each once."""
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
        raise InputError(f"{name} in the grid is {values!r}; expected a list of values to try")
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    if not plain:
        raise InputError(f"{name} in the grid has no values; give one or more")
    return [value for k, value in enumerate(plain) if value not in plain[:k]]
