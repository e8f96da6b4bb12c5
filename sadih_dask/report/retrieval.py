"""From evaluations of a model to the figures and the report of its retrieval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from sadih_dask.model.estimator import SADIH
from sadih_dask.report.code_statistics import BitCounts, NeighbourPictures
from sadih_dask.report.page import Quality, Report, WrittenFile, installed_versions
from sadih_dask.retrieval.evaluation import Evaluation, Protocols
from sadih_dask.types import Floats, Ints

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
        return self.protocols.known


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Everything that was measured of a model.

    lengths     evaluations, one for each code length
    model       the model whose codes are looked at more closely; its length is among them
    bits        of the database codes, or of the learned ones where there is no database
    neighbours  pictures of queries and what they find, where rows have pictures
    ceiling     the best precision that any ranking can have at 1, 2, ... items retrieved
    classes     names, if any
    """

    lengths: Sequence[Length]
    model: SADIH
    bits: BitCounts | None = None
    neighbours: NeighbourPictures | None = None
    ceiling: Floats | None = None
    classes: Sequence[str] = ()

    @property
    def own(self) -> Length:
        """The evaluation at the model's own length."""
        n_bits = self.model.hash_function_.n_bits
        return next(length for length in self.lengths if length.n_bits == n_bits)


def best_possible(relevant: Ints, most: int) -> Floats:
    """Precision of a perfect ranking at 1 .. ``most``, from each query's number of relevant items.

    >>> best_possible(np.array([1, 2]), 4)
    array([1.   , 0.75 , 0.5  , 0.375])
    """
    counts, weights = np.unique(relevant, return_counts=True)
    values = np.minimum(1, counts[:, None] / np.arange(1, most + 1))
    return np.average(values, axis=0, weights=weights)


def drawings(found: Retrieval) -> list[Drawing]:
    """Every figure there is something to show in; needs matplotlib."""
    return list(_drawings(found))


def _drawings(found: Retrieval) -> Iterator[Drawing]:
    from sadih_dask.report import figures
    from sadih_dask.report.explore import Comparison

    lengths, own = found.lengths, found.own
    compared = Comparison({f"{length.n_bits} bits": length.protocols for length in lengths})
    if len(lengths) > 1:
        yield compared.map_against_bits()
    yield compared.precision_recall()
    if any(len(e.precision_curve) for length in lengths for e in length.known.values()):
        yield compared.precision_retrieved(found.ceiling)
    yield figures.pair_distances(
        [
            figures.PairDistances(e.similar, e.dissimilar, f"{protocol}, {own.n_bits} bits")
            for protocol, e in own.known.items()
        ]
    )
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
    drawn: Sequence[Drawing],
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
        quality=[_quality(length) for length in found.lengths],
        drawings=drawn,
        data={
            "features": model.n_features_in_,
            **data,
            "queries drawn from": evaluation.n_drawn_from,
            "standard error of MAP": ", ".join(
                f"{e.standard_errors['MAP']:.4f} {name}" for name, e in found.own.known.items()
            ),
            "model": model.fingerprint_,
        },
        classes=tuple(found.classes) or tuple(str(name) for name in model.classes_),
        files=files,
        versions=installed_versions(),
        started=started,
        seconds=seconds,
    )


def _quality(length: Length) -> Quality:
    """The few numbers that a table on a page has room for."""
    metrics = {}
    for protocol, found in length.known.items():
        first = next(iter(found.precision_at), None)
        shown = ["MAP", f"precision@{first}", f"precision, radius {found.radius}"]
        metrics[protocol] = {name: v for name, v in found.numbers.items() if name in shown}
    return Quality(length.n_bits, metrics, seconds=length.seconds)
