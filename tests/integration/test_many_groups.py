"""Thousands of label sets: S as tasks, on threads and processes, with the bits of one process."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute import run as running
from sadih_dask.compute import tree
from sadih_dask.learning.labels import LabelGroups, group_rows
from sadih_dask.learning.similarity import SharedLabel
from sadih_dask.model import solve
from sadih_dask.model.solve import MANY_GROUPS, TaskedSharedLabel, tasked_similarity
from tests.support.models import same_bits
from tests.support.processes import local_cluster

N_CLASSES = 40


def tags(n: int, seed: int = 0) -> Any:
    """Rows of one to four of many labels, most of them alone with their set."""
    rng = np.random.default_rng(seed)
    found = np.zeros((n, N_CLASSES), np.uint8)
    for size in range(1, 5):
        rows = np.arange(size - 1, n, 4)
        chosen = rng.random((len(rows), N_CLASSES)).argsort(axis=1)[:, :size]
        found[rows[:, None], chosen] = 1
    return found


@pytest.fixture(scope="module")
def groups() -> LabelGroups:
    found, _ = group_rows(tags(12_000))
    assert len(found) > MANY_GROUPS
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(2) as found:
        yield found


def test_few_groups_or_single_labels_need_no_tasks(groups: LabelGroups) -> None:
    assert isinstance(tasked_similarity(groups, "shared-label"), TaskedSharedLabel)
    few, _ = group_rows(tags(1000))
    assert not isinstance(tasked_similarity(few, "shared-label"), TaskedSharedLabel)
    single, _ = group_rows(np.arange(MANY_GROUPS + 1))
    assert not isinstance(tasked_similarity(single, "shared-label"), TaskedSharedLabel)
    assert not isinstance(tasked_similarity(groups, "cosine"), TaskedSharedLabel)


def test_the_product_has_the_same_bits(groups: LabelGroups, cluster: LocalCluster) -> None:
    m = np.random.default_rng(1).standard_normal((8, len(groups)))
    with running.one_blas_thread():
        expected = SharedLabel(groups).apply(m)
    for threads in (1, 2, 4):
        with dask.config.set(scheduler="threads", num_workers=threads):
            np.testing.assert_array_equal(TaskedSharedLabel(groups).apply(m), expected)
    with Client(cluster):
        tasked = TaskedSharedLabel(groups)
        for _ in range(2):
            np.testing.assert_array_equal(tasked.apply(m), expected)


def test_operands_travel_in_the_graph_once(
    groups: LabelGroups, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[Any] = []
    real = running.run_each_key

    def spy(graph: Any, *rest: Any) -> Any:
        graphs.append(graph)
        return real(graph, *rest)

    monkeypatch.setattr(tree, "run_each_key", spy)
    m = np.random.default_rng(1).standard_normal((64, len(groups)))
    with Client(cluster):
        TaskedSharedLabel(groups).apply(m)
    (graph,) = graphs
    assert len(graph) >= 3
    assert m.nbytes < len(pickle.dumps(graph)) < 1.5 * m.nbytes


def test_a_whole_fit(tmp_path: Path, cluster: LocalCluster) -> None:
    labels = tags(12_000)
    rng = np.random.default_rng(2)
    features = rng.standard_normal((len(labels), 8)) + labels @ rng.standard_normal((N_CLASSES, 8))
    parameters: dict[str, Any] = {
        "n_bits": 8,
        "anchors": None,
        "n_init": 1,
        "max_iter": 2,
        "block_rows": 2000,
    }
    with pytest.MonkeyPatch.context() as patch:  # never as tasks
        patch.setattr(solve, "MANY_GROUPS", 10**9)
        expected = SADIH(**parameters).fit(features, labels)
    assert len(expected.groups_) > MANY_GROUPS
    store = FeatureStore.create(tmp_path / "s", features, labels, chunk_rows=1500)
    with dask.config.set(scheduler="threads", num_workers=2):
        same_bits(SADIH(**parameters).fit(store), expected, tmp_path)
    with Client(cluster):
        same_bits(SADIH(**parameters).fit(store), expected, tmp_path)
