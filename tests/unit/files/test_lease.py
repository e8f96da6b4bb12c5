"""Who is at work: on a disk as long as its process lives, elsewhere as long as it gives signs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sadih_dask.errors import ConflictError
from sadih_dask.files import lease
from sadih_dask.files.conditional import Version
from sadih_dask.files.filesystem import Files, connect
from sadih_dask.files.lease import LOCK_KEY, Holder, WriterLock, is_held
from tests.support.processes import wait_until

RENEWAL, LEASE = 0.05, 0.6


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEWAL", RENEWAL)
    monkeypatch.setattr(lease, "LEASE", LEASE)


@pytest.fixture
def files(request: pytest.FixtureRequest) -> Iterator[Files]:
    found = connect(f"memory://lease/{request.node.name}")
    yield found
    found.delete(LOCK_KEY)


def put(files: Files, holder: Holder) -> Holder:
    files.write(LOCK_KEY, [holder.to_json()])
    return holder


def there(files: Files) -> Holder:
    return Holder.of(Version(files.read(LOCK_KEY, 4096)))


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_holder_gives_signs_of_life_until_it_lets_go(files: Files) -> None:
    others = set(threading.enumerate())  # of tests before this one
    seen = set()

    def beats() -> bool:
        seen.add(files.read(LOCK_KEY, 4096))
        return len(seen) >= 4

    with WriterLock(files) as lock:
        wait_until(beats, "it beats")
        assert there(files).pid == os.getpid()
        assert is_held(files)
    assert not is_held(files)
    lock.release()
    assert LOCK_KEY not in files.names("")
    left = set(threading.enumerate()) - others
    assert not [t for t in left if t.name.startswith("sadih-lock")]


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b"nothing"])
def test_what_cannot_be_understood_is_waited_for_and_replaced(files: Files, text: bytes) -> None:
    files.write(LOCK_KEY, [text])
    began = time.monotonic()
    with WriterLock(files):
        assert time.monotonic() - began > 0.9 * LEASE


@pytest.mark.parametrize("kernel", ["another kernel", ""])
def test_process_numbers_of_others_say_nothing(
    files: Files, caplog: pytest.LogCaptureFixture, kernel: str
) -> None:
    """A container of the same host name, whose process 7 is none of ours."""
    holder = put(files, Holder(pid=dead_process(), started="1", kernel=kernel))
    assert not holder.is_gone()
    assert is_held(files)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING), WriterLock(files):
        assert time.monotonic() - began > 0.9 * LEASE
    assert f"is locked by process {holder.pid} on {holder.host}; watching" in caplog.text


def test_one_that_still_beats_keeps_it(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE", 600.0)
    holder = Holder("elsewhere", 7, "1", "another kernel", "token")
    put(files, holder)
    monkeypatch.setattr(time, "sleep", lambda _: put(files, replace(holder, beat=1)))
    with pytest.raises(ConflictError, match="is being written by process 7 on elsewhere"):
        WriterLock(files).acquire()
    assert there(files).token == "token"


def test_a_dead_process_of_this_kernel_is_not_waited_for(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE", 600.0)
    put(files, Holder(pid=dead_process(), started="1"))
    assert not is_held(files)
    with WriterLock(files), pytest.raises(ConflictError, match=f"process {os.getpid()} on"):
        WriterLock(files).acquire()
    put(files, Holder(started="that of another process of our number"))
    with WriterLock(files):
        pass


def test_who_was_taken_over_neither_renews_nor_releases(files: Files) -> None:
    lock = WriterLock(files).acquire()
    successor = put(files, Holder("elsewhere", 7, "1", "another kernel", "token"))
    wait_until(lambda: "sadih-lock" not in [t.name for t in threading.enumerate()], "it notices")
    lock.release()
    assert there(files).token == successor.token


def test_only_one_takes_a_lock_over(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    put(files, Holder(pid=dead_process(), started="1"))
    rival = Holder("elsewhere", 7, "1", "another kernel", "token")
    gone = Holder.is_gone

    def slow(self: Holder) -> bool:
        found = gone(self)
        put(files, rival)
        return found

    monkeypatch.setattr(Holder, "is_gone", slow)
    with pytest.raises(ConflictError, match="process 7 on elsewhere"):
        WriterLock(files).acquire()
    assert there(files).token == rival.token


HOLD = """
import sys, time
from sadih_dask.files.filesystem import connect
from sadih_dask.files.lease import WriterLock
with WriterLock(connect(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_on_a_disk_the_kernel_keeps_it(tmp_path: Path) -> None:
    files = connect(tmp_path)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert is_held(files)
        with pytest.raises(ConflictError, match=f"is being written by process {process.pid} on"):
            WriterLock(files).acquire()
        process.kill()
        process.wait()
    assert (tmp_path / LOCK_KEY).exists()
    assert not is_held(files)
    with WriterLock(files):
        assert is_held(files)
    assert not (tmp_path / LOCK_KEY).exists()
