"""Bad rows and dying workers: rows are named, nothing is retried in vain, results are the same."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from sadih_dask import SADIH, FeatureStore
from sadih_dask.errors import IntegrityError, LabelError, NonFiniteError
from sadih_dask.learning.statistics import Statistics
from tests.support.datasets import Array, rows
from tests.support.models import FAST, same_bits
from tests.support.processes import PATIENCE, local_cluster, wait_until
from tests.support.stores import segment_folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(2) as found:
        yield found


def model(**parameters: Any) -> SADIH:
    return SADIH(**{**FAST, "anchors": None, **parameters})


@pytest.mark.parametrize("chunk_rows", [300, 512, 5000])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_row_is_named(tmp_path: Path, chunk_rows: int, value: float) -> None:
    X, y = rows()
    X[3333, 7] = value
    store = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=chunk_rows)
    for threads in (1, 4):
        with (
            dask.config.set(scheduler="threads", num_workers=threads),
            pytest.raises(NonFiniteError, match=f"{value} at row 3333, column 7"),
        ):
            model().fit(store)
    lazy = da.from_array(X, chunks=(chunk_rows, -1))
    with pytest.raises(NonFiniteError, match=f"{value} at row 3333, column 7"):
        model().fit(lazy, y)


def test_a_bad_row_among_new_rows_is_named_by_its_place_in_the_store(tmp_path: Path) -> None:
    X, y = rows()
    store = FeatureStore.create(tmp_path / "s", X[:2000], y[:2000], chunk_rows=300)
    found = model().fit(store)
    before = found.fingerprint_
    X[4444, 1] = np.nan
    store.append(X[2000:], y[2000:])
    with pytest.raises(NonFiniteError, match="nan at row 4444, column 1"):
        found.fit(store)
    assert found.fingerprint_ == before


def test_a_bad_label_is_named(tmp_path: Path) -> None:
    X, y = rows()
    y[2999] = -1
    store = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=300)
    with pytest.raises(LabelError, match=r"the label of row 2999 is .*-1"):
        model().fit(store)


def test_a_bad_row_on_processes_is_named_and_not_tried_again(
    tmp_path: Path, cluster: LocalCluster
) -> None:
    X, y = rows()
    X[3333, 7] = np.nan
    poisoned = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=300)
    damaged = FeatureStore.create(tmp_path / "d", rows()[0], y, chunk_rows=300)
    file = segment_folder(damaged) / "features/c.5.0"
    data = bytearray(file.read_bytes())
    data[100] ^= 4
    file.write_bytes(data)
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
        before = client.scheduler_info(n_workers=-1)["workers"].keys()
        with pytest.raises(NonFiniteError, match="nan at row 3333, column 7"):
            model().fit(poisoned)
        with pytest.raises(IntegrityError, match="array 'features', chunk 5"):
            model().fit(damaged)
        assert client.scheduler_info(n_workers=-1)["workers"].keys() == before
        assert model().fit(FeatureStore.create(tmp_path / "g", rows()[0], y))


class SlowRows:
    """Makes the scan of a block take a while, in whichever process it runs, and notes it."""

    def __init__(self, begun: Path) -> None:
        self.begun = begun

    def __call__(self, block: Array) -> Array:
        self.begun.touch()
        time.sleep(0.2)
        return block


@contextmanager
def killed_in_the_middle(client: Client, begun: Path, n: int) -> Iterator[None]:
    """Kill so many workers as soon as the work has begun; at the end all have successors."""
    victims = set(list(client.run(os.getpid).values())[:n])

    def kill() -> None:
        wait_until(begun.exists, "the work begins")
        for pid in victims:
            os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    yield
    thread.join()
    wait_until(lambda: victims.isdisjoint(client.run(os.getpid).values()), "workers are replaced")
    client.wait_for_workers(2, timeout=PATIENCE)


def test_a_worker_is_killed_during_the_scan(tmp_path: Path, cluster: LocalCluster) -> None:
    X, y = rows()
    expected = model(block_rows=256).fit(X, y)
    begun = tmp_path / "begun"
    slow = da.from_array(X, chunks=(256, -1)).map_blocks(SlowRows(begun), dtype=X.dtype)
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
        with killed_in_the_middle(client, begun, 1):
            found = model(block_rows=256).fit(slow, y)
    same_bits(found, expected, tmp_path)


def test_every_worker_is_killed(tmp_path: Path, cluster: LocalCluster) -> None:
    """What was sent to the workers is lost with them, and sent again."""
    X, y = rows(d=64)
    store = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=500)
    expected = model(anchors=200).fit(X, y)
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
        client.run(slow_down, tmp_path / "begun")
        with killed_in_the_middle(client, tmp_path / "begun", 2):
            found = model(anchors=200).fit(store)
    same_bits(found, expected, tmp_path)


def test_a_worker_is_killed_while_it_reads_a_store(
    tmp_path: Path, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows()
    store = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=200)
    expected = model(block_rows=256).fit(X, y)
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
        client.run(slow_down, tmp_path / "begun")
        with killed_in_the_middle(client, tmp_path / "begun", 1):
            found = model(block_rows=256).fit(store)
        client.run(speed_up)
    same_bits(found, expected, tmp_path)


def slow_down(begun: Path) -> None:
    """Let every block take a fifth of a second on this worker, and note that one has begun."""
    real = Statistics.of_block

    def of_block(*arguments: Any, **options: Any) -> Statistics:
        begun.touch()
        time.sleep(0.2)
        return real(*arguments, **options)

    of_block.real = real  # type: ignore[attr-defined]
    Statistics.of_block = of_block  # type: ignore[method-assign,assignment]


def speed_up() -> None:
    slow = Statistics.of_block
    Statistics.of_block = getattr(slow, "real", slow)  # type: ignore[method-assign]
