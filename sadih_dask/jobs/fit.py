"""A model file that keeps up with a store: learned from all rows once, then from new rows only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sadih_dask.compute.checkpoint import Checkpoint
from sadih_dask.errors import Argument, ConflictError, Remedy
from sadih_dask.files.file import locate
from sadih_dask.model.estimator import SADIH
from sadih_dask.stores import FeatureStore

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Trained:
    """A model that covers all rows of a store, and what that has cost now.

    n_rows_read    rows that were read
    n_rows_loaded  rows that an interrupted call had read, and left in its checkpoint
    """

    model: SADIH
    n_rows: int
    n_rows_read: int
    n_rows_loaded: int = 0

    @property
    def n_rows_known(self) -> int:
        """Rows that the model had learned from before."""
        return self.n_rows - self.n_rows_read - self.n_rows_loaded


def train(
    store: FeatureStore,
    path: str | os.PathLike[str],
    parameters: Mapping[str, Any],
    *,
    overwrite: bool = False,
    progress: Callable[[int], Progress | None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Trained:
    """Fit a model to a store and write it to a path or URL, or bring the one there up to date.

    A model of the same parameters that has learned from the first rows of the store learns from
    the others; any other model stays, unless it may be overwritten. `progress(n_rows)` is asked
    for something to report to, with the number of rows that are going to be learned from.
    `checkpoint` is a folder or URL for what a long scan has come to; the same call goes on after
    an interruption, and removes it when the model is saved.
    """
    model, n_known, n_loaded = SADIH(**parameters), 0, 0
    place = locate(path)
    if not overwrite and place.is_file():
        model, n_known = _reusable(store, path, model)
    kept = None if checkpoint is None else Checkpoint(checkpoint)
    n_new = store.n_rows - n_known
    if n_new:
        place.check()
        report = None if progress is None else progress(n_new)
        model.fit(store, progress=report, checkpoint=kept)
        model.save(path)
        n_loaded = 0 if kept is None else kept.n_rows_loaded
    if kept is not None:
        kept.discard()
    return Trained(model, store.n_rows, n_new - n_loaded, n_loaded)


def _reusable(
    store: FeatureStore, path: str | os.PathLike[str], wanted: SADIH
) -> tuple[SADIH, int]:
    """Return the model at `path` and the rows it knows; ConflictError if it is of no use here."""
    model = SADIH.load(path)
    found, asked = model.get_params(), wanted.get_params()
    different = [name for name in asked if found[name] != asked[name]]
    if different:
        raise ConflictError(
            f"{path} holds a model with "
            + ", ".join(f"{name}={found[name]!r} (not {asked[name]!r})" for name in different),
            remedy=Remedy(
                "Choose another path, or replace it with {}", Argument("overwrite", True)
            ),
        )
    coverage = model.coverage_
    if coverage is None or model.statistics_ is None or not coverage.is_prefix_of(store):
        known = "other rows" if coverage is None else f"{coverage.n_rows} rows of {coverage.url}"
        raise ConflictError(
            f"{path} holds a model of {known}, which are not the first rows of {store.url} as it "
            "is now",
            remedy=Remedy(
                "Choose another path, or replace it with {}", Argument("overwrite", True)
            ),
        )
    return model, coverage.n_rows
