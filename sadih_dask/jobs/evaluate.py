"""Retrieval quality of a model at one or several code lengths, and the report of it."""

from __future__ import annotations

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
from sadih_dask.compute.run import heard_in, nobody, reporting
from sadih_dask.errors import Argument, InputError, LabelError, Remedy
from sadih_dask.files.file import locate
from sadih_dask.files.redaction import redact
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.evaluation import AskedRows
from sadih_dask.model.parameters import CLASS_FOLDS, MAX_QUERIES
from sadih_dask.model.scanning import known_scan
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

    def check(self, model: Hasher) -> None:
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


def _check_codes(codes: CodeStore, database: FeatureStore | None, model: Hasher) -> None:
    """Codes must be those of this model, of these rows, and hashed."""
    if database is None:
        raise InputError(
            f"{codes.url} has codes but no labels; give the database that it was made of"
        )
    model.check_codes(codes)
    coverage = coverage_of(codes)
    change = None if coverage is None else coverage.difference(database)
    kind = codes.properties.get("protocol")
    if kind != "encoded" or change is None or not change.is_empty:
        raise InputError(
            f"{codes.url} does not hold the hashed rows of {database.url} as it is now (they are "
            f"{kind}, of {codes.n_rows} rows); encode it again"
        )


def measure(
    model: Hasher,
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
    all_bits = sorted({own, *n_bits})
    asked = AskedRows(model, rows.queries, rows.database, max_queries, class_folds, all_bits)
    known = known_scan(model)
    heard = heard_in((rows.database or rows.queries).n_rows * len(all_bits)) or nobody
    lengths: list[Length] = []

    def part(done: int, total: int) -> None:
        """Looking rows up comes first, and is taken for half of what a length costs."""
        heard(len(lengths) * 2 * total + done, len(all_bits) * 2 * total)

    for bits in all_bits:
        with reporting(nobody):
            began = time.perf_counter()
            sister = model if bits == own else model.at_lengths([bits], known)[bits]
            seconds = None if bits == own else time.perf_counter() - began
            codes = rows.codes if bits == own else None
            found = asked.evaluate(sister, codes, progress=part)
        lengths.append(Length(bits, found, seconds))
        part(0, 1)
    return lengths


def look_closer(model: Hasher, rows: Collection, lengths: Sequence[Length]) -> Retrieval:
    """Count bits, and find neighbours to show if rows have pictures; one pass over the database."""
    queries, database = rows.queries, rows.database
    names = (database or queries).class_names
    found = Retrieval(lengths, model, classes=names)
    if database is None:
        bits = code_statistics.BitCounts.learned(model) if len(model.label_codes_) else None
        return replace(found, bits=bits)
    chosen: Ints = np.zeros(0, np.int64)
    if _have_pictures(queries, database):
        own = found.own.protocols.widest
        chosen = _looked_up(own)[code_statistics.spread_of(own.average_precision)]
    asked = model.label_codes_[:0]
    if len(chosen):
        asked = model.transform(queries.take("features", chosen))
    heard = heard_in(database.n_rows)
    codes = _codes(model, rows, database)
    bits, nearest = code_statistics.gather(codes, asked, progress=heard)
    shown = None
    if len(chosen):
        shown = code_statistics.pictured(queries, chosen, database, nearest, names)
    return replace(
        found,
        bits=bits,
        neighbours=shown,
        buckets=code_statistics.Buckets.of(codes, hashed=rows.codes is None),
        row_bytes=database.n_features * database.dtype("features").itemsize,
    )


def _looked_up(found: Evaluation) -> Ints:
    """Numbers of the queries that an evaluation is of."""
    return sample_queries(found.n_drawn_from, found.n_queries)


def _have_pictures(queries: FeatureStore, database: FeatureStore) -> bool:
    """Whether both have pictures, of one size, and number their classes alike."""
    if not _number_alike(queries.class_names, database.class_names):
        return False
    both = all("thumbnails" in store.arrays for store in (queries, database))
    return both and queries.shape("thumbnails")[1:] == database.shape("thumbnails")[1:]


def _codes(model: Hasher, rows: Collection, database: FeatureStore) -> DatabaseCodes:
    if rows.codes is not None:
        return DatabaseCodes.of_store(rows.codes)
    features = StoreRows(database, 0, database.n_rows)
    return DatabaseCodes.of_rows(features, HashRows(model.hash_function_), model.block_rows)


def _number_alike(names: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one number is one class to both, as far as both have names."""
    return all(a == b for a, b in zip(names, other, strict=False))


def document(model: Hasher, rows: Collection, lengths: Sequence[Length]) -> dict[str, Any]:
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


def write_metrics(folder: Path, model: Hasher, rows: Collection, lengths: Sequence[Length]) -> Path:
    """Write everything that was measured."""
    text = json.dumps(document(model, rows, lengths), indent=1).encode()
    locate(folder / METRICS).write(lambda file: file.writelines([text]))
    return folder / METRICS


def write_page(
    folder: Path,
    model: Hasher,
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
