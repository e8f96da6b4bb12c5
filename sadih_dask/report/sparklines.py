"""Small pictures for notebooks: plain SVG that reads on a light and on a dark page.

Text and frames have the colour of the text around them; the one other colour has a contrast of 3:1
or more against white and against black. A space follows every text: notebooks that are not trusted
strip the pictures and leave the words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from sadih_dask.retrieval.codes import unpack
from sadih_dask.types import Array, Bytes

MOST_ROWS = 24
MOST_BITS = 128
MOST_BARS = 64
ACCENT = "#4c90d9"
_LONGEST_NAME = 14
_LETTER = 5.6
_CELL = 9
_FRAME = Markup('fill="none" stroke="currentColor" stroke-opacity=".35"')
_STROKES = (
    Markup('stroke="{}" stroke-width="2"').format(ACCENT),
    Markup('stroke="currentColor" stroke-width="1.2" stroke-dasharray="4 2"'),
)
"""Two lines are told apart by colour and by dashes."""


def sparkline(values: Sequence[float] | Array, label: str) -> Markup:
    """Draw a line through the finite values, on a logarithmic scale if all are positive."""
    found = [float(v) for v in values if math.isfinite(v)]
    if all(v > 0 for v in found):
        found = [math.log(v) for v in found]
    low, high = min(found, default=0.0), max(found, default=0.0)
    step = 300 / max(len(found) - 1, 1)
    places = [(k * step, 40 - (v - low) / ((high - low) or 1.0) * 40) for k, v in enumerate(found)]
    dots = [f"M{x:.1f} {y:.1f}h0" for x, y in places] if len(places) <= 60 else []
    drawn = Markup(
        '<g fill="none" stroke="{}" stroke-linejoin="round" stroke-linecap="round">'
        '<polyline points="{}" stroke-width="1.5"/><path d="{}" stroke-width="4"/></g>'
    ).format(ACCENT, _points(places), "".join(dots))
    return _svg(label, (-4, -4, 308, 48), drawn)


def bars(values: Sequence[float] | Array, label: str) -> Markup:
    """Draw the first of many values as bars from zero."""
    shown = [float(v) for v in values[:MOST_BARS]]
    highest = max(shown, default=0.0) or 1.0
    path = "".join(f"M{9 * k} 40h8v-{v / highest * 40:.1f}h-8z" for k, v in enumerate(shown))
    width = max(9 * len(shown), 1)
    drawn = Markup('<path d="{}" fill="{}"/><path d="M0 40.5h{}" {}/>')
    return _svg(label, (0, 0, width, 41), drawn.format(path, ACCENT, width, _FRAME))


def code_grid(packed: Bytes, n_bits: int, label: str, names: Sequence[str] = ()) -> Markup:
    """Draw codes as rows of cells, filled where a bit is set; the first rows and bits of many."""
    bits = unpack(packed[:MOST_ROWS], n_bits)[:, :MOST_BITS]
    rows, columns = bits.shape
    path = "".join(
        f"M{k} {row}h.86v.86h-.86z" for row in range(rows) for k in range(columns) if bits[row, k]
    )
    shown = [_short(name) for name in names[:rows]]
    left = max((len(name) * _LETTER + 6 for name in shown), default=0.0)
    texts = _texts((left - 5, (row + 0.8) * _CELL, name) for row, name in enumerate(shown))
    cells = Markup(
        '<g transform="translate({:.1f} 0) scale({})">'
        '<path d="M0 0h{}v{}h-{}z" fill="currentColor" fill-opacity=".1"/>'
        '<path d="{}" fill="{}"/></g>'
    ).format(left, _CELL, columns, rows, columns, path, ACCENT)
    return _svg(label, (0, 0, left + columns * _CELL, rows * _CELL), texts + cells)


def plot(
    lines: Mapping[str, tuple[Array, Array]],
    axes: tuple[str, str],
    label: str,
    *,
    top: float | None = None,
) -> Markup:
    """Draw one or two lines over (0, ``top``), by default their highest point, with their names."""
    right = max((float(x.max()) for x, _ in lines.values() if len(x)), default=0.0) or 1.0
    highest = max((float(y.max()) for _, y in lines.values() if len(y)), default=0.0)
    scale = (highest if top is None else top) or 1.0
    drawn, texts = [Markup('<path d="M0 0v90h300" {}/>').format(_FRAME)], []
    for k, ((name, (x, y)), stroke) in enumerate(zip(lines.items(), _STROKES, strict=False)):
        places = [(a / right * 300, 90 - b / scale * 88) for a, b in zip(x, y, strict=True)]
        known = _points((a, b) for a, b in places if math.isfinite(b))
        drawn.append(Markup('<polyline points="{}" fill="none" {}/>').format(known, stroke))
        if name:
            drawn.append(Markup('<path d="M{} 101h16" {}/>').format(90 * k, stroke))
            texts.append(
                Markup('<text x="{}" y="104">{}</text> ').format(90 * k + 20, _short(name))
            )
    turned = Markup('<text transform="translate(-4 0) rotate(-90)" text-anchor="end">{}</text> ')
    texts += [_texts([(300, 104, axes[0])]), turned.format(axes[1])]
    words = Markup('<g font-size="10" fill="currentColor">{}</g>').format(Markup("").join(texts))
    return _svg(label, (-14, -2, 318, 110), Markup("").join([*drawn, words]))


def _svg(label: str, box: tuple[float, float, float, float], drawn: Markup) -> Markup:
    corner = " ".join(f"{value:g}" for value in box)
    return Markup(
        '<svg role="img" aria-label="{}" viewBox="{}" width="{:g}" height="{:g}">{}</svg>'
    ).format(label, corner, box[2], box[3], drawn)


def _texts(placed: Iterable[tuple[float, float, str]]) -> Markup:
    """Texts that end at (x, y)."""
    one = Markup(
        '<text x="{:.1f}" y="{:.1f}" font-size="9.5" text-anchor="end" fill="currentColor">{}'
        "</text> "
    )
    return Markup("").join(one.format(*text) for text in placed)


def _points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
