"""Figures of retrieval and of learning, good enough to print."""

from __future__ import annotations

from importlib.util import find_spec

from sadih_dask.errors import InputError

if find_spec("matplotlib") is None:
    raise InputError(
        "figures need matplotlib, which is not installed. "
        "Install it with: pip install 'sadih-dask[report]'"
    )

from sadih_dask.report.figures.bits import bit_figure
from sadih_dask.report.figures.curves import map_against_bits, precision_recall, precision_retrieved
from sadih_dask.report.figures.distances import pair_distances
from sadih_dask.report.figures.drawing import Drawing
from sadih_dask.report.figures.neighbours import neighbour_pictures
from sadih_dask.report.figures.objective import objective_trace
from sadih_dask.report.figures.surface import score_surface

__all__ = [
    "Drawing",
    "bit_figure",
    "map_against_bits",
    "neighbour_pictures",
    "objective_trace",
    "pair_distances",
    "precision_recall",
    "precision_retrieved",
    "score_surface",
]
