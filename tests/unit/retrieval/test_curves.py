"""Metrics from histograms against rankings that are sorted, in every order that ties allow."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, ndcg_score

from sadih_dask.errors import InputError
from sadih_dask.retrieval import metrics
from sadih_dask.retrieval.evaluation import Evaluation, Protocols, sample_queries
from sadih_dask.retrieval.histograms import Histograms
from sadih_dask.retrieval.metrics import precision_curve, precision_recall_curve
from tests.support import rankings

CASES = [
    ([0, 0, 1, 1, 1, 3], [1, 0, 1, 0, 0, 1]),
    ([0, 0, 0, 0], [1, 0, 0, 0]),
    ([2, 2, 2, 2, 2], [1, 1, 0, 1, 0]),
    ([0, 1, 2, 3, 4], [0, 1, 0, 0, 1]),
    ([1, 1, 1, 2, 2, 2], [0, 0, 0, 1, 0, 1]),
    ([0, 0, 0, 1, 1, 5, 5], [1, 1, 1, 1, 1, 1, 1]),
]


def one(histograms: Histograms, values: np.ndarray) -> float:
    assert len(values) == 1
    return float(values[0])


@pytest.fixture(params=CASES, ids=range(len(CASES)))
def case(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray, Histograms]:
    distances, relevant = np.array(request.param[0]), np.array(request.param[1], bool)
    return distances, relevant, rankings.histograms(distances, relevant)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_every_metric_is_its_mean_over_all_orders(case, k: int) -> None:
    distances, relevant, histograms = case
    k = min(k, len(distances))
    orders = rankings.all_orders(distances, relevant)
    for found, naive in (
        (metrics.average_precision(histograms, k), rankings.average_precision),
        (metrics.precision_at(histograms, k), rankings.precision),
        (metrics.recall_at(histograms, k), rankings.recall),
        (metrics.ndcg_at(histograms, k), rankings.ndcg),
    ):
        expected = np.mean([naive(order, k) for order in orders])
        assert found[0] == pytest.approx(expected, abs=1e-12), naive.__name__


def test_average_precision_of_the_whole_ranking_over_all_orders(case) -> None:
    distances, relevant, histograms = case
    orders = rankings.all_orders(distances, relevant)
    expected = np.mean([rankings.average_precision(order) for order in orders])
    assert metrics.average_precision(histograms)[0] == pytest.approx(expected, abs=1e-12)


def test_by_hand() -> None:
    # Distance 0: one relevant of two. Distance 1: one irrelevant. Distance 2: one relevant.
    histograms = Histograms(np.array([[1, 0, 1]]), np.array([[2, 1, 1]]))
    assert metrics.average_precision(histograms)[0] == pytest.approx((0.75 + 2 / 4) / 2)
    assert metrics.average_precision(histograms, 1)[0] == pytest.approx(0.5)
    assert metrics.average_precision(histograms, 2)[0] == pytest.approx(0.75 / 2)
    assert metrics.precision_at(histograms, 3)[0] == pytest.approx(1 / 3)
    assert metrics.recall_at(histograms, 2)[0] == pytest.approx(0.5)
    assert metrics.precision_within(histograms, 1)[0] == pytest.approx(1 / 3)
    np.testing.assert_allclose(precision_curve(histograms), [1 / 2, 1 / 2, 1 / 3, 2 / 4])
    for k, expected in ((1, 0.25), (3, 0.5), (4, 1.0)):
        assert metrics.recall_at(histograms, k)[0] == pytest.approx(expected)
    # Recall 1/4 is expected behind the first item, 1/2 behind the second, more behind the last.
    levels = np.array([0.0, 0.25, 0.5, 0.6, 1.0])
    expected = [1 / 2, 1 / 2, 1 / 2, 2 / 4, 2 / 4]
    np.testing.assert_allclose(precision_recall_curve(histograms, levels), expected)


def test_large_ties_against_random_orders() -> None:
    rng = np.random.default_rng(0)
    distances = rng.integers(0, 4, 300)
    relevant = rng.random(300) < 0.3 - 0.05 * distances
    histograms = rankings.histograms(distances, relevant)
    orders = rankings.random_orders(distances, relevant, 4000)
    for found, naive in (
        (metrics.average_precision(histograms), lambda o: rankings.average_precision(o)),
        (metrics.average_precision(histograms, 50), lambda o: rankings.average_precision(o, 50)),
        (metrics.ndcg_at(histograms, 100), lambda o: rankings.ndcg(o, 100)),
        (metrics.recall_at(histograms, 33), lambda o: rankings.recall(o, 33)),
    ):
        values = np.array([naive(order) for order in orders])
        assert abs(found[0] - values.mean()) < 5 * values.std() / np.sqrt(len(values))


def test_without_ties_it_is_what_scikit_learn_says() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        distances, relevant = rng.permutation(40), rng.random(40) < 0.4
        histograms = rankings.histograms(distances, relevant)
        expected = average_precision_score(relevant, -distances)
        assert metrics.average_precision(histograms)[0] == pytest.approx(expected, abs=1e-12)
        expected = ndcg_score(relevant[None].astype(float), -distances[None], k=10)
        assert metrics.ndcg_at(histograms, 10)[0] == pytest.approx(expected, abs=1e-12)


def test_scikit_learn_averages_ties_of_ndcg_too() -> None:
    rng = np.random.default_rng(2)
    distances, relevant = rng.integers(0, 6, 60), rng.random(60) < 0.4
    expected = ndcg_score(relevant[None].astype(float), -distances[None], k=25)
    found = metrics.ndcg_at(rankings.histograms(distances, relevant), 25)
    assert found[0] == pytest.approx(expected, abs=1e-12)


def test_the_curve_without_ties_is_the_precision_at_each_relevant_item() -> None:
    rng = np.random.default_rng(3)
    distances, relevant = rng.permutation(50), rng.random(50) < 0.3
    places = np.flatnonzero(relevant[np.argsort(distances)]) + 1
    m = len(places)
    found = precision_recall_curve(
        rankings.histograms(distances, relevant), np.arange(1, m + 1) / m
    )
    np.testing.assert_allclose(found, np.arange(1, m + 1) / places)


def test_the_curve_is_the_expected_precision_where_expected_recall_is_reached(case) -> None:
    distances, relevant, histograms = case
    orders = np.array(rankings.all_orders(distances, relevant))
    hits = orders.cumsum(axis=1).mean(axis=0)  # expected hits at each cutoff
    levels = np.linspace(0, 1, 21)
    expected = []
    for level in levels:
        k = max(1, 1 + int(np.argmax(hits / hits[-1] >= level - 1e-9)))
        expected.append(hits[k - 1] / k)
    np.testing.assert_allclose(precision_recall_curve(histograms, levels), expected)


def test_the_precision_curve_is_precision_at_every_cutoff() -> None:
    rng = np.random.default_rng(4)
    total = rng.integers(0, 9, (30, 17))
    relevant = rng.binomial(total, 0.3)
    histograms = Histograms(relevant.astype(np.int64), total.astype(np.int64))
    curve = precision_curve(histograms, 40)
    expected = [metrics.precision_at(histograms, k).mean() for k in range(1, 41)]
    smallest = int(total.sum(axis=1).min())
    np.testing.assert_allclose(curve[:smallest], expected[:smallest])


def test_queries_without_relevant_items_are_left_out_or_count_as_zero() -> None:
    histograms = Histograms(np.array([[0, 0, 0], [1, 0, 0]]), np.array([[1, 2, 0], [1, 2, 0]]))
    for values in (
        metrics.average_precision(histograms),
        metrics.average_precision(histograms, 2),
        metrics.recall_at(histograms, 2),
        metrics.ndcg_at(histograms, 2),
    ):
        np.testing.assert_array_equal(np.isnan(values), [True, False])
        assert metrics.mean_of_known(values) == pytest.approx(1.0)
    np.testing.assert_allclose(metrics.precision_at(histograms, 2), [0, 0.5])
    np.testing.assert_allclose(precision_recall_curve(histograms, np.array([1.0])), [1.0])
    found = Evaluation.of(histograms)
    assert (found.n_without_relevant, found.n_queries, found.n_database) == (1, 2, 3)
    assert "1 queries without a relevant item" in repr(found)


def test_nothing_within_the_radius_is_precision_zero_and_is_reported() -> None:
    histograms = Histograms(np.array([[0, 0, 0, 2], [1, 0, 1, 0]]), np.array([[0, 0, 0, 4]] * 2))
    histograms = Histograms(histograms.relevant, np.array([[0, 0, 0, 4], [1, 0, 3, 0]]))
    np.testing.assert_allclose(metrics.precision_within(histograms, 2), [0, 0.5])
    found = Evaluation.of(histograms)
    assert found.precision_within == pytest.approx(0.25)
    assert found.empty_within == pytest.approx(0.5)


def test_a_cutoff_beyond_the_database_is_the_whole_database() -> None:
    histograms = Histograms(np.array([[2, 1]]), np.array([[2, 3]]))
    assert metrics.precision_at(histograms, 1000)[0] == pytest.approx(3 / 5)
    assert metrics.recall_at(histograms, 1000)[0] == pytest.approx(1.0)
    assert metrics.ndcg_at(histograms, 10**12)[0] == metrics.ndcg_at(histograms, 5)[0]
    whole = metrics.average_precision(histograms)
    np.testing.assert_allclose(metrics.average_precision(histograms, 1000), whole)
    assert len(precision_curve(histograms, 1000)) == 5


def test_large_databases_lose_no_precision() -> None:
    # 10^9 items at one distance: the mean of P(j) over random orders is close to r/t.
    histograms = Histograms(np.array([[10**8, 0]]), np.array([[10**9, 10**9]]))
    assert metrics.average_precision(histograms)[0] == pytest.approx(0.1, abs=1e-6)


def test_cutoffs_begin_at_one() -> None:
    histograms = Histograms(np.array([[1]]), np.array([[1]]))
    with pytest.raises(InputError, match="k is 0"):
        metrics.average_precision(histograms, 0)


def test_an_evaluation_reads_well_and_goes_into_json() -> None:
    import json

    histograms = Histograms(np.array([[1, 0, 1]]), np.array([[2, 1, 1]]))
    found = Evaluation.of(histograms, cutoffs=(2,))
    text = repr(found)
    assert "2 bits, 1 queries, 4 items" in text
    assert "MAP@2" in text
    assert json.loads(json.dumps(found.to_dict()))["map_at"] == {"2": 0.375}
    both = Protocols(found, found)
    assert [word in repr(both) for word in ("learned", "encoded")] == [True, True]
    assert "encoded" not in repr(Protocols(found, None))
    assert both.to_dict()["encoded"]["map"] == found.map


def test_standard_errors_are_those_of_the_values_of_single_queries() -> None:
    rng = np.random.default_rng(7)
    total = rng.integers(0, 6, (50, 9))
    relevant = rng.integers(0, total + 1)
    relevant[:3] = 0  # nothing to find: no part of some means
    found = Evaluation.of(Histograms(relevant, total), cutoffs=(1, 5))
    alone = [
        Evaluation.of(Histograms(relevant[i : i + 1], total[i : i + 1]), cutoffs=(1, 5)).numbers
        for i in range(50)
    ]
    assert list(found.standard_errors) == list(found.numbers)
    for name, value in found.numbers.items():
        values = [one[name] for one in alone if not math.isnan(one[name])]
        assert len(values) == (47 if name.startswith(("MAP", "recall", "NDCG")) else 50)
        assert value == pytest.approx(statistics.mean(values))
        error = statistics.stdev(values) / math.sqrt(len(values))
        assert found.standard_errors[name] == pytest.approx(error)
        assert f"{value:.4f} ± {error:.4f}" in repr(found)
    again = Evaluation.from_dict(found.to_dict())
    assert again.to_dict() == found.to_dict()
    assert again.standard_errors == found.standard_errors


def test_of_many_queries_some_are_drawn_always_the_same_ones() -> None:
    drawn = sample_queries(1000, 100)
    assert len(np.unique(drawn)) == 100
    assert np.all(np.diff(drawn) > 0)
    assert abs(drawn.mean() - 499.5) < 5 * 1000 / math.sqrt(12 * 100)
    np.testing.assert_array_equal(drawn, sample_queries(1000, 100))
    more = sample_queries(1010, 100)  # queries that were added take the places of a few
    assert len(np.setdiff1d(more, drawn)) == np.count_nonzero(more >= 1000) < 10
    for everything in (None, 0, 1000, 2000):
        np.testing.assert_array_equal(sample_queries(1000, everything), np.arange(1000))
    with pytest.raises(InputError, match="max_queries is -1"):
        sample_queries(10, -1)


def test_no_queries_at_all() -> None:
    empty = Histograms(np.zeros((0, 9), np.int64), np.zeros((0, 9), np.int64))
    found = Evaluation.of(empty)
    assert np.isnan(found.map)
    assert found.n_database == 0
