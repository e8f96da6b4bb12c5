"""What one draws while exploring: results side by side, and what queries find.

Needs matplotlib (``pip install 'sadih-dask[report]'``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sadih_dask.errors import InputError
from sadih_dask.report import code_statistics, figures
from sadih_dask.report.figures import Curve
from sadih_dask.report.html import score
from sadih_dask.report.notebook import TIES, card, protocols_of
from sadih_dask.retrieval.evaluation import Evaluation, Protocols
from sadih_dask.retrieval.nearest import Neighbours
from sadih_dask.stores import FeatureStore
from sadih_dask.types import Array, Floats


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Results side by side, under names of one's own: code lengths, encoders, parameters.

    results  name -> what `evaluate_model` or `evaluate` has returned

    Figures have a line for each name and a panel for each protocol.
    """

    results: Mapping[str, Protocols | Evaluation]

    def __post_init__(self) -> None:
        if not self.results:
            raise InputError("there is nothing to compare; give a result or more, by name")

    def precision_recall(self) -> figures.Drawing:
        """Precision against recall."""
        return figures.precision_recall(self._curves(lambda e: (e.recall, e.precision)))

    def precision_retrieved(self) -> figures.Drawing:
        """Precision among the first 1, 2, ... items."""
        return figures.precision_retrieved(self._curves(lambda e: _ranked(e.precision_curve)))

    def map_against_bits(self) -> figures.Drawing:
        """Mean average precision against code length, for results of different lengths."""
        lines: dict[str, dict[int, float]] = {}
        for _, protocol, found in self._each():
            line = lines.setdefault(protocol or "MAP", {})
            if found.n_bits in line:
                raise InputError(
                    f"two results have {found.n_bits} bits; compare one of each length here"
                )
            line[found.n_bits] = found.map
        ordered = {name: sorted(line.items()) for name, line in lines.items()}
        return figures.map_against_bits(
            [Curve(name, *np.array(line, np.float64).T) for name, line in ordered.items()]
        )

    def distances(self) -> figures.Drawing:
        """Hamming distances of similar and of dissimilar pairs, a panel for each result."""
        return figures.pair_distances(
            {
                ", ".join(filter(None, names)): (found.similar, found.dissimilar)
                for *names, found in self._each()
            }
        )

    def _each(self) -> list[tuple[str, str, Evaluation]]:
        """Name, protocol and evaluation of everything that is compared."""
        return [
            (name, protocol, evaluation)
            for name, result in self.results.items()
            for protocol, evaluation in protocols_of(result).items()
        ]

    def _curves(self, line: Callable[[Evaluation], tuple[Array, Array]]) -> list[Curve]:
        return [Curve(name, *line(found), panel) for name, panel, found in self._each()]

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """MAP and precision of the first items, a row for each name."""
        columns: dict[str, dict[str, str]] = {}
        for name, protocol, found in self._each():
            first = [f"precision@{k}" for k in list(found.precision_at)[:1]]
            for metric in ("MAP", *first):
                column = columns.setdefault(f"{protocol} {metric}".lstrip(), {})
                column[name] = score(found.numbers[metric])
        rows = [
            [name, *(c.get(name, score(None)) for c in columns.values())] for name in self.results
        ]
        return ["", *columns], rows

    def __repr__(self) -> str:
        heads, rows = self._table()
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in [heads, *rows]
        )

    def _repr_html_(self) -> str:
        return card("Comparison", "", {}, *self._table(), note=TIES)


def _ranked(precision: Floats) -> tuple[Floats, Floats]:
    """A precision at each place of a ranking, 1, 2, ..."""
    return np.arange(1.0, len(precision) + 1), precision


def show_neighbours(found: Neighbours, queries: Any, rows: Any, database: Any) -> figures.Drawing:
    """Draw queries, which are these rows, and the items that were found for them.

    ``queries`` and ``database`` are stores with thumbnails and labels, or pairs of arrays: small
    uint8 pictures, (n, h, w) or (n, h, w, 3), and labels. Right and wrong finds are told apart by
    the labels. ``rows`` None means all, in order.
    """
    asked = np.arange(len(found)) if rows is None else np.asarray(rows, np.int64).reshape(-1)
    if len(asked) != len(found):
        raise InputError(f"{len(found)} queries were searched for, and {len(asked)} rows are given")
    stores = [store for store in (queries, database) if isinstance(store, FeatureStore)]
    for store in stores:
        for name in ("thumbnails", "labels"):
            if name not in store.arrays:
                raise InputError(
                    f"{store.url} has no {name}, so its rows cannot be shown; create it with "
                    f"FeatureStore.create(..., {name}=...)"
                )
    names = next((store.class_names for store in stores[::-1] if store.class_names), ())
    pictured = code_statistics.pictured(queries, asked, database, found, names)
    return figures.neighbour_pictures(pictured)
