"""Processes that may be killed, without a second of imports each.

`Forks` starts one process that has the package imported, and has it fork a child for every command.
A child is a process like any other: it runs ``sadih_dask.cli.main`` and can be killed. Before that
it may be told to kill itself at an exact moment, *before* or *after* it gives a file its name for
the k-th time (by a rename that replaces, or by a link that does not: all that this package commits,
it commits by one of them), and to keep a tally of what it reads and names, which outlives it.

Workers of a cluster keep the same tally if they are started with the environment `observed`, and
each leaves a file with its process number where it can be seen that it has joined.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0
"""Seconds that a command of these small jobs may take at most: more is a hang."""


class Hang(TimeoutError):
    """A command that did not end."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, or minus the signal; what it said; how long it took."""

    code: int
    said: str
    seconds: float


@dataclass
class Child:
    """A command that runs."""

    forks: Forks
    pid: int
    log: Path
    began: float

    def kill(self) -> None:
        """End it without warning; nothing if it has ended."""
        if self.forks._ask(poll=self.pid) is None:
            os.kill(self.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self.forks._ask(poll=self.pid)

    def wait(self, patience: float = PATIENCE) -> Ended:
        """Wait for its end; Hang if that does not come."""
        while (code := self.poll()) is None:
            if time.monotonic() - self.began > patience:
                self.kill()
                raise Hang(f"no end after {patience:.0f} s: {self.log.read_text()[-2000:]}")
            time.sleep(0.003)
        return Ended(code, self.log.read_text(), time.monotonic() - self.began)


class Forks:
    """A context manager; `start` runs a command of the package in a process of its own."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self._folder = folder
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forks"],
            cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self,
        *words: object,
        kill: tuple[Literal["before", "after"], int] | None = None,
        tally: Path | None = None,
        environment: dict[str, str] | None = None,
        script: str | None = None,
    ) -> Child:
        """Fork a child that runs ``sadih WORDS``, or a script with these arguments.

        kill    kills itself before or after that file gets its name, counted from 0
        tally   a file to which it adds a line for every chunk it reads and every file it names
        """
        self._count += 1
        log = self._folder / f"said-{self._count}.txt"
        order = {
            "words": [str(word) for word in words],
            "log": str(log),
            "kill": kill,
            "tally": None if tally is None else str(tally),
            "environment": environment or {},
            "script": script,
        }
        return Child(self, self._ask(order=order), log, time.monotonic())

    def run(self, *words: object, **options: Any) -> Ended:
        """Run a command to its end."""
        return self.start(*words, **options).wait()

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


def read_tally(path: Path) -> Counter[str]:
    """What was done how often: "read URL ARRAY CHUNK" and "name PATH"."""
    return Counter(path.read_text().splitlines()) if path.exists() else Counter()


OBSERVED = "SADIH_FAULTS_OBSERVED"
TALLY = "tally"


def observed(folder: Path) -> dict[str, str]:
    """Environment of workers that tell, in a folder, what they read and that they have joined."""
    return {OBSERVED: str(folder), "DASK_DISTRIBUTED__WORKER__PRELOAD": "tests.faults.forks"}


async def dask_setup(worker: Any) -> None:
    """What a worker does first when it is observed."""
    folder = Path(os.environ[OBSERVED])
    _watch(None, str(folder / TALLY))

    async def tell() -> None:
        while worker.status.name != "running":
            await asyncio.sleep(0.02)
        (folder / str(os.getpid())).touch()

    worker.told = asyncio.ensure_future(tell())


def _serve() -> None:
    """Answer requests until there are no more; a child comes back from here to run its order."""
    ended: dict[int, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        answer: Any = None
        if "order" in request:
            answer = os.fork()
            if answer == 0:
                return _become(request["order"])
        else:
            pid = request["poll"]
            if pid not in ended:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    ended[pid] = os.waitstatus_to_exitcode(status)
            answer = ended.get(pid)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return None


def _become(order: dict[str, Any]) -> None:
    _die_with_parent()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, place)
    sys.stdin = open(0)  # noqa: SIM115 - for as long as the process lives
    os.environ.update(order["environment"])
    sys.argv = ["sadih", *order["words"]]
    _watch(order["kill"], order["tally"])
    if order["script"] is not None:
        exec(compile(order["script"], "script", "exec"), {"__name__": "script"})
        return
    from sadih_dask.cli import main

    main()


def _die_with_parent() -> None:
    """Leave no process behind, whatever becomes of the one that started it."""
    parent_death_signal = 1
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


def _watch(kill: tuple[str, int] | None, tally: str | None) -> None:
    from sadih_dask.stores import reader

    lines = None if tally is None else os.open(tally, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    named = iter(range(sys.maxsize))
    real_read = reader.read_chunk

    def note(text: str) -> None:
        if lines is not None:
            os.write(lines, f"{text}\n".encode())

    def watched(real: Any) -> Any:
        def name(source: Any, target: Any, **options: Any) -> None:
            number = next(named)
            for when in ("before", "after"):
                if kill is not None and tuple(kill) == (when, number):
                    os.kill(os.getpid(), signal.SIGKILL)
                if when == "before":
                    real(source, target, **options)
                    note(f"name {os.fspath(target)}")

        return name

    def read_chunk(snapshot: Any, segment: Any, layout: Any, chunk: int, *rest: Any) -> None:
        note(f"read {snapshot.files.url}/{segment.path} {layout.name} {chunk}")
        real_read(snapshot, segment, layout, chunk, *rest)

    os.replace = watched(os.replace)
    os.link = watched(os.link)
    reader.read_chunk = read_chunk  # type: ignore[assignment]


def _import_everything() -> None:
    """Import what commands need. No thread may run before a fork; jemalloc's can be forked."""
    import importlib

    for name in ("distributed", "faiss", "matplotlib.figure", "sadih_dask.runs.run"):
        importlib.import_module(name)
    for command in ("ingest", "models", "codes", "stores", "runs"):
        importlib.import_module(f"sadih_dask.cli.{command}")
    names = [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
    started = [name for name in names if not name.startswith("jemalloc")]
    assert len(started) == 1, f"{len(started)} threads before the first fork"


if __name__ == "__main__":
    _die_with_parent()
    _import_everything()
    _serve()
