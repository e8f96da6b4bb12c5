"""S applied over blocks of label groups, as Dask tasks.

With very many label groups the product with S is nearly all of the work of learning: k g^2
operations, where every other step is linear in g. The blocks are those of the same product in one
process, so the result has the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sadih_dask.compute.tree import Tasks
from sadih_dask.learning.labels import LabelGroups
from sadih_dask.learning.similarity import SharedLabel, Similarity, group_similarity
from sadih_dask.types import Floats, SimilarityKind

MANY_GROUPS = 4096
"""Label groups from which on blocks of S are worth a task."""


@dataclass(frozen=True, eq=False)
class TaskedSharedLabel(SharedLabel):
    """Shared-label similarity whose blocks are tasks on the current scheduler."""

    @cached_property
    def _table(self) -> SharedLabel:
        """What tasks get; on threads it keeps what it has found out."""
        return SharedLabel(self.groups)

    def sum_all_sharing(self, m: Floats) -> Floats:
        """M [G^T G > 0]; only columns of the product travel back."""
        tasks = Tasks("similarity")
        table, operand = tasks.share(self._table, "groups"), tasks.share(m, "operand")
        columns = [
            tasks.after("similarity", SharedLabel.sum_sharing, table, operand, start, stop)
            for start, stop in self.blocks()
        ]
        return np.hstack(tasks.run(columns))


def tasked_similarity(groups: LabelGroups, kind: SimilarityKind) -> Similarity:
    """Choose how S is applied: in this process, or as tasks where there are many groups."""
    if kind == "shared-label" and not groups.single_label and len(groups) > MANY_GROUPS:
        return TaskedSharedLabel(groups)
    return group_similarity(groups, kind)
