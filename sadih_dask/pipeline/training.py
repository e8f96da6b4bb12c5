"""A model file that keeps up with a store: learned from all rows once, then from new rows only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sadih_dask.errors import ConflictError
from sadih_dask.estimator import SADIH
from sadih_dask.storage import FeatureStore

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Trained:
    """A model that covers all rows of a store, and how many of them were read for it now."""

    model: SADIH
    n_rows: int
    n_rows_read: int


def train(
    store: FeatureStore,
    path: Path,
    parameters: Mapping[str, Any],
    *,
    overwrite: bool = False,
    progress: Callable[[int], Progress | None] | None = None,
) -> Trained:
    """Fit a model to a store and write it to `path`, or bring the one that is there up to date.

    A model of the same parameters that has learned from the first rows of the store learns from
    the others; any other model stays, unless it may be overwritten. `progress(n_rows)` is asked
    for something to report to, with the number of rows that are going to be read.
    """
    model, n_known = SADIH(**parameters), 0
    if path.exists() and not overwrite:
        model, n_known = _reusable(store, path, model)
    elif not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} does not exist; make the folder of the model first")
    n_new = store.n_rows - n_known
    if n_new:
        model.fit(store, progress=progress(n_new) if progress is not None else None)
        model.save(path)
    return Trained(model, store.n_rows, n_new)


def _reusable(store: FeatureStore, path: Path, wanted: SADIH) -> tuple[SADIH, int]:
    """Return the model at `path` and the rows it knows; ConflictError if it is of no use here."""
    model = SADIH.load(path)
    found, asked = model.get_params(), wanted.get_params()
    different = [name for name in asked if found[name] != asked[name]]
    if different:
        raise ConflictError(
            f"{path} holds a model with "
            + ", ".join(f"{name}={found[name]!r} (not {asked[name]!r})" for name in different)
            + ". Choose another path, or replace it with overwrite=True"
        )
    coverage = model.coverage_
    if coverage is None or model.statistics_ is None or not coverage.is_prefix_of(store):
        known = "other rows" if coverage is None else f"{coverage.n_rows} rows of {coverage.url}"
        raise ConflictError(
            f"{path} holds a model of {known}, which are not the first rows of {store.url} as it "
            "is now. Choose another path, or replace it with overwrite=True"
        )
    return model, coverage.n_rows
