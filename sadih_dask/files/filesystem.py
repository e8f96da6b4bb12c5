"""Named bytes at a path or an fsspec URL: bounded reads, atomic and durable writes.

Everything that a store keeps, and every source file, passes through here, so what is promised is
promised once:

- a path or URL is taken apart in one place (`local_path`), and one function (`client`) finds the
  library for a URL; its credentials are those that the library finds in the environment
  (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``), and its errors get the name of the place;
- a read never takes more memory than its caller allows, whatever the file claims to be;
- a write replaces a name in one step: a reader sees the old bytes or the new, never a part;
- where links are not to be followed, nothing is read, listed, written or deleted through one;
- on a local disk a durable write has reached the disk when it returns (and its name, after
  `sync`), so that a commit which survives a power cut never refers to chunks that did not.

`connect` gives the named bytes under one folder, as a store keeps them; its keys are built from
constants and integers only, never from text found in a store. `open_binary`, `head`, `status`,
`is_file` and `matches` look at single files, as sources have them.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import shutil
import stat
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from sadih_dask.errors import FormatError, InputError, naming, require

logger = logging.getLogger(__name__)

Buffer = Any  # anything with the buffer protocol; typing has no name for it before Python 3.12
TEMPORARY_SUFFIX = ".tmp"
"""Ends the names of files that are being written, or that a killed writer left behind."""
ATTEMPTS = 7
"""At a request that S3 answers with 500 or 503, or not at all, unless AWS_MAX_ATTEMPTS says another
number. The pauses between them double; all together take half a minute on average."""
_NO_LINKS = frozenset([errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
"""How file systems say that they have no hard links."""
_NO_FOLDER_SYNC = frozenset([errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP])
"""How they say that they cannot write a folder by itself."""


def local_path(url: str | os.PathLike[str]) -> Path | None:
    """Return the path that a name or a file:// URL means, None for any other URL.

    >>> local_path("file:///data/x.npy"), local_path("s3://bucket/x.npy")
    (PosixPath('/data/x.npy'), None)
    """
    text = os.fspath(url)
    if "\0" in text:
        raise InputError(f"{text!r} is no path: it has a NUL character. Check it")
    scheme, is_url, rest = text.partition("://")
    if not is_url:
        return Path(text)
    return Path(rest) if scheme in {"file", "local"} else None


def client(url: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it."""
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    from fsspec.registry import known_implementations  # type: ignore[import-untyped]

    given = dict(options or {})
    if url.startswith(("s3://", "s3a://")):
        most = int(os.environ.get("AWS_MAX_ATTEMPTS", ATTEMPTS))
        retries = {"retries": {"total_max_attempts": most}}
        given["config_kwargs"] = retries | dict(given.get("config_kwargs", {}))
    try:
        with reaching(url):
            fs, inner = url_to_fs(url, **given)
    except ImportError:
        known = known_implementations.get(url.partition("://")[0], {})
        require(str(known.get("class", "fsspec")).partition(".")[0], f"{url}: reaching it")
        raise
    except ValueError as error:  # no such protocol, or a URL that its library cannot read
        raise InputError(f"{url}: is no URL that can be reached ({error}). Check it") from error
    return fs, str(inner)


def write_atomically(
    target: Path, write: Callable[[Path], object], *, durable: bool = True, create: bool = False
) -> bool:
    """Let `write` fill a path beside `target` and put what is there then in its place.

    A file is replaced in one step. A folder cannot be: the old one is removed just before. With
    `create` what is there stays, and False is returned. What is durable has reached the disk
    afterwards, and its name too.
    """
    done = _put_in_place(target, write, durable, create)
    if durable:
        sync_folder(target.parent)
    return done


def _put_in_place(
    target: Path, write: Callable[[Path], object], durable: bool, create: bool
) -> bool:
    scratch = target.with_name(f".{target.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with naming(target):
            write(scratch)
            if durable:
                _sync_all(scratch)
        if create:
            return _linked(scratch, target)
        if scratch.is_dir() and target.is_dir():
            shutil.rmtree(target)
        scratch.replace(target)
        return True
    finally:
        _remove(scratch)


def _linked(scratch: Path, target: Path) -> bool:
    """Give a file its name, unless that is taken."""
    try:
        os.link(scratch, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno == errno.ENOENT and os.path.lexists(target):
            return False  # whoever was faster has tidied up
        if error.errno not in _NO_LINKS:
            raise
        if target.exists():
            return False
        scratch.replace(target)  # two who create one name write the same bytes
    return True


def sync_file(path: Path) -> None:
    """Make the bytes of a file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: str | Path) -> None:
    """Make the names in a folder durable, where the system lets us."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a folder above that we may write into, and not list
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def _sync_all(path: Path) -> None:
    """Make a file, or a folder with all it holds, durable."""
    if not path.is_dir():
        sync_file(path)
        return
    for found in path.iterdir():
        _sync_all(found)
    sync_folder(path)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, durably: what is in it is not lost by a power cut."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def _remove(path: Path) -> None:
    while path.is_dir() and not path.is_symlink():
        try:
            shutil.rmtree(path)
        except OSError as error:  # somebody else deletes it too, or still writes into it
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
    path.unlink(missing_ok=True)


class LocalFiles:
    """Files in a directory of this machine or of a shared POSIX file system."""

    is_local = True

    def __init__(self, root: Path, *, follow_links: bool = True) -> None:
        # Absolute, so that a worker with another working directory finds the same store.
        self.root = root.absolute()
        self.url = str(self.root)
        self.options: Mapping[str, Any] = {}
        self._follow_links = follow_links
        self._real: set[str] = set()  # folders that were no links when something was read there

    def path(self, key: str) -> str:
        """Return the path of `key` for those who read it by themselves."""
        return os.path.join(self.url, key)  # noqa: PTH118 - on the path of every block read

    def address(self, key: str) -> str:
        """Return where `key` is for those who connect to it; a link is refused, as in reading."""
        self._check_folder(key)
        return self.path(key)

    def open_for_reading(self, key: str) -> tuple[int, int]:
        """Return a file descriptor and the size of `key`, which must be a regular file."""
        # O_NONBLOCK: a pipe laid in the place of a chunk must not hang the reader.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        if not self._follow_links:
            folder = key.rpartition("/")[0]
            if folder not in self._real:
                self._check_folder(folder)
                self._real.add(folder)
            flags |= os.O_NOFOLLOW
        try:
            descriptor = os.open(self.path(key), flags)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise self._is_link(key) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise FormatError(f"{self.url}: {key!r} is not a regular file")
        return descriptor, status.st_size

    def _check_folder(self, folder: str) -> None:
        """Refuse a folder that is a link, or below one."""
        while folder and not self._follow_links:
            if os.path.islink(self.path(folder)):  # noqa: PTH114 - a key
                raise self._is_link(folder)
            folder = folder.rpartition("/")[0]

    def _is_link(self, key: str) -> FormatError:
        return FormatError(
            f"{self.url}: {key!r} is a symbolic link, and links inside it are not followed. "
            "Put the files themselves there"
        )

    def read(self, key: str, limit: int) -> bytes:
        """Return the bytes of `key`; FormatError beyond `limit`, FileNotFoundError if absent."""
        descriptor, size = self.open_for_reading(key)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if size > limit:
                raise _too_long(self.url, key, limit)
            return file.read(size)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start`; a negative start counts from the end."""
        descriptor, size = self.open_for_reading(key)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            file.seek(max(0, size + start) if start < 0 else start)
            return file.read(min(length, size))

    def write(self, key: str, parts: Sequence[Buffer], *, durable: bool = True) -> None:
        """Replace `key` by the concatenated parts in one step."""
        self._write(key, parts, durable, create=False)

    def create(self, key: str, parts: Sequence[Buffer], *, durable: bool = True) -> bool:
        """Write `key` only if nothing is there, in one step; return whether it was written."""
        self._check_folder(key.rpartition("/")[0])
        if os.path.lexists(self.path(key)):
            return False
        return self._write(key, parts, durable, create=True)

    def _write(self, key: str, parts: Sequence[Buffer], durable: bool, *, create: bool) -> bool:
        self._check_folder(key.rpartition("/")[0])
        target = Path(self.path(key))
        make_folder(target.parent)

        def fill(scratch: Path) -> None:
            with scratch.open("xb", buffering=0) as file:
                for part in parts:
                    _write_all(file.fileno(), memoryview(part).cast("B"))

        return _put_in_place(target, fill, durable, create)

    def make(self, folder: str) -> None:
        """Make a folder; those above it too."""
        self._check_folder(folder)
        make_folder(Path(self.path(folder)))

    def sync(self, folder: str) -> None:
        """Make the names in `folder` durable as well as the bytes of its files."""
        self._check_folder(folder)
        sync_folder(self.path(folder))

    def names(self, folder: str) -> list[str]:
        """Return the names directly in `folder`, or nothing if there is no such folder."""
        self._check_folder(folder)
        try:
            return sorted(os.listdir(self.path(folder)))  # noqa: PTH208 - names, not paths
        except (FileNotFoundError, NotADirectoryError):
            return []

    def left_behind(self, folder: str) -> list[str]:
        """Temporary files directly in `folder` whose bytes have got their name by a link.

        Their writer was killed before he could remove them, or is about to.
        """
        names = [name for name in self.names(folder) if name.endswith(TEMPORARY_SUFFIX)]
        found = []
        for name in names:
            with suppress(FileNotFoundError):
                if os.lstat(self.path(f"{folder}/{name}")).st_nlink > 1:
                    found.append(name)
        return found

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the files directly in `folder` and their lengths, by one listing."""
        self._check_folder(folder)
        try:
            with os.scandir(self.path(folder)) as entries:
                return {
                    entry.name: entry.stat(follow_symlinks=False).st_size
                    for entry in entries
                    if entry.is_file(follow_symlinks=False)
                }
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def delete(self, key: str) -> None:
        """Remove `key`, a file or a folder with all it holds; absence is no error."""
        self._check_folder(key.rpartition("/")[0])
        _remove(Path(self.path(key)))


class RemoteFiles:
    """Objects under an fsspec URL (s3://, gs://, memory:// ...), where one PUT is one step."""

    is_local = False

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.url = url.rstrip("/")
        self.options = dict(options)
        self.filesystem, self._prefix = client(self.url, self.options)
        self.protocol = self.url.partition("://")[0]

    def path(self, key: str) -> str:
        """Return the path of `key` for those who speak to `filesystem` by themselves."""
        return f"{self._prefix}/{key}"

    def address(self, key: str) -> str:
        """Return the URL of `key` for those who connect to it."""
        return f"{self.url}/{key}"

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """As `reaching`; that requests to S3 are repeated is told."""
        if (s3 := getattr(self.filesystem, "_s3", None)) is not None:
            s3.meta.events.register("needs-retry.s3", _tell_of_failure, unique_id=__name__)
        with reaching(self.url):
            yield

    @property
    def has_tags(self) -> bool:
        """Say whether an object has a tag that changes with it, and that a write can ask for."""
        return self.protocol in {"s3", "s3a"}

    def tag(self, key: str) -> str:
        """Return the tag of what `key` holds now; FileNotFoundError if absent."""
        with self._reached():
            return str(self.filesystem.info(self.path(key), refresh=True)["ETag"])

    def read(self, key: str, limit: int) -> bytes:
        """Return the bytes of `key`; FormatError beyond `limit`, FileNotFoundError if absent."""
        data = self.read_range(key, 0, limit + 1)
        if len(data) > limit:
            raise _too_long(self.url, key, limit)
        return data

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start`; a negative start counts from the end."""
        end = start + length if start >= 0 or start + length < 0 else None
        with self._reached():
            return bytes(self.filesystem.cat_file(self.path(key), start=start, end=end))

    def write(self, key: str, parts: Sequence[Buffer], *, durable: bool = True) -> None:
        """Replace `key` by the concatenated parts in one step."""
        del durable  # an object store acknowledges a PUT only when it is durable
        with self._reached():
            self.filesystem.pipe_file(
                self.path(key), b"".join(memoryview(p).cast("B") for p in parts)
            )

    def sync(self, folder: str) -> None:
        """Do nothing: objects and their names are durable together."""

    def create(self, key: str, parts: Sequence[Buffer], *, durable: bool = True) -> bool:
        """Write `key` only if nothing is there, in one step; return whether it was written."""
        del durable
        data = b"".join(memoryview(part).cast("B") for part in parts)
        return self.write_if(key, data, mode="create")

    def write_if(self, key: str, data: bytes, **condition: Any) -> bool:
        """Write `key` on a condition in the words of the client; return whether it was kept."""
        try:
            with self._reached():
                self.filesystem.pipe_file(self.path(key), data, **condition)
        except OSError as error:
            if not _is_refusal(error):
                raise
            return False
        return True

    def names(self, folder: str) -> list[str]:
        """Return the names directly in `folder`, or nothing if there is no such folder."""
        return sorted(name_of(str(info["name"])) for info in self._listed(folder))

    def left_behind(self, folder: str) -> list[str]:
        """Nothing: a PUT leaves nothing behind."""
        del folder
        return []

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the files directly in `folder` and their lengths, by one listing."""
        found = (info for info in self._listed(folder) if info["type"] == "file")
        return {name_of(str(info["name"])): int(info["size"]) for info in found}

    def _listed(self, folder: str) -> list[dict[str, Any]]:
        self.filesystem.invalidate_cache()
        try:
            with self._reached():
                return list(self.filesystem.ls(self.path(folder), detail=True))
        except FileNotFoundError:
            return []

    def delete(self, key: str) -> None:
        """Remove `key`, a file or a folder with all it holds; absence is no error."""
        self.filesystem.invalidate_cache()
        with self._reached(), contextlib.suppress(FileNotFoundError):
            self.filesystem.rm(self.path(key), recursive=True)


_REFUSED = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")


def _is_refusal(error: OSError) -> bool:
    response = getattr(error.__cause__, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return (
        error.errno == errno.EEXIST or isinstance(error, FileExistsError) or str(code) in _REFUSED
    )


Files: TypeAlias = LocalFiles | RemoteFiles
"""What a store needs of a place that keeps named bytes."""


def share(source: Files, target: Files, key: str) -> None:
    """Have a file or folder that is never written again in another place under the same key.

    By hard links on one file system, by copies that the server makes behind a URL, else by copies.
    What is there already stays.
    """
    if isinstance(source, RemoteFiles) or isinstance(target, RemoteFiles):
        _copy(source, target, key)
    elif Path(source.path(key)).is_dir():
        target.make(key)
        for name in source.names(key):
            if not name.endswith(TEMPORARY_SUFFIX):
                share(source, target, f"{key}/{name}")
        target.sync(key)
    else:
        descriptor, _ = source.open_for_reading(key)  # or an error: it is a link, or no file
        os.close(descriptor)
        target.make(key.rpartition("/")[0])
        _link(Path(source.path(key)), Path(target.path(key)))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _NO_LINKS | {errno.EXDEV}:
            raise
        write_atomically(target, lambda scratch: shutil.copyfile(source, scratch), create=True)


def _copy(source: Files, target: Files, key: str) -> None:
    if not isinstance(source, RemoteFiles) or not isinstance(target, RemoteFiles):
        raise InputError(f"{source.url} and {target.url} cannot share files; choose one place")
    with reaching(source.url):
        found = source.filesystem.find(source.path(key))
        if not found:
            raise FileNotFoundError(f"{source.url}: {key} is not there")
        first = len(source.path(""))
        source.filesystem.copy(found, [target.path(path[first:]) for path in found])


def _too_long(url: str, key: str, limit: int) -> FormatError:
    return FormatError(
        f"{url}: {key!r} is longer than the {limit} bytes that it may have at most; "
        "it was not written by this package, or it is damaged"
    )


def connect(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    follow_links: bool = True,
) -> Files:
    """Return the files under a local path, a file:// URL or any other fsspec URL.

    Without `follow_links` a symbolic link below that path is refused: what somebody else has made
    cannot lead out of its folder.
    """
    text = os.fspath(url)
    if not text:
        raise InputError(f"a store needs a path or a URL, got {url!r}")
    path = local_path(text)
    if path is None:
        return RemoteFiles(text, storage_options or {})
    return LocalFiles(path, follow_links=follow_links)


def _write_all(descriptor: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(descriptor, data) :]


_failures = itertools.count(1)


def _tell_of_failure(
    response: tuple[Any, Any] | None,
    operation: Any,
    attempts: int,
    caught_exception: Exception | None,
    **_: Any,
) -> None:
    """Log a request to S3 that has failed and may be repeated: the 1st, 2nd, 4th, 8th ..."""
    status = 0 if response is None else response[0].status_code
    if caught_exception is None and status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return
    if (n := next(_failures)) & (n - 1) == 0:
        logger.warning(
            "%s of S3, attempt %d: %s. It is repeated after a pause, up to a limit (failed "
            "attempts so far: %d)",
            operation.name,
            attempts,
            status or caught_exception,
            n,
        )


_CLIENTS = frozenset(["botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "adlfs"])


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Turn what a client library raises, such as missing credentials, into a ConnectionError."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CLIENTS or isinstance(error, OSError):
            raise
        raise ConnectionError(
            f"{url} cannot be reached: {error}. Address and credentials come from the environment: "
            "for s3://, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL"
        ) from error


_READ_AHEAD = 2**20
_HEAD = 1024
_WORTH_A_LISTING = 4
_STATES = ("ETag", "etag", "md5", "content_md5", "generation", "LastModified", "mtime", "created")
"""What file systems call that which changes with the bytes of a file, the best first."""
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")


@dataclass(frozen=True)
class Status:
    """Size, what changes when the file is written, and when that was, in seconds since the epoch.

    state   times of change and inode number, or the entity tag of an object
    """

    size: int
    state: str
    modified: float


def refuse_path(given: object, opened_by: str) -> None:
    """Refuse a path where what is at it is expected; say what opens it."""
    if isinstance(given, str | os.PathLike):
        raise InputError(f"{os.fspath(given)!r} is a path; open what is there: {opened_by}")


def is_url(path: str) -> bool:
    """Tell what only a client library reaches from what lies on this machine."""
    return local_path(path) is None


def name_of(path: str) -> str:
    """Return the last part of a path or URL."""
    return path.rstrip("/").rpartition("/")[2]


def open_binary(path: str) -> IO[bytes]:
    """Open a file for reading at any position."""
    if (local := local_path(path)) is not None:
        return local.open("rb")
    fs, inner = client(path)
    return cast(IO[bytes], fs.open(inner, "rb", block_size=_READ_AHEAD, cache_type="readahead"))


def head(path: str) -> bytes:
    """Return the first kilobyte of a file; of one behind a URL it is remembered for a while."""
    if is_url(path):
        return _remote_head(path, status(path))
    with open_binary(path) as stream:
        return stream.read(_HEAD)


@lru_cache(maxsize=64)
def _remote_head(path: str, state: Status) -> bytes:  # noqa: ARG001 (another state, another file)
    fs, inner = client(path)
    return bytes(fs.cat_file(inner, start=0, end=_HEAD))


def status(path: str) -> Status:
    """Look at a file without opening it; FileNotFoundError if it is not there."""
    if (local := local_path(path)) is not None:
        found = local.stat()
        # The time of the last change of the inode cannot be set back as that of the bytes can
        state = f"{found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"
        return Status(found.st_size, state, found.st_mtime)
    fs, inner = client(path)
    with reaching(path):
        info = fs.info(inner)
    state = next((str(info[key]) for key in _STATES if info.get(key)), "")
    return Status(int(info.get("size") or 0), state, _time_of(info))


def is_file(path: str) -> bool:
    """Tell whether there is a file of this name, and not a folder."""
    if (local := local_path(path)) is not None:
        return local.is_file()
    fs, inner = client(path)
    try:
        with reaching(path):
            return str(fs.info(inner)["type"]) == "file"
    except FileNotFoundError:
        return False


def matches(pattern: str) -> list[str]:
    """Return the files, or folders, that a glob matches, in no particular order."""
    if (local := local_path(pattern)) is not None:
        return [str(p) for p in Path(local.anchor).glob(str(local.relative_to(local.anchor)))]
    fs, inner = client(pattern)
    fs.invalidate_cache()
    with reaching(pattern):
        try:
            return [fs.unstrip_protocol(found) for found in fs.glob(inner)]
        except FileNotFoundError:  # not even the bucket
            return []


def look_again(paths: Iterable[str]) -> None:
    """Forget what was known about remote files; where there are many in a folder, list it once."""
    urls = [path for path in paths if is_url(path)]
    for folder, count in Counter(url.rpartition("/")[0] for url in urls).items():
        fs, inner = client(folder)
        fs.invalidate_cache(inner)
        if count >= _WORTH_A_LISTING:
            with reaching(folder), suppress(FileNotFoundError):
                fs.ls(inner, detail=True)


def _time_of(info: Mapping[str, Any]) -> float:
    found = next((info[key] for key in _TIMES if info.get(key) is not None), 0.0)
    return found.timestamp() if isinstance(found, datetime) else float(found)
