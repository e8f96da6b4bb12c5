"""A search in one scan: against a loop of fits, and in scikit-learn's ways."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted

from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute.memory import plan_scan
from sadih_dask.errors import Advice, InputError, LabelError, MemoryPlanError
from sadih_dask.model.cross_validation import SADIHCV
from sadih_dask.model.scanning import Folding, draw_folds, scan_folds
from tests.support.datasets import Array, blobs, rows, tagged_blobs
from tests.support.models import QUICK, counted_reads, of_features, same_bits, shape

GRID = {"alpha": [0.01, 5.0], "beta": [0.1, 10.0]}


pytestmark = pytest.mark.usefixtures("two_threads")


def model(**parameters: Any) -> SADIH:
    return SADIH(**{**QUICK, "anchors": None, "block_rows": 64, **parameters})


def search(estimator: SADIH | None = None, grid: Any = None, **parameters: Any) -> SADIHCV:
    given = {"n_bits": (4, 8), "n_folds": 2, "n_queries": 20, **parameters}
    return SADIHCV(estimator or model(), GRID if grid is None else grid, **given)


def noisy(n: int = 150, *, multi_label: bool = False) -> tuple[Array, Array]:
    """Rows that no code retrieves perfectly."""
    X, y = tagged_blobs(n, 6, 4) if multi_label else blobs(n, 6, 5)
    return X + np.random.default_rng(5).normal(scale=1.5, size=X.shape), y


# --- against fits ------------------------------------------------------------------------------


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize(
    ("grid", "own"),
    [
        ({**GRID, "n_bits": [4, 8]}, {}),
        (GRID, {"encoder": "orthogonal"}),
        ({"ridge": [1e-5, 0.5], "encoder": ["auto", "posterior", "orthogonal", "lemma"]}, {}),
        ({"similarity": ["cosine", "shared-label"], "start": ["random", "separated"]}, {}),
        (
            {"loss": ["l1", "l21"], "solver": ["paper", "exact"], "n_init": [1, 2]},
            {"start": "random"},
        ),
        ({"gamma": [0.0, 1.0], "max_iter": [0, 5], "tol": [1e-5, 0.1]}, {"encoder": "lemma"}),
    ],
    ids=lambda given: "-".join(given),
)
def test_scores_are_those_of_a_loop_of_fits(multi_label: bool, grid: Any, own: Any) -> None:
    X, y = noisy(multi_label=multi_label)
    found = search(model(**own), grid, n_bits=8).fit(X, y)
    folding = Folding(2, 20, 0, 8)
    known = scan_folds(model(), X, y, folding)[1]
    fold_of = draw_folds(len(X), folding)[0].of_range(0, len(X))
    for k, params in enumerate(found.cv_results_["params"]):
        scores = []
        for fold, queries in enumerate(known.queries):
            fitted = model(**{**own, **params}).fit(X[fold_of != fold], y[fold_of != fold])
            scores.append(fitted.score(X[queries.rows], y[queries.rows]))
        splits = [found.cv_results_[f"split{fold}_test_score"][k] for fold in range(2)]
        np.testing.assert_allclose(splits, scores, rtol=1e-9, err_msg=str(params))
        np.testing.assert_allclose(found.cv_results_["mean_test_score"][k], np.mean(scores))
        np.testing.assert_allclose(found.cv_results_["std_test_score"][k], np.std(scores))
    assert len(set(found.cv_results_["mean_test_score"])) > 1


def test_scores_with_anchors_are_those_of_fits_to_anchor_features() -> None:
    X, y = noisy()
    # Nothing is left to choose: rows to choose by are drawn by features as they come.
    fixed = {"ridge": 1e-3, "sharpness": 2.0, "openness": 0.3, "n_init": 1, "max_iter": 0}
    found = search(model(anchors=30, **fixed), n_bits=8).fit(X, y)
    folding = Folding(2, 20, 0, 8)
    known = scan_folds(model(anchors=30), X, y, folding)[1]
    assert known.anchor_map is not None
    mapped = known.anchor_map(X)
    fold_of = draw_folds(len(X), folding)[0].of_range(0, len(X))
    for k, params in enumerate(found.cv_results_["params"]):
        for fold, queries in enumerate(known.queries):
            fitted = model(**fixed, **params).fit(mapped[fold_of != fold], y[fold_of != fold])
            expected = fitted.score(mapped[queries.rows], y[queries.rows])
            np.testing.assert_allclose(found.cv_results_[f"split{fold}_test_score"][k], expected)


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("anchors", [None, 30])
def test_the_best_model_is_that_of_a_fit(
    tmp_path: Path, multi_label: bool, anchors: int | None
) -> None:
    X, y = noisy(multi_label=multi_label)
    found = search(model(anchors=anchors, random_state=7)).fit(X, y)
    expected = model(anchors=anchors, random_state=7, **found.best_params_).fit(X, y)
    same_bits(found.best_estimator_, expected, tmp_path)
    np.testing.assert_array_equal(found.transform(X), expected.transform(X))
    assert found.score(X, y) == expected.score(X, y)


def test_a_store_is_read_once_for_everything(tmp_path: Path) -> None:
    X, y = rows(1280, 5)
    y = np.array([3, 7, 8, 100, 1000])[y]  # class numbers are only known once they are read
    store = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=64)
    with counted_reads() as counts:
        found = search(n_bits=(4, 8, 12)).fit(store)
    assert of_features(counts) == dict.fromkeys(range(len(store.chunks)), 1)
    expected = model(**found.best_params_).fit(store)
    same_bits(found.best_estimator_, expected, tmp_path)
    assert found.best_estimator_.coverage_.n_rows == 1280
    in_memory = search(n_bits=(4, 8, 12)).fit(X, y)
    for name in ("mean_test_score", "std_test_score", "rank_test_score"):
        np.testing.assert_array_equal(found.cv_results_[name], in_memory.cv_results_[name])


def test_the_search_does_not_depend_on_threads_or_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = noisy()
    expected = search().fit(X, y).cv_results_
    with dask.config.set(num_workers=1):
        one = search().fit(X, y).cv_results_
    monkeypatch.setattr("sadih_dask.model.cross_validation.TASKS_A_THREAD", 50)  # a solve each
    split = search().fit(X, y).cv_results_
    for found in (one, split):
        for fold in range(2):
            name = f"split{fold}_test_score"
            np.testing.assert_array_equal(found[name], expected[name])


# --- what is best ------------------------------------------------------------------------------


def test_the_best_of_every_length_and_of_all() -> None:
    X, y = noisy()
    found = search(n_bits=(8, 4)).fit(X, y)
    means, params = found.cv_results_["mean_test_score"], found.cv_results_["params"]
    assert [p["n_bits"] for p in params] == [8] * 4 + [4] * 4
    assert list(found.best_by_bits_) == [8, 4]
    for n_bits, best in found.best_by_bits_.items():
        own = [k for k, p in enumerate(params) if p["n_bits"] == n_bits]
        assert best.index == own[int(np.argmax(means[own]))]
        assert best.params == params[best.index]
        assert best.score == means[best.index]
    assert found.best_index_ == int(np.argmax(means))
    assert found.best_params_ == params[found.best_index_]
    assert found.best_score_ == means.max()
    assert found.best_estimator_.n_bits == found.best_params_["n_bits"]


def test_of_equal_ones_the_first_is_taken() -> None:
    X, y = blobs(120, 5, 3)
    X = X + 30 * np.eye(3, 5)[y]  # so far apart that every code is perfect
    found = search(n_bits=(6, 12)).fit(X, y)
    assert set(found.cv_results_["mean_test_score"]) == {1.0}
    assert found.best_index_ == 0
    assert {n: b.index for n, b in found.best_by_bits_.items()} == {6: 0, 12: 4}
    assert set(found.cv_results_["rank_test_score"]) == {1}


# --- scikit-learn's ways -----------------------------------------------------------------------


@parametrize_with_checks(
    [SADIHCV(SADIH(anchors=None, n_init=1, max_iter=1), {"alpha": [0.1, 1.0]}, n_bits=8, n_folds=2)]
)
def test_estimator_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_results_are_laid_out_as_those_of_other_searches() -> None:
    X, y = noisy()
    found = search().fit(X, y).cv_results_
    assert list(found) == [
        *(f"{s}_{what}_time" for what in ("fit", "score") for s in ("mean", "std")),
        *("param_n_bits", "param_alpha", "param_beta", "params"),
        *(f"split{k}_test_score" for k in range(2)),
        *("mean_test_score", "std_test_score", "rank_test_score"),
    ]
    frame = pd.DataFrame(found)
    assert len(frame) == 8
    assert (frame["mean_fit_time"] > 0).all()
    assert frame["rank_test_score"].min() == 1
    assert frame["param_alpha"].tolist() == [0.01, 0.01, 5.0, 5.0] * 2
    best = frame.loc[frame["mean_test_score"].idxmax(), "params"]
    assert best == search().fit(X, y).best_params_


def test_parameters_and_clones() -> None:
    X, y = noisy(60)
    one = search(model(ridge=0.3), n_queries=7)
    assert one.get_params()["estimator__ridge"] == 0.3
    copy = clone(one).set_params(estimator__ridge=0.5, n_folds=3)
    assert (one.estimator.ridge, copy.estimator.ridge) == (0.3, 0.5)
    fitted = copy.fit(X, y)
    assert fitted.best_estimator_.ridge == 0.5
    assert fitted.n_splits_ == 3
    assert not hasattr(fitted.estimator, "label_codes_")  # the user's own stays as it was
    assert not hasattr(clone(fitted), "cv_results_")
    assert "n_queries=7" in repr(one)


def test_names_of_classes_and_columns() -> None:
    X, y = noisy(120)
    frame = pd.DataFrame(X, columns=list("abcdef"))
    names = np.array(["ant", "bee", "cat", "dog", "eel"])[y]
    found = search().fit(frame, names)
    assert found.feature_names_in_.tolist() == list("abcdef")
    assert found.n_features_in_ == 6
    assert found.best_estimator_.classes_.tolist() == ["ant", "bee", "cat", "dog", "eel"]
    found.fit(X, y)
    assert not hasattr(found, "feature_names_in_")


def test_without_a_refit_there_is_no_model() -> None:
    X, y = noisy(60)
    found = search().fit(X, y)
    found.set_params(refit=False).fit(X, y)
    assert not hasattr(found, "best_estimator_")
    assert found.best_params_["n_bits"] in (4, 8)
    for use in (lambda: found.transform(X), lambda: found.score(X, y)):
        with pytest.raises(InputError, match="refit=False"):
            use()


def test_before_a_fit() -> None:
    X, y = noisy(60)
    unfitted = search()
    for use in (unfitted.table, unfitted.surfaces, lambda: unfitted.transform(X)):
        with pytest.raises(NotFittedError):
            use()
    with pytest.raises(NotFittedError):
        check_is_fitted(unfitted)
    check_is_fitted(unfitted.fit(X, y))


def test_an_interrupted_search_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = noisy(60)
    found = search().fit(X, y)
    before = dict(found.__dict__)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found.fit(X, y, solving=stop)
    assert found.__dict__ == before


def test_progress_of_the_scan_and_of_the_solves() -> None:
    X, y = noisy()
    scan: list[tuple[int, int]] = []
    solves: list[tuple[int, int]] = []
    search().fit(X, y, progress=lambda *n: scan.append(n), solving=lambda *n: solves.append(n))
    for seen in (scan, solves):
        assert [done for done, _ in seen] == list(range(1, seen[-1][1] + 1))


def test_seeds() -> None:
    X, y = noisy()
    one = search(random_state=1).fit(X, y).cv_results_["mean_test_score"]
    other = search(random_state=2).fit(X, y).cv_results_["mean_test_score"]
    assert not np.array_equal(one, other)
    drawn = search(random_state=np.random.default_rng(3)).fit(X, y)
    assert 0 < drawn.best_score_ <= 1


# --- grids -------------------------------------------------------------------------------------


def test_the_default_is_a_grid_of_what_matters() -> None:
    X, y = noisy(60)
    found = SADIHCV(model(max_iter=1), n_folds=2, n_bits=4).fit(X, y)
    names = "ridge", "sharpness", "openness"
    tried = {tuple(p[name] for name in names) for p in found.cv_results_["params"]}
    assert tried == set(product((1e-5, 1e-3, 1e-1), (1.0, 2.0, 4.0), (0.0, 0.5)))
    assert len(found.cv_results_["params"]) == 18


def test_code_lengths_of_the_grid_and_numbers_of_numpy() -> None:
    X, y = noisy(60)
    found = search(grid={"n_bits": np.array([3, 5, 3]), "alpha": np.array([0.5])}).fit(X, y)
    assert found.cv_results_["params"] == [
        {"n_bits": 3, "alpha": 0.5},
        {"n_bits": 5, "alpha": 0.5},
    ]
    assert json.dumps(found.best_params_)


@pytest.mark.parametrize("name", ["anchors", "sigma", "block_rows", "random_state"])
def test_parameters_that_need_another_scan_are_refused(name: str) -> None:
    X, y = noisy(60)
    with pytest.raises(InputError, match=f"'{name}' cannot be in the grid: .* another scan"):
        search(grid={"alpha": [1.0], name: [1, 2]}).fit(X, y)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"alhpa": [1.0]}, r"'alhpa' is no parameter of SADIH; .* alpha, beta, encoder"),
        ({"alpha": []}, "alpha in the grid has no values"),
        ({"alpha": 1.0}, r"alpha in the grid is 1\.0; expected a list"),
        ({"loss": "l21"}, "loss in the grid is 'l21'; expected a list"),
        ({"alpha": [1.0, -2.0]}, r"alpha=-2\.0; expected a finite number"),
        ({"encoder": ["ridge", "rigde"]}, "encoder='rigde' is unknown"),
        ({"n_bits": [8, 0]}, "n_bits=0; expected a whole number"),
        ([("alpha", [1.0])], "param_grid is a list; expected a dict"),
    ],
)
def test_bad_grids_are_refused_before_anything_is_read(grid: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        search(grid=grid).fit("nothing to read")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_folds": 1}, "n_folds=1; expected a whole number of 2 or more"),
        ({"n_folds": True}, "n_folds=True"),
        ({"n_queries": 0}, "n_queries=0; expected a whole number of 1 or more"),
        ({"n_bits": "16"}, "n_bits='16'; expected a whole number"),
        ({"n_bits": ()}, "n_bits in the grid has no values"),
        ({"estimator": LogisticRegression()}, "estimator is a LogisticRegression; only SADIH"),
        ({"estimator": SADIH(ridge=-1.0)}, r"ridge=-1\.0"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        search().set_params(**parameters).fit("nothing to read")


# --- data that cannot be folded ----------------------------------------------------------------


def test_more_folds_than_rows() -> None:
    X, y = blobs(6)
    with pytest.raises(InputError, match="n_samples=6 rows cannot make n_folds=7 folds"):
        search(n_folds=7).fit(X, y)


def test_queries_of_a_class_that_training_rows_lack_do_not_count() -> None:
    X, y = noisy(60)
    y[17] = 9  # the only one of its class
    found = search(n_queries=100).fit(X, y)
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()


def test_rows_of_one_class() -> None:
    X, _ = blobs(20)
    with pytest.raises(LabelError, match="that is one class"):
        search().fit(X, np.zeros(20, int))


def test_folds_that_leave_nothing_to_tell_apart() -> None:
    X = np.random.default_rng(0).normal(size=(6, 3))
    with pytest.raises(LabelError, match=r"without fold \d all rows carry the same labels"):
        search(n_folds=2).fit(X, [0, 0, 0, 0, 0, 1])


def test_queries_without_anything_relevant() -> None:
    X = np.random.default_rng(0).normal(size=(6, 3))
    with (
        pytest.warns(Advice, match="each of the 6 classes has one row"),
        pytest.raises(LabelError, match=r"none of the 0 queries of fold \d shares a label"),
    ):
        search(n_folds=2).fit(X, np.arange(6))


# --- memory ------------------------------------------------------------------------------------


def test_the_plan_counts_folds_and_queries() -> None:
    plain = plan_scan(shape(), 8192, 2)
    five = plan_scan(shape(n_folds=5, n_queries=1000), 8192, 2)
    assert five.partial == 6 * plain.partial
    assert five.total > plain.total
    assert plan_scan(shape(n_folds=10, n_queries=1000), 8192, 2).total > five.total
    assert plan_scan(shape(n_folds=5, n_queries=100_000), 8192, 2).total > five.total
    assert "to solve for the folds" in str(five)
    assert "folds" not in str(plain)


def test_a_search_that_cannot_fit_is_not_started(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", *rows(4000, 256), chunk_rows=500)
    wanted = search(model(block_rows=512), n_folds=20)
    with dask.config.set({"num_workers": 2, "sadih.memory-limit": "500 MiB"}):
        model(block_rows=512).fit(store)
        with counted_reads() as counts, pytest.raises(MemoryPlanError, match="fewer folds"):
            wanted.fit(store)
        assert not of_features(counts)
        wanted.set_params(n_folds=2).fit(store)


# --- reading it --------------------------------------------------------------------------------


def test_a_square_of_scores_for_every_length() -> None:
    X, y = noisy()
    found = search().fit(X, y)
    text = found.table()
    assert "4 bits" in text
    assert "beta 0.1" in text
    assert text.count("*") == 2
    for mean in found.cv_results_["mean_test_score"]:
        assert f"{mean:.4f}" in text
    assert f"{found.best_score_:.4f} ± " in text.splitlines()[-1]
    surfaces = found.surfaces()
    assert [s.n_bits for s in surfaces] == [4, 8]
    assert (surfaces[0].row, surfaces[0].row_values) == ("alpha", (0.01, 5.0))
    assert (surfaces[0].column, surfaces[0].column_values) == ("beta", (0.1, 10.0))
    scores = np.concatenate([s.scores.reshape(-1) for s in surfaces])
    np.testing.assert_array_equal(scores, found.cv_results_["mean_test_score"])
    assert surfaces[0].scores[surfaces[0].best] == surfaces[0].scores.max()


def test_a_line_for_every_combination_of_other_grids() -> None:
    X, y = noisy()
    found = search(grid={**GRID, "ridge": [1e-5, 0.1]}).fit(X, y)
    lines = found.table().splitlines()
    assert lines[0].split() == ["n_bits", "alpha", "beta", "ridge", "mean", "±"]
    assert len(lines) == 1 + 16 + 2
    assert sum("*" in line for line in lines) == 2
    surface = found.surfaces()[0]  # the best over ridge
    means = found.cv_results_["mean_test_score"][:8].reshape(2, 2, 2)
    np.testing.assert_array_equal(surface.scores, means.max(axis=2))


def test_surfaces_of_one_parameter_and_of_none() -> None:
    X, y = noisy(60)
    one = search(grid={"ridge": [1e-5, 0.1, 0.5]}).fit(X, y)
    assert [(s.row, s.scores.shape) for s in one.surfaces()] == [("", (1, 3))] * 2
    assert search(grid={"ridge": [0.1]}).fit(X, y).surfaces() == []
