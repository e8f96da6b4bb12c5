"""What codes carry: how far pairs that share a label are from others, and what each bit tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from sadih_dask.report.code_statistics import BitCounts, shares
from sadih_dask.report.figures.style import Drawing, Width, new_figure, panels, readable
from sadih_dask.report.html import BLUE, MUTED, VERMILION
from sadih_dask.types import Array, Floats

MOST_CELLS = 256
"""Bits a side that the picture of correlations resolves; longer codes are shown in blocks."""
_SIMILAR: dict[str, Any] = {"edgecolor": BLUE.light, "linewidth": 1.3}
_DISSIMILAR: dict[str, Any] = {
    "edgecolor": VERMILION.light,
    "linewidth": 1.3,
    "linestyle": (0, (4, 1.5)),
}
_HATCH = "////"


def pair_distances(distances: Mapping[str, tuple[Array, Array]]) -> Drawing:
    """Histogram of Hamming distances of similar and of dissimilar pairs, by the name of a panel.

    Both come as counts, (n_bits + 1,): pairs that share a label, and pairs that do not.
    """

    def paint(width: Width) -> Figure:
        labels = ("Hamming distance", "share of pairs")
        figure, grid = panels(width, len(distances), 2.1, labels, below=0.35)
        for place, (axes, (name, pairs)) in enumerate(zip(grid, distances.items(), strict=True)):
            axes.set_title(readable(name))
            _panel(axes, shares(pairs[0]), shares(pairs[1]), place)
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

    described = " ".join(_describe(name, *pairs) for name, pairs in distances.items())
    return Drawing(
        "pair-distances",
        "Distances of similar and dissimilar pairs",
        "Pairs that share a label should lie to the left and the others to the right; the overlap "
        "is the share of pairs that no search radius can tell apart.",
        f"Share of pairs against Hamming distance. {described}",
        paint,
        wide=len(distances) > 1,
    )


def _panel(axes: Axes, similar: Floats, dissimilar: Floats, place: int) -> None:
    edges = np.arange(len(similar) + 1) - 0.5
    # The outline is drawn apart from the filling, which must stay faint.
    axes.stairs(similar, edges, fill=True, color=BLUE.light, alpha=0.35, linewidth=0)
    axes.stairs(similar, edges, **_SIMILAR).set_gid(f"similar-{place}")
    axes.stairs(dissimilar, edges, hatch=_HATCH, **_DISSIMILAR).set_gid(f"dissimilar-{place}")
    axes.set_xlim(edges[0], edges[-1])
    highest = max(float(similar.max()), float(dissimilar.max()), 1e-9)
    axes.set_ylim(0, highest * 1.15)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.locator_params(axis="x", integer=True, nbins=6)
    axes.text(
        0.98,
        0.98,
        f"overlap {_overlap(similar, dissimilar):.1%}",
        transform=axes.transAxes,
        ha="right",
        va="top",
        color=MUTED.light,
        fontsize=7.5,
    )


def _overlap(similar: Floats, dissimilar: Floats) -> float:
    """Share that the two distributions have in common: 0 where a radius separates them."""
    return float(np.minimum(similar, dissimilar).sum())


def _describe(panel: str, similar: Array, dissimilar: Array) -> str:
    name = f"{panel}: " if panel else ""
    return (
        f"{name}similar pairs at {_mean(similar)} bits on average, dissimilar ones at "
        f"{_mean(dissimilar)}, overlap {_overlap(shares(similar), shares(dissimilar)):.1%}."
    )


def _mean(counts: Array) -> str:
    if not np.sum(counts):
        return "no"
    return f"{float(shares(counts) @ np.arange(len(counts))):.1f}"


def bit_figure(bits: BitCounts) -> Drawing:
    """Balance of every bit and correlation of every two, over a code or more."""
    balance, correlation = bits.balance, bits.correlation

    def paint(width: Width) -> Figure:
        figure = new_figure(width, 2.7 if width == "page" else 5.0)
        if width == "page":
            left, right = figure.subplots(1, 2, width_ratios=[1.35, 1])
        else:
            left, right = figure.subplots(2, 1, height_ratios=[1, 1.35])
        _balance(left, balance)
        _correlation(figure, right, correlation)
        return figure

    off = strongest(correlation)
    constant = int(np.sum((balance == 0) | (balance == 1)))
    alt = (
        f"Balance and correlation of {len(balance)} bits over {bits.n_rows:,} codes. Bits are set "
        f"in {balance.min():.1%} to {balance.max():.1%} of the codes; "
        f"{constant} of them never change. The strongest correlation of two bits is {off:.2f}."
    )
    return Drawing(
        "bits",
        "Balance and correlation of bits",
        "A bit tells most when half of the rows have it and when no other bit repeats it: strong "
        "cells off the diagonal are repetition, and empty rows are bits that never change.",
        alt,
        paint,
        wide=True,
    )


def strongest(correlation: Floats) -> float:
    """Return the largest absolute correlation of two different bits; 0 where there is none."""
    off = np.abs(correlation[~np.eye(len(correlation), dtype=bool)])
    known = off[np.isfinite(off)]
    return float(known.max()) if len(known) else 0.0


def _balance(axes: Axes, balance: Floats) -> None:
    bits = np.arange(len(balance))
    axes.axhline(0.5, color=MUTED.light, linewidth=1.0, linestyle=(0, (4, 2)))
    few = len(balance) <= MOST_CELLS
    if few:
        axes.vlines(bits, 0.5, balance, color=BLUE.light, linewidth=1.1)
    (line,) = axes.plot(
        bits, balance, "o", markersize=3.2 if few else 1.5, color=BLUE.light, clip_on=False
    )
    line.set_gid("balance")
    axes.set_ylim(0, 1)
    axes.set_xlim(-0.5, len(balance) - 0.5)
    axes.locator_params(axis="x", integer=True, nbins=6)
    axes.set_xlabel("bit")
    axes.set_ylabel("share of rows with the bit set")


def _correlation(figure: Figure, axes: Axes, correlation: Floats) -> None:
    cells = pooled(np.abs(correlation), MOST_CELLS)
    n = len(correlation)
    picture = axes.imshow(_shades(cells), extent=(-0.5, n - 0.5, n - 0.5, -0.5))
    picture.set_gid("correlation")
    axes.grid(False)
    axes.locator_params(integer=True, nbins=6)
    axes.set_xlabel("bit")
    axes.set_ylabel("bit")
    bar = figure.colorbar(ScalarMappable(), ax=axes, fraction=0.06)
    # Its own filling is hundreds of strips with seams; one small picture is the same scale.
    if bar.solids is not None:
        bar.solids.remove()
    bar.ax.imshow(_shades(np.linspace(1, 0, 128)[:, None]), extent=(0, 1, 0, 1), aspect="auto")
    bar.ax.grid(False)
    bar.set_label("absolute correlation")


def pooled(values: Floats, most: int) -> Floats:
    """The largest value of each block, so that a matrix has at most that many blocks a side.

    The maximum, not the mean: one repeated bit among thousands must stay visible.
    """
    size = -(-len(values) // most)
    if size == 1:
        return values
    blocks = -(-len(values) // size)
    padded = np.full((blocks * size, blocks * size), -1.0)
    padded[: len(values), : len(values)] = np.nan_to_num(values, nan=-1.0)
    largest = padded.reshape(blocks, size, blocks, size).max(axis=(1, 3))
    return np.where(largest < 0, np.nan, largest)


def _shades(values: Floats) -> Floats:
    """One hue, more or less transparent: the same picture serves on white and on black."""
    red, green, blue = (int("4c90d9"[k : k + 2], 16) / 255 for k in (0, 2, 4))
    alpha = np.nan_to_num(values, nan=0.0)
    return np.stack([np.full_like(alpha, c) for c in (red, green, blue)] + [alpha], axis=-1)
