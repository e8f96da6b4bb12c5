"""The demonstration job: handwritten digits, which ship inside scikit-learn.

1,797 pictures of 8 x 8 pixels in 10 classes. A fifth of every class is held out as queries; the
rest is the database and the only thing that is learned from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sadih_dask.arrays import Array, Bytes, Ints
from sadih_dask.compute.codes import ArrayCodes
from sadih_dask.estimator import SADIH
from sadih_dask.evaluation import evaluate_model
from sadih_dask.pipeline.evaluating import what_is_missing
from sadih_dask.report import glance
from sadih_dask.report.page import WrittenFile, write_report
from sadih_dask.report.retrieval import (
    Length,
    Retrieval,
    best_possible,
    drawings,
    retrieval_report,
)

MODEL, CODES, LABELS, NUMBERS = "model.sadih", "codes.npy", "labels.npy", "report.json"
PAGE = "report.html"
WORDS = {
    MODEL: "the model",
    CODES: "packed codes of the database",
    LABELS: "their labels",
    NUMBERS: "quality, as JSON",
}


@dataclass(frozen=True)
class Row:
    """Retrieval quality at one code length, under both protocols."""

    n_bits: int
    map_learned: float
    precision_100_learned: float
    map_encoded: float
    precision_100_encoded: float
    seconds: float


@dataclass(frozen=True)
class Result:
    """What the job found, where it put it, and what is missing for figures, if anything."""

    n_database: int
    n_queries: int
    rows: tuple[Row, ...]
    files: dict[str, Path]
    missing: str | None


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the digits: pixels as features, and as pictures."""

    features: Array
    labels: Ints

    @property
    def pictures(self) -> glance.ArrayPictures:
        """Grey pictures of 8 x 8 pixels."""
        grey: Bytes = (self.features.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        return glance.ArrayPictures(grey, self.labels)


def run(output: Path, n_bits: Sequence[int], **parameters: Any) -> Result:
    """Learn codes at several lengths from one scan; keep the model of the last one."""
    output.mkdir(parents=True, exist_ok=True)  # an unusable folder is found before the work
    began = time.time()
    digits = load_digits()
    X, held_out, y, y_held_out = train_test_split(
        digits.data, digits.target, test_size=0.2, stratify=digits.target, random_state=0
    )
    database, queries = Part(X, y), Part(held_out, y_held_out)
    model = SADIH(**parameters)
    lengths: list[Length] = []
    for bits in n_bits:
        start = time.perf_counter()
        model.set_params(n_bits=bits)
        if lengths:
            model.refit()  # the statistics of the first scan serve every length
        else:
            model.fit(database.features, database.labels)
        seconds = time.perf_counter() - start
        lengths.append(_measure(model, database, queries, seconds))
    rows = tuple(_row(length) for length in lengths)
    files = _write(output, model, database, rows)
    if (missing := what_is_missing()) is None:
        written = [WrittenFile.of(path, WORDS[name]) for name, path in files.items()]
        found = _look_closer(model, database, queries, lengths)
        report = retrieval_report(
            "Handwritten digits",
            found,
            drawings(found),
            data={"source": "scikit-learn, load_digits"},
            files=written,
            started=datetime.fromtimestamp(began, UTC),
            seconds=time.time() - began,
        )
        files[PAGE] = write_report(report, output / PAGE)
    return Result(len(X), len(held_out), rows, files, missing)


def _measure(model: SADIH, database: Part, queries: Part, seconds: float) -> Length:
    found = evaluate_model(
        model, (queries.features, queries.labels), (database.features, database.labels)
    )
    return Length(model.n_bits, found, seconds)


def _row(length: Length) -> Row:
    learned, encoded = length.known["learned"], length.known["encoded"]
    return Row(
        length.n_bits,
        learned.map,
        learned.precision_at[100],
        encoded.map,
        encoded.precision_at[100],
        length.seconds or 0.0,
    )


def _look_closer(
    model: SADIH, database: Part, queries: Part, lengths: Sequence[Length]
) -> Retrieval:
    """Bits of the database codes, and pictures of queries with what they find."""
    last = lengths[-1].known["encoded"]
    chosen = glance.spread_of(last.average_precision)
    codes = ArrayCodes(model.transform(database.features), model.n_bits)
    seen = glance.glance(codes, model.transform(queries.features[chosen]))
    relevant = np.bincount(database.labels)[queries.labels]
    return Retrieval(
        lengths,
        model,
        seen.bits,
        glance.pictured(queries.pictures, chosen, database.pictures, seen),
        best_possible(relevant, len(last.precision_curve)),
    )


def _write(output: Path, model: SADIH, database: Part, rows: Sequence[Row]) -> dict[str, Path]:
    files = {name: output / name for name in WORDS}
    model.save(files[MODEL])
    np.save(files[CODES], model.transform(database.features))
    np.save(files[LABELS], database.labels)
    report = {"parameters": model.get_params(), "quality": [asdict(row) for row in rows]}
    files[NUMBERS].write_text(json.dumps(report, indent=1))
    return files
