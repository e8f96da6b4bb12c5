"""The one scan of a search: statistics of all rows and of every fold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sadih_dask.compute.checkpoint import Checkpoint
from sadih_dask.compute.folds import FoldReduction, Folds
from sadih_dask.compute.reduction import Reduction
from sadih_dask.compute.run import Progress
from sadih_dask.compute.scan import scan
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.randomness import draw_seed, generator
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model.estimator import SADIH, check_classes, settle_classes
from sadih_dask.model.model_file import Coverage
from sadih_dask.model.validation import Folded
from sadih_dask.stores import FeatureStore
from sadih_dask.types import Array


@dataclass(frozen=True)
class Folding:
    """Folds, rows of each that are kept as queries, what both are drawn from, the longest codes."""

    n_folds: int
    n_queries: int
    random_state: Any
    n_bits: int


@dataclass(frozen=True, eq=False)
class Scanned:
    """What one pass leaves: all that a fit learns from, and the folds.

    total, classes, multi_label, anchor_map, seed, coverage   as a fit of the model has them
    folds    which fold each row is in
    folded   what is known of each, labels numbered as in the data
    """

    total: Statistics
    classes: Array
    multi_label: bool
    anchor_map: AnchorMap | None
    seed: int
    coverage: Coverage | None
    folds: Folds
    folded: Folded

    def solve(self, model: SADIH) -> SADIH:
        """Learn from all rows, with the parameters of the model."""
        return model._learn(
            self.total,
            self.classes,
            self.multi_label,
            self.anchor_map,
            self.seed,
            self.coverage,
        )


def scan_folds(
    model: SADIH,
    X: Any,
    y: Any,
    folding: Folding,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> Scanned:
    """Read the rows once, as a fit of ``model`` does; it takes note of their columns.

    Anchors are drawn from all rows: from their features, without a look at labels or folds.
    """
    rows, classes, multi_label = model._open(X, y, reset=True)
    drawn = draw_seed(folding.random_state)
    key = int(generator(drawn, "folds").integers(2**64, dtype=np.uint64))
    folds = Folds(rows.n_rows, folding.n_folds, key)
    queries = folds.sample(folding.n_queries, generator(drawn, "queries"))
    seed = draw_seed(model.random_state)
    _, sample = model._plan_scan(
        rows,
        seed,
        n_folds=folding.n_folds,
        n_queries=folding.n_queries,
        n_bits=folding.n_bits,
    )
    anchor_map = model._draw_anchors(rows, sample, seed)
    whole = Reduction(model.block_rows, None if classes is None else len(classes), anchor_map)
    found = scan(rows, FoldReduction(whole, folds, queries), progress, checkpoint)
    total, classes = settle_classes(found.total, classes)
    check_classes(total)
    fold_of = folds.of_rows(found.sample.rows)
    folded = Folded(
        tuple(s for s in found.folds if s is not None),
        tuple(found.sample.take(fold_of == fold) for fold in range(folding.n_folds)),
        anchor_map,
        multi_label,
        seed,
    )
    coverage = Coverage.of(X) if isinstance(X, FeatureStore) else None
    return Scanned(total, classes, multi_label, anchor_map, seed, coverage, folds, folded)
