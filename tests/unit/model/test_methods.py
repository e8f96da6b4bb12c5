"""Every method against a naive dense one, and all of them on every kind of rows."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.linalg as la
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import multivariate_normal
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from sadih_dask import SADIH, FeatureStore, evaluate_model, load_model
from sadih_dask.errors import InputError, LabelError
from sadih_dask.jobs.fit import fit
from sadih_dask.learning.randomness import generator
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.methods import METHODS, method_class, method_named
from sadih_dask.model.methods.classifier import SHRINKAGE, ClassCodes
from sadih_dask.model.methods.hyperplanes import CBE, LSH, BinaryQuantisation
from sadih_dask.model.methods.itq import CANONICAL_RIDGE, ITQ, ITQCCA, PCAH, PCARR, random_rotation
from sadih_dask.model.methods.regression import FSDH, SDH, SDHR, _with_margin
from sadih_dask.model.parameters import ALL_PARAMETERS, parameters_of
from sadih_dask.retrieval.codes import unpack
from tests.support.models import few_steps, same_bits

OTHERS = [name for name in METHODS if name != "sadih"]


@cache
def digits() -> tuple[np.ndarray, ...]:
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order].astype(np.float32), y[order]
    return X[:1200], y[:1200], X[1200:], y[1200:]


@cache
def small(name: str) -> Hasher:
    """A fitted model of every method on the digits."""
    X, y, _, _ = digits()
    model = method_class(name)(n_bits=16, block_rows=256)
    model.set_params(**few_steps(name))
    return model.fit(X, y if model.supervised else None)


def signs(model: Hasher, X: np.ndarray) -> np.ndarray:
    return 2.0 * unpack(model.transform(X), model.n_bits) - 1.0


# -- what all methods promise -----------------------------------------------------------------


@pytest.mark.parametrize("name", OTHERS)
def test_the_same_bits_from_arrays_chunks_and_stores(name: str, tmp_path: Path) -> None:
    X, y, _, _ = digits()
    model = small(name)
    lazy = model.__class__(**model.get_params()).fit(
        da.from_array(X, chunks=(333, -1)), da.from_array(y, chunks=500)
    )
    store = FeatureStore.create(tmp_path / "s.zarr", X, y, chunk_rows=100)
    stored = model.__class__(**model.get_params()).fit(store)
    same_bits(lazy, stored, tmp_path)
    np.testing.assert_array_equal(stored.transform(X), model.transform(X))


@pytest.mark.parametrize("name", OTHERS)
def test_saved_loaded_and_better_than_nothing(name: str, tmp_path: Path) -> None:
    _, _, Q, z = digits()
    model = small(name)
    model.save(tmp_path / "m.sadih")
    loaded = load_model(tmp_path / "m.sadih")
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    np.testing.assert_array_equal(loaded.transform(Q), model.transform(Q))
    assert loaded.score(Q, z) == model.score(Q, z) > 0.2  # a tenth of the rows are relevant
    with pytest.raises(InputError, match=f"method '{name}', not 'sadih'; load_model reads either"):
        SADIH.load(tmp_path / "m.sadih")


@pytest.mark.parametrize("name", OTHERS)
def test_rows_that_are_added_and_taken_out(name: str) -> None:
    X, y, Q, _ = digits()
    parameters = {"n_bits": 8, "anchors": None, "block_rows": 400, **few_steps(name)}
    whole = method_named(name, parameters).fit(X, y)
    grown = method_named(name, parameters).fit(X[:800], y[:800]).partial_fit(X[800:], y[800:])
    agree = np.mean(signs(grown, Q) == signs(whole, Q))
    assert agree == 1.0  # merged in the same order
    less = method_named(name, parameters).fit(X, y).forget(X[800:], y[800:])
    fewer = method_named(name, parameters).fit(X[:800], y[:800])
    assert np.mean(signs(less, Q) == signs(fewer, Q)) > 0.99


@pytest.mark.parametrize("name", OTHERS)
def test_parameters_are_those_that_are_declared(name: str) -> None:
    found = method_class(name)
    defaults = {n: p.default for n, p in parameters_of(found).items()}
    assert found().get_params() == defaults
    assert set(defaults) <= set(ALL_PARAMETERS)
    with pytest.raises(InputError, match=f"'alpha' is no parameter of the method {name}"):
        method_named(name, {"alpha": 1.0})


def test_statistics_are_shared(tmp_path: Path) -> None:
    X, y, _, _ = digits()
    store = FeatureStore.create(tmp_path / "s.zarr", X, y)
    one = fit(store, tmp_path / "itq.sadih", {"n_bits": 8}, method="itq")
    assert one.n_rows_read == len(X)
    other = fit(
        store,
        tmp_path / "sdh.sadih",
        {"n_bits": 8, "anchors": None},
        method="sdh",
        candidates=[str(tmp_path / "itq.sadih")],
    )
    assert other.n_rows_read == 0
    direct = SDH(n_bits=8, anchors=None).fit(store)
    np.testing.assert_array_equal(other.model.label_codes_, direct.label_codes_)


def test_labels_are_needed_by_those_that_follow_them(tmp_path: Path) -> None:
    X, _, Q, _ = digits()
    store = FeatureStore.create(tmp_path / "s.zarr", X, chunk_rows=100)
    lazy = ITQ(n_bits=8).fit(da.from_array(X, chunks=(333, -1)))
    np.testing.assert_array_equal(lazy.transform(Q), ITQ(n_bits=8).fit(store).transform(Q))
    with pytest.raises(LabelError, match="has no labels"):
        SDH(n_bits=8).fit(store)
    with pytest.raises(LabelError, match="y to be passed"):
        SDH(n_bits=8).fit(X)
    with pytest.raises(LabelError, match="ITQ learns no codes of labels"):
        lazy.learned_codes([0, 1])


def test_rows_of_a_store_without_labels_follow_it(tmp_path: Path) -> None:
    X, _, Q, _ = digits()
    ids = np.arange(len(X))
    store = FeatureStore.create(tmp_path / "s.zarr", X, ids=ids, chunk_rows=100)
    model = PCAH(n_bits=4).fit(store)
    store.delete(ids[:200])
    model.fit(store.refresh())
    assert model.statistics_.n_samples == len(X) - 200
    fresh = PCAH(n_bits=4).fit(X[200:])
    assert np.mean(signs(model, Q) == signs(fresh, Q)) > 0.99


def test_evaluated_without_learned_codes() -> None:
    X, y, Q, z = digits()
    found = evaluate_model(small("itq"), (Q, z), (X, y), class_folds=0)
    assert set(found.known) == {"encoded", "fresh"}
    assert found.absent["learned"] == "ITQ learns no codes of labels"
    assert found.widest is found.encoded


def test_unknown_methods_are_named() -> None:
    with pytest.raises(InputError, match="no method 'itk'; choose one of sadih, lsh"):
        method_class("itk")


# -- each against its formulas ----------------------------------------------------------------


def test_random_hyperplanes_see_angles() -> None:
    X = np.random.default_rng(0).standard_normal((200, 6))
    model = LSH(n_bits=2048).fit(X)
    centred = X - X.mean(axis=0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    angles = np.arccos(np.clip(unit @ unit.T, -1, 1))
    B = signs(model, X)
    differing = (1 - B @ B.T / 2048) / 2
    np.testing.assert_allclose(differing, angles / np.pi, atol=0.06)


def test_circulant_hyperplanes_are_a_circulant_matrix() -> None:
    X = np.random.default_rng(1).standard_normal((50, 7))
    model = CBE(n_bits=10).fit(X)
    rng, centred, bits = generator(model.seed_, "hyperplanes"), X - X.mean(axis=0), []
    for n_rows in (7, 3):
        r, flips = rng.standard_normal(7), rng.choice([-1.0, 1.0], 7)
        rows = [[r[(i - k) % 7] for i in range(7)] for k in range(n_rows)]
        bits.append((centred * flips) @ np.array(rows).T)
    np.testing.assert_array_equal(signs(model, X), np.where(np.hstack(bits) > 0, 1.0, -1.0))
    np.testing.assert_allclose(la.circulant(r)[:, :3].T, rows)


def test_binary_quantisation_is_the_signs_of_features() -> None:
    X = np.random.default_rng(2).standard_normal((50, 8)) + 1.0
    packed = BinaryQuantisation(n_bits=8).fit(X).transform(X, bitorder="big")
    np.testing.assert_array_equal(packed, np.packbits(X > 0, axis=1))
    with pytest.raises(InputError, match="n_bits=9, but rows have 8 features"):
        BinaryQuantisation(n_bits=9).fit(X)


def test_principal_components() -> None:
    X, _, Q, _ = digits()
    expected = np.sign(PCA(8, svd_solver="full").fit(X.astype(np.float64)).transform(Q))
    found = signs(PCAH(n_bits=8).fit(X), Q)
    agree = np.abs((found * expected).mean(axis=0))  # either sign of a direction is one
    assert agree.min() > 0.99


@pytest.mark.parametrize("supervised", [False, True])
def test_rotations_are_those_of_the_dense_iteration(supervised: bool) -> None:
    X, y, Q, _ = digits()
    X, Q = X.astype(np.float64), Q.astype(np.float64)
    Xc, Qc = X - X.mean(axis=0), Q - X.mean(axis=0)
    if supervised:
        model: Hasher = ITQCCA(n_bits=16).fit(X, y)
        Y = np.eye(10)[y] - np.eye(10)[y].mean(axis=0)
        scale = np.where(Xc.std(axis=0) > 0, Xc.std(axis=0), 1.0)
        Z, n = Xc / scale, len(X)
        Cxx = Z.T @ Z / n + CANONICAL_RIDGE * np.eye(64)
        Cyy = Y.T @ Y / n + CANONICAL_RIDGE * np.eye(10)
        values, w = la.eigh((Z.T @ Y / n) @ np.linalg.solve(Cyy, Y.T @ Z / n), Cxx)
        top = np.argsort(values)[::-1][:16]
        W = w[:, top] * np.sqrt(np.maximum(values[top], 0)) / scale[:, None]
    else:
        model = ITQ(n_bits=16).fit(X)
        W = la.eigh(Xc.T @ Xc)[1][:, ::-1][:, :16]
    known = slice(0, 9) if supervised else slice(None)  # beyond the classes nothing is left
    V, R = Xc @ W, random_rotation(model.seed_, 16)
    mine = (X - X.mean(axis=0)) @ model.hash_function_.projection
    # Directions have either sign, and a rotation begins at random: what they reach is compared.
    for _ in range(50):
        U, _, Vt = np.linalg.svd(V.T @ np.where(V @ R >= 0, 1.0, -1.0))
        R = U @ Vt
    loss = [np.square(np.where(Z >= 0, 1.0, -1.0) - Z).sum() for Z in (mine, V @ R)]
    assert loss[0] == pytest.approx(loss[1], rel=0.02)
    np.testing.assert_allclose(mine @ mine.T, V[:, known] @ V[:, known].T, atol=1e-6 * (V**2).max())
    assert np.abs(Qc @ model.hash_function_.projection).shape == (len(Q), 16)


def test_a_random_rotation_keeps_lengths() -> None:
    X, _, _, _ = digits()
    plain, turned = (m(n_bits=8).fit(X).hash_function_.projection for m in (PCAH, PCARR))
    np.testing.assert_allclose(plain @ plain.T, turned @ turned.T, atol=1e-12)
    spread = [np.var(X @ P, axis=0) for P in (plain, turned)]
    assert spread[1].sum() == pytest.approx(spread[0].sum())
    assert np.ptp(spread[1]) < 0.7 * np.ptp(spread[0])


def test_the_classifier_takes_the_likeliest_normal_law() -> None:
    X, y, Q, _ = digits()
    kept = (y < 5) | (np.arange(len(y)) % 30 == 0)  # where classes are rare, they are less likely
    X, y, Q = X[kept], y[kept], 0.5 * (Q + np.roll(Q, 1, axis=0))
    model = ClassCodes(n_bits=32).fit(X, y)
    means = np.array([X[y == k].mean(axis=0, dtype=np.float64) for k in range(10)])
    C = sum(np.cov(X[y == k].T, bias=True) * np.mean(y == k) for k in range(10))
    C = (1 - SHRINKAGE) * C + SHRINKAGE * np.trace(C) / 64 * np.eye(64)
    laws = [multivariate_normal(mean, C).logpdf(Q) for mean in means]
    likeliest = np.argmax(np.array(laws).T + np.log(np.bincount(y) / len(y)), axis=1)
    np.testing.assert_array_equal(model.transform(Q), model.label_codes_[likeliest])
    with pytest.raises(LabelError, match="several labels"):
        ClassCodes().fit(X, np.eye(10)[y] + np.eye(10)[(y + 1) % 10])


@pytest.mark.parametrize("nu", [1e-5, 0.3])
@pytest.mark.parametrize("name", ["sdh", "sdhr", "fsdh"])
def test_supervised_discrete_hashing_row_by_row(name: str, nu: float) -> None:
    """The steps over rows, each with a code of its own, where labels are several and codes move."""
    rng = np.random.default_rng(4)
    Y = (rng.random((150, 4)) < 0.4).astype(np.uint8)
    Y[~Y.any(axis=1), 0] = 1
    X = Y @ rng.normal(size=(4, 6)) + rng.normal(size=(150, 6))
    model = method_named(name, {"n_bits": 7, "anchors": None, "max_iter": 3, "nu": nu}).fit(X, Y)
    known = model.label_groups_.toarray()
    groups = np.array([int(np.flatnonzero((known == row).all(axis=1))[0]) for row in Y])
    Z, Y = (X - X.mean(axis=0)) / X.std(axis=0), Y.T.astype(float)
    start = generator(model.seed_, "codes").choice([-1.0, 1.0], (7, len(known)))
    B = start[:, groups]  # (l, n)
    P, mean = _ridge(Z, B)
    for _ in range(3):
        F = (Z @ P + mean).T
        of_group = np.stack([F[:, groups == g].mean(axis=1) for g in groups], axis=1)
        B = STEPS[name](B, Y, nu * of_group)
        P, mean = _ridge(Z, B)
    assert not np.array_equal(B, start[:, groups])
    np.testing.assert_array_equal(2.0 * unpack(model.learned_codes(Y.T), 7) - 1.0, B.T)
    np.testing.assert_allclose(model.project(X), Z @ P + mean, atol=1e-9)


def _ridge(Z: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    G = Z.T @ Z + 1e-5 * len(Z) * np.eye(Z.shape[1])
    return np.linalg.solve(G, Z.T @ B.T), B.mean(axis=1)


def _sdh_step(B: np.ndarray, Y: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    W = np.linalg.solve(B @ B.T + np.eye(len(B)), B @ Y.T)
    Q, B = W @ Y + evidence, B.copy()
    for _ in range(100):
        for k in range(len(B)):
            others = np.delete(np.arange(len(B)), k)
            value = Q[k] - W[k] @ W[others].T @ B[others]
            B[k] = np.where(value > 0, 1.0, -1.0)
    return B


def _sdhr_step(B: np.ndarray, Y: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    scores = np.linalg.solve(B @ B.T + np.eye(len(B)), B @ Y.T).T @ B
    T = np.empty_like(scores)
    for i, (s, own) in enumerate(zip(scores.T, Y.T > 0, strict=True)):

        def clipped(m: float, s: np.ndarray = s, own: np.ndarray = own) -> np.ndarray:
            return np.where(own, np.maximum(s, m), np.minimum(s, m - 1.0))

        def cost(m: float, s: np.ndarray = s, clipped: Any = clipped) -> float:
            return float(np.square(clipped(m) - s).sum())

        best = minimize_scalar(cost, bounds=(s.min(), s.max() + 1.0), options={"xatol": 1e-12})
        T[:, i] = clipped(best.x)
    return _sdh_step(B, T, evidence)


def _fsdh_step(B: np.ndarray, Y: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    W = np.linalg.solve(Y @ Y.T + np.eye(len(Y)), Y @ B.T)
    return np.where(W.T @ Y + evidence >= 0, 1.0, -1.0)


STEPS = {"sdh": _sdh_step, "sdhr": _sdhr_step, "fsdh": _fsdh_step}


@pytest.mark.parametrize("name", ["sdh", "fsdh"])
def test_rows_of_a_class_come_to_share_a_code(name: str) -> None:
    """The published steps from random codes of rows: what a class has after them is a random code.

    So codes of classes are drawn to begin with.
    """
    X, y, _, _ = digits()
    Z = X[:, X.std(axis=0) > 0].astype(np.float64)
    Z = (Z - Z.mean(axis=0)) / Z.std(axis=0)
    Y = np.eye(10)[y].T
    B = np.random.default_rng(0).choice([-1.0, 1.0], (8, len(y)))
    for _ in range(2):
        P, mean = _ridge(Z, B)
        B = STEPS[name](B, Y, 1e-5 * (Z @ P + mean).T)
    codes = np.stack([np.sign(B[:, y == k].mean(axis=1)) for k in range(10)])
    np.testing.assert_array_equal(B.T, codes[y])
    again = STEPS[name](B, Y, 0.0 * B)
    np.testing.assert_array_equal(again, B)


@pytest.mark.parametrize("seed", range(5))
def test_margins_are_the_nearest_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, own = rng.standard_normal(6), np.isin(np.arange(6), rng.permutation(6)[: 1 + seed % 3])
    found = _with_margin(scores, own)
    assert found[own].min() >= found[~own].max() + 1 - 1e-12

    def margins(t: np.ndarray) -> Any:
        return (t[own][:, None] - t[~own][None] - 1).ravel()

    best = minimize(
        lambda t: np.square(t - scores).sum(),
        np.where(own, 5.0, -5.0),
        constraints={"type": "ineq", "fun": margins},
    )
    assert np.square(found - scores).sum() <= best.fun + 1e-6


def test_codes_that_a_class_shares_do_not_move() -> None:
    X, y, _, _ = digits()
    start = generator(0, "codes").choice([-1.0, 1.0], (8, 10))
    for method in (SDH, SDHR, FSDH):  # fewer bits than classes, too
        model = method(n_bits=8, anchors=None).fit(X, y)
        np.testing.assert_array_equal(2.0 * unpack(model.label_codes_, 8) - 1.0, start.T)
