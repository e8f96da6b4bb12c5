"""What codes are worth on rows left out, against what other rows then do."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sadih_dask.learning.encoders import hash_function
from sadih_dask.learning.held_out import hold_out
from sadih_dask.learning.labels import group_rows
from sadih_dask.learning.problem import Problem
from sadih_dask.learning.solver import starting_state
from sadih_dask.learning.statistics import Statistics
from sadih_dask.retrieval.codes import pack
from sadih_dask.retrieval.histograms import hamming_histograms
from sadih_dask.retrieval.metrics import mean_average_precision
from sadih_dask.retrieval.trial import Trial
from tests.support.datasets import tagged_blobs


def random_codes(problem: Problem, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return rng.choice([-1.0, 1.0], size=(problem.l, len(problem.N)))


@pytest.fixture(scope="module")
def digits() -> Any:
    X, y = load_digits(return_X_y=True)
    return train_test_split(X, y, test_size=0.3, stratify=y, random_state=0)


@pytest.mark.parametrize("encoder", ["ridge", "posterior"])
def test_it_ranks_codes_as_held_out_rows_do(digits: Any, encoder: Any) -> None:
    database, queries, y_database, y_queries = digits
    statistics = Statistics.of_block(database, y_database)
    problem = Problem.from_statistics(statistics, 8, ridge=1e-3)
    trial = Trial(statistics, hold_out(statistics, 1e-3), encoder, 0)
    said, found = [], []
    for seed in range(30):
        state = starting_state(problem, random_codes(problem, seed))
        said.append(trial(state.B))
        hashed = hash_function(encoder, statistics, problem, state, None).project(queries)
        histograms = hamming_histograms(
            pack(hashed),
            group_rows(y_queries, 10),
            pack(state.B.T),
            (statistics.groups, np.arange(10)),
            8,
            counts=statistics.counts,
        )
        found.append(mean_average_precision(histograms))
    assert np.std(found) > 0.01
    assert spearmanr(said, found).statistic > 0.8
    assert abs(np.mean(said) - np.mean(found)) < 0.02


def pose(n_bits: int = 8) -> tuple[Statistics, Problem]:
    statistics = Statistics.of_block(*tagged_blobs(200))
    return statistics, Problem.from_statistics(statistics, n_bits)


def test_the_same_rows_judge_all_codes() -> None:
    statistics, problem = pose()
    trial = Trial(statistics, hold_out(statistics, 1e-3), "ridge", 0)
    first, second = (random_codes(problem, seed) for seed in (0, 1))
    value = trial(first)
    assert trial(second) != value
    assert trial(first) == value
    again = Trial(statistics, hold_out(statistics, 1e-3), "ridge", 0)
    assert again(first) == value


def test_the_order_and_the_sign_of_bits_do_not_matter() -> None:
    statistics, problem = pose()
    trial = Trial(statistics, hold_out(statistics, 1e-3), "ridge", 0)
    B = random_codes(problem, 0)
    value = trial(B)
    assert trial(-B[::-1]) == pytest.approx(value, abs=1e-9)


def test_nested_codes_are_judged_by_their_prefixes_too() -> None:
    statistics, problem = pose(40)
    parts = hold_out(statistics, 1e-3)
    alone, nested = (Trial(statistics, parts, "ridge", 0, kind) for kind in (False, True))
    B = random_codes(problem, 0)
    mean = np.mean([alone(B[:k]) for k in (16, 32, 40)])
    assert nested(B) == pytest.approx(mean, abs=1e-12)
    assert nested(B) != pytest.approx(alone(B), abs=1e-4)
    [closed], [plain] = (
        trial.attempt(B, [("ridge", 2.0)], [0.0])[0].qualities[:1] for trial in (nested, alone)
    )
    assert closed == nested(B)
    assert plain == alone(B)


def test_codes_that_are_all_equal_are_no_better_than_chance() -> None:
    statistics, problem = pose()
    trial = Trial(statistics, hold_out(statistics, 1e-3), "ridge", 0)
    equal = trial(np.ones((8, len(statistics.groups))))
    table = statistics.groups.matrix.toarray()
    share = statistics.counts / statistics.n_samples
    relevant = (table @ table.T > 0) @ share
    assert equal == pytest.approx(share @ relevant, abs=0.02)
    assert equal < trial(random_codes(problem, 0))
