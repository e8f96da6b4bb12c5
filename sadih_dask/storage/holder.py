"""Who holds a lock, and whether it still lives."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from sadih_dask.errors import ConflictError, FormatError
from sadih_dask.storage.files import Files

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
