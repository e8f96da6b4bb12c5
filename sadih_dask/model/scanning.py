"""From rows to statistics: open them, sample, draw anchors, plan the memory, read once.

Every function takes the estimator for its parameters and for what it has learned before, and
changes nothing in it but the note of its columns.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from sadih_dask.compute.checkpoint import Checkpoint
from sadih_dask.compute.memory import MemoryPlan, check_scan
from sadih_dask.compute.process import one_blas_thread
from sadih_dask.compute.reduction import Discovered, FoldReduction, Folds, Reduction, SampledRows
from sadih_dask.compute.rows import ArrayRows, Rows
from sadih_dask.compute.run import nobody, reporting
from sadih_dask.compute.scan import scan
from sadih_dask.errors import InputError, LabelError
from sadih_dask.files.redaction import redact
from sadih_dask.learning.classes import Vocabulary
from sadih_dask.learning.features import SAMPLE_ROWS, AnchorMap, sample_rows
from sadih_dask.learning.randomness import draw_seed, generator
from sadih_dask.learning.statistics import Statistics, check_finite, compute_dtype
from sadih_dask.model.inputs import (
    Learner,
    Opened,
    known_statistics,
    open_rows,
    stored_targets,
    warn_of_labels,
)
from sadih_dask.model.solve import Validation
from sadih_dask.stores import FeatureStore
from sadih_dask.stores.coverage import Coverage, Difference
from sadih_dask.types import Array, Ints

REMOVED_ROWS = 1 << 16
"""Deleted rows that are read at once."""
ONE_CLASS = (
    "all rows carry the same labels, that is one class; codes can only tell classes apart when "
    "there are two or more. Add rows of another class"
)
CheckpointLike: TypeAlias = Checkpoint | str | os.PathLike[str] | None
"""A checkpoint, or the path or URL of one."""


@dataclass(frozen=True, eq=False)
class Scanned:
    """What a pass over rows leaves: all that a model is solved from.

    classes      names or values of the classes, in the order of their numbers in the statistics
    multi_label  whether labels came as a multi-hot matrix
    seed         what anchors were drawn from, and starting codes will be
    coverage     the rows of a store that are in the statistics; None if there are others
    n_rows_loaded   rows that were not read, because a checkpoint had what they come to
    shared       what methods have found in it that does not depend on the code length
    """

    statistics: Statistics
    classes: Array
    multi_label: bool
    anchor_map: AnchorMap | None
    seed: int
    coverage: Coverage | None = None
    n_rows_loaded: int = 0
    shared: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def validation(self) -> Validation:
        """What left-out rows say; models of several code lengths that learn from this share it."""
        anchored = self.anchor_map is not None
        return Validation(self.statistics, self.seed, anchored=anchored)

    def check_classes(self) -> None:
        """Refuse rows among which there is nothing to tell apart."""
        if self.statistics.groups.n_groups < 2:
            raise LabelError(ONE_CLASS)

    def warn(self, n_bits: int) -> None:
        """Warn of labels that are probably not meant so, and of codes too short for them."""
        warn_of_labels(self.classes, self.statistics.counts, self.multi_label, n_bits)


def check_several_classes(X: Any) -> None:
    """Refuse a store of one class before it is read, not after."""
    if isinstance(X, FeatureStore) and len(X.class_names) == 1 and len(X.shape("labels")) == 1:
        raise LabelError(f"{X.url}: {ONE_CLASS}")


def scan_rows(model: Learner, X: Any, y: Any, checkpoint: CheckpointLike = None) -> Scanned:
    """Read rows for a fit from nothing."""
    opened = open_rows(model, X, y, reset=True)
    seed = draw_seed(model.random_state)
    plan, sample = plan_scan(model, opened.rows, seed)
    anchor_map = draw_anchors(model, opened.rows, sample, seed)
    reduction = _reduction(model, opened, anchor_map)
    found, n_loaded = scan(opened.rows, reduction, _as_checkpoint(checkpoint), plan.fetched)
    found, opened = _discovered(found, opened)
    return _settled(found, opened, anchor_map, seed, _covering(X), n_loaded)


def scan_more(
    model: Learner,
    X: Any,
    y: Any,
    first: int = 0,
    checkpoint: CheckpointLike = None,
) -> Scanned:
    """Read rows, those of a store from ``first`` on, and add them to what the model knows."""
    known_statistics(model, model.multi_label_)
    opened = open_rows(model, X, y, reset=False, first=first)
    known = known_scan(model)
    anchor_map = model.anchor_map_
    sample = _sample(model, opened.rows, SAMPLE_ROWS, model.seed_)
    n_anchors = None if anchor_map is None else anchor_map.n_features
    sizes = n_anchors, sample, len(known.statistics.groups)
    plan = check_scan(opened.rows, model.block_rows, *sizes, sample_rows=model.sample_rows)
    reduction = _reduction(model, opened, anchor_map)
    found, n_loaded = scan(opened.rows, reduction, _as_checkpoint(checkpoint), plan.fetched)
    found, opened = _discovered(found, opened)
    added = _settled(found, opened, anchor_map, model.seed_, None, n_loaded)
    known_statistics(model, added.multi_label)
    if opened.multi_label and opened.vocabulary is None:  # columns that stand for themselves
        added = replace(added, classes=known.classes)
    return _merged(known, added, opened.vocabulary)


def scan_removed(model: Learner, X: Any, y: Any, coverage: Coverage | None = None) -> Scanned:
    """Read rows, and take them out of what the model knows."""
    return _without(model, replace(known_scan(model), coverage=coverage), X, y)


def scan_change(
    model: Learner,
    store: FeatureStore,
    coverage: Coverage,
    change: Difference,
    checkpoint: CheckpointLike = None,
) -> Scanned:
    """Read what has changed in a store since the model has learned from it, and nothing else.

    New rows are added; rows that were deleted are still on disk, and are read and taken out.
    """
    scanned = known_scan(model)
    if change.n_new:
        scanned = scan_more(model, store, None, change.first_new, checkpoint)
    learned = ~np.isin(change.deleted, coverage.forgotten)
    cuts = np.cumsum([0, *(len(where) for _, where in change.places)])
    for (number, where), first in zip(change.places, cuts, strict=False):
        gone = where[learned[first : first + len(where)]]
        for part in np.array_split(gone, -(-len(gone) // REMOVED_ROWS)) if len(gone) else ():
            taken = [store.take_deleted(name, number, part) for name in store.learned_from]
            scanned = _without(model, scanned, taken[0], stored_targets(store, *taken[1:]))
    return replace(scanned, coverage=coverage.renumbered(store, change))


def known_scan(model: Learner) -> Scanned:
    """What the model knows, as if it had just been read."""
    known = known_statistics(model, model.multi_label_)
    kept = model.classes_, model.multi_label_, model.anchor_map_, model.seed_
    return Scanned(known, *kept, model.coverage_)


def _without(model: Learner, scanned: Scanned, X: Any, y: Any) -> Scanned:
    """What is left when rows are taken out."""
    classes = Vocabulary(scanned.classes)
    opened = open_rows(model, X, y, reset=False, within=classes)
    reduction = _reduction(model, opened, scanned.anchor_map)
    with reporting(nobody):  # few rows, and not those that are counted
        found, opened = _discovered(scan(opened.rows, reduction)[0], opened)
    removed = _settled(found, opened, scanned.anchor_map, scanned.seed)
    known_statistics(model, removed.multi_label)  # or an error: labels of the other form
    place = classes.find(Vocabulary(removed.classes))
    if opened.multi_label and opened.vocabulary is None:
        place = np.arange(len(classes))
    elif np.any(place < 0):
        raise LabelError(
            f"the class {removed.classes[place < 0][0]!r} is none of the {len(classes)} known "
            "classes; only rows that were put in can be taken out"
        )
    left = scanned.statistics.without(removed.statistics.relabel(place, len(classes)))
    if not scanned.multi_label:  # classes that have lost their last row are gone
        left, kept = left.compact()
        classes = classes.take(kept)
    return replace(scanned, statistics=left, classes=classes.values)


@dataclass(frozen=True)
class Folding:
    """Folds, rows of each that are kept as queries, what both are drawn from, the longest codes."""

    n_folds: int
    n_queries: int
    random_state: Any
    n_bits: int


@dataclass(frozen=True, eq=False)
class Folded:
    """What is known of the folds, labels numbered as in the data: all that scoring reads.

    folds    statistics of each
    queries  sampled rows of each
    """

    folds: tuple[Statistics, ...]
    queries: tuple[SampledRows, ...]
    anchor_map: AnchorMap | None
    multi_label: bool
    seed: int


def scan_folds(
    model: Learner,
    X: Any,
    y: Any,
    folding: Folding,
    checkpoint: CheckpointLike = None,
) -> tuple[Scanned, Folded]:
    """Read rows once, as `scan_rows` does, and keep the statistics of every fold apart.

    Anchors are drawn from all rows: from their features, without a look at labels or folds.
    """
    opened = open_rows(model, X, y, reset=True)
    folds, queries = draw_folds(opened.rows.n_rows, folding)
    seed = draw_seed(model.random_state)
    sizes = {name: getattr(folding, name) for name in ("n_folds", "n_queries", "n_bits")}
    plan, sample = plan_scan(model, opened.rows, seed, **sizes)
    anchor_map = draw_anchors(model, opened.rows, sample, seed)
    reduction = FoldReduction(_reduction(model, opened, anchor_map), folds, queries)
    found, n_loaded = scan(opened.rows, reduction, _as_checkpoint(checkpoint), plan.fetched)
    found, opened = _discovered(found, opened)
    fold_of = folds.of_rows(found.sample.rows)
    folded = Folded(
        tuple(s for s in found.folds if s is not None),
        tuple(found.sample.take(fold_of == fold) for fold in range(folding.n_folds)),
        anchor_map,
        bool(opened.multi_label),
        seed,
    )
    scanned = _settled(found.total, opened, anchor_map, seed, _covering(X), n_loaded)
    return scanned, folded


def draw_folds(n_rows: int, folding: Folding) -> tuple[Folds, Ints]:
    """Which fold each row is in, and the rows that are kept as queries."""
    drawn = draw_seed(folding.random_state)
    key = int(generator(drawn, "folds").integers(2**64, dtype=np.uint64))
    folds = Folds(n_rows, folding.n_folds, key)
    return folds, folds.sample(folding.n_queries, generator(drawn, "queries"))


def plan_scan(model: Learner, rows: Rows, seed: int, **folds: int) -> tuple[MemoryPlan, Ints]:
    """The memory of a scan, and the rows that anchors are drawn from.

    ``folds`` is what `check_scan` takes of a scan that keeps folds apart.
    """
    given = isinstance(model.anchors, np.ndarray)
    wanted = len(model.anchors) if isinstance(model.anchors, np.ndarray) else model.anchors or 0
    sample = _sample(model, rows, max(SAMPLE_ROWS, 0 if given else wanted), seed)
    n_anchors = None if model.anchors is None else min(wanted, wanted if given else len(sample))
    draw, others = n_anchors is not None, {"sample_rows": model.sample_rows, **folds}
    return check_scan(rows, model.block_rows, n_anchors, sample, draw=draw, **others), sample


def draw_anchors(model: Learner, rows: Rows, sample: Ints, seed: int) -> AnchorMap | None:
    """The anchor map of a model that has one."""
    if model.anchors is None:
        return None
    if isinstance(given := model.anchors, np.ndarray):
        if given.ndim != 2 or given.shape[1] != model.n_features_in_ or not len(given):
            raise InputError(
                f"anchors have shape {given.shape}; expected rows like those of X, (anchors, "
                f"{model.n_features_in_}), or the number of rows to draw"
            )
        compute_dtype(given.dtype)  # refuses what is not a number
        check_finite(given, name="anchors")
    features = np.ascontiguousarray(rows.take("features", sample))
    check_finite(features, name="sampled features")
    with one_blas_thread():
        return AnchorMap.from_sample(
            features, model.anchors, generator(seed, "anchors"), sigma=model.sigma
        )


def _as_checkpoint(given: CheckpointLike) -> Checkpoint | None:
    """A checkpoint, where a path or URL may stand for one."""
    return given if given is None or isinstance(given, Checkpoint) else Checkpoint(given)


def _sample(model: Learner, rows: Rows, size: int, seed: int) -> Ints:
    return sample_rows(rows.n_rows, size, model.block_rows, generator(seed, "sample"))


def _reduction(model: Learner, opened: Opened, anchor_map: AnchorMap | None) -> Reduction:
    n_classes = opened.rows.label_columns
    if isinstance(opened.rows, ArrayRows) and opened.vocabulary is not None:
        n_classes = len(opened.vocabulary)
    return Reduction(model.block_rows, n_classes, anchor_map, model.sample_rows)


def _covering(X: Any) -> Coverage | None:
    if not isinstance(X, FeatureStore):
        return None
    return Coverage.of(X, X.learned_from, redact(X.url))


def _discovered(found: Any, opened: Opened) -> tuple[Any, Opened]:
    """The result of a scan, and rows with the classes that it may have discovered."""
    if not isinstance(found, Discovered):
        return found, opened
    vocabulary = found.vocabulary
    if opened.groups is not None:
        return found.partial.regroup(opened.groups.take(vocabulary.values)), opened
    if opened.vocabulary is not None:  # then their numbers are what was read
        vocabulary = opened.vocabulary.take(vocabulary.values)
    return found.partial, Opened(opened.rows, vocabulary, found.multi_label)


def _settled(found: Statistics, opened: Opened, *known: Any) -> Scanned:
    """Keep the classes that rows have, in the order of their numbers; columns are kept all."""
    vocabulary, kept = opened.vocabulary, np.arange(found.groups.n_classes)
    if not opened.multi_label:
        found, kept = found.compact()
    if vocabulary is not None and len(kept) and kept[-1] >= len(vocabulary):
        raise LabelError(
            f"rows have the label {kept[-1]}, but only {len(vocabulary)} classes have names; give "
            "every class a name"
        )
    classes = Vocabulary(kept) if vocabulary is None else vocabulary.take(kept)
    if not opened.multi_label:
        classes.check_labelled()
    return Scanned(found, classes.values, bool(opened.multi_label), *known)


def _merged(known: Scanned, added: Scanned, order: Vocabulary | None) -> Scanned:
    """What both have read, with the classes of both; of a store they are in its order."""
    one, two = Vocabulary(known.classes), Vocabulary(added.classes)
    both = one.joined(two, order)
    if not known.multi_label:
        both.check_labelled()
    first, second = (
        part.statistics.relabel(both.find(names), len(both))
        for part, names in ((known, one), (added, two))
    )
    return replace(added, statistics=first.merge(second), classes=both.values)
