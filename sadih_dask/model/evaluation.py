"""Retrieval quality of a model, under every protocol."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from sadih_dask.compute.codes import DatabaseCodes
from sadih_dask.compute.encode import HashRows, check_hashed
from sadih_dask.compute.evaluate import Counted, compare
from sadih_dask.compute.rows import (
    ArrayLabels,
    StoreRows,
    check_labelled,
    labels_as,
    open_labels,
)
from sadih_dask.compute.run import Progress, current_client, nobody, reporting
from sadih_dask.errors import Advice, Argument, InputError, LabelError, Remedy
from sadih_dask.learning.classes import Vocabulary
from sadih_dask.learning.sample import row_keys
from sadih_dask.model import baselines
from sadih_dask.model.baselines import Experiment, HeldOutRows, RowSample, Split
from sadih_dask.model.collections import in_memory
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.parameters import CLASS_FOLDS, MAX_QUERIES
from sadih_dask.retrieval.codes import n_bytes
from sadih_dask.retrieval.evaluation import (
    CURVE_LENGTH,
    CUTOFFS,
    RADIUS,
    Evaluation,
    Protocols,
    sample_queries,
)
from sadih_dask.retrieval.failures import ClassQuality, worst_classes
from sadih_dask.retrieval.histograms import Histograms
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.types import Bytes, Ints

HELD_OUT = ("fresh", "unseen")
"""Protocols that look the queries up among each other."""
HELD_CODES = 64 * 2**20
"""Bytes of codes that are hashed once and held; more are hashed for every block of queries."""


def evaluate_model(
    model: Hasher,
    queries: Any,
    database: Any = None,
    *,
    codes: CodeStore | None = None,
    cutoffs: Iterable[int] = CUTOFFS,
    radius: int = RADIUS,
    curve_length: int = CURVE_LENGTH,
    max_queries: int | None = MAX_QUERIES,
    class_folds: int = CLASS_FOLDS,
    progress: Progress | None = None,
) -> Protocols:
    """Hash queries and look them up under every protocol, beside floors and ceilings.

    ``queries`` and ``database`` are feature stores with labels, or pairs of arrays (features,
    labels). Queries should be rows that the model has not learned from.

    learned     among the rows that the model has learned from, each with the code of its labels,
                at a cost of queries x label groups
    encoded     among the rows of ``database``, hashed by the model: read from ``codes``, their code
                store, or hashed on the way. Optimistic, where the model has learned from them
    fresh       among each other: what the codes do for rows to come
    unseen      among each other, by models that learn from a sample of ``database`` without a
                part of the classes, ``class_folds`` parts in turn (0: not at all): what the codes
                do for classes to come

    Without a database `encoded` and `unseen` are not measured.

    Every query is compared with every row, so of many queries only ``max_queries``, drawn with
    `sample_queries`, are looked up; None or 0 takes all. What that leaves uncertain is told by the
    standard errors.
    """
    asked = AskedRows(model, queries, database, max_queries, class_folds)
    return asked.evaluate(
        model, codes, cutoffs=cutoffs, radius=radius, curve_length=curve_length, progress=progress
    )


class AskedRows:
    """Rows that models of one set of statistics are evaluated on, at any length of codes.

    Samples are drawn, and models without a part of the classes are learned, once for all.
    """

    def __init__(
        self,
        model: Hasher,
        queries: Any,
        database: Any = None,
        max_queries: int | None = MAX_QUERIES,
        class_folds: int = CLASS_FOLDS,
        lengths: Iterable[int] = (),
    ) -> None:
        """Ask about rows; models of code ``lengths`` that are said here are learned together."""
        self._lengths = lengths
        self.queries, self.database = queries, database
        self.max_queries = max_queries
        self._n_folds = class_folds
        self._first = model

    @cached_property
    def _fresh(self) -> RowSample:
        return RowSample.sample(self.queries, baselines.ROWS, self._first.seed_)

    @cached_property
    def _sample(self) -> RowSample:
        return RowSample.sample(self.database, baselines.LEARNED_ROWS, self._first.seed_)

    @cached_property
    def _split(self) -> Split:
        learned = None if self.database is None else self._sample
        return Split(learned, HeldOutRows.of(self._fresh, self.max_queries))

    @cached_property
    def _folds(self) -> list[Experiment]:
        model, rows, lengths = self._first, (self._sample, self._fresh), self._lengths
        return baselines.class_folds(model, *rows, self._n_folds, self.max_queries, lengths)

    @cached_property
    def _n_known(self) -> int:
        """Queries that are among the rows which the statistics keep: at least so many were learned.

        Where the model knows that it has learned from their store, that is said elsewhere.
        """
        known = self._first.statistics_
        if known is None or self._first.change_in(self.queries) is not None:
            return 0
        return int(np.isin(row_keys(self._fresh.features), known.sample.keys).sum())

    @cached_property
    def absent(self) -> dict[str, str]:
        """Protocols that cannot be measured with these rows, and why."""
        found = {}
        if not len(self._first.label_codes_):
            found["learned"] = f"{type(self._first).__name__} learns no codes of labels"
        if self._first.change_in(self.queries) is not None:
            found["fresh"] = "the model has learned from the queries"
        if self._n_folds == 0:
            found["unseen"] = "it is not asked for"
        elif self.database is None:
            found["unseen"] = "there is no database to learn from"
        elif "fresh" in found:
            found["unseen"] = found["fresh"]
        elif not (self._fresh.single_label and self._sample.single_label):
            found["unseen"] = "rows have several labels"
        elif not self._folds:
            found["unseen"] = "it takes four classes, in the queries and in the database"
        return found

    def evaluate(
        self,
        model: Hasher,
        codes: CodeStore | None = None,
        *,
        beside: bool = True,
        counted: Counted | None = None,
        progress: Progress | None = None,
        **shown: Any,
    ) -> Protocols:
        """Look the queries up under every protocol; ``shown`` is as in `evaluate_model`.

        Floors and ceilings stand ``beside`` what is found, if they are asked for. ``counted`` is
        what `count` has found, if it was called before.
        """
        if model.statistics_ is None:
            raise InputError(
                "this model was saved without statistics, so the rows behind its learned codes are "
                "unknown; evaluate codes with evaluate(...)",
                remedy=Remedy("Or save it with {}", Argument("statistics", True)),
            )
        if not len(model.label_codes_) and "fresh" in self.absent and self.database is None:
            raise InputError(
                f"{type(model).__name__} learns no codes of labels, and {self.absent['fresh']}: "
                "there is nothing to look queries up among; pass a database"
            )
        drawn, packed, query_labels = self._asked(model)
        n_queries, n_bits = len(packed), model.hash_function_.n_bits

        def summary(histograms: Histograms) -> Evaluation:
            return Evaluation.of(histograms, n_drawn_from=n_queries, **shown)

        found: dict[str, Evaluation] = {}
        if len(model.label_codes_):
            held = ArrayLabels(model.groups_, np.arange(len(model.groups_)))
            columns = (len(model.classes_),) if model.multi_label_ else ()
            classes = Vocabulary(model.classes_)
            by_place = model.multi_label_ and classes.are_places
            asked = labels_as(None if by_place else classes, columns, query_labels)
            label_codes = DatabaseCodes.in_memory(model.label_codes_, n_bits)
            counts = model.statistics_.counts
            with reporting(nobody):  # it takes no time beside the rows of a database
                found["learned"] = summary(compare(label_codes, held, packed, asked, counts, drawn))
        counted = counted or self.count(model, codes, progress=progress)
        if (n_known := self._n_known) > 1:
            drawn_of = f"{len(self._fresh.features):,} queries"
            warnings.warn(
                Advice(
                    f"{n_known:,} of {drawn_of} that were looked at, or more, are rows that the "
                    "model has learned from: it finds them better than it will find new ones. Hold "
                    "queries out before fitting"
                ),
                stacklevel=2,
            )
        if counted is not None:
            found["encoded"] = summary(counted.histograms)
        experiments = {
            name: self._experiments(name, model) for name in HELD_OUT if name not in self.absent
        }
        for name, of_it in experiments.items():
            found[name] = summary(Histograms.stack([experiment.by_model() for experiment in of_it]))
        others = {
            name: baselines.compare_with_baselines(of_it)
            for name, of_it in experiments.items()
            if beside
        }
        worst: tuple[ClassQuality, ...] = ()
        if (fresh := found.get("fresh")) is not None:
            (experiment,), rows = experiments["fresh"], self._split.held_out
            found_by = rows.asked, fresh.average_precision
            worst = worst_classes(experiment.codes, rows.groups, *found_by, rows.rows.names)
        return Protocols(**found, baselines=others, absent=self.absent, worst_classes=worst)

    def count(
        self,
        model: Hasher,
        codes: CodeStore | None = None,
        known: Counted | None = None,
        progress: Progress | None = None,
    ) -> Counted | None:
        """Look the queries up among the rows of the database, if there is one.

        What is ``known`` of the same queries, by the same hash function, over the first rows is
        added to.
        """
        if self.database is None:
            if codes is not None:
                raise LabelError("codes have no labels; pass the database that holds them too")
            return None
        drawn, packed, query_labels = self._asked(model)
        hashed, database_labels = _database(model, self.database, codes)
        labels, asked = open_labels(database_labels, query_labels)
        with reporting(progress):
            found = compare(hashed, labels, packed, asked, drawn=drawn, known=known)
        return Counted(drawn, hashed.n_rows, found)

    def _asked(self, model: Hasher) -> tuple[Ints, Bytes, Any]:
        """Numbers of the queries that are drawn, codes by number, and labels or their store."""
        queries = self.queries
        if not isinstance(queries, FeatureStore):
            packed = in_memory(model.transform(queries[0]))
            return sample_queries(len(packed), self.max_queries), packed, queries[1]
        check_labelled(queries)
        drawn = sample_queries(queries.n_rows, self.max_queries)
        if len(drawn) == queries.n_rows:
            return drawn, in_memory(model.transform(queries)), queries
        packed = np.zeros((queries.n_rows, n_bytes(model.hash_function_.n_bits)), np.uint8)
        packed[drawn] = in_memory(model.transform(queries.take("features", drawn)))
        return drawn, packed, queries

    def _experiments(self, protocol: str, model: Hasher) -> list[Experiment]:
        if protocol == "unseen":
            return [fold.at(model.hash_function_.n_bits) for fold in self._folds]
        return [Experiment(model, self._split)]


def _database(model: Hasher, database: Any, codes: CodeStore | None) -> tuple[DatabaseCodes, Any]:
    """Codes by the hash function, and labels, of database rows."""
    if isinstance(database, FeatureStore):
        check_labelled(database)
        features: Any = database
        labels: Any = database
        bytes_of_codes = database.n_rows * n_bytes(model.hash_function_.n_bits)
        held = bytes_of_codes <= HELD_CODES and current_client() is None
    else:
        features, labels = database[0], database[1]
        held = True
    if codes is not None:
        model.check_codes(codes)
        check_hashed(codes, database)
        return DatabaseCodes.of_store(codes), labels
    if held:
        hashed = in_memory(model.transform(features))
        return DatabaseCodes.in_memory(hashed, model.hash_function_.n_bits), labels
    rows = StoreRows(database, 0, database.n_rows)
    return DatabaseCodes.of_rows(rows, HashRows(model.hash_function_), model.block_rows), labels
