"""What notebooks show of models, stores, statistics, traces and results.

``html(thing)`` gives a small card that takes its colours from the page around it, light or dark.
`install` makes notebooks use it; ``repr`` stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from markupsafe import Markup

from sadih_dask.errors import InputError
from sadih_dask.estimator import SADIH
from sadih_dask.learning.statistics import Statistics
from sadih_dask.learning.trace import Trace
from sadih_dask.report.measurements import Quality
from sadih_dask.report.sparks import MOST_BITS, MOST_ROWS, code_grid, sparkline
from sadih_dask.report.templating import environment
from sadih_dask.report.wording import score, size
from sadih_dask.storage import CodeStore, FeatureStore
from sadih_dask.storage.group import CommittedGroup

SHOWN_CLASSES = 8


@singledispatch
def html(thing: object) -> str:
    """Return a card for a model, a store, statistics, a trace or results."""
    raise InputError(f"there is no card for {type(thing).__name__}; notebooks show its repr")


def quality_html(quality: Sequence[Quality], about: str = "") -> str:
    """Return a card with the retrieval quality of each method and code length."""
    keys = list(dict.fromkeys((p, m) for q in quality for p in q.metrics for m in q.metrics[p]))
    several = len({q.method for q in quality}) > 1
    rows = [
        [f"{q.method}, {q.n_bits} bits" if several else f"{q.n_bits} bits"]
        + [score(q.metrics.get(p, {}).get(m)) for p, m in keys]
        for q in quality
    ]
    note = "Ties in distance are averaged over all orders."
    return _card("Retrieval", about, {}, ["", *(f"{p} {m}" for p, m in keys)], rows, note=note)


@html.register
def _(thing: Quality) -> str:
    return quality_html([thing])


@html.register
def _(thing: SADIH) -> str:
    parameters = thing.get_params(deep=False)
    defaults = type(thing)().get_params(deep=False)
    changed = {k: v for k, v in parameters.items() if not _same(v, defaults[k])}
    note = ", ".join(f"{k}={v!r}" for k, v in changed.items()) or "default parameters"
    if not hasattr(thing, "hash_function_"):
        return _card("SADIH", "not fitted", {"bits": parameters["n_bits"]}, note=note)
    n_bits = thing.hash_function_.n_bits
    facts: dict[str, object] = {
        "bits": n_bits,
        "classes": len(thing.classes_),
        "label groups": thing.groups_.n_groups,
        "features": thing.n_features_in_,
        "hash function": getattr(thing, "encoder_", thing.encoder),
        "iterations": thing.n_iter_,
        "fingerprint": thing.fingerprint_[:16],
    }
    if thing.statistics_ is not None:
        facts = {"rows": thing.statistics_.n_samples} | facts
    codes = thing.label_codes_
    shown = min(len(codes), MOST_ROWS), min(n_bits, MOST_BITS)
    label = (
        f"Codes of the first {shown[0]} of {len(codes)} label groups, {shown[1]} of {n_bits} bits"
    )
    about = f"classes {_listed(thing.classes_)}"
    return _card("SADIH", about, facts, note=note, picture=code_grid(codes, n_bits, label))


@html.register(FeatureStore)
@html.register(CodeStore)
def _(thing: CommittedGroup) -> str:
    facts: dict[str, object] = {"rows": thing.n_rows}
    if isinstance(thing, CodeStore):
        facts |= {"bits": thing.n_bits, "model": thing.model[:16]}
    facts |= {
        "chunks": thing.n_chunks,
        "rows a chunk": thing.chunk_rows,
        "compression": thing.compression,
        "size": size(thing.nbytes),
        "commit": thing.generation,
    }
    if isinstance(thing, FeatureStore) and thing.class_names:
        facts["classes"] = _listed(thing.class_names)
    if thing_source := getattr(thing, "source", ""):
        facts["source"] = thing_source
    rows = [
        [name, " x ".join(f"{n:,}" for n in thing.shape(name)), str(thing.dtype(name))]
        for name in thing.arrays
    ]
    return _card(type(thing).__name__, thing.url, facts, ["array", "shape", "type"], rows)


@html.register
def _(thing: Statistics) -> str:
    arrays = (thing.counts, thing.mean, thing.sums, thing.gram)
    facts = {
        "rows": thing.n_samples,
        "features": thing.n_features,
        "label groups": thing.groups.n_groups,
        "classes": thing.groups.n_classes,
        "rows a group": f"{thing.counts.min():,} to {thing.counts.max():,}",
        "size": size(sum(a.nbytes for a in arrays)),
    }
    return _card("Statistics", "what one pass over the rows leaves", facts)


@html.register
def _(thing: Trace) -> str:
    if not len(thing):
        return _card("Trace", "empty", {})
    totals = thing.totals
    facts = {
        "starts": len({record.restart for record in thing}),
        "kept start": thing.best + 1,
        "iterations": thing.n_iter,
        "kept iteration": thing.kept_iteration,
        "first objective": float(totals[0]),
        "last objective": float(totals[-1]),
    }
    label = f"Objective of the kept start, from {totals[0]:.4g} to {totals[-1]:.4g}, logarithmic"
    return _card("Trace", "objective of the kept start", facts, picture=sparkline(totals, label))


def install() -> None:
    """Make notebooks show these cards."""

    def bundle(self: object, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": html(self)}

    for shown in (FeatureStore, CodeStore, Statistics, Trace, Quality, SADIH):
        shown._repr_html_ = html  # type: ignore[union-attr]
    # scikit-learn's estimators answer here first.
    SADIH._repr_mimebundle_ = bundle


def _card(
    name: str,
    about: str,
    facts: Mapping[str, object],
    columns: Sequence[str] = (),
    rows: Sequence[Sequence[object]] = (),
    note: str = "",
    picture: Markup | None = None,
) -> str:
    return (
        environment()
        .get_template("card.html")
        .render(
            name=name,
            about=about,
            facts=facts,
            columns=columns,
            rows=rows,
            note=note,
            picture=picture,
        )
    )


def _listed(names: Sequence[object] | np.ndarray[Any, Any]) -> str:
    """The first names of many."""
    shown = ", ".join(str(name) for name in names[:SHOWN_CLASSES])
    rest = len(names) - SHOWN_CLASSES
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def _same(a: object, b: object) -> bool:
    """Whether a parameter has its default value; NaN and arrays are never equal."""
    if isinstance(a, float) and math.isnan(a):
        return False
    return type(a) is type(b) and a == b
