"""Which files the rows of a store were taken from, as far as that needs to be known again.

For each file the store keeps two short hashes: of its path, and of its state (name, size,
modification time, shape, and a few kilobytes of its contents). That answers two questions without
keeping the files: is this file in the store already, wherever it lies now; and is this a file that
was ingested and has changed since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sadih_dask.errors import ConflictError, FormatError, InputError
from sadih_dask.storage.ingest.inputs import Inputs, parts_of
from sadih_dask.storage.sources import RowSource

PROPERTY = "ingested"
MAX_FILES = 250_000
_PATH_DIGITS = 12
_STATE_DIGITS = 16
_SAMPLE = 4096


@dataclass(frozen=True)
class FileMark:
    """One file: where it was, and what state it was in."""

    path: str
    state: str

    @classmethod
    def of(cls, source: RowSource) -> FileMark:
        """Mark the file of a source."""
        digest = hashlib.sha256(json.dumps([source.stamps(), source.shape_note()]).encode())
        for sample in _samples(source.origin.path):
            digest.update(sample)
        place = source.origin.path
        if "://" not in place:
            place = str(Path(place).absolute())
        name = json.dumps([place, source.origin.variable])
        path = hashlib.sha256(name.encode()).hexdigest()
        return cls(path[:_PATH_DIGITS], digest.hexdigest()[:_STATE_DIGITS])


@dataclass(frozen=True)
class Provenance:
    """What a store remembers of its sources.

    fingerprint   of everything that was read, labels and options included
    marks         of the feature files, in the order of their rows
    """

    fingerprint: str
    marks: tuple[FileMark, ...]

    @classmethod
    def of(cls, inputs: Inputs, dtype: str, options: str) -> Provenance:
        """Record sources as they are now, and how they are read."""
        marks = tuple(FileMark.of(part) for part in parts_of(inputs.features))
        text = json.dumps([inputs.fingerprint(), [asdict(mark) for mark in marks], dtype, options])
        return cls(hashlib.sha256(text.encode()).hexdigest(), marks)

    def followed_by(self, other: Provenance) -> Provenance:
        """Return the record after another ingestion."""
        chained = hashlib.sha256((self.fingerprint + other.fingerprint).encode()).hexdigest()
        return Provenance(chained, (*self.marks, *other.marks))

    def has_changed(self, mark: FileMark) -> bool:
        """Say whether this is a file that was ingested, in another state than now."""
        return mark.state not in self._states and mark.path in self._paths

    def new_among(self, sources: Iterable[RowSource]) -> list[bool]:
        """Say of each file whether it is new; ConflictError if it is one that has changed."""
        new = []
        for source in sources:
            mark = FileMark.of(source)
            if self.has_changed(mark):
                raise ConflictError(
                    f"{source.origin} was ingested before and has changed since. If it holds new "
                    "rows only, give it another name; if its rows have changed, ingest all files "
                    "anew with mode='overwrite'"
                )
            new.append(mark.state not in self._states)
        return new

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
        marks = " ".join(mark.path + mark.state for mark in self.marks)
        return {"fingerprint": self.fingerprint, "files": marks}

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], url: str) -> Provenance | None:
        """Return the record of a store, or None if it was not made by ingestion."""
        found = properties.get(PROPERTY)
        if found is None:
            return None
        fields = (found.get("fingerprint"), found.get("files")) if isinstance(found, dict) else ()
        if len(fields) != 2 or not all(isinstance(field, str) for field in fields):
            raise FormatError(f"{url}: attribute {PROPERTY!r} is not a record of source files")
        marks = (FileMark(m[:_PATH_DIGITS], m[_PATH_DIGITS:]) for m in str(fields[1]).split())
        return cls(str(fields[0]), tuple(marks))


def _samples(path: str) -> Iterable[bytes]:
    """Yield the first and last bytes of a file; nothing of a directory or a URL."""
    file = Path(path)
    if "://" in path or not file.is_file():
        return
    with file.open("rb") as stream:
        yield stream.read(_SAMPLE)
        stream.seek(max(0, file.stat().st_size - _SAMPLE))
        yield stream.read(_SAMPLE)
