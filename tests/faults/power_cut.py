"""The machine loses power at any moment of any command that writes.

    python -m tests.faults.power_cut [--trials 2000] [--seed 20]

A command runs once and everything that it does to a folder is written down: names that come and go,
bytes, and every `fsync`. Then the folder is made as a disk may hold it when the power goes after
any of these steps: of what was not synchronised anything may be missing, each name and each file by
itself. A name that was given, taken or moved since its folder was last synchronised may or may not
be so; a file may have any bytes it had since it was last synchronised, be empty, cut short, or full
of zeros. That is less than any file system promises, and all that POSIX does.

What must hold: the folder has what it had before the command or what it has after it, and
``sadih verify`` finds it intact; once the command has ended, it is the latter. The same command,
run again, completes.
"""

from __future__ import annotations

import hashlib
import os
import random
import resource
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np

from sadih_dask.errors import SadihError
from sadih_dask.jobs.inspect import open_store
from sadih_dask.model.model_file import read_model
from tests.faults.commands import CommandFailed, run_here
from tests.faults.jobs import Job, Run, Size
from tests.faults.table import Outcome, main

Node = int
Names = dict[str, Node]
ABSENT, GONE = "absent", -1
FILE, FOLDER = "file", "folder"
CALLS = ("replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir", "symlink")
Loss = Literal["all", "bytes", "torn", "any"]
LOSSES: tuple[Loss, ...] = ("all", "bytes", "torn", "any", "any", "any")
"""What is lost of that which was not synchronised: all; all bytes, no name; parts of bytes; any."""


@dataclass(frozen=True)
class Step:
    """One thing that was done: to a name in a folder, to a file's bytes, or an `fsync`.

    names, data   what a folder or file holds after it; of an `fsync`, what has reached the disk
    """

    node: Node
    names: Names | None = None
    data: bytes | None = None
    synced: bool = False


class Recorder:
    """Writes down what happens in a folder, by looking at it before and after every call.

    Whatever was seen is kept open, so that its number stays its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: list[Step] = []
        self.kinds: dict[Node, str] = {}
        """Of every node FOLDER, FILE, or the target of a link."""
        self._pins: dict[Node, int] = {}
        self._seen: dict[Node, tuple[int, int]] = {}
        self._names: dict[Node, Names] = {}
        self._lock = threading.RLock()
        self.root = self._look()
        for node, names in self._names.items():  # what is there in the beginning is on the disk
            self.steps.append(Step(node, names=dict(names), synced=True))
        latest = {step.node: step.data for step in self.steps if step.data is not None}
        self.steps += [Step(node, data=data, synced=True) for node, data in latest.items()]
        self.first = len(self.steps)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Everything that this process does in the folder, in any thread."""
        with ExitStack() as stack:
            for name in CALLS:
                stack.enter_context(patch(f"os.{name}", self._watched(getattr(os, name))))
            stack.enter_context(patch("os.fsync", self._fsync))
            yield
        with self._lock:
            self._look()
        for pin in self._pins.values():
            os.close(pin)

    def _watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            with self._lock:
                self._look()
                try:
                    return real(*args, **options)
                finally:
                    self._look()

        return call

    def _fsync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        with self._lock:
            self._look()
            node = found.st_ino
            if stat.S_ISDIR(found.st_mode) and node in self._names:
                self.steps.append(Step(node, names=dict(self._names[node]), synced=True))
            elif node in self._pins:
                data = os.pread(self._pins[node], found.st_size, 0)
                self.steps.append(Step(node, data=data, synced=True))

    def _look(self) -> Node:
        """Note what has changed; names that have come before those that have gone."""
        found: dict[Node, Names] = {}
        root = self._walk(self.folder, found)
        gone = []
        for node, names in found.items():
            before = self._names.get(node, {})
            for name in names.keys() | before.keys():
                if names.get(name) != before.get(name):
                    value = {name: names[name]} if name in names else {name: GONE}
                    (self.steps if name in names else gone).append(Step(node, names=value))
        self.steps += gone
        self._names = found
        return root

    def _walk(self, folder: Path, found: dict[Node, Names]) -> Node:
        node = self._pin(folder, os.O_RDONLY | os.O_DIRECTORY)
        self.kinds[node] = FOLDER
        names = found[node] = {}
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                try:
                    names[entry.name] = self._enter(Path(entry.path), found)
                except FileNotFoundError:  # another thread has just removed it
                    continue
        return node

    def _enter(self, path: Path, found: dict[Node, Names]) -> Node:
        if path.is_symlink():
            node = self._pin(path, os.O_PATH | os.O_NOFOLLOW)
            self.kinds[node] = str(path.readlink())
            return node
        if path.is_dir():
            return self._walk(path, found)
        node = self._pin(path, os.O_RDONLY)
        self.kinds[node] = FILE
        status = os.fstat(self._pins[node])
        state = (status.st_size, status.st_mtime_ns)
        if self._seen.get(node) != state:
            self._seen[node] = state
            data = os.pread(self._pins[node], status.st_size, 0)
            self.steps.append(Step(node, data=data))
        return node

    def _pin(self, path: Path, flags: int) -> Node:
        node = path.lstat().st_ino
        if node not in self._pins:
            self._pins[node] = os.open(path, flags | os.O_CLOEXEC)
        return node


class Disk:
    """What a disk may hold after some of the steps."""

    def __init__(self, log: Recorder, n_steps: int) -> None:
        self._log = log
        self._names: dict[Node, dict[str, list[Node]]] = {}
        self._data: dict[Node, list[bytes]] = {}
        for step in log.steps[:n_steps]:
            self._take(step)

    def _take(self, step: Step) -> None:
        """Remember every state since the last that is certain; that one first."""
        if step.data is not None:
            known = self._data.setdefault(step.node, [b""])
            self._data[step.node] = [step.data] if step.synced else [*known, step.data]
            return
        assert step.names is not None
        entries = self._names.setdefault(step.node, {})
        if not step.synced:
            for name, node in step.names.items():
                entries.setdefault(name, [GONE]).append(node)
            return
        for name in entries.keys() | step.names.keys():
            entries[name] = [step.names.get(name, GONE)]

    def write(self, folder: Path, loss: Loss, chance: random.Random) -> None:
        """Put it there."""
        self._bytes: dict[Node, bytes] = {}
        shutil.rmtree(folder, ignore_errors=True)
        self._write(self._log.root, folder, loss, chance)

    def _write(self, node: Node, path: Path, loss: Loss, chance: random.Random) -> None:
        kind = self._log.kinds[node]
        if kind == FILE:
            if node not in self._bytes:
                self._bytes[node] = _left(self._data.get(node, [b""]), loss, chance)
            path.write_bytes(self._bytes[node])
        elif kind != FOLDER:
            path.symlink_to(kind)
        else:
            path.mkdir()
            for name, states in sorted(self._names.get(node, {}).items()):
                held = states[0 if loss == "all" else -1]
                if loss == "any":
                    held = chance.choice(states)
                if held != GONE:
                    self._write(held, path / name, loss, chance)


def _left(states: list[bytes], loss: Loss, chance: random.Random) -> bytes:
    """What is left of a file."""
    if len(states) == 1 or loss in ("all", "bytes"):
        return states[0]
    latest = states[-1]
    torn = [latest[: chance.randrange(len(latest) + 1)], bytes(len(latest))]
    return chance.choice(torn if loss == "torn" else [*states, *torn])


# --- commands that write -------------------------------------------------------------------------

SIZE = Size(n_rows=400, chunk_rows=100, block_rows=40, n_features=3, anchors=4, n_queries=6, bits=8)


@dataclass
class Work:
    """A command, what was run before it, and what tells one state of the folder from another.

    once   whether it is refused, and rightly, when it is done already
    """

    name: str
    before: tuple[tuple[Any, ...], ...]
    words: tuple[Any, ...]
    targets: tuple[str, ...]
    once: bool = False


class Bench:
    """A folder with sources, and one beside it that stands for the disk."""

    def __init__(self, folder: Path) -> None:
        self.disk, self.sources = folder / "disk", folder / "sources"
        self.job = Job(self.sources, self.disk, SIZE)
        self.job.make_sources()
        for name, first, n in (("x", 0, SIZE.n_rows), ("more", 1000, 7), ("gone", 3, 5)):
            np.save(self.sources / f"{name}-ids.npy", np.arange(first, first + n))
        np.save(self.sources / "more.npy", np.load(self.sources / "x.npy")[:7] + 1)
        np.save(self.sources / "more-labels.npy", np.load(self.sources / "x-labels.npy")[:7])
        run = Run(self.job, self.disk / "run")
        self.first, self.second = folder / "first.toml", folder / "second.toml"
        text = run.toml().replace("[run]", "[run]\nkeep = 1")
        self.first.write_text(text)
        self.second.write_text(text.replace("n_bits = 8", "n_bits = 12"))

    def works(self) -> list[Work]:
        """One of each."""
        s, m, c = (self.disk / name for name in ("s.zarr", "m.sadih", "c.zarr"))
        npz, finds = self.disk / "finds.npz", self.disk / "finds.zarr"
        x = self._rows("x")
        ingest = ("ingest", *x[0], s, *x[1], "--chunk-rows", SIZE.chunk_rows)
        more = self._rows("x", "more")
        append = ("ingest", *more[0], s, *more[1], "--append")
        other = self._rows("more")
        overwrite = ("ingest", *other[0], s, *other[1], "--overwrite")
        delete = ("delete", s, "--ids", self.sources / "gone-ids.npy")
        fit = tuple(self.job.words("fit"))
        encode, export = ("encode", s, m, c), ("export", c, self.disk / "c.faiss")
        search = ("search", c, c, "--k", 3, "-o")
        first, second = ("run", self.first), ("run", self.second)
        kept = (*second, "--set", "run.keep=2")
        learnt = (ingest, fit)
        runs = self.disk / "run"
        return [
            Work("ingest", (), ingest, ("s.zarr",)),
            Work("append", (ingest,), append, ("s.zarr",)),
            Work("overwrite", (ingest,), overwrite, ("s.zarr",)),
            Work("delete", (ingest, append), delete, ("s.zarr",), once=True),
            Work("compact", (ingest, append, delete), ("compact", s, "--purge"), ("s.zarr",)),
            Work("restore", (ingest, append), ("restore", s, 1), ("s.zarr",)),
            Work("fit", (ingest,), fit, ("m.sadih",)),
            Work("fit again", (*learnt, append), fit, ("m.sadih",)),
            Work("encode", learnt, encode, ("c.zarr",)),
            Work("encode again", (*learnt, encode, append), encode, ("c.zarr",)),
            Work("export", (*learnt, encode), export, ("c.faiss",), once=True),
            Work("search", (*learnt, encode), (*search, npz), (npz.name,), once=True),
            Work("search, a folder", (*learnt, encode), (*search, finds), (finds.name,), once=True),
            Work("run", (), first, ("run",)),
            Work("run again", (first,), second, ("run",)),
            Work("rollback", (first, kept), ("rollback", runs), ("run",), once=True),
        ]

    def _rows(self, *names: str) -> tuple[list[Path], list[Any]]:
        """Files of features, and options for what belongs to them."""
        options: list[Any] = []
        for name in names:
            options += ["--labels", self.sources / f"{name}-labels.npy"]
            options += ["--ids", self.sources / f"{name}-ids.npy"]
        return [self.sources / f"{name}.npy" for name in names], options

    def state(self, target: str) -> str:
        """A hash of what somebody finds there who has just come, ABSENT if it is nothing whole."""
        path = self.disk / target
        try:
            if target == "run":
                return self._latest(path)
            if target == "finds.zarr":
                members = {str(one): one.read_bytes() for one in path.rglob("*") if one.is_file()}
                found = repr(sorted(members.items())).encode() if members else b""
            elif path.suffix == ".zarr":
                store = open_store(path)
                found = repr([store.read(name).tobytes() for name in store.arrays]).encode()
            elif path.suffix == ".sadih":
                found = read_model(path).fingerprint.encode()
            else:
                found = path.read_bytes()
        except (SadihError, FileNotFoundError):
            return ABSENT
        return hashlib.sha256(found).hexdigest() if found else ABSENT

    def _latest(self, path: Path) -> str:
        """Of all that the latest run consists of."""
        if not os.path.lexists(path / "latest"):
            return ABSENT
        try:
            return repr(Run(self.job, path).digests())
        except (SadihError, OSError) as error:
            raise AssertionError(f"latest is not whole: {error}") from error

    def verify(self, target: str) -> None:
        """AssertionError if it is damaged."""
        if target in ("s.zarr", "c.zarr", "m.sadih", "run"):
            try:
                run_here("verify", self.disk / target, "--quiet")
            except CommandFailed as failure:
                raise AssertionError(f"verify: {failure}") from failure


class Trials:
    """One command, recorded, and power cuts in it."""

    def __init__(self, bench: Bench, work: Work) -> None:
        self._bench, self._work = bench, work
        shutil.rmtree(bench.disk, ignore_errors=True)
        bench.disk.mkdir()
        with patch("os.fsync"):
            for words in work.before:
                run_here(*words)
        self._old = self._state()
        self.log = Recorder(bench.disk)
        with self.log.recording():
            run_here(*work.words)
        self._new = self._state()
        assert work.name in ("compact", "rollback") or self._new != self._old, "nothing is done"

    @property
    def cuts(self) -> range:
        """Numbers of steps after which the power may go."""
        return range(self.log.first, len(self.log.steps) + 1)

    def cut(self, n_steps: int, loss: Loss, chance: random.Random) -> None:
        """Let it go there; AssertionError if what must hold does not."""
        Disk(self.log, n_steps).write(self._bench.disk, loss, chance)
        found = self._state()
        assert found in (self._old, self._new), "neither what was there before nor what comes after"
        if n_steps == len(self.log.steps):
            assert found == self._new, "the command had ended, and what it did is gone"
        self._verify(found)
        try:
            run_here(*self._work.words)
        except CommandFailed as failure:
            if not (self._work.once and found == self._new):
                text = f"repeated: exit code {failure.code}: {str(failure)[-600:]}"
                raise AssertionError(text) from failure
        again = self._state()
        if not (self._work.once and found == self._new):
            assert again == self._new, "repeated, it leads to something else"
        self._verify(again)

    def _state(self) -> tuple[str, ...]:
        return tuple(self._bench.state(target) for target in self._work.targets)

    def _verify(self, found: tuple[str, ...]) -> None:
        for target, state in zip(self._work.targets, found, strict=True):
            if state != ABSENT:
                self._bench.verify(target)


def run(folder: Path, trials: int, seed: int) -> Outcome:
    """Cut every command as often as any other, at moments that are spread over its steps."""
    return cut(folder, trials, seed)


def cut(folder: Path, trials: int, seed: int, only: str | None = None) -> Outcome:
    """The row, or one command of it."""
    outcome = Outcome("power cuts at any step")
    chance = random.Random(seed)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    bench = Bench(folder)
    works = [work for work in bench.works() if only in (None, work.name)]
    share, n_steps = max(1, trials // len(works)), 0
    for work in works:
        ordeal = Trials(bench, work)
        cuts = ordeal.cuts
        n_steps += len(cuts) - 1
        for number in range(share):
            at = cuts[-1] if number == 0 else cuts[chance.randrange(len(cuts))]
            loss = LOSSES[number % len(LOSSES)]
            outcome.trials += 1
            try:
                with patch("os.fsync"):
                    ordeal.cut(at, loss, chance)
            except (AssertionError, SadihError, OSError) as error:
                place = f"{work.name}, step {at - cuts[0]} of {len(cuts) - 1}, {loss} lost"
                outcome.failures.append(f"{place}: {type(error).__name__} {error}")
    outcome.figures = {"commands": f"{len(works)}", "steps": f"{n_steps:,}"}
    return outcome


if __name__ == "__main__":
    main(run, trials=2000)
