"""Hamming distances of pairs that share a label against those of pairs that do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from sadih_dask.arrays import Array
from sadih_dask.errors import InputError
from sadih_dask.report.figures.drawing import Drawing
from sadih_dask.report.figures.style import Width, new_figure, readable
from sadih_dask.report.measurements import PairDistances, share
from sadih_dask.report.palette import BLUE, MUTED, VERMILION

_SIMILAR: dict[str, Any] = {"edgecolor": BLUE.light, "linewidth": 1.3}
_DISSIMILAR: dict[str, Any] = {
    "edgecolor": VERMILION.light,
    "linewidth": 1.3,
    "linestyle": (0, (4, 1.5)),
}
_HATCH = "////"


def pair_distances(distances: Sequence[PairDistances]) -> Drawing:
    """Histogram of Hamming distances of similar and of dissimilar pairs, a panel each."""
    if not distances:
        raise InputError("the figure of distances needs a histogram or more, got none")

    def paint(width: Width) -> Figure:
        columns = 1 if width == "column" else min(len(distances), 3)
        rows = -(-len(distances) // columns)
        figure = new_figure(width, 2.1 * rows + 0.35)
        grid = figure.subplots(rows, columns, squeeze=False)
        for place, axes in enumerate(grid.flat):
            if place >= len(distances):
                axes.remove()
                continue
            _panel(axes, distances[place], place)
            axes.set_ylabel("share of pairs" if place % columns == 0 else "")
        figure.legend(
            [
                Patch(facecolor=BLUE.light + "59", **_SIMILAR),
                Patch(facecolor="none", hatch=_HATCH, **_DISSIMILAR),
            ],
            ["share a label", "share none"],
            loc="outside lower center",
            ncols=2,
        )
        return figure

    alt = "Share of pairs against Hamming distance. " + " ".join(map(_describe, distances))
    return Drawing(
        "pair-distances",
        "Distances of similar and dissimilar pairs",
        "Pairs that share a label should lie to the left and the others to the right; the overlap "
        "is the share of pairs that no search radius can tell apart.",
        alt,
        paint,
        wide=len(distances) > 1,
    )


def _panel(axes: Axes, pairs: PairDistances, place: int) -> None:
    edges = np.arange(pairs.n_bits + 2) - 0.5
    similar, dissimilar = share(pairs.similar), share(pairs.dissimilar)
    # The outline is drawn apart from the filling, which must stay faint.
    axes.stairs(similar, edges, fill=True, color=BLUE.light, alpha=0.35, linewidth=0)
    axes.stairs(similar, edges, **_SIMILAR).set_gid(f"similar-{place}")
    axes.stairs(dissimilar, edges, hatch=_HATCH, **_DISSIMILAR).set_gid(f"dissimilar-{place}")
    axes.set_xlim(edges[0], edges[-1])
    highest = max(float(similar.max()), float(dissimilar.max()), 1e-9)
    axes.set_ylim(0, highest * 1.15)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.locator_params(axis="x", integer=True, nbins=6)
    axes.set_xlabel("Hamming distance")
    axes.set_title(readable(pairs.panel))
    axes.text(
        0.98,
        0.98,
        f"overlap {pairs.overlap:.1%}",
        transform=axes.transAxes,
        ha="right",
        va="top",
        color=MUTED.light,
        fontsize=7.5,
    )


def _describe(pairs: PairDistances) -> str:
    name = f"{pairs.panel}: " if pairs.panel else ""
    return (
        f"{name}similar pairs at {_mean(pairs.similar)} bits on average, dissimilar ones at "
        f"{_mean(pairs.dissimilar)}, overlap {pairs.overlap:.1%}."
    )


def _mean(counts: Array) -> str:
    if not np.sum(counts):
        return "no"
    return f"{float(share(counts) @ np.arange(len(counts))):.1f}"
