"""Search and evaluation on a real cluster of processes: the same as on threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from sadih_dask import SADIH, CodeStore, FeatureStore, evaluate, evaluate_model, search
from sadih_dask.errors import InputError, IntegrityError
from tests.support.processes import local_cluster
from tests.support.rankings import random_codes


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_cluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture(autouse=True)
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sadih_dask.compute.tree.ROWS_PER_TASK", 5000)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[CodeStore, FeatureStore, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    codes = random_codes(rng, 100_000, 24)
    labels = rng.integers(0, 6, 100_000)
    ids = np.arange(100_000) + 5
    store = CodeStore.create(tmp_path / "c", codes, n_bits=24, model="m", ids=ids, chunk_rows=1000)
    rows = FeatureStore.create(tmp_path / "f", np.zeros((100_000, 1)), labels, chunk_rows=30_000)
    return store, rows, random_codes(rng, 50, 24), rng.integers(0, 6, 50)


def test_search(client: Client, stores) -> None:
    store, _, queries, _ = stores
    expected = search(store, queries, 20)
    done: list[tuple[int, int]] = []
    with client.as_current():
        found = search(store, queries, 20, progress=lambda a, b: done.append((a, b)))
        within = search(store, queries, radius=1)
        local = search(store.read("codes"), queries, 20)
        with pytest.raises(InputError, match="more than 10 items"):
            search(store, queries, radius=9, max_results=10)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.distances, expected.distances)
    np.testing.assert_array_equal(local.rows, expected.rows)
    np.testing.assert_array_equal(within.ids, search(store, queries, radius=1).ids)
    assert done[-1][0] == done[-1][1] > 1


def test_evaluate(client: Client, stores) -> None:
    store, rows, queries, labels = stores
    expected = evaluate(store, queries, rows, labels)
    with client.as_current():
        found = evaluate(store, queries, rows, labels)
        in_memory = evaluate(store, queries, rows.read("labels"), labels)
    assert found.to_dict() == in_memory.to_dict() == expected.to_dict()


def test_a_model(client: Client, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, 3000)
    X = rng.standard_normal((3000, 6)) + 2 * rng.standard_normal((3, 6))[y]
    rows = FeatureStore.create(tmp_path / "f", X[100:], y[100:], chunk_rows=400)
    queries = FeatureStore.create(tmp_path / "q", X[:100], y[:100])
    model = SADIH(n_bits=10, anchors=20, block_rows=256).fit(rows)
    expected = evaluate_model(model, queries, rows)
    with client.as_current():
        found = evaluate_model(model, queries, rows)
        from_codes = evaluate_model(model, queries, rows, codes=model.encode(rows, tmp_path / "c"))
    assert found.to_dict() == from_codes.to_dict() == expected.to_dict()


def test_damage_found_by_a_worker_is_the_same_error(client: Client, stores) -> None:
    store, _, queries, _ = stores
    file = Path(store.url, store.segments[0].path, "codes/c.7.0")
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)
    with client.as_current(), pytest.raises(IntegrityError, match="array 'codes', chunk 7"):
        search(store, queries, 3)
