"""Scores of a search over two parameters: a square of shaded numbers for every code length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sadih_dask.arrays import Floats
from sadih_dask.errors import InputError
from sadih_dask.report.figures.drawing import Drawing
from sadih_dask.report.figures.style import INCHES, Width, new_figure, readable
from sadih_dask.report.palette import BLUE, INK, VERMILION

LEAST_SPAN = 0.01
"""Range of scores that the shades cover at least: less of a difference should look like none."""
DARKEST = 0.6
"""Opacity of the best score: numbers stay readable on it, on white and on black."""
CELL_INCHES = 0.28
"""Width that a cell must have for its number."""


class ScoreSurface(Protocol):
    """Scores over two parameters; `sadih_dask.selection.results.Surface` is one."""

    @property
    def n_bits(self) -> int:
        """Code length."""

    @property
    def row(self) -> str:
        """Name of the parameter that goes down."""

    @property
    def row_values(self) -> Sequence[Any]:
        """Its values."""

    @property
    def column(self) -> str:
        """Name of the parameter that goes to the right."""

    @property
    def column_values(self) -> Sequence[Any]:
        """Its values."""

    @property
    def scores(self) -> Floats:
        """Scores, (rows, columns)."""

    @property
    def best(self) -> tuple[int, int]:
        """Row and column of the best."""


def score_surface(surfaces: Sequence[ScoreSurface]) -> Drawing:
    """Mean score of every combination, a panel for each code length, the best one framed."""
    if not surfaces:
        raise InputError("the figure of scores needs a surface or more, got none")
    row, column = readable(surfaces[0].row), readable(surfaces[0].column)  # the row may be none

    def paint(width: Width) -> Figure:
        n_columns = 1 if width == "column" else min(len(surfaces), 3)
        n_rows = -(-len(surfaces) // n_columns)
        cells = max(len(surface.row_values) for surface in surfaces)
        figure = new_figure(width, n_rows * (0.75 + 0.27 * min(max(cells, 3), 12)))
        grid = figure.subplots(n_rows, n_columns, squeeze=False)
        for place, axes in enumerate(grid.flat):
            if place >= len(surfaces):
                axes.remove()
                continue
            room = 0.85 * INCHES[width] / n_columns / len(surfaces[place].column_values)
            _panel(axes, surfaces[place], place, numbers=room >= CELL_INCHES)
            axes.set_xlabel(column)
            axes.set_ylabel(row if place % n_columns == 0 else "")
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


def _panel(axes: Axes, surface: ScoreSurface, place: int, *, numbers: bool) -> None:
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


def _describe(surfaces: Sequence[ScoreSurface]) -> str:
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
