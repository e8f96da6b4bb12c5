"""Cards: what notebooks show of models, stores, statistics, traces and results.

``html(thing)`` gives a small card of facts, a table, small pictures and a note, which takes its
colours from the page around it, light or dark. IPython asks for it by itself:
``sadih_dask/__init__`` names the types. No card reads rows of a store: metadata are enough.

The pictures are plain SVG that reads on a light and on a dark page. Text and frames have the colour
of the text around them; the one other colour has a contrast of 3:1 or more against white and
against black. A space follows every text: notebooks that are not trusted strip the pictures and
leave the words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch

import numpy as np
from markupsafe import Markup

from sadih_dask.errors import InputError
from sadih_dask.ingest import Ingested
from sadih_dask.learning.objective import Trace
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.methods.sadih import SADIH
from sadih_dask.report.code_statistics import shares
from sadih_dask.report.html import fill, score, size
from sadih_dask.retrieval.codes import unpack
from sadih_dask.retrieval.evaluation import Evaluation, Protocols
from sadih_dask.retrieval.nearest import Neighbours, WithinRadius
from sadih_dask.retrieval.trees import BoostedTrees
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.store import Store
from sadih_dask.types import Array, Bytes

SHOWN_NAMES = 8
SHOWN_QUERIES = 6
SHOWN_FINDS = 6
TIES = "Ties in distance are averaged over all orders."
MOST_ROWS = 24
MOST_BITS = 128
MOST_BARS = 64
ACCENT = "#4c90d9"
_LONGEST_NAME = 14
_LETTER = 5.6
_CELL = 9
_FRAME = Markup('fill="none" stroke="currentColor" stroke-opacity=".35"')
_STROKES = (
    Markup('stroke="{}" stroke-width="2"').format(ACCENT),
    Markup('stroke="currentColor" stroke-width="1.2" stroke-dasharray="4 2"'),
)
"""Two lines are told apart by colour and by dashes."""


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
def _(thing: Hasher) -> str:
    parameters = thing.get_params(deep=False)
    defaults = type(thing)().get_params(deep=False)
    own = {k: type(v) is not type(defaults[k]) or v != defaults[k] for k, v in parameters.items()}
    changed = {k: v for k, v in parameters.items() if own[k]}
    note = ", ".join(f"{k}={v!r}" for k, v in changed.items()) or "default parameters"
    if not hasattr(thing, "hash_function_"):
        return card(type(thing).__name__, "not fitted", {"bits": parameters["n_bits"]}, note=note)
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
    return card(
        type(thing).__name__,
        f"classes {_listed(thing.classes_)}",
        facts,
        pictures=[grid],
        note=note,
    )


def _encoder(model: Hasher) -> str:
    """The hash function that the model has."""
    if isinstance(function := model.hash_function_, BoostedTrees):
        return "decision trees"
    if not isinstance(model, SADIH):
        return "affine" if function.mixture is None else "vote of classes"
    return model.encoder_


def _group_names(model: Hasher) -> list[str]:
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
    note = TIES
    if isinstance(thing, Protocols):
        rows += _baseline_rows(thing)
        worst = "; ".join(f"{c.name} {score(c.map)} ({c.confusions})" for c in thing.worst_classes)
        note += f" Classes that find least, and what they are taken for: {worst}." if worst else ""
    heads = ["", *(protocol or "value" for protocol in known)]
    lines = {name: (e.recall, e.precision) for name, e in known.items()}
    recall = plot(lines, ("recall", "precision"), "Precision against recall", top=1.0)
    pictures = [recall, *(_distances(name, e) for name, e in known.items())]
    name = type(thing).__name__
    title = "mean over queries ± its standard error"
    return card(name, title, facts, heads, rows, pictures=pictures, note=note)


def _baseline_rows(found: Protocols) -> list[list[str]]:
    """MAP of other rankings of the same rows, under the protocols that have them."""
    rows = []
    for name in found.rankings[1:]:  # the codes themselves are above
        others = (found.baselines.get(protocol, {}).get(name) for protocol in found.known)
        cells = (
            f"{score(one.numbers['MAP'])} ± {score(one.standard_errors['MAP'])}" if one else ""
            for one in others
        )
        rows.append([f"MAP, {name}", *cells])
    return rows


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
        facts["distances"] = f"{thing.distances.min():.3g} to {thing.distances.max():.3g}"
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
    return [f"{i} ({d:.3g})" for i, d in nearest] + ([f"{rest:,} more"] if rest else [])


def _found(
    thing: Neighbours | WithinRadius, facts: Mapping[str, object], finds: list[list[str]]
) -> str:
    """The card of a search, with the finds of its first queries."""
    width = max((len(row) for row in finds), default=0)
    columns = ["query", *[""] * width] if finds else []
    rows = [[query, *row, *[""] * (width - len(row))] for query, row in enumerate(finds)]
    rest = len(thing) - len(finds)
    note = f"{rest:,} queries more" if rest else ""
    about = "nearest first: id (distance)"
    return card(type(thing).__name__, about, facts, columns, rows, note=note)


# -- small pictures ---------------------------------------------------------------------------


def sparkline(values: Sequence[float] | Array, label: str) -> Markup:
    """Draw a line through the finite values, on a logarithmic scale if all are positive."""
    found = [float(v) for v in values if math.isfinite(v)]
    if all(v > 0 for v in found):
        found = [math.log(v) for v in found]
    low, high = min(found, default=0.0), max(found, default=0.0)
    step = 300 / max(len(found) - 1, 1)
    places = [(k * step, 40 - (v - low) / ((high - low) or 1.0) * 40) for k, v in enumerate(found)]
    dots = [f"M{x:.1f} {y:.1f}h0" for x, y in places] if len(places) <= 60 else []
    drawn = Markup(
        '<g fill="none" stroke="{}" stroke-linejoin="round" stroke-linecap="round">'
        '<polyline points="{}" stroke-width="1.5"/><path d="{}" stroke-width="4"/></g>'
    ).format(ACCENT, _points(places), "".join(dots))
    return _svg(label, (-4, -4, 308, 48), drawn)


def bars(values: Sequence[float] | Array, label: str) -> Markup:
    """Draw the first of many values as bars from zero."""
    shown = [float(v) for v in values[:MOST_BARS]]
    highest = max(shown, default=0.0) or 1.0
    path = "".join(f"M{9 * k} 40h8v-{v / highest * 40:.1f}h-8z" for k, v in enumerate(shown))
    width = max(9 * len(shown), 1)
    drawn = Markup('<path d="{}" fill="{}"/><path d="M0 40.5h{}" {}/>')
    return _svg(label, (0, 0, width, 41), drawn.format(path, ACCENT, width, _FRAME))


def code_grid(packed: Bytes, n_bits: int, label: str, names: Sequence[str] = ()) -> Markup:
    """Draw codes as rows of cells, filled where a bit is set; the first rows and bits of many."""
    bits = unpack(packed[:MOST_ROWS], n_bits)[:, :MOST_BITS]
    rows, columns = bits.shape
    path = "".join(
        f"M{k} {row}h.86v.86h-.86z" for row in range(rows) for k in range(columns) if bits[row, k]
    )
    shown = [_short(name) for name in names[:rows]]
    left = max((len(name) * _LETTER + 6 for name in shown), default=0.0)
    texts = _texts((left - 5, (row + 0.8) * _CELL, name) for row, name in enumerate(shown))
    cells = Markup(
        '<g transform="translate({:.1f} 0) scale({})">'
        '<path d="M0 0h{}v{}h-{}z" fill="currentColor" fill-opacity=".1"/>'
        '<path d="{}" fill="{}"/></g>'
    ).format(left, _CELL, columns, rows, columns, path, ACCENT)
    return _svg(label, (0, 0, left + columns * _CELL, rows * _CELL), texts + cells)


def plot(
    lines: Mapping[str, tuple[Array, Array]],
    axes: tuple[str, str],
    label: str,
    *,
    top: float | None = None,
) -> Markup:
    """Draw one or two lines over (0, ``top``), by default their highest point, with their names."""
    right = max((float(x.max()) for x, _ in lines.values() if len(x)), default=0.0) or 1.0
    highest = max((float(y.max()) for _, y in lines.values() if len(y)), default=0.0)
    scale = (highest if top is None else top) or 1.0
    drawn, texts = [Markup('<path d="M0 0v90h300" {}/>').format(_FRAME)], []
    for k, ((name, (x, y)), stroke) in enumerate(zip(lines.items(), _STROKES, strict=False)):
        places = [(a / right * 300, 90 - b / scale * 88) for a, b in zip(x, y, strict=True)]
        known = _points((a, b) for a, b in places if math.isfinite(b))
        drawn.append(Markup('<polyline points="{}" fill="none" {}/>').format(known, stroke))
        if name:
            drawn.append(Markup('<path d="M{} 101h16" {}/>').format(90 * k, stroke))
            texts.append(
                Markup('<text x="{}" y="104">{}</text> ').format(90 * k + 20, _short(name))
            )
    turned = Markup('<text transform="translate(-4 0) rotate(-90)" text-anchor="end">{}</text> ')
    texts += [_texts([(300, 104, axes[0])]), turned.format(axes[1])]
    words = Markup('<g font-size="10" fill="currentColor">{}</g>').format(Markup("").join(texts))
    return _svg(label, (-14, -2, 318, 110), Markup("").join([*drawn, words]))


def _svg(label: str, box: tuple[float, float, float, float], drawn: Markup) -> Markup:
    corner = " ".join(f"{value:g}" for value in box)
    return Markup(
        '<svg role="img" aria-label="{}" viewBox="{}" width="{:g}" height="{:g}">{}</svg>'
    ).format(label, corner, box[2], box[3], drawn)


def _texts(placed: Iterable[tuple[float, float, str]]) -> Markup:
    """Texts that end at (x, y)."""
    one = Markup(
        '<text x="{:.1f}" y="{:.1f}" font-size="9.5" text-anchor="end" fill="currentColor">{}'
        "</text> "
    )
    return Markup("").join(one.format(*text) for text in placed)


def _points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
