"""Codes of a store, brought up to date: what is there already is not written again."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sadih_dask.compute.run import heard_in
from sadih_dask.model.estimator import Hasher
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.types import BitOrder


@dataclass(frozen=True)
class Encoded:
    """A code store, and how many of its rows were encoded now."""

    codes: CodeStore
    n_rows_encoded: int


def encode(
    model: Hasher,
    store: FeatureStore,
    url: str | os.PathLike[str],
    *,
    learned: bool = False,
    bitorder: BitOrder = "little",
    overwrite: bool = False,
) -> Encoded:
    """Write the codes of a store, or the rest of them, or nothing if they are there already."""
    heard = heard_in(store.n_rows)
    return Encoded(*model.update_codes(store, url, learned, overwrite, heard, bitorder=bitorder))
