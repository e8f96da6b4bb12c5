"""Cards: what notebooks show of models, stores, statistics, traces and results.

``html(thing)`` gives a small card of facts, a table, small pictures and a note, which takes its
colours from the page around it, light or dark. IPython asks for it by itself:
``sadih_dask/__init__`` names the types. No card reads rows of a store: metadata are enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import singledispatch

import numpy as np
from markupsafe import Markup

from sadih_dask.errors import InputError
from sadih_dask.ingest import Ingested
from sadih_dask.learning.objective import Trace
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model.estimator import SADIH
from sadih_dask.report.code_statistics import shares
from sadih_dask.report.html import fill, score, size
from sadih_dask.report.sparklines import (
    MOST_BARS,
    MOST_BITS,
    MOST_ROWS,
    bars,
    code_grid,
    plot,
    sparkline,
)
from sadih_dask.retrieval.evaluation import Evaluation, Protocols
from sadih_dask.retrieval.nearest import Neighbours, WithinRadius
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.store import Store
from sadih_dask.types import Array

SHOWN_NAMES = 8
SHOWN_QUERIES = 6
SHOWN_FINDS = 6
TIES = "Ties in distance are averaged over all orders."


def card(
    name: str,
    about: str,
    facts: Mapping[str, object],
    columns: Sequence[str] = (),
    rows: Sequence[Sequence[object]] = (),
    *,
    pictures: Sequence[Markup] = (),
    note: str = "",
) -> str:
    """Return a card as HTML; everything but pictures is escaped."""
    return fill(
        "card.html",
        name=name,
        about=about,
        facts=facts,
        columns=columns,
        rows=rows,
        pictures=pictures,
        note=note,
    )


@singledispatch
def html(thing: object) -> str:
    """Return a card for a model, a store, statistics, a trace or results."""
    raise InputError(f"there is no card for {type(thing).__name__}; notebooks show its repr")


@html.register
def _(thing: SADIH) -> str:
    parameters = thing.get_params(deep=False)
    defaults = type(thing)().get_params(deep=False)
    changed = {k: v for k, v in parameters.items() if not _same(v, defaults[k])}
    note = ", ".join(f"{k}={v!r}" for k, v in changed.items()) or "default parameters"
    if not hasattr(thing, "hash_function_"):
        return card("SADIH", "not fitted", {"bits": parameters["n_bits"]}, note=note)
    n_bits, codes = thing.hash_function_.n_bits, thing.label_codes_
    facts: dict[str, object] = {
        "bits": n_bits,
        "classes": len(thing.classes_),
        "label groups": thing.groups_.n_groups,
        "features": thing.n_features_in_,
        "hash function": _encoder(thing),
        "iterations": thing.n_iter_,
        "fingerprint": thing.fingerprint_[:16],
    }
    if thing.statistics_ is not None:
        facts = {"rows": thing.statistics_.n_samples} | facts
    shown = min(len(codes), MOST_ROWS), min(n_bits, MOST_BITS)
    label = (
        f"Codes of the first {shown[0]} of {len(codes)} label groups, {shown[1]} of {n_bits} bits"
    )
    grid = code_grid(codes, n_bits, label, _group_names(thing))
    return card("SADIH", f"classes {_listed(thing.classes_)}", facts, pictures=[grid], note=note)


def _same(a: object, b: object) -> bool:
    """Whether a parameter has its default value; NaN and arrays are never equal."""
    if isinstance(a, float) and math.isnan(a):
        return False
    return type(a) is type(b) and a == b


def _encoder(model: SADIH) -> str:
    """The hash function that the model has; "auto" has chosen one of two."""
    if model.encoder != "auto":
        return model.encoder
    return "ridge" if model.hash_function_.mixture is None else "posterior"


def _group_names(model: SADIH) -> list[str]:
    """The classes of each label group, of as many groups as are shown."""
    groups, classes = model.groups_, model.classes_
    return [
        ", ".join(str(classes[c]) for c in groups.indices[groups.indptr[k] : groups.indptr[k + 1]])
        for k in range(min(len(groups), MOST_ROWS))
    ]


def _listed(names: Sequence[object] | Array) -> str:
    """The first names of many."""
    shown = ", ".join(str(name) for name in names[:SHOWN_NAMES])
    rest = len(names) - SHOWN_NAMES
    return f"{shown} and {rest:,} more" if rest > 0 else shown


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
    shown = min(len(thing.counts), MOST_BARS)
    label = f"Rows of the first {shown} of {len(thing.counts)} label groups"
    about = "what one pass over the rows leaves"
    return card("Statistics", about, facts, pictures=[bars(thing.counts, label)])


@html.register
def _(thing: Trace) -> str:
    if not len(thing):
        return card("Trace", "empty", {})
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
    line = sparkline(totals, label)
    return card("Trace", "objective of the kept start", facts, pictures=[line])


@html.register(FeatureStore)
@html.register(CodeStore)
def _(thing: Store) -> str:
    facts: dict[str, object] = {"rows": thing.n_rows}
    if isinstance(thing, CodeStore):
        facts |= {"bits": thing.n_bits, "model": thing.model[:16]}
    facts |= {
        "segments": len(thing.segments),
        "chunks": len(thing.chunks),
        "compression": thing.compression,
        "size": size(thing.nbytes),
        "commit": thing.generation,
    }
    if isinstance(thing, FeatureStore) and thing.class_names:
        facts["classes"] = _listed(thing.class_names)
    if source := getattr(thing, "source", ""):
        facts["source"] = source
    rows = [
        [name, " x ".join(f"{n:,}" for n in thing.shape(name)), str(thing.dtype(name))]
        for name in thing.arrays
    ]
    return card(type(thing).__name__, thing.url, facts, ["array", "shape", "type"], rows)


@html.register
def _(thing: Ingested) -> str:
    facts = {
        "rows written": thing.n_new,
        "rows that were there": thing.n_kept,
        "rows without a label, dropped": thing.n_dropped,
        "files": thing.n_files,
        "files passed over": thing.n_passed_over,
        "rows now": thing.store.n_rows,
    }
    return card("Ingested", thing.store.url, facts)


@html.register(Evaluation)
@html.register(Protocols)
def _(thing: Evaluation | Protocols) -> str:
    """Every number, the precision-recall curve and the distances of pairs."""
    known = protocols_of(thing)
    some = next(iter(known.values()))
    facts = {
        "bits": some.n_bits,
        "queries": some.n_queries,
        "items in the database": " / ".join(f"{e.n_database:,}" for e in known.values()),
    }
    if some.n_drawn_from > some.n_queries:
        facts["drawn at random from"] = some.n_drawn_from
    if some.n_without_relevant:
        facts["queries without a relevant item"] = some.n_without_relevant
    rows = [
        [
            metric,
            *(
                f"{score(e.numbers.get(metric))} ± {score(e.standard_errors.get(metric))}"
                for e in known.values()
            ),
        ]
        for metric in some.numbers
    ]
    heads = ["", *(protocol or "value" for protocol in known)]
    lines = {name: (e.recall, e.precision) for name, e in known.items()}
    recall = plot(lines, ("recall", "precision"), "Precision against recall", top=1.0)
    pictures = [recall, *(_distances(name, e) for name, e in known.items())]
    name = type(thing).__name__
    title = "mean over queries ± its standard error"
    return card(name, title, facts, heads, rows, pictures=pictures, note=TIES)


def protocols_of(found: Evaluation | Protocols) -> dict[str, Evaluation]:
    """Return evaluations by the name of their protocol; a single one has none."""
    return {"": found} if isinstance(found, Evaluation) else found.known


def _distances(protocol: str, found: Evaluation) -> Markup:
    steps = np.arange(found.n_bits + 1, dtype=np.float64)
    lines = {
        "similar": (steps, shares(found.similar)),
        "dissimilar": (steps, shares(found.dissimilar)),
    }
    label = f"Share of pairs against Hamming distance {protocol}".rstrip()
    return plot(lines, ("Hamming distance", f"{protocol} pairs".lstrip()), label)


@html.register
def _(thing: Neighbours) -> str:
    facts: dict[str, object] = {"queries": len(thing), "neighbours each": thing.k}
    if thing.distances.size:
        facts["distances"] = f"{thing.distances.min()} to {thing.distances.max()}"
    shown = range(min(len(thing), SHOWN_QUERIES))
    return _found(thing, facts, [_finds(thing.ids[q], thing.distances[q]) for q in shown])


@html.register
def _(thing: WithinRadius) -> str:
    facts = {
        "radius": thing.radius,
        "queries": len(thing),
        "items": len(thing.rows),
        "queries without any": int(np.sum(thing.counts == 0)),
    }
    shown = range(min(len(thing), SHOWN_QUERIES))
    return _found(thing, facts, [_finds(*thing.of(q)) for q in shown])


def _finds(ids: Array, distances: Array) -> list[str]:
    """The first finds of one query, and how many more there are."""
    nearest = list(zip(ids[:SHOWN_FINDS], distances[:SHOWN_FINDS], strict=True))
    rest = len(ids) - len(nearest)
    return [f"{i} ({d})" for i, d in nearest] + ([f"{rest:,} more"] if rest else [])


def _found(
    thing: Neighbours | WithinRadius, facts: Mapping[str, object], finds: list[list[str]]
) -> str:
    """The card of a search, with the finds of its first queries."""
    width = max((len(row) for row in finds), default=0)
    columns = ["query", *[""] * width] if finds else []
    rows = [[query, *row, *[""] * (width - len(row))] for query, row in enumerate(finds)]
    rest = len(thing) - len(finds)
    note = f"{rest:,} queries more" if rest else ""
    about = "nearest first: id (Hamming distance)"
    return card(type(thing).__name__, about, facts, columns, rows, note=note)
