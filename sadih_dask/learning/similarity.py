"""The group similarity S, applied and never formed.

S is g x g over label groups. ``apply(M)`` gives M S for a wide matrix M of k rows in bounded
memory; that product is the only way in which the learner ever meets S.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, get_args

import numpy as np
import scipy.sparse as sp

from sadih_dask.errors import InputError
from sadih_dask.learning.labels import LabelGroups
from sadih_dask.types import Bytes, Floats, SimilarityKind

BLOCK_BYTES = 64 * 2**20
"""Size of a dense block of rows of S, were it formed whole."""
COLUMNS = 4096
"""Columns of a block that are formed at a time, so that they stay in cache; a multiple of 8."""


class Similarity(Protocol):
    """A symmetric g x g similarity with values in [-1, 1]."""

    def apply(self, m: Floats) -> Floats:
        """Return M S, (k, g), for M (k, g)."""
        ...

    def energy(self, counts: Floats) -> Floats:
        """Return the weighted sum of squares of every row of S: sum_j N_j s_ij^2, (g,).

        That is n where all entries are +1 or -1.
        """
        return np.full(len(counts), counts.sum())


def group_similarity(groups: LabelGroups, kind: SimilarityKind) -> Similarity:
    """Choose how S follows from the label groups.

    "shared-label", the paper's: +1 where two groups share a label, -1 elsewhere.
    "cosine": 2 u_i^T u_j - 1 for l2-normalised label vectors u; graded, and linear in g.
    """
    if kind == "cosine":
        return Cosine(groups)
    if kind != "shared-label":
        raise InputError(
            f"similarity={kind!r} is unknown; choose one of {get_args(SimilarityKind)}"
        )
    return Identity() if groups.single_label else SharedLabel(groups)


class Identity(Similarity):
    """Shared-label similarity of single-label data: S = 2 I - 1 1^T. Costs O(k g)."""

    def apply(self, m: Floats) -> Floats:
        """Return M S."""
        return 2.0 * m - m.sum(axis=1, keepdims=True)


@dataclass(frozen=True, eq=False)
class SharedLabel(Similarity):
    """Shared-label similarity: S = 2 [G^T G > 0] - 1 1^T, in blocks of rows.

    Which groups carry a label is a row of bits; the groups that share a label with a given group
    are the OR of its labels' rows. So a block of S costs g/8 bytes per label to find, and the
    product with M, k g^2 operations, is all that is left to pay.
    """

    groups: LabelGroups

    @cached_property
    def _carriers(self) -> Bytes:
        """Bit j of row k: group j carries label k; (c, g/8)."""
        by_label = sp.csc_array(self.groups.matrix)
        bits = np.zeros((self.groups.n_classes, -(-self.groups.n_groups // 8)), np.uint8)
        label = np.repeat(np.arange(self.groups.n_classes), np.diff(by_label.indptr))
        group = by_label.indices
        np.bitwise_or.at(bits, (label, group >> 3), (1 << (group & 7)).astype(np.uint8))
        return bits

    def _sharing(self, start: int, stop: int) -> Bytes:
        """Rows ``start`` to ``stop`` of [G^T G > 0] as bits, (rows, g/8)."""
        indptr, indices, carriers = self.groups.indptr, self.groups.indices, self._carriers
        bits = np.empty((stop - start, carriers.shape[1]), np.uint8)
        # One group at a time stays in cache: `reduceat` over the block is up to 100 times slower.
        for row, group in enumerate(range(start, stop)):
            labels = indices[indptr[group] : indptr[group + 1]]
            np.bitwise_or.reduce(carriers[labels], axis=0, out=bits[row])
        return bits

    def blocks(self) -> list[tuple[int, int]]:
        """Ranges of rows of S that are formed together; they depend on g alone."""
        g = self.groups.n_groups
        rows = max(1, BLOCK_BYTES // (8 * g))
        return [(start, min(start + rows, g)) for start in range(0, g, rows)]

    def sum_sharing(self, m: Floats, start: int, stop: int) -> Floats:
        """Columns ``start`` to ``stop`` of M [G^T G > 0]; symmetric, so they come from its rows."""
        g, bits = self.groups.n_groups, self._sharing(start, stop)
        total = np.zeros((len(m), stop - start))
        for left in range(0, g, COLUMNS):
            right = min(left + COLUMNS, g)
            part = bits[:, left // 8 : -(-right // 8)]
            flags = np.unpackbits(part, axis=1, count=right - left, bitorder="little")
            total += m[:, left:right] @ flags.astype(np.float64).T
        return total

    def sum_all_sharing(self, m: Floats) -> Floats:
        """M [G^T G > 0], block by block."""
        return np.hstack([self.sum_sharing(m, start, stop) for start, stop in self.blocks()])

    def apply(self, m: Floats) -> Floats:
        """Return M S."""
        return 2.0 * self.sum_all_sharing(m) - m.sum(axis=1, keepdims=True)


@dataclass(frozen=True, eq=False)
class Cosine(Similarity):
    """Cosine similarity of label sets: S = 2 U^T U - 1 1^T, U (c, g) with unit columns."""

    groups: LabelGroups

    @cached_property
    def _unit(self) -> sp.csr_array:
        sizes = np.diff(self.groups.indptr)
        return sp.csr_array(sp.diags_array(1.0 / np.sqrt(sizes)) @ self.groups.matrix)

    def apply(self, m: Floats) -> Floats:
        """Return M S in O(k nnz): through the c labels, never g x g."""
        by_label = np.asarray(m @ self._unit)
        return np.asarray(2.0 * (by_label @ self._unit.T)) - m.sum(axis=1, keepdims=True)

    def energy(self, counts: Floats) -> Floats:
        """Return sum_j N_j (2 u_i.u_j - 1)^2, from U diag(N) U^T, c x c."""
        unit = self._unit
        by_label = sp.csr_array(unit.T @ sp.diags_array(counts) @ unit)
        squares = np.asarray((unit @ by_label).multiply(unit).sum(axis=1)).reshape(-1)
        linear = unit @ (unit.T @ counts)
        return np.asarray(4.0 * squares - 4.0 * linear + counts.sum())
