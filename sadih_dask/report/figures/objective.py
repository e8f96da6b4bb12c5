"""The course of the objective, term by term, for every start."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from sadih_dask.arrays import Floats
from sadih_dask.errors import InputError
from sadih_dask.learning.trace import STEPS, Record, Trace
from sadih_dask.report.figures.drawing import Drawing
from sadih_dask.report.figures.style import Width, new_figure, short_number
from sadih_dask.report.palette import BLUE, MUTED, PAPER, VERMILION

TERMS = ("total", "similarity", "reconstruction", "encoding", "regularisation")
_LAYOUT: dict[Width, Any] = {
    "page": [
        ["total", "total", "similarity", "reconstruction"],
        ["total", "total", "encoding", "regularisation"],
    ],
    "column": [
        ["total", "total"],
        ["similarity", "reconstruction"],
        ["encoding", "regularisation"],
    ],
}
_KEPT: dict[str, Any] = {"color": BLUE.light, "linewidth": 1.8}
_OTHER: dict[str, Any] = {
    "color": MUTED.light,
    "linewidth": 0.9,
    "linestyle": (0, (3, 1.5)),
    "alpha": 0.8,
}
_ALONE: dict[str, Any] = {
    "marker": "x",
    "markersize": 4.5,
    "markeredgewidth": 1.0,
    "linestyle": "none",
}
"""A start that was not followed up is one point."""
LOG_RANGE = 30.0
_MARK: dict[str, Any] = {
    "color": VERMILION.light,
    "marker": "o",
    "markersize": 6,
    "markerfacecolor": PAPER.light,
    "markeredgewidth": 1.5,
    "linestyle": "none",
    "clip_on": False,
}


def objective_trace(trace: Trace) -> Drawing:
    """The objective and its terms after every step of every start, the kept one emphasised."""
    if not len(trace):
        raise InputError("the trace has no records; a fitted model has one in trace_")
    restarts = sorted({record.restart for record in trace})
    restarts = [r for r in restarts if r != trace.best] + [trace.best]
    kept = next(
        r
        for r in reversed(trace.of_restart(trace.best))
        if r.iteration == min(trace.kept_iteration, trace.n_iter)
    )

    def paint(width: Width) -> Figure:
        figure = new_figure(width, 2.9 if width == "page" else 4.9)
        heights = [1, 1] if width == "page" else [1.5, 1, 1]
        panels = figure.subplot_mosaic(_LAYOUT[width], height_ratios=heights)
        for term, axes in panels.items():
            for restart in restarts:
                _line(axes, trace, restart, str(term))
            axes.plot(_place(kept), _value(kept, str(term)), zorder=4, **_MARK)
            _finish(axes, str(term), trace)
        handles = [Line2D([], [], **_KEPT), Line2D([], [], **_MARK)]
        names = ["kept start", "kept codes"]
        if len(restarts) > 1:
            alone = all(len(trace.of_restart(r)) == 1 for r in restarts[:-1])
            handles.append(Line2D([], [], **_OTHER | (_ALONE if alone else {})))
            names.append(f"other starts ({len(restarts) - 1})")
        figure.legend(handles, names, loc="outside lower center", ncols=3)
        return figure

    totals = trace.totals
    alt = (
        f"Objective after every step of {len(restarts)} starts. The kept start, number "
        f"{trace.best + 1}, goes from {totals[0]:.4g} to {totals[-1]:.4g} in {trace.n_iter} "
        f"iterations; the codes of iteration {trace.kept_iteration} were kept."
    )
    return Drawing(
        "objective",
        "Course of the objective",
        "The objective and its terms after each step (codes, label embedding, encoder, decoder) of "
        "each iteration; with the exact solver and the l21 loss the total never rises, though a "
        "single term may.",
        alt,
        paint,
        wide=True,
    )


def _line(axes: Axes, trace: Trace, restart: int, term: str) -> None:
    records = trace.of_restart(restart)
    x: Floats = np.array([_place(r) for r in records])
    y: Floats = np.array([_value(r, term) for r in records])
    known = np.isfinite(y)
    style = _KEPT if restart == trace.best else _OTHER
    style = style | (_ALONE if known.sum() == 1 else {})
    (line,) = axes.plot(x[known], y[known], zorder=3 if restart == trace.best else 2, **style)
    line.set_gid(f"{term}-start-{restart}")


def _value(record: Record, term: str) -> float:
    return float(getattr(record.objective, term))


def _place(record: Record) -> float:
    """Where a step lies on the axis: iteration k ends at k."""
    if record.step not in STEPS[1:]:
        return float(record.iteration)
    done = STEPS.index(record.step) / (len(STEPS) - 1)
    return record.iteration - 1 + done


def _finish(axes: Axes, term: str, trace: Trace) -> None:
    axes.set_title("objective" if term == "total" else term)
    axes.set_xlabel("iteration" if term in ("total", "encoding", "regularisation") else "")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    values = [_value(r, term) for r in trace]
    finite = [v for v in values if math.isfinite(v)] or [0.0]
    if min(finite) > 0 and max(finite) / min(finite) > LOG_RANGE:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5 if term == "total" else 3))
    axes.yaxis.set_major_formatter(FuncFormatter(short_number))
    if max(finite) - min(finite) <= 1e-12 * max(map(abs, finite)):
        # A term that does not change would otherwise be magnified to rounding noise.
        middle = finite[0]
        axes.set_ylim(middle - max(abs(middle), 1) / 2, middle + max(abs(middle), 1) / 2)
