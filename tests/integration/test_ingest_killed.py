"""Appends of files by real processes that are killed without warning, and what goes on then."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask.errors import ConflictError, IncompleteError
from sadih_dask.ingest import DataFiles, ingest
from sadih_dask.stores import FeatureStore
from tests.support.processes import PATIENCE, wait_until
from tests.support.stores import pending_blocks

N_OLD, N_NEW, CHUNK = 1003, 2400, 8
APPEND = """
import sys, time
from sadih_dask.ingest import DataFiles, ingest
url, pause, *files = sys.argv[1:]
def slow(*_):
    time.sleep(float(pause))
ingest(DataFiles(files), url, mode="append", progress=slow)
"""


def numbered(first: int, last: int) -> np.ndarray:
    numbers = np.arange(first, last)
    return np.stack([numbers, -numbers], axis=1).astype(np.float32)


def saved(path: Path, first: int, last: int) -> Path:
    np.save(path, numbered(first, last))
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return saved(tmp_path / "old.npy", 0, N_OLD)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return saved(tmp_path / "new.npy", N_OLD, N_OLD + N_NEW)


@pytest.fixture
def url(tmp_path: Path, old: Path) -> Path:
    """A store whose last chunk has three rows of eight, which no append touches."""
    ingest(DataFiles(old), tmp_path / "s", chunk_rows=CHUNK)
    return tmp_path / "s"


def start(url: Path, *files: Path, pause: float = 0.002) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", APPEND, str(url), str(pause), *map(str, files)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2])


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def interrupt(url: Path, *files: Path, after: int) -> None:
    process = start(url, *files)
    try:
        wait_until(lambda: len(pending_blocks(url)) > after)
    finally:
        kill(process)


def chunks(url: Path) -> dict[Path, tuple[int, int]]:
    """All chunks, with what changes if one is written again."""
    found = [(path, path.stat()) for path in url.glob("segments/*/*/c.*")]
    return {path: (status.st_ino, status.st_mtime_ns) for path, status in found}


def check(url: Path, n_rows: int) -> FeatureStore:
    store = FeatureStore.open(url)
    assert store.n_rows == n_rows
    assert store.verify().ok
    np.testing.assert_array_equal(store.read("features"), numbered(0, n_rows))
    return store


def test_an_append_killed_again_and_again_goes_on_and_is_seen_only_when_it_is_whole(
    url: Path, old: Path, new: Path
) -> None:
    held = FeatureStore.open(url)
    for least in (10, 60, 120):
        interrupt(url, old, new, after=least)
        check(url, N_OLD)
        assert held.verify().ok
    written, before = len(pending_blocks(url)), chunks(url)
    assert written > 120
    seen: list[int] = []
    done = ingest(DataFiles([old, new]), url, mode="append", progress=lambda n, _: seen.append(n))
    assert done.n_passed_over == 1
    assert done.n_resumed == written * CHUNK
    assert done.n_new + done.n_resumed == N_NEW
    assert seen[0] == done.n_resumed
    assert seen == sorted(seen)
    check(url, N_OLD + N_NEW)
    assert held.verify().ok
    assert before.items() <= chunks(url).items()  # nothing was written twice
    assert not pending_blocks(url)
    assert not list(url.rglob("*.tmp"))
    assert done.store.collect() == []
    assert ingest(DataFiles([old, new]), url, mode="append").n_new == 0


def test_killed_at_any_moment_it_is_whole_or_not_there(url: Path, old: Path, new: Path) -> None:
    chance = random.Random(0)
    for _ in range(3):
        process = start(url, old, new, pause=0.0)
        wait_until(lambda: pending_blocks(url) or process.poll() is not None)  # noqa: B023
        time.sleep(chance.random() * 0.2)
        kill(process)
        n_rows = FeatureStore.open(url).n_rows
        assert n_rows in (N_OLD, N_OLD + N_NEW)
        check(url, n_rows)
    ingest(DataFiles([old, new]), url, mode="append")
    check(url, N_OLD + N_NEW)


def test_other_files_do_not_go_on_with_it(url: Path, old: Path, new: Path, tmp_path: Path) -> None:
    interrupt(url, old, new, after=50)
    begun = chunks(url)
    other = saved(tmp_path / "other.npy", N_OLD, N_OLD + 40)
    done = ingest(DataFiles([old, other]), url, mode="append")
    assert (done.n_new, done.n_resumed) == (40, 0)
    check(url, N_OLD + 40)
    # It can still be gone on with, until somebody gives it up
    assert begun.items() <= chunks(url).items()
    assert done.store.abandon() == 1
    gone = done.store.collect()
    assert len(gone) == 1
    assert not (url / gone[0]).exists()
    check(url, N_OLD + 40)
    rest = saved(tmp_path / "rest.npy", N_OLD + 40, N_OLD + 90)
    assert ingest(DataFiles(rest), url, mode="append").n_resumed == 0
    check(url, N_OLD + 90)


def test_it_goes_on_behind_another_commit(url: Path, old: Path, new: Path) -> None:
    interrupt(url, old, new, after=50)
    before = chunks(url)
    FeatureStore.open(url).append(numbered(N_OLD, N_OLD + 1))
    done = ingest(DataFiles([old, new]), url, mode="append")
    assert done.n_resumed > 50 * CHUNK
    assert done.n_new + done.n_resumed == N_NEW
    assert before.items() <= chunks(url).items()
    store = FeatureStore.open(url)
    assert store.verify().ok
    np.testing.assert_array_equal(store.read("features")[N_OLD + 1 :], np.load(new))


def test_a_source_that_changed_meanwhile_is_read_anew(url: Path, old: Path, new: Path) -> None:
    interrupt(url, old, new, after=50)
    np.save(new, -np.load(new))
    done = ingest(DataFiles([old, new]), url, mode="append")
    assert (done.n_new, done.n_resumed) == (N_NEW, 0)
    np.testing.assert_array_equal(done.store.read("features")[N_OLD:], np.load(new))
    assert done.store.verify().ok


def test_a_source_that_changes_while_it_is_read_adds_nothing(
    url: Path, old: Path, new: Path
) -> None:
    with pytest.raises(ConflictError, match=r"changed while it was being read, so nothing was com"):
        ingest(
            DataFiles([old, new]),
            url,
            mode="append",
            progress=lambda *_: os.utime(new, ns=(1, 1)),
        )
    check(url, N_OLD)
    assert ingest(DataFiles([old, new]), url, mode="append").n_resumed == 0
    check(url, N_OLD + N_NEW)


def test_tidying_up_leaves_it_alone(url: Path, old: Path, new: Path) -> None:
    interrupt(url, old, new, after=50)
    written = pending_blocks(url)
    assert FeatureStore.open(url).collect() == []
    FeatureStore.open(url).compact(one_segment=True, purge=True)
    assert pending_blocks(url) == written
    assert ingest(DataFiles(old), url, mode="append").n_new == 0
    assert ingest(DataFiles([old, new]), url, mode="append").n_resumed > 50
    check(url, N_OLD + N_NEW)


def test_half_a_chunk_is_a_block_to_be_written(url: Path, old: Path, new: Path) -> None:
    finished = set(chunks(url))
    interrupt(url, old, new, after=50)
    victims = sorted(set(chunks(url)) - finished)
    victims[3].write_bytes(b"rubbish")
    victims[5].write_bytes(victims[5].read_bytes()[:-1])
    victims[7].unlink()
    done = ingest(DataFiles([old, new]), url, mode="append")
    assert done.n_resumed == (len(victims) - 3) * CHUNK
    check(url, N_OLD + N_NEW)


def test_two_appends_of_the_same_files_at_once_are_one(url: Path, old: Path, new: Path) -> None:
    process = start(url, old, new, pause=0.02)
    try:
        wait_until(lambda: len(pending_blocks(url)) > 3)
        done = ingest(DataFiles([old, new]), url, mode="append")
        assert done.n_resumed > 0
        check(url, N_OLD + N_NEW)
        assert process.wait(PATIENCE) == 0
    finally:
        kill(process)
    check(url, N_OLD + N_NEW)
    assert len(FeatureStore.open(url).segments) == 2


@pytest.mark.parametrize("small_disk", ["2m"], indirect=True)
def test_an_append_to_a_full_disk_goes_on_when_there_is_room(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sadih_dask.ingest.ingestion.check_space", lambda *_, **__: None)
    first, second = saved(tmp_path / "a.npy", 0, 10), saved(tmp_path / "b.npy", 10, 100_000)
    url, ballast = small_disk / "s", small_disk / "ballast"
    ingest(DataFiles(first), url, chunk_rows=4096)
    ballast.write_bytes(bytes(1_300_000))
    with pytest.raises(IncompleteError, match="Nothing that was committed before is affected"):
        ingest(DataFiles([first, second]), url, mode="append")
    check(url, 10)
    ballast.unlink()
    done: Any = ingest(DataFiles([first, second]), url, mode="append")
    assert done.n_resumed > 0
    check(url, 100_000)
