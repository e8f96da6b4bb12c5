"""One file: at a local path, or one object behind any URL that `filesystem` connects to.

Writing replaces it in one step, so readers see the old bytes or the new, never a part; with `since`
only if the file is still what it was when its `version` was asked for.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from sadih_dask.errors import ConflictError, InputError
from sadih_dask.files import conditional
from sadih_dask.files.conditional import Version
from sadih_dask.files.filesystem import (
    TEMPORARY_SUFFIX,
    Files,
    RemoteFiles,
    connect,
    local_path,
    write_atomically,
)

Write: TypeAlias = Callable[[IO[bytes]], None]
OBJECT_BYTES = 8 * 2**30
"""Limit of a file behind a URL, which is held in memory to be read or written."""
ABSENT = ""
"""The version of a file that is not there."""


@dataclass(frozen=True)
class LocalFile:
    """A file of this machine or of a shared file system: streamed, whatever its size."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def version(self) -> str:
        """What changes whenever the file is replaced; its bytes are not read."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return ABSENT
        try:  # opened, as other hosts' changes are seen then
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"

    def write(self, write: Write, *, durable: bool = True, since: str | None = None) -> None:
        """Let `write` fill a file beside this one and put it in its place."""
        self.check()
        if since is not None:
            with conditional.exclusive(self.path.with_name(f".{self.path.name}.swap")):
                if self.version() != since:
                    raise _overtaken(self)
                self.write(write, durable=durable)
            return

        def fill(scratch: Path) -> None:
            with scratch.open("xb") as file:
                write(file)

        write_atomically(self.path, fill, durable=durable)

    def open(self) -> IO[bytes]:
        """Open the file for reading; FileNotFoundError if there is none."""
        if not self.path.exists():
            raise FileNotFoundError(f"{self.path} does not exist")
        return self.path.open("rb")

    def is_file(self) -> bool:
        """Say whether there is a file, and not a folder."""
        return self.path.is_file()

    def check(self) -> None:
        """Refuse a place that nothing can be written to, before the work for it is done."""
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a folder; expected the path of a file")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                f"{self.path.parent} does not exist; make the folder of {self.path.name} first"
            )
        if not os.access(self.path.parent, os.W_OK | os.X_OK):
            raise PermissionError(
                f"{self.path}: nothing can be written to the folder {self.path.parent.absolute()}. "
                "Allow it, or choose another place"
            )


@dataclass(frozen=True)
class RemoteFile:
    """An object behind a URL: written and read whole, up to a limit."""

    files: Files
    key: str

    def __str__(self) -> str:
        return f"{self.files.url}/{self.key}"

    def version(self) -> str:
        """What changes whenever the object is replaced."""
        try:
            if isinstance(self.files, RemoteFiles) and self.files.has_tags:
                return self.files.tag(self.key)
            return hashlib.sha256(self.files.read(self.key, OBJECT_BYTES)).hexdigest()
        except FileNotFoundError:
            return ABSENT

    def write(self, write: Write, *, durable: bool = True, since: str | None = None) -> None:
        """Let `write` fill a buffer and send it off.

        Where writes have no conditions (``gs://``, ``az://``) `since` is looked at just before.
        """
        buffer = io.BytesIO()
        write(buffer)
        if (size := buffer.getbuffer().nbytes) > OBJECT_BYTES:
            raise InputError(
                f"{self} would take {size} bytes; at most {OBJECT_BYTES} are read from a URL. "
                "Write it to a local path, or a model without its statistics"
            )
        if since is not None and isinstance(self.files, RemoteFiles) and self.files.has_tags:
            if size > conditional.MOST_BYTES:
                raise InputError(
                    f"{self} would take {size} bytes; at most {conditional.MOST_BYTES} are "
                    "replaced in one step behind a URL. Write it to a local path"
                )
            seen = None if since == ABSENT else Version(b"", since)
            if not conditional.replace(self.files, self.key, buffer.getvalue(), seen):
                raise _overtaken(self)
            return
        if since is not None and self.version() != since:
            raise _overtaken(self)
        self.files.write(self.key, [buffer.getbuffer()], durable=durable)

    def open(self) -> IO[bytes]:
        """Read the object; FileNotFoundError if there is none, FormatError beyond the limit."""
        try:
            return io.BytesIO(self.files.read(self.key, OBJECT_BYTES))
        except FileNotFoundError:
            raise FileNotFoundError(f"{self} does not exist") from None
        except OSError as error:
            if _is_empty(error):
                return io.BytesIO()
            raise

    def is_file(self) -> bool:
        """Say whether there is an object of just this name."""
        try:
            self.files.read_range(self.key, 0, 1)
        except (FileNotFoundError, IsADirectoryError):
            return False
        except OSError as error:
            if not _is_empty(error):
                raise
        return True

    def check(self) -> None:
        """Refuse a place that nothing can be written to, before the work for it is done.

        So is a server that would ignore the condition of `since`.
        """
        trial = f".{self.key}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"
        try:
            if isinstance(self.files, RemoteFiles) and self.files.has_tags:
                conditional.check_writable(self.files)
            self.files.write(trial, [b"trial"])
            self.files.delete(trial)
        except OSError as error:
            raise type(error)(
                f"{self} cannot be written: {error}. Check the bucket and the rights to it"
            ) from error


def _overtaken(file: File) -> ConflictError:
    return ConflictError(
        f"{file} was written by another process since this one began. It stays as that process "
        "left it; repeat the same call to go on from there"
    )


def _is_empty(error: OSError) -> bool:
    """Whether an object store has no byte to begin a range with."""
    return error.errno == errno.EINVAL


File: TypeAlias = LocalFile | RemoteFile


def locate(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> File:
    """Return the place that a path or URL names; nothing has to be there."""
    text = os.fspath(url)
    if (path := local_path(text)) is not None:
        return LocalFile(path)
    folder, _, key = text.rpartition("/")
    if not key or folder.endswith("/"):
        raise InputError(f"{text!r} names no object; expected a URL like s3://bucket/name")
    return RemoteFile(connect(folder, storage_options), key)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file by text, in one step."""
    locate(path).write(lambda file: file.writelines([text.encode()]))


def is_file(url: str | os.PathLike[str]) -> bool:
    """Say whether a path or URL is that of one file or object, and not of a store or a bucket."""
    try:
        return locate(url).is_file()
    except InputError:
        return False
