"""Named bytes under one URL: bounded reads, atomic and durable writes.

Everything that a store keeps passes through here, so three promises are made once:

- a read never takes more memory than its caller allows, whatever the file claims to be;
- a write replaces a name in one step: a reader sees the old bytes or the new, never a part;
- on a local disk a durable write has reached the disk when it returns (and its name, after
  `sync`), so that a commit which survives a power cut never refers to chunks that did not.

Keys are built from constants and integers only, never from text found in a store.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sadih_dask.errors import FormatError, InputError, naming
from sadih_dask.storage.reaching import reaching

Buffer = Any  # anything with the buffer protocol; typing has no name for it before Python 3.12
TEMPORARY_SUFFIX = ".part"


class Files(ABC):
    """What a store needs of a place that keeps named bytes."""

    url: str
    is_local: bool
    options: Mapping[str, Any]

    @abstractmethod
    def read(self, key: str, limit: int) -> bytes:
        """Return the bytes of `key`; FormatError beyond `limit`, FileNotFoundError if absent."""

    @abstractmethod
    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start`; a negative start counts from the end."""

    @abstractmethod
    def write(self, key: str, parts: Sequence[Buffer], *, durable: bool = True) -> None:
        """Replace `key` by the concatenated parts in one step."""

    @abstractmethod
    def sync(self, folder: str) -> None:
        """Make the names in `folder` durable as well as the bytes of its files."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Write `key` only if nothing is there; return whether it was written."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the names directly in `folder`, or nothing if there is no such folder."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove `key`, a file or a folder with all it holds; absence is no error."""

    def _too_long(self, key: str, limit: int) -> FormatError:
        return FormatError(
            f"{self.url}: {key!r} is longer than the {limit} bytes that it may have at most; "
            "it was not written by this package, or it is damaged"
        )


class LocalFiles(Files):
    """Files in a directory of this machine or of a shared POSIX file system."""

    is_local = True

    def __init__(self, root: Path) -> None:
        # Absolute, so that a worker with another working directory finds the same store.
        self.root = root.absolute()
        self.url = str(self.root)
        self.options: Mapping[str, Any] = {}

    def path(self, key: str) -> str:
        """Return the path of `key` for those who read it by themselves."""
        return os.path.join(self.url, key)  # noqa: PTH118 - on the path of every block read

    def open_for_reading(self, key: str) -> tuple[int, int]:
        """Return a file descriptor and the size of `key`, which must be a regular file."""
        # O_NONBLOCK: a pipe laid in the place of a chunk must not hang the reader.
        descriptor = os.open(self.path(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise FormatError(f"{self.url}: {key!r} is not a regular file")
        return descriptor, status.st_size

    def read(self, key: str, limit: int) -> bytes:
        """Return the bytes of `key`; FormatError beyond `limit`, FileNotFoundError if absent."""
        descriptor, size = self.open_for_reading(key)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if size > limit:
                raise self._too_long(key, limit)
            return file.read(size)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start`; a negative start counts from the end."""
        descriptor, size = self.open_for_reading(key)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            file.seek(max(0, size + start) if start < 0 else start)
            return file.read(min(length, size))

    def write(self, key: str, parts: Sequence[Buffer], *, durable: bool = True) -> None:
        """Replace `key` by the concatenated parts in one step."""
        target = Path(self.path(key))
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
        try:
            with naming(target), temporary.open("xb", buffering=0) as file:
                for part in parts:
                    _write_all(file.fileno(), memoryview(part).cast("B"))
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def sync(self, folder: str) -> None:
        """Make the names in `folder` durable as well as the bytes of its files."""
        descriptor = os.open(self.path(folder), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def create(self, key: str, data: bytes) -> bool:
        """Write `key` only if nothing is there; return whether it was written."""
        target = Path(self.path(key))
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with naming(target), target.open("xb") as file:
                file.write(data)
        except FileExistsError:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        """Return the names directly in `folder`, or nothing if there is no such folder."""
        try:
            return sorted(os.listdir(self.path(folder)))  # noqa: PTH208 - names, not paths
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, key: str) -> None:
        """Remove `key`, a file or a folder with all it holds; absence is no error."""
        path = Path(self.path(key))
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class RemoteFiles(Files):
    """Objects under an fsspec URL (s3://, gs://, memory:// ...), where one PUT is one step."""

    is_local = False

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        self.url = url.rstrip("/")
        self.options = dict(options)
        with reaching(self.url):
            self._fs, self._prefix = url_to_fs(self.url, **self.options)

    def _path(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def read(self, key: str, limit: int) -> bytes:
        """Return the bytes of `key`; FormatError beyond `limit`, FileNotFoundError if absent."""
        data = self.read_range(key, 0, limit + 1)
        if len(data) > limit:
            raise self._too_long(key, limit)
        return data

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start`; a negative start counts from the end."""
        end = start + length if start >= 0 or start + length < 0 else None
        with reaching(self.url):
            return bytes(self._fs.cat_file(self._path(key), start=start, end=end))

    def write(self, key: str, parts: Sequence[Buffer], *, durable: bool = True) -> None:
        """Replace `key` by the concatenated parts in one step."""
        del durable  # an object store acknowledges a PUT only when it is durable
        with reaching(self.url):
            self._fs.pipe_file(self._path(key), b"".join(memoryview(p).cast("B") for p in parts))

    def sync(self, folder: str) -> None:
        """Do nothing: objects and their names are durable together."""

    def create(self, key: str, data: bytes) -> bool:
        """Write `key` only if nothing is there; return whether it was written."""
        # The listing cache could still show an object that somebody has deleted since.
        self._fs.invalidate_cache()
        try:
            with reaching(self.url):
                if self._fs.exists(self._path(key)):
                    return False
                self._fs.pipe_file(self._path(key), data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno == errno.EEXIST or "PreconditionFailed" in str(error):
                return False
            raise
        return True

    def names(self, folder: str) -> list[str]:
        """Return the names directly in `folder`, or nothing if there is no such folder."""
        self._fs.invalidate_cache()
        try:
            with reaching(self.url):
                found = self._fs.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in found)

    def delete(self, key: str) -> None:
        """Remove `key`, a file or a folder with all it holds; absence is no error."""
        self._fs.invalidate_cache()
        with reaching(self.url), contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path(key), recursive=True)


def connect(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Files:
    """Return the files under a local path, a file:// URL or any other fsspec URL."""
    text = os.fspath(url)
    if not text:
        raise InputError(f"a store needs a path or a URL, got {url!r}")
    scheme, found, rest = text.partition("://")
    if not found:
        return LocalFiles(Path(text))
    if scheme in {"file", "local"}:
        return LocalFiles(Path(rest))
    return RemoteFiles(text, storage_options or {})


def _write_all(descriptor: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(descriptor, data) :]
