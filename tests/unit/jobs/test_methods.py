"""Methods side by side: what is on file is not done again, what fails stops nobody."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from sadih_dask import FeatureStore, evaluate_model
from sadih_dask.errors import FormatError
from sadih_dask.jobs.methods import RESULTS, compare_methods
from sadih_dask.model.methods.itq import ITQ
from sadih_dask.report.methods import METRICS, Outcome, as_table
from tests.support.models import counted_reads, of_features


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[FeatureStore, FeatureStore]:
    X, y = load_digits(return_X_y=True)
    folder, order = tmp_path_factory.mktemp("stores"), np.random.default_rng(0).permutation(len(X))
    X, y = X[order].astype(np.float32), y[order]
    database = FeatureStore.create(folder / "d.zarr", X[:600], y[:600])
    return database, FeatureStore.create(folder / "q.zarr", X[600:800], y[600:800])


METHODS = ("itq", "bq", "fsdh")
BITS = (8, 80)


def test_side_by_side(stores: tuple[FeatureStore, FeatureStore], tmp_path: Path) -> None:
    settings = {"parameters": {"anchors": None}, "class_folds": 2, "results": tmp_path}
    found = compare_methods(*stores, METHODS, BITS, **settings)
    assert [(one.method, one.n_bits) for one in found] == [(m, n) for m in METHODS for n in BITS]
    failed = [one for one in found if one.failure]
    assert [(one.method, one.n_bits) for one in failed] == [("itq", 80), ("bq", 80)]
    assert "rows have 64 features" in failed[0].failure

    database, queries = stores
    direct = evaluate_model(ITQ(n_bits=8).fit(database), queries, database, class_folds=2)
    expected = {name: each.numbers["MAP"] for name, each in direct.known.items()}
    assert {name: each["MAP"] for name, each in found[0].numbers.items()} == expected
    assert set(found[4].numbers) == {"learned", "encoded", "fresh", "unseen"}

    with counted_reads() as reads:
        again = compare_methods(*stores, ("itq", "fsdh"), (8,), **settings)
    assert not reads
    assert again == [found[0], found[4]]
    assert (tmp_path / "figures" / "map-bits.svg").exists()
    page = (tmp_path / "report.html").read_text()
    assert f"{found[0].numbers['fresh']['MAP']:.4f}" in page
    assert found[0].peak_memory is not None
    assert found[0].peak_memory > 600 * 64 * 8  # the sampled rows about their mean


def test_one_scan_and_one_solve(
    stores: tuple[FeatureStore, FeatureStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    with counted_reads() as reads:  # 80 bits are too many for both, and the scan is kept
        compare_methods(*stores, ("itq", "bq"), (80, 90))
    assert set(of_features(reads).values()) == {1}
    solved, solve = [], ITQ._solve
    monkeypatch.setattr(ITQ, "_solve", lambda *given: (solved.append(1), solve(*given))[1])
    compare_methods(*stores, ("itq",), BITS, class_folds=0)
    assert len(solved) == len(BITS)


def test_the_best_of_a_length_is_starred() -> None:
    one, other = ({"fresh": dict.fromkeys(METRICS, value)} for value in (0.5, 0.75))
    error = {"fresh": dict.fromkeys(METRICS, 0.01)}
    lines = as_table(
        [
            Outcome("itq", 8, one, error, 1.0),
            Outcome("sadih", 8, other, error, 2.0),
            Outcome("bq", 8, failure="too long"),
        ]
    ).splitlines()
    assert [lines[0], lines[6]] == ["MAP", "precision@100"]
    for first in (1, 7):
        assert "0.5000 ± 0.0100 " in lines[first + 1]
        assert "0.7500 ± 0.0100*" in lines[first + 2]
        assert lines[first + 3].endswith("failed: too long")


def test_rows_without_labels_are_compared_on_queries(
    stores: tuple[FeatureStore, FeatureStore], tmp_path: Path
) -> None:
    database, queries = stores
    bare = FeatureStore.create(tmp_path / "bare.zarr", database.read("features", 0, 600))
    found = compare_methods(bare, queries, ("itq", "sdh"), (8,))
    model = ITQ(n_bits=8).fit(database)
    expected = evaluate_model(model, queries, class_folds=0).known["fresh"].numbers["MAP"]
    assert {p: n["MAP"] for p, n in found[0].numbers.items()} == {"fresh": expected}
    assert "has no labels" in found[1].failure


def test_results_of_other_rows_are_not_taken(
    stores: tuple[FeatureStore, FeatureStore], tmp_path: Path
) -> None:
    found = compare_methods(*stores, ("bq",), (8,), class_folds=0, results=tmp_path)
    kept = json.loads((tmp_path / RESULTS).read_text())
    kept["outcomes"][0] |= {"seconds": -1.0, "parameters": {"n_bits": 8, "anchors": 5}}
    (tmp_path / RESULTS).write_text(json.dumps(kept))  # of other defaults
    again = compare_methods(*stores, ("bq",), (8,), class_folds=0, results=tmp_path)
    assert again[0].seconds >= 0
    kept = json.loads((tmp_path / RESULTS).read_text())
    kept["of"][0] = "other rows"
    kept["outcomes"][0]["seconds"] = -1.0
    (tmp_path / RESULTS).write_text(json.dumps(kept))
    again = compare_methods(*stores, ("bq",), (8,), class_folds=0, results=tmp_path)
    assert again[0].seconds >= 0
    assert again[0].numbers == found[0].numbers
    (tmp_path / RESULTS).write_text("[]")
    with pytest.raises(FormatError, match=r"methods\.json is not what a comparison"):
        compare_methods(*stores, ("bq",), (8,), class_folds=0, results=tmp_path)
