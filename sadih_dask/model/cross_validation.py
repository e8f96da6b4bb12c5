"""SADIHCV: parameters by cross-validation, from one scan."""

from __future__ import annotations

import os
from numbers import Integral
from typing import Any, Self

from sklearn.base import BaseEstimator, MetaEstimatorMixin, TransformerMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from sadih_dask.compute.checkpoint import Checkpoint
from sadih_dask.compute.run import Progress
from sadih_dask.errors import InputError
from sadih_dask.model import results
from sadih_dask.model.estimator import SADIH, as_checkpoint
from sadih_dask.model.parameters import PAPER_GRID, Grid, candidates, check_parameters
from sadih_dask.model.scanning import Folding, scan_folds
from sadih_dask.model.validation import score_all


class SADIHCV(
    MetaEstimatorMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Choose parameters of SADIH by cross-validation, reading the data once.

    One scan keeps the statistics of every fold apart, and a sample of each fold's rows as queries.
    All combinations of all code lengths are then solved from statistics: for every fold from those
    of the others, and in the end from those of all rows. The score of a combination is the mean,
    over the folds, of the mean average precision of a fold's queries over the rows of the other
    folds with their learned codes: what `SADIH.score` computes. Anchors are drawn once, from the
    features of all rows.

    Parameters
    ----------
    estimator : SADIH, default=None
        The parameters that are not searched; None is ``SADIH()``.
    param_grid : dict, default=None
        Names of parameters and lists of values; None is the paper's grid of alpha and beta,
        0.01, 0.1, 1, 5 and 10. Any parameter will do that needs no other scan.
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
        checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    ) -> Self:
        """Read the rows once, score every combination on every fold, and learn with the best.

        ``X``, ``y`` and ``checkpoint`` are what `SADIH.fit` takes. ``progress`` is told of the
        scan, ``solving`` of the solves.
        """
        model = self._model()
        grid = PAPER_GRID if self.param_grid is None else self.param_grid
        tried = candidates(grid, self.n_bits)
        longest = max(candidate["n_bits"] for candidate in tried)
        folding = Folding(self.n_folds, self.n_queries, self.random_state, longest)
        scanned = scan_folds(model, X, y, folding, progress, as_checkpoint(checkpoint))
        everything = [{**model.get_params(), **candidate} for candidate in tried]
        scores = score_all(scanned.folded, everything, solving)
        found = results.as_cv_results(tried, scores, self.n_folds)
        best = results.best_overall(found)
        if self.refit:
            scanned.solve(model.set_params(**best.params))
        self._adopt(found, best, model)
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
        for name, least in (("n_folds", 2), ("n_queries", 1)):
            value: Any = getattr(self, name)
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            if not whole or value < least:
                raise InputError(f"{name}={value!r}; expected a whole number of {least} or more")
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

    def transform(self, X: Any) -> Any:
        """Packed codes of rows by the best model; see `SADIH.transform`."""
        return self._best_model().transform(X)

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
