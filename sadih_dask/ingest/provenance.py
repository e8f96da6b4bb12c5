"""Which files the rows of a store were taken from, as far as that needs to be known again.

For each file the store keeps a mark of three short hashes and, up to a limit, its name. That
answers three questions without keeping the files: is this file in the store already, wherever it
lies now; is this a file that was ingested and has changed since; and which of the files are no
longer there.

What a file holds decides: two files are the same if name, role and *all bytes* are, and a file
that was written again with the bytes it had has not changed. So that a thousand known files are
not read again every time, a file at the path of a known one, with its size, times of change and
inode number, is taken to hold what that one held; any other file is read through, and only then
known. Behind a URL the entity tag stands for the bytes. A Zarr folder is known by its metadata
documents and their times, since its chunks are too many to look at.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

from sadih_dask.errors import FormatError, InputError
from sadih_dask.files.checksum import crc32c, trailer
from sadih_dask.files.filesystem import (
    Status,
    is_file,
    is_url,
    look_again,
    name_of,
    open_binary,
    status,
)
from sadih_dask.ingest.inputs import BESIDE, DataFiles, Inputs
from sadih_dask.sources.chunked import MARKERS
from sadih_dask.sources.contract import reading
from sadih_dask.sources.features import expand
from sadih_dask.stores.features import FeatureStore
from sadih_dask.stores.root import load_json

_DIGITS = {"path": 12, "stamp": 8, "content": 16}
_PIECE = 2**22
_MOST_ARRAYS = 64


@dataclass(frozen=True)
class FileMark:
    """One file in one role, such as "labels"; equal marks: nobody has written to it in between.

    path      hash of where it was
    stamp     hash of what changes when it is written: size, times and inode number, or entity tag
    content   hash of its name, its role and its bytes
    place     where it was, in words, if that is known
    """

    path: str
    stamp: str
    content: str
    place: str = field(default="", compare=False)

    @classmethod
    def of(cls, file: str, role: str, known: Mapping[tuple[str, str], str]) -> FileMark:
        """Mark a file; InputError if it is not there.

        `known` has the contents of files by path and stamp; any other file is read.
        """
        place = file if is_url(file) else str(Path(file).absolute())
        with reading(file):
            found = status(file)
            documents = {name: status(name) for name in _documents(file, found)}
            path = _hash("path", [place, role])
            states = [(each.size, each.state) for each in (found, *documents.values())]
            stamp = _hash("stamp", states)
            content = known.get((path, stamp))
            if content is None:
                # The entity tag of an object stands for its bytes
                names = tuple(documents) or (file,)
                inside = states if is_url(file) else _bytes_of(names, stamp)
                times = [each.modified for each in documents.values()]
                content = _hash("content", [name_of(file), role, inside, times])
        return cls(path, stamp, content, place)


def _hash(what: str, value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[: _DIGITS[what]]


@lru_cache(maxsize=2**16)
def _bytes_of(names: tuple[str, ...], stamp: str) -> str:  # noqa: ARG001 (another stamp, other bytes)
    """Return a hash of all bytes of files; once a process, while they are not written to.

    Checksums of pieces keep up with the disk, which a cryptographic hash may not.
    """
    digest = hashlib.sha256()
    for name in names:
        with open_binary(name) as stream:
            while piece := stream.read(_PIECE):
                digest.update(len(piece).to_bytes(4) + trailer(crc32c(piece)))
    return digest.hexdigest()


def _documents(file: str, found: Status) -> list[str]:
    """Return the metadata of a Zarr folder and of the arrays in it; nothing if it is a file."""
    if is_url(file):
        return [name for name in _markers(file) if is_file(name)] if not found.size else []
    if Path(file).is_file():
        return []
    folders = sorted(str(entry) for entry in Path(file).iterdir() if entry.is_dir())
    markers = (name for folder in (file, *folders[:_MOST_ARRAYS]) for name in _markers(folder))
    return [name for name in markers if is_file(name)]


def _markers(folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in MARKERS]


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
        contents = [[mark.content for mark in marks] for marks in (self.features, self.beside)]
        return hashlib.sha256(json.dumps([contents, self.options]).encode()).hexdigest()

    @property
    def key(self) -> str:
        """Return a hash for rows that were written and not committed.

        Unlike the fingerprint it changes when a file is written to, even if the bytes are the same
        again in the end: rows may have been read in between.
        """
        marks = _joined((*self.features, *self.beside))
        return hashlib.sha256(f"{self.fingerprint} {marks}".encode()).hexdigest()[:32]


def look_at_none(files: DataFiles) -> Sighting:
    """Return what is seen where none of the files is there yet."""
    return Sighting((), (), _hash("content", files.reading_options))


def look(files: DataFiles, known: Provenance | None = None) -> Sighting:
    """Look at every file, without opening any as what it is; those of `known` are not read."""
    features = expand(files.features)
    named = {name: getattr(files, name) for name in BESIDE}
    beside = {name: expand(paths) for name, paths in named.items() if paths is not None}
    look_again([*features, *(file for found in beside.values() for file in found)])
    contents = {} if known is None else known.contents
    return Sighting(
        tuple(FileMark.of(file, "features", contents) for file in features),
        tuple(
            FileMark.of(file, name, contents) for name, found in beside.items() for file in found
        ),
        look_at_none(files).options,
    )


MAX_FILES = 250_000
MAX_NAMES = 2 << 20
"""Characters of file names that a store keeps; files beyond them are counted, not named."""
_MOST_NAMED = 5


@dataclass(frozen=True)
class Provenance:
    """What a store remembers of its sources.

    fingerprint   of everything that was read, labels and options included
    marks         of the feature files, in the order of their rows
    beside        of the files of labels, ids and thumbnails
    options       a hash of how they were read
    hold_out      which part of the rows was taken, or nothing
    """

    fingerprint: str
    marks: tuple[FileMark, ...] = ()
    beside: tuple[FileMark, ...] = ()
    options: str = ""
    hold_out: str = ""

    @classmethod
    def of(cls, seen: Sighting, inputs: Inputs, dtype: str, files: DataFiles) -> Provenance:
        """Record sources as they are now, and how they are read."""
        text = json.dumps([seen.fingerprint, inputs.notes(), dtype, files.reading_options])
        return cls(
            hashlib.sha256(text.encode()).hexdigest(),
            seen.features,
            seen.beside,
            seen.options,
            "" if files.hold_out is None else files.hold_out.note(),
        )

    def followed_by(self, other: Provenance) -> Provenance:
        """Return the record after another ingestion."""
        chained = hashlib.sha256((self.fingerprint + other.fingerprint).encode()).hexdigest()
        renewed = {mark.path for mark in other.beside}
        beside = (*(mark for mark in self.beside if mark.path not in renewed), *other.beside)
        marks = (*self.marks, *other.marks)
        return Provenance(chained, marks, beside, other.options, other.hold_out)

    def has(self, mark: FileMark) -> bool:
        """Say whether the rows of this file are in the store."""
        return mark.content in self._features

    def has_changed(self, mark: FileMark) -> bool:
        """Say whether this is a file that was ingested with other contents than it has now."""
        return not self.has(mark) and mark.path in self._paths

    def changed_beside(self, marks: Iterable[FileMark]) -> tuple[FileMark, ...]:
        """Return the files of labels and the like that were ingested with other contents."""
        contents = {mark.content for mark in self.beside}
        paths = {mark.path for mark in self.beside}
        return tuple(m for m in marks if m.content not in contents and m.path in paths)

    def gone(self, marks: Iterable[FileMark]) -> tuple[FileMark, ...]:
        """Return the files of the store that are not among these, by contents or by path."""
        now = list(marks)
        contents, paths = {mark.content for mark in now}, {mark.path for mark in now}
        return tuple(m for m in self.marks if m.content not in contents and m.path not in paths)

    @property
    def contents(self) -> dict[tuple[str, str], str]:
        """Return what the files held, by path and stamp."""
        return {(mark.path, mark.stamp): mark.content for mark in (*self.marks, *self.beside)}

    @cached_property
    def _features(self) -> frozenset[str]:
        return frozenset(mark.content for mark in self.marks)

    @cached_property
    def _paths(self) -> frozenset[str]:
        return frozenset(mark.path for mark in self.marks)

    def to_bytes(self) -> bytes:
        """Return the record as a store keeps it."""
        if len(self.marks) > MAX_FILES:
            raise InputError(
                f"{len(self.marks)} source files; a store remembers {MAX_FILES} at most. Join "
                "them into fewer files"
            )
        folder, names = _named([mark.place for mark in self.marks])
        record = {
            "fingerprint": self.fingerprint,
            "options": self.options,
            "hold_out": self.hold_out,
            "files": _joined(self.marks),
            "folder": folder,
            "names": names,
            "beside": _joined(self.beside),
        }
        return json.dumps(record).encode()

    @classmethod
    def from_bytes(cls, data: bytes, url: str) -> Provenance:
        """Return the record that `to_bytes` wrote."""
        found = load_json(data, f"{url}: record of source files")
        texts = ("fingerprint", "files", "folder", "beside", "options", "hold_out")
        fields: dict[str, Any] = {key: found.get(key) for key in texts}
        names = found.get("names")
        if not all(isinstance(field, str) for field in fields.values()) or not _are_texts(names):
            raise FormatError(f"{url}: its record of source files is not one")
        return cls(
            fields["fingerprint"],
            _split(fields["files"], [name and fields["folder"] + name for name in names or ()]),
            _split(fields["beside"]),
            fields["options"],
            fields["hold_out"],
        )


def provenance_of(store: FeatureStore) -> Provenance | None:
    """Return what a store remembers of its sources, or None if it was not made by ingestion."""
    data = store.sources_record()
    return None if data is None else Provenance.from_bytes(data, store.url)


NOTHING = Provenance("")
"""What a store that was not made by ingestion remembers."""


def in_words(places: Sequence[str]) -> str:
    """Name a few files and count the others."""
    more = len(places) - _MOST_NAMED
    return ", ".join(places[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _joined(marks: Iterable[FileMark]) -> str:
    return " ".join(mark.path + mark.stamp + mark.content for mark in marks)


def _split(text: str, places: Sequence[str] = ()) -> tuple[FileMark, ...]:
    first, second = accumulate((_DIGITS["path"], _DIGITS["stamp"]))
    marks = text.split()
    named = [*places[: len(marks)], *[""] * (len(marks) - len(places))]
    return tuple(
        FileMark(mark[:first], mark[first:second], mark[second:], place)
        for mark, place in zip(marks, named, strict=True)
    )


def _named(places: Sequence[str]) -> tuple[str, list[str]]:
    """Return the folder that all files share, and names in it as far as there is room."""
    known = [place for place in places if place] or [""]
    # What the first and the last in order of the alphabet share, all between them share too
    pairs = zip(min(known), max(known), strict=False)
    common = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    folder = common[: common.rfind("/") + 1]
    names, room = [], MAX_NAMES
    for place in places:
        names.append(place[len(folder) :])
        room -= len(names[-1])
        if room < 0:
            break
    return folder, names


def _are_texts(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)
