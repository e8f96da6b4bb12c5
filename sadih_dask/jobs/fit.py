"""A model file that keeps up with a store: learned from all rows once, then from new rows only."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sadih_dask.compute.checkpoint import Checkpoint
from sadih_dask.compute.run import heard_in
from sadih_dask.errors import Argument, ConflictError, Remedy, SadihError
from sadih_dask.files.file import locate
from sadih_dask.learning.classes import Vocabulary
from sadih_dask.model.baselines import ROWS, HeldOutRows, RowSample
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.methods import load_model, method_named
from sadih_dask.model.parameters import DECIDED_BY_THE_SCAN, MAX_QUERIES
from sadih_dask.retrieval.metrics import average_precision, mean_of_known, standard_error
from sadih_dask.stores import FeatureStore
from sadih_dask.stores.coverage import Difference
from sadih_dask.stores.features import find_ids
from sadih_dask.types import Floats

logger = logging.getLogger(__name__)

OVERWRITE = Remedy("Choose another path, or replace it with {}", Argument("overwrite", True))


@dataclass(frozen=True)
class Fitted:
    """A model that covers all rows of a store, and what that has cost now.

    n_rows_read     rows that were read
    n_rows_loaded   rows that an interrupted call had read, and left in its checkpoint
    n_rows_removed  rows that were deleted from the store, and taken out
    n_anchors_left  anchors that are among these, and stay
    """

    model: Hasher
    n_rows: int
    n_rows_read: int
    n_rows_loaded: int = 0
    n_rows_removed: int = 0
    n_anchors_left: int = 0

    @property
    def n_rows_known(self) -> int:
        """Rows that the model had learned from before."""
        return self.n_rows - self.n_rows_read - self.n_rows_loaded


def fit(
    store: FeatureStore,
    target: str | os.PathLike[str],
    parameters: Mapping[str, Any],
    *,
    method: str = "sadih",
    candidates: Iterable[str] = (),
    overwrite: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Fitted:
    """Fit a model to a store and write it to a path or URL, or bring the one there up to date.

    ``method`` is one of `model.methods.METHODS`, ``parameters`` are those of its estimator.

    A model of the same parameters that has learned from the first rows of the store learns from
    the others; any other model stays, unless it may be overwritten. ``candidates`` are files of
    earlier models, which may have other parameters, as long as their statistics are of use here:
    the first that is spares reading its rows again. A file that another process has written since
    this call began is not replaced: ConflictError. `checkpoint` is a folder or URL for what a long
    scan has come to; the same call goes on after an interruption, and removes it when the model is
    saved.
    """
    wanted, place = method_named(method, parameters), locate(target)
    kept = None if checkpoint is None else Checkpoint(checkpoint)
    before = place.version()
    if not overwrite and place.is_file():
        model, change = _at_target(store, target, wanted)
    else:
        model, change = reusable(store, wanted, candidates)
    n_new, n_loaded = store.n_rows if change is None else change.n_new, 0
    n_anchors = 0
    if change is not None and (anchors := model.anchor_map_) is not None:
        gone = (store.take_deleted("features", *lost) for lost in change.places)
        n_anchors = sum(anchors.count_among(rows) for rows in gone)
    if change is None or not change.is_empty or overwrite or not place.is_file():
        place.check()
        model.fit(store, progress=heard_in(n_new), checkpoint=kept)
        model.save(target, since=before)
        n_loaded = model.n_rows_loaded_
    if kept is not None:
        kept.discard()
    n_removed = 0 if change is None else len(change.deleted)
    return Fitted(model, store.n_rows, n_new - n_loaded, n_loaded, n_removed, n_anchors)


@dataclass(frozen=True)
class Gain:
    """By how much more mean average precision rows are found, and its standard error."""

    gain: float
    standard_error: float
    n_queries: int

    @classmethod
    def of(cls, differences: Floats) -> Gain:
        """Of the differences of all queries; those that have nothing to find say nothing."""
        known = differences[np.isfinite(differences)]
        return cls(mean_of_known(known), standard_error(known), len(known))

    def reaches(self, least: float) -> bool:
        """Whether it is so large, and no accident of the queries."""
        return self.gain >= least and self.gain > 2 * self.standard_error


@dataclass(frozen=True)
class Comparison:
    """Two hash functions on the same rows, of which neither has learned: what the second gains.

    new_classes     the same of rows whose classes the first has not learned from, if there are any
    codes_changed   share of the rows that get another code
    bits_changed    share of all bits
    """

    all_rows: Gain
    new_classes: Gain | None
    codes_changed: float
    bits_changed: float

    def is_better(self, least: float) -> bool:
        """Whether the second is better, for all rows or for those of new classes."""
        return any(g is not None and g.reaches(least) for g in (self.all_rows, self.new_classes))


def compare_models(
    first: Hasher, second: Hasher, queries: FeatureStore, max_queries: int | None = MAX_QUERIES
) -> Comparison:
    """Look held-out rows up among each other by the codes of two models, as `fresh` is measured."""
    sample = RowSample.sample(queries, ROWS, first.seed_)
    rows = HeldOutRows.of(sample, max_queries)
    codes = [np.asarray(model.transform(sample.features)) for model in (first, second)]
    one, other = (
        average_precision(rows.by_codes(packed, model.hash_function_.n_bits))
        for packed, model in zip(codes, (first, second), strict=True)
    )
    names = Vocabulary(np.array(list(map(str, sample.names))))
    unknown = Vocabulary(first.classes_).find(names) < 0
    sets, of_row = rows.groups
    new = np.asarray(sets.matrix @ unknown > 0)[of_row[rows.asked]]
    changed = codes[0] ^ codes[1]
    return Comparison(
        Gain.of(other - one),
        Gain.of((other - one)[new]) if new.any() else None,
        float(changed.any(axis=1).mean()),
        float(np.bitwise_count(changed).sum() / (len(changed) * first.hash_function_.n_bits)),
    )


@dataclass(frozen=True)
class Forgotten:
    """A model without some rows; ``n_anchors`` of its anchors are among these, and stay."""

    model: Hasher
    n_rows: int
    n_anchors: int


def forget(store: FeatureStore, target: str | os.PathLike[str], ids: Any) -> Forgotten:
    """Take rows, by their ids, out of the model file that has learned from the store.

    The rows stay in the store. Anchors are rows that were learned from, and a model keeps its own:
    to be rid of them delete the rows and fit a new model.
    """
    place = locate(target)
    before = place.version()
    place.check()
    model = load_model(target)
    rows = find_ids(store, ids)
    model.forget_ids(store, ids)
    model.save(target, since=before)
    anchors = model.anchor_map_
    n_anchors = 0 if anchors is None else anchors.count_among(store.take("features", rows))
    return Forgotten(model, len(rows), n_anchors)


def reusable(
    store: FeatureStore, wanted: Hasher, candidates: Iterable[str]
) -> tuple[Hasher, Difference | None]:
    """Give the model what the first of use knows of rows; also return what has changed since."""
    for path in candidates:
        try:
            model = load_model(path)
        except (SadihError, OSError) as error:
            logger.warning("%s; its rows are read again", error)
            continue
        same = all(getattr(model, n) == getattr(wanted, n) for n in DECIDED_BY_THE_SCAN)
        if same and (change := model.change_in(store)) is not None:
            return wanted.take_over(model), change
    return wanted, None


def _at_target(
    store: FeatureStore, path: str | os.PathLike[str], wanted: Hasher
) -> tuple[Hasher, Difference | None]:
    """Return the model at `path` and what it does not know; ConflictError if it is of other rows.

    A model of this very store whose rows cannot be caught up with learns from all rows again.
    """
    model = load_model(path)
    if model.method != wanted.method:
        raise ConflictError(f"{path} holds a model of the method {model.method}", remedy=OVERWRITE)
    found, asked = model.get_params(), wanted.get_params()
    if different := [name for name in asked if found[name] != asked[name]]:
        words = ", ".join(f"{name}={found[name]!r} (not {asked[name]!r})" for name in different)
        raise ConflictError(f"{path} holds a model with {words}", remedy=OVERWRITE)
    if (change := model.change_in(store)) is not None:
        return model, change
    coverage = model.coverage_
    if coverage is not None and coverage.store == store.uid and not len(coverage.forgotten):
        logger.warning(
            "%s was rewritten in a way that %s cannot follow; all rows are read again",
            store.url,
            path,
        )
        return wanted, None
    known = "other rows" if coverage is None else f"{coverage.n_rows} rows of {coverage.url}"
    raise ConflictError(
        f"{path} holds a model of {known}, which are not the first rows of {store.url} as it is "
        "now",
        remedy=OVERWRITE,
    )
