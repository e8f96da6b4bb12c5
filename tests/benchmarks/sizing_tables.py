"""Tables of the sizing page, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dask.utils import format_bytes

from tests.benchmarks.sizing_cluster import Outcome
from tests.benchmarks.sizing_model import Job, memory_of, merge_of, most_groups, parts_of

MEMORY = 6 << 30
"""Of a worker in the deployments here, which has two threads."""
CASES = (
    *("rows", "workers", "minutes", "core-hours", "tasks", "limit", "processors", "scheduler"),
    *("tasks/s", "store", "GB/s", "requests/s", "reduction", "held", "driver"),
)


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table."""
    head = list(head)
    print("\n| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


def show_rates(found: dict[str, Any]) -> None:
    """What was measured, and the memory plan of a worker."""
    slower = found.get("sustained", 1.0)
    print(f"{found['machine']}; rows/s of long scans: {slower:.2f} times the seconds of a block")
    table(
        (
            "features",
            "anchors",
            "scan, rows/s",
            "encode, rows/s",
            "memory, 2 threads",
            "16 threads",
        ),
        (
            (
                one["d"],
                f"{one['anchors']:,}" if one["anchors"] else "none",
                f"{two_digits(1 / one['scan'] / slower):,.0f}",
                f"{two_digits(1 / one['encode'] / slower):,.0f}",
                *(format_bytes(_memory(one, threads)) for threads in (2, 16)),
            )
            for one in found["rows"]
        ),
    )
    table(
        (
            "columns",
            "merge, ms",
            "partial result",
            "checkpoint of 10^9 rows",
            "label groups, 6 GiB",
        ),
        (_of_columns(found, width) for width in (128, 512, 1000, 1024, 3000)),
    )
    table(
        ("columns", "classes", "solve, s"),
        ((one["width"], one["classes"], f"{one['seconds']:.1f}") for one in found["solving"]),
    )
    for name in ("reading", "ingestion", "objects", "scheduling"):
        print(f"\n{name}:", {key: float(f"{value:.3g}") for key, value in found[name].items()})


def _memory(one: dict[str, Any], threads: int) -> int:
    return memory_of(Job(10**9, int(one["d"]), int(one["anchors"])), threads).total


def _of_columns(found: dict[str, Any], width: int) -> list[Any]:
    merge = merge_of(found, width)
    job = Job(10**9, 512, width) if width in (1000, 3000) else Job(10**9, width)
    n_parts = parts_of(job)
    return [
        f"{width:,}",
        f"{1e3 * merge['seconds']:.2g}",
        format_bytes(int(merge["bytes"])),
        f"{n_parts} files, {format_bytes(int(n_parts * merge['bytes']))}",
        f"{two_digits(most_groups(job, 2, MEMORY)):,.0f}",
    ]


def two_digits(value: float) -> float:
    """Rounded so far that a repetition says the same."""
    return float(f"{value:.2g}")


def show_validation(runs: list[dict[str, Any]], load: float) -> None:
    """Real runs beside simulated ones."""
    names = ("wall", "simulated", "processor", "simulated processor")
    table(
        ("run", "wall, s", "simulated, s", "processor, s", "simulated, s"),
        ((one["run"], *(f"{one[n]:.1f}" if n in one else "" for n in names)) for one in runs),
    )
    print(f"load of the machine: {load:.1f}")


def show_cases(title: str, cases: list[dict[str, Any]]) -> None:
    """One kind of work on many clusters."""
    print(f"\n{title}")
    table(CASES, map(_cells, cases))


def _cells(case: dict[str, Any]) -> list[str]:
    run = Outcome(**case["run"])
    seconds = run.seconds + case["driver"]
    return [
        f"10^{len(str(case['rows'])) - 1}",
        f"{case['workers']} x {case['threads']}",
        f"{seconds / 60:.2g}",
        f"{seconds / 3600 * case['workers'] * case['cores']:.2g}",
        f"{run.tasks:,}",
        run.bottleneck,
        f"{run.processors_busy:.0%}",
        f"{run.scheduler_busy:.0%}",
        f"{run.scheduler_peak:,.0f}",
        f"{run.store_busy:.0%}",
        f"{run.store_bytes / run.seconds / 1e9:.2g}",
        f"{run.requests / run.seconds:,.0f}",
        format_bytes(int(run.network_bytes)),
        format_bytes(int(run.held)),
        f"{case['driver']:.0f} s",
    ]


def show_deaths(cases: list[dict[str, Any]]) -> None:
    """What workers that die cost."""
    table(
        ("deaths an hour and worker", "deaths", "seconds", "rows read again"),
        (
            (
                case["rate"],
                case["run"]["deaths"],
                f"{case['run']['seconds']:.0f}",
                f"{case['run']['rows_read'] / case['rows'] - 1:.1%}",
            )
            for case in cases
        ),
    )
