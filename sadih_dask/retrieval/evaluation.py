"""Retrieval quality of codes, in numbers and curves.

`BY_CUTOFF` is the place to name a new metric of `metrics` at a cutoff; it is a field, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np

from sadih_dask.errors import Argument, InputError, Remedy
from sadih_dask.retrieval import metrics
from sadih_dask.retrieval.failures import NONE_FAILS, ClassQuality
from sadih_dask.retrieval.histograms import Histograms
from sadih_dask.retrieval.metrics import RECALL_GRID, mean_of_known, standard_error
from sadih_dask.types import Floats, Ints

CUTOFFS = (100, 1000)
RADIUS = 2
CURVE_LENGTH = 1000
BASELINE_CUTOFF = 100
BY_CUTOFF: dict[str, tuple[str, Callable[[Histograms, int], Floats]]] = {
    "map_at": ("MAP", metrics.average_precision),
    "precision_at": ("precision", metrics.precision_at),
    "recall_at": ("recall", metrics.recall_at),
    "ndcg_at": ("NDCG", metrics.ndcg_at),
}
"""Fields that hold a metric by cutoff: its name in tables, and its value for each query."""


def sample_queries(n_queries: int, max_queries: int | None) -> Ints:
    """Ascending numbers of the queries to look up: all, or so many of them drawn at random.

    The same numbers give the same sample, so that models are compared on the same queries; and when
    queries are added, most of a sample stays.
    """
    if max_queries is not None and max_queries < 0:
        raise InputError(
            f"max_queries is {max_queries}",
            remedy=Remedy("Give 1 or more, or {} for all", Argument("max_queries", 0)),
        )
    if not max_queries or n_queries <= max_queries:
        return np.arange(n_queries)
    lots = np.random.default_rng(0).random(n_queries)  # a query's lot does not depend on others
    return np.sort(np.argpartition(lots, max_queries)[:max_queries])


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Metrics averaged over queries; ties in distance are averaged over all orders.

    n_bits, n_queries, n_database   what was compared
    n_drawn_from        queries that there are, of which n_queries were drawn with `sample_queries`
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
    standard_errors     of each of `numbers`, by its name
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
    n_drawn_from: int
    standard_errors: Mapping[str, float]

    @classmethod
    def of(
        cls,
        histograms: Histograms,
        *,
        cutoffs: Iterable[int] = CUTOFFS,
        radius: int = RADIUS,
        curve_length: int = CURVE_LENGTH,
        n_drawn_from: int | None = None,
    ) -> Evaluation:
        """Compute everything from histograms; O(queries x bits), whatever the database."""
        ap = metrics.average_precision(histograms)
        at = tuple(cutoffs)
        by_cutoff = {
            field: {k: metric(histograms, k) for k in at}
            for field, (_, metric) in BY_CUTOFF.items()
        }
        means: dict[str, Any] = {
            field: {k: mean_of_known(values) for k, values in found.items()}
            for field, found in by_cutoff.items()
        }
        within = metrics.precision_within(histograms, radius)
        empty = 1.0 * (histograms.total[:, : radius + 1].sum(axis=1) == 0)
        similar = histograms.relevant.sum(axis=0)
        return cls(
            n_bits=histograms.total.shape[1] - 1,
            n_queries=len(histograms),
            n_database=int(histograms.total.sum(axis=1).max(initial=0)),
            n_without_relevant=int(np.isnan(ap).sum()),
            map=mean_of_known(ap),
            **means,
            radius=radius,
            precision_within=mean_of_known(within),
            empty_within=mean_of_known(empty),
            precision_curve=metrics.precision_curve(histograms, curve_length),
            recall=RECALL_GRID,
            precision=metrics.precision_recall_curve(histograms),
            similar=similar,
            dissimilar=histograms.total.sum(axis=0) - similar,
            average_precision=ap,
            n_drawn_from=len(histograms) if n_drawn_from is None else n_drawn_from,
            standard_errors={
                name: standard_error(values)
                for name, values in _by_name(ap, by_cutoff, radius, within, empty).items()
            },
        )

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics that are one number, by name, in the order of a table."""
        by_cutoff = {field: getattr(self, field) for field in BY_CUTOFF}
        return _by_name(self.map, by_cutoff, self.radius, self.precision_within, self.empty_within)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and lists, which JSON takes; NaN becomes None."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Evaluation:
        """Take back what `to_dict` gave."""
        return cls(**{name: _restored(name, value) for name, value in values.items()})

    def __repr__(self) -> str:
        return _table({"": self})


@dataclass(frozen=True)
class Baseline:
    """What a ranking reaches on the same queries as others: means over them, and their errors."""

    METRICS: ClassVar = ("MAP", f"precision@{BASELINE_CUTOFF}")

    n_queries: int
    numbers: Mapping[str, float]
    standard_errors: Mapping[str, float]

    @classmethod
    def of(cls, average_precision: Floats, precision: Floats) -> Baseline:
        """Summarise the values of all queries."""
        values = dict(zip(cls.METRICS, (average_precision, precision), strict=True))
        return cls(
            len(average_precision),
            {name: mean_of_known(of_each) for name, of_each in values.items()},
            {name: standard_error(of_each) for name, of_each in values.items()},
        )


PROTOCOLS = {
    "learned": "database rows carry the learned code of their labels (the paper's protocol)",
    "encoded": "database rows are hashed like queries; optimistic if they were learned from",
    "fresh": "queries are looked up among each other: hashed rows that were not learned from",
    "unseen": "as fresh, by models that have learned nothing of the queries' classes",
}
"""What each protocol looks among, in the order of tables."""
HEADLINE = ("fresh", "encoded", "learned")
"""Protocols in the order in which they answer what the codes will do; the first that is known."""


@dataclass(frozen=True, eq=False, repr=False)
class Protocols:
    """The same codes against several kinds of database, which answer different questions.

    Each of `PROTOCOLS` is a field, None where it was not measured; ``absent`` says why.
    ``baselines`` are what else there is to rank by, on the same held-out rows, by protocol and
    name: the codes themselves, and floors and ceilings. ``worst_classes`` are those whose fresh
    rows find least, the worst first, and what they are taken for: empty where every class finds
    all of its own, None where it was not measured.
    """

    learned: Evaluation | None = None
    encoded: Evaluation | None = None
    fresh: Evaluation | None = None
    unseen: Evaluation | None = None
    baselines: Mapping[str, Mapping[str, Baseline]] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    worst_classes: tuple[ClassQuality, ...] | None = None

    @property
    def known(self) -> dict[str, Evaluation]:
        """Evaluations by the name of their protocol, those that were made."""
        found = {name: getattr(self, name) for name in PROTOCOLS}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def headline(self) -> str:
        """The protocol that says most about rows to come."""
        return next(name for name in HEADLINE if name in self.known)

    @property
    def widest(self) -> Evaluation:
        """The one that looks among all rows of the database, if any does."""
        found = (self.encoded, self.learned, self.fresh)
        return next(one for one in found if one is not None)

    @property
    def rankings(self) -> list[str]:
        """Names of what stands in `baselines`, in the order of tables."""
        return list(dict.fromkeys(name for each in self.baselines.values() for name in each))

    def only(self, *names: str) -> Protocols:
        """Without the protocols that are not named; `learned` stays."""
        known: dict[str, Any] = {name: self.known.get(name) for name in ("learned", *names)}
        return Protocols(**known)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and lists."""
        known = {name: found.to_dict() for name, found in self.known.items()}
        baselines = {
            protocol: {name: _plain(asdict(found)) for name, found in names.items()}
            for protocol, names in self.baselines.items()
        }
        none = dict.fromkeys(PROTOCOLS)
        others = {"baselines": baselines, "absent": dict(self.absent)}
        worst = self.worst_classes
        failing = None if worst is None else [asdict(one) for one in worst]
        return none | known | others | {"worst_classes": failing}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Protocols:
        """Take back what `to_dict` gave."""
        known = {
            name: found and Evaluation.from_dict(found)
            for name, found in values.items()
            if name in PROTOCOLS
        }
        baselines = {
            protocol: {
                name: Baseline(**{key: _restored(key, value) for key, value in found.items()})
                for name, found in names.items()
            }
            for protocol, names in values["baselines"].items()
        }
        failing = values.get("worst_classes")
        worst = None if failing is None else tuple(map(ClassQuality.from_dict, failing))
        return cls(**known, baselines=baselines, absent=values["absent"], worst_classes=worst)

    def __repr__(self) -> str:
        lines = [_table(self.known)]
        lines += [f"{name}: not measured, {why}" for name, why in self.absent.items()]
        if self.baselines:
            lines += ["", *self._baseline_lines()]
        if self.worst_classes:
            lines += ["", "classes whose fresh rows find least, and what they are taken for"]
            lines += [
                f"{one.map:10.4f}  {one.name}: {one.confusions}" for one in self.worst_classes
            ]
        elif self.worst_classes is not None:
            lines += ["", f"fresh rows: {NONE_FAILS}"]
        return "\n".join(lines)

    def _baseline_lines(self) -> Iterator[str]:
        """Names of rankings in the first column, two columns for each protocol."""
        columns = [(protocol, metric) for protocol in self.baselines for metric in Baseline.METRICS]
        yield f"{'':26}" + "".join(f"{f'{metric} {protocol}':>22}" for protocol, metric in columns)
        for name in self.rankings:
            found = ((self.baselines[protocol].get(name), metric) for protocol, metric in columns)
            cells = (
                f"{one.numbers[metric]:.4f} ± {one.standard_errors[metric]:.4f}" if one else ""
                for one, metric in found
            )
            yield f"{name:26}{''.join(f'{cell:>22}' for cell in cells)}".rstrip()


Value = TypeVar("Value")


def _by_name(
    whole: Value,
    by_cutoff: Mapping[str, Mapping[int, Value]],
    radius: int,
    within: Value,
    empty: Value,
) -> dict[str, Value]:
    """Metrics by the names that tables give them, in the order of a table."""
    named = {"MAP": whole}
    for each, (name, _) in BY_CUTOFF.items():
        named |= {f"{name}@{k}": value for k, value in by_cutoff[each].items()}
    return named | {f"precision, radius {radius}": within, f"empty, radius {radius}": empty}


def _table(evaluations: Mapping[str, Evaluation]) -> str:
    """Names of metrics in the first column, one column for each evaluation."""
    found, nan = list(evaluations.values()), float("nan")
    some = found[0]
    sizes = " / ".join(str(e.n_database) for e in found)
    of = f" of {some.n_drawn_from}" if some.n_drawn_from > some.n_queries else ""
    lines = [f"{some.n_bits} bits, {some.n_queries}{of} queries, {sizes} items in the database"]
    if some.n_without_relevant:
        lines.append(f"{some.n_without_relevant} queries without a relevant item")
    if any(evaluations):
        lines.append((" " * 20 + "".join(f"{name:>10}{'':9}" for name in evaluations)).rstrip())
    for name in some.numbers:
        pairs = [(e.numbers.get(name, nan), e.standard_errors.get(name, nan)) for e in found]
        lines.append(f"{name:20}" + "".join(f"{mean:10.4f} ± {error:.4f}" for mean, error in pairs))
    lines.append("mean over queries ± its standard error")
    return "\n".join(lines)


_COUNTS = ("similar", "dissimilar")


def _restored(name: str, value: Any) -> Any:
    """A number, a mapping from cutoffs or names, or an array; None was NaN."""
    if isinstance(value, list):
        return np.array(value, np.int64 if name in _COUNTS else np.float64)
    if isinstance(value, Mapping):
        return {int(k) if k.isdigit() else k: _restored(name, item) for k, item in value.items()}
    return float("nan") if value is None else value


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return None if isinstance(value, float) and np.isnan(value) else value
