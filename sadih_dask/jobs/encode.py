"""Codes of a store, brought up to date: what is there already is not written again."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass

from sadih_dask.compute.encode import change_since
from sadih_dask.compute.run import heard_in
from sadih_dask.errors import FormatError, IncompleteError, SadihError
from sadih_dask.model.estimator import Hasher
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.types import BitOrder

logger = logging.getLogger(__name__)


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
    candidates: Iterable[str] = (),
) -> Encoded:
    """Write the codes of a store, or the rest of them, or nothing if they are there already.

    ``candidates`` are code stores of earlier states of the store. The first whose codes are hashed
    by this model is cloned to a place where there are none, and only new rows are hashed.
    """
    if not (learned or overwrite):
        _begin_with(candidates, model, store, url, bitorder)
    heard = heard_in(store.n_rows)
    return Encoded(*model.update_codes(store, url, learned, overwrite, heard, bitorder=bitorder))


def _begin_with(
    candidates: Iterable[str],
    model: Hasher,
    store: FeatureStore,
    url: str | os.PathLike[str],
    bitorder: BitOrder,
) -> None:
    """Take over codes of this hash function, if there are none yet."""
    for candidate in candidates:
        try:
            found = CodeStore.open(candidate)
            kind = found.model, found.bitorder, found.properties.get("protocol")
            if kind != (model.fingerprint_, bitorder, "encoded"):
                continue
            if change_since(found, store) is not None and not _is_store(url):
                found.clone(url)
                return
        except (SadihError, OSError) as error:
            logger.warning("%s; its rows are hashed again", error)


def _is_store(url: str | os.PathLike[str]) -> bool:
    try:
        return CodeStore.open(url).n_rows > 0
    except (FormatError, IncompleteError):  # nothing, or a clone that was interrupted
        return False
