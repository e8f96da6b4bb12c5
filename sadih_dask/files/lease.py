"""One writer at a time.

On a POSIX file system the lock is `flock`: the kernel lets go of it when its holder dies, so a
lock left by a killed process is free again without anybody having to judge whether it is stale.
Where that does not exist (object stores), the lock is a `lease`: an object that only one process
can create. If its creator was a process of this host which no longer runs, it is taken over at
once; if it was one of another host, after a minute without a sign of life.

Either way the lock names its holder, so that the refused writer can say who it was.

A lock where no kernel keeps one: an object that its holder renews, and that else runs out.

Only one process can create the object. Its holder writes a sign of life into it every few seconds;
one that is silent for a minute has died, and the lock is taken over. Nobody compares the clocks of
two hosts for that: who wants the lock watches it, and sees within seconds whether it is renewed.
A holder that could not renew it for so long must assume that it has lost it.

Who holds a lock, and whether it still lives.
"""

from __future__ import annotations

import errno
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
from types import TracebackType
from typing import Self

from sadih_dask.errors import ConflictError, FormatError
from sadih_dask.files.filesystem import Files, LocalFiles

__all__ = ["LOCK_KEY", "Holder", "WriterLock"]

_NO_FLOCK = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}


class WriterLock:
    """The right to write one store; a context manager, or `acquire` and `release`."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._me = Holder.this_process()
        self._descriptor: int | None = None
        self._lease: Lease | None = None

    def acquire(self) -> Self:
        """Take the lock or raise ConflictError with the holder's name."""
        if not (isinstance(self._files, LocalFiles) and self._acquire_flock(self._files)):
            lease = Lease(self._files, self._me)
            lease.acquire()
            self._lease = lease
        return self

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._descriptor is not None:
            # Unlinked while still locked: whoever waits for it notices by the inode below.
            self._files.delete(LOCK_KEY)
            os.close(self._descriptor)
            self._descriptor = None
        elif self._lease is not None:
            self._lease.release()
            self._lease = None

    def check(self) -> None:
        """Raise ConflictError if somebody has taken the lock away in the meantime."""
        if self._lease is not None:
            self._lease.check()

    def check_time(self) -> None:
        """Raise ConflictError if the lock may have run out; costs nothing, so before any block."""
        if self._lease is not None:
            self._lease.check_time()

    def _acquire_flock(self, files: LocalFiles) -> bool:
        path = Path(files.path(LOCK_KEY))
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same_file(descriptor, path):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, self._me.to_json(), 0)
                    self._descriptor = descriptor
                    return True
            except BlockingIOError:
                holder = read_holder(files)
                os.close(descriptor)
                raise refusal(files.url, holder) from None
            except OSError as error:
                os.close(descriptor)
                if error.errno in _NO_FLOCK:
                    path.unlink(missing_ok=True)
                    return False
                raise
            # The former holder unlinked the file between our open and our flock: once more.
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


logger = logging.getLogger(__name__)

RENEWAL = 10.0
"""Seconds between two signs of life."""
LEASE = 60.0
"""Seconds of silence after which a holder counts as dead."""
_ATTEMPTS = 3
_LOOKS = 10
"""How often a watcher looks in the time of one renewal."""


class Lease:
    """The lock of one store as an object in it."""

    def __init__(self, files: Files, me: Holder) -> None:
        self._files = files
        self._me = me
        self._renewed = 0.0
        self._stop = threading.Event()
        self._renewer: threading.Thread | None = None

    def acquire(self) -> None:
        """Create the object, or raise ConflictError if somebody alive has it."""
        for _ in range(_ATTEMPTS):
            self._me = self._me.alive_now()
            if self._files.create(LOCK_KEY, [self._me.to_json()]):
                self._renewed = time.monotonic()
                self._renewer = threading.Thread(target=self._renew, name="sadih-lock", daemon=True)
                self._renewer.start()
                return
            holder = read_holder(self._files)
            if holder is not None:
                self._wait_for_its_end(holder)
                if read_holder(self._files) == holder:  # nobody else was faster
                    self._files.delete(LOCK_KEY)
        raise refusal(self._files.url, read_holder(self._files))

    def release(self) -> None:
        """Delete the object, unless somebody has taken it over."""
        self._stop.set()
        if self._renewer is not None:
            self._renewer.join(RENEWAL)
        if read_holder(self._files) == self._me:
            self._files.delete(LOCK_KEY)

    def check(self) -> None:
        """Raise ConflictError if somebody has taken the lock over."""
        if (holder := read_holder(self._files)) != self._me:
            raise refusal(self._files.url, holder)

    def check_time(self) -> None:
        """Raise ConflictError if the lock may have run out; asks nobody."""
        if (silent := time.monotonic() - self._renewed) > LEASE:
            raise ConflictError(
                f"{self._files.url}: its lock could not be renewed for {silent:.0f} s, so another "
                "process may have taken it over. What is written stays: repeat the same call"
            )

    def _wait_for_its_end(self, holder: Holder) -> None:
        """Return when a holder is dead; ConflictError when it shows that it is not."""
        if holder.is_gone():
            return
        if holder.beat is None or holder.is_here():
            raise refusal(self._files.url, holder)
        # If its last sign of life looks old already, two renewals that do not come are enough.
        silent = max(0.0, time.time() - holder.seen)
        patience = min(LEASE, max(2 * RENEWAL, LEASE - silent))
        logger.warning(
            "%s is locked by process %d on %s; watching for up to %.0f s whether it still lives",
            self._files.url,
            holder.pid,
            holder.host,
            patience,
        )
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            time.sleep(RENEWAL / _LOOKS)
            now = read_holder(self._files)
            if now is None:
                return
            if (now, now.beat) != (holder, holder.beat):
                raise refusal(self._files.url, now)

    def _renew(self) -> None:
        while not self._stop.wait(RENEWAL):
            if time.monotonic() - self._renewed > LEASE:
                return  # too late: it may be somebody else's
            try:
                if read_holder(self._files) != self._me:
                    return
                before, self._me = time.monotonic(), self._me.alive_now()
                self._files.write(LOCK_KEY, [self._me.to_json()], durable=False)
                self._renewed = before
            except Exception as error:
                logger.warning("the lock of %s was not renewed: %s", self._files.url, error)


LOCK_KEY = "_commits/lock"
LOCK_LIMIT = 4096


@dataclass(frozen=True)
class Holder:
    """Who writes: `started` tells a process from a later one with the same number.

    `beat` counts its signs of life, the last one at `seen` by its own clock; None if it gives none.
    """

    host: str
    pid: int
    started: str
    token: str
    beat: int | None = field(default=None, compare=False)
    seen: float = field(default=0.0, compare=False)

    @classmethod
    def this_process(cls) -> Holder:
        """Return the identity of the calling process, with a token of its own."""
        pid = os.getpid()
        return cls(socket.gethostname(), pid, _start_time(pid), uuid.uuid4().hex)

    @classmethod
    def from_json(cls, data: bytes) -> Holder:
        """Return what a lock says; of one that cannot be understood nobody is known to be gone."""
        try:
            fields = json.loads(data)
            beat = fields.get("beat")
            return cls(
                str(fields["host"]),
                int(fields["pid"]),
                str(fields["started"]),
                str(fields["token"]),
                None if beat is None else int(beat),
                float(fields.get("seen", 0.0)),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return cls("an unknown host", 0, "", "")

    def to_json(self) -> bytes:
        """Return the text that stands in the lock."""
        return json.dumps(asdict(self)).encode()

    def alive_now(self) -> Holder:
        """Return the same with one sign of life more."""
        return replace(self, beat=(self.beat or 0) + 1, seen=time.time())

    def is_here(self) -> bool:
        """Say whether this is, or was, a process of this host."""
        return self.host == socket.gethostname()

    def is_gone(self) -> bool:
        """Say whether this was a process of this host that no longer runs."""
        if not self.is_here():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return _start_time(self.pid) != self.started


def read_holder(files: Files) -> Holder | None:
    """Return who holds the lock of a store, or None if nobody does."""
    try:
        return Holder.from_json(files.read(LOCK_KEY, LOCK_LIMIT))
    except FormatError:
        return Holder.from_json(b"")
    except FileNotFoundError:
        return None


def refusal(url: str, holder: Holder | None) -> ConflictError:
    """Return the error of a writer that has to wait for another one."""
    who = f"process {holder.pid} on {holder.host}" if holder else "another process"
    return ConflictError(
        f"{url} is being written by {who}; wait until it has finished, or, if it is certain that "
        f"no such process exists any more, delete {url}/{LOCK_KEY}"
    )


def _start_time(pid: int) -> str:
    """Return when a process started, in kernel ticks, or nothing where /proc does not tell."""
    try:
        # The name in parentheses may hold spaces: count the fields from its end.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
