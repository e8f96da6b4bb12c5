"""SADIHCV: parameters by cross-validation, from one scan."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, TransformerMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from sadih_dask.compute.reduction import training_statistics
from sadih_dask.compute.run import Progress, reporting, total_threads
from sadih_dask.compute.tree import run_each
from sadih_dask.errors import InputError, LabelError
from sadih_dask.learning.labels import LabelGroups, group_rows
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model import results
from sadih_dask.model.methods.sadih import SADIH
from sadih_dask.model.parameters import (
    DEFAULT_GRID,
    PARAMETERS,
    SEARCH_PARAMETERS,
    Grid,
    candidates,
    check_parameters,
)
from sadih_dask.model.results import Score
from sadih_dask.model.scanning import CheckpointLike, Folded, Folding, scan_folds
from sadih_dask.model.solve import Family
from sadih_dask.retrieval.codes import pack
from sadih_dask.retrieval.histograms import histograms_within
from sadih_dask.retrieval.metrics import mean_average_precision
from sadih_dask.types import Array, BitOrder, Ints

TASKS_A_THREAD = 2
"""Tasks for every thread, at least; with fewer the last ones leave threads idle."""


class SADIHCV(
    MetaEstimatorMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Choose parameters of SADIH by cross-validation, reading the data once.

    One scan keeps the statistics of every fold apart, and a sample of each fold's rows as queries.
    All combinations of all code lengths are then solved from statistics: for every fold from those
    of the others, and in the end from those of all rows. The score of a combination is the mean,
    over the folds, of the mean average precision of a fold's queries among each other: what
    `SADIH.score` computes. Anchors are drawn once, from the features of all rows.

    Parameters
    ----------
    estimator : SADIH, default=None
        The parameters that are not searched; None is ``SADIH()``.
    param_grid : dict, default=None
        Names of parameters and lists of values; None is a grid of the three that matter most:
        ridge, sharpness and openness. Any parameter will do that needs no other scan.
    n_bits : int or sequence of int, default=(16, 32, 64)
        Code lengths to search at, unless the grid has "n_bits".
    n_folds : int, default=5
        Rows are dealt out to so many folds, at random and evenly, by their number.
    n_queries : int, default=1000
        Rows of each fold that are looked up, at most.
    refit : bool, default=True
        Whether to solve for the best combination, from the statistics of all rows.
    random_state : int, Generator, RandomState or None, default=0
        What folds and queries are drawn from.

    Attributes
    ----------
    cv_results_ : dict of arrays, laid out as that of scikit-learn's searches
    best_params_, best_score_, best_index_ : of the highest mean score; of equal ones the first
    best_by_bits_ : the best combination of every code length: its index, params, score, deviation
    best_estimator_ : the model of all rows with `best_params_`: that of a fit with them
    n_splits_ : int
    n_rows_loaded_ : rows that the scan did not read, because a checkpoint had what they come to

    """

    def __init__(
        self,
        estimator: Any = None,
        param_grid: Grid | None = None,
        *,
        n_bits: Any = (16, 32, 64),
        n_folds: int = 5,
        n_queries: int = 1000,
        refit: bool = True,
        random_state: Any = 0,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.n_bits = n_bits
        self.n_folds = n_folds
        self.n_queries = n_queries
        self.refit = refit
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        progress: Progress | None = None,
        solving: Progress | None = None,
        checkpoint: CheckpointLike = None,
    ) -> Self:
        """Read the rows once, score every combination on every fold, and learn with the best.

        ``X``, ``y`` and ``checkpoint`` are what `SADIH.fit` takes. ``progress`` is told of the
        scan, ``solving`` of the solves.
        """
        model = self._model()
        grid = DEFAULT_GRID if self.param_grid is None else self.param_grid
        tried = candidates(grid, self.n_bits)
        longest = max(candidate["n_bits"] for candidate in tried)
        folding = Folding(self.n_folds, self.n_queries, self.random_state, longest)
        with reporting(progress):
            scanned, folded = scan_folds(model, X, y, folding, checkpoint)
        scanned.check_classes()
        scanned.warn(longest)
        everything = [{**model.get_params(), **candidate} for candidate in tried]
        with reporting(solving):
            scores = score_all(folded, everything)
        found = results.as_cv_results(tried, scores, self.n_folds)
        best = results.best_overall(found)
        if self.refit:
            model.set_params(**best.params).learn_from(scanned)
        self._adopt(found, best, model)
        self.n_rows_loaded_ = scanned.n_rows_loaded
        return self

    def _adopt(self, found: results.Results, best: results.Best, model: SADIH) -> None:
        """Set every learned attribute, and none of an earlier fit."""
        for name in ("best_estimator_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        if self.refit:
            self.best_estimator_ = model
        self.cv_results_ = found
        self.best_index_, self.best_params_, self.best_score_ = best.index, best.params, best.score
        self.best_by_bits_ = results.best_by_bits(found)
        self.n_splits_ = self.n_folds
        self.n_features_in_ = model.n_features_in_
        if hasattr(model, "feature_names_in_"):
            self.feature_names_in_ = model.feature_names_in_

    def _model(self) -> SADIH:
        """A model to work with; nothing of what the user has is changed."""
        for name, parameter in SEARCH_PARAMETERS.items():
            parameter.check(name, getattr(self, name))
        model: Any = SADIH() if self.estimator is None else clone(self.estimator)
        if not isinstance(model, SADIH):
            raise InputError(
                f"estimator is a {type(model).__name__}; only SADIH can be solved from statistics. "
                "Search others with sklearn.model_selection.GridSearchCV"
            )
        check_parameters(model)
        return model

    def table(self) -> str:
        """The mean scores as text, the best of every code length marked."""
        check_is_fitted(self, "cv_results_")
        return results.as_table(self.cv_results_)

    def surfaces(self) -> list[results.Surface]:
        """The mean scores over the first two parameters that were varied, for every code length.

        Of further parameters the best value counts. They are drawn by
        `sadih_dask.report.figures.learning.score_surface`.
        """
        check_is_fitted(self, "cv_results_")
        return results.surfaces(self.cv_results_)

    def transform(self, X: Any, *, bitorder: BitOrder = "little") -> Any:
        """Packed codes of rows by the best model; see `SADIH.transform`."""
        return self._best_model().transform(X, bitorder=bitorder)

    def score(self, X: Any, y: Any) -> float:
        """Mean average precision of rows as queries by the best model; see `SADIH.score`."""
        return self._best_model().score(X, y)

    def _best_model(self) -> SADIH:
        check_is_fitted(self, "cv_results_")
        if not self.refit:
            raise InputError("this search was made with refit=False, so it has no model; set it")
        return self.best_estimator_

    def __sklearn_tags__(self) -> Tags:
        tags, own = super().__sklearn_tags__(), SADIH().__sklearn_tags__()
        tags.input_tags = own.input_tags
        tags.target_tags = own.target_tags
        tags.transformer_tags = own.transformer_tags
        return tags


# -- scores of candidates on the folds ---------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Bunch:
    """Candidates of one family, to be scored on one fold."""

    fold: int
    places: tuple[int, ...]
    candidates: tuple[Mapping[str, Any], ...]


def score_all(folded: Folded, candidates: Sequence[Mapping[str, Any]]) -> list[Score]:
    """Score every candidate (all parameters of an estimator) on every fold.

    A task takes candidates of one family on one fold, so that they share their beginning; the
    costliest come first, which ends together.
    """
    bunches = list(_bunches(candidates, len(folded.folds), TASKS_A_THREAD * total_threads()))
    bunches.sort(key=lambda bunch: -bunch.candidates[0]["n_bits"])
    found = run_each(score_bunch, folded, bunches, "score")
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
    """Learn from the other folds, and look the fold's queries up among each other."""
    began = time.perf_counter()
    training = _Training.of(folded, bunch.fold)
    family = Family(SimpleNamespace(**bunch.candidates[0]), training.statistics, folded.seed, None)
    shared = (time.perf_counter() - began) / len(bunch.places)
    known: dict[tuple[Any, ...], float] = {}
    scores = []
    for place, candidate in zip(bunch.places, bunch.candidates, strict=True):
        began = time.perf_counter()
        state = family.solve(SimpleNamespace(**candidate)).state
        solved = time.perf_counter()
        weighed = candidate["sharpness"], candidate["openness"], state.B.tobytes()
        key = weighed if family.hashes_by_codes_alone else None
        value = known.get(key) if key is not None else None
        if value is None:
            function = family.hash_function(SimpleNamespace(**candidate), state)
            value = training.score(pack(function.project(training.features)), len(state.B))
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
        else:  # as a fit numbers its classes; queries of a class that is missing are left out
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

    def score(self, codes: Array, n_bits: int) -> float:
        """Mean average precision of the queries, each looked up among the others."""
        histograms = histograms_within(codes, self.labels, np.arange(len(codes)), n_bits)
        found = mean_average_precision(histograms)
        if np.isnan(found):
            raise LabelError(
                f"none of the {len(codes)} queries of fold {self.fold} shares a label with "
                "another; use more queries, or add rows of the rare classes"
            )
        return found
