"""What codes and hash functions are worth, measured on rows that were left out.

The objective of the paper does not rank codes by how well they retrieve. Rows do: those of the
sample are hashed by what was learned from the others and looked up, among learned codes (*learned*)
and among each other (*fresh*); and, classes left out whole, among each other again (*unseen*).
Of nested codes, whose first bits serve as shorter ones, the mean of all `prefixes` counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import numpy as np

from sadih_dask.learning.encoders import unit
from sadih_dask.learning.held_out import HeldOut, choose_shrinkage, class_folds
from sadih_dask.learning.open_world import open_encoder
from sadih_dask.learning.randomness import generator
from sadih_dask.learning.start import prefixes
from sadih_dask.learning.statistics import Statistics
from sadih_dask.retrieval.codes import pack
from sadih_dask.retrieval.histograms import group_histograms, histograms_within
from sadih_dask.retrieval.metrics import mean_average_precision
from sadih_dask.types import EncoderKind, Floats, Ints

SHARPNESS_GRID: dict[EncoderKind, tuple[float, ...]] = {
    "posterior": (1.0, 2.0, 4.0, 16.0),
    "discriminant": (0.25, 0.5, 1.0),
}
"""What "auto" tries, where groups vote."""
OPENNESS_GRID = (0.0, 0.3, 0.6, 1.0)
MOST_LOST = 0.005
"""What classes to come may cost in mean average precision of *learned* and of *fresh*, at most."""
MORE_ERRORS = 0.1
"""And as a share of what these lack to 1: rows that differ from the sample err more, in proportion.
"""
WORTH = 0.002
"""What classes to come must gain in the mean of all: less may as well be chance."""
CLASS_FOLDS = 3
LEAST_CLASSES = 6
"""Classes from which on some are left out whole: two in each fold."""
FRESH_QUERIES = 512
ALONE = 0.5
"""Length of the label scores where no row tells it."""


@dataclass(frozen=True)
class Choice:
    """How a hash function weighs what it knows, and what that was worth on rows left out.

    kind        how likely each label group is: the encoder
    sharpness   power of the vote
    openness    weight of the open code, 1 for as much as the labels have
    reach       mean length of the label scores: what the openness is relative to
    qualities   mean average precision by protocol; NaN for what could not be measured
    """

    kind: EncoderKind
    sharpness: float
    openness: float
    reach: float = ALONE
    qualities: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Trial:
    """Judges codes on the rows that were left out of ``statistics``, in one part or several.

    Every set of codes is judged once: solves with different weights often come to the same.
    """

    statistics: Statistics
    parts: Sequence[HeldOut]
    kind: EncoderKind
    seed: int
    nested: bool = False
    _known: dict[bytes, float] = field(default_factory=dict, init=False)

    def __call__(self, codes: Floats) -> float:
        """Mean average precision of *learned* for codes of the groups (l, g), middling vote."""
        key = codes.tobytes()
        if key not in self._known:
            middling = SHARPNESS_GRID.get(self.kind, (1.0, 1.0))[1]
            hashed = self.label_scores(self.parts, self.kind, codes, middling)
            self._known[key] = self._learned(hashed, codes)
        return self._known[key]

    @cached_property
    def shrinkage(self) -> float:
        """Of the variances within groups, for discriminants."""
        return choose_shrinkage(self.parts)

    def label_scores(
        self, parts: Sequence[HeldOut], kind: EncoderKind, codes: Floats, sharpness: float
    ) -> Floats:
        """Scores of the rows of parts, one part behind the other."""
        shrinkage = self.shrinkage if kind == "discriminant" else 0.0
        return np.concatenate(
            [part.label_scores(kind, codes, sharpness, shrinkage) for part in parts]
        )

    def attempt(
        self,
        codes: Floats,
        votes: Sequence[tuple[EncoderKind, float]],
        opennesses: Sequence[float],
    ) -> list[Choice]:
        """What some ways to hash with given codes (l, g) are worth: encoders of a sharpness."""
        known = _Rows(self, self.parts, codes, any(opennesses))
        folds = self._class_folds if any(opennesses) else []
        unseen = _Rows(self, folds, codes, True)
        tried = []
        for vote, openness in product(votes, opennesses):
            hashed, reach = known.hash(vote, openness)
            found = [self._learned(hashed, codes), self._fresh(hashed, known.group)]
            if folds:
                hashed, _ = unseen.hash(vote, openness, reach)
                cuts = np.cumsum([len(fold.group) for fold in folds])[:-1]
                parts = zip(np.split(hashed, cuts), folds, strict=True)
                found.append(_mean([self._fresh(part, fold.group) for part, fold in parts]))
            tried.append(Choice(*vote, openness, reach, tuple(found)))
        return tried

    @cached_property
    def _class_folds(self) -> list[HeldOut]:
        """Rows of classes that are left out whole, where there are classes to spare."""
        groups = self.statistics.groups
        if not groups.single_label or len(groups) < LEAST_CLASSES:
            return []
        return class_folds(self.parts[0], CLASS_FOLDS, generator(self.seed, "class folds"))

    def _lengths(self, n_bits: int) -> list[int]:
        return prefixes(n_bits) if self.nested else [n_bits]

    def _learned(self, hashed: Floats, codes: Floats) -> float:
        groups, counts = self.statistics.groups, self.statistics.counts
        asked = groups, np.concatenate([part.group for part in self.parts])

        def precision(k: int) -> float:
            database = pack(codes[:k].T), groups, counts, k
            found = group_histograms(pack(hashed[:, :k]), asked, *database)
            return mean_average_precision(found)

        return _mean([precision(k) for k in self._lengths(len(codes))])

    def _fresh(self, hashed: Floats, group: Ints) -> float:
        """Some rows, evenly, are looked up among all others."""
        some = np.arange(0, len(group), 1 + len(group) // FRESH_QUERIES)
        held = self.statistics.groups, group

        def precision(k: int) -> float:
            return mean_average_precision(histograms_within(pack(hashed[:, :k]), held, some, k))

        return _mean([precision(k) for k in self._lengths(hashed.shape[1])])


class _Rows:
    """Rows that were left out, and their open codes, if they are wanted."""

    def __init__(self, trial: Trial, parts: Sequence[HeldOut], codes: Floats, opened: bool) -> None:
        self._trial, self._parts, self._codes = trial, parts, codes
        self._label_scores: dict[tuple[EncoderKind, float], Floats] = {}
        self._open = [self._open_codes(part) for part in parts] if opened else []
        self.group = np.concatenate([part.group for part in parts]) if parts else np.zeros(0, int)

    def _open_codes(self, part: HeldOut) -> Floats:
        rng = generator(self._trial.seed, "open")
        P = open_encoder(part.problem, self._codes[:, part.kept], rng)
        return unit(part.features @ P.T)

    def hash(
        self, vote: tuple[EncoderKind, float], openness: float, reach: float | None = None
    ) -> tuple[Floats, float]:
        """Scores whose signs are the bits, and the mean length of the labels' part."""
        if vote not in self._label_scores:
            kind, sharpness = vote
            found = self._trial.label_scores(self._parts, kind, self._codes, sharpness)
            self._label_scores[vote] = found
        scores = self._label_scores[vote]
        if reach is None:
            reach = float(np.linalg.norm(scores, axis=1).mean())
        if openness:
            scores = scores + openness * reach * np.concatenate(self._open)
        return scores, reach


def best_of(tried: Sequence[Choice]) -> Choice:
    """By the mean of the protocols that could be measured, of what loses little in the first two.

    These are *learned* and *fresh*.
    """
    best = np.fmax.reduce([choice.qualities[:2] for choice in tried])
    least = best - np.minimum(MOST_LOST, MORE_ERRORS * (1.0 - best))
    good = [choice for choice in tried if not np.any(choice.qualities[:2] < least)]
    return max(good or tried, key=lambda c: _mean(c.qualities) - WORTH * (c.openness > 0.0))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else 0.0
