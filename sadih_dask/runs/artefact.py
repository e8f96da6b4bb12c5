"""What a stage makes: a folder named by what decides it, and `done.json`, written last.

JSON in a run directory says its own checksum (`write_checked`), so that a flipped bit is noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sadih_dask.errors import FormatError, IntegrityError
from sadih_dask.files.checksum import canonical_json, crc32c
from sadih_dask.files.file import OBJECT_BYTES
from sadih_dask.files.filesystem import Files, LocalFiles, sync_file, sync_folder
from sadih_dask.jobs import verify
from sadih_dask.stores.root import load_json

logger = logging.getLogger(__name__)

ARTEFACTS, DONE = "artefacts", "done.json"
SCAN = "scan"
"""The checkpoint of a fit, which is no part of its artefact."""
KEY_DIGITS = 20
JSON_BYTES = 4 << 20
"""Limit of a JSON file of a run directory."""
_AGAIN = "run the pipeline again to have it made anew"


def key_of(*parts: Any) -> str:
    """A hash of what decides a stage."""
    return hashlib.sha256(canonical_json({"parts": parts})).hexdigest()[:KEY_DIGITS]


@dataclass(frozen=True)
class Artefact:
    """A folder of one stage's work."""

    files: Files
    stage: str
    key: str
    digests: dict[str, str] = field(default_factory=dict, compare=False)
    """SHA-256 of plain files that were written; stores and models have checksums of their own."""

    @property
    def name(self) -> str:
        """Its name among the artefacts."""
        return f"{self.stage}-{self.key}"

    @property
    def folder(self) -> str:
        """Its folder in the run directory."""
        return f"{ARTEFACTS}/{self.name}"

    def url(self, name: str) -> str:
        """Path or URL of a file or store in it; FormatError if that is a link."""
        return self.files.address(f"{self.folder}/{name}")

    def begin(self) -> Artefact:
        """Make the folder, where there are folders."""
        if isinstance(self.files, LocalFiles):
            self.files.make(self.folder)
        return self

    @contextlib.contextmanager
    def local_folder(self) -> Iterator[Path]:
        """A folder of this machine; what is written there is part of the artefact afterwards."""
        if isinstance(self.files, LocalFiles):
            folder = Path(self.files.address(self.folder))
            for path in folder.rglob("*"):  # others write there, and would follow links
                self.files.address(path.relative_to(self.files.root).as_posix())
            yield folder
            for path in _plain_files(folder):
                sync_file(path)
                sync_folder(path.parent)
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                self.digests[path.relative_to(folder).as_posix()] = digest
            return
        with tempfile.TemporaryDirectory(prefix="sadih-") as scratch:
            yield Path(scratch)
            for path in _plain_files(Path(scratch)):
                self.write(path.relative_to(scratch).as_posix(), path.read_bytes())

    def write(self, name: str, data: bytes) -> None:
        """Write a file of it."""
        self.files.write(f"{self.folder}/{name}", [data])
        self.digests[name] = hashlib.sha256(data).hexdigest()

    def read(self, name: str) -> bytes:
        """Read a file of it."""
        return self.files.read(f"{self.folder}/{name}", OBJECT_BYTES)

    def read_intact(self, name: str) -> bytes | None:
        """Read a plain file of it; None if it is not as it was when the artefact was finished."""
        done = self.done()
        try:
            data = self.read(name)
        except FileNotFoundError:
            return None
        found = hashlib.sha256(data).hexdigest()
        return data if done is not None and done["digests"].get(name) == found else None

    def remove(self, name: str) -> None:
        """Remove a file of it."""
        self.files.delete(f"{self.folder}/{name}")

    def finish(self, outputs: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Say that everything is there; ``outputs`` is what later stages go by."""
        record = {"stage": self.stage, "key": self.key, "outputs": outputs, "facts": facts}
        record["digests"] = self.digests
        record["names"] = [name for name in self._names() if name not in (DONE, SCAN)]
        self.files.sync(self.folder)  # what it says is there has to be there before it
        write_checked(self.files, f"{self.folder}/{DONE}", record)

    def done(self) -> dict[str, Any] | None:
        """What `finish` recorded, or None if the work is not finished."""
        try:
            return self._checked(read_checked(self.files, f"{self.folder}/{DONE}"))
        except FileNotFoundError:
            return None
        except (IntegrityError, FormatError) as error:
            logger.warning("%s; its stage is done again", error)
            return None

    def _checked(self, done: dict[str, Any]) -> dict[str, Any]:
        """Refuse names that lead out of the folder, and what `finish` does not write."""
        names, digests = done.get("names"), done.get("digests")
        if (
            not isinstance(names, list)
            or not isinstance(digests, dict)
            or not isinstance(done.get("outputs"), dict)
            or not all(is_name(name) for name in names)
            or not all(is_name(part) for path in digests for part in path.split("/"))
        ):
            raise IntegrityError(f"{self.files.url}/{self.folder}/{DONE} is not that of a stage")
        return done

    def holds(self, names: Sequence[str]) -> bool:
        """Whether all of these are there."""
        return set(names) <= set(self._names())

    def _names(self) -> list[str]:
        """What is in the folder, without scratch files that a killed process left."""
        return [name for name in self.files.names(self.folder) if not name.startswith(".")]

    def missing(self) -> Iterator[str]:
        """Name what was finished and is not there any more; nothing is read."""
        if (done := self.done()) is None:
            yield f"{self.files.url}/{self.folder} is gone, or its {DONE} is damaged"
            return
        there = set(self._names())
        for name in done["names"]:
            if name not in there:
                yield f"{self.url(name)} is missing; {_AGAIN}"

    def problems(self) -> Iterator[str]:
        """Read everything and name what is not as it was written."""
        yield from self.missing()
        done, there = self.done() or {"names": (), "digests": {}}, set(self._names())
        for name in there.intersection(done["names"]):
            if name.endswith((".zarr", ".sadih")):
                yield from damage(self.files, f"{self.folder}/{name}")
                continue
            parts = [n for n in done["digests"] if n == name or n.startswith(f"{name}/")]
            if not parts:
                yield f"{self.url(name)} has no digest; delete {self.folder}/{DONE} and {_AGAIN}"
            for part in parts:
                try:
                    found = hashlib.sha256(self.read(part)).hexdigest()
                except FileNotFoundError:
                    yield f"{self.url(part)} is missing; {_AGAIN}"
                    continue
                if found != done["digests"][part]:
                    yield f"{self.url(part)} is damaged; delete {self.folder}/{DONE} and {_AGAIN}"


def is_name(name: object) -> bool:
    """Whether it is a name in a folder, and leads nowhere else."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\0"} & set(name)


def _plain_files(folder: Path) -> list[Path]:
    """Files that have no checksums of their own, at any depth."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.name != DONE
        and path.suffix != ".sadih"
        and not any(
            part.startswith(".") or part.endswith((".zarr", SCAN))
            for part in path.relative_to(folder).parts
        )
    )


def write_checked(files: Files, key: str, record: Mapping[str, Any]) -> None:
    """JSON that says its own checksum, so a flipped bit is noticed; names beside it are durable."""
    files.write(key, [checked_json(record)])
    files.sync(key.rpartition("/")[0])


def checked_json(record: Mapping[str, Any]) -> bytes:
    """The text of a record, with its checksum."""
    text = {**record, "crc32c": crc32c(canonical_json(record))}
    return json.dumps(text, indent=1, sort_keys=False, allow_nan=False).encode()


def read_checked(files: Files, key: str) -> dict[str, Any]:
    """What `write_checked` wrote; IntegrityError if that is damaged."""
    record = dict(load_json(files.read(key, JSON_BYTES), f"{files.url}/{key}"))
    if record.pop("crc32c", None) != crc32c(canonical_json(record)):
        raise IntegrityError(f"{files.url}/{key} is damaged: its checksum does not fit")
    return record


def damage(files: Files, key: str) -> Iterator[str]:
    """Name what is wrong with a store or model in a run directory."""
    try:
        url = files.address(key)
    except FormatError as error:
        yield str(error)
        return
    yield from verify.problems(url)
