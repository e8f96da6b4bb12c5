"""From evaluations of a model to the figures and the report of its retrieval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from sadih_dask.model.estimator import SADIH
from sadih_dask.report.measurements import BitCounts, Curve, Neighbours, PairDistances, Quality
from sadih_dask.report.page import Drawn, Report, WrittenFile, installed_versions
from sadih_dask.retrieval.evaluation import Evaluation, Protocols
from sadih_dask.types import Ints

if TYPE_CHECKING:
    from sadih_dask.report.figures import Drawing


@dataclass(frozen=True, eq=False)
class Length:
    """Retrieval quality of one code length; seconds are those of learning, if that was done."""

    n_bits: int
    protocols: Protocols
    seconds: float | None = None

    @property
    def known(self) -> dict[str, Evaluation]:
        """Evaluations by protocol, those that were made."""
        found = {"learned": self.protocols.learned, "encoded": self.protocols.encoded}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Everything that was measured of a model.

    lengths     evaluations, one for each code length
    model       the model whose codes are looked at more closely; its length is among them
    bits        of the database codes, or of the learned ones where there is no database
    neighbours  pictures of queries and what they find, where rows have pictures
    ceiling     the best precision that any ranking can have, against the number retrieved
    classes     names, if any
    """

    lengths: Sequence[Length]
    model: SADIH
    bits: BitCounts | None = None
    neighbours: Neighbours | None = None
    ceiling: Curve | None = None
    classes: Sequence[str] = field(default_factory=tuple)

    @property
    def own(self) -> Length:
        """The evaluation at the model's own length."""
        n_bits = self.model.hash_function_.n_bits
        return next(length for length in self.lengths if length.n_bits == n_bits)


def quality(length: Length) -> Quality:
    """The few numbers that a table on a page has room for."""
    metrics = {}
    for protocol, found in length.known.items():
        first = next(iter(found.precision_at), None)
        shown = ["MAP", f"precision@{first}", f"precision, radius {found.radius}"]
        metrics[protocol] = {name: v for name, v in found.numbers.items() if name in shown}
    return Quality(length.n_bits, metrics, seconds=length.seconds)


def precision_recall_curves(lengths: Sequence[Length]) -> list[Curve]:
    """One line for each code length, one panel for each protocol."""
    return [
        Curve(f"{length.n_bits} bits", e.recall, e.precision, panel)
        for length in lengths
        for panel, e in length.known.items()
    ]


def precision_retrieved_curves(lengths: Sequence[Length]) -> list[Curve]:
    """Precision among the first 1, 2, ... items, lines and panels as above."""
    return [
        Curve(f"{length.n_bits} bits", places(len(e.precision_curve)), e.precision_curve, panel)
        for length in lengths
        for panel, e in length.known.items()
    ]


def map_curves(lengths: Sequence[Length]) -> list[Curve]:
    """MAP against bits, one line for each protocol."""
    ordered = sorted(lengths, key=lambda length: length.n_bits)
    bits = np.array([float(length.n_bits) for length in ordered])
    return [
        Curve(panel, bits, np.array([length.known[panel].map for length in ordered]))
        for panel in ordered[0].known
    ]


def distance_histograms(length: Length) -> list[PairDistances]:
    """Distances of pairs that share a label and of pairs that do not, for each protocol."""
    return [
        PairDistances(e.similar, e.dissimilar, f"{panel}, {length.n_bits} bits")
        for panel, e in length.known.items()
    ]


def best_possible(relevant: Ints, most: int) -> Curve:
    """Precision of a perfect ranking at 1 .. ``most``, from each query's number of relevant items.

    >>> best_possible(np.array([1, 2]), 4).y
    array([1.   , 0.75 , 0.5  , 0.375])
    """
    first = places(most)
    counts, weights = np.unique(relevant, return_counts=True)
    values = np.minimum(1, counts[:, None] / first)
    return Curve("best possible", first, np.average(values, axis=0, weights=weights))


def places(most: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Places of a ranking, 1 .. ``most``."""
    return np.arange(1, most + 1, dtype=np.float64)


def drawings(found: Retrieval) -> list[Drawing]:
    """Every figure there is something to show in; needs matplotlib."""
    return list(_drawings(found))


def _drawings(found: Retrieval) -> Iterator[Drawing]:
    from sadih_dask.report import figures

    lengths = found.lengths
    if len(lengths) > 1:
        yield figures.map_against_bits(map_curves(lengths))
    yield figures.precision_recall(precision_recall_curves(lengths))
    curves = precision_retrieved_curves(lengths)
    most = max(len(curve.x) for curve in curves)
    if most:
        yield figures.precision_retrieved(curves, most=most, ceiling=found.ceiling)
    yield figures.pair_distances(distance_histograms(found.own))
    if found.neighbours is not None:
        drawing = figures.neighbour_pictures(found.neighbours)
        chosen = " The queries go from the worst to the best average precision, evenly."
        yield replace(drawing, caption=drawing.caption + chosen)
    if len(found.model.trace_):
        yield figures.objective_trace(found.model.trace_)
    if found.bits is not None and found.bits.n_rows:
        yield figures.bit_figure(found.bits)


def retrieval_report(
    title: str,
    found: Retrieval,
    drawn: Sequence[Drawn],
    *,
    data: dict[str, object],
    files: Sequence[WrittenFile] = (),
    started: datetime | None = None,
    seconds: float | None = None,
) -> Report:
    """Put what was measured and drawn into a report."""
    model, evaluation = found.model, list(found.own.known.values())[-1]
    return Report(
        title=title,
        n_database=evaluation.n_database,
        n_queries=evaluation.n_queries,
        n_classes=len(model.classes_),
        n_groups=model.groups_.n_groups,
        parameters=model.get_params(deep=False),
        quality=[quality(length) for length in found.lengths],
        drawings=drawn,
        data={"features": model.n_features_in_, **data, "model": model.fingerprint_},
        classes=tuple(found.classes) or tuple(str(name) for name in model.classes_),
        files=files,
        versions=installed_versions(),
        started=started,
        seconds=seconds,
    )
