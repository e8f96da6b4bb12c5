"""What each bit carries: how evenly it divides the rows, and what it repeats of other bits."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure

from sadih_dask.arrays import Floats
from sadih_dask.errors import InputError
from sadih_dask.report.figures.drawing import Drawing
from sadih_dask.report.figures.style import Width, new_figure
from sadih_dask.report.measurements import BitCounts
from sadih_dask.report.palette import BLUE, MUTED

MOST_CELLS = 256
"""Bits a side that the picture of correlations resolves; longer codes are shown in blocks."""


def bit_figure(bits: BitCounts) -> Drawing:
    """Balance of every bit and correlation of every two."""
    if not bits.n_rows:
        raise InputError("bits were counted over no codes; the figure needs one code or more")
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
