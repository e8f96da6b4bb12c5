"""Cards of results: what was ingested, what was found, and how good it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from sadih_dask.arrays import Array
from sadih_dask.report.card import card
from sadih_dask.report.measurements import Quality, share
from sadih_dask.report.sparks import plot
from sadih_dask.report.wording import score
from sadih_dask.retrieval.evaluation import Evaluation, Protocols
from sadih_dask.retrieval.nearest import Neighbours, WithinRadius
from sadih_dask.storage.ingest import Ingested

SHOWN_QUERIES = 6
SHOWN_FINDS = 6
TIES = "Ties in distance are averaged over all orders."
ORDER = "nearest first: id (Hamming distance)"


def quality_card(quality: Sequence[Quality], about: str = "") -> str:
    """Return a card with the retrieval quality of each method and code length."""
    keys = list(dict.fromkeys((p, m) for q in quality for p in q.metrics for m in q.metrics[p]))
    several = len({q.method for q in quality}) > 1
    rows = [
        [f"{q.method}, {q.n_bits} bits" if several else f"{q.n_bits} bits"]
        + [score(q.metrics.get(p, {}).get(m)) for p, m in keys]
        for q in quality
    ]
    return card("Retrieval", about, {}, ["", *(f"{p} {m}" for p, m in keys)], rows, note=TIES)


def evaluation_card(found: Evaluation | Protocols) -> str:
    """Return a card with every number, the precision-recall curve and the distances of pairs."""
    known = protocols_of(found)
    some = next(iter(known.values()))
    facts = {
        "bits": some.n_bits,
        "queries": some.n_queries,
        "items in the database": " / ".join(f"{e.n_database:,}" for e in known.values()),
    }
    if some.n_without_relevant:
        facts["queries without a relevant item"] = some.n_without_relevant
    columns = [e.numbers for e in known.values()]
    rows = [[metric, *(score(c.get(metric)) for c in columns)] for metric in columns[0]]
    heads = ["", *(protocol or "value" for protocol in known)]
    lines = {name: (e.recall, e.precision) for name, e in known.items()}
    recall = plot(lines, ("recall", "precision"), "Precision against recall", top=1.0)
    pictures = [recall, *(_distances(name, e) for name, e in known.items())]
    name = type(found).__name__
    return card(name, "mean over queries", facts, heads, rows, pictures=pictures, note=TIES)


def protocols_of(found: Evaluation | Protocols) -> dict[str, Evaluation]:
    """Return evaluations by the name of their protocol; a single one has none."""
    if isinstance(found, Evaluation):
        return {"": found}
    known = {"learned": found.learned, "encoded": found.encoded}
    return {name: evaluation for name, evaluation in known.items() if evaluation is not None}


def _distances(protocol: str, found: Evaluation) -> Markup:
    steps = np.arange(found.n_bits + 1, dtype=np.float64)
    lines = {
        "similar": (steps, share(found.similar)),
        "dissimilar": (steps, share(found.dissimilar)),
    }
    label = f"Share of pairs against Hamming distance {protocol}".rstrip()
    return plot(lines, ("Hamming distance", f"{protocol} pairs".lstrip()), label)


def neighbours_card(found: Neighbours) -> str:
    """Return a card with the nearest items of the first queries."""
    facts: dict[str, object] = {"queries": len(found), "neighbours each": found.k}
    if found.distances.size:
        facts["distances"] = f"{found.distances.min()} to {found.distances.max()}"
    shown = range(min(len(found), SHOWN_QUERIES))
    finds = [_finds(found.ids[query], found.distances[query]) for query in shown]
    return _found("Neighbours", facts, finds, len(found))


def radius_card(found: WithinRadius) -> str:
    """Return a card with the nearest items of the first queries."""
    facts = {
        "radius": found.radius,
        "queries": len(found),
        "items": len(found.rows),
        "queries without any": int(np.sum(found.counts == 0)),
    }
    shown = range(min(len(found), SHOWN_QUERIES))
    return _found("WithinRadius", facts, [_finds(*found.of(q)) for q in shown], len(found))


def _finds(ids: Array, distances: Array) -> list[str]:
    """The first finds of one query, and how many more there are."""
    nearest = list(zip(ids[:SHOWN_FINDS], distances[:SHOWN_FINDS], strict=True))
    rest = len(ids) - len(nearest)
    return [f"{i} ({d})" for i, d in nearest] + ([f"{rest:,} more"] if rest else [])


def _found(name: str, facts: Mapping[str, object], finds: list[list[str]], n_queries: int) -> str:
    width = max((len(row) for row in finds), default=0)
    columns = ["query", *[""] * width] if finds else []
    rows = [[query, *row, *[""] * (width - len(row))] for query, row in enumerate(finds)]
    rest = n_queries - len(finds)
    note = f"{rest:,} queries more" if rest else ""
    return card(name, ORDER, facts, columns, rows, note=note)


def ingested_card(done: Ingested) -> str:
    """Return a card with what an ingestion did."""
    facts = {
        "rows written": done.n_new,
        "rows that were there": done.n_kept,
        "rows without a label, dropped": done.n_dropped,
        "files": done.n_files,
        "files passed over": done.n_passed_over,
        "rows now": done.store.n_rows,
    }
    return card("Ingested", done.store.url, facts)
