"""The report of a run: one HTML file that needs nothing else to be read."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from markupsafe import Markup

from sadih_dask.cluster.versions import versions_here
from sadih_dask.files.filesystem import write_atomically
from sadih_dask.report.html import count, css_variables, duration, environment, inline_svg
from sadih_dask.report.measurements import Quality

TIE_RULE = (
    "Items at equal Hamming distance have no order: every value is the mean over all orders within "
    "a distance, so it does not depend on the order of rows. Queries without a relevant item are "
    "left out of the mean average precision."
)
PROTOCOLS = {
    "learned": "database rows carry the learned code of their labels (the paper's protocol)",
    "encoded": "database rows are hashed like queries: what one gets for rows without labels",
}


class Drawn(Protocol):
    """A figure and its words; `sadih_dask.report.figures.Drawing` is one."""

    @property
    def name(self) -> str:
        """Name of its files."""

    @property
    def heading(self) -> str:
        """What it is called."""

    @property
    def caption(self) -> str:
        """How to read it."""

    @property
    def alt(self) -> str:
        """What it shows, for those who cannot see it."""

    @property
    def wide(self) -> bool:
        """Whether it needs the width of a page."""

    def svg(self, width: Literal["page", "column"]) -> str:
        """Return it as an SVG document, for a "page" or for a "column"."""
        ...


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
    quality     one entry for each method and code length
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
    drawings: Sequence[Drawn] = ()
    data: Mapping[str, object] = field(default_factory=dict)
    classes: Sequence[str] = ()
    files: Sequence[WrittenFile] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    started: datetime | None = None
    seconds: float | None = None


def installed_versions() -> dict[str, str]:
    """The system, and versions of Python and of the packages that decide results."""
    return {"system": f"{platform.system()} {platform.machine()}", **versions_here()}


def render(report: Report) -> str:
    """Return the report as HTML. The same report gives the same text."""
    return (
        environment()
        .get_template("report.html")
        .render(
            report=report,
            tiles=_tiles(report),
            table=_table(report.quality),
            figures=[_figure(d, k) for k, d in enumerate(report.drawings)],
            tie_rule=TIE_RULE,
            protocols=PROTOCOLS,
            light=css_variables(dark=False),
            dark=css_variables(dark=True),
        )
    )


def write_report(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the report to one file, whole or not at all."""
    target = Path(path)
    html = render(report)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Names of files may hold bytes that are no text at all.
    page = html.encode("utf-8", "replace")
    write_atomically(target, lambda scratch: scratch.write_bytes(page))
    return target


@dataclass(frozen=True)
class _Tile:
    number: str
    what: str


def _tiles(report: Report) -> list[_Tile]:
    """The numbers that a reader looks for first."""
    tiles = []
    for protocol in PROTOCOLS:
        known = [
            (q.metrics[protocol]["MAP"], q)
            for q in report.quality
            if math.isfinite(q.metrics.get(protocol, {}).get("MAP", math.nan))
        ]
        if known:
            best, at = max(known, key=lambda pair: pair[0])
            tiles.append(_Tile(f"{best:.3f}", f"best MAP, {protocol}, {at.n_bits} bits"))
    tiles += [
        _Tile(count(report.n_database), "database rows"),
        _Tile(count(report.n_queries), "queries"),
        _Tile(count(report.n_classes), "classes"),
    ]
    if report.n_groups != report.n_classes:
        tiles.append(_Tile(count(report.n_groups), "label groups"))
    if report.seconds is not None:
        tiles.append(_Tile(duration(report.seconds), "run time"))
    return tiles


@dataclass(frozen=True)
class _Table:
    """Quality with one column for each protocol and metric; the best of a column is marked."""

    protocols: dict[str, list[str]]
    rows: Sequence[Quality]
    several_methods: bool
    timed: bool
    best: dict[tuple[str, str], float]

    def is_best(self, protocol: str, metric: str, found: float | None) -> bool:
        """Whether a value is the best of its column, and not all of them are."""
        column = [row.metrics.get(protocol, {}).get(metric) for row in self.rows]
        best = self.best.get((protocol, metric))
        return found is not None and found == best and any(v != best for v in column)


def _table(quality: Sequence[Quality]) -> _Table:
    protocols: dict[str, dict[str, None]] = {}
    best: dict[tuple[str, str], float] = {}
    for entry in quality:
        for protocol, metrics in entry.metrics.items():
            protocols.setdefault(protocol, {}).update(dict.fromkeys(metrics))
            for metric, found in metrics.items():
                if math.isfinite(found):
                    key = (protocol, metric)
                    best[key] = max(best.get(key, found), found)
    return _Table(
        {name: list(metrics) for name, metrics in protocols.items()},
        quality,
        len({q.method for q in quality}) > 1,
        any(q.seconds is not None for q in quality),
        best,
    )


@dataclass(frozen=True)
class _Figure:
    """A figure in the widths that the page needs: one, or one each for wide and small screens."""

    drawing: Drawn
    pictures: Sequence[tuple[str, Markup]]


def _figure(drawing: Drawn, k: int) -> _Figure:
    widths: tuple[Literal["page", "column"], ...] = ("page", "column")
    pictures = [
        (width, inline_svg(drawing.svg(width), f"f{k}{width[0]}-", drawing.alt))
        for width in widths
        if drawing.wide or width == "column"
    ]
    return _Figure(drawing, pictures)
