"""Rows of any chunk, reduced as far as the tree allows before their neighbours are there.

Blocks are canonical and chunks are not: a chunk ends within a block, and begins within a node of
the tree. So what a chunk comes to is a *span*, a row of parts: partial results of whole blocks or
of larger subtrees, and loose rows, which wait for their neighbours. Adjacent spans join into one.
Only what is merged in the tree is merged here, so the spans of all chunks join to the result that
the same rows have in any other chunks, to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from sadih_dask.compute.reduction import BlockReduction
from sadih_dask.learning.statistics import MERGE_FAN_IN
from sadih_dask.types import Array


@dataclass(frozen=True, eq=False)
class Loose:
    """Rows as they were read, and the number of the first."""

    first: int
    features: Array
    labels: Any

    @property
    def last(self) -> int:
        """The number of the row after them."""
        return self.first + len(self.features)

    def between(self, first: int, last: int) -> Loose:
        """Some of the rows, by their numbers."""
        cut = slice(first - self.first, last - self.first)
        return Loose(first, self.features[cut], self.labels[cut])

    def then(self, other: Loose) -> Loose:
        """These rows and those that follow them."""
        join: Any = sp.vstack if sp.issparse(self.labels) else np.concatenate
        labels = join([self.labels, other.labels])
        return Loose(self.first, np.concatenate([self.features, other.features]), labels)

    def owned(self) -> Loose:
        """The same rows, without the larger array that they are a part of."""
        if self.features.base is None:
            return self
        return Loose(self.first, self.features.copy(), self.labels.copy())


@dataclass(frozen=True, eq=False)
class Reduced:
    """What rows ``[first, last)`` come to: a node of the tree, or the first children of one."""

    first: int
    last: int
    partial: Any


Span: TypeAlias = tuple[Loose | Reduced, ...]
"""Parts of consecutive rows, in order."""


@dataclass(frozen=True, eq=False)
class Joiner:
    """Makes spans of rows, and one of two.

    n_rows  of the whole collection
    loose   whether rows take less memory than the partial results of their blocks
    """

    reduction: BlockReduction[Any]
    n_rows: int
    loose: bool

    def span_of(self, features: Array, labels: Any, first: int) -> Span:
        """Reduce consecutive rows; what is left of them is no larger than they are.

        Blocks of a node whose first block is elsewhere cannot be merged with one another yet.
        """
        rows = Loose(first, features, labels)
        node = MERGE_FAN_IN * self.reduction.block_rows
        begin = min(-(-first // node) * node, rows.last) if self.loose else first
        parts: list[Loose | Reduced] = [rows.between(first, begin)] if begin > first else []
        self._push(parts, self._blocks(rows.between(begin, rows.last)), overwrite=True)
        return _owned(parts)

    def join(self, one: Span, other: Span, first: int, last: int) -> Span:
        """What two spans come to in rows ``[first, last)``: a node, or more.

        One begins there, and the other goes on where it ends; both may have parts of other nodes.
        """
        parts: list[Loose | Reduced] = []
        begun = _within(one, first, last)
        for part in (*begun, *_within(other, begun[-1].last, last)):
            more = self._blocks(part) if isinstance(part, Loose) else (part,)
            self._push(parts, more, overwrite=False)
        return _owned(parts)

    def result(self, span: Span) -> Any:
        """What the whole collection comes to."""
        (part,) = span
        if not isinstance(part, Reduced) or (part.first, part.last) != (0, self.n_rows):
            raise AssertionError(f"rows {part.first} to {part.last} are not all {self.n_rows}")
        return part.partial

    def _blocks(self, rows: Loose) -> Iterator[Loose]:
        """Rows, cut where blocks end."""
        block, first = self.reduction.block_rows, rows.first
        while first < rows.last:
            last = min((first // block + 1) * block, rows.last)
            yield rows.between(first, last)
            first = last

    def _push(
        self, parts: list[Loose | Reduced], more: Iterable[Loose | Reduced], *, overwrite: bool
    ) -> None:
        """Append parts, each merged with those before it as far as the tree goes.

        With ``overwrite`` partial results are void after they have been merged.
        """
        for part in more:
            if isinstance(part, Loose):
                part = self._completed(parts, part)
            while isinstance(part, Reduced) and parts and self._are_brothers(parts[-1], part):
                before: Any = parts.pop()
                merged = before.partial.merge(part.partial, overwrite=overwrite)
                part = Reduced(before.first, part.last, merged)
            parts.append(part)

    def _completed(self, parts: list[Loose | Reduced], rows: Loose) -> Loose | Reduced:
        """Rows of one block, with those of it that came before, reduced if that is all of it."""
        block = self.reduction.block_rows
        if parts and isinstance(before := parts[-1], Loose) and rows.first % block:
            parts.pop()
            rows = before.then(rows)
        if rows.first % block or rows.last != min(rows.first + block, self.n_rows):
            return rows
        partial = self.reduction.of_block(rows.features, rows.labels, rows.first)
        return Reduced(rows.first, rows.last, partial)

    def _are_brothers(self, one: Loose | Reduced, other: Reduced) -> bool:
        """Whether the tree merges the two: first children of a node, and its next child."""
        size = self.reduction.block_rows
        while isinstance(one, Reduced) and other.first % size == 0:
            parent = size * MERGE_FAN_IN
            if one.first % parent == 0 and other.first - one.first < parent:
                return other.last == min(other.first + size, self.n_rows)
            size = parent
        return False


def _within(span: Span, first: int, last: int) -> Span:
    """Parts of a span that begin in rows ``[first, last)``; none goes beyond a node."""
    return tuple(part for part in span if first <= part.first < last)


def _owned(parts: list[Loose | Reduced]) -> Span:
    return tuple(part.owned() if isinstance(part, Loose) else part for part in parts)
