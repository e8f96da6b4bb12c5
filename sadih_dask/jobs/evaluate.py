"""Retrieval quality of a model at one or several code lengths, and the report of it."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sadih_dask.compute.codes import DatabaseCodes
from sadih_dask.compute.encode import HashRows, coverage_of
from sadih_dask.compute.rows import StoreRows
from sadih_dask.compute.run import heard_in
from sadih_dask.errors import Argument, InputError, LabelError, Remedy
from sadih_dask.files.file import locate
from sadih_dask.files.redaction import redact
from sadih_dask.model.estimator import SADIH
from sadih_dask.model.evaluation import AskedRows
from sadih_dask.model.parameters import CLASS_FOLDS, MAX_QUERIES
from sadih_dask.report import code_statistics
from sadih_dask.report.page import Length, Retrieval, drawings, render
from sadih_dask.retrieval.evaluation import Evaluation, Protocols, sample_queries
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.types import Ints

METRICS, FIGURES, REPORT = "metrics.json", "figures", "report.html"
TIE_RULE = "Items at equal distance have no order: every value is its mean over all orders of ties."


@dataclass(frozen=True, eq=False)
class Collection:
    """What a model is evaluated on.

    queries     rows with labels that are looked up
    database    rows with labels that are looked among; None: those that were learned from, only
    codes       the database rows, hashed by the model, if that was done before
    """

    queries: FeatureStore
    database: FeatureStore | None = None
    codes: CodeStore | None = None

    def check(self, model: SADIH) -> None:
        """Refuse what cannot be evaluated, before anything is read."""
        for store in (self.queries, self.database):
            if store is not None and "labels" not in store.arrays:
                raise LabelError(
                    f"{store.url} has no labels, so nobody knows what is relevant",
                    remedy=Remedy("Ingest it with {}", Argument("labels")),
                )
        for store, what in ((self.queries, "queries"), (self.database, "a database")):
            if store is not None and store.n_rows == 0:
                raise InputError(f"{store.url} has no rows; {what} should have some")
        if self.codes is not None:
            _check_codes(self.codes, self.database, model)


def _check_codes(codes: CodeStore, database: FeatureStore | None, model: SADIH) -> None:
    """Codes must be those of this model, of these rows, and hashed."""
    if database is None:
        raise InputError(
            f"{codes.url} has codes but no labels; give the database that it was made of"
        )
    if codes.model != model.fingerprint_:
        raise InputError(
            f"{codes.url} holds codes of model {codes.model!r}, and this is model "
            f"{model.fingerprint_!r}; encode {database.url} with it first"
        )
    coverage = coverage_of(codes)
    change = None if coverage is None else coverage.difference(database)
    kind = codes.properties.get("protocol")
    if kind != "encoded" or change is None or not change.is_empty:
        raise InputError(
            f"{codes.url} does not hold the hashed rows of {database.url} as it is now (they are "
            f"{kind}, of {codes.n_rows} rows); encode it again"
        )


def measure(
    model: SADIH,
    rows: Collection,
    n_bits: Sequence[int] = (),
    max_queries: int | None = MAX_QUERIES,
    class_folds: int = CLASS_FOLDS,
) -> list[Length]:
    """Evaluate a model, and its sisters of other lengths, which are solved from its statistics.

    The sisters are learned without reading any row; their database is hashed on the way. All look
    the same queries up, at most ``max_queries`` (see `evaluate_model`, of ``class_folds`` too).
    """
    rows.check(model)
    own = model.hash_function_.n_bits
    asked = AskedRows(model, rows.queries, rows.database, max_queries, class_folds)
    lengths = []
    for bits in sorted({own, *n_bits}):
        sister, seconds = (model, None) if bits == own else _sister(model, bits)
        codes = rows.codes if bits == own else None
        n_rows = 0 if rows.database is None else rows.database.n_rows
        heard = heard_in(n_rows)
        found = asked.evaluate(sister, codes, progress=heard)
        lengths.append(Length(bits, found, seconds))
    return lengths


def _sister(model: SADIH, n_bits: int) -> tuple[SADIH, float]:
    began = time.perf_counter()
    sister: SADIH = copy.copy(model).set_params(n_bits=n_bits).refit()
    return sister, time.perf_counter() - began


def look_closer(model: SADIH, rows: Collection, lengths: Sequence[Length]) -> Retrieval:
    """Count bits, and find neighbours to show if rows have pictures; one pass over the database."""
    queries, database = rows.queries, rows.database
    names = (database or queries).class_names
    found = Retrieval(lengths, model, classes=names)
    if database is None:
        return replace(found, bits=code_statistics.BitCounts.learned(model))
    chosen: Ints = np.zeros(0, np.int64)
    if _have_pictures(queries, database):
        own = found.own.protocols.encoded or found.own.protocols.learned
        chosen = _looked_up(own)[code_statistics.spread_of(own.average_precision)]
    asked = np.zeros((0, model.label_codes_.shape[1]), np.uint8)
    if len(chosen):
        asked = model.transform(queries.take("features", chosen))
    heard = heard_in(database.n_rows)
    bits, nearest = code_statistics.gather(_codes(model, rows, database), asked, progress=heard)
    shown = None
    if len(chosen):
        shown = code_statistics.pictured(queries, chosen, database, nearest, names)
    return replace(found, bits=bits, neighbours=shown)


def _looked_up(found: Evaluation) -> Ints:
    """Numbers of the queries that an evaluation is of."""
    return sample_queries(found.n_drawn_from, found.n_queries)


def _have_pictures(queries: FeatureStore, database: FeatureStore) -> bool:
    """Whether both have pictures, of one size, and number their classes alike."""
    if not _number_alike(queries.class_names, database.class_names):
        return False
    both = all("thumbnails" in store.arrays for store in (queries, database))
    return both and queries.shape("thumbnails")[1:] == database.shape("thumbnails")[1:]


def _codes(model: SADIH, rows: Collection, database: FeatureStore) -> DatabaseCodes:
    if rows.codes is not None:
        return DatabaseCodes.of_store(rows.codes)
    features = StoreRows(database, 0, database.n_rows)
    return DatabaseCodes.of_rows(features, HashRows(model.hash_function_), model.block_rows)


def _number_alike(names: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one number is one class to both, as far as both have names."""
    return all(a == b for a, b in zip(names, other, strict=False))


def document(model: SADIH, rows: Collection, lengths: Sequence[Length]) -> dict[str, Any]:
    """Everything that was measured, as JSON takes it."""
    return {
        "model": model.fingerprint_,
        "n_bits": model.hash_function_.n_bits,
        "queries": redact(rows.queries.url),
        "database": None if rows.database is None else redact(rows.database.url),
        "ties": TIE_RULE,
        "lengths": [
            {"n_bits": length.n_bits, "seconds": length.seconds, **length.protocols.to_dict()}
            for length in lengths
        ],
    }


def lengths_of(found: Mapping[str, Any]) -> list[Length]:
    """Take the evaluations back from a document."""
    return [
        Length(int(one["n_bits"]), Protocols.from_dict(one), one["seconds"])
        for one in found["lengths"]
    ]


def write_metrics(folder: Path, model: SADIH, rows: Collection, lengths: Sequence[Length]) -> Path:
    """Write everything that was measured."""
    text = json.dumps(document(model, rows, lengths), indent=1).encode()
    locate(folder / METRICS).write(lambda file: file.writelines([text]))
    return folder / METRICS


def write_page(
    folder: Path,
    model: SADIH,
    rows: Collection,
    lengths: Sequence[Length],
    *,
    title: str,
    began: float,
    files: Sequence[Path] = (),
) -> list[Path]:
    """Write figures and a report of what was measured; needs matplotlib."""
    found = look_closer(model, rows, lengths)
    drawn = list(drawings(found))
    saved = [path for drawing in drawn for path in drawing.save(folder / FIGURES)]
    data: dict[str, object] = {"queries": redact(rows.queries.url)}
    if rows.database is not None:
        data["database"] = redact(rows.database.url)
    page = render(
        title,
        found,
        drawn,
        data=data,
        files=dict.fromkeys(files, "every number, as JSON")
        | {folder / FIGURES: "the figures, each as SVG and PDF"},
        started=datetime.fromtimestamp(began, UTC),
        seconds=time.time() - began,
    )
    locate(folder / REPORT).write(lambda file: file.writelines([page.encode()]))
    return [*saved, folder / REPORT]


def missing_matplotlib() -> str | None:
    """Say how to install what figures need, if it is not there."""
    if find_spec("matplotlib") is not None:
        return None
    return "figures and reports need matplotlib; install it with: pip install 'sadih-dask[report]'"
