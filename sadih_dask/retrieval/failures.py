"""Which classes fail: what each is worth, and which others stand among its first finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from sadih_dask.learning.labels import LabelGroups
from sadih_dask.retrieval.codes import distances
from sadih_dask.retrieval.histograms import BLOCK_PAIRS
from sadih_dask.types import Bytes, Floats, Ints

FIRST_FINDS = 100
MOST_CLASSES, MOST_CONFUSED = 10, 3
LEAST_SHARE = 0.005
"""Of the first finds: a class that has less of them is not worth a name."""
PERFECT = 0.99995
"""What prints as 1.0000: such a class lacks nothing that a reader could see."""
NONE_FAILS = "every class finds its own rows before those of others"


@dataclass(frozen=True)
class ClassQuality:
    """What the queries of a class find.

    map        their mean average precision
    confused   other classes, by the share that they have of the first finds, the largest first
    """

    name: str
    n_queries: int
    map: float
    confused: tuple[tuple[str, float], ...]

    @property
    def confusions(self) -> str:
        """In words."""
        return ", ".join(f"{name} {share:.0%}" for name, share in self.confused) or "none other"

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> ClassQuality:
        """Take back what `dataclasses.asdict` has made of one, through JSON."""
        return cls(**{**found, "confused": tuple((n, float(s)) for n, s in found["confused"])})


def worst_classes(
    codes: Bytes,
    groups: tuple[LabelGroups, Ints],
    asked: Ints,
    average_precision: Floats,
    names: Sequence[str],
) -> tuple[ClassQuality, ...]:
    """The classes whose queries find least, rows ``asked`` among all rows but themselves.

    Classes that find all of their own are none of them. Groups are a table of label sets and the
    set of each row; a query counts for each of its labels.
    """
    table, ids = groups
    labels = sp.csr_array(table.matrix[ids].astype(np.float64))
    of_queries = sp.csr_array(labels[asked])
    known = np.isfinite(average_precision)
    n_queries = of_queries[known].sum(axis=0)
    total = of_queries[known].T @ average_precision[known]
    quality = np.divide(total, n_queries, out=np.full(len(total), np.nan), where=n_queries > 0)
    worst = np.argsort(quality, kind="stable")[: min(MOST_CLASSES, int((quality < PERFECT).sum()))]
    return tuple(
        ClassQuality(
            str(names[c]),
            int(n_queries[c]),
            float(quality[c]),
            tuple(
                (str(names[other]), float(shares[other]))
                for other in np.argsort(-shares, kind="stable")[:MOST_CONFUSED]
                if shares[other] >= LEAST_SHARE
            ),
        )
        for c, shares in zip(worst, confusion(codes, labels, asked, worst), strict=True)
    )


def confusion(
    codes: Bytes, labels: sp.csr_array, asked: Ints, classes: Ints, most: int = FIRST_FINDS
) -> Floats:
    """Share that wrong items of all c classes have of the first finds of some, (some, c).

    The first finds are as many as there are relevant items, up to ``most``: perfect codes leave
    no room for others.

    Wrong is what shares no label with the query. Items at equal distance come in any order: each is
    among the first with the chance that it has then.
    """
    n = len(codes)
    found = np.zeros((len(classes), labels.shape[1]))
    n_queries = labels[asked][:, classes].sum(axis=0)
    asked = asked[labels[asked][:, classes].sum(axis=1) > 0]
    step = max(1, BLOCK_PAIRS // max(n, 1))
    for start in range(0, len(asked), step):
        block = asked[start : start + step]
        apart = distances(codes[block], codes)
        apart[np.arange(len(block)), block] = 8 * codes.shape[1] + 1  # itself comes last
        counts = np.stack([np.bincount(row, minlength=8 * codes.shape[1] + 2) for row in apart])
        before = np.cumsum(counts, axis=1) - counts
        relevant = (labels[block] @ labels.T).toarray() > 0
        k = np.clip(relevant.sum(axis=1, keepdims=True) - 1, 1, most)
        chance = np.clip((k - before) / np.maximum(counts, 1), 0.0, 1.0) / k
        first = np.where(relevant, 0.0, np.take_along_axis(chance, apart, axis=1))
        found += labels[block][:, classes].T @ (first @ labels)
    return found / np.maximum(n_queries, 1)[:, None]
