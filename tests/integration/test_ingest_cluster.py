"""Ingestion on worker processes, some of which die; the store is the one that threads make."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from sadih_dask.errors import InputError
from sadih_dask.ingest import DataFiles, HoldOut, ingest
from tests.support.processes import Here, blocks_written, local_cluster, wait_until
from tests.support.sources import numbered, written


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(2) as found:
        yield found


def on_threads(files: DataFiles, url: Path) -> str:
    with dask.config.set(scheduler="threads"):
        return ingest(files, url, chunk_rows=16).store.fingerprint()


@pytest.mark.parametrize("form", ["csv", "parquet", "h5", "npz"])
def test_every_kind_of_reader_on_processes(
    tmp_path: Path, cluster: LocalCluster, form: str
) -> None:
    files = DataFiles(written(form, tmp_path), hold_out=HoldOut(0.2))
    with Client(cluster):
        done = ingest(files, tmp_path / "s", chunk_rows=16)
    assert done.store.verify().ok
    assert done.store.fingerprint() == on_threads(files, tmp_path / "t")


def test_a_worker_that_is_killed_changes_nothing(tmp_path: Path, cluster: LocalCluster) -> None:
    x, url = tmp_path / "x.npy", tmp_path / "s"
    np.save(x, numbered(0, 20_000))
    with Client(cluster) as client:
        pids = list(client.run(os.getpid).values())

        def kill() -> None:
            wait_until(lambda: blocks_written(url) > 20)
            os.kill(pids[0], signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        done = ingest(DataFiles(x), url, chunk_rows=16)
        thread.join()
        client.wait_for_workers(2, timeout=120)
    assert done.store.verify().ok
    assert not list(url.rglob("*.tmp"))
    assert done.store.fingerprint() == on_threads(DataFiles(x), tmp_path / "t")


def test_an_error_of_a_worker_is_that_of_the_call(tmp_path: Path, cluster: LocalCluster) -> None:
    rows = numbered(0, 100)
    rows[77, 1] = np.inf
    np.save(tmp_path / "x.npy", rows)
    with (
        Client(cluster),
        pytest.raises(InputError, match=r"x\.npy row 77, column 1: is inf"),
    ):
        ingest(DataFiles(tmp_path / "x.npy"), tmp_path / "s", chunk_rows=16)


def test_the_command_on_processes(tmp_path: Path, here: Here) -> None:
    np.save(tmp_path / "x.npy", numbered(0, 100))
    words = (tmp_path / "x.npy", tmp_path / "s", "--chunk-rows", 16, "--processes", 1)
    out, _ = here("ingest", *words, "-q")
    assert "100 rows of 2 features, 100 written now" in out
    assert "intact" in here("verify", tmp_path / "s", "-q")[0]
