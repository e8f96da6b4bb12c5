"""One writer at a time.

On a POSIX file system the lock is `flock`: the kernel lets go of it when its holder dies, so a
lock left by a killed process is free again without anybody having to judge whether it is stale.
Where that does not exist (object stores), the lock is an object that only one process can create;
if its creator was a process of this host which no longer runs, it is taken over.

Either way the lock names its holder, so that the refused writer can say who it was.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sadih_dask.errors import ConflictError, FormatError
from sadih_dask.storage.files import Files, LocalFiles

LOCK_KEY = "_commits/lock"
LOCK_LIMIT = 4096
_NO_FLOCK = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}


@dataclass(frozen=True)
class Holder:
    """Who writes: `started` tells a process from a later one with the same number."""

    host: str
    pid: int
    started: str
    token: str

    @classmethod
    def this_process(cls) -> Holder:
        """Return the identity of the calling process, with a token of its own."""
        return cls(socket.gethostname(), os.getpid(), _start_time(os.getpid()), uuid.uuid4().hex)

    @classmethod
    def from_json(cls, data: bytes) -> Holder:
        """Return what a lock says; of one that cannot be understood nobody is known to be gone."""
        try:
            fields = json.loads(data)
            return cls(
                str(fields["host"]),
                int(fields["pid"]),
                str(fields["started"]),
                str(fields["token"]),
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            return cls("an unknown host", 0, "", "")

    def to_json(self) -> bytes:
        """Return the text that stands in the lock."""
        return json.dumps(asdict(self)).encode()

    def is_gone(self) -> bool:
        """Say whether this was a process of this host that no longer runs."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return _start_time(self.pid) != self.started


class WriterLock:
    """The right to write one store; a context manager, or `acquire` and `release`."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._me = Holder.this_process()
        self._descriptor: int | None = None
        self._owns_object = False

    def acquire(self) -> Self:
        """Take the lock or raise ConflictError with the holder's name."""
        if not (isinstance(self._files, LocalFiles) and self._acquire_flock(self._files)):
            self._acquire_object()
        return self

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._descriptor is not None:
            # Unlinked while still locked: whoever waits for it notices by the inode below.
            self._files.delete(LOCK_KEY)
            os.close(self._descriptor)
            self._descriptor = None
        elif self._owns_object and self._holder() == self._me:
            self._files.delete(LOCK_KEY)
        self._owns_object = False

    def check(self) -> None:
        """Raise ConflictError if somebody has taken the lock away in the meantime."""
        if self._owns_object and (holder := self._holder()) != self._me:
            raise _conflict(self._files.url, holder)

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
                holder = self._holder()
                os.close(descriptor)
                raise _conflict(files.url, holder) from None
            except OSError as error:
                os.close(descriptor)
                if error.errno in _NO_FLOCK:
                    path.unlink(missing_ok=True)
                    return False
                raise
            # The former holder unlinked the file between our open and our flock: once more.
            os.close(descriptor)

    def _acquire_object(self) -> None:
        for _ in range(3):
            if self._files.create(LOCK_KEY, self._me.to_json()):
                self._owns_object = True
                return
            holder = self._holder()
            if holder is not None and not holder.is_gone():
                raise _conflict(self._files.url, holder)
            self._files.delete(LOCK_KEY)
        raise _conflict(self._files.url, self._holder())

    def _holder(self) -> Holder | None:
        try:
            return Holder.from_json(self._files.read(LOCK_KEY, LOCK_LIMIT))
        except FormatError:
            return Holder.from_json(b"")
        except FileNotFoundError:
            return None

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _conflict(url: str, holder: Holder | None) -> ConflictError:
    who = f"process {holder.pid} on {holder.host}" if holder else "another process"
    return ConflictError(
        f"{url} is being written by {who}; wait until it has finished, or, if it is certain that "
        f"no such process exists any more, delete {url}/{LOCK_KEY}"
    )


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _start_time(pid: int) -> str:
    """Return when a process started, in kernel ticks, or nothing where /proc does not tell."""
    try:
        # The name in parentheses may hold spaces: count the fields from its end.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
