"""Starting codes: where the alternation begins."""

from typing import Any

import numpy as np
import pytest

from sadih_dask.learning.problem import Problem
from sadih_dask.learning.start import (
    PREDICTABILITY,
    TEMPERATURE,
    distinct,
    prefixes,
    random_codes,
    separated_codes,
    spectral_codes,
    start_codes,
)
from sadih_dask.learning.statistics import Statistics
from tests.support.datasets import blobs, tagged_blobs

STARTS = [separated_codes, random_codes, spectral_codes]


def pose(
    make: Any = blobs, n_bits: int = 8, similarity: Any = "shared-label", **size: Any
) -> Problem:
    statistics = Statistics.of_block(*make(**size))
    return Problem.from_statistics(statistics, n_bits, similarity=similarity)


def loss(problem: Problem, B: Any, eta: float) -> float:
    """What `separated_codes` says that it lowers, with loops over groups and bits."""
    g, tau = len(problem.N), TEMPERATURE * np.sqrt(problem.l)
    S, K = problem.dense_S, problem.regression.predictability
    weight = np.array(
        [
            [problem.N[i] * problem.N[j] * abs(S[i, j]) * (i != j) for j in range(g)]
            for i in range(g)
        ]
    )
    weight /= weight.sum()
    apart = sum(
        weight[i, j] * np.exp(-np.sign(S[i, j]) * (B[:, i] @ B[:, j]) / tau)
        for i in range(g)
        for j in range(g)
    )
    return float(apart - eta * sum(b @ K @ b for b in B))


@pytest.mark.parametrize("make", [blobs, tagged_blobs])
@pytest.mark.parametrize("similarity", ["shared-label", "cosine"])
@pytest.mark.parametrize("eta", PREDICTABILITY)
def test_no_single_flip_lowers_the_loss(make: Any, similarity: str, eta: float) -> None:
    problem = pose(make, 6, similarity)
    B = separated_codes(problem, np.random.default_rng(0), eta)
    reached = loss(problem, B, eta)
    for k in range(6):
        for i in range(len(problem.N)):
            flipped = B.copy()
            flipped[k, i] *= -1
            assert loss(problem, flipped, eta) >= reached - 1e-9


def test_the_first_bits_of_nested_codes_are_codes_of_their_own() -> None:
    problem = pose(blobs, 40)
    B = separated_codes(problem, np.random.default_rng(0), 0.4, nested=True)
    first = 0
    for last in prefixes(40):
        whole = pose(blobs, last)
        reached = loss(whole, B[:last], 0.4)
        for k in range(first, last):
            for i in range(len(problem.N)):
                flipped = B[:last].copy()
                flipped[k, i] *= -1
                assert loss(whole, flipped, 0.4) >= reached - 1e-9
        first = last
    assert first == 40


@pytest.mark.parametrize("make", [blobs, tagged_blobs])
def test_the_loss_is_lower_than_that_of_random_codes(make: Any) -> None:
    problem = pose(make)
    rng = np.random.default_rng(0)
    reached = loss(problem, separated_codes(problem, rng, 0.4), 0.4)
    drawn = [rng.choice([-1.0, 1.0], size=(8, len(problem.N))) for _ in range(50)]
    assert reached <= min(loss(problem, B, 0.4) for B in drawn) + 1e-9


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("make", [blobs, tagged_blobs])
def test_codes_are_signs_and_follow_from_the_generator(start: Any, make: Any) -> None:
    problem = pose(make)
    first, again, other = (start(problem, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert first.shape == (8, len(problem.N))
    assert first.dtype == np.float64
    assert set(np.unique(first)) <= {-1.0, 1.0}
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(("n_bits", "c"), [(1, 2), (2, 4), (3, 8), (4, 10), (8, 20), (16, 5)])
def test_every_class_has_a_code_of_its_own(n_bits: int, c: int) -> None:
    problem = pose(n_bits=n_bits, n=20 * c, d=8, c=c)
    for seed in range(3):
        codes = separated_codes(problem, np.random.default_rng(seed))
        assert len(np.unique(codes, axis=1).T) == c


def test_the_distances_between_classes_are_far_above_those_of_random_codes() -> None:
    problem = pose(n_bits=16, n=200, d=8, c=10)
    rng = np.random.default_rng(0)

    def closest(B: Any) -> float:
        return float(np.min((16 - B.T @ B)[~np.eye(10, dtype=bool)]) / 2)

    drawn = [rng.choice([-1.0, 1.0], size=(16, 10)) for _ in range(20)]
    assert closest(separated_codes(problem, rng)) > np.mean([closest(B) for B in drawn]) + 1


@pytest.mark.parametrize("start", STARTS)
def test_a_rounding_error_does_not_change_the_codes(start: Any) -> None:
    """Rows that are added in another order give the statistics other last digits."""
    features, labels = tagged_blobs(80, 4, 3)
    order = np.random.default_rng(0).permutation(80)
    whole = Statistics.of_block(features, labels)
    parts = [Statistics.of_block(features[rows], labels[rows]) for rows in np.split(order, 4)]
    merged = parts[0].merge(parts[1]).merge(parts[2]).merge(parts[3])
    assert not np.array_equal(whole.gram, merged.gram)
    np.testing.assert_array_equal(
        start(Problem.from_statistics(whole, 8), np.random.default_rng(0)),
        start(Problem.from_statistics(merged, 8), np.random.default_rng(0)),
    )


@pytest.mark.parametrize("start", STARTS)
def test_features_without_information(start: Any) -> None:
    statistics = Statistics.of_block(np.ones((12, 3)), np.arange(12) % 3)
    codes = start(Problem.from_statistics(statistics, 8), np.random.default_rng(0))
    assert set(np.unique(codes)) <= {-1.0, 1.0}


def test_pairs_that_are_neither_similar_nor_dissimilar() -> None:
    """The cosine of {0} and {0, 1, 2, 3} is a half, and S is zero for every pair."""
    labels = np.array([[1, 0, 0, 0], [1, 1, 1, 1]])[np.arange(20) % 2]
    features = np.random.default_rng(0).normal(size=(20, 3))
    problem = Problem.from_statistics(Statistics.of_block(features, labels), 8, similarity="cosine")
    codes = separated_codes(problem, np.random.default_rng(0))
    assert set(np.unique(codes)) <= {-1.0, 1.0}


def test_random_codes_are_those_of_a_random_embedding() -> None:
    problem = pose(tagged_blobs)
    W = np.random.default_rng(3).standard_normal((4, 8))
    V = W.T @ problem.Gt.toarray().T
    expected = np.where((V * problem.N) @ problem.dense_S >= 0, 1.0, -1.0)
    np.testing.assert_array_equal(random_codes(problem, np.random.default_rng(3)), expected)


def test_restarts_take_the_weights_in_turn() -> None:
    problem = pose()
    for restart, eta in enumerate([*PREDICTABILITY, PREDICTABILITY[0]]):
        np.testing.assert_array_equal(
            start_codes(problem, "separated", restart, np.random.default_rng(0)),
            separated_codes(problem, np.random.default_rng(0), eta),
        )
    np.testing.assert_array_equal(
        start_codes(problem, "random", 0, np.random.default_rng(0)),
        random_codes(problem, np.random.default_rng(0)),
    )


def test_spectral_codes_tell_dissimilar_groups_apart() -> None:
    problem = pose(n_bits=16, n=200, d=8, c=6)
    codes = spectral_codes(problem, np.random.default_rng(0))
    assert len(np.unique(codes, axis=1).T) == 6


@pytest.mark.parametrize(("n_bits", "n_groups"), [(4, 16), (5, 17), (12, 300), (64, 40)])
def test_no_two_classes_share_a_code_where_the_length_allows(n_bits: int, n_groups: int) -> None:
    rng = np.random.default_rng(0)
    B = np.where(rng.random((n_bits, n_groups)) < 0.5, 1.0, -1.0)
    B[:, n_groups // 2 :] = B[:, : n_groups - n_groups // 2]
    found = distinct(B, rng)
    assert len(np.unique(found, axis=1).T) == n_groups
    assert set(np.unique(found)) == {-1.0, 1.0}
    _, first = np.unique(B, axis=1, return_index=True)
    np.testing.assert_array_equal(found[:, first], B[:, first])


def test_too_few_codes_for_all_classes_stay_as_they_are() -> None:
    B = np.ones((3, 9))
    assert distinct(B, np.random.default_rng(0)) is B
