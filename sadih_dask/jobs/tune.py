"""Parameters chosen by cross-validation: the model of the best, and all that was tried."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sadih_dask.compute.checkpoint import Checkpoint
from sadih_dask.compute.run import heard_in
from sadih_dask.errors import ConflictError, lacking
from sadih_dask.files.file import locate, write_text
from sadih_dask.jobs.fit import OVERWRITE, Fitted
from sadih_dask.model.cross_validation import SADIHCV
from sadih_dask.model.methods.sadih import SADIH
from sadih_dask.model.parameters import DEFAULT_GRID, candidates
from sadih_dask.stores import FeatureStore

if TYPE_CHECKING:
    from sadih_dask.report.figures import Drawing

RESULTS, FIGURES = "tuning.json", "figures"


@dataclass(frozen=True, eq=False)
class Tuned:
    """What a search found.

    fitted   the model of all rows, with the best parameters, and what it has cost
    search   the search itself: table, surfaces
    seconds  of scanning and solving, all together
    files    that were written beside the model
    """

    fitted: Fitted
    search: SADIHCV
    seconds: float
    files: tuple[Path, ...] = ()

    @property
    def model(self) -> SADIH:
        """Of all rows, with the best parameters."""
        return self.fitted.model

    def document(self) -> dict[str, Any]:
        """Everything that was found, as JSON takes it."""
        search, best = self.search, self.search.best_by_bits_
        return {
            "metric": "mean average precision, fresh rows",
            "n_rows": self.fitted.n_rows,
            "n_folds": search.n_folds,
            "n_queries": search.n_queries,
            "seconds": self.seconds,
            "model": self.model.fingerprint_,
            "parameters": self.model.get_params(deep=False),
            "best": {"parameters": search.best_params_, "score": search.best_score_},
            "best_of_length": [
                {"parameters": found.params, "score": found.score} for found in best.values()
            ],
            "results": _rows(search),
        }

    def drawings(self) -> list[Drawing]:
        """The figures there is something to show in; needs matplotlib."""
        from sadih_dask.report.figures.learning import score_surface

        surfaces = self.search.surfaces()
        return [score_surface(surfaces)] if surfaces else []


def tune(
    store: FeatureStore,
    target: str | os.PathLike[str],
    parameters: Mapping[str, Any] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    n_bits: Sequence[int] | None = None,
    n_folds: int = 5,
    n_queries: int = 1000,
    *,
    results: Path | None = None,
    overwrite: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Tuned:
    """Choose parameters in one scan of a store, and write the best model to a path or URL.

    ``parameters`` are those of SADIH that are not searched; without ``n_bits`` the code length is
    among them. The grid is `DEFAULT_GRID` unless another is given. Folds and queries are drawn from
    `random_state`, as the anchors are. All that was tried goes into the folder ``results``, if one
    is given. ``checkpoint`` is as in `jobs.fit.fit`.
    """
    began, place = time.perf_counter(), locate(target)
    before = place.version()
    if place.is_file() and not overwrite:
        raise ConflictError(f"{target} is there already", remedy=OVERWRITE)
    place.check()
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)  # an unusable folder is found before the work
    model = SADIH(**(parameters or {}))
    tried = DEFAULT_GRID if grid is None else dict(grid)
    lengths = model.n_bits if n_bits is None else tuple(n_bits)
    n_solves = n_folds * len(candidates(tried, lengths))
    search = SADIHCV(
        model,
        tried,
        n_bits=lengths,
        n_folds=n_folds,
        n_queries=n_queries,
        random_state=model.random_state,
    )
    kept = None if checkpoint is None else Checkpoint(checkpoint)
    search.fit(
        store,
        progress=heard_in(store.n_rows),
        solving=heard_in(n_solves, "Solving", "solves"),
        checkpoint=kept,
    )
    n_loaded = search.n_rows_loaded_
    fitted = Fitted(search.best_estimator_, store.n_rows, store.n_rows - n_loaded, n_loaded)
    tuned = Tuned(fitted, search, time.perf_counter() - began)
    if results is not None:
        tuned = replace(tuned, files=_write(results, tuned))
    tuned.model.save(target, since=before)
    if kept is not None:
        kept.discard()
    return tuned


def _rows(search: SADIHCV) -> list[dict[str, Any]]:
    """Every combination: its parameters, code length among them, and its scores."""
    found = search.cv_results_
    best = {entry.index for entry in search.best_by_bits_.values()}
    splits = [found[f"split{fold}_test_score"] for fold in range(search.n_splits_)]
    return [
        {
            "parameters": params,
            "mean": float(found["mean_test_score"][k]),
            "deviation": float(found["std_test_score"][k]),
            "scores": [float(split[k]) for split in splits],
            "rank": int(found["rank_test_score"][k]),
            "best_of_length": k in best,
        }
        for k, params in enumerate(found["params"])
    ]


def _write(folder: Path, tuned: Tuned) -> tuple[Path, ...]:
    """Write all results, and the figure of them where matplotlib is installed."""
    results = folder / RESULTS
    write_text(results, json.dumps(tuned.document(), indent=1))
    if lacking("matplotlib", "a figure"):
        return (results,)
    saved = [path for drawing in tuned.drawings() for path in drawing.save(folder / FIGURES)]
    return (results, *saved)
