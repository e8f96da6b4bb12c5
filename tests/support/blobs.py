"""Labelled rows in overlapping clouds, one a class or one a label set."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sadih_dask import SADIH

Array = NDArray[Any]

QUICK: dict[str, Any] = {"n_init": 2, "max_iter": 3}
"""Parameters with which a fit of small data takes a few hundredths of a second."""


def blobs(n: int = 60, d: int = 5, c: int = 3, *, seed: int = 0) -> tuple[Array, Array]:
    """Features (n, d) and class numbers (n,); every class has a row among any c in a row."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % c
    return rng.normal(size=(n, d)) + rng.normal(scale=1.5, size=(c, d))[labels], labels


def tagged_blobs(n: int = 60, d: int = 5, c: int = 4, *, seed: int = 0) -> tuple[Array, Array]:
    """Features (n, d) and a multi-hot matrix (n, c) of one to three labels a row."""
    rng = np.random.default_rng(seed)
    labels = np.zeros((n, c), np.int64)
    for i in range(n):
        labels[i, rng.choice(c, size=rng.integers(1, min(c, 3) + 1), replace=False)] = 1
    return rng.normal(size=(n, d)) + labels @ rng.normal(scale=1.5, size=(c, d)), labels


def same_model(found: SADIH, expected: SADIH, rows: Array) -> None:
    """Equal classes, label groups, their codes, and codes of some rows."""
    np.testing.assert_array_equal(found.classes_, expected.classes_)
    assert found.groups_ == expected.groups_
    np.testing.assert_array_equal(found.label_codes_, expected.label_codes_)
    np.testing.assert_array_equal(found.transform(rows), expected.transform(rows))
