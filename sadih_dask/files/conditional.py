"""Replacing one small file only if it is still what was read: compare-and-swap.

What several writers share (the root of a store, the latest run, a model file) is replaced by this
and by nothing else. Who wins does not depend on a clock or on anybody's being alive:

- an object store takes a write on condition of the tag of what was read (``If-Match``), or of
  nothing being there (``If-None-Match``);
- on a file system the bytes are compared and the name is replaced while an `flock` is held, for
  milliseconds. A holder that is stopped makes others wait, and nobody loses anything. `flock` has
  to be that of all hosts: a mount where it is not kept (``ENOLCK``) is refused, one where it is
  kept for this host only (Lustre with ``localflock``, some FUSE file systems) cannot be told;
- other places (``gs://``, ``az://``) can be read, not written.

**Lost answers.** A client that has no answer sends its write again, meets its own result and is
refused. So a refusal is looked into: if our bytes are there, the write was done. Contents should
therefore be unlike any other's: put a random number into them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sadih_dask.errors import FormatError, IncompleteError, InputError
from sadih_dask.files.filesystem import (
    TEMPORARY_SUFFIX,
    Files,
    LocalFiles,
    RemoteFiles,
    make_folder,
    reaching,
)

SWAP = ".swap"
"""The file whose `flock` orders those who replace its neighbours."""
MOST_BYTES = 5 * 2**30 - 1
"""What an object store takes in one piece, and so on a condition."""
_NO_FLOCK = frozenset([errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK])
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_in_memory = threading.Lock()
_probed: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Version:
    """The bytes of a file, and the tag by which an object store knows them."""

    data: bytes
    tag: str = ""


def read(files: Files, key: str, limit: int) -> Version | None:
    """Return what is there now, or None if there is nothing."""
    try:
        if not isinstance(files, RemoteFiles) or not files.has_tags:
            return Version(files.read(key, limit))
        # The tag first: one that is older than the bytes makes a swap fail, never succeed wrongly.
        tag = files.tag(key)
        return Version(files.read(key, limit), tag)
    except (FileNotFoundError, NotADirectoryError):
        return None


def replace(files: Files, key: str, data: bytes, seen: Version | None) -> bool:
    """Replace `key` if it is still as it was seen (None: absent); say whether that was done."""
    if isinstance(files, LocalFiles):
        return _replace_file(files, key, data, seen)
    check_writable(files)
    if files.protocol == "memory":
        with _in_memory:
            return _replace_if_equal(files, key, data, seen)
    try:
        # Refused, it may be that an answer was lost and the write was not
        return _put(files, key, data, seen) or _holds(files, key, data)
    except OSError as error:
        if _holds(files, key, data):
            return True
        raise IncompleteError(
            f"{files.url}: there was no answer when {key} was replaced ({error}), so that may have "
            "been done or not. Nothing that was committed before is affected; see what is there "
            "before the call is repeated"
        ) from error


def _holds(files: Files, key: str, data: bytes) -> bool:
    found = read(files, key, max(len(data), 1 << 24))
    return found is not None and found.data == data


def check_writable(files: Files) -> None:
    """Refuse a place that does not keep conditions, before anything is written there.

    The trial is made with an object of our own: creating it twice, and replacing it on a condition
    that does not hold, must be refused. Some servers accept all.
    """
    if not isinstance(files, RemoteFiles) or files.protocol == "memory":
        return
    if not files.has_tags:
        raise InputError(
            f"{files.url} can be read but not written: conditional writes to {files.protocol}:// "
            "are not supported. Write to s3:// or to a file system"
        )
    place = (_check_client(files), files.url.rpartition("/")[0])
    if place in _probed:
        return
    key = f".probe-{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"
    try:
        _put(files, key, b"1", None)  # if its answer is lost, it is there all the same
        tag = Version(b"", '"00000000000000000000000000000000"')
        kept = not _put(files, key, b"2", None) and not _put(files, key, b"3", tag)
    finally:
        files.delete(key)
    if not kept:
        raise InputError(
            f"{files.url}: this server ignores the conditions of a write (If-None-Match, "
            "If-Match), so two writers could destroy what the other has written. Nothing was "
            "written. Use a server that keeps them, or a file system"
        )
    _probed.add(place)


def _check_client(files: RemoteFiles) -> str:
    """Refuse a client library that drops the condition silently; return the server's address."""
    fs = files.filesystem
    with reaching(files.url):
        fs.connect() if hasattr(fs, "connect") else None
        meta = fs.s3.meta
        members = meta.service_model.operation_model("PutObject").input_shape.members
    if "IfMatch" not in members:
        raise InputError(
            f"{files.url}: the installed botocore does not know conditional writes. Upgrade it: "
            "pip install 'sadih-dask[s3]'"
        )
    return str(meta.endpoint_url)


def _put(files: RemoteFiles, key: str, data: bytes, seen: Version | None) -> bool:
    condition: dict[str, Any] = {"mode": "create"} if seen is None else {"IfMatch": seen.tag}
    try:
        # In one piece: s3fs drops the condition from what it sends in parts.
        return files.write_if(key, data, chunksize=MOST_BYTES, **condition)
    except FileNotFoundError:  # replaced on condition of a tag, and deleted by somebody
        return False


def _replace_if_equal(files: Files, key: str, data: bytes, seen: Version | None) -> bool:
    try:
        found = read(files, key, len(seen.data) if seen else 0)
    except FormatError:  # it is longer
        return False
    if (found and found.data) != (seen and seen.data):
        return False
    files.write(key, [data])
    return True


def _replace_file(files: LocalFiles, key: str, data: bytes, seen: Version | None) -> bool:
    with exclusive(Path(files.path(key)).parent / SWAP, keep=True):
        if not _replace_if_equal(files, key, data, seen):
            return False
        files.sync(os.path.dirname(key))  # noqa: PTH120 - a key, not a path
        return True


@contextmanager
def exclusive(lock: Path, *, wait: bool = True, keep: bool = False) -> Iterator[int]:
    """Be the only one in a block, by the `flock` of a file; without `wait`, BlockingIOError.

    The file is removed afterwards, unless it is to be kept.
    """
    how = fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)
    make_folder(lock.parent)
    while True:
        descriptor = os.open(lock, _LOCK_FLAGS, 0o666)
        try:
            _flock(descriptor, how, lock.parent)
            # If the former holder has removed it between our open and our flock: once more.
            if not keep and not _is_at(descriptor, lock):
                continue
            try:
                yield descriptor
            finally:
                if not keep:
                    lock.unlink(missing_ok=True)
            return
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _flock(descriptor: int, how: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno in _NO_FLOCK:
            raise InputError(
                f"{folder} is on a file system that keeps no locks (flock: {error.strerror}), so "
                "two writers could destroy what the other has written. Mount it with locks, or "
                "use another"
            ) from error
        raise
