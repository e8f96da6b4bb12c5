"""A search on a cluster of processes: the same bits, and little that travels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute.reduction import FoldReduction, Folds, Reduction
from sadih_dask.compute.rows import StoreRows
from sadih_dask.compute.scan import scan
from sadih_dask.model.cross_validation import SADIHCV
from tests.support.datasets import rows
from tests.support.models import same_bits
from tests.support.processes import local_cluster
from tests.support.statistics import same_statistics

GRID = {"alpha": [0.01, 5.0], "beta": [0.1, 10.0]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(2) as found:
        yield found


def search(**parameters: Any) -> SADIHCV:
    model = SADIH(n_init=2, max_iter=2, block_rows=128, **parameters)
    return SADIHCV(model, GRID, n_bits=(4, 8), n_folds=3, n_queries=25)


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("anchors", [None, 40])
def test_worker_processes_do_not_show(
    tmp_path: Path, cluster: LocalCluster, multi_label: bool, anchors: int | None
) -> None:
    X, y = rows(1500, multi_label=multi_label)
    store = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=97)
    with dask.config.set(scheduler="threads", num_workers=2):
        expected = search(anchors=anchors).fit(X, y)
    seen: list[tuple[int, int]] = []
    with Client(cluster):
        found = search(anchors=anchors).fit(store, solving=lambda *n: seen.append(n))
    for fold in range(3):
        name = f"split{fold}_test_score"
        np.testing.assert_array_equal(found.cv_results_[name], expected.cv_results_[name])
    assert found.best_params_ == expected.best_params_
    same_bits(found.best_estimator_, expected.best_estimator_, tmp_path)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("multi_label", [False, True])
def test_names_and_tags_of_lazy_rows(
    tmp_path: Path, cluster: LocalCluster, multi_label: bool
) -> None:
    X, y = rows(500, multi_label=multi_label)
    names = np.array([f"class {k}" for k in range(np.max(y) + 1 if y.ndim == 1 else y.shape[1])])
    labels: Any = da.from_array(names[y], chunks=90) if y.ndim == 1 else None
    if multi_label:
        labels = [names[row.astype(bool)].tolist() for row in y]
    with dask.config.set(scheduler="threads", num_workers=2):
        expected = search(anchors=None).fit(X, names[y] if y.ndim == 1 else y)
    with Client(cluster):
        found = search(anchors=None).fit(da.from_array(X, chunks=(177, -1)), labels)
    for fold in range(3):
        name = f"split{fold}_test_score"
        np.testing.assert_array_equal(found.cv_results_[name], expected.cv_results_[name])
    same_statistics(found.best_estimator_.statistics_, expected.best_estimator_.statistics_)
    assert found.best_estimator_.classes_.tolist() == names.tolist()


def test_folds_and_samples_have_the_same_bits(tmp_path: Path, cluster: LocalCluster) -> None:
    X, y = rows(3000, 6, dtype="float16")
    store = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=200)
    folds = Folds(3000, 5, 12345)
    sampled = folds.sample(40, np.random.default_rng(0))
    reduction = FoldReduction(Reduction(128, None, None), folds, sampled)
    with dask.config.set(scheduler="threads", num_workers=2):
        expected, _ = scan(StoreRows.of(store), reduction)
    with Client(cluster):
        found, _ = scan(StoreRows.of(store), reduction)
    same_statistics(found.total, expected.total)
    for one, other in zip(found.folds, expected.folds, strict=True):
        assert one is not None
        assert other is not None
        same_statistics(one, other)
    assert len(found.sample) == 200
    np.testing.assert_array_equal(found.sample.rows, sampled)
    np.testing.assert_array_equal(found.sample.features, X[sampled])
    np.testing.assert_array_equal(found.sample.labels, y[sampled])
