"""How learning went: the course of the objective, and the scores of a search over parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from sadih_dask.errors import InputError
from sadih_dask.learning.objective import STEPS, Record, Trace
from sadih_dask.model.results import Surface
from sadih_dask.report.figures.style import (
    INCHES,
    Drawing,
    Width,
    new_figure,
    panels,
    readable,
    short_number,
)
from sadih_dask.report.html import BLUE, INK, MUTED, PAPER, VERMILION
from sadih_dask.types import Floats

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

LEAST_SPAN = 0.01
"""Range of scores that the shades cover at least: less of a difference should look like none."""
DARKEST = 0.6
"""Opacity of the best score: numbers stay readable on it, on white and on black."""
CELL_INCHES = 0.28
"""Width that a cell must have for its number."""


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


def score_surface(surfaces: Sequence[Surface]) -> Drawing:
    """Mean score of every combination, a panel for each code length, the best one framed."""
    if not surfaces:
        raise InputError("the figure of scores needs a surface or more, got none")
    labels = (readable(surfaces[0].column), readable(surfaces[0].row))  # the row may be none

    def paint(width: Width) -> Figure:
        cells = max(len(surface.row_values) for surface in surfaces)
        height = 0.75 + 0.27 * min(max(cells, 3), 12)
        figure, grid = panels(width, len(surfaces), height, labels)
        beside = 1 if width == "column" else min(len(surfaces), 3)
        for place, (axes, surface) in enumerate(zip(grid, surfaces, strict=True)):
            room = 0.85 * INCHES[width] / beside / len(surface.column_values)
            _panel(axes, surface, place, numbers=room >= CELL_INCHES)
        return figure

    return Drawing(
        "surface",
        "Choice of parameters",
        "Mean score over the folds of every combination; the frame marks the best of a code "
        f"length. Shades go from the worst to the best of a length, or over {LEAST_SPAN:g} where "
        "the scores differ by less: an even square says that the choice matters little.",
        _describe(surfaces),
        paint,
        wide=len(surfaces) > 1,
    )


def _panel(axes: Axes, surface: Surface, place: int, *, numbers: bool) -> None:
    scores = surface.scores
    top = float(scores.max())
    span = max(top - float(scores.min()), LEAST_SPAN)
    for (i, j), score in np.ndenumerate(scores):
        shade = DARKEST * max(0.0, 1.0 - (top - float(score)) / span)
        cell = Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=BLUE.light, alpha=shade, linewidth=0)
        cell.set_gid(f"score-{place}-{i}-{j}")
        axes.add_patch(cell)
        if numbers:
            axes.text(j, i, _short(float(score)), ha="center", va="center", color=INK.light, size=6)
    i, j = surface.best
    frame = Rectangle(
        (j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor=VERMILION.light, linewidth=1.8, zorder=3
    )
    frame.set_gid(f"best-{place}")
    frame.set_clip_on(False)
    axes.add_patch(frame)
    axes.grid(False)
    axes.set_xlim(-0.5, scores.shape[1] - 0.5)
    axes.set_ylim(scores.shape[0] - 0.5, -0.5)
    axes.set_xticks(range(scores.shape[1]), [_word(v) for v in surface.column_values])
    axes.set_yticks(range(scores.shape[0]), [_word(v) for v in surface.row_values])
    axes.tick_params(length=0)
    axes.set_title(f"{surface.n_bits} bits: {float(scores[i, j]):.4f} at best")


def _short(score: float) -> str:
    """Write .987: the zero would say nothing, and there is little room."""
    return f"{score:.3f}".removeprefix("0")


def _word(value: Any) -> str:
    return readable(f"{value:g}" if isinstance(value, float) else str(value), 12)


def _describe(surfaces: Sequence[Surface]) -> str:
    """Say in words where the best of each code length is."""
    parts = []
    for surface in surfaces:
        i, j = surface.best
        at = [(surface.row, surface.row_values[i]), (surface.column, surface.column_values[j])]
        where = " and ".join(f"{name} {_word(value)}" for name, value in at if name)
        low, high = float(surface.scores.min()), float(surface.scores[i, j])
        parts.append(f"{surface.n_bits} bits: from {low:.4f} to {high:.4f}, the best at {where}")
    names = " and ".join(name for name in (surfaces[0].row, surfaces[0].column) if name)
    return f"Mean scores over {names}. " + "; ".join(parts) + "."
