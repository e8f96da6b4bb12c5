"""The report of a run: one HTML file that needs nothing else to be read."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from sadih_dask.cluster.versions import versions_here
from sadih_dask.files.filesystem import write_atomically
from sadih_dask.report.html import count, duration, fill, inline_svg

if TYPE_CHECKING:
    from sadih_dask.report.figures import Drawing

TIE_RULE = (
    "Items at equal Hamming distance have no order: every value is the mean over all orders within "
    "a distance, so it does not depend on the order of rows. Queries without a relevant item are "
    "left out of the mean average precision."
)
PROTOCOLS = {
    "learned": "database rows carry the learned code of their labels (the paper's protocol)",
    "encoded": "database rows are hashed like queries: what one gets for rows without labels",
}


@dataclass(frozen=True, eq=False)
class Quality:
    """Retrieval quality of one code length; seconds are those of learning.

    metrics  protocol -> metric -> value, such as ``{"learned": {"MAP": 0.9}, "encoded": {...}}``
    """

    n_bits: int
    metrics: Mapping[str, Mapping[str, float]]
    seconds: float | None = None


@dataclass(frozen=True)
class WrittenFile:
    """A file that the run wrote."""

    path: str
    what: str
    n_bytes: int | None = None

    @classmethod
    def of(cls, path: str | os.PathLike[str], what: str) -> WrittenFile:
        """Describe a file or a folder on disk with the size that it has now."""
        place = Path(path)
        parts = [place] if place.is_file() else [p for p in place.rglob("*") if p.is_file()]
        return cls(os.fspath(path), what, sum(p.stat().st_size for p in parts))


@dataclass(frozen=True, eq=False)
class Report:
    """Everything that a report shows.

    data        facts about the data, name -> value: source, features, classes
    parameters  of the model
    quality     one entry for each code length
    drawings    figures, in order
    classes     names of the classes, if any
    """

    title: str
    n_database: int
    n_queries: int
    n_classes: int
    n_groups: int
    parameters: Mapping[str, object]
    quality: Sequence[Quality] = ()
    drawings: Sequence[Drawing] = ()
    data: Mapping[str, object] = field(default_factory=dict)
    classes: Sequence[str] = ()
    files: Sequence[WrittenFile] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    started: datetime | None = None
    seconds: float | None = None


def installed_versions() -> dict[str, str]:
    """The system, and versions of Python and of the packages that decide results."""
    return {"system": f"{platform.system()} {platform.machine()}", **versions_here()}


def write_report(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the report to one file, whole or not at all."""
    target = Path(path)
    # Names of files may hold bytes that are no text at all.
    page = render(report).encode("utf-8", "replace")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, lambda scratch: scratch.write_bytes(page))
    return target


def render(report: Report) -> str:
    """Return the report as HTML. The same report gives the same text."""
    return fill(
        "report.html",
        report=report,
        tiles=dict(_tiles(report)),
        table=_Table(report.quality),
        figures=[(drawing, _pictures(drawing, k)) for k, drawing in enumerate(report.drawings)],
        tie_rule=TIE_RULE,
        protocols=PROTOCOLS,
    )


def _tiles(report: Report) -> Iterator[tuple[str, str]]:
    """The numbers that a reader looks for first, each after what it counts."""
    for protocol in PROTOCOLS:
        known = [
            (q.metrics[protocol]["MAP"], q.n_bits)
            for q in report.quality
            if math.isfinite(q.metrics.get(protocol, {}).get("MAP", math.nan))
        ]
        if known:
            best, n_bits = max(known, key=lambda pair: pair[0])
            yield f"best MAP, {protocol}, {n_bits} bits", f"{best:.3f}"
    yield "database rows", count(report.n_database)
    yield "queries", count(report.n_queries)
    yield "classes", count(report.n_classes)
    if report.n_groups != report.n_classes:
        yield "label groups", count(report.n_groups)
    if report.seconds is not None:
        yield "run time", duration(report.seconds)


@dataclass(frozen=True)
class _Table:
    """Quality with one column for each protocol and metric; the best of a column is marked."""

    rows: Sequence[Quality]

    @property
    def protocols(self) -> dict[str, list[str]]:
        """The metrics of each protocol."""
        found: dict[str, dict[str, None]] = {}
        for row in self.rows:
            for protocol, metrics in row.metrics.items():
                found.setdefault(protocol, {}).update(dict.fromkeys(metrics))
        return {protocol: list(metrics) for protocol, metrics in found.items()}

    def is_best(self, protocol: str, metric: str, found: float | None) -> bool:
        """Whether a value is the best of its column, and not all of them are."""
        column = [row.metrics.get(protocol, {}).get(metric) for row in self.rows]
        best = max((v for v in column if v is not None and math.isfinite(v)), default=None)
        return found is not None and found == best and any(v != best for v in column)


def _pictures(drawing: Drawing, k: int) -> list[tuple[str, Markup]]:
    """A figure in the widths that it needs: one, or one each for wide and for small screens."""
    return [
        (width, inline_svg(drawing.svg(width), f"f{k}{width[0]}-", drawing.alt))
        for width in ("page", "column")
        if drawing.wide or width == "column"
    ]
