"""The lock of an object store: renewed while its holder lives, taken over when it does not."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sadih_dask.errors import ConflictError
from sadih_dask.files import lease
from sadih_dask.files.filesystem import Files, connect
from sadih_dask.files.lease import LOCK_KEY, Holder, WriterLock, read_holder

RENEWAL, LEASE = 0.05, 0.6


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEWAL", RENEWAL)
    monkeypatch.setattr(lease, "LEASE", LEASE)


@pytest.fixture
def files(request: pytest.FixtureRequest) -> Iterator[Files]:
    found = connect(f"memory://lease/{request.node.name}")
    yield found
    found.delete("_commits")


def other_host(files: Files, *, beat: int | None = 1, age: float = 0.0) -> Holder:
    holder = Holder("elsewhere", 7, "1", "token", beat, time.time() - age)
    files.write(LOCK_KEY, [holder.to_json()])
    return holder


def test_a_holder_gives_signs_of_life_until_it_lets_go(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE", 600.0)  # a busy machine may keep it waiting
    others = set(threading.enumerate())  # of tests before this one
    with WriterLock(files) as lock:
        beats = set()
        deadline = time.monotonic() + 120
        while len(beats) < 4 and time.monotonic() < deadline:
            found = read_holder(files)
            assert found is not None
            beats.add(found.beat)
            time.sleep(RENEWAL / 5)
        assert len(beats) == 4
        lock.check()
        lock.check_time()
    assert read_holder(files) is None
    time.sleep(3 * RENEWAL)
    assert read_holder(files) is None
    left = set(threading.enumerate()) - others
    assert not [t for t in left if t.name.startswith("sadih-lock")]


def test_a_silent_holder_of_another_host_is_waited_for_and_replaced(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    other_host(files)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING), WriterLock(files) as lock:
        assert time.monotonic() - began > 0.9 * LEASE
        lock.check()
    assert "is locked by process 7 on elsewhere; watching for up to" in caplog.text


def test_one_that_looks_dead_for_long_is_watched_for_two_renewals_only(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE", 600.0)
    other_host(files, age=3600)
    began = time.monotonic()
    with WriterLock(files):
        assert 2 * RENEWAL <= time.monotonic() - began < 300


@pytest.mark.parametrize("age", [0.0, 3600.0, -3600.0])
def test_one_that_still_beats_keeps_it_whatever_its_clock_says(
    files: Files, age: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = other_host(files, age=age)
    beats = itertools.count(1)

    def beating(_: Files) -> Holder:
        return replace(holder, beat=next(beats))

    monkeypatch.setattr(lease, "read_holder", beating)
    with pytest.raises(ConflictError, match="is being written by process 7 on elsewhere"):
        WriterLock(files).acquire()
    assert next(beats) == 3


def test_one_that_gives_no_signs_at_all_has_to_be_deleted_by_somebody_who_knows(
    files: Files,
) -> None:
    other_host(files, beat=None)
    with pytest.raises(ConflictError, match=f"delete {files.url}/{LOCK_KEY}"):
        WriterLock(files).acquire()


def test_a_holder_that_could_not_renew_it_stops(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = files.write

    def refused(key: str, *rest: object, **named: object) -> None:
        if key == LOCK_KEY:
            raise OSError("the network is gone")
        write(key, *rest, **named)  # type: ignore[arg-type]

    lock = WriterLock(files).acquire()
    monkeypatch.setattr(files, "write", refused)
    lock.check_time()
    time.sleep(LEASE + 2 * RENEWAL)
    with pytest.raises(ConflictError, match=r"its lock could not be renewed for \d+ s"):
        lock.check_time()
    monkeypatch.undo()
    lock.release()


def test_one_that_was_replaced_neither_commits_nor_deletes_the_lock_of_its_successor(
    files: Files,
) -> None:
    lock = WriterLock(files).acquire()
    successor = other_host(files)
    time.sleep(3 * RENEWAL)
    with pytest.raises(ConflictError, match="is being written by process 7 on elsewhere"):
        lock.check()
    lock.release()
    assert read_holder(files) == successor
