"""Ranking metrics on tiny cases, by hand and by trying every order."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from sadih_dask.retrieval.histograms import Histograms
from sadih_dask.retrieval.metrics import average_precision, mean_average_precision, precision_at
from tests.support import rankings


def one_query(relevant: Any, total: Any) -> Histograms:
    return Histograms(np.array([relevant]), np.array([total]))


@pytest.mark.parametrize(
    ("relevant", "total", "expected"),
    [
        # one item a distance: the textbook's definition
        ([1, 0, 1, 0], [1, 1, 1, 1], Fraction(1, 2) * (1 + Fraction(2, 3))),
        ([0, 0, 0, 1], [1, 1, 1, 1], Fraction(1, 4)),
        ([1, 1, 0, 0], [1, 1, 1, 1], Fraction(1)),
        # distances without items say nothing
        ([0, 1, 0, 0, 1], [0, 1, 0, 1, 1], Fraction(1, 2) * (1 + Fraction(2, 3))),
        # a tie of one relevant and one other item: first or second with equal chance
        ([1], [2], Fraction(1, 2) * (1 + Fraction(1, 2))),
        # one relevant among three, and two among three
        ([1], [3], Fraction(1, 3) * (1 + Fraction(1, 2) + Fraction(1, 3))),
        ([2], [3], Fraction(1, 3) * (1 + Fraction(5, 6) + Fraction(7, 12))),
        # all of a tie are relevant: order does not matter
        ([3, 0], [3, 4], Fraction(1)),
        # a tie of two, one relevant, behind a relevant item
        ([1, 1], [1, 2], Fraction(1, 2) * (1 + Fraction(1, 2) * (1 + Fraction(2, 3)))),
    ],
)
def test_average_precision_by_hand(relevant: Any, total: Any, expected: Fraction) -> None:
    assert average_precision(one_query(relevant, total))[0] == pytest.approx(float(expected))


def test_precision_by_hand() -> None:
    histograms = one_query([1, 1, 0], [1, 4, 5])
    found = [precision_at(histograms, k)[0] for k in (1, 2, 3, 5, 10)]
    np.testing.assert_allclose(found, [1, 1.25 / 2, 1.5 / 3, 2 / 5, 2 / 10])


def test_precision_beyond_the_end_is_that_of_all_items() -> None:
    assert precision_at(one_query([1, 1], [2, 2]), 100)[0] == 0.5


def test_a_query_without_relevant_items() -> None:
    histograms = Histograms(np.array([[0, 0], [1, 0]]), np.array([[2, 1], [2, 1]]))
    values = average_precision(histograms)
    assert np.isnan(values[0])
    assert mean_average_precision(histograms) == values[1] == 0.75
    assert precision_at(histograms, 2).tolist() == [0, 0.5]


def test_no_query_has_a_relevant_item() -> None:
    assert np.isnan(mean_average_precision(one_query([0, 0], [2, 1])))
    nobody = Histograms(np.zeros((0, 5), np.int64), np.zeros((0, 5), np.int64))
    assert np.isnan(mean_average_precision(nobody))


def test_a_database_without_items() -> None:
    nothing = one_query([0, 0], [0, 0])
    assert np.isnan(average_precision(nothing)[0])
    assert precision_at(nothing, 3)[0] == 0


def test_everything_relevant_is_one() -> None:
    full = np.random.default_rng(0).integers(0, 50, size=(20, 9))
    full[:, 0] += 1
    np.testing.assert_allclose(average_precision(Histograms(full, full)), 1.0, atol=1e-12)


@pytest.mark.parametrize("seed", range(15))
def test_ties_are_averaged_over_every_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 8))
    distance, relevant = rng.integers(0, 3, size=n), rng.random(n) < 0.5
    relevant[0] = True
    every = rankings.all_orders(distance, relevant)
    histograms = rankings.histograms(distance[None], relevant[None], 2)
    expected = np.mean([rankings.average_precision(order) for order in every])
    assert average_precision(histograms)[0] == pytest.approx(expected, abs=1e-12)
    for k in (1, 2, 3, 5):
        expected = np.mean([rankings.precision(order, k) for order in every])
        assert precision_at(histograms, k)[0] == pytest.approx(expected, abs=1e-12)


def test_ties_are_averaged_over_random_orders_of_many_items() -> None:
    rng = np.random.default_rng(0)
    distance = rng.binomial(16, 0.4, size=200)
    relevant = rng.random(200) < 0.5 - 0.03 * distance
    histograms = rankings.histograms(distance[None], relevant[None], 16)
    drawn = rankings.random_orders(distance, relevant, 2000)
    for found, values in [
        (average_precision(histograms)[0], [rankings.average_precision(r) for r in drawn]),
        (precision_at(histograms, 30)[0], [rankings.precision(r, 30) for r in drawn]),
    ]:
        assert found == pytest.approx(np.mean(values), abs=4 * np.std(values) / np.sqrt(2000))


def test_without_ties_it_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    distance = np.array([rng.permutation(64) for _ in range(10)])
    relevant = rng.random((10, 64)) < 0.3
    relevant[:, 0] = True
    found = average_precision(rankings.histograms(distance, relevant, 64))
    expected = [average_precision_score(r, -d) for r, d in zip(relevant, distance, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_order_of_rows_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    distance, relevant = rng.integers(0, 5, size=(3, 40)), rng.random((3, 40)) < 0.4
    order = rng.permutation(40)
    np.testing.assert_array_equal(
        average_precision(rankings.histograms(distance, relevant, 4)),
        average_precision(rankings.histograms(distance[:, order], relevant[:, order], 4)),
    )


def test_a_large_collection() -> None:
    """A hundred million items: no sum over items, and no digits lost to the large counts."""
    relevant, total = np.array([3, 1000, 10**6]), np.array([10, 10**5, 10**8])
    places = np.arange(1, 10**5 + 1, dtype=np.longdouble)
    expected = np.longdouble(0)
    behind = hits = 0
    for r, t in zip(relevant[:2].tolist(), total[:2].tolist(), strict=True):
        j = places[:t]
        expected += r / t * np.sum((hits + 1 + (j - 1) * (r - 1) / (t - 1)) / (behind + j))
        behind, hits = behind + t, hits + r
    few = average_precision(one_query(relevant[:2], total[:2]))[0]
    assert few == pytest.approx(float(expected / 1003), rel=1e-9)
    many = average_precision(one_query(relevant, total))[0]
    assert 0.009 < many < 0.011  # one in a hundred, as the random order of most of them gives
