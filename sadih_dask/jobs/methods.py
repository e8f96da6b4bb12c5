"""Which method for this collection? All of them on the same rows, side by side.

Methods whose scans agree share one. What is measured is on file as soon as it is there: the same
call goes on after an interruption, and a method that fails does not stop the others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sadih_dask.compute.run import heard_in
from sadih_dask.errors import FormatError, SadihError
from sadih_dask.files.file import locate
from sadih_dask.jobs.evaluate import FIGURES, missing_matplotlib
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.evaluation import AskedRows
from sadih_dask.model.methods import METHODS, method_class, method_named
from sadih_dask.model.parameters import (
    CLASS_FOLDS,
    DECIDED_BY_THE_SCAN,
    MAX_QUERIES,
    parameters_of,
)
from sadih_dask.retrieval.evaluation import BASELINE_CUTOFF, PROTOCOLS
from sadih_dask.stores import FeatureStore

RESULTS = "methods.json"
METRICS = ("MAP", f"precision@{BASELINE_CUTOFF}")


@dataclass(frozen=True)
class Outcome:
    """What a method reaches with codes of one length, or why it does not.

    numbers          metric by protocol
    standard_errors  of these
    seconds          processor time of the solve, after the scan
    """

    method: str
    n_bits: int
    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    standard_errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str = ""


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
    told: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Fit every method to a store at every length, and look the queries up under every protocol.

    ``parameters`` go to the methods that have them. ``results`` is a folder for what was measured,
    and for a figure where matplotlib is installed; ``told`` hears of every outcome.
    """
    for name in methods:
        method_class(name)  # or an error that names them all
    given, asked = dict(parameters or {}), (max_queries, class_folds)
    known = _Known(results, [store.fingerprint(), queries.fingerprint(), given, asked])
    scans: dict[str, Hasher] = {}
    for name in methods or METHODS:
        left = [n for n in bits if (name, n) not in known.found]
        for outcome in _measure(name, left, store, queries, given, asked, scans) if left else ():
            known.add(outcome)
        for n_bits in bits:
            told(known.found[name, n_bits])
    ordered = [known.found[name, n_bits] for name in methods or METHODS for n_bits in bits]
    if results is not None and missing_matplotlib() is None:
        _draw(ordered, results)
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

    def add(self, outcome: Outcome) -> None:
        """Remember, and write down."""
        self.found[outcome.method, outcome.n_bits] = outcome
        if self._path is not None:
            outcomes = [asdict(one) for one in self.found.values()]
            text = json.dumps({"of": self._identity, "outcomes": outcomes}, indent=1).encode()
            locate(self._path).write(lambda file: file.writelines([text]))


def _measure(
    name: str,
    bits: Sequence[int],
    store: FeatureStore,
    queries: FeatureStore,
    given: Mapping[str, Any],
    asked: tuple[int, int],
    scans: dict[str, Hasher],
) -> Iterator[Outcome]:
    rows: AskedRows | None = None
    for n_bits in bits:
        outcome = Outcome(name, n_bits)
        try:
            model = _with_known({**given, "n_bits": n_bits}, name)
            scan = repr([getattr(model, n) for n in DECIDED_BY_THE_SCAN])
            if scan in scans:
                model.take_over(scans[scan])
            else:
                scans[scan] = model.fit(store, progress=heard_in(store.n_rows))
            began = time.process_time()
            model.refit()
            seconds = time.process_time() - began
            rows = rows or AskedRows(model, queries, store, *asked)
            found = rows.evaluate(model, beside=False, progress=heard_in(store.n_rows)).known
            numbers, errors = (
                {p: {m: getattr(e, kind)[m] for m in METRICS} for p, e in found.items()}
                for kind in ("numbers", "standard_errors")
            )
            outcome = replace(
                outcome, numbers=numbers, standard_errors=errors, seconds=round(seconds, 3)
            )
        except (SadihError, np.linalg.LinAlgError) as error:
            outcome = replace(outcome, failure=str(error))
        yield outcome


def _with_known(parameters: Mapping[str, Any], name: str) -> Hasher:
    """An estimator with those of the parameters that it has."""
    names = parameters_of(method_class(name))
    return method_named(name, {n: value for n, value in parameters.items() if n in names})


def as_table(outcomes: Sequence[Outcome]) -> str:
    """MAP under every protocol, a line for each method and length; the best of a length starred."""
    protocols = [p for p in PROTOCOLS if any(p in one.numbers for one in outcomes)]
    best = {
        (p, n): max(o.numbers[p]["MAP"] for o in outcomes if o.n_bits == n and p in o.numbers)
        for p in protocols
        for n in {o.n_bits for o in outcomes if p in o.numbers}
    }
    lines = [f"{'method':12}{'bits':>5}" + "".join(f"{p:>17} " for p in protocols) + "  solve"]
    for one in outcomes:
        if one.failure:
            lines.append(f"{one.method:12}{one.n_bits:5}  failed: {one.failure}")
            continue
        cells = ""
        for p in protocols:
            if p not in one.numbers:
                cells += f"{'-':>17} "
                continue
            value, error = one.numbers[p]["MAP"], one.standard_errors[p]["MAP"]
            star = "*" if value == best[p, one.n_bits] else " "
            cells += f"{value:8.4f} ± {error:.4f}{star}"
        lines.append(f"{one.method:12}{one.n_bits:5}{cells}{one.seconds:6.1f} s")
    return "\n".join(lines)


def _draw(outcomes: Sequence[Outcome], folder: Path) -> None:
    """MAP against bits, a line for each method, a panel for each protocol."""
    from sadih_dask.report import figures
    from sadih_dask.report.figures import Curve

    curves = []
    for name in dict.fromkeys(one.method for one in outcomes):
        for protocol in PROTOCOLS:
            line = [
                (one.n_bits, one.numbers[protocol]["MAP"])
                for one in outcomes
                if one.method == name and protocol in one.numbers
            ]
            if line:
                x, y = np.array(sorted(line), np.float64).T
                curves.append(Curve(name, x, y, protocol))
    if curves:
        figures.map_against_bits(curves).save(folder / FIGURES)
