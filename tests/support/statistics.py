"""Statistics of rows by definition, two passes in extended precision, and comparing them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sadih_dask.learning.labels import LabelGroups, group_rows
from sadih_dask.learning.statistics import Statistics

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Reference:
    """What `Statistics` holds, rounded to float64 only at the end."""

    groups: LabelGroups
    counts: Array
    mean: Array
    sums: Array
    gram: Array


def reference(features: Array, labels: Array, n_classes: int | None = None) -> Reference:
    groups, ids = group_rows(labels, n_classes)
    X = features.astype(np.longdouble)
    mean = X.mean(axis=0)
    centred = X - mean
    return Reference(
        groups=groups,
        counts=np.array([np.sum(ids == k) for k in range(len(groups))]),
        mean=mean.astype(np.float64),
        sums=np.array([centred[ids == k].sum(axis=0) for k in range(len(groups))], np.float64),
        gram=(centred.T @ centred).astype(np.float64),
    )


def assert_same(
    found: Statistics,
    expected: Statistics | Reference,
    rtol: float = 1e-12,
    among: Statistics | Reference | None = None,
) -> None:
    """Equal groups and counts; the rest equal up to `rtol` of its natural size.

    That size is n sigma_i sigma_j for the Gram matrix and n sigma_j for the sums, of the rows
    themselves or of the rows `among` which they were summed. A mean cannot be known better than
    the spacing of floating-point numbers around it, and n times that goes into the sums.
    """
    assert found.groups == expected.groups
    np.testing.assert_array_equal(found.counts, expected.counts)
    whole = expected if among is None else among
    n, few = int(whole.counts.sum()), int(expected.counts.sum())
    deviation = np.sqrt(np.maximum(np.diagonal(whole.gram), 0.0) / n)
    unit = rtol * deviation + 8 * np.spacing(np.abs(expected.mean))
    assert np.all(np.abs(found.mean - expected.mean) <= n / few * unit)
    assert np.all(np.abs(found.sums - expected.sums) <= n * unit)
    size = np.outer(unit, deviation) + np.outer(deviation, unit) + np.outer(unit, unit)
    assert np.all(np.abs(found.gram - expected.gram) <= n * n / few * size)


def same_statistics(found: Statistics, expected: Statistics) -> None:
    """Equal to the last bit."""
    assert found.groups == expected.groups
    for name in ("counts", "mean", "sums", "gram"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
