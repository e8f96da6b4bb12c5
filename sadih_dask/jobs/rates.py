"""Rates that the time of a case is computed from: what was measured, and how it is interpolated.

``rates.json`` beside this file says where, and by which command, it was measured. One of the
reader's own machine has the same form. Seconds are those of a processor unless a name says wall.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import dask
import numpy as np
from scipy.optimize import nnls

from sadih_dask.compute.encode import HashRows
from sadih_dask.compute.process import one_blas_thread
from sadih_dask.compute.reduction import Reduction
from sadih_dask.compute.rows import StoreRows
from sadih_dask.compute.scan import scan
from sadih_dask.errors import FormatError
from sadih_dask.ingest.synthetic import generate
from sadih_dask.learning.encoders import HashFunction
from sadih_dask.learning.features import AnchorMap
from sadih_dask.model.parameters import PARAMETERS
from sadih_dask.types import Floats

BLOCK_ROWS: int = PARAMETERS["block_rows"].default
N_CLASSES = 100
N_BLOCKS = 4
"""Blocks of rows that are measured: more than processors have caches for."""


def _scan_terms(at: Mapping[str, float]) -> list[float]:
    d, m = at["features"], at["anchors"]
    columns = m or d
    return [1.0, d, d * m, m, columns**2, 0.0]


def _encode_terms(at: Mapping[str, float]) -> list[float]:
    d, m = at["features"], at["anchors"]
    return [1.0, d, d * m, m, 0.0, (m or d) * at["bits"]]


def _solve_terms(at: Mapping[str, float]) -> list[float]:
    return [1.0, at["columns"] ** 2, at["columns"] ** 3, at["columns"] * at["classes"]]


def _judge_terms(at: Mapping[str, float]) -> list[float]:
    d, m = at["features"], at["anchors"]
    return [1.0, d, d * m, (m or d) ** 2]


@dataclass(frozen=True, eq=False)
class Rates:
    """What a rates file says.

    machine     where it was measured, and ``command`` by what
    rows        seconds of a row in a scan and in an encoding, by features, anchors and bits
    solving     seconds from statistics to a model, by columns and classes
    judging     seconds and bytes of what `evaluate` does with samples, by features and anchors
    comparing   seconds of a pair of codes, by bits
    merging     seconds of a byte of two partial statistics
    reading     seconds of a byte: plain, zstd; ``compressed`` is the part that zstd leaves, and
                ``disk`` by the wall clock
    ingesting   seconds of a byte by the wall clock: plain, zstd
    objects     seconds of a request to an S3 server, and of a byte
    tasks       seconds of the scheduler and of a worker for a task, bytes of the scheduler for it,
                and of one that has none
    """

    machine: str
    command: str
    rows: list[dict[str, float]]
    solving: list[dict[str, float]]
    judging: list[dict[str, float]]
    comparing: list[dict[str, float]]
    merging: float
    reading: dict[str, float]
    ingesting: dict[str, float]
    objects: dict[str, float]
    tasks: dict[str, float]

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> Rates:
        """Read a rates file; without a path the one of the package."""
        place = files("sadih_dask.jobs") / "rates.json" if path is None else Path(path)
        try:
            return cls(**json.loads(place.read_text()))
        except (ValueError, TypeError) as error:
            raise FormatError(
                f"{path} is no file of rates ({error}); make one with: "
                "python -m tests.benchmarks.bench_sizing -o rates.json"
            ) from error

    def of_row(self, step: str, n_features: int, anchors: int, n_bits: int) -> float:
        """Seconds of a row in a "scan" or an "encode"; what was measured, or in between."""
        at = {"features": n_features, "anchors": anchors, "bits": n_bits}
        for one in self.rows:
            if at.items() <= one.items():
                return one[step]
        return self.by_formula(step, at)

    def by_formula(self, step: str, at: Mapping[str, float]) -> float:
        """Seconds of a row by terms that all measured rows together have the factors of."""
        known = [(_scan_terms(one), one["scan"]) for one in self.rows]
        known += [(_encode_terms(one), one["encode"]) for one in self.rows]
        terms = _scan_terms(at) if step == "scan" else _encode_terms(at)
        return float(terms @ _fitted(known))

    def of_solving(self, columns: int, n_classes: int) -> float:
        """Seconds from statistics to a model."""
        at = {"columns": columns, "classes": n_classes}
        known = [(_solve_terms(one), one["seconds"]) for one in self.solving]
        return float(_solve_terms(at) @ _fitted(known))

    def of_judging(self, what: str, n_features: int, anchors: int) -> float:
        """What samples cost `evaluate`: "seconds" of the driver, or its "bytes"."""
        at = {"features": n_features, "anchors": anchors}
        known = [(_judge_terms(one), one[what]) for one in self.judging]
        return float(_judge_terms(at) @ _fitted(known))

    def of_pair(self, n_bits: int) -> float:
        """Seconds of a comparison of two codes."""
        bits, seconds = zip(*((one["bits"], one["seconds"]) for one in self.comparing), strict=True)
        return float(np.interp(n_bits, bits, seconds))

    def measured_here(self, n_features: int, anchors: int, n_bits: int) -> Rates:
        """These rates, with those of rows measured on this machine, in a minute at most."""
        with tempfile.TemporaryDirectory() as folder:
            own = measure_rows(Path(folder), n_features, [anchors], n_bits)
        return replace(self, rows=own)


def _fitted(known: Sequence[tuple[Sequence[float], float]]) -> Floats:
    """Factors, none negative, of terms that come closest to what was measured, relatively."""
    terms = np.array([[term / value for term in of_it] for of_it, value in known])
    scale = np.maximum(terms.max(axis=0), 1e-300)
    return np.asarray(nnls(terms / scale, np.ones(len(known)))[0] / scale)


def best(step: Callable[[], object], repeats: int = 3) -> float:
    """Least processor seconds of this thread, after one call that does not count."""
    step()
    found = []
    for _ in range(repeats):
        start = time.thread_time()
        step()
        found.append(time.thread_time() - start)
    return min(found)


def measure_rows(
    folder: Path, n_features: int, anchors: Sequence[int], n_bits: int
) -> list[dict[str, float]]:
    """Seconds of a row in a scan and in an encoding, the read from the page cache included."""
    n_rows = N_BLOCKS * BLOCK_ROWS
    store = generate(folder / f"rows-{n_features}", n_rows, n_features, N_CLASSES)
    rows, rng = StoreRows.of(store), np.random.default_rng(0)
    found = []
    for m in anchors:
        sample = store.read("features", 0, max(1, m))
        mapping = AnchorMap.from_sample(sample, m, rng) if m else None
        projection = rng.standard_normal((m or n_features, n_bits))
        encoder = HashRows(HashFunction(mapping, projection, np.zeros(n_bits)))
        reduction = Reduction(BLOCK_ROWS, N_CLASSES, mapping)
        with one_blas_thread(), dask.config.set(scheduler="synchronous"):
            scanning = best(partial(scan, rows, reduction))
            encoding = best(partial(_encode, rows, encoder))
        at = {"features": n_features, "anchors": m, "bits": n_bits}
        found.append({**at, "scan": scanning / n_rows, "encode": encoding / n_rows})
    return found


def _encode(rows: StoreRows, encoder: Any) -> None:
    for row, block in rows.blocks("features", 0, rows.n_rows, BLOCK_ROWS):
        encoder(block, row)
