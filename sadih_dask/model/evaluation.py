"""Retrieval quality of a model, under both protocols."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sadih_dask.compute.codes import DatabaseCodes
from sadih_dask.compute.encode import HashRows
from sadih_dask.compute.evaluate import compare
from sadih_dask.compute.rows import (
    ArrayLabels,
    StoreRows,
    check_labelled,
    labels_as,
    open_labels,
)
from sadih_dask.compute.run import Progress, computed, current_client, is_lazy, nobody, reporting
from sadih_dask.errors import Argument, InputError, LabelError, Remedy
from sadih_dask.learning.classes import Vocabulary
from sadih_dask.model.estimator import SADIH
from sadih_dask.model.parameters import MAX_QUERIES
from sadih_dask.retrieval.evaluation import (
    CURVE_LENGTH,
    CUTOFFS,
    RADIUS,
    Evaluation,
    Protocols,
    sample_queries,
)
from sadih_dask.retrieval.histograms import Histograms
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.types import Bytes

HELD_CODES = 64 * 2**20
"""Bytes of codes that are hashed once and held; more are hashed for every block of queries."""


def evaluate_model(
    model: SADIH,
    queries: Any,
    database: Any = None,
    *,
    codes: CodeStore | None = None,
    cutoffs: Iterable[int] = CUTOFFS,
    radius: int = RADIUS,
    curve_length: int = CURVE_LENGTH,
    max_queries: int | None = MAX_QUERIES,
    progress: Progress | None = None,
) -> Protocols:
    """Hash queries and look them up under both protocols, `learned` and `encoded`.

    ``queries`` and ``database`` are feature stores with labels, or pairs of arrays (features,
    labels). ``learned`` looks among the rows that the model has learned from, each with the code of
    its labels, at a cost of queries x label groups. ``encoded`` looks among the rows of
    ``database``, hashed by the model: read from ``codes``, their code store, or hashed on the way.
    Without a database only ``learned`` is computed.

    Every query is compared with every row, so of many queries only ``max_queries``, drawn with
    `sample_queries`, are looked up; None or 0 takes all. What that leaves uncertain is told by the
    standard errors.
    """
    at = tuple(cutoffs)

    def summary(histograms: Histograms) -> Evaluation:
        return Evaluation.of(
            histograms,
            cutoffs=at,
            radius=radius,
            curve_length=curve_length,
            n_drawn_from=n_queries,
        )

    if model.statistics_ is None:
        raise InputError(
            "this model was saved without statistics, so the rows behind its learned codes are "
            "unknown; evaluate codes with evaluate(...)",
            remedy=Remedy("Or save it with {}", Argument("statistics", True)),
        )
    if codes is not None and database is None:
        raise LabelError("codes have no labels; pass the database that holds them too")
    packed, query_labels = _queries(model, queries)
    n_queries = len(packed)
    drawn = sample_queries(n_queries, max_queries)
    held = ArrayLabels(model.groups_, np.arange(len(model.groups_)))
    columns = (len(model.classes_),) if model.multi_label_ else ()
    asked = labels_as(Vocabulary(model.classes_), columns, query_labels)
    label_codes = DatabaseCodes.in_memory(model.label_codes_, model.hash_function_.n_bits)
    with reporting(nobody):  # it takes no time beside the rows of a database
        learned = compare(label_codes, held, packed, asked, model.statistics_.counts, drawn)
    encoded = None
    if database is not None:
        hashed, database_labels = _database(model, database, codes)
        labels, asked = open_labels(database_labels, query_labels)
        with reporting(progress):
            encoded = summary(compare(hashed, labels, packed, asked, drawn=drawn))
    return Protocols(summary(learned), encoded)


def _queries(model: SADIH, queries: Any) -> tuple[Bytes, Any]:
    """Codes of queries, and their labels or the store that has them."""
    if isinstance(queries, FeatureStore):
        check_labelled(queries)
        return computed(model.transform(queries)), queries
    features, labels = queries
    return model.transform(features), labels


def _database(model: SADIH, database: Any, codes: CodeStore | None) -> tuple[DatabaseCodes, Any]:
    """Codes by the hash function, and labels, of database rows."""
    if isinstance(database, FeatureStore):
        check_labelled(database)
        features: Any = database
        labels: Any = database
        bytes_of_codes = database.n_rows * model.label_codes_.shape[1]
        held = bytes_of_codes <= HELD_CODES and current_client() is None
    else:
        features, labels = database[0], database[1]
        held = True
    if codes is not None:
        return _checked(model, codes), labels
    if held:
        hashed = model.transform(features)
        in_memory = computed(hashed) if is_lazy(hashed) else hashed
        return DatabaseCodes.in_memory(in_memory, model.hash_function_.n_bits), labels
    rows = StoreRows(database, 0, database.n_rows)
    return DatabaseCodes.of_rows(rows, HashRows(model.hash_function_), model.block_rows), labels


def _checked(model: SADIH, codes: CodeStore) -> DatabaseCodes:
    if codes.model != model.fingerprint_:
        raise InputError(
            f"{codes.url} holds codes of model {codes.model!r}, and this is model "
            f"{model.fingerprint_!r}; encode the database with it first"
        )
    return DatabaseCodes.of_store(codes)
