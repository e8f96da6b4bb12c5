"""Rows that were not learned from, looked up among each other: by codes, and by what else there is.

Two questions are answered so. `fresh`: how well are new rows of the known classes found? `unseen`:
and rows of classes that come later? For the second, models like the one that is judged learn from a
sample without a part of the classes, each part in turn, and rows of those classes are looked up.

`BASELINES` is the place to name a further ranking that codes are compared with.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from sadih_dask.compute.blas import one_blas_thread
from sadih_dask.compute.rows import StoreRows, classes_of
from sadih_dask.compute.run import nobody
from sadih_dask.learning.features import sample_rows
from sadih_dask.learning.labels import LabelGroups, group_rows
from sadih_dask.learning.randomness import generator
from sadih_dask.learning.updates import polar
from sadih_dask.model.collections import in_memory
from sadih_dask.model.estimator import SADIH
from sadih_dask.model.inputs import as_targets
from sadih_dask.retrieval import metrics
from sadih_dask.retrieval.codes import n_bytes, pack, unpack
from sadih_dask.retrieval.evaluation import BASELINE_CUTOFF, Baseline, sample_queries
from sadih_dask.retrieval.histograms import Histograms, histograms_within, ranked_histograms
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
BLOCK_PAIRS = 2**22
ROTATIONS = 50
SHRINKAGE = 0.1
"""Of the classifier's covariance: singular ones would need it, others hardly mind."""
CENTROID_ROWS = 39
"""Rows for each of 256 centroids that FAISS asks for."""


@dataclass(frozen=True, eq=False)
class RowSample:
    """Features (n, d) and labels: names of classes (n,), or multi-hot (n, c)."""

    features: Array
    labels: Any

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
            return cls(read.take("features", chosen), labels)
        features, given = np.asarray(in_memory(rows[0])), as_targets(in_memory(rows[1]))
        chosen = np.sort(rng.permutation(len(features))[:size])
        labels = given.labels[chosen]
        return cls(
            features[chosen], labels if given.multi_label else np.array(given.classes.names)[labels]
        )

    @property
    def single_label(self) -> bool:
        """Whether every row has one class."""
        return bool(self.labels.ndim == 1)

    def take(self, rows: Array) -> RowSample:
        """Some of the rows."""
        return RowSample(self.features[rows], self.labels[rows])


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows that are looked up among each other, ``asked`` of them; none finds itself."""

    rows: RowSample
    asked: Ints

    @classmethod
    def of(cls, rows: RowSample, max_queries: int | None) -> HeldOut:
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

    def by_scores(self, score: Callable[[Ints], Floats]) -> Iterator[Histograms]:
        """Rank by real values, of a block of queries with all rows, largest first."""
        sets, ids = self.groups
        n = len(ids)
        step = max(1, BLOCK_PAIRS // n)
        for start in range(0, len(self.asked), step):
            block = self.asked[start : start + step]
            shares = (sets.matrix[ids[block]] @ sets.matrix.T).toarray()[:, ids] > 0
            others = np.arange(n) != block[:, None]
            yield ranked_histograms(score(block), shares, others)


@dataclass(frozen=True, eq=False)
class Experiment:
    """A model, rows that it, or a baseline, has learned from, and rows to look up."""

    model: SADIH
    learned: RowSample | None
    held_out: HeldOut

    @property
    def n_bits(self) -> int:
        """Length of the codes."""
        return self.model.hash_function_.n_bits

    def at(self, n_bits: int) -> Experiment:
        """The same with codes of another length, without another look at the rows."""
        if n_bits == self.n_bits:
            return self
        return replace(self, model=copy.copy(self.model).set_params(n_bits=n_bits).refit())

    def by_model(self) -> Histograms:
        """Rank by the codes of the model."""
        return self.held_out.by_codes(self.codes, self.n_bits)

    @cached_property
    def scores(self) -> Floats:
        """Real-valued scores of all held-out rows, whose signs are the bits."""
        return self.model.project(self.held_out.rows.features)

    @property
    def codes(self) -> Bytes:
        """Packed codes of all held-out rows."""
        return pack(self.scores)


def hamming(experiment: Experiment) -> list[Histograms]:
    """The model's codes."""
    return [experiment.by_model()]


def asymmetric(experiment: Experiment) -> list[Histograms]:
    """Codes of the rows, real-valued scores of the queries."""
    signs = 2.0 * unpack(experiment.codes, experiment.n_bits) - 1.0
    return list(experiment.held_out.by_scores(lambda block: experiment.scores[block] @ signs.T))


def itq(experiment: Experiment) -> list[Histograms] | None:
    """Iterative quantisation (Gong and Lazebnik, 2011): principal directions, rotated to bits."""
    if experiment.learned is None or min(experiment.learned.features.shape) < experiment.n_bits:
        return None
    X = experiment.learned.features.astype(np.float64)
    mean = X.mean(axis=0)
    _, directions = np.linalg.eigh((X - mean).T @ (X - mean))
    projection = directions[:, -experiment.n_bits :]
    V = (X - mean) @ projection
    rng = generator(experiment.model.seed_, "baselines")
    R = np.linalg.qr(rng.standard_normal((experiment.n_bits, experiment.n_bits))).Q
    for _ in range(ROTATIONS):
        R = polar(V.T @ np.where(V @ R >= 0, 1.0, -1.0))
    codes = pack((experiment.held_out.rows.features - mean) @ projection @ R)
    return [experiment.held_out.by_codes(codes, experiment.n_bits)]


def one_code_per_class(experiment: Experiment) -> list[Histograms] | None:
    """A linear classifier; rows carry a random code of the class that it takes them for."""
    if experiment.learned is None or not experiment.learned.single_label:
        return None
    classifier = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=SHRINKAGE)
    classifier.fit(experiment.learned.features, experiment.learned.labels)
    rng = generator(experiment.model.seed_, "baselines")
    codes = pack(rng.standard_normal((len(classifier.classes_), experiment.n_bits)))
    found = np.searchsorted(
        classifier.classes_, classifier.predict(experiment.held_out.rows.features)
    )
    return [experiment.held_out.by_codes(codes[found], experiment.n_bits)]


def product_quantisation(experiment: Experiment) -> list[Histograms] | None:
    """Rows of as many bytes by FAISS's product quantiser, queries as they are; cosine distance."""
    width = n_bytes(experiment.n_bits)
    if experiment.learned is None or find_spec("faiss") is None:
        return None
    learned, rows = (_unit(r.features) for r in (experiment.learned, experiment.held_out.rows))
    if len(learned) < CENTROID_ROWS * 256 or learned.shape[1] < width:
        return None
    import faiss

    spare = ((0, 0), (0, -learned.shape[1] % width))
    learned, rows = (np.pad(each, spare) for each in (learned, rows))
    quantiser: Any = faiss.ProductQuantizer(learned.shape[1], width, 8)
    quantiser.train(learned)
    kept: Floats = quantiser.decode(quantiser.compute_codes(rows))
    length = 0.5 * np.square(kept).sum(axis=1)
    return list(experiment.held_out.by_scores(lambda block: rows[block] @ kept.T - length))


def cosine(experiment: Experiment) -> list[Histograms]:
    """The features themselves, compared by their angle."""
    rows = _unit(experiment.held_out.rows.features)
    return list(experiment.held_out.by_scores(lambda block: rows[block] @ rows.T))


def _unit(features: Array) -> Floats:
    rows = features.astype(np.float32)
    length: Floats = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(length == 0, 1, length))


BASELINES: dict[str, Callable[[Experiment], list[Histograms] | None]] = {
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
    values: dict[str, list[tuple[Floats, Floats]]] = {}
    for experiment in experiments:
        few = replace(experiment, held_out=_few(experiment.held_out))
        for name, baseline in BASELINES.items():
            with one_blas_thread():
                parts = baseline(few) or ()
            values.setdefault(name, []).extend(
                (metrics.average_precision(part), metrics.precision_at(part, BASELINE_CUTOFF))
                for part in parts
            )
    return {
        name: Baseline.of(*(np.concatenate(column) for column in zip(*of_all, strict=True)))
        for name, of_all in values.items()
        if of_all
    }


def _few(held_out: HeldOut) -> HeldOut:
    chosen = sample_queries(len(held_out.asked), BASELINE_QUERIES)
    return replace(held_out, asked=held_out.asked[chosen])


def class_folds(
    model: SADIH, learned: RowSample, fresh: RowSample, n_folds: int, max_queries: int | None
) -> list[Experiment]:
    """Learn without a part of the classes, each part in turn; a part has two classes or more."""
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
        sister.fit(known.features, known.labels, progress=nobody)
        asked = max(1, max_queries // parts) if max_queries else None
        found.append(Experiment(sister, known, HeldOut.of(rows, asked)))
    return found
