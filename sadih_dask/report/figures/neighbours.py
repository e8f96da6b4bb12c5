"""Query pictures with the pictures that were found for them."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sadih_dask.arrays import Bytes
from sadih_dask.errors import InputError
from sadih_dask.report.figures.drawing import Drawing
from sadih_dask.report.figures.style import INCHES, Width, new_figure, readable
from sadih_dask.report.measurements import Neighbours
from sadih_dask.report.palette import GREEN, INK, MUTED, VERMILION

MOST_SHOWN: dict[Width, int] = {"page": 10, "column": 5}
_CELL = 1.3
"""Height of a picture with its line of text; the picture is 1 x 1."""
_GAP = 0.16
_FIRST = 0.35
"""Between the query and its neighbours."""


def neighbour_pictures(neighbours: Neighbours) -> Drawing:
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


def _row(axes: Axes, neighbours: Neighbours, row: int, shown: int) -> None:
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
