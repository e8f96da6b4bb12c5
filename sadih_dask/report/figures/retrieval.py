"""How well codes retrieve: curves of precision and MAP, and pictures of what queries find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from sadih_dask.errors import InputError
from sadih_dask.report.code_statistics import NeighbourPictures
from sadih_dask.report.figures.style import (
    INCHES,
    Drawing,
    Width,
    legend_columns,
    line_style,
    new_figure,
    panels,
    readable,
)
from sadih_dask.report.html import GREEN, INK, MUTED, VERMILION
from sadih_dask.retrieval.trial import MOST_LOST, Choice
from sadih_dask.types import Bytes, Floats

MOST_TICKS = 8
MOST_DESCRIBED = 12
MOST_SHOWN: dict[Width, int] = {"page": 10, "column": 5}
_CELL = 1.3
"""Height of a picture with its line of text; the picture is 1 x 1."""
_GAP = 0.16
_FIRST = 0.35
"""Between the query and its neighbours."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of a figure. Lines of one name look alike in every panel.

    name    what the legend says: a method, a code length
    x, y    (points,); points with a NaN are left out
    panel   the panel that it belongs to: a protocol, a code length
    """

    name: str
    x: Floats
    y: Floats
    panel: str = ""

    @property
    def finite(self) -> tuple[Floats, Floats]:
        """The points that can be drawn."""
        x, y = np.asarray(self.x, np.float64), np.asarray(self.y, np.float64)
        kept = np.isfinite(x) & np.isfinite(y)
        return x[kept], y[kept]


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


def precision_retrieved(curves: Sequence[Curve]) -> Drawing:
    """Precision (y) among the first x items; the paper's Fig. 3."""
    most = max(1, *(len(curve.x) for curve in curves))

    def finish(axes: Axes) -> None:
        axes.set_xlim(0, most)
        axes.set_ylim(0.0, 1.02)

    return _drawing(
        curves,
        name="precision-retrieved",
        heading="Precision of the first results",
        caption=(
            f"The share of relevant items among the first so many, up to {most:,}: the longer a "
            "line stays level, the further one can scroll."
        ),
        labels=("items retrieved", "precision"),
        finish=finish,
    )


def map_against_bits(curves: Sequence[Curve]) -> Drawing:
    """Mean average precision (y) against code length in bits (x)."""
    points = [curve.finite for curve in curves]
    used = np.unique(np.concatenate([x for x, _ in points]))
    lowest = min((float(y.min()) for _, y in points if len(y)), default=0.0)

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


def openness_curve(tried: Sequence[Choice], chosen: float, *, asked: bool) -> Drawing:
    """Mean average precision of known and of unseen classes against openness.

    ``chosen`` is the openness that the model has, and ``asked`` whether somebody gave it.
    """
    names = ("learned", "fresh", "unseen")[: len(tried[0].qualities)]
    x = np.array([choice.openness for choice in tried])
    found = np.array([choice.qualities for choice in tried]).T
    curves = [Curve(name, x, y) for name, y in zip(names, found, strict=True)]

    def finish(axes: Axes) -> None:
        axes.set_xlim(0.0, 1.0)
        axes.set_ylim(0.0, 1.02)
        axes.axvline(chosen, color=MUTED.light, linewidth=1.0, linestyle=(0, (4, 2)))

    why = (
        "as was asked for"
        if asked
        else f"the best mean of these that costs known classes hardly anything ({MOST_LOST})"
    )
    return _drawing(
        curves,
        name="openness",
        heading="Known classes and classes to come",
        caption=(
            "Rows that were left out of learning, and classes left out whole (unseen), at each "
            f"openness. This model has {chosen:g}, {why}."
        ),
        labels=("openness", "mean average precision"),
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
) -> Drawing:
    shown_panels = list(dict.fromkeys(c.panel for c in curves))
    names = list(dict.fromkeys(c.name for c in curves))

    def paint(width: Width) -> Figure:
        shown = [readable(n) for n in names]
        per_row = legend_columns(shown, width)
        legend = 0.19 * -(-len(shown) // per_row) + 0.15
        figure, grid = panels(width, len(shown_panels), 2.3, labels, below=legend, sharey=True)
        for place, (axes, panel) in enumerate(zip(grid, shown_panels, strict=True)):
            for curve in curves:
                if curve.panel == panel:
                    k = names.index(curve.name)
                    _line(axes, curve, k, every_point).set_gid(f"curve-{place}-{k}")
            axes.set_title(readable(panel))
            finish(axes)
            _show_edges(axes)
        handles = [Line2D([], [], **line_style(k)) for k in range(len(names))]
        figure.legend(handles, shown, loc="outside lower center", ncols=per_row)
        return figure

    alt = _describe(heading, curves, labels)
    return Drawing(name, heading, caption, alt, paint, wide=len(shown_panels) > 1)


def _line(axes: Axes, curve: Curve, k: int, every_point: bool) -> Line2D:
    x, y = curve.finite
    # Markers sit at different places on each line, so that lines which coincide still show.
    sparse = None if every_point or len(x) < 2 else (0.03 + 0.025 * (k % 6), 0.16)
    (line,) = axes.plot(x, y, markevery=sparse, zorder=3, **line_style(k))
    return line


def _show_edges(axes: Axes) -> None:
    """Let markers on the frame show as a whole, where no point lies outside of it."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for line in axes.lines:
        x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        if np.all((x >= left) & (x <= right) & (y >= bottom) & (y <= top)):
            line.set_clip_on(False)


def _describe(heading: str, curves: Sequence[Curve], labels: tuple[str, str]) -> str:
    """Say in words where each line begins and ends."""
    parts = []
    for curve in curves[:MOST_DESCRIBED]:
        x, y = curve.finite
        where = f"{curve.panel}, {curve.name}" if curve.panel else curve.name
        if len(x):
            parts.append(f"{where}: from {y[0]:.3f} at {x[0]:.4g} to {y[-1]:.3f} at {x[-1]:.4g}")
        else:
            parts.append(f"{where}: no data")
    if len(curves) > MOST_DESCRIBED:
        parts.append(f"and {len(curves) - MOST_DESCRIBED} more lines")
    return f"{heading}: {labels[1]} against {labels[0]}. " + "; ".join(parts) + "."


def neighbour_pictures(neighbours: NeighbourPictures) -> Drawing:
    """Each query with its nearest neighbours, right and wrong ones marked by frame and sign."""
    q, k = neighbours.relevant.shape
    if not q or not k:
        raise InputError(f"expected a query and a neighbour or more, got {q} queries of {k}")

    def paint(width: Width) -> Figure:
        shown = min(k, MOST_SHOWN[width])
        across = 1 + _FIRST + shown * (1 + _GAP) - _GAP
        down = q * (_CELL + _GAP) + 0.3
        # Few neighbours stay small instead of filling the page.
        full = 1 + _FIRST + MOST_SHOWN[width] * (1 + _GAP) - _GAP
        inches = INCHES[width] / full
        figure = new_figure(width, down * inches, arranged=False)
        axes = figure.add_axes((0.005, 0.005, 0.99, 0.99))
        axes.set_axis_off()
        axes.set_xlim(-0.03, max(across, full) + 0.03)
        axes.set_ylim(down, 0)
        for row in range(q):
            _row(axes, neighbours, row, shown)
        axes.text(0, 0.25, "query", va="bottom", color=MUTED.light, fontsize=7.5)
        axes.text(1 + _FIRST, 0.25, "nearest first", va="bottom", color=MUTED.light, fontsize=7.5)
        return figure

    right = np.asarray(neighbours.relevant, bool).sum(axis=1)
    counts = "; ".join(
        f"{name}: {int(r)} of {k} right"
        for name, r in list(zip(neighbours.names, right, strict=True))[:20]
    )
    return Drawing(
        "neighbours",
        "Queries and what they find",
        "Each row is a query and its nearest neighbours with their Hamming distances: a full frame "
        "and ✓ mark what shares a label with the query, a broken frame and ✗ what does not.",
        f"Pictures of {q} queries and of their {k} nearest neighbours. {counts}.",
        paint,
        wide=True,
    )


def _row(axes: Axes, neighbours: NeighbourPictures, row: int, shown: int) -> None:
    top = 0.35 + row * (_CELL + _GAP)
    _picture(axes, neighbours.queries[row], 0.0, top)
    axes.add_patch(Rectangle((0, top), 1, 1, fill=False, edgecolor=INK.light, linewidth=1.4))
    _label(axes, readable(neighbours.names[row], 12), 0.0, top)
    for place in range(shown):
        left = 1 + _FIRST + place * (1 + _GAP)
        _picture(axes, neighbours.pictures[row, place], left, top)
        right = bool(neighbours.relevant[row, place])
        colour = GREEN.light if right else VERMILION.light
        frame = Rectangle(
            (left, top),
            1,
            1,
            fill=False,
            edgecolor=colour,
            linewidth=1.3 if right else 2.2,
            linestyle="-" if right else (0, (2.2, 1.1)),
        )
        frame.set_gid(f"{'right' if right else 'wrong'}-{row}-{place}")
        axes.add_patch(frame)
        distance = int(neighbours.distances[row, place])
        name = "" if right else f" ({readable(neighbours.found[row][place], 8)})"
        _label(axes, f"{'✓' if right else '✗'} {distance}{name}", left, top)


def _label(axes: Axes, text: str, left: float, top: float) -> None:
    axes.text(left, top + 1.06, text, va="top", ha="left", fontsize=6.8, clip_on=True)


def _picture(axes: Axes, picture: Bytes, left: float, top: float) -> None:
    """Fit a picture into a square, keeping its proportions."""
    height, width = picture.shape[:2]
    scale = 1.0 / max(height, width)
    h, w = height * scale, width * scale
    x, y = left + (1 - w) / 2, top + (1 - h) / 2
    rgb = picture if picture.ndim == 3 else np.repeat(picture[:, :, None], 3, axis=2)
    axes.imshow(rgb, extent=(x, x + w, y + h, y), aspect="auto")
