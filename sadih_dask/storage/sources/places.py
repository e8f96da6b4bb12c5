"""Where source files lie: on this machine, or behind an fsspec URL such as ``s3://bucket/x.npy``.

Everything that opens, lists or looks at a source file comes through here. Credentials for a URL
are those that its library finds in the environment (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

from sadih_dask.storage.reaching import reaching

_READ_AHEAD = 2**20
_HEAD = 1024
_WORTH_A_LISTING = 4
_STATES = ("ETag", "etag", "md5", "content_md5", "generation", "LastModified", "mtime", "created")
"""What file systems call that which changes with the bytes of a file."""
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")


@dataclass(frozen=True)
class Status:
    """Size, what changes when the bytes do, and the time of the last change since the epoch."""

    size: int
    state: int | str
    modified: float


def is_url(path: str) -> bool:
    """Tell a URL from a path."""
    return "://" in path


def name_of(path: str) -> str:
    """Return the last part of a path or URL."""
    return path.rstrip("/").rpartition("/")[2]


def open_binary(path: str) -> IO[bytes]:
    """Open a file for reading at any position."""
    if not is_url(path):
        return Path(path).open("rb")
    fs, inner = _connect(path)
    return cast(IO[bytes], fs.open(inner, "rb", block_size=_READ_AHEAD, cache_type="readahead"))


def head(path: str) -> bytes:
    """Return the first kilobyte of a file; of one behind a URL it is remembered for a while."""
    if is_url(path):
        return _remote_head(path, status(path))
    with Path(path).open("rb") as stream:
        return stream.read(_HEAD)


@lru_cache(maxsize=64)
def _remote_head(path: str, state: Status) -> bytes:  # noqa: ARG001 (another state, another file)
    fs, inner = _connect(path)
    return bytes(fs.cat_file(inner, start=0, end=_HEAD))


def status(path: str) -> Status:
    """Look at a file without opening it; FileNotFoundError if it is not there."""
    if not is_url(path):
        found = Path(path).stat()
        return Status(found.st_size, found.st_mtime_ns, found.st_mtime)
    fs, inner = _connect(path)
    with reaching(path):
        info = fs.info(inner)
    state = " ".join(str(info[key]) for key in _STATES if key in info)
    return Status(int(info.get("size") or 0), state, _time_of(info))


def is_file(path: str) -> bool:
    """Tell whether there is a file of this name, and not a folder."""
    if not is_url(path):
        return Path(path).is_file()
    try:
        fs, inner = _connect(path)
        with reaching(path):
            return str(fs.info(inner)["type"]) == "file"
    except FileNotFoundError:
        return False


def matches(pattern: str) -> list[str]:
    """Return the files, or folders, that a glob matches, in no particular order."""
    if not is_url(pattern):
        path = Path(pattern)
        return [str(p) for p in Path(path.anchor).glob(str(path.relative_to(path.anchor)))]
    fs, inner = _connect(pattern)
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
        fs, inner = _connect(folder)
        fs.invalidate_cache(inner)
        if count >= _WORTH_A_LISTING:
            with reaching(folder), suppress(FileNotFoundError):
                fs.ls(inner, detail=True)


def _connect(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]

    fs, inner = url_to_fs(url)
    return fs, str(inner)


def _time_of(info: Mapping[str, Any]) -> float:
    found = next((info[key] for key in _TIMES if info.get(key) is not None), 0.0)
    return found.timestamp() if isinstance(found, datetime) else float(found)
