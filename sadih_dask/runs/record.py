"""What happened in a run, as JSON, and what a table of runs shows of it."""

from __future__ import annotations

import os
import platform
import resource
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from sadih_dask.redaction import redact_values

FORMAT, VERSION = "sadih-run", 1
PACKAGES = ("sadih-dask", "numpy", "scipy", "dask", "distributed", "zarr", "numba", "scikit-learn")

Action = Literal["done", "reused", "skipped"]
Outcome = Literal["complete", "nothing to do", "refused", "failed", "interrupted"]


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Versions of everything that takes part in the numbers."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a folder that was not installed
            found[name] = "unknown"
    return found


@dataclass
class StageRecord:
    """One stage of a run: what was done, why, and how much."""

    name: str
    action: Action
    reason: str
    fingerprint: str | None = None
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "name": self.name,
            "action": self.action,
            "reason": self.reason,
            "fingerprint": self.fingerprint,
            "seconds": round(self.seconds, 3),
            **self.facts,
        }


@dataclass
class Record:
    """The course of one run."""

    configuration: str
    settings: Mapping[str, Any]
    id: str | None = None
    started: str = field(default_factory=now)
    stages: list[StageRecord] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    gate: Mapping[str, Any] | None = None
    cluster: Mapping[str, Any] | None = None
    files: dict[str, str] = field(default_factory=dict)
    fingerprints: dict[str, Any] = field(default_factory=dict)
    rows: int | None = None
    queries: int | None = None
    previous: str | None = None
    outcome: Outcome | None = None
    error: str | None = None
    _clock: float = field(default_factory=time.perf_counter)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it, without secrets."""
        over = {} if self.outcome is None else {"finished": now()}
        found: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "id": self.id,
            "outcome": self.outcome or "running",
            "error": self.error,
            "configuration": self.configuration,
            "started": self.started,
            **over,
            "seconds": round(time.perf_counter() - self._clock, 3),
            "rows": self.rows,
            "queries": self.queries,
            "stages": [stage.to_dict() for stage in self.stages],
            "metrics": self.metrics,
            "gate": self.gate,
            "remarks": self.remarks,
            "previous": self.previous,
            "files": self.files,
            "fingerprints": self.fingerprints,
            "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "cluster": self.cluster,
            "host": {"name": socket.gethostname(), "process": os.getpid()},
            "versions": versions(),
            "settings": self.settings,
        }
        clean: dict[str, Any] = redact_values(found)
        return clean


def mean_average_precision(record: Mapping[str, Any], protocol: str) -> float | None:
    """Of the model's own code length, if it was measured."""
    metrics = record.get("metrics") or {}
    found = metrics.get("lengths", {}).get(str(metrics.get("n_bits")), {})
    value = found.get(protocol, {}).get("MAP")
    return None if value is None else float(value)
