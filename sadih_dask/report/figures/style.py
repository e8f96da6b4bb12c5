"""A `Drawing` is a figure with its words, and all of them have one look: sizes, type, lines.

What is written is a function of the input alone: fonts come with matplotlib, identifiers are salted
with a constant, no date is written, and no text can break a figure.
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

from sadih_dask.errors import naming
from sadih_dask.report.html import (
    GRID,
    INK,
    MUTED,
    PAPER,
    SERIES,
    fill,
    inline_svg,
)

Width = Literal["page", "column"]
"""The width of a page of two columns, or of one of them (and of a phone)."""

Format = Literal["svg", "pdf"]
INCHES: dict[Width, float] = {"page": 7.0, "column": 3.5}
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.8)), (0, (5, 1.5, 1, 1.5)), (0, (1.2, 1.4)), (0, (9, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FONT = "DejaVu Sans"
POINTS = 72
"""An inch, in vector graphics."""
LONGEST_NAME = 40

RC: Any = {
    "font.family": [FONT],
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "text.color": INK.light,
    "axes.labelcolor": INK.light,
    "axes.titlecolor": INK.light,
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED.light,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "grid.color": GRID.light,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED.light,
    "ytick.color": MUTED.light,
    "xtick.labelcolor": INK.light,
    "ytick.labelcolor": INK.light,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.2,
    "lines.markeredgewidth": 1.1,
    "legend.frameon": False,
    "legend.handlelength": 2.8,
    "hatch.linewidth": 0.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "path",
    "svg.hashsalt": "sadih",
    "pdf.fonttype": 42,
    "image.interpolation": "none",
    "image.composite_image": False,
    # Names are other people's text: a dollar sign in them starts no formula.
    "text.parse_math": False,
    "text.usetex": False,
}
# Without these, matplotlib writes the time and its own version number.
_METADATA: dict[Format, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "sadih_dask"},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": "sadih_dask"},
}


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure and the words that belong to it.

    name     of its files, without extension
    heading  what it is called in a report
    caption  one sentence on how to read it
    alt      what it shows, for those who cannot see it
    paint    draws it in a given width
    wide     whether it needs the page; otherwise a column is enough
    """

    name: str
    heading: str
    caption: str
    alt: str
    paint: Callable[[Width], Figure]
    wide: bool = False

    def figure(self, width: Width | None = None) -> Figure:
        """Return the matplotlib figure, for those who want to change it."""
        with styled():
            return self.paint(width or ("page" if self.wide else "column"))

    def to_bytes(self, kind: Format, width: Width | None = None) -> bytes:
        """Return the figure as a file; asked for again, it is not drawn again."""
        wanted = kind, width or ("page" if self.wide else "column")
        if wanted not in self._files:
            buffer = io.BytesIO()
            with styled():
                self._arranged(wanted[1]).savefig(buffer, format=kind, metadata=_METADATA[kind])
            self._files[wanted] = buffer.getvalue()
        return self._files[wanted]

    @cached_property
    def _files(self) -> dict[tuple[Format, Width], bytes]:
        return {}

    @cached_property
    def _figures(self) -> dict[Width, Figure]:
        return {}

    def _arranged(self, width: Width) -> Figure:
        """The figure with its labels in place, once for all formats.

        Saving would draw everything in vain first, to find the places, and for each format anew.
        """
        if width not in self._figures:
            figure = self.paint(width)
            if (engine := figure.get_layout_engine()) is not None:
                figure.dpi = POINTS  # as SVG and PDF are drawn
                engine.execute(figure)
                figure.set_layout_engine(None)
            self._figures[width] = figure
        return self._figures[width]

    def svg(self, width: Width | None = None) -> str:
        """Return the figure as an SVG document with outlined text."""
        return self.to_bytes("svg", width).decode("utf-8")

    def __repr__(self) -> str:
        return f"<Drawing {self.name}: {self.alt}>"

    def _repr_html_(self) -> str:
        """Show the figure in a notebook, in the colours of its theme."""
        document = self.svg()
        prefix = f"{self.name}-{sha256(document.encode()).hexdigest()[:8]}-"
        picture = inline_svg(document, prefix, self.alt)
        return fill("drawing.html", picture=picture, alt=self.alt, wide=self.wide)

    def save(self, folder: str | Path) -> list[Path]:
        """Write ``NAME.svg`` and ``NAME.pdf`` into a folder."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        paths = {kind: target / f"{self.name}.{kind}" for kind in _METADATA}
        for kind, path in paths.items():
            with naming(path):
                path.write_bytes(self.to_bytes(kind))
        return list(paths.values())


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save in this style, whatever the user's own settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        yield


def new_figure(width: Width, height: float, *, arranged: bool = True) -> Figure:
    """Make an empty figure ``height`` inches high; ``arranged`` makes room for its labels."""
    size = (INCHES[width], height)
    return Figure(figsize=size, layout="constrained" if arranged else None)


def panels(
    width: Width,
    n: int,
    row_height: float,
    labels: tuple[str, str],
    *,
    below: float = 0.0,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """A figure of ``n`` panels, at most three beside each other, with room ``below`` for a legend.

    Their axes have labels for x and y, the latter only where there is no panel to the left.
    """
    columns = 1 if width == "column" else min(n, 3)
    rows = -(-n // columns)
    figure = new_figure(width, row_height * rows + below)
    grid = list(figure.subplots(rows, columns, sharey=sharey, squeeze=False).flat)
    for place, axes in enumerate(grid):
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1] if place % columns == 0 else "")
        if place >= n:
            axes.remove()
    return figure, grid[:n]


def line_style(k: int) -> dict[str, Any]:
    """Line number ``k``: told apart by colour, by dashes and by markers."""
    return {
        "color": SERIES[k % len(SERIES)].light,
        "linestyle": DASHES[k % len(DASHES)],
        "marker": MARKERS[k % len(MARKERS)],
        "markerfacecolor": PAPER.light,
    }


def short_number(value: float, _place: int | None = None) -> str:
    """Write a tick as 2.4M or 36k: no offset above the axis, no formula."""
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e15:
        return f"{value:.2g}"
    for power, suffix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 10**power:
            return f"{value / 10**power:.4g}{suffix}"
    return f"{value:.4g}"


def legend_columns(names: list[str], width: Width) -> int:
    """How many legend entries fit beside each other."""
    widths = [len(name) * 0.062 + 0.62 for name in names]
    room = INCHES[width] * 0.96
    if sum(widths) <= room:
        return max(1, len(names))
    return max(1, int(room / max(widths)))


@cache
def _known_characters() -> frozenset[int]:
    return frozenset(get_font(findfont(FONT)).get_charmap())


def readable(text: str, longest: int = LONGEST_NAME) -> str:
    """Text as a figure can show it: no control characters, no missing glyphs, not too long."""
    plain = " ".join(unicodedata.normalize("NFC", str(text)).split())
    shown = "".join(
        c if ord(c) in _known_characters() else "\N{REPLACEMENT CHARACTER}" for c in plain
    )
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
