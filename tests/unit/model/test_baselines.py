"""Fresh rows and unseen classes, and what stands beside them, against rankings that are sorted."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from sadih_dask import SADIH, FeatureStore, evaluate_model
from sadih_dask.model import baselines
from sadih_dask.model.baselines import Experiment, HeldOutRows, RowSample, Split
from sadih_dask.retrieval.codes import pack
from sadih_dask.retrieval.evaluation import Protocols
from sadih_dask.retrieval.histograms import ranked_histograms
from sadih_dask.retrieval.metrics import average_precision, mean_average_precision
from tests.support import rankings


@cache
def digits() -> tuple[np.ndarray, ...]:
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order].astype(np.float32), y[order]
    return X[:1200], y[:1200], X[1200:], y[1200:]


@cache
def fitted() -> SADIH:
    X, y, _, _ = digits()
    return SADIH(n_bits=16, anchors=100, n_init=2).fit(X, y)


@cache
def evaluated() -> Protocols:
    X, y, Q, z = digits()
    return evaluate_model(fitted(), (Q, z), (X, y))


def naive_map(distances: np.ndarray, labels: np.ndarray, asked: np.ndarray) -> float:
    """Mean over queries and over random orders of ties, no row finding itself."""
    shares = labels[:, None] == labels if labels.ndim == 1 else labels.astype(int) @ labels.T > 0
    found = []
    for row, far in zip(asked, distances, strict=True):
        others = np.arange(len(labels)) != row
        if shares[row, others].any():
            orders = rankings.random_orders(far[others], shares[row, others], 60, seed=int(row))
            found.append(np.mean([rankings.average_precision(order) for order in orders]))
    return float(np.mean(found))


@pytest.mark.parametrize("several", [False, True])
def test_rows_are_looked_up_among_the_others(several: bool) -> None:
    rng = np.random.default_rng(1)
    codes = rankings.random_codes(rng, 60, 12)
    labels = rng.integers(0, 9, 60)
    if several:
        labels = (rng.random((60, 5)) < 0.2) | (np.arange(5) == labels[:, None] % 5)
    held = HeldOutRows(RowSample(np.zeros((60, 1)), labels), np.array([3, 4, 50]))
    found = held.by_codes(codes, 12)
    assert set(found.total.sum(axis=1)) == {59}
    distances = rankings.naive_distances(codes[held.asked], codes)
    expected = naive_map(distances, labels, held.asked)
    assert mean_average_precision(found) == pytest.approx(expected, abs=5e-3)
    values, _ = held.by_scores(lambda block: -rankings.naive_distances(codes[block], codes))
    np.testing.assert_allclose(values, average_precision(found), rtol=1e-12)


def test_a_ranking_by_scores_counts_ties_once() -> None:
    scores = np.array([[0.5, 0.9, 0.5, 0.1]])
    relevant = np.array([[True, False, False, True]])
    found = ranked_histograms(scores, relevant, np.array([[True, True, True, False]]))
    assert found.total.tolist() == [[1, 2, 0, 0]]
    assert found.relevant.tolist() == [[0, 1, 0, 0]]


def test_fresh_is_the_score_of_the_queries_among_each_other() -> None:
    _, _, Q, z = digits()
    codes = fitted().transform(Q)
    distances = rankings.naive_distances(codes[:150], codes)
    sampled = naive_map(distances, z, np.arange(150))
    assert evaluated().fresh.map == fitted().score(Q, z)
    assert np.mean(evaluated().fresh.average_precision[:150]) == pytest.approx(sampled, abs=2e-3)
    assert evaluated().headline == "fresh"


def test_unseen_classes_are_unknown_to_the_models_that_hash_them() -> None:
    X, y, Q, z = digits()
    folds = baselines.class_folds(fitted(), RowSample(X, y), RowSample(Q, z), 4, None)
    unseen = [set(np.unique(fold.split.held_out.rows.labels)) for fold in folds]
    assert sorted(len(part) for part in unseen) == [2, 2, 3, 3]
    assert set.union(*unseen) == set(range(10))
    for fold, part in zip(folds, unseen, strict=True):
        assert not part & set(fold.model.classes_)
        assert part | set(fold.model.classes_) == set(range(10))
    values = [
        naive_map(
            rankings.naive_distances(fold.codes, fold.codes),
            fold.split.held_out.rows.labels,
            np.arange(len(fold.codes)),
        )
        for fold in folds
    ]
    sizes = [len(fold.codes) for fold in folds]
    expected = np.average(values, weights=sizes)
    assert evaluated().unseen.map == pytest.approx(expected, abs=5e-3)
    shorter = folds[0].at(8)
    assert shorter.n_bits == 8
    assert folds[0].n_bits == 16
    again = SADIH(n_bits=8, anchors=100, n_init=2, random_state=0)
    known = folds[0].split.learned
    again.fit(known.features, known.labels)
    np.testing.assert_array_equal(
        shorter.codes, again.transform(shorter.split.held_out.rows.features)
    )


def test_baselines_are_what_they_say() -> None:
    _, _, Q, z = digits()
    fresh, unseen = (evaluated().baselines[name] for name in ("fresh", "unseen"))
    few = {"these codes", "these codes, asymmetric", "ITQ", "one code per class"}
    assert set(fresh) >= few | {"cosine of floats"}
    assert fresh["these codes"].numbers["MAP"] == pytest.approx(evaluated().fresh.map)
    unit = Q / np.linalg.norm(Q, axis=1, keepdims=True)
    # Distinct floats have no ties, so one order is all orders.
    expected = naive_map(-(unit @ unit.T).astype(np.float64), z, np.arange(len(z)))
    assert fresh["cosine of floats"].numbers["MAP"] == pytest.approx(expected, abs=1e-4)
    assert fresh["one code per class"].numbers["MAP"] > 0.75
    assert unseen["one code per class"].numbers["MAP"] < unseen["cosine of floats"].numbers["MAP"]
    scores = fitted().project(Q)
    signs = np.where(scores > 0, 1.0, -1.0)
    by_hand = naive_map(-(scores @ signs.T), z, np.arange(len(z)))
    assert fresh["these codes, asymmetric"].numbers["MAP"] == pytest.approx(by_hand, abs=1e-3)


@pytest.mark.skipif(find_spec("faiss") is None, reason="needs faiss")
def test_itq_is_that_of_faiss_and_quantisers_need_rows() -> None:
    import faiss

    X, y, Q, z = digits()
    held = HeldOutRows(RowSample(Q, z), np.arange(len(Q)))
    experiment = Experiment(fitted(), Split(RowSample(X, y), held))
    found = np.mean(baselines.itq(experiment)[0])
    other = faiss.ITQTransform(X.shape[1], 16, True)
    other.train(X)
    codes = pack(other.apply(Q))
    peer = mean_average_precision(held.by_codes(codes, 16))
    assert found > peer - 0.03
    assert baselines.product_quantisation(experiment) is None  # of 1,200 rows
    many = RowSample(np.tile(X, (9, 1)), np.tile(y, 9))
    values, _ = baselines.product_quantisation(Experiment(fitted(), Split(many, held)))
    cosine, _ = baselines.cosine(experiment)
    assert abs(values.mean() - cosine.mean()) < 0.1


def test_stores_give_what_arrays_give(tmp_path: Path) -> None:
    X, y, Q, z = digits()
    names = [str(k) for k in range(10)]
    rows = FeatureStore.create(tmp_path / "r", X, y, class_names=names, chunk_rows=256)
    asked = FeatureStore.create(tmp_path / "q", Q, z, class_names=names, chunk_rows=100)
    found = evaluate_model(fitted(), asked, rows)
    assert found.fresh.numbers == evaluated().fresh.numbers
    assert found.baselines["fresh"]["ITQ"] == evaluated().baselines["fresh"]["ITQ"]
    learned = SADIH(n_bits=16, anchors=100, n_init=2).fit(rows)
    own = evaluate_model(learned, rows, rows, class_folds=0)
    assert own.fresh is None
    assert own.absent["fresh"] == "the model has learned from the queries"
    assert "fresh: not measured, the model has learned from the queries" in repr(own)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"class_folds": 0}, "it is not asked for"),
        ({"database": None}, "there is no database to learn from"),
        ({"several": True}, "rows have several labels"),
        ({"few": True}, "it takes four classes, in the queries and in the database"),
    ],
)
def test_what_cannot_be_measured_says_why(change: dict[str, object], why: str) -> None:
    X, y, Q, z = (part[:300] for part in digits())
    if "few" in change:
        y, z = y % 3, z % 3
    if "several" in change:
        y, z = np.eye(10, dtype=int)[y], np.eye(10, dtype=int)[z]
    model = SADIH(n_bits=8, anchors=None, n_init=1).fit(X, y)
    database = None if "database" in change else (X, y)
    found = evaluate_model(model, (Q, z), database, class_folds=change.get("class_folds", 4))
    assert found.unseen is None
    assert found.absent == {"unseen": why}
    assert Protocols.from_dict(found.to_dict()).absent == found.absent
    again = Protocols.from_dict(evaluated().to_dict())
    assert repr(again) == repr(evaluated())
