"""The defaults on small hard cases: nothing collapses, and codes that know labels beat ITQ."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from sadih_dask import SADIH
from sadih_dask.model.methods.classifier import ClassCodes
from sadih_dask.model.methods.itq import ITQ
from tests.benchmarks.bench_robustness import (
    Case,
    divide,
    few,
    gaussian,
    hashed,
    imbalanced,
    measure,
    noisy,
)


def digits() -> Case:
    X, y = load_digits(return_X_y=True)
    return divide("digits", X.astype(np.float32), y, n=300)


@pytest.mark.parametrize(
    ("case", "least"),
    [
        (noisy(digits()), 0.9),
        (imbalanced(digits()), 0.8),
        (few(digits(), 5), 0.75),
        (divide("Gaussian", *gaussian(100, 10, 32, 0.7)), 0.8),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else None,
)
def test_hard_cases(case: Case, least: float) -> None:
    learned, fresh, _ = measure(case, hashed(SADIH, case, 32))
    assert learned > least
    assert fresh > measure(case, hashed(ITQ, case, 32))[1]
    assert fresh > measure(case, hashed(ClassCodes, case, 32))[1] - 0.01


def test_few_rows_give_the_same_quality_in_any_order() -> None:
    X, y = gaussian(20, 12, 100, 2.0)
    scores = []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(120)
        model = SADIH(16, anchors=None, n_init=2).fit(X[:120][order], y[:120][order])
        scores.append(model.score(X[120:], y[120:]))
    assert max(scores) - min(scores) < 0.1


def test_classes_that_arrive_later_are_open_at_once_and_known_after() -> None:
    X, y = load_digits(return_X_y=True)
    known = y < 7
    model = SADIH(32, anchors=200, openness=0.6, n_init=2).fit(X[known], y[known])
    assert model.hash_function_.opening is not None
    new = Case("new", X[known], y[known], X[known][:300], y[known][:300], X[~known], y[~known])
    closed = SADIH(32, anchors=200, openness=0.0, n_init=2).fit(X[known], y[known])
    before = [measure(new, (m.transform, None))[2] for m in (closed, model)]
    assert before[1] > before[0]
    model.partial_fit(X[~known], y[~known])
    assert measure(new, (model.transform, None))[2] > max(before)
