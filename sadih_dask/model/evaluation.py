"""Retrieval quality of a model, under both protocols."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sadih_dask.compute.codes import ArrayCodes, DatabaseCodes, HashedRows, StoreCodes
from sadih_dask.compute.encode import HashRows, computed
from sadih_dask.compute.evaluate import compare
from sadih_dask.compute.rows import ArrayLabels, Labels, StoreLabels, StoreRows
from sadih_dask.compute.run import Progress, current_client
from sadih_dask.errors import Argument, InputError, LabelError, Remedy
from sadih_dask.learning.labels import group_rows
from sadih_dask.model import inputs as targets
from sadih_dask.model.estimator import SADIH
from sadih_dask.retrieval.evaluation import CURVE_LENGTH, CUTOFFS, RADIUS, Evaluation, Protocols
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
    progress: Progress | None = None,
) -> Protocols:
    """Hash queries and look them up under both protocols, `learned` and `encoded`.

    ``queries`` and ``database`` are feature stores with labels, or pairs of arrays (features,
    labels). ``learned`` looks among the rows that the model has learned from, each with the code of
    its labels, at a cost of queries x label groups. ``encoded`` looks among the rows of
    ``database``, hashed by the model: read from ``codes``, their code store, or hashed on the way.
    Without a database only ``learned`` is computed.
    """
    at = tuple(cutoffs)

    def summary(histograms: Histograms) -> Evaluation:
        return Evaluation.of(histograms, cutoffs=at, radius=radius, curve_length=curve_length)

    if model.statistics_ is None:
        raise InputError(
            "this model was saved without statistics, so the rows behind its learned codes are "
            "unknown; evaluate codes with evaluate(...)",
            remedy=Remedy("Or save it with {}", Argument("statistics", True)),
        )
    if codes is not None and database is None:
        raise LabelError("codes have no labels; pass the database that holds them too")
    packed, asked = _queries(model, queries)
    groups = model.groups_
    if _plain_numbers(model):
        groups = groups.relabel(model.classes_, int(model.classes_.max()) + 1)
    held = ArrayLabels(groups, np.arange(len(groups)))
    bits = model.hash_function_.n_bits
    learned = compare(
        ArrayCodes(model.label_codes_, bits), held, packed, asked, model.statistics_.counts
    )
    encoded = None
    if database is not None:
        hashed, labels = _database(model, database, codes)
        encoded = summary(compare(hashed, labels, packed, asked, progress=progress))
    return Protocols(summary(learned), encoded)


def _queries(model: SADIH, queries: Any) -> tuple[Bytes, ArrayLabels]:
    """Codes and labels of queries."""
    if isinstance(queries, FeatureStore):
        _check_labelled(queries)
        codes = computed(model.transform(queries))
        return codes, _array_labels(model, queries.read("labels"))
    features, labels = queries
    return model.transform(features), _array_labels(model, labels)


def _database(model: SADIH, database: Any, codes: CodeStore | None) -> tuple[DatabaseCodes, Labels]:
    """Codes by the hash function, and labels, of database rows."""
    if not isinstance(database, FeatureStore):
        features, y = database
        labels = _array_labels(model, y)
        if codes is None:
            hashed = model.transform(features)
            return ArrayCodes(hashed, model.hash_function_.n_bits), labels
        return _checked(model, codes), labels
    _check_labelled(database)
    labels_of: Labels = StoreLabels(database)
    if not model.multi_label_ and not _plain_numbers(model):
        labels_of = _array_labels(model, database.read("labels"))
    if codes is not None:
        return _checked(model, codes), labels_of
    if database.n_rows * model.label_codes_.shape[1] <= HELD_CODES and current_client() is None:
        hashed = computed(model.transform(database))
        return ArrayCodes(hashed, model.hash_function_.n_bits), labels_of
    rows = StoreRows(database, 0, database.n_rows)
    return HashedRows(rows, HashRows(model.hash_function_), model.block_rows), labels_of


def _array_labels(model: SADIH, y: Any) -> ArrayLabels:
    """Labels in the numbering that a store would have, or in the model's where there is none."""
    values = targets.as_targets(y)
    if targets.is_multi_label(values):
        return ArrayLabels(*group_rows(values, len(model.classes_)))
    if _plain_numbers(model):
        return ArrayLabels(*group_rows(np.asarray(values).reshape(-1)))
    return ArrayLabels(*group_rows(targets.class_numbers(values, model.classes_)))


def _plain_numbers(model: SADIH) -> bool:
    """Whether classes are numbers from 0 on, as stores hold them."""
    classes = model.classes_
    return not model.multi_label_ and classes.dtype.kind in "iu" and int(classes[0]) >= 0


def _checked(model: SADIH, codes: CodeStore) -> StoreCodes:
    if codes.model != model.fingerprint_:
        raise InputError(
            f"{codes.url} holds codes of model {codes.model!r}, and this is model "
            f"{model.fingerprint_!r}; encode the database with it first"
        )
    return StoreCodes(codes)


def _check_labelled(store: FeatureStore) -> None:
    if "labels" not in store.arrays:
        raise LabelError(
            f"{store.url} has no labels", remedy=Remedy("Ingest it with {}", Argument("labels"))
        )
