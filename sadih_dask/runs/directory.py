"""The directory of a pipeline's runs.

::

    DIRECTORY/
      latest            -> runs/<id> of the last complete run; behind a URL, a file with the id
      runs/<id>/        manifest.json, record.json, log.txt, and links to what the run consists of
      artefacts/<stage>-<key>/   what a stage made, and done.json, written last
      checked.json      the last look that found nothing to do
      rejected.json     results that were rolled back, and do not become the latest again

Artefacts are named by a hash of everything that decides them. So a stage is current exactly if its
artefact is there and done, work that a killed run has finished is found again by the next, and two
runs that agree in a stage share it. A run only points at artefacts, and becomes visible in one
step, when `latest` is moved.

Reading a whole run directory and naming what is not as it was written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sadih_dask.errors import ConflictError, FormatError, IntegrityError, RunBusyError, SadihError
from sadih_dask.files.checksum import canonical_json, crc32c
from sadih_dask.files.file import OBJECT_BYTES
from sadih_dask.files.filesystem import Files, LocalFiles, connect
from sadih_dask.files.lease import WriterLock, read_holder
from sadih_dask.jobs.inspect import open_store
from sadih_dask.model.model_file import read_model
from sadih_dask.stores.root import load_json

logger = logging.getLogger(__name__)

ARTEFACTS, RUNS, LATEST = "artefacts", "runs", "latest"
CHECKED, REJECTED = "checked.json", "rejected.json"
DONE, MANIFEST, RECORD, LOG = "done.json", "manifest.json", "record.json", "log.txt"
KEY_DIGITS = 20
_RUN = re.compile(r"\d{8}T\d{6}Z(-\d+)?")
_LIMIT = 4 << 20


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
    def folder(self) -> str:
        """Its place in the run directory."""
        return f"{ARTEFACTS}/{self.stage}-{self.key}"

    def url(self, name: str) -> str:
        """Path or URL of a file or store in it."""
        return f"{self.files.url}/{self.folder}/{name}"

    def begin(self) -> Artefact:
        """Make the folder, where there are folders."""
        if isinstance(self.files, LocalFiles):
            Path(self.files.path(self.folder)).mkdir(parents=True, exist_ok=True)
        return self

    @contextlib.contextmanager
    def local_folder(self) -> Iterator[Path]:
        """A folder of this machine; what is written there is part of the artefact afterwards."""
        if isinstance(self.files, LocalFiles):
            folder = Path(self.files.path(self.folder))
            before = set(_plain_files(folder))
            yield folder
            for path in _plain_files(folder):
                if path not in before or path.relative_to(folder).as_posix() in self.digests:
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

    def problems(self) -> Iterator[str]:
        """Name every plain file that is not what was written."""
        done = self.done() or {}
        there = set(self.files.names(self.folder))
        for name in done.get("names", []):
            if name not in there:
                yield f"{self.url(name)} is missing; run the pipeline again to have it made anew"
        for name, digest in done.get("digests", {}).items():
            if name.split("/")[0] not in there:
                continue
            try:
                found = hashlib.sha256(self.read(name))
            except FileNotFoundError:
                yield f"{self.url(name)} is missing; run the pipeline again to have it made anew"
                continue
            if found.hexdigest() != digest:
                yield f"{self.url(name)} is damaged; delete {self.folder}/{DONE} and run again"

    def finish(self, outputs: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Say that everything is there; ``outputs`` is what later stages go by."""
        record = {"stage": self.stage, "key": self.key, "outputs": outputs, "facts": facts}
        record["digests"] = self.digests
        record["names"] = [n for n in self.files.names(self.folder) if n not in (DONE, "scan")]
        _write_checked(self.files, f"{self.folder}/{DONE}", record)
        if isinstance(self.files, LocalFiles):
            self.files.sync(self.folder)

    def holds(self, names: Sequence[str]) -> bool:
        """Whether all of these are there."""
        return set(names) <= set(self.files.names(self.folder))

    def done(self) -> dict[str, Any] | None:
        """What `finish` recorded, or None if the work is not finished."""
        try:
            return _read_checked(self.files, f"{self.folder}/{DONE}")
        except FileNotFoundError:
            return None
        except (IntegrityError, FormatError) as error:
            logger.warning("%s; its stage is done again", error)
            return None


class Workspace:
    """A run directory, local or behind a URL."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.files = connect(url)
        self.url = self.files.url
        self._lock: WriterLock | None = None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only run here; RunBusyError names the other one."""
        try:
            lock = WriterLock(self.files).acquire()
        except ConflictError as error:
            said = str(error).replace("is being written by", "is held by another run:")
            raise RunBusyError(f"{said}. This one did nothing") from error
        self._lock = lock
        try:
            yield
        finally:
            self._lock = None
            lock.release()

    def is_held(self) -> bool:
        """Whether a run is at work here, as far as that can be seen from this host."""
        holder = read_holder(self.files)
        return holder is not None and not holder.is_gone()

    def artefact(self, stage: str, key: str) -> Artefact:
        """The artefact of a stage, finished or not."""
        return Artefact(self.files, stage, key)

    def artefacts(self, stage: str) -> list[Artefact]:
        """All artefacts of a stage."""
        return [found for found in self.all_artefacts() if found.stage == stage]

    def store_url(self, name: str) -> str:
        """Where a store lies that the configuration gives no place."""
        return f"{self.url}/{name}"

    # -- runs -------------------------------------------------------------------------------------

    def begin_run(self) -> str:
        """Make the folder of a new run; ids sort by time."""
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        taken = set(self.files.names(RUNS))
        names = (moment if k == 1 else f"{moment}-{k}" for k in range(1, 10_000))
        run = next(name for name in names if name not in taken)
        self.write_manifest(run, {"id": run, "complete": False, "stages": {}})
        return run

    def runs(self) -> list[str]:
        """All runs, oldest first."""
        return sorted(filter(_RUN.fullmatch, self.files.names(RUNS)))

    def write_manifest(self, run: str, manifest: Mapping[str, Any]) -> None:
        """Write which artefacts a run consists of."""
        self._write(f"{RUNS}/{run}/{MANIFEST}", manifest)

    def manifest(self, run: str) -> dict[str, Any]:
        """Return the manifest of a run; IntegrityError if it is damaged."""
        try:
            return _read_checked(self.files, f"{RUNS}/{run}/{MANIFEST}")
        except FileNotFoundError as error:
            there = self.runs()
            if run in there:
                raise IntegrityError(
                    f"{self.url}/{RUNS}/{run}/{MANIFEST} is missing; delete the rest of that run"
                ) from error
            raise FormatError(
                f"{self.url} has no run {run!r}; it has {', '.join(there) or 'none'}"
            ) from error

    def write_record(self, run: str, record: Mapping[str, Any]) -> None:
        """Write what happened in a run."""
        self._write(f"{RUNS}/{run}/{RECORD}", record)

    def record(self, run: str) -> dict[str, Any] | None:
        """What happened in a run; None if it was killed before it could say."""
        try:
            return _read_checked(self.files, f"{RUNS}/{run}/{RECORD}")
        except FileNotFoundError:
            return None

    def write_checked(self, record: Mapping[str, Any]) -> None:
        """Write the record of a look that found nothing to do."""
        self._write(CHECKED, record)

    def write_log(self, run: str, text: str) -> None:
        """Write the log of a run."""
        self.files.write(f"{RUNS}/{run}/{LOG}", [text.encode()])

    def link(self, run: str, name: str, artefact: Artefact) -> str:
        """Make a file of an artefact reachable from the run's folder; return its address."""
        if isinstance(self.files, LocalFiles):
            place = Path(self.files.path(f"{RUNS}/{run}/{name}"))
            _replace_link(place, Path("..", "..", artefact.folder, name))
            return str(place)
        return artefact.url(name)

    def latest(self) -> str | None:
        """The id of the last complete run, if there is one."""
        if isinstance(self.files, LocalFiles):
            place = Path(self.files.path(LATEST))
            if place.exists() and not place.is_symlink():
                raise FormatError(
                    f"{place} is not a link to a run: the directory was copied without links. Copy "
                    "it with them (cp -a), or remove this and choose a run with: sadih rollback"
                )
            try:
                return place.readlink().name
            except FileNotFoundError:
                return None
        try:
            return self.files.read(LATEST, 256).decode()
        except FileNotFoundError:
            return None

    def point_latest_at(self, run: str) -> None:
        """Move `latest` in one step; ConflictError if another run has taken the lock over."""
        if self._lock is not None:
            self._lock.check()
        if isinstance(self.files, LocalFiles):
            _replace_link(Path(self.files.path(LATEST)), Path(RUNS, run))
            self.files.sync("")
        else:
            self.files.write(LATEST, [run.encode()])

    def previous_complete(self) -> str:
        """The last complete run before the latest."""
        latest = self.latest()
        older = [run for run in self.runs() if latest is not None and run < latest]
        unwanted = self.rejected()
        for run in reversed(older):
            manifest = self.manifest_or_nothing(run)
            if manifest.get("complete") and manifest["stages"] not in unwanted:
                return run
        raise FormatError(f"{self.url} has no complete run before {latest}; nothing was changed")

    def reject_after(self, chosen: str) -> None:
        """Remember the results of all complete runs after one as rolled back; its own is not."""
        wanted = self.manifest(chosen)["stages"]
        later = [self.manifest_or_nothing(run) for run in self.runs() if run > chosen]
        undone = [manifest["stages"] for manifest in later if manifest.get("complete")]
        rejected = [*self.rejected(), *undone]
        self._write(REJECTED, {"stages": [keys for keys in rejected if keys != wanted]})

    def rejected(self) -> list[dict[str, str]]:
        """Keys of the stages of results that were rolled back."""
        try:
            return list(_read_checked(self.files, REJECTED)["stages"])
        except FileNotFoundError:
            return []

    def all_artefacts(self) -> list[Artefact]:
        """Every artefact, finished or not."""
        names = [name.rpartition("-") for name in self.files.names(ARTEFACTS)]
        return [self.artefact(stage, key) for stage, _, key in names]

    def prune(self, keep: int, current: str) -> list[str]:
        """Remove old runs, and artefacts that no complete run refers to any more.

        So many complete runs stay, the latest among them, and what the last so many of the others
        left to read: their records and logs.
        """
        latest = self.latest()
        manifests = {run: self.manifest_or_nothing(run) for run in self.runs()}
        complete = [run for run, manifest in manifests.items() if manifest.get("complete")]
        kept = {*complete[-keep:], current} | ({latest} if latest else set())
        others = [run for run in manifests if run not in complete and run not in kept]
        readable = {run for run in others[-keep:] if manifests[run]}
        removed = [run for run in manifests if run not in kept | readable]
        for run in removed:
            self.files.delete(f"{RUNS}/{run}")
        if not all(manifests.get(run) for run in kept):
            logger.warning("a run that is kept has no readable manifest: all artefacts stay")
            return removed
        used = {
            f"{stage}-{key}"
            for run in kept
            for stage, key in manifests.get(run, {}).get("stages", {}).items()
        }
        for name in self.files.names(ARTEFACTS):
            if name not in used:
                # Not done any more before anything else goes: a kill half-way leaves no trap.
                self.files.delete(f"{ARTEFACTS}/{name}/{DONE}")
                self.files.delete(f"{ARTEFACTS}/{name}")
        return removed

    def _write(self, key: str, record: Mapping[str, Any]) -> None:
        _write_checked(self.files, key, record)

    def manifest_or_nothing(self, run: str) -> dict[str, Any]:
        """Return the manifest of a run, empty if it is damaged or gone."""
        try:
            return self.manifest(run)
        except SadihError:
            return {}


def _plain_files(folder: Path) -> list[Path]:
    """Files that have no checksums of their own, at any depth."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.name != DONE
        and path.suffix != ".sadih"
        and not any(part.endswith((".zarr", "scan")) for part in path.relative_to(folder).parts)
    )


def _replace_link(place: Path, target: Path) -> None:
    """Point a symbolic link somewhere else in one step."""
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = place.with_name(f".{place.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(target)
    scratch.replace(place)


def _write_checked(files: Files, key: str, record: Mapping[str, Any]) -> None:
    """JSON that says its own checksum: a flipped bit is noticed."""
    text = {**record, "crc32c": crc32c(canonical_json(record))}
    files.write(key, [json.dumps(text, indent=1, sort_keys=False, allow_nan=False).encode()])


def _read_checked(files: Files, key: str) -> dict[str, Any]:
    record = dict(load_json(files.read(key, _LIMIT), f"{files.url}/{key}"))
    if record.pop("crc32c", None) != crc32c(canonical_json(record)):
        raise IntegrityError(f"{files.url}/{key} is damaged: its checksum does not fit")
    return record


def is_run_directory(url: str) -> bool:
    """Whether runs have been made there."""
    files = Workspace(url).files
    return bool(files.names(RUNS)) and bool(files.names(ARTEFACTS))


def problems(workspace: Workspace) -> Iterator[str]:
    """Check manifests, records, models, stores and files of every run that is kept."""
    for run in workspace.runs():
        yield from _said(workspace.manifest, run)
        yield from _said(workspace.record, run)
    for artefact in workspace.all_artefacts():
        if artefact.done() is None:
            continue  # unfinished or damaged: the next run makes it anew, and believes none of it
        yield from artefact.problems()
        yield from _own_checksums(artefact)
    for name in workspace.files.names(""):
        if name.endswith(".zarr"):
            yield from _store(workspace.store_url(name))


def _own_checksums(artefact: Artefact) -> Iterator[str]:
    for name in artefact.files.names(artefact.folder):
        if name.endswith(".sadih"):
            yield from _said(read_model, artefact.url(name))
        elif name.endswith(".zarr"):
            yield from _store(artefact.url(name))


def _store(url: str) -> Iterator[str]:
    try:
        yield from open_store(url).verify().problems
    except (SadihError, OSError) as error:
        yield str(error)


def _said(check: Callable[[str], object], of: str) -> Iterator[str]:
    try:
        check(of)
    except (SadihError, OSError) as error:
        yield str(error)
