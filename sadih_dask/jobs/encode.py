"""Codes of a store, brought up to date: what is there already is not written again."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from sadih_dask.compute.run import Progress
from sadih_dask.model.estimator import SADIH
from sadih_dask.stores import CodeStore, FeatureStore


@dataclass(frozen=True)
class Encoded:
    """A code store, and how many of its rows were encoded now."""

    codes: CodeStore
    n_rows_encoded: int


def encode(
    model: SADIH,
    store: FeatureStore,
    url: str | os.PathLike[str],
    *,
    learned: bool = False,
    overwrite: bool = False,
    progress: Callable[[int], Progress | None] | None = None,
) -> Encoded:
    """Write the codes of a store, or the rest of them, or nothing if they are there already.

    `progress(n_rows)` is asked for something to report to.
    """
    report = None if progress is None else progress(store.n_rows)
    return Encoded(*model.update_codes(store, url, learned, overwrite, report))
