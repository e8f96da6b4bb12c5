"""Retrieval quality of codes, in numbers and curves.

`BY_CUTOFF` is the place to name a new metric of `metrics` at a cutoff; it is a field, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sadih_dask.retrieval import metrics
from sadih_dask.retrieval.histograms import Histograms
from sadih_dask.retrieval.metrics import RECALL_GRID, mean_of_known
from sadih_dask.types import Floats, Ints

CUTOFFS = (100, 1000)
RADIUS = 2
CURVE_LENGTH = 1000
BY_CUTOFF: dict[str, tuple[str, Callable[[Histograms, int], Floats]]] = {
    "map_at": ("MAP", metrics.average_precision),
    "precision_at": ("precision", metrics.precision_at),
    "recall_at": ("recall", metrics.recall_at),
    "ndcg_at": ("NDCG", metrics.ndcg_at),
}
"""Fields that hold a metric by cutoff: its name in tables, and its value for each query."""


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Metrics averaged over queries; ties in distance are averaged over all orders.

    n_bits, n_queries, n_database   what was compared
    n_without_relevant  queries without any relevant item: no part of MAP, recall, NDCG and the
                        precision-recall curve, of precision 0 elsewhere
    map                 mean average precision over the whole ranking
    map_at, precision_at, recall_at, ndcg_at    by cutoff; map_at divides by min(k, relevant)
    radius, precision_within    precision of the items within a Hamming radius, 0 if there are none
    empty_within        share of queries with nothing within the radius
    precision_curve     precision at 1, 2, ...
    recall, precision   the precision-recall curve
    similar, dissimilar     (n_bits + 1,) pairs at each distance that do and do not share a label
    average_precision   (queries,) behind `map`, NaN without relevant items
    """

    n_bits: int
    n_queries: int
    n_database: int
    n_without_relevant: int
    map: float
    map_at: Mapping[int, float]
    precision_at: Mapping[int, float]
    recall_at: Mapping[int, float]
    ndcg_at: Mapping[int, float]
    radius: int
    precision_within: float
    empty_within: float
    precision_curve: Floats
    recall: Floats
    precision: Floats
    similar: Ints
    dissimilar: Ints
    average_precision: Floats

    @classmethod
    def of(
        cls,
        histograms: Histograms,
        *,
        cutoffs: Iterable[int] = CUTOFFS,
        radius: int = RADIUS,
        curve_length: int = CURVE_LENGTH,
    ) -> Evaluation:
        """Compute everything from histograms; O(queries x bits), whatever the database."""
        ap = metrics.average_precision(histograms)
        at = tuple(cutoffs)
        by_cutoff: dict[str, Any] = {
            field: {k: mean_of_known(metric(histograms, k)) for k in at}
            for field, (_, metric) in BY_CUTOFF.items()
        }
        similar = histograms.relevant.sum(axis=0)
        found_within = histograms.total[:, : radius + 1].sum(axis=1)
        return cls(
            n_bits=histograms.total.shape[1] - 1,
            n_queries=len(histograms),
            n_database=int(histograms.total.sum(axis=1).max(initial=0)),
            n_without_relevant=int(np.isnan(ap).sum()),
            map=mean_of_known(ap),
            **by_cutoff,
            radius=radius,
            precision_within=mean_of_known(metrics.precision_within(histograms, radius)),
            empty_within=mean_of_known(1.0 * (found_within == 0)),
            precision_curve=metrics.precision_curve(histograms, curve_length),
            recall=RECALL_GRID,
            precision=metrics.precision_recall_curve(histograms),
            similar=similar,
            dissimilar=histograms.total.sum(axis=0) - similar,
            average_precision=ap,
        )

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics that are one number, by name, in the order of a table."""
        named = {"MAP": self.map}
        for field, (name, _) in BY_CUTOFF.items():
            named |= {f"{name}@{k}": value for k, value in getattr(self, field).items()}
        named[f"precision, radius {self.radius}"] = self.precision_within
        named[f"empty, radius {self.radius}"] = self.empty_within
        return named

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and lists, which JSON takes; NaN becomes None."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Evaluation:
        """Take back what `to_dict` gave."""
        return cls(**{name: _restored(name, value) for name, value in values.items()})

    def __repr__(self) -> str:
        return _table({"": self})


@dataclass(frozen=True, eq=False, repr=False)
class Protocols:
    """The same queries against two kinds of database codes, which answer different questions.

    learned     the database carries the learned codes of its labels: the paper's protocol
    encoded     the database is hashed as the queries are: what one gets for unlabelled data, or
                None where no database was given to hash
    """

    learned: Evaluation
    encoded: Evaluation | None

    @property
    def known(self) -> dict[str, Evaluation]:
        """Evaluations by the name of their protocol, those that were made."""
        found = {"learned": self.learned, "encoded": self.encoded}
        return {name: value for name, value in found.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Both as plain numbers and lists."""
        known = {name: found.to_dict() for name, found in self.known.items()}
        return {"learned": None, "encoded": None} | known

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Protocols:
        """Take back what `to_dict` gave."""
        learned, encoded = values["learned"], values["encoded"]
        return cls(Evaluation.from_dict(learned), encoded and Evaluation.from_dict(encoded))

    def __repr__(self) -> str:
        return _table(self.known)


def _table(evaluations: Mapping[str, Evaluation]) -> str:
    """Names of metrics in the first column, one column for each evaluation."""
    some = next(iter(evaluations.values()))
    sizes = " / ".join(str(e.n_database) for e in evaluations.values())
    lines = [f"{some.n_bits} bits, {some.n_queries} queries, {sizes} items in the database"]
    if some.n_without_relevant:
        lines.append(f"{some.n_without_relevant} queries without a relevant item")
    if any(evaluations):
        lines.append(" " * 20 + "".join(f"{name:>10}" for name in evaluations))
    columns = [evaluation.numbers for evaluation in evaluations.values()]
    for name in columns[0]:
        values = "".join(f"{column.get(name, float('nan')):10.4f}" for column in columns)
        lines.append(f"{name:20}{values}")
    return "\n".join(lines)


_COUNTS = ("similar", "dissimilar")


def _restored(name: str, value: Any) -> Any:
    """A number, a mapping from cutoffs, or an array; None was NaN."""
    if isinstance(value, list):
        return np.array(value, np.int64 if name in _COUNTS else np.float64)
    if isinstance(value, Mapping):
        return {int(k): _restored(name, item) for k, item in value.items()}
    return float("nan") if value is None else value


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return None if isinstance(value, float) and np.isnan(value) else value
