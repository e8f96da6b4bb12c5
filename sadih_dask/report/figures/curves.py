"""Lines: precision against recall, precision against items retrieved, MAP against bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from sadih_dask.arrays import Floats
from sadih_dask.errors import InputError
from sadih_dask.report.figures.drawing import Drawing
from sadih_dask.report.figures.style import Width, legend_columns, line_style, new_figure, readable
from sadih_dask.report.measurements import Curve
from sadih_dask.report.palette import MUTED

MAX_RETRIEVED = 1000
MOST_TICKS = 8
MOST_DESCRIBED = 12
CEILING: dict[str, Any] = {"color": MUTED.light, "linewidth": 3.5, "alpha": 0.35}


def precision_recall(curves: Sequence[Curve]) -> Drawing:
    """Precision (y) against recall (x); the paper's Fig. 2."""

    def finish(axes: Axes) -> None:
        axes.set_xlim(0.0, 1.0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.3g}"))
        axes.set_ylim(0.0, 1.02)

    return _drawing(
        curves,
        name="precision-recall",
        heading="Precision and recall",
        caption=(
            "Each line follows the ranking outwards from the queries: the longer it stays at the "
            "top while moving to the right, the more of what is relevant comes first."
        ),
        labels=("recall", "precision"),
        finish=finish,
    )


def precision_retrieved(
    curves: Sequence[Curve], *, most: int = MAX_RETRIEVED, ceiling: Curve | None = None
) -> Drawing:
    """Precision (y) among the first x items, up to ``most``; the paper's Fig. 3.

    ``ceiling`` is what a perfect ranking would reach: it falls once the relevant items are used up.
    """

    def finish(axes: Axes) -> None:
        axes.set_xlim(0, most)
        axes.set_ylim(0.0, 1.02)

    def near(curve: Curve) -> Curve:
        kept = np.asarray(curve.x) <= most
        spread = None if curve.spread is None else curve.spread[kept]
        return Curve(curve.name, curve.x[kept], curve.y[kept], curve.panel, spread)

    return _drawing(
        [near(curve) for curve in curves],
        name="precision-retrieved",
        heading="Precision of the first results",
        caption=(
            f"The share of relevant items among the first so many, up to {most:,}: the longer a "
            "line stays level, the further one can scroll"
            + ("; no ranking lies above the grey line." if ceiling else ".")
        ),
        labels=("items retrieved", "precision"),
        finish=finish,
        ceiling=None if ceiling is None else near(ceiling),
    )


def map_against_bits(curves: Sequence[Curve]) -> Drawing:
    """Mean average precision (y) against code length in bits (x)."""
    points = [_finite(c) for c in curves]
    used = np.unique(np.concatenate([x for x, _, _ in points])) if points else np.zeros(0)
    lowest = min((float(y.min()) for _, y, _ in points if len(y)), default=0.0)

    def finish(axes: Axes) -> None:
        axes.set_xscale("log", base=2)
        if len(used):
            axes.set_xlim(used[0] / 1.25, used[-1] * 1.25)
        ticks = _thinned(used)
        axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axes.set_xticks([], minor=True)
        # All lines above a half: show where they differ.
        axes.set_ylim(np.floor(lowest * 10 - 0.5) / 10 if lowest > 0.5 else 0.0, 1.0)

    return _drawing(
        curves,
        name="map-bits",
        heading="Quality against code length",
        caption=(
            "Mean average precision at each code length: where a line flattens, longer codes cost "
            "memory without finding more."
        ),
        labels=("bits", "mean average precision"),
        finish=finish,
        every_point=True,
    )


def _thinned(values: Floats) -> Floats:
    """At most `MOST_TICKS` of the values, the last among them."""
    step = -(-len(values) // MOST_TICKS) if len(values) else 1
    return values[::-1][::step][::-1]


def _drawing(
    curves: Sequence[Curve],
    *,
    name: str,
    heading: str,
    caption: str,
    labels: tuple[str, str],
    finish: Callable[[Axes], None],
    every_point: bool = False,
    ceiling: Curve | None = None,
) -> Drawing:
    if not curves:
        raise InputError(f"figure {name} needs a curve or more, got none")
    panels = list(dict.fromkeys(c.panel for c in curves))
    names = list(dict.fromkeys(c.name for c in curves))

    def paint(width: Width) -> Figure:
        columns = 1 if width == "column" else min(len(panels), 3)
        rows = -(-len(panels) // columns)
        shown = [readable(n) for n in names] + ([readable(ceiling.name)] if ceiling else [])
        per_row = legend_columns(shown, width)
        legend = 0.19 * -(-len(shown) // per_row) + 0.15
        figure = new_figure(width, 2.3 * rows + legend)
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
        for place, axes in enumerate(grid.flat):
            if place >= len(panels):
                axes.remove()
                continue
            if ceiling is not None:
                axes.plot(*_finite(ceiling)[:2], **CEILING)[0].set_gid(f"ceiling-{place}")
            for curve in curves:
                if curve.panel == panels[place]:
                    k = names.index(curve.name)
                    _line(axes, curve, k, every_point).set_gid(f"curve-{place}-{k}")
            axes.set_title(readable(panels[place]))
            axes.set_xlabel(labels[0])
            axes.set_ylabel(labels[1] if place % columns == 0 else "")
            finish(axes)
            _show_edges(axes)
        handles = [Line2D([], [], **line_style(k)) for k in range(len(names))]
        if ceiling is not None:
            handles.append(Line2D([], [], **CEILING))
        figure.legend(handles, shown, loc="outside lower center", ncols=per_row)
        return figure

    alt = _describe(heading, curves, labels)
    return Drawing(name, heading, caption, alt, paint, wide=len(panels) > 1)


def _line(axes: Axes, curve: Curve, k: int, every_point: bool) -> Line2D:
    x, y, spread = _finite(curve)
    # Markers sit at different places on each line, so that lines which coincide still show.
    sparse = None if every_point or len(x) < 2 else (0.03 + 0.025 * (k % 6), 0.16)
    (line,) = axes.plot(x, y, markevery=sparse, zorder=3, **line_style(k))
    if spread is not None:
        axes.errorbar(
            x, y, spread, fmt="none", ecolor=line.get_color(), elinewidth=0.9, capsize=2.5
        )
    return line


def _show_edges(axes: Axes) -> None:
    """Let markers on the frame show as a whole, where no point lies outside of it."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for line in axes.lines:
        x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        if np.all((x >= left) & (x <= right) & (y >= bottom) & (y <= top)):
            line.set_clip_on(False)


def _finite(curve: Curve) -> tuple[Floats, Floats, Floats | None]:
    """Points that can be drawn."""
    x, y = np.asarray(curve.x, np.float64), np.asarray(curve.y, np.float64)
    kept = np.isfinite(x) & np.isfinite(y)
    spread = None if curve.spread is None else np.nan_to_num(np.asarray(curve.spread))[kept]
    return x[kept], y[kept], spread


def _describe(heading: str, curves: Sequence[Curve], labels: tuple[str, str]) -> str:
    """Say in words where each line begins and ends."""
    parts = []
    for curve in curves[:MOST_DESCRIBED]:
        x, y, _ = _finite(curve)
        where = f"{curve.panel}, {curve.name}" if curve.panel else curve.name
        if len(x):
            parts.append(f"{where}: from {y[0]:.3f} at {x[0]:.4g} to {y[-1]:.3f} at {x[-1]:.4g}")
        else:
            parts.append(f"{where}: no data")
    if len(curves) > MOST_DESCRIBED:
        parts.append(f"and {len(curves) - MOST_DESCRIBED} more lines")
    return f"{heading}: {labels[1]} against {labels[0]}. " + "; ".join(parts) + "."
