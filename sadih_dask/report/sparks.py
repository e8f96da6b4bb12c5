"""Small pictures for notebooks: plain SVG in the colour of the text around them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from sadih_dask.arrays import Array, Bytes
from sadih_dask.retrieval.codes import unpack

MOST_ROWS = 24
MOST_BITS = 128


def sparkline(values: Sequence[float] | Array, label: str) -> Markup:
    """Draw a line through the finite values, on a logarithmic scale if all are positive."""
    found = [float(v) for v in values if math.isfinite(v)]
    if all(v > 0 for v in found):
        found = [math.log(v) for v in found]
    low, high = min(found, default=0.0), max(found, default=0.0)
    height, step = 40, 300 / max(len(found) - 1, 1)
    points = " ".join(
        f"{k * step:.1f},{height - (v - low) / ((high - low) or 1.0) * height:.1f}"
        for k, v in enumerate(found)
    )
    return Markup(
        '<svg role="img" aria-label="{}" viewBox="-4 -4 308 48" width="308" height="48">'
        '<polyline points="{}" fill="none" stroke="currentColor" stroke-width="1.5" '
        'stroke-linejoin="round"/></svg>'
    ).format(label, points)


def code_grid(packed: Bytes, n_bits: int, label: str) -> Markup:
    """Draw codes as rows of cells, filled where a bit is set; the first rows and bits of many."""
    bits = unpack(packed[:MOST_ROWS], n_bits)[:, :MOST_BITS]
    rows, columns = bits.shape
    path = "".join(
        f"M{k} {row}h.86v.86h-.86z" for row in range(rows) for k in range(columns) if bits[row, k]
    )
    return Markup(
        '<svg role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}">'
        '<path d="M0 0h{}v{}h-{}z" fill="currentColor" fill-opacity=".1"/>'
        '<path d="{}" fill="currentColor" fill-opacity=".8"/></svg>'
    ).format(label, columns, rows, columns * 7, rows * 7, columns, rows, columns, path)
