"""Scores of candidates on the queries of a fold: what one task of a search does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np

from sadih_dask.compute.folds import SampledRows, training_statistics
from sadih_dask.compute.run import Progress, total_threads
from sadih_dask.compute.tree import run_each
from sadih_dask.errors import LabelError
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.labels import LabelGroups, group_rows
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model.parameters import PARAMETERS
from sadih_dask.model.solve import Family
from sadih_dask.retrieval.codes import pack
from sadih_dask.retrieval.histograms import hamming_histograms
from sadih_dask.retrieval.metrics import mean_average_precision
from sadih_dask.types import Array, Floats, Ints

TASKS_A_THREAD = 2
"""Tasks for every thread, at least; with fewer the last ones leave threads idle."""


@dataclass(frozen=True, eq=False)
class Folded:
    """What the scan left of the folds: all that the tasks read.

    folds       statistics of each fold
    queries     sampled rows of each fold
    anchor_map  of the features, if any
    """

    folds: tuple[Statistics, ...]
    queries: tuple[SampledRows, ...]
    anchor_map: AnchorMap | None
    multi_label: bool
    seed: int


@dataclass(frozen=True, eq=False)
class Bunch:
    """Candidates of one family, to be scored on one fold."""

    fold: int
    places: tuple[int, ...]
    candidates: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Score:
    """Mean average precision of a candidate on a fold, and the seconds that it took."""

    place: int
    fold: int
    value: float
    fit_seconds: float
    score_seconds: float


def score_all(
    folded: Folded, candidates: Sequence[Mapping[str, Any]], progress: Progress | None = None
) -> list[Score]:
    """Score every candidate (all parameters of an estimator) on every fold.

    A task takes candidates of one family on one fold, so that they share their beginning; the
    costliest come first, which ends together.
    """
    bunches = list(_bunches(candidates, len(folded.folds), TASKS_A_THREAD * total_threads()))
    bunches.sort(key=lambda bunch: -bunch.candidates[0]["n_bits"])
    found = run_each(score_bunch, folded, bunches, "score", progress)
    return [score for scores in found for score in scores]


def _bunches(
    candidates: Sequence[Mapping[str, Any]], n_folds: int, n_tasks: int
) -> Iterator[Bunch]:
    """Families, cut into parts where there would be fewer tasks than ``n_tasks``."""
    names = [name for name, parameter in PARAMETERS.items() if parameter.decides == "start"]

    def shared(place: int) -> tuple[str, ...]:
        return tuple(repr(candidates[place][name]) for name in names)

    places = sorted(range(len(candidates)), key=lambda place: (shared(place), place))
    families = [list(family) for _, family in groupby(places, key=shared)]
    n_parts = -(-n_tasks // (n_folds * len(families)))
    for family in families:
        for part in np.array_split(family, min(n_parts, len(family))):
            chosen = tuple(int(place) for place in part)
            for fold in range(n_folds):
                yield Bunch(fold, chosen, tuple(candidates[place] for place in chosen))


def score_bunch(folded: Folded, bunch: Bunch) -> list[Score]:
    """Learn from the other folds, and look the fold's queries up among their rows."""
    began = time.perf_counter()
    training = _Training.of(folded, bunch.fold)
    family = Family(SimpleNamespace(**bunch.candidates[0]), training.statistics, folded.seed, None)
    shared = (time.perf_counter() - began) / len(bunch.places)
    known: dict[bytes, float] = {}
    scores = []
    for place, candidate in zip(bunch.places, bunch.candidates, strict=True):
        began = time.perf_counter()
        state = family.solve(SimpleNamespace(**candidate)).state
        solved = time.perf_counter()
        key = state.B.tobytes() if family.hashes_by_codes_alone else None
        value = known.get(key) if key is not None else None
        if value is None:
            function = family.hash_function(state)
            value = training.score(pack(function.project(training.features)), state.B)
            if key is not None:
                known[key] = value
        ended = time.perf_counter()
        scores.append(Score(place, bunch.fold, value, shared + solved - began, ended - solved))
    return scores


@dataclass(frozen=True, eq=False)
class _Training:
    """A fold's queries, mapped to anchors, and the statistics of all other folds."""

    fold: int
    statistics: Statistics
    features: Array
    labels: tuple[LabelGroups, Ints]

    @classmethod
    def of(cls, folded: Folded, fold: int) -> _Training:
        statistics = training_statistics(folded.folds, fold)
        queries = folded.queries[fold]
        if folded.multi_label:
            labels = group_rows(queries.labels, statistics.groups.n_classes)
        else:  # as a fit numbers its classes; queries of a class that is missing find nothing
            statistics, classes = statistics.compact()
            queries = queries.take(np.isin(queries.labels, classes))
            labels = group_rows(np.searchsorted(classes, queries.labels), len(classes))
        if statistics.groups.n_groups < 2:
            raise LabelError(
                f"without fold {fold} all rows carry the same labels, so there is nothing to tell "
                "apart; use fewer folds, or add rows of the rare classes"
            )
        mapped = queries.features
        if folded.anchor_map is not None:
            mapped = folded.anchor_map(np.ascontiguousarray(mapped))
        return cls(fold, statistics, mapped, labels)

    def score(self, codes: Array, label_codes: Floats) -> float:
        """Mean average precision over the training rows, each with the code of its labels."""
        groups = self.statistics.groups
        histograms = hamming_histograms(
            codes,
            self.labels,
            pack(label_codes.T),
            (groups, np.arange(groups.n_groups)),
            len(label_codes),
            counts=self.statistics.counts,
        )
        found = mean_average_precision(histograms)
        if np.isnan(found):
            raise LabelError(
                f"none of the {len(codes)} queries of fold {self.fold} shares a label with a row "
                "of another fold; use more queries, or add rows of the rare classes"
            )
        return found
