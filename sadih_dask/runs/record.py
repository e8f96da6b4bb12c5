"""What happened in a run: its record as JSON, its log, and the records of two runs compared."""

from __future__ import annotations

import io
import logging
import os
import resource
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self, TextIO

from sadih_dask.cluster.versions import versions_here
from sadih_dask.files.filesystem import LocalFiles
from sadih_dask.files.redaction import RedactingFilter, redact_values
from sadih_dask.runs.directory import LOG, RUNS, RunDirectory

logger = logging.getLogger(__name__)

FORMAT, VERSION = "sadih-run", 1
MOST_CLASSES = 10_000
_MOST_NAMED = 5

Action = Literal["done", "reused", "skipped"]
Outcome = Literal["complete", "nothing to do", "refused", "failed", "interrupted"]


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class StageRecord:
    """One stage of a run: what was done, why, and how much.

    processor_seconds   of this process; those of workers elsewhere are not among them
    """

    name: str
    action: Action
    reason: str
    fingerprint: str | None = None
    seconds: float = 0.0
    processor_seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        times = {name: round(getattr(self, name), 3) for name in ("seconds", "processor_seconds")}
        found = {**vars(self), **self.facts, **times}
        return {name: value for name, value in found.items() if name != "facts"}


@dataclass
class Record:
    """The course of one run; ``refresh`` is what was decided about the model in use, and why."""

    configuration: str
    settings: Mapping[str, Any]
    id: str | None = None
    outcome: Outcome | None = None
    error: str | None = None
    started: str = field(default_factory=now)
    rows: int | None = None
    queries: int | None = None
    stages: list[StageRecord] = field(default_factory=list)
    refresh: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    gate: Mapping[str, Any] | None = None
    remarks: list[str] = field(default_factory=list)
    skipped: Mapping[str, str] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)
    previous: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    fingerprints: dict[str, Any] = field(default_factory=dict)
    cluster: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._clock = time.perf_counter()

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it, without secrets."""
        found: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        found |= {
            "format": FORMAT,
            "version": VERSION,
            "outcome": self.outcome or "running",
            "seconds": round(time.perf_counter() - self._clock, 3),
            "stages": [stage.to_dict() for stage in self.stages],
            "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "host": {"name": socket.gethostname(), "process": os.getpid()},
            "versions": versions_here(),
        }
        if self.outcome is not None:
            found["finished"] = now()
        clean: dict[str, Any] = redact_values(found)
        return clean


def mean_average_precision(record: Mapping[str, Any], protocol: str) -> float | None:
    """Of the model's own code length, if it was measured."""
    metrics = record.get("metrics") or {}
    found = metrics.get("lengths", {}).get(str(metrics.get("n_bits")), {})
    value = found.get(protocol, {}).get("MAP")
    return None if value is None else float(value)


def class_changes(first: Mapping[str, Any] | None, second: Mapping[str, Any]) -> Iterator[str]:
    """Say which classes a run has that another had not, and the other way round."""
    before, after = ((run or {}).get("classes") or [] for run in (first, second))
    if not before or not after:
        return
    for word, names, others in (("new", after, set(before)), ("vanished", before, set(after))):
        if found := [name for name in names if name not in others]:
            more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
            yield f"{len(found)} {word} classes: {', '.join(found[:_MOST_NAMED])}{more}"


class RunLog(logging.Handler):
    """Collects lines until the run has a folder, then keeps them there.

    On a local disk they are written as they come; behind a URL when the log is closed.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self.addFilter(RedactingFilter())
        self._text: TextIO = io.StringIO()
        self._remote: tuple[RunDirectory, str] | None = None
        self._logger = logging.getLogger("sadih_dask")
        self._level = self._logger.level

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        if self._logger.getEffectiveLevel() > logging.INFO:
            self._logger.setLevel(logging.INFO)
        return self

    def keep_at(self, directory: RunDirectory, run: str) -> None:
        """From now on the lines belong to a run."""
        if not isinstance(directory.files, LocalFiles):
            self._remote = directory, run
            return
        path = Path(directory.files.path(f"{RUNS}/{run}/{LOG}"))
        file = path.open("a", encoding="utf-8", buffering=1)
        file.write(self._lines())
        self._text = file

    def _lines(self) -> str:
        return self._text.getvalue() if isinstance(self._text, io.StringIO) else ""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line."""
        self._text.write(self.format(record) + "\n")

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        if self._remote is not None:
            directory, run = self._remote
            try:
                directory.files.write(f"{RUNS}/{run}/{LOG}", [self._lines().encode()])
            except OSError as failure:  # not worth the run, nor hiding why it failed
                logger.warning("the log of run %s could not be written: %s", run, failure)
        self._text.close()


ABSENT = "absent"


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same in both runs."""

    what: str
    first: Any
    second: Any

    @property
    def change(self) -> float | None:
        """The second less the first, where both are numbers."""
        if _is_number(self.first) and _is_number(self.second):
            return float(self.second) - float(self.first)
        return None


@dataclass(frozen=True)
class Comparison:
    """What changed from one run to another, by kind."""

    settings: tuple[Difference, ...]
    data: tuple[Difference, ...]
    metrics: tuple[Difference, ...]
    versions: tuple[Difference, ...]
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        found = {
            kind: [vars(difference) for difference in differences]
            for kind, differences in vars(self).items()
            if kind != "remarks"
        }
        return {**found, "remarks": list(self.remarks)}


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> Comparison:
    """Compare the records of two runs; metrics are all there, the rest where it differs."""

    def differing(name: str) -> tuple[Difference, ...]:
        pairs = _pairs(first.get(name) or {}, second.get(name) or {})
        return tuple(pair for pair in pairs if pair.first != pair.second)

    before = (first.get("metrics") or {}).get("lengths", {})
    after = (second.get("metrics") or {}).get("lengths", {})
    sizes = (Difference(name, first.get(name), second.get(name)) for name in ("rows", "queries"))
    data = [size for size in sizes if size.first != size.second]
    return Comparison(
        differing("settings"),
        (*data, *differing("fingerprints")),
        tuple(_pairs(before, after)),
        differing("versions"),
        (*class_changes(first, second), *_of_other_lengths(first, second)),
    )


def _of_other_lengths(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    """Say what is compared where the models of two runs have codes of different length."""
    one, other = ((run.get("metrics") or {}).get("n_bits") for run in (first, second))
    if one != other and None not in (one, other):
        yield (
            f"the models have {one} and {other} bits; metrics are compared length by length, and "
            "absent where a run has not measured that length"
        )


def _pairs(first: Any, second: Any, at: str = "") -> Iterator[Difference]:
    """Leaves of two trees, by their paths."""
    if isinstance(first, Mapping) or isinstance(second, Mapping):
        one, other = (tree if isinstance(tree, Mapping) else {} for tree in (first, second))
        for name in dict.fromkeys((*one, *other)):
            path = f"{at}.{name}" if at else str(name)
            yield from _pairs(one.get(name, ABSENT), other.get(name, ABSENT), path)
    else:
        yield Difference(at, first, second)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
