"""What people want to see of a run's record, as plain values for any orchestrator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Record = Mapping[str, Any]


def headline(record: Record) -> str:
    """One line: what became of the run, and which stages it did."""
    stages = record.get("stages", [])
    done = [str(stage["name"]) for stage in stages if stage["action"] == "done"]
    did = f"did {', '.join(done)}" if done else "all stages are current"
    text = f"{record.get('outcome', 'not begun')}: {did}, {record.get('seconds', 0):.1f} s"
    reasons = (record.get("gate") or {}).get("reasons", [])
    skipped = [f"{n} skipped, see the log"] if (n := len(warnings(record))) else []
    return "; ".join([text, *reasons, *skipped])


def warnings(record: Record) -> list[str]:
    """A line for every file that could not be read, where the others were taken."""
    return [f"skipped: {reason}" for reason in (record.get("skipped") or {}).values()]


def measures(record: Record) -> dict[str, float]:
    """Every metric under a name of its own, such as ``MAP, encoded, 32 bits``."""
    lengths = (record.get("metrics") or {}).get("lengths", {})
    return {
        f"{name}, {protocol}, {bits} bits": float(value)
        for bits, protocols in lengths.items()
        for protocol, numbers in protocols.items()
        for name, value in numbers.items()
    }


def stage_rows(record: Record) -> list[dict[str, Any]]:
    """One row a stage: what was done and how long it took."""
    columns = ("name", "action", "seconds", "rows", "bytes")
    return [{name: stage.get(name) for name in columns} for stage in record.get("stages", [])]


def report_address(record: Record) -> str | None:
    """Path or URL of the page with figures, if the run has one."""
    found = (record.get("files") or {}).get("report.html")
    return None if found is None else str(found)


def markdown(record: Record) -> str:
    """The run on one page."""
    lines = [f"**{headline(record)}**", ""]
    lines += [f"Run {record['id']}", ""] if record.get("id") else []
    if (address := report_address(record)) is not None:
        lines += [f"Report: [{address}]({address})", ""]
    if skipped := warnings(record):
        lines += [*(f"- {line}" for line in skipped), ""]
    if found := measures(record):
        lines += ["| metric | value |", "|---|---|"]
        lines += [f"| {name} | {value:.4f} |" for name, value in found.items()]
    return "\n".join(lines)
