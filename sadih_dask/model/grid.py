"""Which parameters a search tries: the candidates, checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from sklearn.base import clone

from sadih_dask.errors import InputError
from sadih_dask.model.estimator import SADIH
from sadih_dask.model.parameters import DECIDED_BY_THE_SCAN, check_parameters

Grid: TypeAlias = Mapping[str, Sequence[Any]]

PAPER_GRID: dict[str, tuple[float, ...]] = {
    "alpha": (0.01, 0.1, 1.0, 5.0, 10.0),
    "beta": (0.01, 0.1, 1.0, 5.0, 10.0),
}
"""What the paper chooses the weights from, by five-fold cross-validation."""


def candidates(model: SADIH, grid: Grid, n_bits: Any) -> list[dict[str, Any]]:
    """Every combination of the grid at every code length, the lengths first.

    Lengths are those of the grid, if it has "n_bits", else ``n_bits``. All candidates are checked.
    """
    columns = {"n_bits": _values("n_bits", [n_bits] if np.ndim(n_bits) == 0 else n_bits)}
    columns |= {name: _values(name, values) for name, values in _checked_names(model, grid).items()}
    found = [dict(zip(columns, values, strict=True)) for values in product(*columns.values())]
    for candidate in found:
        check_parameters(clone(model).set_params(**candidate))
    return found


def _checked_names(model: SADIH, grid: Grid) -> Grid:
    if not isinstance(grid, Mapping):
        raise InputError(
            f"param_grid is a {type(grid).__name__}; expected a dict of parameter names and lists "
            "of values, such as {'alpha': [0.01, 0.1, 1]}"
        )
    known = set(model.get_params())
    for name in grid:
        if name in DECIDED_BY_THE_SCAN:
            raise InputError(
                f"{name!r} cannot be in the grid: another value needs another scan of the data, "
                "and a search makes one. Set it on the estimator, and search again for another"
            )
        if name not in known:
            allowed = sorted(known - set(DECIDED_BY_THE_SCAN))
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
