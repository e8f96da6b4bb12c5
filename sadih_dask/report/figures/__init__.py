"""Figures of retrieval, codes and learning, good enough to print; they need matplotlib.

`style` is what all of them look like; `retrieval`, `codes` and `learning` draw.
"""

from __future__ import annotations

from sadih_dask.errors import InputError, lacking

if (said := lacking("matplotlib", "a figure")) is not None:
    raise InputError(said)

from sadih_dask.report.figures.codes import bit_figure, pair_distances
from sadih_dask.report.figures.learning import objective_trace, score_surface
from sadih_dask.report.figures.retrieval import (
    Curve,
    map_against_bits,
    neighbour_pictures,
    openness_curve,
    precision_recall,
    precision_retrieved,
)
from sadih_dask.report.figures.style import Drawing

__all__ = [
    "Curve",
    "Drawing",
    "bit_figure",
    "map_against_bits",
    "neighbour_pictures",
    "objective_trace",
    "openness_curve",
    "pair_distances",
    "precision_recall",
    "precision_retrieved",
    "score_surface",
]
