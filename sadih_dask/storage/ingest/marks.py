"""Marks of source files: two short hashes that tell whether a file is known, and has changed.

One is of its path, the other of its state: name, size, modification time (or what an object store
has instead) and a few kilobytes of its contents. Files are not opened as what they are, so that
looking at a thousand of them takes a fraction of a second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sadih_dask.storage.ingest.inputs import BESIDE, DataFiles
from sadih_dask.storage.sources.contract import reading
from sadih_dask.storage.sources.places import is_file, is_url, look_again, name_of, status
from sadih_dask.storage.sources.shards import expand
from sadih_dask.storage.sources.zarrs import MARKERS

PATH_DIGITS = 12
STATE_DIGITS = 16
_SAMPLE = 4096
_MOST_ARRAYS = 64


@dataclass(frozen=True)
class FileMark:
    """One file: where it was, what state it was in, and its place in words, if that is known."""

    path: str
    state: str
    place: str = field(default="", compare=False)

    @classmethod
    def of(cls, file: str, role: str = "features") -> FileMark:
        """Mark a file in one role, such as "labels"; InputError if it is not there."""
        place = file if is_url(file) else str(Path(file).absolute())
        digest = hashlib.sha256()
        with reading(file):
            found = status(file)
            digest.update(json.dumps([name_of(file), role, found.size, found.state]).encode())
            for sample in _samples(file, found.size):
                digest.update(sample)
        path = hashlib.sha256(json.dumps([place, role]).encode()).hexdigest()
        return cls(path[:PATH_DIGITS], digest.hexdigest()[:STATE_DIGITS], place)


@dataclass(frozen=True)
class Sighting:
    """All named files as they are now; of globs, what they matched when they were expanded.

    features   marks in the order of their rows
    beside     marks of the files of labels, ids and thumbnails
    options    what decides, beside the files, which rows are read and how
    """

    features: tuple[FileMark, ...]
    beside: tuple[FileMark, ...]
    options: str

    @property
    def fingerprint(self) -> str:
        """Return a hash that changes when a file does, or how it is read; folders do not count."""
        states = [[mark.state for mark in marks] for marks in (self.features, self.beside)]
        return hashlib.sha256(json.dumps([states, self.options]).encode()).hexdigest()


def look_at_none(files: DataFiles) -> Sighting:
    """Return what is seen where none of the files is there yet."""
    return Sighting((), (), _options(files))


def look(files: DataFiles) -> Sighting:
    """Look at every file, without opening any as what it is."""
    features = expand(files.features)
    named = {name: getattr(files, name) for name in BESIDE}
    beside = {name: expand(paths) for name, paths in named.items() if paths is not None}
    look_again([*features, *(file for found in beside.values() for file in found)])
    return Sighting(
        tuple(FileMark.of(file) for file in features),
        tuple(FileMark.of(file, name) for name, found in beside.items() for file in found),
        _options(files),
    )


def _options(files: DataFiles) -> str:
    return hashlib.sha256(files.reading_options.encode()).hexdigest()[:STATE_DIGITS]


def _samples(file: str, size: int) -> Iterator[bytes]:
    """Yield the first and last bytes of a local file, and the metadata of a Zarr folder."""
    if is_url(file):
        # The entity tag of an object changes with its bytes; a folder has a document instead
        for document in (f"{file}/{name}" for name in MARKERS if not size):
            if is_file(document):
                yield str(status(document)).encode()
        return
    path = Path(file)
    if path.is_file():
        with path.open("rb") as stream:
            yield stream.read(_SAMPLE)
            stream.seek(max(0, size - _SAMPLE))
            yield stream.read(_SAMPLE)
        return
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
    for folder in (path, *folders[:_MOST_ARRAYS]):
        for name in MARKERS:
            if (folder / name).is_file():
                yield f"{folder.name} {status(str(folder / name))}".encode()
                yield (folder / name).read_bytes()[: 16 * _SAMPLE]
