"""What a search has found, as scikit-learn lays it out, and as people read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sadih_dask.types import Floats

Results = Mapping[str, Any]
"""A search's ``cv_results_``."""


@dataclass(frozen=True)
class Score:
    """Mean average precision of a candidate on a fold, and the seconds that it took."""

    place: int
    fold: int
    value: float
    fit_seconds: float
    score_seconds: float


def as_cv_results(
    candidates: Sequence[Mapping[str, Any]], scores: Sequence[Score], n_folds: int
) -> dict[str, Any]:
    """Arrays of one entry a candidate, under the names of scikit-learn's searches.

    Fit times have an equal share of what the candidates of a task have in common.
    """
    values, fitting, scoring = (np.empty((n_folds, len(candidates))) for _ in range(3))
    for score in scores:
        at = score.fold, score.place
        values[at], fitting[at], scoring[at] = score.value, score.fit_seconds, score.score_seconds
    results: dict[str, Any] = {}
    for name, seconds in (("fit", fitting), ("score", scoring)):
        results[f"mean_{name}_time"] = seconds.mean(axis=0)
        results[f"std_{name}_time"] = seconds.std(axis=0)
    for name in candidates[0]:
        column = np.ma.MaskedArray(np.empty(len(candidates)), mask=False, dtype=object)
        column[:] = [candidate[name] for candidate in candidates]
        results[f"param_{name}"] = column
    results["params"] = [dict(candidate) for candidate in candidates]
    for fold, found in enumerate(values):
        results[f"split{fold}_test_score"] = found.copy()
    results["mean_test_score"] = values.mean(axis=0)
    results["std_test_score"] = values.std(axis=0)
    losses = -results["mean_test_score"]
    results["rank_test_score"] = 1 + np.searchsorted(np.sort(losses), losses).astype(np.int32)
    return results


@dataclass(frozen=True)
class Best:
    """A candidate that is better than all others, or the first of several that are."""

    index: int
    params: dict[str, Any]
    score: float
    deviation: float


def best_overall(results: Results) -> Best:
    """The highest mean score over the folds; of equal ones the first, so the shorter code."""
    return _best_among(results, range(len(results["params"])))


def best_by_bits(results: Results) -> dict[int, Best]:
    """The best candidate of every code length."""
    lengths = dict.fromkeys(int(params["n_bits"]) for params in results["params"])
    return {n_bits: _best_among(results, _of_length(results, n_bits)) for n_bits in lengths}


def _of_length(results: Results, n_bits: int) -> list[int]:
    return [k for k, params in enumerate(results["params"]) if params["n_bits"] == n_bits]


def _best_among(results: Results, places: Sequence[int]) -> Best:
    means = results["mean_test_score"]
    place = max(places, key=lambda k: (means[k], -k))
    return Best(
        place,
        dict(results["params"][place]),
        float(means[place]),
        float(results["std_test_score"][place]),
    )


def varied(results: Results) -> list[str]:
    """Parameters beside the code length of which more than one value was tried."""
    first = results["params"][0]
    return [
        name
        for name in first
        if name != "n_bits" and any(params[name] != first[name] for params in results["params"])
    ]


@dataclass(frozen=True, eq=False)
class Surface:
    """Mean scores at one code length over two parameters, the best over all others.

    row     name of the first parameter, empty if only one was varied
    scores  (len(row_values), len(column_values))
    """

    n_bits: int
    row: str
    row_values: tuple[Any, ...]
    column: str
    column_values: tuple[Any, ...]
    scores: Floats

    @property
    def best(self) -> tuple[int, int]:
        """Row and column of the best score, the first of equal ones."""
        row, column = np.unravel_index(int(np.argmax(self.scores)), self.scores.shape)
        return int(row), int(column)


def surfaces(results: Results) -> list[Surface]:
    """Scores of every code length over the first two parameters that were varied.

    One parameter makes a surface of one row without a name; without any there is none.
    """
    params, names = results["params"], varied(results)[:2]
    if not names:
        return []
    row, column = names if len(names) == 2 else ("", names[0])
    rows, columns = (
        tuple(dict.fromkeys(p.get(name, "") for p in params)) for name in (row, column)
    )
    found = []
    for n_bits in dict.fromkeys(p["n_bits"] for p in params):
        scores = np.full((len(rows), len(columns)), -np.inf)
        for k in _of_length(results, n_bits):
            at = rows.index(params[k].get(row, "")), columns.index(params[k][column])
            scores[at] = max(scores[at], results["mean_test_score"][k])
        found.append(Surface(n_bits, row, rows, column, columns, scores))
    return found


def as_table(results: Results) -> str:
    """Mean scores as text, the best of every code length marked with a star.

    Two parameters make a square for every length; otherwise every candidate has a line.
    """
    squares = len(varied(results)) == 2
    parts = [_square(surface) for surface in surfaces(results)] if squares else [_lines(results)]
    best = best_overall(results)
    words = ", ".join(f"{name}={_word(value)}" for name, value in best.params.items())
    parts.append(f"best: {words}: {best.score:.4f} ± {best.deviation:.4f} over the folds")
    return "\n\n".join(parts)


def _square(surface: Surface) -> str:
    top = [f"{surface.column} {_word(value)}" for value in surface.column_values]
    table = [[f"{surface.n_bits} bits", *top]]
    for i, value in enumerate(surface.row_values):
        marks = ["*" if (i, j) == surface.best else " " for j in range(len(top))]
        cells = [f"{v:.4f}{m}" for v, m in zip(surface.scores[i], marks, strict=True)]
        table.append([f"{surface.row} {_word(value)}", *cells])
    return _aligned(table, str.rjust)


def _lines(results: Results) -> str:
    names = ["n_bits", *varied(results)]
    stars = {best.index for best in best_by_bits(results).values()}
    table = [[*names, "mean", "±"]]
    for k, params in enumerate(results["params"]):
        mean, deviation = results["mean_test_score"][k], results["std_test_score"][k]
        mark = "*" if k in stars else ""
        row = [_word(params[name]) for name in names]
        table.append([*row, f"{mean:.4f}{mark}", f"{deviation:.4f}"])
    return _aligned(table, str.ljust)


def _aligned(table: list[list[str]], justify: Callable[[str, int], str]) -> str:
    """Lines of a table; the first column is aligned to the left, the others as is said."""
    first, *widths = (max(map(len, column)) for column in zip(*table, strict=True))
    lines = []
    for left, *cells in table:
        rest = (justify(cell, width) for cell, width in zip(cells, widths, strict=True))
        lines.append("  ".join([left.ljust(first), *rest]).rstrip())
    return "\n".join(lines)


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
