"""The demonstration job: handwritten digits, which ship inside scikit-learn.

1,797 pictures of 8 x 8 pixels in 10 classes. A fifth of every class is held out as queries; the
rest is the database and the only thing that is learned from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sadih_dask.arrays import Array, Bytes, Ints
from sadih_dask.estimator import SADIH
from sadih_dask.learning.labels import group_rows
from sadih_dask.retrieval.histograms import hamming_histograms
from sadih_dask.retrieval.metrics import mean_average_precision, precision_at

MODEL, CODES, LABELS, REPORT = "model.sadih", "codes.npy", "labels.npy", "report.json"


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
    """What the job found and where it put it."""

    n_database: int
    n_queries: int
    rows: tuple[Row, ...]
    files: dict[str, Path]


def run(output: Path, n_bits: Sequence[int], **parameters: Any) -> Result:
    """Learn codes at several lengths from one scan; keep the model of the last one."""
    output.mkdir(parents=True, exist_ok=True)  # an unusable folder is found before the work
    digits = load_digits()
    database, queries, y_database, y_queries = train_test_split(
        digits.data, digits.target, test_size=0.2, stratify=digits.target, random_state=0
    )
    model = SADIH(**parameters)
    rows: list[Row] = []
    for bits in n_bits:
        start = time.perf_counter()
        model.set_params(n_bits=bits)
        if rows:
            model.refit()  # the statistics of the first scan serve every length
        else:
            model.fit(database, y_database)
        seconds = time.perf_counter() - start
        rows.append(_measure(model, (database, y_database), (queries, y_queries), seconds))
    files = _write(output, model, database, y_database, rows)
    return Result(len(database), len(queries), tuple(rows), files)


def _measure(
    model: SADIH, database: tuple[Array, Ints], queries: tuple[Array, Ints], seconds: float
) -> Row:
    hashed = model.transform(queries[0])
    learned = _quality(model, hashed, queries[1], model.learned_codes(database[1]), database[1])
    encoded = _quality(model, hashed, queries[1], model.transform(database[0]), database[1])
    return Row(model.n_bits, *learned, *encoded, seconds)


def _quality(
    model: SADIH, queries: Bytes, y_queries: Ints, database: Bytes, y_database: Ints
) -> tuple[float, float]:
    """MAP and precision in the first 100."""
    histograms = hamming_histograms(
        queries, group_rows(y_queries, 10), database, group_rows(y_database, 10), model.n_bits
    )
    return mean_average_precision(histograms), float(precision_at(histograms, 100).mean())


def _write(
    output: Path, model: SADIH, database: Array, y_database: Ints, rows: list[Row]
) -> dict[str, Path]:
    files = {name: output / name for name in (MODEL, CODES, LABELS, REPORT)}
    model.save(files[MODEL])
    np.save(files[CODES], model.transform(database))
    np.save(files[LABELS], y_database)
    report = {"parameters": model.get_params(), "quality": [asdict(row) for row in rows]}
    files[REPORT].write_text(json.dumps(report, indent=1))
    return files
