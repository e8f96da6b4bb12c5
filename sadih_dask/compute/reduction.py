"""What a scan does to every block of rows, and how its partial results are kept.

`FoldReduction` keeps the folds of a cross-validation apart, and some rows of each as validation
queries, so that all it needs comes from one read. Which fold a row is in, and whether it is a
query, follows from its number and a key alone: not from blocks, chunks, workers or the order of
events.

Training statistics of a fold are the *merge of the other folds*, not the total without the fold:
sums of what is there lose nothing, while a difference leaves the rounding errors of the whole in a
part of it, and label groups that only the fold has would have to be found and taken out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import scipy.sparse as sp

from sadih_dask.errors import InputError, LabelError, SadihError
from sadih_dask.learning.classes import Renumbering, Targets, Vocabulary
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.labels import LabelGroups, as_rows
from sadih_dask.learning.randomness import splitmix64
from sadih_dask.learning.sample import KEPT_ROWS, Sample, row_keys
from sadih_dask.learning.statistics import Statistics, check_numbers, merge_in_order
from sadih_dask.types import Array, Ints

Partial = TypeVar("Partial", covariant=True)


class BlockReduction(Protocol[Partial]):
    """What a scan needs: partial results are merged by ``partial.merge(other, overwrite=...)``."""

    @property
    def block_rows(self) -> int:
        """Rows of a block."""

    def of_block(
        self, features: Array, labels: Array, first_row: int, *, overwrite: bool = False
    ) -> Partial:
        """The partial result of one block."""


class KeptReduction(BlockReduction[Partial], Protocol[Partial]):
    """One whose partial results can be kept in files."""

    def identity(self) -> str:
        """A hash of everything, beside the rows, that decides the partial results."""

    def columns(self, n_features: int) -> int:
        """Columns of the partial results for rows of so many features."""

    def to_arrays(self, partial: Any) -> dict[str, Array]:
        """A partial result as arrays."""

    def from_arrays(self, arrays: Mapping[str, Array], n_rows: int) -> Partial:
        """The same partial result again; ValueError or KeyError if it cannot be one of so many."""


@dataclass(frozen=True)
class Reduction:
    """Statistics of every block, of the features themselves or of anchor features.

    sample_rows  rows that are kept beside them
    """

    block_rows: int
    n_classes: int | None
    anchor_map: AnchorMap | None
    sample_rows: int = KEPT_ROWS

    def of_block(
        self, features: Array, labels: Array, first_row: int, *, overwrite: bool = False
    ) -> Statistics:
        """Statistics of one block."""
        check_numbers(features, first_row)
        keys = row_keys(features)
        if self.anchor_map is not None:
            # A product of the same numbers in another memory layout has other last bits.
            features, overwrite = self.anchor_map(np.ascontiguousarray(features)), True
        return Statistics.of_block(
            features,
            labels,
            self.n_classes,
            first_row,
            keys=keys,
            sample_rows=self.sample_rows,
            overwrite=overwrite,
        )

    def identity(self) -> str:
        """A hash of everything, beside the rows, that decides the statistics."""
        classes = None if self.n_classes is None else int(self.n_classes)
        sizes = int(self.block_rows), classes, int(self.sample_rows)
        digest = hashlib.sha256(repr(sizes).encode())
        if (known := self.anchor_map) is not None:
            for part in (known.anchors, known.centre, np.array(known.sigma)):
                digest.update(repr((part.shape, part.dtype.str)).encode())
                digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()

    def columns(self, n_features: int) -> int:
        """Columns of the statistics for rows of so many features."""
        return n_features if self.anchor_map is None else self.anchor_map.n_features

    def to_arrays(self, partial: Statistics) -> dict[str, Array]:
        """Statistics as arrays."""
        groups = partial.groups
        return {
            "n_classes": np.array(groups.n_classes, np.int64),
            "indptr": groups.indptr,
            "indices": groups.indices,
            **{name: getattr(partial, name) for name in ("counts", "mean", "sums", "gram")},
            **{f"sample.{name}": array for name, array in partial.sample.to_arrays().items()},
        }

    def from_arrays(self, arrays: Mapping[str, Array], n_rows: int) -> Statistics:
        """The same statistics again; ValueError or KeyError if they cannot be of so many rows."""
        groups = LabelGroups(arrays["indptr"], arrays["indices"], int(arrays["n_classes"]))
        g, d = groups.n_groups, len(arrays["mean"])
        sample = Sample.from_arrays(part_of(arrays, "sample"), g, d)
        counts, mean, sums, gram = (arrays[name] for name in ("counts", "mean", "sums", "gram"))
        found = Statistics(groups, counts, mean, sums, gram, sample)
        shapes = found.counts.shape, found.sums.shape, found.gram.shape
        if shapes != ((g,), (g, d), (d, d)) or found.n_samples != n_rows:
            raise ValueError(f"these are not statistics of {n_rows} rows")
        return found


@dataclass(frozen=True)
class Folds:
    """Which fold each row is in.

    Rows are dealt out in runs of ``n_folds`` consecutive ones, a run to all folds in random order.
    So folds differ by one row at most, and rows that are sorted by class come in equal parts.
    ``key`` is 64 random bits.
    """

    n_rows: int
    n_folds: int
    key: int

    def __post_init__(self) -> None:
        if not 2 <= self.n_folds <= self.n_rows:
            raise InputError(
                f"n_samples={self.n_rows} rows cannot make n_folds={self.n_folds} folds; take two "
                "folds or more, and as many rows or more"
            )

    def of_rows(self, rows: Ints) -> Ints:
        """Fold of each of the rows."""
        runs, place = np.divmod(rows, self.n_folds)
        return np.asarray(self._deal(runs)[np.arange(len(rows)), place])

    def of_range(self, first: int, last: int) -> Ints:
        """Fold of each row from ``first`` to before ``last``."""
        run = first // self.n_folds
        dealt = self._deal(np.arange(run, -(-last // self.n_folds)))
        return dealt.reshape(-1)[first - run * self.n_folds : last - run * self.n_folds]

    def sample(self, size: int, rng: np.random.Generator) -> Ints:
        """Ascending numbers of ``size`` rows of every fold, or of all if it has fewer."""
        picked = [self._sample_of(fold, size, rng) for fold in range(self.n_folds)]
        return np.sort(np.concatenate(picked))

    def _sample_of(self, fold: int, size: int, rng: np.random.Generator) -> Ints:
        """A fold has one row of each run; the last run may be cut off before it."""
        n_runs = -(-self.n_rows // self.n_folds)
        held = n_runs if self._place(np.array([n_runs - 1]), fold)[0] < self.n_rows else n_runs - 1
        return self._place(rng.choice(held, min(size, held), replace=False), fold)

    def _place(self, runs: Ints, fold: int) -> Ints:
        """Row of the fold in each run."""
        return runs * self.n_folds + np.argmax(self._deal(runs) == fold, axis=1)

    def _deal(self, runs: Ints) -> Ints:
        """Folds of the rows of each run, (runs, n_folds): the order of a hash of each place."""
        places = runs[:, None] * self.n_folds + np.arange(self.n_folds)
        return np.argsort(splitmix64(places.astype(np.uint64), self.key), axis=1, kind="stable")


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Some rows as they were read: their numbers, ascending, features and labels.

    labels  (q,) class numbers, or sparse (q, c) for several labels a row
    """

    rows: Ints
    features: Array
    labels: Any

    @classmethod
    def of_block(cls, rows: Ints, features: Array, labels: Array, first_row: int) -> SampledRows:
        """Copies of the given rows of a block."""
        place = rows - first_row
        kept = labels[place]
        return cls(
            rows, np.take(features, place, axis=0), as_rows(kept) if kept.ndim == 2 else kept
        )

    def merge(self, other: SampledRows) -> SampledRows:
        """These rows, then those of a later part."""
        join: Any = np.concatenate if self.labels.ndim == 1 else sp.vstack
        return SampledRows(
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.features, other.features]),
            join([self.labels, other.labels]),
        )

    def take(self, keep: Array) -> SampledRows:
        """Some of the rows, by a mask."""
        return SampledRows(self.rows[keep], self.features[keep], self.labels[keep])

    def relabel(self, new_index: Ints, n_classes: int) -> SampledRows:
        """Rename the labels."""
        return replace(self, labels=Renumbering(new_index, n_classes)(self.labels))

    def regroup(self, groups: LabelGroups) -> SampledRows:
        """Take every label for the number of a group."""
        return replace(self, labels=groups.matrix[self.labels])

    def __len__(self) -> int:
        return len(self.rows)

    def to_arrays(self) -> dict[str, Array]:
        """The rows as plain arrays."""
        arrays = {"rows": self.rows, "features": self.features}
        if self.labels.ndim == 1:
            return {**arrays, "labels": self.labels}
        shape = np.array(self.labels.shape, np.int64)
        parts = {name: getattr(self.labels, name) for name in ("data", "indices", "indptr")}
        return {**arrays, "shape": shape, **parts}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> SampledRows:
        """The same rows again; ValueError or KeyError if they cannot be rows."""
        labels: Any = arrays.get("labels")
        if labels is None:
            parts = tuple(arrays[name] for name in ("data", "indices", "indptr"))
            n_rows, n_classes = (int(n) for n in arrays["shape"])
            labels = sp.csr_array(parts, shape=(n_rows, n_classes))
        found = cls(arrays["rows"], arrays["features"], labels)
        if not len(found.rows) == len(found.features) == labels.shape[0]:
            raise ValueError("sampled rows, their features and labels differ in number")
        return found


@dataclass(frozen=True, eq=False)
class FoldStatistics:
    """What the scan leaves: statistics of all rows and of each fold, and the sampled rows.

    total   just what a scan without folds leaves, to the last bit
    folds   None for a fold without rows, in a part of the data
    """

    total: Statistics
    folds: tuple[Statistics | None, ...]
    sample: SampledRows

    def merge(self, other: FoldStatistics, *, overwrite: bool = False) -> FoldStatistics:
        """Cover the rows of both, ``other`` being the later ones."""
        folds = tuple(
            b if a is None else a if b is None else a.merge(b, overwrite=overwrite)
            for a, b in zip(self.folds, other.folds, strict=True)
        )
        total = self.total.merge(other.total, overwrite=overwrite)
        return FoldStatistics(total, folds, self.sample.merge(other.sample))

    def relabel(self, new_index: Ints, n_classes: int) -> FoldStatistics:
        """Rename the labels of all."""
        folds = (None if s is None else s.relabel(new_index, n_classes) for s in self.folds)
        return FoldStatistics(
            self.total.relabel(new_index, n_classes),
            tuple(folds),
            self.sample.relabel(new_index, n_classes),
        )

    def regroup(self, groups: LabelGroups) -> FoldStatistics:
        """Take every label for the number of a group."""
        folds = (None if s is None else s.regroup(groups) for s in self.folds)
        return FoldStatistics(self.total.regroup(groups), tuple(folds), self.sample.regroup(groups))


@dataclass(frozen=True, eq=False)
class Discovered:
    """A partial result of rows whose classes are only known once they are read, and the classes.

    partial      statistics, or statistics of folds, in the numbers of the vocabulary
    multi_label  whether rows came with lists of tags
    """

    partial: Any
    vocabulary: Vocabulary
    multi_label: bool

    def merge(self, other: Discovered, *, overwrite: bool = False) -> Discovered:
        """Cover the rows of both, ``other`` being the later ones."""
        if self.multi_label != other.multi_label:
            raise LabelError(
                "some rows of y have lists of tags and others one class each; use one form"
            )
        both = self.vocabulary.joined(other.vocabulary)
        one, two = (
            part.partial.relabel(both.find(part.vocabulary), len(both)) for part in (self, other)
        )
        return Discovered(one.merge(two, overwrite=overwrite), both, self.multi_label)


@dataclass(frozen=True, eq=False)
class Discovering:
    """A reduction of rows that come with names, numbers or tags, whose classes it finds.

    numbered  what is done to rows with class numbers
    """

    numbered: BlockReduction[Any]

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return self.numbered.block_rows

    def of_block(
        self, features: Array, labels: Array, first_row: int, *, overwrite: bool = False
    ) -> Discovered:
        """The partial result of one block, and its classes."""
        found = Targets.of(labels, first_row)
        partial = self.numbered.of_block(features, found.labels, first_row, overwrite=overwrite)
        return Discovered(partial, found.classes, found.multi_label)


def training_statistics(folds: tuple[Statistics | None, ...], fold: int) -> Statistics:
    """Statistics of the rows that are not in a fold: the others, merged in order."""
    return merge_in_order(s for k, s in enumerate(folds) if k != fold and s is not None)


@dataclass(frozen=True, eq=False)
class FoldReduction:
    """What is done to every block of rows in a cross-validation.

    whole    what a scan without folds does to it
    folds    which fold each row is in
    sampled  ascending numbers of the rows that are kept as they are
    """

    whole: Reduction
    folds: Folds
    sampled: Ints

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return self.whole.block_rows

    def of_block(
        self, features: Array, labels: Array, first_row: int, *, overwrite: bool = False
    ) -> FoldStatistics:
        """Statistics of one block: the products of all rows, and again of the rows of each fold."""
        last = first_row + len(features)
        wanted = self.sampled[slice(*np.searchsorted(self.sampled, (first_row, last)))]
        sample = SampledRows.of_block(wanted, features, labels, first_row)
        check_numbers(features, first_row)
        keys = row_keys(features)
        if self.whole.anchor_map is not None:  # once for the total and the folds
            features, overwrite = self.whole.anchor_map(np.ascontiguousarray(features)), True
        fold_of = self.folds.of_range(first_row, last)
        try:
            folds = tuple(
                self._of_fold(features, labels, keys, np.flatnonzero(fold_of == fold))
                for fold in range(self.folds.n_folds)
            )
        except SadihError:  # which counts the rows of a fold; the whole block names the row
            Statistics.of_block(features, labels, self.whole.n_classes, first_row, keys=keys)
            raise
        # Last, because it may centre the rows where they are.
        total = Statistics.of_block(
            features, labels, self.whole.n_classes, first_row, keys=keys, overwrite=overwrite
        )
        return FoldStatistics(total, folds, sample)

    def _of_fold(
        self, features: Array, labels: Array, keys: Array, rows: Ints
    ) -> Statistics | None:
        if not len(rows):
            return None
        # A copy in rows whatever the layout of the block: a product has the same bits then.
        own = np.take(features, rows, axis=0)
        kept = labels[rows], self.whole.n_classes
        return Statistics.of_block(own, *kept, keys=keys[rows], overwrite=True)

    def identity(self) -> str:
        """A hash of everything, beside the rows, that decides the partial results."""
        folds = repr((int(self.folds.n_rows), int(self.folds.n_folds), self.folds.key))
        digest = hashlib.sha256(f"{self.whole.identity()} {folds}".encode())
        digest.update(np.ascontiguousarray(self.sampled).tobytes())
        return digest.hexdigest()

    def columns(self, n_features: int) -> int:
        """Columns of the statistics for rows of so many features, of all rows and of each fold."""
        return (1 + self.folds.n_folds) * self.whole.columns(n_features)

    def to_arrays(self, partial: FoldStatistics) -> dict[str, Array]:
        """A partial result as arrays; folds without rows have none."""
        parts = {"total": self.whole.to_arrays(partial.total), "sample": partial.sample.to_arrays()}
        for fold, statistics in enumerate(partial.folds):
            if statistics is not None:
                parts[f"fold{fold}"] = self.whole.to_arrays(statistics)
        return {f"{part}.{name}": a for part, arrays in parts.items() for name, a in arrays.items()}

    def from_arrays(self, arrays: Mapping[str, Array], n_rows: int) -> FoldStatistics:
        """The same partial result again; ValueError or KeyError if it cannot be of so many rows."""
        folds: list[Statistics | None] = []
        for fold in range(self.folds.n_folds):
            found = part_of(arrays, f"fold{fold}")
            n_held = int(found["counts"].sum()) if found else 0
            folds.append(self.whole.from_arrays(found, n_held) if found else None)
        if sum(s.n_samples for s in folds if s is not None) != n_rows:
            raise ValueError(f"these are not statistics of {n_rows} rows in folds")
        total = self.whole.from_arrays(part_of(arrays, "total"), n_rows)
        return FoldStatistics(
            total, tuple(folds), SampledRows.from_arrays(part_of(arrays, "sample"))
        )


def part_of(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """The arrays of one part of a result, which were named by its prefix."""
    start = f"{prefix}."
    return {name.removeprefix(start): a for name, a in arrays.items() if name.startswith(start)}
