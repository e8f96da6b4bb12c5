"""Reports to look at: a real run on scikit-learn's digits, and one with hostile names."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sadih_dask import SADIH
from sadih_dask.learning.labels import group_rows
from sadih_dask.report import figures
from sadih_dask.report.measurements import BitCounts, Curve, Neighbours, PairDistances, Quality
from sadih_dask.report.page import Report, WrittenFile, installed_versions
from sadih_dask.retrieval.codes import distances
from sadih_dask.retrieval.histograms import Histograms, hamming_histograms
from sadih_dask.retrieval.metrics import mean_average_precision, precision_at

PROTOCOLS = ("learned", "encoded")
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=http://evil.example/x onerror=alert(1)>',
    "'; background: url(http://evil.example/)",
    "{{ 7 * 7 }}",
    "</style></title><b>",
)


@dataclass(frozen=True, eq=False)
class Digits:
    """What a run on the digits leaves to look at."""

    model: SADIH
    quality: tuple[Quality, ...]
    precision_recall: tuple[Curve, ...]
    precision_retrieved: tuple[Curve, ...]
    ceiling: Curve
    map_bits: tuple[Curve, ...]
    pairs: tuple[PairDistances, ...]
    bits: BitCounts
    neighbours: Neighbours
    n_database: int
    n_queries: int
    seconds: float


@cache
def digits(lengths: tuple[int, ...] = (8, 16, 32, 64)) -> Digits:
    """Fit once, refit for every length, and measure everything a report shows."""
    began = time.perf_counter()
    data = load_digits()
    rows = np.arange(len(data.target))
    database, queries = train_test_split(rows, test_size=0.2, stratify=data.target, random_state=0)
    X, y = data.data, data.target
    model = SADIH(n_bits=lengths[0], anchors=300)
    quality, recall_lines, retrieved_lines = [], [], []
    for n_bits in lengths:
        start = time.perf_counter()
        model.set_params(n_bits=n_bits)
        model = model.refit() if quality else model.fit(X[database], y[database])
        seconds = time.perf_counter() - start
        asked = model.transform(X[queries])
        stored = {
            "learned": model.learned_codes(y[database]),
            "encoded": model.transform(X[database]),
        }
        found = {
            name: hamming_histograms(
                asked, group_rows(y[queries], 10), codes, group_rows(y[database], 10), n_bits
            )
            for name, codes in stored.items()
        }
        metrics = {
            name: {
                "MAP": mean_average_precision(h),
                "precision at 100": float(precision_at(h, 100).mean()),
            }
            for name, h in found.items()
        }
        quality.append(Quality(n_bits, metrics, seconds=seconds))
        for name, h in found.items():
            first = np.unique(np.geomspace(1, len(database), 120).astype(int))
            recall, precision = _recall_precision(h, first)
            recall_lines.append(Curve(f"{n_bits} bits", recall, precision, panel=name))
            retrieved_lines.append(Curve(f"{n_bits} bits", first.astype(float), precision, name))
    relevant = next(iter(found.values())).relevant.sum(axis=1)
    best = np.minimum(1, relevant[:, None] / first).mean(axis=0)
    pairs = [
        PairDistances(h.relevant.sum(0), (h.total - h.relevant).sum(0), f"{n}, {lengths[-1]} bits")
        for n, h in found.items()
    ]
    maps = [
        Curve(p, np.array(lengths, float), np.array([q.metrics[p]["MAP"] for q in quality]))
        for p in PROTOCOLS
    ]
    pictures = (data.images * 255 / 16).astype(np.uint8)
    return Digits(
        model,
        tuple(quality),
        tuple(recall_lines),
        tuple(retrieved_lines),
        Curve("best possible", first.astype(float), best),
        tuple(maps),
        tuple(pairs),
        BitCounts.of_block(stored["encoded"], lengths[-1]),
        _neighbours(asked, stored["encoded"], queries, database, pictures, y),
        len(database),
        len(queries),
        time.perf_counter() - began,
    )


def _recall_precision(h: Histograms, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean precision and recall after so many items."""
    relevant = h.relevant.sum(axis=1)
    precision = np.array([precision_at(h, int(k)) for k in first])
    return (precision * first[:, None] / relevant).mean(axis=1), precision.mean(axis=1)


def _neighbours(asked, stored, queries, database, pictures, y) -> Neighbours:
    """Six queries, those with wrong neighbours first, and their ten nearest rows."""
    d = distances(asked, stored)
    nearest = np.argsort(d, axis=1, kind="stable")[:, :10]
    relevant = y[database][nearest] == y[queries][:, None]
    hits = relevant.sum(axis=1)
    mixed = np.flatnonzero((hits > 0) & (hits < 10))[:3]
    chosen = np.concatenate([mixed, np.flatnonzero(hits == 0)[:1], np.flatnonzero(hits == 10)[:2]])
    places = database[nearest[chosen]]
    return Neighbours(
        pictures[queries[chosen]],
        pictures[places],
        relevant[chosen],
        np.take_along_axis(d, nearest, axis=1)[chosen],
        tuple(str(v) for v in y[queries[chosen]]),
        tuple(tuple(str(v) for v in row) for row in y[places]),
    )


def digits_report(found: Digits, files: tuple[WrittenFile, ...] = ()) -> Report:
    """The report of that run, with every figure there is."""
    model = found.model
    return Report(
        title="Handwritten digits",
        n_database=found.n_database,
        n_queries=found.n_queries,
        n_classes=len(model.classes_),
        n_groups=model.groups_.n_groups,
        parameters=model.get_params(),
        quality=found.quality,
        drawings=[
            figures.map_against_bits(found.map_bits),
            figures.pair_distances(found.pairs[1:]),
            figures.precision_recall(found.precision_recall),
            figures.precision_retrieved(found.precision_retrieved, ceiling=found.ceiling),
            figures.neighbour_pictures(found.neighbours),
            figures.objective_trace(model.trace_),
            figures.bit_figure(found.bits),
        ],
        data={"source": "scikit-learn, load_digits", "features": model.n_features_in_},
        classes=tuple(str(name) for name in model.classes_),
        files=files,
        versions=installed_versions(),
        started=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        seconds=found.seconds,
    )


def hostile_report() -> Report:
    """Every text that others may choose, chosen to do harm."""
    x = np.array([8.0, 16.0])
    lines = [Curve(name, x, np.array([0.5, 0.6]), name) for name in HOSTILE]
    metrics = {name: {name: 0.5, "MAP": float("nan")} for name in HOSTILE}
    return Report(
        title=HOSTILE[0],
        n_database=10,
        n_queries=2,
        n_classes=3,
        n_groups=4,
        parameters={name: name for name in HOSTILE},
        quality=[Quality(8, metrics, method=name) for name in HOSTILE],
        drawings=[figures.map_against_bits(lines)],
        data={name: name for name in HOSTILE},
        classes=HOSTILE,
        files=[WrittenFile(name + "\udc80", name) for name in HOSTILE],
        versions={name: name for name in HOSTILE},
    )
