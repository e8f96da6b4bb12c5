"""One run at a time: who is at work says so, so that nobody does the same work beside it.

This saves work, nothing else: what runs share is replaced on a condition (`conditional`), whoever
thinks that it holds this.

- On a file system it is an `flock`, which the kernel lets go of when its holder dies.
- Elsewhere it is an object that its holder renews every few seconds, and that others take over when
  it was not renewed for a minute. Nobody compares the clocks of two hosts for that: who wants it
  watches it. A holder that the same kernel shows to be dead is not waited for; process numbers of
  another container or host say nothing, whatever it is called.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from sadih_dask.errors import ConflictError
from sadih_dask.files import conditional
from sadih_dask.files.conditional import Version
from sadih_dask.files.filesystem import Files, LocalFiles

logger = logging.getLogger(__name__)

LOCK_KEY = ".lock"
RENEWAL = 10.0
"""Seconds between two signs of life."""
LEASE = 60.0
"""Seconds of silence after which a holder counts as dead."""
_LIMIT = 4096
_LOOKS = 10
"""How often a watcher looks in the time of one renewal."""


class WriterLock:
    """The right to be at work somewhere; a context manager, or `acquire` and `release`."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._held = contextlib.ExitStack()

    def acquire(self) -> Self:
        """Take the lock or raise ConflictError with the holder's name."""
        if not isinstance(self._files, LocalFiles):
            lease = _Lease(self._files)
            lease.acquire()
            self._held.callback(lease.release)
            return self
        try:
            path = Path(self._files.path(LOCK_KEY))
            descriptor = self._held.enter_context(conditional.exclusive(path, wait=False))
        except BlockingIOError:
            raise _refusal(self._files, _read(self._files)) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, Holder().to_json(), 0)
        return self

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        self._held.close()

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def is_held(files: Files) -> bool:
    """Whether somebody is at work, as far as that can be seen from this host."""
    if (seen := _read(files)) is None:
        return False
    if not isinstance(files, LocalFiles):
        return not Holder.of(seen).is_gone()
    try:
        with Path(files.path(LOCK_KEY)).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


class _Lease:
    """The lock as an object."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._me = Holder()
        self._stop = threading.Event()
        self._renewer = threading.Thread(target=self._renew, name="sadih-lock", daemon=True)

    def acquire(self) -> None:
        """Put ourselves there, or raise ConflictError if somebody alive is."""
        seen = self._wait_for_its_end(_read(self._files))
        if not conditional.replace(self._files, LOCK_KEY, self._me.to_json(), seen):
            raise _refusal(self._files, _read(self._files))
        self._renewer.start()

    def release(self) -> None:
        """Delete the object, unless somebody has taken it over."""
        self._stop.set()
        self._renewer.join(RENEWAL)
        if self._is_mine(_read(self._files)):
            self._files.delete(LOCK_KEY)

    def _wait_for_its_end(self, seen: Version | None) -> Version | None:
        """Return what may be replaced; ConflictError when its holder shows that it lives."""
        if seen is None or (holder := Holder.of(seen)).is_gone():
            return seen
        if holder.is_here():
            raise _refusal(self._files, seen)
        logger.warning(
            "%s is locked by process %d on %s; watching for up to %.0f s whether it still lives",
            self._files.url,
            holder.pid,
            holder.host,
            LEASE,
        )
        deadline = time.monotonic() + LEASE
        while time.monotonic() < deadline:
            time.sleep(RENEWAL / _LOOKS)
            if (now := _read(self._files)) is None:
                return None
            if now.data != seen.data:
                raise _refusal(self._files, now)
        return seen

    def _renew(self) -> None:
        while not self._stop.wait(RENEWAL):
            try:
                if not self._is_mine(seen := _read(self._files)):
                    return
                self._me = replace(self._me, beat=self._me.beat + 1)
                conditional.replace(self._files, LOCK_KEY, self._me.to_json(), seen)
            except Exception as error:
                logger.warning("the lock of %s was not renewed: %s", self._files.url, error)

    def _is_mine(self, seen: Version | None) -> bool:
        return seen is not None and Holder.of(seen).token == self._me.token


def _kernel() -> str:
    """The running kernel and its name space of process numbers; nothing where none tells."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


@dataclass(frozen=True)
class Holder:
    """Who is at work, this process unless another is given; `beat` counts its signs of life.

    `started` tells a process from a later one with the same number, `kernel` whose number it is.
    """

    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    started: str = field(default_factory=lambda: _start_time(os.getpid()))
    kernel: str = field(default_factory=lambda: _kernel())
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    beat: int = 0

    @classmethod
    def of(cls, seen: Version) -> Holder:
        """Return what a lock says; of one that cannot be understood nobody is known to be gone."""
        try:
            found = json.loads(seen.data)
            host, started, kernel, token = (
                str(found[name]) for name in ("host", "started", "kernel", "token")
            )
            return cls(host, int(found["pid"]), started, kernel, token)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return cls("an unknown host", 0, "", "", "")

    def to_json(self) -> bytes:
        """Return the text that stands in the lock."""
        return json.dumps(asdict(self)).encode()

    def is_here(self) -> bool:
        """Say whether its process number is, or was, that of a process that we could see."""
        return bool(self.kernel) and self.kernel == _kernel()

    def is_gone(self) -> bool:
        """Say whether this was a process that we could see, and that no longer runs."""
        return self.is_here() and _start_time(self.pid) != self.started


def _read(files: Files) -> Version | None:
    return conditional.read(files, LOCK_KEY, _LIMIT)


def _refusal(files: Files, seen: Version | None) -> ConflictError:
    holder = None if seen is None else Holder.of(seen)
    who = f"process {holder.pid} on {holder.host}" if holder else "another process"
    return ConflictError(f"{files.url} is being written by {who}; wait until it has finished")


def _start_time(pid: int) -> str:
    """Return when a process started, in kernel ticks, or nothing if there is none."""
    try:
        # The name in parentheses may hold spaces: count the fields from its end.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
