"""What the estimator's parameters may be."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, get_args

import numpy as np

from sadih_dask.errors import InputError
from sadih_dask.types import EncoderKind, Loss, SimilarityKind, SolverKind, StartKind

CHOICES: dict[str, tuple[str, ...]] = {
    "loss": get_args(Loss),
    "solver": get_args(SolverKind),
    "start": get_args(StartKind),
    "encoder": ("auto", *get_args(EncoderKind)),
    "similarity": get_args(SimilarityKind),
}

DECIDED_BY_THE_SCAN = ("anchors", "sigma", "block_rows", "random_state")
"""Parameters that the statistics depend on; any other can be changed without reading rows."""


def check_parameters(estimator: Any) -> None:
    """Refuse constructor arguments that mean nothing, naming what is allowed."""
    for name, allowed in CHOICES.items():
        value = getattr(estimator, name)
        if not isinstance(value, str) or value not in allowed:
            raise InputError(f"{name}={value!r} is unknown; choose one of {allowed}")
    for name in ("n_bits", "anchors", "max_iter", "n_init", "block_rows"):
        value = getattr(estimator, name)
        least = 0 if name == "max_iter" else 1
        if (name, value) in (("anchors", None), ("n_init", "auto")):
            continue
        if not _is_whole(value) or value < least:
            raise InputError(f"{name}={value!r}; expected a whole number of {least} or more")
    for name in ("alpha", "beta", "gamma", "ridge", "tol"):
        value = getattr(estimator, name)
        if not isinstance(value, Real) or not 0 <= float(value) < np.inf:
            raise InputError(f"{name}={value!r}; expected a finite number of 0 or more")
    sigma, state = estimator.sigma, estimator.random_state
    if sigma is not None and not (isinstance(sigma, Real) and 0 < float(sigma) < np.inf):
        raise InputError(f"sigma={sigma!r}; expected a finite positive number or None")
    drawn = isinstance(state, np.random.Generator | np.random.RandomState | None)
    if not drawn and not (_is_whole(state) and state >= 0):
        raise InputError(
            f"random_state={state!r}; expected a whole number of 0 or more, a "
            "numpy.random.Generator or RandomState, or None"
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
