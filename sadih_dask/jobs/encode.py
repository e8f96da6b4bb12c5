"""Codes of a whole store, written once: what is there already is not written again."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from sadih_dask.compute.encode import code_properties
from sadih_dask.compute.run import Progress
from sadih_dask.errors import FormatError, IncompleteError
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
    if not overwrite and (found := _finished(model, store, url, learned)) is not None:
        return Encoded(found, 0)
    report = None if progress is None else progress(store.n_rows)
    n_blocks = 0

    def count(done: int, total: int) -> None:
        nonlocal n_blocks
        n_blocks = total
        if report is not None:
            report(done, total)

    codes = model.encode(store, url, learned=learned, overwrite=overwrite, progress=count)
    return Encoded(codes, min(store.n_rows, n_blocks * codes.block_rows))


def _finished(
    model: SADIH, store: FeatureStore, url: str | os.PathLike[str], learned: bool
) -> CodeStore | None:
    """Return the codes that are there, if they are just those that are wanted."""
    try:
        found = CodeStore.open(url)
    except (FormatError, IncompleteError):
        return None
    wanted = code_properties(store, "labels" if learned else "features")
    same = all(found.properties.get(name) == value for name, value in wanted.items())
    same = same and found.model == model.fingerprint_ and found.n_rows == store.n_rows
    return found if same else None
