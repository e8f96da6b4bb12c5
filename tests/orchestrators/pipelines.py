"""A small real pipeline for orchestrators to run."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

UNREACHABLE = "gate.map_min=0.99999"

_DIGITS = 'kind = "digits"'
_FILES = """
features = "{folder}/*.csv"
labels = "{folder}/*.txt"
hold_out = 0.2
on_error = "skip"
"""
_TEXT = """
[run]
directory = "{directory}"

[source]
{source}

[model]
n_bits = 8
anchors = 50

[report]
enabled = {report}
"""


@dataclass(frozen=True)
class Digits:
    """A configuration file of its own, and its run directory."""

    config: str
    directory: Path

    @classmethod
    def under(cls, folder: Path, *, report: bool = False, source: str = _DIGITS) -> Digits:
        """Write the configuration."""
        config, directory = folder / "Some Digits.toml", folder / "runs"
        said = {"directory": directory, "report": str(report).lower(), "source": source}
        config.write_text(_TEXT.format(**said))
        return cls(str(config), directory)

    @classmethod
    def one_of_two_files(cls, folder: Path) -> Digits:
        """Take rows from a file that can be read, and skip `bad.csv`."""
        rows = [f"{n % 7},{n % 5},{n % 3}" for n in range(100)]
        for name, lines in (("a", rows), ("bad", ["1,2,many"] * 100)):
            (folder / f"{name}.csv").write_text("\n".join(lines))
            (folder / f"{name}.txt").write_text("\n".join("ab"[n % 3 > 0] for n in range(100)))
        return cls.under(folder, source=_FILES.format(folder=folder))

    @contextmanager
    def interrupted_once(self, victim: Callable[[], int] | None = None) -> Iterator[None]:
        """Send SIGTERM when rows are ingested: to the command, or to the process that called it."""
        sent, over = threading.Event(), threading.Event()

        def watch() -> None:
            while not over.is_set() and not self._has_ingested():
                time.sleep(0.01)
            if not over.is_set():
                os.kill((victim or self.holder)(), signal.SIGTERM)
                sent.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
            assert sent.is_set(), "the run was never interrupted"
        finally:
            over.set()
            watcher.join()

    def was_stopped(self) -> bool:
        """Whether no process runs this any more, and none has completed it."""
        return not self._lock.exists() and not (self.directory / "latest").exists()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the run directory as another run would."""
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with self._lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _has_ingested(self) -> bool:
        return any(self.directory.glob("artefacts/ingest-*/done.json"))

    def holder(self) -> int:
        """The process that runs this now, from the lock of the run directory."""
        return int(json.loads(self._lock.read_text())["pid"])

    @property
    def _lock(self) -> Path:
        return self.directory / ".lock"


def actions(record: dict[str, object]) -> dict[str, str]:
    """What a run did in each stage."""
    return {stage["name"]: stage["action"] for stage in record["stages"]}  # type: ignore[attr-defined]


DONE = dict.fromkeys(("ingest", "fit", "encode", "evaluate"), "done")
REUSED = dict.fromkeys(DONE, "reused")
RESUMED = DONE | {"ingest": "reused"}
