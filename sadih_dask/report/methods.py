"""Methods side by side: a table, a figure, a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sadih_dask.model.methods import method_class
from sadih_dask.report.html import fill, score
from sadih_dask.report.page import TIE_RULE, as_figures, as_files
from sadih_dask.retrieval.evaluation import BASELINE_CUTOFF, PROTOCOLS

if TYPE_CHECKING:
    from sadih_dask.report.figures import Drawing

METRICS = ("MAP", f"precision@{BASELINE_CUTOFF}")


@dataclass(frozen=True)
class Outcome:
    """What a method reaches with codes of one length, or why it does not.

    numbers          metric by protocol
    standard_errors  of these
    seconds          processor time of the solve, after the scan
    parameters       all that it was learned with
    peak_memory      bytes that the solve took at most beside what was there; None if it failed
    """

    method: str
    n_bits: int
    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    standard_errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    peak_memory: int | None = None
    failure: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


def _measured(outcomes: Iterable[Outcome]) -> list[str]:
    """Protocols that any of them was measured under."""
    seen = {p for one in outcomes for p in one.numbers}
    return [p for p in PROTOCOLS if p in seen]


def best(outcomes: Sequence[Outcome], metric: str = "MAP") -> dict[tuple[str, int], float]:
    """The highest value of a metric, by protocol and length."""
    found: dict[tuple[str, int], float] = {}
    for one in outcomes:
        for p, numbers in one.numbers.items():
            found[p, one.n_bits] = max(numbers[metric], found.get((p, one.n_bits), -np.inf))
    return found


def as_table(outcomes: Sequence[Outcome]) -> str:
    """Every metric under every protocol, a line for each method and length; the best starred."""
    protocols = _measured(outcomes)
    head = "".join(f"{p:>17} " for p in protocols)
    lines: list[str] = []
    for metric in METRICS:
        highest = best(outcomes, metric)
        lines += ["", metric] if lines else [metric]
        lines.append(f"{'method':12}{'bits':>5}{head}   solve    memory")
        for one in outcomes:
            name = f"{one.method:12}{one.n_bits:5}"
            if one.failure:
                lines.append(f"{name}  failed: {one.failure}")
                continue
            cells = ""
            for p in protocols:
                if p not in one.numbers:
                    cells += f"{'-':>17} "
                    continue
                value, error = one.numbers[p][metric], one.standard_errors[p][metric]
                star = "*" if value == highest[p, one.n_bits] else " "
                cells += f"{value:8.4f} ± {error:.4f}{star}"
            memory = "-" if one.peak_memory is None else f"{one.peak_memory / 2**20:.0f} MiB"
            lines.append(f"{name}{cells}{one.seconds:6.1f} s{memory:>10}")
    return "\n".join(lines)


def drawing(outcomes: Sequence[Outcome]) -> Drawing | None:
    """MAP against bits, a line for each method, a panel for each protocol; needs matplotlib."""
    from sadih_dask.report import figures
    from sadih_dask.report.figures import Curve

    curves = []
    for protocol in _measured(outcomes):
        for name in dict.fromkeys(one.method for one in outcomes):
            of_it = [o for o in outcomes if o.method == name and protocol in o.numbers]
            line = sorted((one.n_bits, one.numbers[protocol]["MAP"]) for one in of_it)
            if line:
                x, y = np.array(line, np.float64).T
                curves.append(Curve(name, x, y, protocol))
    return figures.map_against_bits(curves) if curves else None


def render(
    title: str,
    outcomes: Sequence[Outcome],
    drawn: Sequence[Drawing],
    *,
    data: Mapping[str, object],
    files: Mapping[Path, str],
    started: datetime,
) -> str:
    """Return the comparison as HTML; ``data`` and ``files`` are as in `page.render`."""
    methods = list(dict.fromkeys(one.method for one in outcomes))
    measured = {
        p: list(dict.fromkeys(one.method for one in outcomes if p in one.numbers))
        for p in _measured(outcomes)
    }
    tiles = {}
    for p in measured:
        one = max((o for o in outcomes if p in o.numbers), key=lambda o: float(o.numbers[p]["MAP"]))
        tiles[f"best MAP, {p}: {one.method}, {one.n_bits} bits"] = score(one.numbers[p]["MAP"])
    return fill(
        "methods.html",
        title=title,
        started=started,
        tiles=tiles,
        measured=measured,
        protocols=PROTOCOLS,
        metrics=METRICS,
        highest={metric: best(outcomes, metric) for metric in METRICS},
        outcomes={(one.method, one.n_bits): one for one in outcomes},
        methods=methods,
        estimators={name: method_class(name) for name in methods},
        lengths=sorted({one.n_bits for one in outcomes}),
        data=data,
        figures=as_figures(drawn),
        files=as_files(files),
        tie_rule=TIE_RULE,
    )
