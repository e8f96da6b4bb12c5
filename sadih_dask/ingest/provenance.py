"""Which files the rows of a store were taken from, as far as that needs to be known again.

For each file the store keeps its name and a mark of three short hashes. That
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path

from sadih_dask.compute.run import nobody, reporting
from sadih_dask.compute.tree import run_each
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
from sadih_dask.sources import RowSource
from sadih_dask.sources.arrow import WideSource
from sadih_dask.sources.chunked import MARKERS
from sadih_dask.sources.contract import reading
from sadih_dask.sources.features import parts_of
from sadih_dask.stores.commit import SOURCES_LIMIT
from sadih_dask.stores.features import FeatureStore
from sadih_dask.stores.root import load_json

_PIECE = 2**22
_STRETCH = 2**28
"""Bytes that one task reads: a multiple of the pieces."""
_MOST_CHECKED = 2**16
_MOST_ARRAYS = 64
_MOST_NAMED = 5


@dataclass(frozen=True)
class FileMark:
    """One file in one role, such as "labels"; equal marks: nobody has written to it in between.

    path      hash of where it was
    stamp     hash of what changes when it is written: size, times and inode number, or entity tag
    content   hash of its name, its role and its bytes
    place     where it was, in words
    rows      first and end of the numbers of its rows, where these are their ids
    """

    path: str
    stamp: str
    content: str
    place: str = field(compare=False)
    rows: tuple[int, int] | None = field(default=None, compare=False)


def place_of(file: str) -> str:
    """Return where a file is, wherever the caller stands."""
    return file if is_url(file) else str(Path(file).absolute())


@dataclass(frozen=True)
class _Found:
    """A file, or the documents of a Zarr folder, as it is now; ``states`` are what changes."""

    file: str
    role: str
    states: tuple[tuple[int, str], ...]
    documents: dict[str, Status]

    @classmethod
    def of(cls, file: str, role: str) -> _Found:
        """Look at a file; InputError if it is not there."""
        with reading(file):
            found = status(file)
            documents = {name: status(name) for name in _documents(file, found)}
        states = tuple((each.size, each.state) for each in (found, *documents.values()))
        return cls(file, role, states, documents)

    @property
    def path(self) -> str:
        return _digest([place_of(self.file), self.role])[:12]

    @property
    def stamp(self) -> str:
        return _digest(self.states)[:8]

    @property
    def sizes(self) -> dict[str, int]:
        """Files whose bytes count, and how many they have."""
        documents = {name: each.size for name, each in self.documents.items()}
        return documents or {self.file: self.states[0][0]}

    def content(self, bytes_of: Mapping[str, bytes]) -> str:
        """Return the hash of its name, its role and its bytes, whose checksums are given."""
        inside: object = self.states  # the entity tag of an object stands for its bytes
        if not is_url(self.file):
            inside = hashlib.sha256(b"".join(bytes_of[name] for name in self.sizes)).hexdigest()
        times = [each.modified for each in self.documents.values()]
        return _digest([name_of(self.file), self.role, inside, times])[:16]


_checked: dict[tuple[str, tuple[tuple[int, str], ...]], bytes] = {}
"""Checksums of files in the states that this process has seen: read once, while unchanged."""


def _checksums(found: Sequence[_Found]) -> dict[str, bytes]:
    """Return the checksums of all pieces of files, which tasks read.

    Checksums keep up with the disk, which a cryptographic hash may not.
    """
    known = {name: _checked.get((name, f.states)) for f in found for name in f.sizes}
    sizes = {name: size for f in found for name, size in f.sizes.items() if known[name] is None}
    items = [
        _Stretch(name, start, min(start + _STRETCH, size))
        for name, size in sizes.items()
        for start in range(0, size, _STRETCH)
    ]
    checked = dict.fromkeys(sizes, b"")
    if sum(sizes.values()) <= _STRETCH:  # not worth a graph
        results = [_checksums_of(None, item) for item in items]
    else:
        with reporting(nobody):
            results = run_each(_checksums_of, None, items, "checksums")
    for item, result in zip(items, results, strict=True):
        checked[item.name] += result
    if len(_checked) > _MOST_CHECKED:
        _checked.clear()
    _checked.update({(n, f.states): checked[n] for f in found for n in f.sizes if n in checked})
    return {name: checked.get(name) or known[name] or b"" for name in known}


@dataclass(frozen=True)
class _Stretch:
    name: str
    start: int
    stop: int


def _checksums_of(_: None, part: _Stretch) -> bytes:
    """Return length and checksum of each piece of a stretch."""
    checksums = []
    with reading(part.name), open_binary(part.name) as stream:
        stream.seek(part.start)
        for at in range(part.start, part.stop, _PIECE):
            piece = stream.read(min(_PIECE, part.stop - at))
            checksums.append(len(piece).to_bytes(4) + trailer(crc32c(piece)))
    return b"".join(checksums)


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
class Provenance:
    """Files in the state that they were seen in: now, or by the ingestion that a store remembers.

    marks         of the feature files, in the order of their rows
    beside        of the files of labels, ids and thumbnails
    options       a hash of what decides, beside the files, which rows are read and how
    hold_out      which part of the rows is taken, or nothing
    fingerprint   changes when a file does, or how it is read; folders do not count
    columns       a hash of the names of the features in their order, where they have names
    """

    marks: tuple[FileMark, ...] = ()
    beside: tuple[FileMark, ...] = ()
    options: str = ""
    hold_out: str = ""
    fingerprint: str = ""
    columns: str = ""

    @property
    def key(self) -> str:
        """Return a hash for rows that were written and not committed.

        Unlike the fingerprint it changes when a file is written to, even if the bytes are the same
        again in the end: rows may have been read in between.
        """
        return _digest([self.fingerprint, *map(_row, (*self.marks, *self.beside))])[:32]

    def read_as(self, inputs: Inputs, dtype: str) -> Provenance:
        """Return the same with a fingerprint of everything that is read, classes included."""
        fingerprint = _digest([self.fingerprint, inputs.notes(), dtype])
        return replace(self, fingerprint=fingerprint, columns=columns_of(inputs.features))

    def followed_by(self, other: Provenance) -> Provenance:
        """Return the record after another ingestion."""
        renewed = {mark.path for mark in other.beside}
        return replace(
            other,
            marks=(*self.marks, *other.marks),
            beside=(*(mark for mark in self.beside if mark.path not in renewed), *other.beside),
            fingerprint=_digest([self.fingerprint, other.fingerprint]),
            columns=other.columns or self.columns,
        )

    def has(self, mark: FileMark) -> bool:
        """Say whether the rows of this file are in the store."""
        return mark.content in self._features

    def has_changed(self, mark: FileMark) -> bool:
        """Say whether this is a file that was ingested with other contents than it has now."""
        return not self.has(mark) and mark.path in self._paths

    def changed_beside(self, seen: Provenance) -> tuple[str, ...]:
        """Return files of labels and the like that rows of the store were not ingested with.

        Those that are other than they were; and where no feature file is new, all that are new.
        """
        contents = {mark.content for mark in self.beside}
        paths = {mark.path for mark in self.beside}
        no_rows = bool(seen.marks) and all(map(self.has, seen.marks))
        others = (m for m in seen.beside if m.content not in contents)
        return tuple(m.place for m in others if no_rows or m.path in paths)

    def gone(self, marks: Sequence[FileMark]) -> tuple[str, ...]:
        """Return the files of the store that are not among these, by contents or by path."""
        contents, paths = {mark.content for mark in marks}, {mark.path for mark in marks}
        missing = (m for m in self.marks if m.content not in contents and m.path not in paths)
        return tuple(mark.place for mark in missing)

    @property
    def row_numbers(self) -> dict[str, tuple[int, int]]:
        """Return first and end of the row numbers of the files, by their contents."""
        return {mark.content: mark.rows for mark in self.marks if mark.rows is not None}

    def numbered(self, lengths: Sequence[int], known: Mapping[str, tuple[int, int]]) -> Provenance:
        """Number the rows of the files, those that are not known behind those that are."""
        end = max((end for _, end in known.values()), default=0)
        marks = []
        for mark, length in zip(self.marks, lengths, strict=True):
            rows = known.get(mark.content)
            if rows is None:
                rows, end = (end, end + length), end + length
            marks.append(replace(mark, rows=rows))
        return replace(self, marks=tuple(marks))

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
        record = {field.name: getattr(self, field.name) for field in fields(self)}
        data = json.dumps(record, default=vars).encode()
        if len(data) > SOURCES_LIMIT:
            raise InputError(
                f"{len(self.marks)} source files: to remember them takes {len(data):,} bytes, and "
                f"a store has room for {SOURCES_LIMIT:,}. Join them into fewer files"
            )
        return data

    @classmethod
    def from_bytes(cls, data: bytes, url: str) -> Provenance:
        """Return the record that `to_bytes` wrote."""
        found = dict(load_json(data, f"{url}: record of source files"))
        try:
            for name in ("marks", "beside"):
                found[name] = tuple(FileMark(**mark) for mark in found[name])
            record = cls(**found)
            texts = [record.options, record.hold_out, record.fingerprint, record.columns]
            for mark in (*record.marks, *record.beside):
                texts += (*_row(mark), mark.place)
            rows = [[*map(type, mark.rows)] for mark in record.marks if mark.rows is not None]
            if all(isinstance(text, str) for text in texts) and all(r == [int, int] for r in rows):
                return record
        except (TypeError, KeyError):
            pass
        raise FormatError(f"{url}: its record of source files is not one")


NOTHING = Provenance()
"""What a store that was not made by ingestion remembers."""


def look(files: DataFiles, known: Provenance = NOTHING) -> Provenance:
    """Look at every file, without opening any as what it is; those of `known` are not read.

    Globs must be expanded already.
    """
    named = [(file, name) for name in ("features", *BESIDE) for file in files.names(name)]
    look_again([file for file, _ in named])
    found, contents = [_Found.of(*each) for each in named], known.contents
    new = [f for f in found if (f.path, f.stamp) not in contents and not is_url(f.file)]
    bytes_of = _checksums(new)
    marks = []
    for each in found:
        content = contents.get((each.path, each.stamp)) or each.content(bytes_of)
        marks.append(FileMark(each.path, each.stamp, content, place_of(each.file)))
    n_features = len(files.names("features"))
    features, beside = tuple(marks[:n_features]), tuple(marks[n_features:])
    options = _digest(files.reading_options)[:16]
    state = [[mark.content for mark in group] for group in (features, beside)]
    part = "" if files.hold_out is None else files.hold_out.note()
    return Provenance(features, beside, options, part, _digest([state, options]))


def provenance_of(store: FeatureStore) -> Provenance | None:
    """Return what a store remembers of its sources, or None if it was not made by ingestion."""
    data = store.sources_record()
    return None if data is None else Provenance.from_bytes(data, store.url)


def columns_of(rows: FeatureStore | RowSource) -> str:
    """Return a hash of the names of features in their order, or nothing if they have no names."""
    if isinstance(rows, FeatureStore):
        known = provenance_of(rows)
        return "" if known is None else known.columns
    first = parts_of(rows)[0]
    return _digest(first.columns)[:16] if isinstance(first, WideSource) else ""


def in_words(places: Sequence[str]) -> str:
    """Name a few files and count the others."""
    more = len(places) - _MOST_NAMED
    return ", ".join(places[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _row(mark: FileMark) -> tuple[str, str, str]:
    return mark.path, mark.stamp, mark.content


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
