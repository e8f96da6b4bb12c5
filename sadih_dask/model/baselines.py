"""Rows that were not learned from, looked up among each other: by codes, and by what else there is.

Two questions are answered so. `fresh`: how well are new rows of the known classes found? `unseen`:
and rows of classes that come later? For the second, models like the one that is judged learn from a
sample without a part of the classes, each part in turn, and rows of those classes are looked up.

`BASELINES` is the place to name a further ranking that codes are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
from sklearn.base import clone

from sadih_dask.compute.process import one_blas_thread
from sadih_dask.compute.rows import StoreRows, classes_of
from sadih_dask.compute.run import nobody, reporting
from sadih_dask.learning.encoders import unit
from sadih_dask.learning.features import sample_rows
from sadih_dask.learning.labels import LabelGroups, group_rows
from sadih_dask.learning.randomness import generator
from sadih_dask.model.collections import in_memory
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.inputs import as_targets
from sadih_dask.model.methods.classifier import ClassCodes
from sadih_dask.model.methods.hyperplanes import LSH
from sadih_dask.model.methods.itq import ITQ
from sadih_dask.model.scanning import Scanned, known_scan, scan_rows
from sadih_dask.retrieval import metrics
from sadih_dask.retrieval.codes import n_bytes, pack, unpack
from sadih_dask.retrieval.evaluation import BASELINE_CUTOFF, Baseline, sample_queries
from sadih_dask.retrieval.histograms import (
    BLOCK_PAIRS,
    Histograms,
    histograms_within,
    ranked_histograms,
)
from sadih_dask.stores import FeatureStore
from sadih_dask.types import Array, Bytes, Floats, Ints

ROWS = 10_000
"""Held-out rows that are looked up among each other, at most."""
LEARNED_ROWS = 20_000
"""Rows that baselines, and models without a part of the classes, learn from, at most."""
SAMPLE_BYTES = 2**27
"""Memory of either sample, at most."""
BASELINE_QUERIES = 1000
"""Rows that baselines look up: they sort all rows for each."""
CENTROID_ROWS = 39
"""Rows for each of 256 centroids that FAISS asks for."""
Values: TypeAlias = tuple[Floats, Floats]
"""Average precision, and precision at `BASELINE_CUTOFF`, of each query."""


@dataclass(frozen=True, eq=False)
class RowSample:
    """Features (n, d) and labels: names of classes (n,), or multi-hot (n, c) with those names."""

    features: Array
    labels: Any
    columns: Sequence[Any] = ()

    @classmethod
    def sample(cls, rows: Any, size: int, seed: int) -> RowSample:
        """Some rows of a store, cheap to read, or of a pair of arrays; the same ones each time."""
        rng = generator(seed, "sample")
        if isinstance(rows, FeatureStore):
            width = rows.n_features * rows.dtype("features").itemsize
            size = min(size, max(1, SAMPLE_BYTES // width))
            chosen = sample_rows(rows.n_rows, size, rows.chunk_rows, rng)
            read = StoreRows.of(rows)
            labels = read.take("labels", chosen)
            if labels.ndim == 1:
                known = classes_of(rows)
                labels = labels.astype(str) if known is None else np.array(known.names)[labels]
            return cls(read.take("features", chosen), labels, rows.class_names)
        features, given = np.asarray(in_memory(rows[0])), as_targets(in_memory(rows[1]))
        chosen = np.sort(rng.permutation(len(features))[:size])
        labels = given.labels[chosen]
        names = np.array(given.classes.names)
        of_rows = labels if given.multi_label else names[labels]
        return cls(features[chosen], of_rows, given.classes.names)

    @property
    def single_label(self) -> bool:
        """Whether every row has one class."""
        return bool(self.labels.ndim == 1)

    def take(self, rows: Array) -> RowSample:
        """Some of the rows."""
        return replace(self, features=self.features[rows], labels=self.labels[rows])

    @property
    def names(self) -> Sequence[Any]:
        """Of the classes, in the order of their numbers or columns."""
        if self.single_label:
            return np.unique(self.labels).tolist()
        n_columns = self.labels.shape[1]
        return self.columns if len(self.columns) == n_columns else range(n_columns)


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Rows that are looked up among each other, ``asked`` of them; none finds itself."""

    rows: RowSample
    asked: Ints

    @classmethod
    def of(cls, rows: RowSample, max_queries: int | None) -> HeldOutRows:
        """Look up all rows, or so many."""
        return cls(rows, sample_queries(len(rows.features), max_queries))

    @cached_property
    def groups(self) -> tuple[LabelGroups, Ints]:
        """Label sets, and the set of each row."""
        labels = self.rows.labels
        if self.rows.single_label:
            labels = np.unique(labels, return_inverse=True)[1]
        return group_rows(labels)

    def by_codes(self, codes: Bytes, n_bits: int) -> Histograms:
        """Rank by Hamming distance."""
        return histograms_within(codes, self.groups, self.asked, n_bits)

    def by_scores(self, score: Callable[[Ints], Floats]) -> Values:
        """Rank by real values, of a block of queries with all rows, largest first."""
        sets, ids = self.groups
        n = len(ids)
        found = []
        for block in np.array_split(self.asked, -(-len(self.asked) * n // BLOCK_PAIRS)):
            shares = (sets.matrix[ids[block]] @ sets.matrix.T).toarray()[:, ids] > 0
            others = np.arange(n) != block[:, None]
            found.append(_values(ranked_histograms(score(block), shares, others)))
        return _joined(found)


@dataclass(frozen=True, eq=False)
class Split:
    """Rows to learn from, if there are any, and rows to look up.

    What baselines make of them whatever the code length is found once.
    """

    learned: RowSample | None
    held_out: HeldOutRows

    @cached_property
    def few(self) -> HeldOutRows:
        """The same rows, fewer of which are looked up."""
        chosen = sample_queries(len(self.held_out.asked), BASELINE_QUERIES)
        return replace(self.held_out, asked=self.held_out.asked[chosen])

    def codes(self, method: Hasher) -> Bytes:
        """Codes of the held-out rows by a method that learns from the others."""
        known, scanned = self._known
        learned = method.take_over(known).learn_from(scanned)
        return np.asarray(learned.transform(self.held_out.rows.features))

    @cached_property
    def _known(self) -> tuple[Hasher, Scanned]:
        """What one scan of the rows to learn from leaves, for any method at any length."""
        assert self.learned is not None  # noqa: S101 - or nobody asks
        found = LSH(n_bits=1).fit(self.learned.features, self.learned.labels, progress=nobody)
        return found, known_scan(found)

    @cached_property
    def by_cosine(self) -> Values:
        """Rank by the angle of the features."""
        rows = unit(self.held_out.rows.features.astype(np.float32))
        return self.few.by_scores(lambda block: rows[block] @ rows.T)


@dataclass(frozen=True, eq=False)
class Experiment:
    """A model, and rows that it has not learned from.

    ``others`` are the same at other code lengths, as far as they are known.
    """

    model: Hasher
    split: Split
    others: Mapping[int, Hasher] = field(default_factory=dict)

    @property
    def n_bits(self) -> int:
        """Length of the codes."""
        return self.model.hash_function_.n_bits

    def at(self, n_bits: int) -> Experiment:
        """The same with codes of another length, without another look at the rows."""
        if n_bits == self.n_bits:
            return self
        known = self.others if n_bits in self.others else self.model.at_lengths([n_bits])
        return replace(self, model=known[n_bits])

    def by_model(self) -> Histograms:
        """Rank by the codes of the model."""
        return self.split.held_out.by_codes(self.codes, self.n_bits)

    @cached_property
    def scores(self) -> Floats:
        """Real-valued scores of all held-out rows, whose signs are the bits."""
        return np.asarray(self.model.project(self.split.held_out.rows.features))

    @cached_property
    def codes(self) -> Bytes:
        """Packed codes of all held-out rows."""
        return pack(self.scores)

    def values(self, codes: Bytes) -> Values:
        """What codes of all held-out rows reach."""
        return _values(self.split.few.by_codes(codes, self.n_bits))


def _values(histograms: Histograms) -> Values:
    precision = metrics.precision_at(histograms, BASELINE_CUTOFF)
    return metrics.average_precision(histograms), precision


def _joined(parts: Sequence[Values]) -> Values:
    average_precision, precision = (np.concatenate(column) for column in zip(*parts, strict=True))
    return average_precision, precision


def hamming(experiment: Experiment) -> Values:
    """The model's codes."""
    return experiment.values(experiment.codes)


def asymmetric(experiment: Experiment) -> Values:
    """Codes of the rows, real-valued scores of the queries."""
    signs = 2.0 * unpack(experiment.codes, experiment.n_bits) - 1.0
    return experiment.split.few.by_scores(lambda block: experiment.scores[block] @ signs.T)


def itq(experiment: Experiment) -> Values | None:
    """Iterative quantisation, without labels."""
    learned, n_bits = experiment.split.learned, experiment.n_bits
    if learned is None or min(learned.features.shape) < n_bits:
        return None
    return experiment.values(experiment.split.codes(ITQ(n_bits)))


def one_code_per_class(experiment: Experiment) -> Values | None:
    """A linear classifier; rows carry a random code of the class that it takes them for."""
    learned = experiment.split.learned
    if learned is None or not learned.single_label:
        return None
    return experiment.values(experiment.split.codes(ClassCodes(experiment.n_bits)))


def product_quantisation(experiment: Experiment) -> Values | None:
    """Rows of as many bytes by FAISS's product quantiser, queries as they are; cosine distance."""
    split, width = experiment.split, n_bytes(experiment.n_bits)
    if split.learned is None or find_spec("faiss") is None:
        return None
    n_learned, n_features = split.learned.features.shape
    if n_learned < CENTROID_ROWS * 256 or n_features < width:
        return None
    import faiss

    spare = ((0, 0), (0, -n_features % width))
    learned, rows = (
        np.pad(unit(each.features.astype(np.float32)), spare)
        for each in (split.learned, split.held_out.rows)
    )
    quantiser: Any = faiss.ProductQuantizer(learned.shape[1], width, 8)
    quantiser.train(learned)
    kept: Floats = quantiser.decode(quantiser.compute_codes(rows))
    length = 0.5 * np.square(kept).sum(axis=1)
    return split.few.by_scores(lambda block: rows[block] @ kept.T - length)


def cosine(experiment: Experiment) -> Values:
    """The features themselves, compared by their angle."""
    return experiment.split.by_cosine


BASELINES: dict[str, Callable[[Experiment], Values | None]] = {
    "these codes": hamming,
    "these codes, asymmetric": asymmetric,
    "ITQ": itq,
    "one code per class": one_code_per_class,
    "product quantisation": product_quantisation,
    "cosine of floats": cosine,
}
"""Rankings of the same rows, those of the model first; None where one has nothing to say."""


def compare_with_baselines(experiments: Sequence[Experiment]) -> dict[str, Baseline]:
    """Mean average precision and precision of every ranking, over all queries."""
    found = {}
    for name, baseline in BASELINES.items():
        with one_blas_thread():
            tried = [baseline(experiment) for experiment in experiments]
        if parts := [values for values in tried if values is not None]:
            found[name] = Baseline.of(*_joined(parts))
    return found


def class_folds(
    model: Hasher,
    learned: RowSample,
    fresh: RowSample,
    n_folds: int,
    max_queries: int | None,
    lengths: Iterable[int] = (),
) -> list[Experiment]:
    """Learn without a part of the classes, each part in turn; a part has two classes or more.

    Codes have the length of the model's; other ``lengths`` are learned together with it.
    """
    own = model.hash_function_.n_bits
    classes = np.intersect1d(learned.labels, fresh.labels)
    parts = min(n_folds, len(classes) // 2)
    if parts < 2:
        return []
    shuffled = generator(model.seed_, "folds").permutation(classes)
    found = []
    for unseen in np.array_split(shuffled, parts):
        known = learned.take(~np.isin(learned.labels, unseen))
        rows = fresh.take(np.isin(fresh.labels, unseen))
        sister = clone(model).set_params(random_state=model.seed_)
        with reporting(nobody):
            scanned = scan_rows(sister, known.features, known.labels)
            models = sister.at_lengths({own, *lengths}, scanned)
        asked = max(1, max_queries // parts) if max_queries else None
        split = Split(known, HeldOutRows.of(rows, asked))
        found.append(Experiment(models[own], split, models))
    return found
