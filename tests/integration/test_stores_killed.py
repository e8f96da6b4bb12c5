"""Real processes, killed without warning, out of disk, or at work at the same time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import zarr
from sadih_dask.stores.settle import settle

from sadih_dask.errors import ConflictError, IncompleteError
from sadih_dask.stores import FeatureStore
from sadih_dask.stores.features import FeatureWriter
from tests.support.processes import blocks_written, wait_until

PRELUDE = """
import sys, time
import numpy as np
from sadih_dask.stores import FeatureStore
url = sys.argv[1]
def table(first, last):
    numbers = np.arange(first, last)
    return np.stack([numbers, -numbers], axis=1).astype(np.float32), numbers
"""
CREATE = "FeatureStore.create(url, *table(0, 2400), chunk_rows=8)\n"
APPEND = """
store = FeatureStore.open(url)
while True:
    store.append(*table(store.n_rows, store.n_rows + 7))
    print(store.n_rows, flush=True)
"""
HOLD = """
writer = FeatureStore.allocate(url, 10, 2, chunk_rows=5)
print("held", flush=True)
time.sleep(600)
"""


def table(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(first, last)
    return np.stack([numbers, -numbers], axis=1).astype(np.float32), numbers


def start(script: str, url: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script), str(url)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_creation_killed_again_and_again_is_completed_by_the_same_call(tmp_path: Path) -> None:
    url = tmp_path / "s"
    for least in (1, 60):
        process = start(CREATE, url)
        wait_until(lambda least=least: blocks_written(url) > least)  # type: ignore[misc]
        kill(process)
        with pytest.raises(IncompleteError, match=r"incomplete: \d+ of 300 blocks are written"):
            FeatureStore.open(url)
        assert zarr.open_array(url / "features", mode="r").shape == (0, 2)
    before = blocks_written(url)
    store = FeatureStore.create(url, *table(0, 2400), chunk_rows=8)
    assert before > 60
    np.testing.assert_array_equal(store.read("labels"), np.arange(2400))
    assert store.verify().ok
    assert not list(url.glob("*/*.tmp"))


def test_appends_killed_at_any_moment_leave_whole_appends(tmp_path: Path) -> None:
    url = tmp_path / "s"
    FeatureStore.create(url, *table(0, 3), chunk_rows=8)
    chance = random.Random(0)
    for _ in range(4):
        process = start(APPEND, url)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.random() * 0.1)
        kill(process)
        store = FeatureStore.open(url)
        assert store.n_rows % 7 == 3
        settle(store)  # killed just after a commit, the arrays' own metadata are one behind
        assert store.verify().ok
        np.testing.assert_array_equal(store.read("labels"), np.arange(store.n_rows))
        np.testing.assert_array_equal(store.read("features"), table(0, store.n_rows)[0])


def test_a_reader_never_sees_half_of_an_append(tmp_path: Path) -> None:
    url = tmp_path / "s"
    FeatureStore.create(url, *table(0, 3), chunk_rows=8)
    process = start(APPEND, url)
    try:
        seen = set()
        end = time.monotonic() + 2
        while time.monotonic() < end or len(seen) < 5:
            store = FeatureStore.open(url)
            assert store.n_rows % 7 == 3
            np.testing.assert_array_equal(store.read("features"), table(0, store.n_rows)[0])
            seen.add(store.n_rows)
    finally:
        kill(process)


def test_the_second_writer_is_told_who_the_first_is_and_a_dead_one_is_no_obstacle(
    tmp_path: Path,
) -> None:
    process = start(HOLD, tmp_path / "s")
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(ConflictError, match=f"is being written by process {process.pid} on "):
        FeatureStore.allocate(tmp_path / "s", 10, 2, chunk_rows=5)
    kill(process)
    with FeatureStore.allocate(tmp_path / "s", 10, 2, chunk_rows=5) as writer:
        assert writer.missing() == [0, 1]


def write_block(writer: FeatureWriter, block: int, die_at: int) -> int:
    if block == die_at:
        os.kill(os.getpid(), signal.SIGKILL)
    writer.write(writer.rows_of(block)[0], *table(*writer.rows_of(block)))
    return block


def test_many_processes_make_one_store_though_some_die(tmp_path: Path) -> None:
    context = get_context("fork")
    with FeatureStore.allocate(tmp_path / "s", 1001, 2, chunk_rows=10) as writer:
        with (
            pytest.raises(BrokenProcessPool, match="terminated abruptly"),
            ProcessPoolExecutor(3, mp_context=context) as pool,
        ):
            list(pool.map(write_block, [writer] * 101, range(101), [50] * 101))
        left = writer.missing()
        assert 50 in left
        assert len(left) < 101
        with ProcessPoolExecutor(3, mp_context=context) as pool:
            list(pool.map(write_block, [writer] * len(left), left, [-1] * len(left)))
        store = writer.finalise()
    np.testing.assert_array_equal(store.read("labels"), np.arange(1001))
    assert store.verify().ok


LIMITED = """
import errno, resource
from sadih_dask.errors import IncompleteError
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    FeatureStore.create(url, np.ones((5000, 4), np.float32), chunk_rows=1000)
except IncompleteError as error:
    assert error.errno == errno.EFBIG
    print(error)
"""


def test_a_write_that_the_system_refuses_leaves_an_incomplete_store(tmp_path: Path) -> None:
    url = tmp_path / "s"
    output, _ = start(LIMITED, url).communicate()
    assert "array 'features', block 0 (from row 0) could not be written: File too large" in output
    with pytest.raises(IncompleteError, match="0 of 5 blocks are written"):
        FeatureStore.open(url)
    assert not list(url.glob("*/*.tmp"))
    store = FeatureStore.create(url, np.ones((5000, 4), np.float32), chunk_rows=1000)
    assert store.verify().ok


@pytest.mark.parametrize("small_disk", ["1m"], indirect=True)
def test_a_full_disk_leaves_an_incomplete_store_and_a_whole_old_one(small_disk: Path) -> None:
    url = small_disk / "s"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(700_000))
    features, labels = np.ones((40_000, 2), np.float32), np.arange(40_000)
    with pytest.raises(IncompleteError, match="could not be written: No space left on device"):
        FeatureStore.create(url, features, labels, chunk_rows=2000)
    with pytest.raises(IncompleteError, match=r"incomplete: \d+ of 20 blocks"):
        FeatureStore.open(url)
    ballast.unlink()
    store = FeatureStore.create(url, features, labels, chunk_rows=2000)
    assert store.verify().ok
    ballast.write_bytes(bytes(250_000))
    with pytest.raises(IncompleteError, match="Nothing that was committed before is affected"):
        store.append(features, labels)
    reopened = FeatureStore.open(url)
    assert reopened.verify().ok
    assert reopened.n_rows == 40_000
    ballast.unlink()
    reopened.append(features[:3000], labels[:3000])
    assert reopened.verify().ok
