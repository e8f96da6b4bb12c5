"""Rows that are left out of the statistics, and what the rest says of them.

Statistics are removable, so the rows of the sample can be taken out again and be what they are not
to the statistics of all rows: new. Whatever has to be chosen is chosen by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import scipy.linalg as la

from sadih_dask.errors import InputError
from sadih_dask.learning.encoders import (
    group_likelihoods,
    regress_codes,
    vote,
    vote_by_logarithms,
)
from sadih_dask.learning.labels import LabelGroups
from sadih_dask.learning.problem import Problem
from sadih_dask.learning.sample import USED_ROWS
from sadih_dask.learning.statistics import Statistics
from sadih_dask.types import EncoderKind, Floats, Ints

MOST_LEFT_OUT = 0.2
"""Part of all rows that is left out at once, at most."""
SCORES = 2**24
"""Scores of rows by label groups that are held: with many groups fewer rows are left out."""
PENALTIES = tuple(10.0**k for k in range(-6, 2))
CLOSE = 0.5
"""Standard errors of a difference that is none: then the larger penalty is taken, which does better
for rows that are unlike those learned from."""
DEFAULT_PENALTY = 1e-2
"""Where no row can be left out: of few rows a safe choice."""
SHRINKAGES = (1e-2, 1e-1, 1.0)
"""What may be added to the variances within groups, in terms of a feature's variance."""
COMPARED_GROUPS = 2048
"""Groups among which a shrinkage has to find those of rows, at most."""
ROUNDING = 1e-5
"""Part of a column's scatter that is rounding error of products in float32, or less."""
TARGETS = 256
"""Labels beyond which random sums of them are predicted instead: the error's mean is the same."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Some rows, and the statistics of all others.

    training  statistics of the others
    kept      (g',)   number, among the groups of all rows, of each group that the others have
    groups    the label groups of all rows
    features  (q, d)  the rows, standardised as the others are
    group     (q,)    their groups, numbered as in ``groups``
    ridge     penalty of regressions
    """

    training: Statistics
    kept: Ints
    groups: LabelGroups
    features: Floats
    group: Ints
    ridge: float
    _likelihoods: dict[float, Floats] = field(default_factory=dict, init=False)

    @cached_property
    def problem(self) -> Problem:
        """The others' learning problem; for regressions only, which know no code length.

        With fewer rows than columns a difference of Gram matrices is definite only to rounding: a
        penalty below that is raised.
        """
        problem = Problem.from_statistics(self.training, 1, ridge=max(self.ridge, PENALTIES[0]))
        while problem.ridge < PENALTIES[-1]:
            try:
                problem.ridge_factor  # noqa: B018 - kept, if there is one
                break
            except InputError:
                problem = replace(problem, ridge=10.0 * problem.ridge)
        return problem

    @cached_property
    def scores(self) -> Floats:
        """Regression of the groups for the rows, (q, g); 0 for groups that are left out whole."""
        found = np.zeros((len(self.group), len(self.groups)))
        share = self.problem.N / self.problem.n
        found[:, self.kept] = self.features @ self.problem.group_coefficients + share
        return found

    def label_scores(
        self, kind: EncoderKind, B: Floats, sharpness: float, shrinkage: float = SHRINKAGES[-1]
    ) -> Floats:
        """Scores of the rows, (q, l), as a hash function of the others would have them."""
        if kind == "posterior":
            return vote(self.scores, B.T, sharpness)
        if kind == "discriminant":
            return vote_by_logarithms(self.likelihoods(shrinkage), B.T[self.kept], sharpness)
        coefficients, intercept = regress_codes(self.problem, B[:, self.kept])
        return np.asarray(self.features @ coefficients + intercept)

    def likelihoods(self, shrinkage: float) -> Floats:
        """Logarithms of the likelihoods of the groups that the others have, (q, g')."""
        if shrinkage not in self._likelihoods:
            problem = replace(self.problem, ridge=shrinkage)
            self._likelihoods[shrinkage] = group_likelihoods(problem, self.features, slice(None))
        return self._likelihoods[shrinkage]

    def n_found(self, shrinkage: float) -> int:
        """Rows whose group is the likeliest, of theirs and some others."""
        theirs = np.isin(self.kept, self.group)
        others = np.flatnonzero(~theirs)[: max(0, COMPARED_GROUPS - int(theirs.sum()))]
        groups = np.concatenate([np.flatnonzero(theirs), others])
        problem = replace(self.problem, ridge=shrinkage)
        found = group_likelihoods(problem, self.features, groups).argmax(axis=1)
        return int(np.sum(self.kept[groups[found]] == self.group))


def choose_shrinkage(parts: Sequence[HeldOut]) -> float:
    """What shall be added to the variances within groups, of `SHRINKAGES`: rows left out decide."""
    found = [sum(part.n_found(shrinkage) for part in parts) for shrinkage in SHRINKAGES]
    return max(zip(found, SHRINKAGES, strict=True))[1]


def hold_out(statistics: Statistics, ridge: float, *, balanced: bool = False) -> list[HeldOut]:
    """Leave the sampled rows out, at once or, of a small collection, in up to five parts.

    Every row is left out once. Parts without which there is nothing to tell apart are passed over.
    Costs O(rows d^2) for each part.
    """
    n_groups = len(statistics.groups)
    used = min(USED_ROWS, len(statistics.sample), max(64, SCORES // n_groups))
    n_parts = max(1, int(np.ceil(used / max(1.0, MOST_LEFT_OUT * statistics.n_samples))))
    labels = statistics.groups.matrix
    found = []
    for part in range(n_parts):
        rows = statistics.sample.take(np.arange(part, used, n_parts))
        if not 0 < len(rows) < statistics.n_samples:
            continue
        left_out = Statistics.of_block(
            rows.features, labels[rows.group], labels.shape[1], keys=rows.keys
        )
        training = _without_rounding(statistics.without(left_out, known=True), statistics)
        training = training.balanced() if balanced else training
        if len(training.groups) > 1:
            kept = statistics.groups.find(training.groups)
            scaled = (rows.features - training.mean) / training.scale
            found.append(HeldOut(training, kept, statistics.groups, scaled, rows.group, ridge))
    return found


def _without_rounding(left: Statistics, whole: Statistics) -> Statistics:
    """Make columns constant that only rows have values in which were taken out of the whole.

    What is left of them is rounding error, which standardisation would make as large as the rest.
    """
    noise = np.diagonal(left.gram) <= ROUNDING * np.diagonal(whole.gram)
    if not noise.any():
        return left
    gram, sums = left.gram.copy(), left.sums.copy()
    gram[noise] = gram[:, noise] = sums[:, noise] = 0.0
    return replace(left, gram=gram, sums=sums)


def choose_penalty(statistics: Statistics, seed: np.random.Generator) -> float:
    """The ridge penalty that predicts the labels of left-out rows best, of `PENALTIES`.

    By squared error, which needs no codes and changes smoothly. Where every row has one class, a
    smaller one if that puts the class further ahead of others, which is what codes are for.
    O(d^3 / 3) for each penalty and each part that is left out.
    """
    left_out = hold_out(statistics, DEFAULT_PENALTY)
    if not left_out:
        return DEFAULT_PENALTY
    n_classes = statistics.groups.n_classes
    mixed: Floats | None = None
    if n_classes > TARGETS:
        mixed = np.where(seed.random((n_classes, TARGETS)) < 0.5, 1.0, -1.0)
    ranked = statistics.groups.single_label and mixed is None
    losses = []
    for part in left_out:
        problem, labels = part.problem, part.groups.matrix[part.group]
        share = problem.label_counts / problem.n
        if mixed is None:
            XYt, wanted = problem.XYt, labels.toarray() - share
        else:
            XYt, wanted = problem.XG @ (problem.Gt @ mixed), labels @ mixed - share @ mixed
        lost = np.full((2, len(PENALTIES), len(part.group)), np.inf)
        for k, penalty in enumerate(PENALTIES):
            try:
                factor = problem.factor_gram(1.0, penalty * problem.n)
            except InputError:  # below what rounding leaves
                continue
            fitted = part.features @ la.cho_solve(factor, XYt, check_finite=False)
            lost[0, k] = np.square(wanted - fitted).sum(axis=1)
            if ranked:
                lost[1, k] = lost_by_rank(fitted + share, part.groups.indices[part.group])
        losses.append(lost)
    squared, by_rank = np.concatenate(losses, axis=2)
    best = _largest_good(squared)
    return PENALTIES[_largest_good(by_rank[: best + 1]) if ranked else best]


def lost_by_rank(scores: Floats, label: Ints) -> Floats:
    """What average precision lacks to 1 where classes come one behind the other, by score; (n,).

    Of classes of one size, in the limit of many rows: with r - 1 classes before that of the row,
    (r - 1) log(r / (r - 1)). That is *learned* with codes so long that distances follow scores.
    """
    own = np.take_along_axis(scores, label[:, None], axis=1)
    before = np.count_nonzero(scores > own, axis=1)
    return np.asarray(before * np.log1p(1.0 / np.maximum(before, 1)))


def _largest_good(lost: Floats) -> int:
    """The last of the choices (k, n) whose mean loss is `CLOSE` to the least."""
    possible = np.flatnonzero(np.isfinite(lost).all(axis=1))
    more = lost[possible] - lost[possible[np.argmin(lost[possible].mean(axis=1))]]
    error = more.std(axis=1) / np.sqrt(lost.shape[1])
    return int(possible[np.flatnonzero(more.mean(axis=1) <= CLOSE * error)[-1]])


def class_folds(part: HeldOut, n_folds: int, rng: np.random.Generator) -> list[HeldOut]:
    """Rows of some classes, and the others' statistics without these classes, for every fold.

    Only where every row has one class. What the statistics say of single classes are their means,
    so these are left out; how rows scatter about them is known of all classes together.
    """
    dealt = rng.permutation(len(part.groups)) % n_folds
    found = []
    for fold in range(n_folds):
        rows = np.flatnonzero(dealt[part.group] == fold)
        known = dealt[part.kept] != fold
        if len(rows) == 0 or known.sum() < 2:
            continue
        old = part.training
        training = old.weighted(old.counts * known)
        scaled = (part.features[rows] * old.scale + old.mean - training.mean) / training.scale
        kept = part.kept[known]
        found.append(HeldOut(training, kept, part.groups, scaled, part.group[rows], part.ridge))
    return found
