"""Retrieval quality of a model at one or several code lengths, and the report of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sadih_dask.compute.codes import DatabaseCodes
from sadih_dask.compute.encode import HashRows, check_hashed, coverage_of
from sadih_dask.compute.evaluate import Counted
from sadih_dask.compute.rows import StoreRows, check_labelled, classes_of
from sadih_dask.compute.run import heard_in, nobody, reporting
from sadih_dask.errors import InputError
from sadih_dask.files.archive import read_archive, write_archive
from sadih_dask.files.file import write_text
from sadih_dask.files.redaction import redact
from sadih_dask.ingest.provenance import columns_of
from sadih_dask.learning.classes import in_short
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.evaluation import AskedRows
from sadih_dask.model.parameters import CLASS_FOLDS, MAX_QUERIES, check_lengths
from sadih_dask.model.scanning import known_scan
from sadih_dask.report import code_statistics
from sadih_dask.report.page import Length, Retrieval, drawings, render
from sadih_dask.retrieval.evaluation import Evaluation, Protocols, sample_queries
from sadih_dask.retrieval.histograms import Histograms
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.coverage import Coverage
from sadih_dask.types import Ints

METRICS, FIGURES, REPORT = "metrics.json", "figures", "report.html"
COUNTS = "histograms.npz"
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
        known = {model.columns_}
        for store, what in ((self.queries, "queries"), (self.database, "a database")):
            if store is None:
                continue
            check_labelled(store)
            if store.n_rows == 0:
                raise InputError(f"{store.url} has no rows; {what} should have some")
            known.add(columns_of(store))
        if len(known - {""}) > 1:
            raise InputError(
                f"{self.queries.url}, its database and the model are of tables with other columns "
                "of features, or in another order; ingest them with the same columns in one order"
            )
        if self.codes is not None:
            _check_codes(self.codes, self.database, model)


def _check_codes(codes: CodeStore, database: FeatureStore | None, model: Hasher) -> None:
    """Codes must be those of this model, of these rows, and hashed."""
    if database is None:
        raise InputError(
            f"{codes.url} has codes but no labels; give the database that it was made of"
        )
    model.check_codes(codes)
    check_hashed(codes, database)
    if coverage_of(codes) is None:
        raise InputError(f"{codes.url} does not say which rows it is of; encode {database.url}")


@dataclass(frozen=True, eq=False)
class Measured:
    """What a model reaches, by code length, and what its own codes were counted from.

    rows    of the database, when everything else than `counted` tells was measured
    """

    lengths: Sequence[Length]
    counted: Counted | None = None
    rows: int | None = None


def measure(
    model: Hasher,
    rows: Collection,
    n_bits: Sequence[int] = (),
    max_queries: int | None = MAX_QUERIES,
    class_folds: int = CLASS_FOLDS,
    former: Measured | None = None,
) -> Measured:
    """Evaluate a model, and its sisters of other lengths, which are solved from its statistics.

    The sisters are learned without reading any row; their database is hashed on the way. All look
    the same queries up, at most ``max_queries`` (see `evaluate_model`, of ``class_folds`` too).

    ``former`` is an evaluation of the same hash function when both stores had fewer rows. Counts
    are added to, exactly; what is not of this model's codes (other lengths, unseen classes, floors
    and ceilings) is taken over.
    """
    rows.check(model)
    own = model.hash_function_.n_bits
    if former is not None:
        return _measure_more(model, rows, max_queries, former)
    all_bits = sorted({own, *check_lengths(n_bits)})
    asked = AskedRows(model, rows.queries, rows.database, max_queries, class_folds, all_bits)
    known = known_scan(model)
    heard = heard_in((rows.database or rows.queries).n_rows * len(all_bits)) or nobody
    lengths: list[Length] = []
    counted: Counted | None = None

    def part(done: int, total: int) -> None:
        """Looking rows up comes first, and is taken for half of what a length costs."""
        heard(len(lengths) * 2 * total + done, len(all_bits) * 2 * total)

    for bits in all_bits:
        with reporting(nobody):
            began = time.perf_counter()
            sister = model if bits == own else model.at_lengths([bits], known)[bits]
            seconds = None if bits == own else time.perf_counter() - began
            codes = rows.codes if bits == own else None
            of_length = asked.count(sister, codes, progress=part)
            found = asked.evaluate(sister, counted=of_length)
        counted = of_length if bits == own else counted
        lengths.append(Length(bits, found, seconds))
        part(0, 1)
    return Measured(lengths, counted, None if rows.database is None else rows.database.n_rows)


def nothing_to_find(rows: Collection, lengths: Sequence[Length]) -> tuple[str, ...]:
    """What to say of queries without a relevant row: most are labelled in another way."""
    found = lengths[0].protocols.widest
    if not found.n_without_relevant or rows.database is None:
        return ()
    known, asked = classes_of(rows.database), classes_of(rows.queries)
    lacking = () if known is None or asked is None else known.lacks(asked)
    why = f"it has no class {in_short(lacking)}" if lacking else "it has no row of their classes"
    return (
        f"{found.n_without_relevant:,} of {found.n_queries:,} queries have no relevant row in "
        f"{redact(rows.database.url)}: {why}",
    )


def _measure_more(
    model: Hasher, rows: Collection, max_queries: int | None, former: Measured
) -> Measured:
    """Look at new rows and new queries, and take the rest over."""
    asked = AskedRows(model, rows.queries, rows.database, max_queries, class_folds=0)
    heard = heard_in((rows.database or rows.queries).n_rows)
    counted = asked.count(model, rows.codes, former.counted, progress=heard)
    with reporting(nobody):
        found = asked.evaluate(model, beside=False, counted=counted)
    lengths = []
    for length in former.lengths:
        if length.n_bits == model.hash_function_.n_bits:
            known = length.protocols
            own = replace(
                found, unseen=known.unseen, baselines=known.baselines, absent=known.absent
            )
            length = replace(length, protocols=own)
        lengths.append(length)
    return Measured(lengths, counted, former.rows)


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


def document(model: Hasher, rows: Collection, found: Measured) -> dict[str, Any]:
    """Everything that was measured, as JSON takes it."""
    return {
        "model": model.fingerprint_,
        "n_bits": model.hash_function_.n_bits,
        "queries": redact(rows.queries.url),
        "database": None if rows.database is None else redact(rows.database.url),
        "ties": TIE_RULE,
        "rows": found.rows,
        "lengths": [
            {"n_bits": length.n_bits, "seconds": length.seconds, **length.protocols.to_dict()}
            for length in found.lengths
        ],
    }


def lengths_of(found: Mapping[str, Any]) -> list[Length]:
    """Take the evaluations back from a document."""
    return [
        Length(int(one["n_bits"]), Protocols.from_dict(one), one["seconds"])
        for one in found["lengths"]
    ]


def write_metrics(folder: Path, model: Hasher, rows: Collection, found: Measured) -> Path:
    """Write everything that was measured."""
    write_text(folder / METRICS, json.dumps(document(model, rows, found), indent=1))
    return folder / METRICS


def write_counts(folder: Path, model: Hasher, rows: Collection, found: Measured) -> None:
    """Write histograms over the database, and what they are of, so that `former` finds them."""
    if found.counted is None:
        return
    counted = found.counted
    about = {"model": model.fingerprint_, "n_rows": counted.n_rows, "of": _covers(rows)}
    arrays = {"queries": counted.queries, **vars(counted.histograms)}
    arrays = {name: a.astype(np.min_scalar_type(a.max(initial=0))) for name, a in arrays.items()}
    write_archive(folder / COUNTS, COUNTS, 1, about, arrays)


def former(
    metrics: Mapping[str, Any], counts: str | os.PathLike[str], model: Hasher, rows: Collection
) -> Measured | None:
    """What an evaluation has left, if it is of this hash function, and rows were only added since.

    ``metrics`` is what `write_metrics` wrote, ``counts`` the file of `write_counts`.
    """
    about, arrays = read_archive(counts, COUNTS, 1)
    if about["model"] != model.fingerprint_ or not _continued(about["of"], rows):
        return None
    queries, *both = (arrays[name].astype(np.int64) for name in ("queries", "relevant", "total"))
    counted = Counted(queries, int(about["n_rows"]), Histograms(*both))
    return Measured(lengths_of(metrics), counted, metrics["rows"])


def _covers(rows: Collection) -> list[Any]:
    """The state of both stores: their rows, and the names of their classes."""
    stores = [store for store in (rows.database, rows.queries) if store is not None]
    return [
        [Coverage.of(store, store.learned_from).to_json(), list(store.class_names)]
        for store in stores
    ]


def _continued(covers: Sequence[Any], rows: Collection) -> bool:
    """Whether nothing was deleted or renamed since."""
    for (covered, names), store in zip(covers, (rows.database, rows.queries), strict=False):
        change = None if store is None else Coverage.from_json(covered).difference(store)
        if store is None or change is None or len(change.deleted):
            return False
        if names != list(store.class_names[: len(names)]):
            return False
    return True


def write_page(
    folder: Path,
    model: Hasher,
    rows: Collection,
    lengths: Sequence[Length],
    *,
    title: str,
    began: float,
    files: Sequence[Path] = (),
    notes: Mapping[str, object] | None = None,
) -> list[Path]:
    """Write figures and a report of what was measured, with ``notes``; needs matplotlib."""
    found = look_closer(model, rows, lengths)
    drawn = list(drawings(found))
    saved = [path for drawing in drawn for path in drawing.save(folder / FIGURES)]
    data: dict[str, object] = {"queries": redact(rows.queries.url), **(notes or {})}
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
    write_text(folder / REPORT, page)
    return [*saved, folder / REPORT]
