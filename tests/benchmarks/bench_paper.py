"""The paper's retrieval protocol on real data, beside the paper's Table 1 and simple baselines.

    python tests/benchmarks/bench_paper.py cifar  [--data FOLDER] [--splits 5] [--anchors 3000]
    python tests/benchmarks/bench_paper.py tiny | imdb | delicious [--data FOLDER]

FOLDER (or $SADIH_DATA) holds cifar10_gist512.npz, tiny_imagenet100_effnet1280.npz,
imdb_multilabel_{features,labels}.npz and delicious.mat. Mean average precision over whole rankings,
ties averaged: *learned*, the database rows carry the learned code of their labels (the paper's
protocol), and *encoded*, they are hashed like the queries.

cifar      59,000 training rows, 1,000 queries, 100 a class, random splits; every variant
tiny       50,000 rows, 5,000 queries, 100 classes, deep features
imdb, delicious   several labels a row; 1,000 random rows are queries; both similarities

Baselines, codes of equal length in the same run: random codes of the label groups, up to 500 groups
the best separated of 1,000 tables, with the same ridge regression; one-vs-rest ridge scores,
projected at random and signed; ITQ and random hyperplanes (LSH) by FAISS, which know no labels.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import scipy.io
import scipy.linalg as la
import scipy.sparse as sp
from numpy.typing import NDArray

from sadih_dask import SADIH
from sadih_dask.learning.encoders import HashFunction, ridge_encoder
from sadih_dask.learning.labels import group_rows
from sadih_dask.learning.problem import Problem
from sadih_dask.learning.solver import starting_state
from sadih_dask.retrieval.codes import pack
from sadih_dask.retrieval.histograms import hamming_histograms
from sadih_dask.retrieval.metrics import mean_average_precision

Array = NDArray[Any]
LENGTHS = (8, 16, 32, 64, 96, 128)
PAPER = {
    "paper: SADIH": (0.4647, 0.6992, 0.7263, 0.7271, 0.7367, 0.7319),
    "paper: SADIH-L1": (0.6131, 0.6994, 0.7277, 0.7298, 0.7289, 0.7348),
}
RIDGE: dict[str, Any] = {"encoder": "ridge"}
VARIANTS: dict[str, dict[str, Any]] = {
    "SADIH, default": {},
    "SADIH, ridge": RIDGE,
    "SADIH-L1, ridge": {"loss": "l1", **RIDGE},
    "SADIH, posterior": {"encoder": "posterior"},
    "SADIH, orthogonal": {"encoder": "orthogonal"},
    "SADIH, lemma": {"encoder": "lemma"},
    "SADIH, printed updates, ridge": {"solver": "paper", **RIDGE},
    "SADIH-L1, printed updates, ridge": {"solver": "paper", "loss": "l1", **RIDGE},
    "SADIH, as printed": {"solver": "paper", "encoder": "lemma", "start": "random", "n_init": 1},
    "SADIH-L1, as printed": {
        "solver": "paper",
        "loss": "l1",
        "encoder": "lemma",
        "start": "random",
        "n_init": 1,
    },
}


@dataclass(frozen=True)
class Split:
    """Training rows and queries, features and labels each."""

    X: Array
    Y: Any
    queries: Array
    Y_queries: Any


def quality(split: Split, queries: Array, database: Array, n_bits: int) -> float:
    """MAP of packed query codes over packed database codes."""
    sides = (split.Y_queries, split.Y)
    width = None if sides[0].ndim == 2 else int(max(side.max() for side in sides)) + 1
    asked, held = (group_rows(side, width) for side in sides)
    return mean_average_precision(hamming_histograms(queries, asked, database, held, n_bits))


def measure(model: SADIH, split: Split, mapped: list[Array], n_bits: int) -> tuple[float, float]:
    """MAP under both protocols; the anchor features ``mapped`` serve every variant and length."""
    function = replace(model.hash_function_, anchor_map=None)
    database, queries = (_hash(function, rows) for rows in mapped)
    learned = quality(split, queries, model.learned_codes(split.Y), n_bits)
    return learned, quality(split, queries, database, n_bits)


def _hash(function: HashFunction, rows: Array) -> Array:
    blocks = range(0, len(rows), 8192)
    return np.concatenate([pack(function.project(rows[k : k + 8192])) for k in blocks])


def run(
    splits: Iterator[Split],
    anchors: int | None,
    variants: dict[str, Any],
    lengths: tuple[int, ...],
    only: str | None,
) -> None:
    """Print a table of every variant and baseline at every length, averaged over splits."""
    variants = {name: changes for name, changes in variants.items() if (only or "") in name}
    found: dict[tuple[str, str], list[list[float]]] = {}
    for k, split in enumerate(splits):
        start = time.perf_counter()
        model = SADIH(anchors=anchors, random_state=k).fit(split.X, split.Y)
        print(f"split {k}: one scan and the first solution {time.perf_counter() - start:.1f} s")
        anchor_map = model.hash_function_.anchor_map
        sides = (split.X, split.queries)
        mapped = [rows if anchor_map is None else anchor_map(rows) for rows in sides]
        defaults = SADIH(anchors=anchors, random_state=k).get_params()
        for name, changes in variants.items():
            rows, seconds = [], []
            for n_bits in lengths:
                begin = time.perf_counter()
                model.set_params(**{**defaults, **changes, "n_bits": n_bits}).refit()
                seconds.append(time.perf_counter() - begin)
                rows.append(measure(model, split, mapped, n_bits))
            for protocol, column in zip(
                ("learned", "encoded"), zip(*rows, strict=True), strict=True
            ):
                found.setdefault((protocol, name), []).append(list(column))
            found.setdefault(("seconds", name), []).append(seconds)
        for name, codes in baselines(model, split, mapped).items():
            if (only or "") not in name:
                continue
            rows = [codes(n_bits) for n_bits in lengths]
            for protocol, column in zip(
                ("learned", "encoded"), zip(*rows, strict=True), strict=True
            ):
                found.setdefault((protocol, name), []).append(list(column))
    show(found, lengths)


def show(found: dict[tuple[str, str], list[list[float]]], lengths: tuple[int, ...]) -> None:
    for protocol in ("learned", "encoded", "seconds"):
        print(f"\n{protocol:38}" + "".join(f"{n_bits:>15}" for n_bits in lengths))
        if protocol == "learned" and lengths == LENGTHS:
            for name, row in PAPER.items():
                print(f"{name:38}" + "".join(f"{value:15.4f}" for value in row))
        for (kind, name), rows in found.items():
            if kind == protocol and not np.isnan(rows).all():
                mean, sd = np.mean(rows, axis=0), np.std(rows, axis=0)
                cells = "".join(f"{m:8.4f} ±{s:.4f}" for m, s in zip(mean, sd, strict=True))
                print(f"{name:38}{cells}", flush=True)


def baselines(
    model: SADIH, split: Split, mapped: list[Array]
) -> dict[str, Callable[[int], tuple[float, float]]]:
    """Codes of a given length by other means: (learned, encoded) MAP."""
    statistics = model.statistics_
    assert statistics is not None

    def signs(P: Array, intercept: Array) -> list[Array]:
        """Packed codes of database and queries by a projection of standardised features."""
        A = (P / statistics.scale).T
        function = HashFunction(None, A, intercept - statistics.mean @ A)
        return [_hash(function, rows) for rows in mapped]

    def separated(n_bits: int) -> tuple[float, float]:
        """The best separated of random code tables, and ridge regression to it."""
        problem = Problem.from_statistics(statistics, n_bits, ridge=model.ridge)
        rng, g = np.random.default_rng(0), len(statistics.groups)
        tables = (np.where(rng.random((n_bits, g)) < 0.5, -1.0, 1.0) for _ in range(1000))
        codes = next(tables)
        if g <= 500:
            codes = min(tables, key=lambda B: float((B.T @ B - n_bits * np.eye(g)).max()))
        P, intercept = ridge_encoder(problem, starting_state(problem, codes))
        database, queries = signs(P, intercept)
        place = statistics.groups.find(group_rows(split.Y, statistics.groups.n_classes)[0])
        ids = group_rows(split.Y, statistics.groups.n_classes)[1]
        learned = quality(split, queries, pack(codes.T)[place[ids]], n_bits)
        return learned, quality(split, queries, database, n_bits)

    def scores(n_bits: int) -> tuple[float, float]:
        """One-vs-rest ridge scores of the labels, projected at random and signed."""
        problem = Problem.from_statistics(statistics, n_bits, ridge=model.ridge)
        by_label = problem.XYt @ np.random.default_rng(0).standard_normal(
            (problem.XYt.shape[1], n_bits)
        )
        P = la.cho_solve(problem.ridge_factor, by_label).T
        database, queries = signs(P, np.zeros(n_bits))
        return np.nan, quality(split, queries, database, n_bits)

    def unsupervised(make: Callable[[int, int], Any]) -> Callable[[int], tuple[float, float]]:
        def measure_codes(n_bits: int) -> tuple[float, float]:
            if n_bits > split.X.shape[1]:
                return np.nan, np.nan
            transform = make(split.X.shape[1], n_bits)
            rows = [np.ascontiguousarray(X, np.float32) for X in (split.X, split.queries)]
            transform.train(rows[0][:: max(1, len(rows[0]) // 50_000)])
            database, queries = (pack(transform.apply(X)) for X in rows)
            return np.nan, quality(split, queries, database, n_bits)

        return measure_codes

    return {
        "baseline: separated codes + ridge": separated,
        "baseline: projected label scores": scores,
        "baseline: ITQ (FAISS)": unsupervised(lambda d, n: faiss.ITQTransform(d, n, True)),
        "baseline: LSH (FAISS)": unsupervised(lambda d, n: faiss.RandomRotationMatrix(d, n)),
    }


def cifar(folder: Path, n_splits: int) -> Iterator[Split]:
    with np.load(folder / "cifar10_gist512.npz") as file:
        X, y = file["features"].astype(np.float32), file["labels"].astype(int)
    for seed in range(n_splits):
        order = np.random.default_rng(seed).permutation(len(y))
        queries = np.concatenate([order[y[order] == label][:100] for label in range(10)])
        train = np.setdiff1d(order, queries)
        yield Split(X[train], y[train], X[queries], y[queries])


def tiny(folder: Path, n_splits: int) -> Iterator[Split]:
    with np.load(folder / "tiny_imagenet100_effnet1280.npz") as file:
        X = (file["features_u8"].astype(np.float32) * file["scale"]).astype(np.float32)
        y, asked = file["labels"].astype(int), file["is_query"].astype(bool)
    yield Split(X[~asked], y[~asked], X[asked], y[asked])


def imdb(folder: Path, n_splits: int) -> Iterator[Split]:
    X = sp.load_npz(folder / "imdb_multilabel_features.npz").toarray().astype(np.float32)
    Y = sp.load_npz(folder / "imdb_multilabel_labels.npz").toarray().astype(np.uint8)
    yield from _multi_label(X, Y)


def delicious(folder: Path, n_splits: int) -> Iterator[Split]:
    file = scipy.io.loadmat(folder / "delicious.mat")
    Y = file["target"].T
    yield from _multi_label(np.asarray(file["data"], np.float32), (Y > 0).astype(np.uint8))


def _multi_label(X: Array, Y: Array) -> Iterator[Split]:
    labelled = np.flatnonzero(Y.sum(axis=1))
    order = np.random.default_rng(0).permutation(labelled)
    queries, train = order[:1000], order[1000:]
    yield Split(X[train], Y[train], X[queries], Y[queries])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_set", choices=["cifar", "tiny", "imdb", "delicious"])
    parser.add_argument("--data", type=Path, default=os.environ.get("SADIH_DATA"))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--anchors", type=int, default=None)
    parser.add_argument("--bits", type=int, nargs="+")
    parser.add_argument("--only", help="variants and baselines whose name contains this")
    options = parser.parse_args()
    if options.data is None:
        parser.error("give the folder with the data: --data FOLDER, or $SADIH_DATA")
    folder = Path(options.data)
    splits = globals()[options.data_set](folder, options.splits)
    if options.data_set in ("cifar", "tiny"):
        anchors = options.anchors or (3000 if options.data_set == "cifar" else None)
        run(splits, anchors, VARIANTS, tuple(options.bits or LENGTHS), options.only)
    else:
        variants = {
            "SADIH, ridge": RIDGE,
            "SADIH-L1, ridge": {"loss": "l1", **RIDGE},
            "SADIH, ridge, cosine": {"similarity": "cosine", **RIDGE},
            "SADIH, random start, ridge": {"start": "random", **RIDGE},
        }
        for variant in variants.values():
            variant["ridge"] = 1e-3
        run(splits, options.anchors, variants, tuple(options.bits or (16, 32, 64)), options.only)


if __name__ == "__main__":
    main()
