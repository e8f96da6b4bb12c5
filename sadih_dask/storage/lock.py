"""One writer at a time.

On a POSIX file system the lock is `flock`: the kernel lets go of it when its holder dies, so a
lock left by a killed process is free again without anybody having to judge whether it is stale.
Where that does not exist (object stores), the lock is a `lease`: an object that only one process
can create. If its creator was a process of this host which no longer runs, it is taken over at
once; if it was one of another host, after a minute without a sign of life.

Either way the lock names its holder, so that the refused writer can say who it was.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from sadih_dask.storage.files import Files, LocalFiles
from sadih_dask.storage.holder import LOCK_KEY, Holder, read_holder, refusal
from sadih_dask.storage.lease import Lease

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
