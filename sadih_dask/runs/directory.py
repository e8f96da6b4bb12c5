"""The directory of a pipeline's runs.

::

    DIRECTORY/
      latest            -> runs/<id> of the last complete run; behind a URL, a file that begins
                        with the id
      runs/<id>/        manifest.json, record.json, log.txt, and links to what the run consists of
      artefacts/<stage>-<key>/   what a stage made, and done.json, written last
      checked.json      the last call that did nothing, and why
      rejected.json     results that were rolled back, and do not become the latest again

Artefacts are named by a hash of everything that decides them. So a stage is current exactly if its
artefact is there and done, work that a killed run has finished is found again by the next, and two
runs that agree in a stage share it. A run only points at artefacts, and becomes visible in one
step, when `latest` is moved.

Two runs at once are told to wait (`locked`), but nothing rests on that: one may sleep for longer
than anybody waits. `latest` is moved on condition that it, and all that old runs left, is as it was
when the run began. Behind a URL, where a removal cannot be waited for, `latest` names what is being
removed before it goes; those names are not used again before they are gone.

A run's manifest names its artefacts, every folder that it has begun, and its parent: the run that
was the latest when it began. What is older than what follows from parents and from the numbers in
the ids, never from a clock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sadih_dask.errors import ConflictError, FormatError, IntegrityError, RunBusyError, SadihError
from sadih_dask.files import conditional
from sadih_dask.files.filesystem import (
    LocalFiles,
    connect,
    make_folder,
)
from sadih_dask.files.lease import WriterLock, is_held
from sadih_dask.runs.artefact import (
    ARTEFACTS,
    DONE,
    JSON_BYTES,
    Artefact,
    checked_json,
    damage,
    is_name,
    read_checked,
    write_checked,
)

logger = logging.getLogger(__name__)

RUNS, LATEST = "runs", "latest"
CHECKED, REJECTED = "checked.json", "rejected.json"
MANIFEST, RECORD, LOG = "manifest.json", "record.json", "log.txt"
_RUN = re.compile(r"\d{8}T\d{6}Z-(\d{1,9})")
_ARTEFACT = re.compile(r"[a-z]+-[0-9a-z]+")


@dataclass(frozen=True)
class Latest:
    """Which run is the latest, as it was seen: whoever moves it must have seen what is there.

    generation  grows with every move and every removal
    removing    folders whose removal has begun, and may go on at any moment
    """

    run: str | None
    generation: int = 0
    removing: frozenset[str] = frozenset()
    version: conditional.Version | None = field(default=None, compare=False)

    @classmethod
    def of(cls, version: conditional.Version | None) -> Latest:
        """Take one from a file: a line each for the run, the generation and every folder."""
        run, generation, *removing = [*(version.data if version else b"").decode().split("\n"), ""]
        return cls(run or None, int(generation or 0), frozenset(filter(None, removing)), version)

    def to_bytes(self) -> bytes:
        """The file."""
        return "\n".join((self.run or "", str(self.generation), *sorted(self.removing))).encode()


class RunDirectory:
    """Runs and what they have made, in a local folder or behind a URL."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.files = connect(url, follow_links=False)
        self.url = self.files.url

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only run here; RunBusyError names the other one."""
        try:
            lock = WriterLock(self.files).acquire()
        except ConflictError as error:
            raise RunBusyError(f"another run is at work: {error}. This one did nothing") from error
        try:
            yield
        finally:
            lock.release()

    def is_held(self) -> bool:
        """Whether a run is at work here, as far as that can be seen from this host."""
        return is_held(self.files)

    def artefact(self, stage: str, key: str) -> Artefact:
        """The artefact of a stage, finished or not."""
        return Artefact(self.files, stage, key)

    def artefacts(self, stage: str) -> list[Artefact]:
        """All artefacts of a stage, finished or not."""
        names = filter(_ARTEFACT.fullmatch, self.files.names(ARTEFACTS))
        found = (name.split("-") for name in names)
        return [self.artefact(stage, key) for of, key in found if of == stage]

    # -- runs -------------------------------------------------------------------------------------

    def runs(self) -> list[str]:
        """All runs in the order in which they began."""
        return sorted(filter(_RUN.fullmatch, self.files.names(RUNS)), key=_number)

    def begin_run(self) -> str:
        """Make the folder of a new run; its id says when, and as a number which comes first."""
        number = max(map(_number, self.runs()), default=0)
        while True:
            number += 1
            run = f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}-{number}"
            first = {"stages": {}, "id": run, "complete": False, "parent": self.latest()}
            if self.files.create(f"{RUNS}/{run}/{MANIFEST}", [checked_json(first)]):
                self.files.sync(f"{RUNS}/{run}")
                return run

    def write_manifest(self, run: str, manifest: Mapping[str, Any]) -> None:
        """Write which artefacts a run consists of, which it has begun, and what it follows."""
        write_checked(self.files, f"{RUNS}/{run}/{MANIFEST}", {"stages": {}, **manifest})

    def manifest(self, run: str) -> dict[str, Any]:
        """Return the manifest of a run; IntegrityError if it is damaged."""
        key = f"{RUNS}/{run}/{MANIFEST}"
        try:
            return _checked_manifest(read_checked(self.files, key), f"{self.url}/{key}")
        except FileNotFoundError as error:
            there = self.runs()
            if run in there:
                raise IntegrityError(
                    f"{self.url}/{RUNS}/{run}/{MANIFEST} is missing; delete the rest of that run"
                ) from error
            raise FormatError(
                f"{self.url} has no run {run!r}; it has {', '.join(there) or 'none'}"
            ) from error

    def manifest_or_nothing(self, run: str) -> dict[str, Any]:
        """Return the manifest of a run, empty if it is damaged or gone."""
        try:
            return self.manifest(run)
        except SadihError:
            return {}

    def write_record(self, run: str | None, record: Mapping[str, Any]) -> None:
        """Write what happened in a run, or in a call that did nothing."""
        write_checked(self.files, CHECKED if run is None else f"{RUNS}/{run}/{RECORD}", record)

    def record(self, run: str) -> dict[str, Any] | None:
        """What happened in a run; None if it was killed before it could say."""
        try:
            return read_checked(self.files, f"{RUNS}/{run}/{RECORD}")
        except FileNotFoundError:
            return None

    def link(self, run: str, name: str, artefact: Artefact) -> str:
        """Make a file of an artefact reachable from the run's folder; return its address."""
        if isinstance(self.files, LocalFiles):
            link = Path(self.files.path(f"{RUNS}/{run}/{name}"))
            _replace_link(link, Path("..", "..", artefact.folder, name))
            return str(link)
        return artefact.url(name)

    # -- latest -----------------------------------------------------------------------------------

    def latest(self) -> str | None:
        """The id of the last complete run, if there is one."""
        return self.seen().run

    def seen(self) -> Latest:
        """What `latest` is now, as one needs it to move it later."""
        if not isinstance(self.files, LocalFiles):
            try:
                found = Latest.of(conditional.read(self.files, LATEST, JSON_BYTES))
            except ValueError as error:
                raise IntegrityError(f"{self.url}/{LATEST} is damaged: {error}") from error
            if found.run is not None and not _is_run(found.run):
                raise IntegrityError(f"{self.url}/{LATEST} is damaged: it names no run")
            return found
        link = Path(self.files.path(LATEST))
        if link.exists() and not link.is_symlink():
            raise FormatError(
                f"{link} is not a link to a run: the directory was copied without links. Copy "
                "it with them (cp -a), or remove this and choose a run with: sadih rollback"
            )
        try:
            target = link.readlink()
        except FileNotFoundError:
            return Latest(None)
        if target != Path(RUNS, target.name) or not _is_run(target.name):
            raise IntegrityError(
                f"{link} leads to {str(target)[:80]!r}, which is no run of this directory. Remove "
                "it and choose a run with: sadih rollback"
            )
        return Latest(target.name)

    def move_latest(self, run: str, since: Latest) -> None:
        """Move `latest` in one step; ConflictError if anybody has moved it or removed something."""
        with self._waiting_for_others():
            now = self.check_unmoved(since)
            if not self._replace(now, run, now.removing):
                self.check_unmoved(since)
                raise ConflictError(f"{self.url}: latest is being moved by others. Begin again")

    def check_unmoved(self, since: Latest) -> Latest:
        """Return what `latest` is now; ConflictError if another run has come between."""
        now = self.seen()
        if now.run != since.run:
            raise ConflictError(
                f"{self.url}: latest is {now.run}, and was {since.run} when this began. Begin again"
            )
        if now.generation != since.generation:
            raise ConflictError(
                f"{self.url}: another run has removed old runs since this began. Begin again"
            )
        return now

    def _replace(self, now: Latest, run: str | None, removing: Iterable[str]) -> bool:
        """Replace `latest` if it is still as it is now; say whether that was done."""
        if isinstance(self.files, LocalFiles):  # nobody else can: see below
            if run is not None and run != now.run:
                _replace_link(Path(self.files.path(LATEST)), Path(RUNS, run))
                self.files.sync("")
            return True
        new = Latest(run, now.generation + 1, frozenset(removing))
        return conditional.replace(self.files, LATEST, new.to_bytes(), now.version)

    def _waiting_for_others(self) -> contextlib.AbstractContextManager[object]:
        """On a file system, until they have moved `latest` or removed what they wanted to."""
        if isinstance(self.files, LocalFiles):
            return conditional.exclusive(Path(self.files.path(f".{LATEST}.swap")))
        return contextlib.nullcontext()

    def lineage(self, run: str | None) -> list[str]:
        """A run and those it came after, as far as they are kept: each is the next one's child."""
        found: list[str] = []
        while run is not None and run not in found and (known := self.manifest_or_nothing(run)):
            found.append(run)
            run = known.get("parent")
        return found

    def roll_back(self, run: str | None) -> tuple[str | None, str]:
        """Make a run the latest again, by default the one before; return both.

        What only the former latest came after is remembered as rejected. A run that is not
        complete, or of which something is gone, is refused.
        """
        seen = self.seen()
        before = seen.run
        chosen = run or self.complete_before(before)
        manifest = self.manifest(chosen)
        if not manifest["complete"]:
            raise FormatError(f"run {chosen} of {self.url} is not complete; choose another")
        if f"{RUNS}/{chosen}" in seen.removing:
            raise FormatError(f"run {chosen} of {self.url} is being removed; choose another")
        for stage, key in manifest["stages"].items():
            for problem in self.artefact(stage, key).missing():
                raise IntegrityError(f"run {chosen} cannot become the latest: {problem}")
        kept = self.lineage(chosen)
        undone = [self.manifest(gone) for gone in self.lineage(before) if gone not in kept]
        known = conditional.read(self.files, REJECTED, JSON_BYTES)
        rejected = [*self.rejected(), *(one["stages"] for one in undone if one["complete"])]
        rejected = [stages for stages in rejected if stages != manifest["stages"]]
        # Before it is moved: else the next run could make the same result the latest once more
        text = checked_json({"stages": rejected})
        if not conditional.replace(self.files, REJECTED, text, known):
            raise ConflictError(f"{self.url}: somebody else rolls back at this moment. Look again")
        try:
            self.move_latest(chosen, since=seen)
        except ConflictError:  # nothing was rolled back
            now = conditional.read(self.files, REJECTED, JSON_BYTES)
            if now is not None and now.data == text:
                former = known.data if known is not None else checked_json({"stages": []})
                conditional.replace(self.files, REJECTED, former, now)
            raise
        return before, chosen

    def complete_before(self, latest: str | None) -> str:
        """The complete run that the latest came after, as far as none was rolled back."""
        if latest is None:
            there = ", ".join(self.runs()) or "none"
            raise FormatError(f"{self.url} has no latest run; name one that there is: {there}")
        unwanted = self.rejected()
        for run in self.lineage(latest)[1:]:
            manifest = self.manifest(run)
            if manifest["complete"] and manifest["stages"] not in unwanted:
                return run
        raise FormatError(f"{self.url} has no complete run before {latest}")

    def rejected(self) -> list[dict[str, str]]:
        """Keys of the stages of results that were rolled back."""
        try:
            found = read_checked(self.files, REJECTED).get("stages")
        except FileNotFoundError:
            return []
        if not isinstance(found, list):
            raise IntegrityError(f"{self.url}/{REJECTED} does not list results; remove it")
        return found

    def prune(self, keep: int, current: str) -> list[str]:
        """Remove old runs, and artefacts of runs to which no complete one refers any more.

        So many complete runs stay: first those that the latest came after, then the newest others.
        Of runs that are not complete the last so many leave their records and logs. Only folders
        that a manifest names are removed, and nothing if `latest` is moved before it begins.
        """
        with self._waiting_for_others():
            return self._prune(keep, current, self.seen())

    def _prune(self, keep: int, current: str, seen: Latest) -> list[str]:
        manifests = {run: self.manifest_or_nothing(run) for run in self.runs()}
        complete = [run for run in reversed(manifests) if manifests[run].get("complete")]
        latest = seen.run
        line = [run for run in self.lineage(latest) if run in complete]
        ordered = [*line, *(run for run in complete if run not in line)]
        kept = {*ordered[:keep], current} | ({latest} if latest else set())
        others = [run for run in manifests if run not in complete and run not in kept]
        readable = {run for run in others[-keep:] if manifests[run]}
        removed = [run for run in manifests if run not in kept | readable]
        if not all(manifests.get(run) for run in kept):
            logger.warning("a run that is kept has no readable manifest: nothing is removed")
            return []
        used = {name for run in kept for name in _named_in(manifests[run])}
        named = {name for manifest in manifests.values() for name in _named_in(manifest)}
        artefacts = [f"{ARTEFACTS}/{name}" for name in sorted(named - used)]
        doomed = {*artefacts, *(f"{RUNS}/{run}" for run in removed)}
        if not doomed:
            return []
        if not self._replace(seen, latest, seen.removing | doomed):
            logger.warning("another run has moved latest meanwhile: nothing is removed")
            return []
        for run in removed:
            if manifests[run].get("complete"):  # nobody goes back to what is being removed
                self.write_manifest(run, {**manifests[run], "complete": False})
        for folder in artefacts:
            # Not done any more before anything else goes: a kill half-way leaves no trap.
            self.files.delete(f"{folder}/{DONE}")
            if self.files.names(folder):
                self.files.sync(folder)
            self.files.delete(folder)
        for run in removed:
            self._remove_run(run)
        self._have_removed(doomed - seen.removing)
        return removed

    def _remove_run(self, run: str) -> None:
        """Remove the folder of a run; what is left by a kill half-way still has its manifest."""
        folder = f"{RUNS}/{run}"
        others = [name for name in self.files.names(folder) if name != MANIFEST]
        for name in others:
            self.files.delete(f"{folder}/{name}")
        if others:
            self.files.sync(folder)
        self.files.delete(folder)

    def _have_removed(self, doomed: Iterable[str]) -> None:
        """Set names free again; those that another run was removing before may still go.

        What has begun meanwhile goes on, so the generation stays.
        """
        while not isinstance(self.files, LocalFiles):
            now = self.seen()
            left = replace(now, removing=now.removing.difference(doomed))
            if conditional.replace(self.files, LATEST, left.to_bytes(), now.version):
                return

    # -- verifying --------------------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        """Name all that manifests refer to and that is not there as it was written."""
        # One that was killed at its beginning, or was removed before it had written its log
        runs = [run for run in self.runs() if not self._is_bare(run)]
        manifests = {run: self.manifest_or_nothing(run) for run in runs}
        for run in runs:
            yield from _failures(self.manifest, run)
            yield from _failures(self.record, run)
        complete = [run for run, manifest in manifests.items() if manifest.get("complete")]
        if not runs:
            yield f"{self.url} has no runs"
        if (latest := self.latest()) is None and complete:
            yield f"{self.url} has complete runs and no latest; make one the latest again"
        if latest is not None and latest not in runs:
            yield f"{self.url}: latest is run {latest}, which is gone; make another the latest"
        elif latest is not None and manifests[latest] and latest not in complete:
            yield f"{self.url}: latest is run {latest}, which is not complete"
        # One that another has overtaken just before it became the latest may have lost what it made
        line, undone = self.lineage(latest), self.rejected()
        kept = [r for r in complete if not line or r in line or manifests[r]["stages"] in undone]
        for run in kept:
            if RECORD not in self.files.names(f"{RUNS}/{run}"):
                yield f"{self.url}/{RUNS}/{run}/{RECORD} is missing"
            yield from self._astray(run, manifests[run])
        named = {key for run in kept for key in manifests[run]["stages"].items()}
        for stage, key in sorted(named):
            yield from self.artefact(stage, key).problems()
        for name in sorted({name for run in kept for name in manifests[run].get("stores", ())}):
            yield from damage(self.files, name)

    def _astray(self, run: str, manifest: Mapping[str, Any]) -> Iterator[str]:
        """Links of a run that are gone, or lead to what another has made."""
        if not isinstance(self.files, LocalFiles):
            return
        folder = Path(self.files.path(f"{RUNS}/{run}"))
        made = [f"../../{ARTEFACTS}/{stage}-{key}" for stage, key in manifest["stages"].items()]
        for name in manifest.get("files", {}):
            link = folder / name
            if not link.is_symlink() or link.readlink() not in {Path(at, name) for at in made}:
                yield f"{link} is no link to {name} of this run; restore the folder from a copy"

    def _is_bare(self, run: str) -> bool:
        names = self.files.names(f"{RUNS}/{run}")
        return all(name.startswith(".") or name == LOG for name in names)


def is_run_directory(url: str) -> bool:
    """Whether runs have been made there."""
    return not {RUNS, LATEST}.isdisjoint(connect(url, follow_links=False).names(""))


def _is_run(name: object) -> bool:
    return isinstance(name, str) and _RUN.fullmatch(name) is not None


def _checked_manifest(manifest: dict[str, Any], where: str) -> dict[str, Any]:
    """Refuse names that could lead elsewhere, and what `write_manifest` does not write."""
    stages, parent, stores = (manifest.get(name) for name in ("stages", "parent", "stores"))
    if (
        not isinstance(stages, dict)
        or not all(isinstance(key, str) for key in stages.values())
        or not all(_ARTEFACT.fullmatch(f"{stage}-{key}") for stage, key in stages.items())
        or not (parent is None or _is_run(parent))
        or not all(isinstance(manifest.get(name, []), list) for name in ("stores", "begun"))
        or not all(is_name(name) for name in stores or ())
        or not isinstance(manifest.get("files", {}), dict)
        or not all(map(is_name, manifest.get("files", {})))
        or not isinstance(manifest.get("complete"), bool)
    ):
        raise IntegrityError(f"{where} is not that of a run; restore it from a copy")
    return manifest


def _number(run: str) -> int:
    return int(run.rpartition("-")[2])


def _named_in(manifest: Mapping[str, Any]) -> set[str]:
    """Names of all artefacts that a run refers to or has begun."""
    named = [f"{stage}-{key}" for stage, key in manifest.get("stages", {}).items()]
    named += [name for name in manifest.get("begun", ()) if isinstance(name, str)]
    return {name for name in named if _ARTEFACT.fullmatch(name)}


def _replace_link(link: Path, target: Path) -> None:
    """Point a symbolic link somewhere else in one step."""
    make_folder(link.parent)
    scratch = link.with_name(f".{link.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(target)
    scratch.replace(link)


def _failures(check: Callable[[str], object], of: str) -> Iterator[str]:
    try:
        check(of)
    except (SadihError, OSError) as error:
        yield str(error)
