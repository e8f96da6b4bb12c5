"""What notebooks show of models, stores, statistics, traces and results.

``html(thing)`` gives a small card that takes its colours from the page around it, light or dark.
IPython asks for it by itself (see ``sadih_dask/__init__``); ``repr`` stays as it is. No card reads
rows of a store: metadata are enough.
"""

from __future__ import annotations

import math
from functools import singledispatch

from sadih_dask.errors import InputError
from sadih_dask.estimator import SADIH
from sadih_dask.learning.statistics import Statistics
from sadih_dask.learning.trace import Trace
from sadih_dask.report import result_cards
from sadih_dask.report.card import card, listed
from sadih_dask.report.measurements import Quality
from sadih_dask.report.sparks import (
    MOST_BARS,
    MOST_BITS,
    MOST_ROWS,
    bars,
    code_grid,
    sparkline,
)
from sadih_dask.report.wording import size
from sadih_dask.retrieval.evaluation import Evaluation, Protocols
from sadih_dask.retrieval.nearest import Neighbours, WithinRadius
from sadih_dask.storage import CodeStore, FeatureStore
from sadih_dask.storage.group import CommittedGroup
from sadih_dask.storage.ingest import Ingested


@singledispatch
def html(thing: object) -> str:
    """Return a card for a model, a store, statistics, a trace or results."""
    raise InputError(f"there is no card for {type(thing).__name__}; notebooks show its repr")


html.register(Evaluation, result_cards.evaluation_card)
html.register(Protocols, result_cards.evaluation_card)
html.register(Neighbours, result_cards.neighbours_card)
html.register(WithinRadius, result_cards.radius_card)
html.register(Ingested, result_cards.ingested_card)
html.register(Quality, lambda quality: result_cards.quality_card([quality]))


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
    return card("SADIH", f"classes {listed(thing.classes_)}", facts, pictures=[grid], note=note)


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
        facts["classes"] = listed(thing.class_names)
    if source := getattr(thing, "source", ""):
        facts["source"] = source
    rows = [
        [name, " x ".join(f"{n:,}" for n in thing.shape(name)), str(thing.dtype(name))]
        for name in thing.arrays
    ]
    return card(type(thing).__name__, thing.url, facts, ["array", "shape", "type"], rows)


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


def _same(a: object, b: object) -> bool:
    """Whether a parameter has its default value; NaN and arrays are never equal."""
    if isinstance(a, float) and math.isnan(a):
        return False
    return type(a) is type(b) and a == b
