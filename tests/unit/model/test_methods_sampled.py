"""Methods that learn from a sample, each against the dense steps of its paper."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg as la
import scipy.sparse as sp
from scipy.special import expit
from sklearn.ensemble import HistGradientBoostingClassifier

from sadih_dask import FeatureStore, load_model
from sadih_dask.errors import FormatError, InputError
from sadih_dask.jobs.fit import fit
from sadih_dask.learning.randomness import generator
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.methods import method_class, mfh
from sadih_dask.model.methods.cosdish import COSDISH, binary_quadratic
from sadih_dask.model.methods.dsh import DSH
from sadih_dask.model.methods.fasth import FastH, Similar
from sadih_dask.model.methods.itq import random_rotation
from sadih_dask.model.methods.ksh import KSH, descend
from sadih_dask.model.methods.lfh import BETA, LFH
from sadih_dask.model.methods.mfh import MFH
from sadih_dask.model.methods.och import NEAREST, OCH, cost, ordered
from sadih_dask.model.methods.sampled import LabelCodes, group_means
from sadih_dask.model.methods.sgh import SGH, transform
from sadih_dask.retrieval.codes import unpack
from sadih_dask.retrieval.trees import BoostedTrees
from tests.support.datasets import blobs

NAMES = ("ksh", "cosdish", "lfh", "dsh", "sgh", "mfh", "fasth")


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    X, y = blobs(90, 6, 4, seed=3)
    return X.astype(np.float64), y


def signs(model: Hasher, X: np.ndarray) -> np.ndarray:
    return 2.0 * unpack(model.transform(X), model.n_bits) - 1.0


def sampled(model: Hasher) -> tuple[np.ndarray, np.ndarray]:
    """The rows that a model has learned from, in the order in which it has them."""
    statistics = model.statistics_
    assert statistics is not None
    return statistics.sample.features, statistics.sample.group


# -- the sample -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_so_many_rows_are_learned_from(name: str, tmp_path: Path) -> None:
    X, y = blobs(400, 6, 4)
    found = method_class(name)
    model: Any = found(n_bits=8, anchors=None, sample_rows=100, block_rows=64).fit(X, y)
    assert len(sampled(model)[0]) == model.statistics_.sample.size == 100
    grown: Any = found(n_bits=8, anchors=None, sample_rows=100, block_rows=64)
    grown.fit(X[:320], y[:320]).partial_fit(X[320:], y[320:])
    np.testing.assert_array_equal(sampled(grown)[0], sampled(model)[0])
    assert found(n_bits=8, anchors=None).fit(X, y).statistics_.sample.size == 2560
    # A model file says how many were kept, whatever the parameter is set to since.
    model.set_params(sample_rows=50).refit().save(tmp_path / "m.sadih")
    loaded: Any = load_model(tmp_path / "m.sadih")
    assert loaded.sample_rows == 50
    assert loaded.statistics_.sample.size == 100
    with pytest.raises(InputError, match="sample_rows=1; expected a whole number of 2 or more"):
        found(sample_rows=1).fit(X, y)


def test_another_sample_is_another_scan(tmp_path: Path) -> None:
    X, y = blobs(400, 6, 4)
    store = FeatureStore.create(tmp_path / "s.zarr", X, y)
    fit(store, tmp_path / "itq.sadih", {"n_bits": 6}, method="itq")
    known = [str(tmp_path / "itq.sadih")]
    for sample_rows, n_read in ((2560, 0), (300, 400)):
        parameters = {"n_bits": 4, "sample_rows": sample_rows}
        found = fit(
            store, tmp_path / f"{sample_rows}.sadih", parameters, method="dsh", candidates=known
        )
        assert found.n_rows_read == n_read
    small, large = (DSH(n_bits=4, sample_rows=n).plan(store).partial for n in (100, 400))
    assert large - small == 300 * (6 * X.itemsize + 16)


# -- codes of labels --------------------------------------------------------------------------


class Given(LabelCodes):
    """Codes that are given, to see what is made of them."""

    method = "given"
    codes: np.ndarray

    def _row_codes(self, labels: sp.csr_array, seed: int) -> np.ndarray:
        return self.codes[: labels.shape[0]]


def test_codes_of_groups_are_regressed_from_all_rows(data: Any) -> None:
    X, y = data
    model = Given(n_bits=5, anchors=None, ridge=1e-3, sample_rows=40)
    model.codes = np.random.default_rng(0).normal(size=(40, 5))
    model.fit(X, y)
    _, group = sampled(model)
    means = np.stack([model.codes[group == k].mean(axis=0) for k in range(4)])
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    T = means[y]
    P = la.solve(Z.T @ Z + 1e-3 * len(X) * np.eye(6), Z.T @ (T - T.mean(axis=0)))
    np.testing.assert_allclose(model.project(X), Z @ P + T.mean(axis=0), atol=1e-8)
    np.testing.assert_array_equal(unpack(model.label_codes_, 5), means >= 0)


def test_a_group_that_the_sample_misses_follows_its_labels() -> None:
    labels = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
    keys = np.array([1, 2, 8, 9], np.uint64)
    statistics = Statistics.of_block(np.eye(4), labels, keys=keys, sample_rows=2)
    np.testing.assert_array_equal(statistics.sample.group, [0, 1])
    found = group_means(statistics, np.array([[1.0, -1.0], [3.0, 1.0]]))
    names = statistics.groups.matrix.toarray()
    expected = {(1, 0, 0): (1, -1), (0, 1, 0): (3, 1), (1, 1, 0): (2, 0), (0, 0, 1): (0, 0)}
    for name, mean in zip(names, found, strict=True):
        assert tuple(mean) == expected[tuple(int(v) for v in name)]


# -- each method ------------------------------------------------------------------------------


def test_ksh_as_printed(data: Any) -> None:
    X, y = data
    model = KSH(n_bits=4, anchors=None).fit(X, y)
    rows, group = sampled(model)
    K = rows - X.mean(axis=0)
    R = 4.0 * np.where(group[:, None] == group, 1.0, -1.0)
    for k in range(4):
        values, vectors = la.eig(K.T @ R @ K, K.T @ K)
        a = vectors[:, np.argmax(values.real)].real
        a *= np.sqrt(len(K) / (a @ K.T @ K @ a))
        dense = _nesterov(K, R, a)
        bits, scores = max(
            ((np.where(K @ b > 0, 1.0, -1.0), K @ b) for b in (a, dense)),
            key=lambda pair, R=R: pair[0] @ R @ pair[0],
        )
        found = model.project(rows)[:, k]
        found = found * np.sign(found @ scores)  # a direction has no sign
        np.testing.assert_allclose(found, scores, atol=1e-4 * np.abs(scores).max())
        R -= np.outer(bits, bits)


def _nesterov(K: np.ndarray, R: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The descent as in the authors' words: momentum, and a step that is halved until it holds."""

    def f(a: np.ndarray) -> Any:
        return 2.0 * expit(K @ a) - 1.0

    costs, points, t, length = [-f(a) @ R @ f(a)], [a, a], [0.0, 1.0], 1.0
    while len(points) < 502:
        v = points[-1] + (t[-2] - 1.0) / t[-1] * (points[-1] - points[-2])
        slope = -K.T @ ((R @ f(v)) * (1.0 - f(v) ** 2))
        while True:
            z = v - length * slope
            bound = -f(v) @ R @ f(v) - length / 2.0 * slope @ slope
            if -f(z) @ R @ f(z) <= bound:
                break
            length /= 2.0
        points.append(z)
        t.append((1.0 + np.sqrt(1.0 + 4.0 * t[-1] ** 2)) / 2.0)
        costs.append(-f(z) @ R @ f(z))
        if abs(costs[-1] - costs[-2]) / len(K) <= 1e-2:
            break
    return points[-1]


def test_the_descent_of_ksh_goes_down_its_cost(data: Any) -> None:
    K = data[0] - data[0].mean(axis=0)
    S = np.where(data[1][:, None] == data[1], 1.0, -1.0)
    start = np.random.default_rng(0).normal(size=6) / 10

    def cost(a: np.ndarray) -> float:
        f = 2.0 / (1.0 + np.exp(-K @ a)) - 1.0
        return float(-f @ S @ f)

    end = descend(K, lambda v: S @ v, start, 500)
    assert cost(end) < cost(start)
    slope = [(cost(end + e) - cost(end - e)) / 2e-5 for e in 1e-5 * np.eye(6)]
    begin = [(cost(start + e) - cost(start - e)) / 2e-5 for e in 1e-5 * np.eye(6)]
    assert la.norm(slope) < 0.1 * la.norm(begin)


def test_cosdish_as_printed(data: Any) -> None:
    X, y = data
    model = COSDISH(n_bits=5, anchors=None).fit(X, y)
    group = sampled(model)[1]
    n, rng = len(group), generator(0, "codes")
    B = rng.choice([-1.0, 1.0], (n, 5))
    same, rounds = group[:, None] == group, []
    for _ in range(10):
        O = rng.choice(n, 5, replace=False)  # noqa: E741
        rest = np.setdiff1d(np.arange(n), O)
        part = same[:, O]
        S = np.where(part, 1.0, -part.sum() / (~part).sum())
        for _ in range(3):
            new = np.zeros((5, 5))
            for k in range(5):
                Q, p = np.zeros((5, 5)), np.zeros(5)
                for i in range(5):
                    for j in range(5):
                        if i != j:
                            Q[i, j] = -2 * (5 * S[O[i], j] - new[i, :k] @ new[j, :k])
                    for r in rest:
                        p[i] -= 2 * B[r, k] * (5 * S[r, i] - B[r, :k] @ new[i, :k])
                new[:, k] = binary_quadratic(Q, p)
            B[O] = new
            value = S[rest] @ B[O]
            B[rest] = np.where(np.abs(value) < 1e-5, B[rest], np.sign(value))
        wanted = 5 * np.where(same, 1.0, -same.sum() / (~same).sum())
        rounds.append((la.norm(wanted - B @ B.T), B.copy()))
    B = min(rounds, key=lambda one: one[0])[1]
    assert not np.array_equal(B, rounds[-1][1])
    means = np.stack([B[group == k].mean(axis=0) for k in range(4)])
    assert np.all(means != 0)
    np.testing.assert_array_equal(unpack(model.label_codes_, 5), means > 0)


@pytest.mark.parametrize("seed", range(5))
def test_sets_of_every_size_scatter_twice_as_much_as_the_best_at_most(seed: int) -> None:
    rng, m = np.random.default_rng(seed), 6
    Q, p = rng.normal(size=(m, m)), 3.0 * rng.normal(size=m)
    Q = np.triu(Q, 1) + np.triu(Q, 1).T
    bits = 2.0 * np.array(list(np.ndindex(*(2,) * m))) - 1.0
    values = np.einsum("ki,ij,kj->k", bits, Q, bits) + bits @ p
    found = binary_quadratic(Q, p)
    # Columns of U with U^T U = lambda I - A: f^T A f of k of them is their scatter but for lambda.
    A = np.zeros((m + 1, m + 1))
    A[:m, :m], A[m, :m], A[:m, m] = 4 * Q, p - 2 * Q.sum(axis=1), p - 2 * Q.sum(axis=1)
    U = la.cholesky(1.01 * la.norm(A, 2) * np.eye(m + 1) - A)

    def scatter(chosen: tuple[int, ...]) -> float:
        part = U[:, chosen]
        return float(np.square(part - part.mean(axis=1, keepdims=True)).sum())

    for size in range(1, m + 1):
        best = min(scatter(c) for c in combinations(range(m + 1), size))
        near = [tuple(np.argsort(cost)[:size]) for cost in _distances(U)]
        assert min(scatter(c) for c in near) <= 2 * best + 1e-9
    assert found @ Q @ found + found @ p <= np.quantile(values, 0.1)


def _distances(U: np.ndarray) -> np.ndarray:
    return np.square(U[:, :, None] - U[:, None, :]).sum(axis=0)


def test_lfh_as_printed(data: Any) -> None:
    X, y = data
    model = LFH(n_bits=4, anchors=None).fit(X, y)
    group = sampled(model)[1]
    n, rng = len(group), generator(0, "codes")
    S = (group[:, None] == group).astype(float)
    U = rng.standard_normal((n, 4))

    def likelihood() -> float:
        T = U @ U.T / 2
        off = ~np.eye(n, dtype=bool)
        return float((S * T - np.logaddexp(0, T))[off].sum() - np.square(U).sum() / BETA)

    first = likelihood()
    for _ in range(50):
        O = rng.choice(n, 4, replace=False)  # noqa: E741
        V = U[O].copy()
        for i in np.setdiff1d(np.arange(n), O):
            _step(U, i, V, S[i, O])
        for i in O:
            others = np.arange(n) != i
            before = likelihood()
            _step(U, i, U[others], S[i, others])
            assert likelihood() >= before - 1e-9  # the bound is one
    assert likelihood() > first
    means = np.stack([U[group == k].mean(axis=0) for k in range(4)])
    np.testing.assert_array_equal(unpack(model.label_codes_, 4), means > 0)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    T = means[y]
    P = la.solve(Z.T @ Z + 1e-5 * len(X) * np.eye(6), Z.T @ (T - T.mean(axis=0)))
    np.testing.assert_allclose(model.project(X), Z @ P + T.mean(axis=0), atol=1e-6)


def _step(U: np.ndarray, i: int, V: np.ndarray, s: np.ndarray) -> None:
    """One row to the maximum of its bound by the columns V."""
    a = 1.0 / (1.0 + np.exp(-V @ U[i] / 2))
    slope = sum((s - a)[j] * V[j] for j in range(len(V))) - U[i] / BETA
    curvature = sum(np.outer(v, v) for v in V) / 8 + np.eye(len(U[i])) / BETA
    U[i] += np.linalg.solve(curvature, slope)


def test_dsh_as_printed(data: Any) -> None:
    X, y = data
    model = DSH(n_bits=6).fit(X, y)
    rows, _ = sampled(model)
    centres = rows[generator(0, "clusters").choice(len(rows), 9, replace=False)]
    for _ in range(3):
        nearest = np.array([np.argmin([la.norm(x - c) for c in centres]) for x in rows])
        centres = np.stack([rows[nearest == k].mean(axis=0) for k in range(9)])
    sizes = np.bincount(nearest)
    planes: dict[tuple[int, int], float] = {}
    for i in range(9):
        for j in np.argsort([la.norm(c - centres[i]) for c in centres])[1:4].tolist():
            one, two = centres[min(i, j)], centres[max(i, j)]
            above = centres @ (one - two) > (one - two) @ (one + two) / 2
            shares = np.array([sizes[above].sum(), sizes[~above].sum()]) / len(rows)
            planes[min(i, j), max(i, j)] = -sum(p * np.log(p) for p in shares if p > 0)
    kept = sorted(planes, key=lambda pair: (-round(planes[pair], 12), pair))[:6]
    one, two = (centres[list(side)] for side in zip(*kept, strict=True))
    expected = X @ (one - two).T - np.einsum("kd,kd->k", one - two, (one + two) / 2)
    np.testing.assert_allclose(model.project(X), expected, atol=1e-6)
    with pytest.raises(InputError, match="100 bits need 150 clusters, but n_samples=90 are kept"):
        DSH(n_bits=100).fit(X, y)


def test_sgh_as_printed(data: Any) -> None:
    X, y = data
    model = SGH(n_bits=4, anchors=None).fit(X, y)
    rows, _ = sampled(model)
    Z = rows - X.mean(axis=0)
    Z /= la.norm(Z, axis=1).max()
    p, q = transform(Z)
    R = 4.0 * p @ q.T
    order = generator(0, "order").permutation(4)
    H = np.zeros((len(Z), 4))
    for k in (*range(4), *order):
        R += np.outer(H[:, k], H[:, k])
        values, vectors = la.eig(Z.T @ R @ Z, Z.T @ Z + 1e-6 * np.eye(6))
        H[:, k] = np.sign(Z @ vectors[:, np.argmax(values.real)].real)
        R -= np.outer(H[:, k], H[:, k])
    found = signs(model, rows)
    np.testing.assert_array_equal(np.abs(np.einsum("nk,nk->k", found, H)), len(Z))


def test_the_transformation_of_sgh_gives_the_similarities(data: Any) -> None:
    X = data[0] - data[0].mean(axis=0)
    X /= 2.0 * la.norm(X, axis=1).max()  # where e^t is nearly a line
    p, q = transform(X)
    squared = np.square(X[:, None] - X).sum(axis=2)
    near = 2.0 * np.exp(-squared / 2.0) - 1.0
    # e^t = t (e - 1/e) / 2 + (e + 1/e) / 2 on the average of the interval, up to e - 1.
    assert np.corrcoef((p @ q.T).ravel(), near.ravel())[0, 1] > 0.95
    e = np.exp(-np.square(X).sum(axis=1) / 2.0)
    line = np.sinh(1.0) * (X @ X.T) + np.cosh(1.0)
    np.testing.assert_allclose(p @ q.T, 2.0 * np.outer(e, e) * line - 1.0, atol=1e-12)


def test_the_cost_of_och_counts_triples(data: Any) -> None:
    centres = data[0][:20]
    V = np.random.default_rng(0).normal(size=(20, 3))
    near, rank = ordered(centres)

    def naive(V: np.ndarray) -> float:
        H, terms = np.tanh(V), []
        for q in range(20):
            distances = [la.norm(centres[q] - c) for c in centres]
            others = [i for i in np.argsort(distances) if i != q]
            for place, i in enumerate(others[:NEAREST]):
                after = H[others[place + 1 :]]
                terms += (1.0 / (1.0 + np.exp(H[q] @ H[i] - after @ H[q]))).tolist()
        return float(np.mean(terms))

    value, slope = cost(V, near, rank)
    assert value == pytest.approx(naive(V), rel=1e-12)
    for at in ((0, 0), (7, 2), (19, 1)):
        step = np.zeros_like(V)
        step[at] = 1e-6
        assert slope[at] == pytest.approx((naive(V + step) - naive(V - step)) / 2e-6, abs=1e-8)


def test_och_turns_principal_directions_to_fewer_wrong_triples(data: Any) -> None:
    X, _ = data
    model = OCH(n_bits=4).fit(X)
    P = model.hash_function_.projection
    np.testing.assert_allclose(P.T @ P, np.eye(4), atol=1e-12)
    top = la.eigh(np.cov(X.T))[1][:, ::-1][:, :4]
    np.testing.assert_allclose(P @ P.T, top @ top.T, atol=1e-9)
    rows = sampled(model)[0] - X.mean(axis=0)  # as many landmarks as rows: each is one
    near, rank = ordered(rows)
    scale = np.sqrt(np.square(rows @ top).mean())
    before, after = (
        cost(rows @ Q / scale, near, rank)[0] for Q in (top @ random_rotation(0, 4), P)
    )
    assert after < before


def test_och_step_by_step(data: Any) -> None:
    X, _ = data
    model = OCH(n_bits=3, max_iter=4).fit(X)
    rows = sampled(model)[0] - X.mean(axis=0)
    # As many landmarks as rows: k-means begins with all of them, in the order in which it drew them
    landmarks = rows[generator(0, "clusters").choice(len(rows), len(rows), replace=False)]
    near, rank = ordered(landmarks)
    P = la.eigh((X - X.mean(axis=0)).T @ (X - X.mean(axis=0)))[1][:, ::-1][:, :3]
    Z = landmarks @ P / np.sqrt(np.mean((landmarks @ P) ** 2))
    R, length = random_rotation(0, 3), 1.0
    for _ in range(4):
        value, slope = cost(Z @ R, near, rank)
        while True:
            U, _, Vt = la.svd(R - length * Z.T @ slope)
            if cost(Z @ U @ Vt, near, rank)[0] < value:
                break
            length /= 2.0
        R, length = U @ Vt, 2.0 * length
    np.testing.assert_allclose(model.hash_function_.projection, P @ R, atol=1e-9)


def test_mfh_as_printed(data: Any) -> None:
    X, y = data
    model = MFH(n_bits=4, ridge=1e-3).fit(X, y)
    rows, group = sampled(model)
    n, Z = len(rows), (rows - X.mean(axis=0)) / X.std(axis=0)
    between = np.square(Z[:, None] - Z).sum(axis=2)
    near = np.zeros((n, n), bool)
    for i in range(n):
        near[i, [j for j in np.argsort(between[i]) if j != i][: mfh.NEIGHBOURS]] = True
    graphs = [near | near.T, (group[:, None] == group) & ~np.eye(n, dtype=bool)]
    Z = Z - Z.mean(axis=0)
    M = Z.T @ Z + 1e-3 * n * np.eye(6)
    D = mfh.ALPHA * (np.eye(n) - Z @ np.linalg.solve(M, Z.T))
    for A in graphs:
        L = np.diag(A.sum(axis=1)) - A.astype(float)
        D += mfh.GAMMA * (np.eye(n) - mfh.GAMMA * np.linalg.inv(L + mfh.GAMMA * np.eye(n)))
    vectors = la.eigh(D)[1]
    constant = np.abs(vectors.sum(axis=0)) / np.sqrt(n)
    Y = vectors[:, constant < 0.5][:, :4]
    expected = Z @ np.linalg.solve(M, Z.T @ Y)
    found = (model.project(rows) - model.project(rows).mean(axis=0)) * np.sign(
        np.sum(expected * model.project(rows), axis=0)
    )
    np.testing.assert_allclose(found, expected, atol=1e-8)
    with pytest.raises(InputError, match="90 bits need as many eigenvectors, but 90 rows"):
        MFH(n_bits=90).fit(X, y)


def _objective(z: np.ndarray, group: np.ndarray, H: np.ndarray) -> float:
    S = np.where(group[:, None] == group, 1.0, -1.0)
    return float(z @ ((H.shape[1] + 1) * S - H @ H.T) @ z)


@pytest.mark.parametrize("seed", range(3))
def test_bits_of_fasth_are_raised_until_no_row_raises_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    group, H = np.arange(12) % 3, rng.choice([-1.0, 1.0], (12, 2))
    start = rng.choice([-1.0, 1.0], 12)
    found = Similar(2.0 * np.eye(3) - 1.0, group).raise_objective(start, H)
    value = _objective(found, group, H)
    for i in range(12):
        other = found.copy()
        other[i] *= -1.0
        assert _objective(other, group, H) <= value
    for g in range(3):
        for sign in (1.0, -1.0):
            assert _objective(np.where(group == g, sign, found), group, H) <= value
    bits = 2.0 * np.array(list(np.ndindex(*(2,) * 12))) - 1.0
    S = np.where(group[:, None] == group, 1.0, -1.0)
    every = np.einsum("ki,ij,kj->k", bits, 3.0 * S - H @ H.T, bits)
    assert value >= np.quantile(every, 0.99)


def test_fasth_starts_at_the_first_eigenvector(data: Any) -> None:
    group = data[1]
    H = np.random.default_rng(1).choice([-1.0, 1.0], (len(group), 3))
    similar = Similar(2.0 * np.eye(4) - 1.0, group)
    R = 4.0 * np.where(group[:, None] == group, 1.0, -1.0) - H @ H.T
    first = np.sign(la.eigh(R)[1][:, -1])
    assert abs(similar.spectral_bit(H, np.random.default_rng(0)) @ first) == len(group)


def test_fasth_bit_by_bit(data: Any) -> None:
    """Each bit is grown to what labels ask beside the bits that the trees before it gave."""
    X, y = data
    model = FastH(n_bits=4, max_iter=6).fit(X, y)
    rows, group = sampled(model)
    said, rng = signs(model, rows), generator(0, "trees")
    similar = Similar(2.0 * np.eye(4) - 1.0, group)
    for k in range(4):
        z = similar.raise_objective(similar.spectral_bit(said[:, :k], rng), said[:, :k])
        grown = HistGradientBoostingClassifier(
            learning_rate=0.3,
            max_iter=6,
            max_depth=4,
            max_leaf_nodes=None,
            min_samples_leaf=5,
            max_features=0.1,
            early_stopping=False,
            random_state=int(rng.integers(2**31)),
        ).fit(rows, z)
        np.testing.assert_allclose(
            model.project(X)[:, k], grown.decision_function(X), rtol=1e-12, atol=1e-12
        )
    shorter = FastH(n_bits=2, max_iter=6).fit(X, y)
    np.testing.assert_array_equal(signs(shorter, X), signs(model, X)[:, :2])


def test_trees_vote_as_they_are_walked() -> None:
    rng = np.random.default_rng(0)
    feature = rng.integers(0, 5, (3, 4, 7))
    threshold, vote = rng.normal(size=(3, 4, 7)), rng.normal(size=(3, 4, 8))
    X = rng.normal(size=(50, 5)).astype(np.float32)
    X[0, :] = threshold[0, 0, 0]  # up to the threshold is left
    X[1, feature[1, 1, 0]] = np.float32(threshold[1, 1, 0])

    def walk(x: np.ndarray, bit: int, tree: int) -> float:
        node = 0
        while node < 7:
            right = float(x[feature[bit, tree, node]]) > threshold[bit, tree, node]
            node = 2 * node + 1 + right
        return float(vote[bit, tree, node - 7])

    expected = [[sum(walk(x, b, t) for t in range(4)) for b in range(3)] for x in X]
    trees = BoostedTrees(None, feature, threshold, vote)
    np.testing.assert_allclose(trees.scores(X), expected, rtol=1e-14)
    np.testing.assert_array_equal(trees.signs(X)[0], np.array(expected) > 0)
    np.testing.assert_array_equal(trees.signs(np.where(X[2] == X, np.nan, X))[1], [2])


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("feature", lambda a: a + 6, "names features that do not exist"),
        ("feature", lambda a: a - 1, "names features that do not exist"),
        ("vote", lambda a: a[..., :-1], "trees.vote has shape"),
        ("threshold", lambda a: a[:, :-1], "trees.threshold has shape"),
    ],
)
def test_damaged_trees_are_refused(
    data: Any, tmp_path: Path, name: str, damage: Any, message: str
) -> None:
    model = FastH(n_bits=4, max_iter=2).fit(*data)
    function: Any = model.hash_function_
    damaged = replace(function, **{name: damage(getattr(function, name))})
    model._adopt(replace(model._model, hash_function=damaged))
    model.save(tmp_path / "m.sadih")
    with pytest.raises(FormatError, match=message):
        load_model(tmp_path / "m.sadih")
