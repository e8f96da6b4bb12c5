"""Rows left out, against statistics and regressions that never had them."""

from typing import Any

import numpy as np
import pytest

from sadih_dask.learning.held_out import (
    DEFAULT_PENALTY,
    PENALTIES,
    choose_penalty,
    class_folds,
    hold_out,
    lost_by_rank,
)
from sadih_dask.learning.open_world import open_encoder
from sadih_dask.learning.problem import Problem
from sadih_dask.learning.sample import row_keys
from sadih_dask.learning.statistics import Statistics
from tests.support import dense
from tests.support.datasets import blobs, tagged_blobs


def seeded() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("make", [blobs, tagged_blobs])
def test_every_row_is_left_out_once_and_the_others_are_learned_from(make: Any) -> None:
    X, y = make(60)
    statistics = Statistics.of_block(X, y)
    parts = hold_out(statistics, 0.01)
    assert len(parts) == 5
    order = np.argsort(row_keys(X))
    for k, part in enumerate(parts):
        out = order[k::5]
        others = np.setdiff1d(np.arange(60), out)
        expected = Statistics.of_block(X[others], y[others], statistics.groups.n_classes)
        np.testing.assert_allclose(part.training.gram, expected.gram, atol=1e-9)
        np.testing.assert_allclose(part.training.sums, expected.sums, atol=1e-9)
        scaled = (X[out] - X[others].mean(axis=0)) / X[others].std(axis=0)
        np.testing.assert_allclose(part.features, scaled, atol=1e-9)
        B = np.random.default_rng(1).choice([-1.0, 1.0], size=(6, len(statistics.groups)))
        groups = statistics.groups.matrix.toarray()
        own = groups if y.ndim == 2 else np.eye(statistics.groups.n_classes)
        ids = [
            int(np.flatnonzero((groups == own[t] if y.ndim == 1 else groups == t).all(1))[0])
            for t in y[others]
        ]
        P, mean = dense.ridge(dense.standardise(X[others].T), B[:, ids], 0.01)
        np.testing.assert_allclose(
            part.label_scores("ridge", B, 2.0), scaled @ P.T + mean, atol=1e-8
        )


def test_columns_that_only_rows_left_out_have_values_in_are_constant() -> None:
    X, y = blobs(100, 5)
    X = np.hstack([X, np.zeros((100, 2))]).astype(np.float32)
    X[np.argsort(row_keys(X))[3], 5] = 0.1
    parts = hold_out(Statistics.of_block(X, y), 1e-3)
    for part in parts:
        assert np.abs(part.features[:, 5]).max() < 100
        open_encoder(part.problem, np.ones((4, len(part.kept))), seeded())  # and can be solved
    assert any(part.training.gram[5, 5] == 0.0 for part in parts)


def test_penalties_fit_the_data() -> None:
    """Many rows and features that say it all need none; noise in as many features as rows does."""
    X, y = blobs(3000, 5)
    assert choose_penalty(Statistics.of_block(X, y), seeded()) <= 1e-2
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    X = np.eye(3)[y] @ rng.normal(size=(3, 60)) * 0.5 + rng.normal(size=(60, 60))
    assert choose_penalty(Statistics.of_block(X, y), seeded()) >= 0.1
    few = Statistics.of_block(X[:2], y[:2])
    assert choose_penalty(few, seeded()) == DEFAULT_PENALTY


def test_the_loss_by_rank_is_that_of_a_ranking() -> None:
    rng = np.random.default_rng(0)
    scores, label, n_rows = rng.normal(size=(20, 6)), rng.integers(6, size=20), 4000
    lost = lost_by_rank(scores, label)
    for row, own, found in zip(scores, label, lost, strict=True):
        ranking = np.repeat(np.argsort(-row), n_rows)  # whole classes, one behind the other
        places = 1 + np.flatnonzero(ranking == own)
        precision = np.mean(np.arange(1, n_rows + 1) / places)
        assert found == pytest.approx(1.0 - precision, abs=1e-3)


def test_the_penalty_does_not_depend_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(0, 20, 100)
    X = rng.normal(size=(20, 80))[y] + 2 * rng.normal(size=(100, 80))
    found = set()
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(100)
        found.add(choose_penalty(Statistics.of_block(X[order], y[order]), seeded()))
    assert len(found) == 1
    assert found <= set(PENALTIES)


def test_classes_that_are_left_out_are_unknown() -> None:
    X, y = blobs(300, 5, 6)
    statistics = Statistics.of_block(X, y)
    part = hold_out(statistics, 0.01)[0]
    folds = class_folds(part, 3, seeded())
    assert sum(len(fold.group) for fold in folds) == len(part.group)
    for fold in folds:
        out = set(fold.group.tolist())
        assert len(out) == 2
        assert out.isdisjoint(fold.kept.tolist())
        assert len(fold.kept) == 4
        assert np.all(fold.scores[:, sorted(out)] == 0.0)


def test_weighted_statistics_are_those_of_repeated_rows() -> None:
    """Classes that scatter alike: then repeating the rows of one changes means and nothing else."""
    rng = np.random.default_rng(0)
    shape = rng.normal(size=(40, 4))
    shape -= shape.mean(axis=0)
    X = np.vstack([shape + centre for centre in rng.normal(size=(3, 4))])
    y = np.repeat(np.arange(3), 40)
    found = Statistics.of_block(X, y).weighted(np.array([40.0, 120.0, 0.0]))
    rows = np.concatenate([np.arange(40), *[np.arange(40, 80)] * 3])
    expected = Statistics.of_block(X[rows], y[rows], 3)
    assert found.groups == expected.groups
    for name in ("counts", "mean", "sums", "gram"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-9)
    assert set(found.sample.group.tolist()) == {0, 1}


def test_balance() -> None:
    X, y = blobs(90, 4, 3)
    assert (even := Statistics.of_block(X, np.arange(90) % 3)).balanced() is even
    uneven = Statistics.of_block(X[np.argsort(y)], np.repeat([0, 1, 2], [80, 8, 2]))
    found = uneven.balanced().counts
    assert found.sum() == pytest.approx(90, abs=2)
    assert 2 < found[2] < found[1] < found[0] < 80


@pytest.mark.parametrize("n_bits", [2, 4, 9])
def test_open_codes_tell_classes_apart_that_nobody_has_seen(n_bits: int) -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(12, 12))
    means = 3 * rng.normal(size=(40, 12))
    y = np.repeat(np.arange(40), 20)
    X = means[y] + rng.normal(size=(800, 12)) @ noise
    known, new = y < 30, y >= 30
    problem = Problem.from_statistics(Statistics.of_block(X[known], y[known]), n_bits)
    B = rng.choice([-1.0, 1.0], size=(n_bits, 30))
    P = open_encoder(problem, B, seeded())
    assert P.shape == (n_bits, 12)
    scaled = (X[new] - X[known].mean(axis=0)) / X[known].std(axis=0)
    codes, labels = np.sign(scaled @ P.T), y[new]
    same = labels[:, None] == labels
    agree = codes @ codes.T / n_bits
    plain = np.sign(scaled[:, :n_bits]) @ np.sign(scaled[:, :n_bits]).T / n_bits
    gap, floor = (a[same].mean() - a[~same].mean() for a in (agree, plain))
    assert gap > max(0.2, floor)
    # The signs of eigenvectors are anybody's guess, and must not matter.
    again = open_encoder(problem, B, seeded())
    np.testing.assert_allclose(again, P, atol=1e-8)
