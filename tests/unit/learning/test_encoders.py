"""Hash functions: each by its definition, on rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from sadih_dask.learning.encoders import (
    HashFunction,
    Opening,
    discriminant_encoder,
    group_likelihoods,
    hash_function,
    orthogonal_encoder,
    ridge_encoder,
    unstandardised,
    vote,
    vote_by_logarithms,
)
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.open_world import open_encoder
from sadih_dask.learning.problem import Problem, State
from sadih_dask.learning.solver import starting_state
from sadih_dask.learning.statistics import Statistics
from sadih_dask.learning.updates import encoder_printed
from tests.support import dense
from tests.support.datasets import blobs, tagged_blobs

KINDS = ["posterior", "discriminant", "ridge", "orthogonal", "lemma"]


def pose(
    features: Any, labels: Any, n_bits: int = 6, ridge: float = 0.01
) -> tuple[Statistics, Problem, State, Any]:
    """Statistics, problem, a state with random codes, and the code of every row, (l, n)."""
    statistics = Statistics.of_block(features, labels)
    problem = Problem.from_statistics(statistics, n_bits, ridge=ridge)
    codes = np.random.default_rng(0).choice([-1.0, 1.0], size=(n_bits, len(statistics.groups)))
    sets = np.unique(dense.label_matrix(labels), axis=1)
    order = [  # the group of every row
        next(
            k
            for k in range(len(statistics.groups))
            if np.array_equal(statistics.groups.matrix.toarray()[k], column)
        )
        for column in dense.label_matrix(labels).T
    ]
    assert sets.shape[1] == len(statistics.groups)
    return statistics, problem, starting_state(problem, codes), codes[:, order]


@pytest.mark.parametrize("lam", [1e-5, 0.1, 1.0])
def test_discriminants_are_normal_log_likelihoods(lam: float) -> None:
    features, labels = blobs()
    _, problem, state, _ = pose(features, labels, ridge=lam)
    P, intercept = discriminant_encoder(problem, state)
    X = dense.standardise(features.T).T
    groups = [X[labels == k] for k in np.unique(labels)]
    within = sum((g - g.mean(axis=0)).T @ (g - g.mean(axis=0)) for g in groups) / len(X)
    law = [multivariate_normal(g.mean(axis=0), within + lam * np.eye(len(within))) for g in groups]
    share = np.log([len(g) / len(X) for g in groups])
    expected = np.stack([one.logpdf(X) for one in law], axis=1) + share
    found = X @ P.T + intercept
    np.testing.assert_allclose(found - found[:, :1], expected - expected[:, :1], atol=1e-8)
    np.testing.assert_allclose(group_likelihoods(problem, X, np.array([1])), found[:, [1]])
    codes = np.random.default_rng(0).choice([-1.0, 1.0], (len(groups), 6))
    probable = np.exp(0.5 * (expected - expected.max(axis=1, keepdims=True)))
    mixed = probable @ codes
    mixed *= (1 / probable.sum(axis=1) / np.linalg.norm(mixed, axis=1))[:, None]
    np.testing.assert_allclose(vote_by_logarithms(found, codes, 0.5), mixed, atol=1e-8)


@pytest.mark.parametrize("make", [blobs, tagged_blobs])
@pytest.mark.parametrize("lam", [1e-5, 0.01, 10.0])
def test_ridge_is_the_regression_of_every_row_code(make: Any, lam: float) -> None:
    features, labels = make()
    _, problem, state, B = pose(features, labels, ridge=lam)
    P, intercept = ridge_encoder(problem, state)
    expected, mean_code = dense.ridge(dense.standardise(features.T), B, lam)
    np.testing.assert_allclose(P, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(intercept, mean_code, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("anchors", [None, 9])
def test_standardisation_is_folded_in(kind: Any, anchors: int | None) -> None:
    features, labels = blobs()
    features = features * [1, 100, 0.01, 3, 1] + [0, 1e4, 5, -3, 1]
    anchor_map = None
    if anchors is not None:
        anchor_map = AnchorMap.from_sample(features, anchors, np.random.default_rng(0))
    mapped = features if anchor_map is None else anchor_map(features)
    statistics, problem, state, B = pose(mapped, labels)
    X = dense.standardise(mapped.T)
    if kind == "ridge":
        P, intercept = ridge_encoder(problem, state)
        expected = P @ X + intercept[:, None]
    elif kind == "posterior":
        likely = np.maximum(problem.group_coefficients.T @ X + problem.N[:, None] / problem.n, 0.0)
        expected = state.B @ likely**2
        expected *= likely.max(axis=0) / np.linalg.norm(expected, axis=0)
    elif kind == "discriminant":
        P, intercept = discriminant_encoder(problem, state)
        expected = vote_by_logarithms((P @ X + intercept[:, None]).T, state.B.T, 2.0).T
    elif kind == "orthogonal":
        expected = orthogonal_encoder(problem, state)[0] @ X
    else:
        expected = encoder_printed(problem, state) @ X
    function = hash_function(kind, statistics, problem, state, anchor_map)
    assert function.n_bits == 6 == len(B)
    found = function.project(features)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected.T, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("make", [blobs, tagged_blobs])
@pytest.mark.parametrize("n_bits", [2, 4, 5, 7])
def test_orthogonal_is_orthogonal_and_no_worse_than_the_lemma(make: Any, n_bits: int) -> None:
    features, labels = make(80, 5, 4)
    _, problem, state, _ = pose(features, labels, n_bits)
    P1, _ = orthogonal_encoder(problem, state)
    few = P1 @ P1.T if n_bits <= 5 else P1.T @ P1
    np.testing.assert_allclose(few, np.eye(len(few)), atol=1e-10)
    X = dense.standardise(features.T)
    V = state.W.T @ dense.label_matrix(labels)
    lemma = encoder_printed(problem, state)
    whole = dense.polar(V @ X.T)  # the lemma's, completed where its SVD is not of full rank
    for other in (lemma if np.linalg.matrix_rank(lemma) == min(n_bits, 5) else whole, whole):
        assert np.sum((V - P1 @ X) ** 2) <= np.sum((V - other @ X) ** 2) * (1 + 1e-9)


def test_lemma_is_the_polar_factor() -> None:
    features, labels = blobs(80, 6, 5)
    _, problem, state, _ = pose(features, labels, 3)
    X, Y = dense.standardise(features.T), dense.label_matrix(labels)
    expected = dense.p1_paper(X, state.W.T @ Y)
    np.testing.assert_allclose(encoder_printed(problem, state), expected, atol=1e-8)


def test_posterior_takes_the_vote_of_the_likely_groups() -> None:
    scores = np.array([[0.9, 0.2, -0.1]])
    B = np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, 1.0]])
    by_vote = 0.81 * B[:, 0] + 0.04 * B[:, 1]
    expected = 0.9 * by_vote / np.linalg.norm(by_vote)
    np.testing.assert_allclose(vote(scores, B.T, 2.0), [expected])
    by_the_likeliest = 0.9 * B[:, 0] / np.sqrt(2)
    np.testing.assert_allclose(vote(scores, B.T, 200.0), [by_the_likeliest])
    np.testing.assert_array_equal(vote(-scores[:, :2], B[:, :2].T, 2.0), [[0.0, 0.0]])


def test_many_rows_vote_as_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = tagged_blobs()
    statistics, problem, state, _ = pose(features, labels)
    function = hash_function("posterior", statistics, problem, state, None)
    whole = function.project(features)
    monkeypatch.setattr("sadih_dask.learning.encoders.PIECE_VALUES", 3 * len(statistics.groups))
    np.testing.assert_allclose(function.project(features), whole, atol=1e-12)


def test_the_open_code_counts_where_no_class_claims_a_row() -> None:
    features, labels = blobs()
    statistics, problem, state, _ = pose(features, labels)
    closed = hash_function("posterior", statistics, problem, state, None)
    P = open_encoder(problem, state.B, np.random.default_rng(0))
    opening = Opening(*unstandardised(P, np.zeros(len(P)), statistics), 0.5)
    found = replace(closed, opening=opening).project(features)
    open_codes = dense.standardise(features.T).T @ P.T
    open_codes /= np.linalg.norm(open_codes, axis=1, keepdims=True)
    np.testing.assert_allclose(found, closed.project(features) + 0.5 * open_codes, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_features_without_information(kind: Any) -> None:
    features, labels = np.ones((12, 3)), np.arange(12) % 3
    statistics, problem, state, _ = pose(features, labels)
    found = hash_function(kind, statistics, problem, state, None).project(features)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, found[:1].repeat(12, axis=0), atol=1e-12)


def test_scores_of_integer_features_are_double_precision() -> None:
    function = HashFunction(None, np.eye(2), np.array([0.5, -0.5]))
    found = function.project(np.array([[2**53 - 1, 1]], np.int64))
    assert found.dtype == np.float64
    assert found.tolist() == [[2.0**53 - 1 + 0.5, 0.5]]
