"""Marks of source files: two short hashes that tell whether a file is known, and has changed.

One is of its path, the other of its state: name, size, modification time (or what an object store
has instead) and a few kilobytes of its contents. Files are not opened as what they are, so that
looking at a thousand of them takes a fraction of a second.

Which files the rows of a store were taken from, as far as that needs to be known again.

For each file the store keeps its marks and, up to a limit, its name. That answers three questions
without keeping the files: is this file in the store already, wherever it lies now; is this a file
that was ingested and has changed since; and which of the files are no longer there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from sadih_dask.errors import Argument, ConflictError, FormatError, InputError, Remedy
from sadih_dask.files.filesystem import is_file, is_url, look_again, name_of, status
from sadih_dask.ingest.inputs import BESIDE, DataFiles, Inputs
from sadih_dask.sources.contract import reading
from sadih_dask.sources.features import expand
from sadih_dask.sources.zarr_arrays import MARKERS

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


PROPERTY = "ingested"
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
    options       a hash of how they were read, or None in a store of a release that kept no such
    hold_out      which part of the rows was taken, or nothing
    """

    fingerprint: str
    marks: tuple[FileMark, ...] = ()
    beside: tuple[FileMark, ...] = ()
    options: str | None = ""
    hold_out: str = ""

    @classmethod
    def of(cls, seen: Sighting, inputs: Inputs, dtype: str, files: DataFiles) -> Provenance:
        """Record sources as they are now, and how they are read."""
        marks = [[mark.path, mark.state] for mark in seen.features]
        text = json.dumps([inputs.fingerprint(), marks, dtype, files.reading_options])
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

    def is_of(self, seen: Sighting) -> bool:
        """Say whether this is the record of just these files, read in the same way."""
        mine = (self.marks, self.beside, self.options)
        return mine == (seen.features, seen.beside, seen.options)

    def has(self, mark: FileMark) -> bool:
        """Say whether the rows of this file are in the store."""
        return mark.state in self._states

    def has_changed(self, mark: FileMark) -> bool:
        """Say whether this is a file that was ingested, in another state than now."""
        return not self.has(mark) and mark.path in self._paths

    def changed_beside(self, marks: Iterable[FileMark]) -> tuple[FileMark, ...]:
        """Return the files of labels and the like that were ingested in another state."""
        states = {mark.state for mark in self.beside}
        paths = {mark.path for mark in self.beside}
        return tuple(m for m in marks if m.state not in states and m.path in paths)

    def gone(self, marks: Iterable[FileMark]) -> tuple[FileMark, ...]:
        """Return the files of the store that are not among these, under either hash."""
        now = list(marks)
        states, paths = {mark.state for mark in now}, {mark.path for mark in now}
        return tuple(m for m in self.marks if m.state not in states and m.path not in paths)

    def check_appendable(self, url: str) -> None:
        """Refuse a store that does not say enough of its files to tell which of them it has."""
        if self.options is None:
            raise ConflictError(
                f"{url} was ingested by an earlier release, which marked its {len(self.marks)} "
                "source files in another way, so it cannot be said which of these files it has",
                remedy=Remedy("Ingest all files anew with {}", Argument("mode", "overwrite")),
            )

    @cached_property
    def _states(self) -> frozenset[str]:
        return frozenset(mark.state for mark in self.marks)

    @cached_property
    def _paths(self) -> frozenset[str]:
        return frozenset(mark.path for mark in self.marks)

    def to_property(self) -> dict[str, Any]:
        """Return what goes into the attributes of the store."""
        if len(self.marks) > MAX_FILES:
            raise InputError(
                f"{len(self.marks)} source files; a store remembers {MAX_FILES} at most. Join "
                "them into fewer files"
            )
        folder, names = _named([mark.place for mark in self.marks])
        return {
            "fingerprint": self.fingerprint,
            "options": self.options,
            "hold_out": self.hold_out,
            "files": _joined(self.marks),
            "folder": folder,
            "names": names,
            "beside": _joined(self.beside),
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], url: str) -> Provenance | None:
        """Return the record of a store, or None if it was not made by ingestion."""
        found = properties.get(PROPERTY)
        if found is None:
            return None
        texts = ("fingerprint", "files", "folder", "beside", "options", "hold_out")
        fields = {key: found.get(key, "") for key in texts} if isinstance(found, dict) else {}
        names = found.get("names", []) if fields else None
        if not all(isinstance(field, str) for field in fields.values()) or not _are_texts(names):
            raise FormatError(f"{url}: attribute {PROPERTY!r} is not a record of source files")
        return cls(
            fields["fingerprint"],
            _split(fields["files"], [name and fields["folder"] + name for name in names or ()]),
            _split(fields["beside"]),
            fields["options"] if "options" in found else None,
            fields["hold_out"],
        )


NOTHING = Provenance("")
"""What a store that was not made by ingestion remembers."""


def in_words(places: Sequence[str]) -> str:
    """Name a few files and count the others."""
    more = len(places) - _MOST_NAMED
    return ", ".join(places[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _joined(marks: Iterable[FileMark]) -> str:
    return " ".join(mark.path + mark.state for mark in marks)


def _split(text: str, places: Sequence[str] = ()) -> tuple[FileMark, ...]:
    marks = text.split()
    named = [*places[: len(marks)], *[""] * (len(marks) - len(places))]
    return tuple(
        FileMark(mark[:PATH_DIGITS], mark[PATH_DIGITS:], place)
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
