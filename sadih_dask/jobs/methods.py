"""Which method for this collection? All of them on the same rows, side by side.

Methods whose scans agree share one. What is measured is on file as soon as it is there: the same
call goes on after an interruption, and a method that fails does not stop the others.
"""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sadih_dask.compute.run import heard_in, reporting
from sadih_dask.errors import FormatError, SadihError, lacking
from sadih_dask.files.file import write_text
from sadih_dask.jobs.evaluate import FIGURES, REPORT
from sadih_dask.model.evaluation import AskedRows
from sadih_dask.model.inputs import check_width
from sadih_dask.model.methods import METHODS, method_class, method_named
from sadih_dask.model.parameters import (
    CLASS_FOLDS,
    DECIDED_BY_THE_SCAN,
    MAX_QUERIES,
    check_lengths,
    check_parameters,
    parameters_of,
)
from sadih_dask.model.scanning import Scanned, scan_rows
from sadih_dask.report.methods import METRICS, Outcome, drawing, render
from sadih_dask.stores import FeatureStore

RESULTS = "methods.json"


def compare_methods(
    store: FeatureStore,
    queries: FeatureStore,
    methods: Sequence[str] = (),
    bits: Sequence[int] = (16, 32, 64),
    *,
    parameters: Mapping[str, Any] | None = None,
    max_queries: int = MAX_QUERIES,
    class_folds: int = CLASS_FOLDS,
    results: Path | None = None,
    title: str = "Methods side by side",
    told: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Fit every method to a store at every length, and look the queries up under every protocol.

    ``parameters`` go to the methods that have them. ``results`` is a folder for what was measured,
    and for a figure and a page where matplotlib is installed; ``told`` hears of every outcome.
    """
    for name in methods:
        method_class(name)  # or an error that names them all
    check_lengths(bits)
    given, asked = dict(parameters or {}), (max_queries, class_folds)
    known = _Known(results, [store.fingerprint(), queries.fingerprint(), given, asked])
    scans: dict[str, Scanned] = {}
    for name in methods or METHODS:
        said = [_parameters(name, {**given, "n_bits": n_bits}) for n_bits in bits]
        left = [one for one in said if not known.has(name, one)]
        for outcome in _measure(name, left, store, queries, asked, scans):
            known.add(outcome)
        for n_bits in bits:
            told(known.found[name, n_bits])
    ordered = [known.found[name, n_bits] for name in methods or METHODS for n_bits in bits]
    if results is not None and not lacking("matplotlib", "a report"):
        _write_page(results, ordered, title, store.n_rows)
    return ordered


class _Known:
    """Outcomes that are on file, of the same rows and settings."""

    def __init__(self, folder: Path | None, identity: list[Any]) -> None:
        self._path, self._identity = folder and folder / RESULTS, json.loads(json.dumps(identity))
        self.found: dict[tuple[str, int], Outcome] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        if self._path is not None and self._path.exists():
            try:
                said = json.loads(self._path.read_text())
                outcomes = [Outcome(**one) for one in said["outcomes"]]
            except (ValueError, KeyError, TypeError) as error:
                raise FormatError(
                    f"{self._path} is not what a comparison of methods writes: {error!r}. Remove "
                    "it, or choose another folder"
                ) from error
            if said["of"] == self._identity:
                self.found = {(o.method, o.n_bits): o for o in outcomes if not o.failure}

    def has(self, method: str, parameters: Mapping[str, Any]) -> bool:
        """Whether it is known what a method reaches with such parameters."""
        found = self.found.get((method, parameters["n_bits"]))
        return found is not None and found.parameters == parameters

    def add(self, outcome: Outcome) -> None:
        """Remember, and write down."""
        self.found[outcome.method, outcome.n_bits] = outcome
        if self._path is not None:
            outcomes = [asdict(one) for one in self.found.values()]
            document = {"of": self._identity, "outcomes": outcomes}
            write_text(self._path, json.dumps(document, indent=1))


def _parameters(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All that a method is learned with: what is given, where it has it, and its defaults."""
    known = parameters_of(method_class(name))
    return {n: given.get(n, parameter.default) for n, parameter in known.items()}


def _measure(
    name: str,
    parameters: Sequence[Mapping[str, Any]],
    store: FeatureStore,
    queries: FeatureStore,
    asked: tuple[int, int],
    scans: dict[str, Scanned],
) -> Iterator[Outcome]:
    rows: AskedRows | None = None
    database = store if "labels" in store.arrays else None  # else queries have only each other
    for said in parameters:
        outcome = Outcome(name, said["n_bits"], parameters=said)
        try:
            model = method_named(name, said)
            check_parameters(model)
            decided = repr([getattr(model, n) for n in DECIDED_BY_THE_SCAN])
            if decided not in scans:
                with reporting(heard_in(store.n_rows)):
                    scans[decided] = scan_rows(model, store, None)
            check_width(model, store, reset=True)
            began = time.process_time()
            with _peak_memory() as peak:
                model.learn_from(scans[decided])
            seconds = time.process_time() - began
            rows = rows or AskedRows(model, queries, database, *asked)
            found = rows.evaluate(model, beside=False, progress=heard_in(store.n_rows)).known
            numbers, errors = (
                {p: {m: getattr(e, kind)[m] for m in METRICS} for p, e in found.items()}
                for kind in ("numbers", "standard_errors")
            )
            outcome = replace(
                outcome,
                numbers=numbers,
                standard_errors=errors,
                seconds=round(seconds, 3),
                peak_memory=peak(),
            )
        except (SadihError, np.linalg.LinAlgError) as error:
            outcome = replace(outcome, failure=str(error))
        yield outcome


@contextlib.contextmanager
def _peak_memory() -> Iterator[Callable[[], int]]:
    """Bytes that Python and NumPy held at most, beyond those before."""
    traced = tracemalloc.is_tracing()
    if not traced:
        tracemalloc.start()
    tracemalloc.reset_peak()
    before, peak = tracemalloc.get_traced_memory()[0], 0
    try:
        yield lambda: peak
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        if not traced:
            tracemalloc.stop()


def _write_page(folder: Path, outcomes: Sequence[Outcome], title: str, rows: int) -> None:
    drawn = [one for one in [drawing(outcomes)] if one is not None]
    for one in drawn:
        one.save(folder / FIGURES)
    files = {folder / RESULTS: "every number, as JSON", folder / FIGURES: "the figure"}
    page = render(
        title, outcomes, drawn, data={"rows": rows}, files=files, started=datetime.now(UTC)
    )
    write_text(folder / REPORT, page)
