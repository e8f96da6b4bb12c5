"""Two models on the same held-out rows, and what is decided from that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sadih_dask import SADIH, FeatureStore
from sadih_dask.jobs.fit import Comparison, Gain, compare_models
from sadih_dask.runs.fit import decide
from sadih_dask.runs.settings import Settings
from tests.support.datasets import blobs, tagged_blobs

N_BITS = 8


def stores(folder: Path, *, tags: bool = False) -> tuple[FeatureStore, FeatureStore]:
    X, y = (tagged_blobs if tags else blobs)(600, 6, 4)
    return (
        FeatureStore.create(folder / "x", X[:400], y[:400], ids=np.arange(400)),
        FeatureStore.create(folder / "q", X[400:], y[400:]),
    )


def settings(min_gain: float = 0.01) -> Settings:
    return Settings.model_validate(
        {
            "run": {"directory": "somewhere"},
            "source": {"kind": "digits"},
            "model": {"refresh": "when-better", "min_gain": min_gain},
        }
    )


@pytest.mark.parametrize("tags", [False, True])
def test_gain_is_the_difference_of_scores(tmp_path: Path, tags: bool) -> None:
    database, queries = stores(tmp_path, tags=tags)
    one, other = (SADIH(bits, anchors=None).fit(database) for bits in (2, 4))
    X, y = queries.read("features"), queries.read("labels")
    found = compare_models(one, other, queries)
    assert found.new_classes is None
    assert found.all_rows.n_queries == 200
    assert found.all_rows.gain == pytest.approx(other.score(X, y) - one.score(X, y))
    same = compare_models(one, one, queries)
    assert same == Comparison(Gain(0.0, 0.0, 200), None, 0.0, 0.0)
    assert not same.is_better(0.0)


def test_rows_of_new_classes_are_judged_apart(tmp_path: Path) -> None:
    X, y = blobs(600, 6, 4)
    known = y != 3
    queries = FeatureStore.create(tmp_path / "q", X[400:], y[400:])
    old = SADIH(N_BITS, anchors=None).fit(X[:400][known[:400]], y[:400][known[:400]])
    new = SADIH(N_BITS, anchors=None).fit(X[:400], y[:400])
    found = compare_models(old, new, queries)
    assert found.new_classes is not None
    assert found.new_classes.n_queries == 50
    assert found.new_classes.gain > found.all_rows.gain


@pytest.mark.parametrize(
    ("gain", "error", "least", "is_better"),
    [
        (0.02, 0.001, 0.01, True),
        (0.009, 0.001, 0.01, False),
        (0.02, 0.011, 0.01, False),  # may be an accident
        (0.02, float("nan"), 0.01, False),  # one query
        (float("nan"), float("nan"), 0.0, False),
        (-0.02, 0.001, 0.0, False),
    ],
)
def test_a_gain_has_to_be_large_and_certain(gain, error, least, is_better) -> None:
    assert Gain(gain, error, 9).reaches(least) == is_better


def test_a_model_that_knows_deleted_rows_is_not_kept(tmp_path: Path) -> None:
    database, queries = stores(tmp_path)
    used = SADIH(N_BITS, anchors=None).fit(database)
    assert decide(used, used, database, queries, settings())["decision"] == "kept"
    database.delete([7, 8])
    now = database.refresh()
    new = SADIH(N_BITS, anchors=None).fit(now)
    found = decide(used, new, now, queries, settings(0.9))
    assert found["decision"] == "refreshed"
    assert "not there any more" in found["reason"]
    assert decide(new, new, now, queries, settings())["decision"] == "kept"
