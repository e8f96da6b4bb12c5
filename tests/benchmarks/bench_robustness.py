"""Where the defaults might break: noise, imbalance, few rows, many classes, few rows for the width.

    python -m tests.benchmarks.bench_robustness [--data FOLDER] [--bits 32] [--only WORD]

Every case is a data set with one difficulty. Mean average precision on rows that nothing was
learned or chosen from: *learned* (looked up among the learned codes), *fresh* (among each other),
and, where classes were set aside, *unseen* (rows of those, among each other). Beside SADIH with its
default settings: ITQ (which knows no labels), ITQ-CCA, and the plain classifier, linear
discriminant analysis with one random code for each class. CIFAR-10 GIST, Tiny-ImageNet features,
delicious and imdb are read from FOLDER (or $SADIH_DATA) where they exist; digits come with
scikit-learn, Fashion-MNIST is Debian's package dataset-fashion-mnist. A line says "met", or where
SADIH is below ITQ, or below the classifier by more than .01.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from sadih_dask import SADIH
from sadih_dask.learning.labels import group_rows
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.methods.classifier import ClassCodes
from sadih_dask.model.methods.itq import ITQ, ITQCCA
from sadih_dask.retrieval.histograms import hamming_histograms
from sadih_dask.retrieval.metrics import mean_average_precision
from tests.benchmarks.bench_defaults import fashion

Array = NDArray[Any]
QUERIES = 3000


@dataclass(frozen=True)
class Case:
    """Rows to learn from, rows to judge by, and rows of classes that were set aside, if any."""

    name: str
    X: Array
    y: Any
    X_new: Array
    y_new: Any
    X_unseen: Array | None = None
    y_unseen: Any = None


# -- data --------------------------------------------------------------------------------------


def gaussian(
    n_classes: int, per_class: int, d: int = 64, noise: float = 1.5
) -> tuple[Array, Array]:
    """Classes with normal means of length sqrt(d), and normal rows about them."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((n_classes, d))
    y = rng.permutation(np.repeat(np.arange(n_classes), per_class))
    return (means[y] + noise * rng.standard_normal((len(y), d))).astype(np.float32), y


def divide(name: str, X: Array, y: Any, *, unseen: float = 0.0, n: int | None = None) -> Case:
    """Set rows aside at random, and a part of the classes."""
    rng = np.random.default_rng(7)
    order = rng.permutation(X.shape[0])
    known = np.ones(X.shape[0], bool)
    if unseen:
        classes = rng.permutation(np.unique(y))
        known = ~np.isin(y, classes[: max(2, round(unseen * len(classes)))])
    rows, others = order[known[order]], order[~known[order]][:QUERIES]
    held = min(QUERIES, len(rows) // 4)
    train = rows[held:][:n]
    aside = (X[others], y[others]) if unseen else (None, None)
    return Case(name, X[train], y[train], X[rows[:held]], y[rows[:held]], *aside)


def noisy(case: Case) -> Case:
    """A fifth of the labels that are learned from, drawn anew."""
    rng = np.random.default_rng(1)
    y = case.y.copy()
    wrong = rng.random(len(y)) < 0.2
    y[wrong] = rng.choice(np.unique(case.y), wrong.sum())
    return replace(case, name=f"{case.name}, label noise 20 %", y=y)


def imbalanced(case: Case) -> Case:
    """Classes to learn from between all of their rows and a hundredth; judged evenly."""
    rng = np.random.default_rng(2)
    classes = rng.permutation(np.unique(case.y))
    share = 100.0 ** -np.linspace(0, 1, len(classes))
    kept = [np.flatnonzero(case.y == c) for c in classes]
    rows = np.concatenate([r[: max(2, int(len(r) * s))] for r, s in zip(kept, share, strict=True)])
    return replace(case, name=f"{case.name}, 100:1", X=case.X[rows], y=case.y[rows])


def few(case: Case, per_class: int) -> Case:
    """So many rows of each class."""
    rows = np.concatenate([np.flatnonzero(case.y == c)[:per_class] for c in np.unique(case.y)])
    return replace(case, name=f"{case.name}, {per_class} a class", X=case.X[rows], y=case.y[rows])


def small_cases() -> Iterator[Case]:
    """Seconds: digits and Gaussian classes."""
    X, y = load_digits(return_X_y=True)
    digits = divide("digits", X.astype(np.float32), y, unseen=0.3)
    yield digits
    yield noisy(digits)
    yield imbalanced(digits)
    yield few(digits, 5)
    yield divide("200 Gaussian classes", *gaussian(200, 20))


def cases(folder: Path | None) -> Iterator[Case]:
    """Everything; what is not there is left out."""
    yield from small_cases()
    yield divide("2,000 Gaussian classes", *gaussian(2000, 20))
    X, y = gaussian(20, 400, 500, 8.0)
    for n in (450, 500, 550):
        yield divide(f"Gaussian, 500 columns, {n} rows", X, y, n=n)
    if (found := fashion()) is not None:
        yield divide("Fashion-MNIST", *found, unseen=0.3)
    if folder is None:
        return
    if (path := folder / "cifar10_gist512.npz").exists():
        with np.load(path) as file:
            X, y = file["features"].astype(np.float32), file["labels"].astype(int)
        whole = divide("CIFAR-10 GIST", X, y, unseen=0.3)
        yield whole
        for n in (1000, 5000):
            yield divide(f"CIFAR-10 GIST, n = {n:,}", X, y, unseen=0.3, n=n)
        yield noisy(replace(whole, X=whole.X[:10_000], y=whole.y[:10_000]))
        yield imbalanced(whole)
    if (path := folder / "tiny_imagenet100_effnet1280.npz").exists():
        with np.load(path) as file:
            X = (file["features_u8"].astype(np.float32) * file["scale"]).astype(np.float32)
            y = file["labels"].astype(int)
        whole = divide("Tiny-ImageNet", X, y, unseen=0.25)
        yield whole
        yield noisy(replace(whole, X=whole.X[:10_000], y=whole.y[:10_000]))
        yield imbalanced(whole)
        yield few(whole, 5)
    if (path := folder / "delicious.mat").exists():
        file = scipy.io.loadmat(path)
        labels = np.asarray(file["target"]).T > 0
        some = labels.any(axis=1)
        rows = np.asarray(file["data"], np.float32)[some]
        yield divide("delicious", rows, sp.csr_array(labels[some].astype(np.int8)))
    if (path := folder / "imdb_multilabel_features.npz").exists():
        labels = sp.csr_array(sp.load_npz(folder / "imdb_multilabel_labels.npz"))
        some = np.flatnonzero(np.diff(labels.indptr))[:20_000]
        rows = sp.csr_array(sp.load_npz(path))[some].toarray().astype(np.float32)
        yield divide("imdb, 20,000 rows", rows, sp.csr_array(labels[some] > 0, dtype=np.int8))


# -- codes -------------------------------------------------------------------------------------

Codes = Callable[[Array], Array]
METHODS: dict[str, type[Hasher]] = {
    "SADIH": SADIH,
    "ITQ": ITQ,
    "ITQ-CCA": ITQCCA,
    "classifier": ClassCodes,
}


def hashed(method: type[Hasher], case: Case, n_bits: int) -> tuple[Codes, Array | None]:
    """Codes of rows, and of the labels that were learned from, if there are any."""
    model = method(n_bits).fit(case.X, case.y)
    return model.transform, model.learned_codes(case.y) if len(model.label_codes_) else None


# -- the table ---------------------------------------------------------------------------------


def quality(queries: Array, asked: Any, database: Array, held: Any) -> float:
    """Mean average precision of packed codes."""
    width = None if asked.ndim == 2 else int(max(asked.max(), held.max())) + 1
    n_bits = 8 * queries.shape[1]
    sides = group_rows(asked, width), group_rows(held, width)
    return mean_average_precision(hamming_histograms(queries, sides[0], database, sides[1], n_bits))


def measure(case: Case, found: tuple[Codes, Array | None]) -> tuple[float, float, float]:
    """Learned, fresh and unseen; NaN for what there is not."""
    codes, known = found
    hashed, third = codes(case.X_new), case.X_new.shape[0] // 3
    learned = np.nan if known is None else quality(hashed, case.y_new, known, case.y)
    fresh = quality(hashed[:third], case.y_new[:third], hashed[third:], case.y_new[third:])
    unseen = np.nan
    if case.X_unseen is not None:
        hashed, third = codes(case.X_unseen), len(case.X_unseen) // 3
        y = case.y_unseen
        unseen = quality(hashed[:third], y[:third], hashed[third:], y[third:])
    return learned, fresh, unseen


def compare(case: Case, n_bits: int) -> dict[str, tuple[float, float, float]]:
    """All methods on one case."""
    several = case.y.ndim == 2
    return {
        name: measure(case, hashed(method, case, n_bits))
        for name, method in METHODS.items()
        if not (several and method is ClassCodes)
    }


def broken(found: dict[str, tuple[float, float, float]]) -> list[str]:
    """In what SADIH is below ITQ, or below the classifier by more than .01."""
    names = ("learned", "fresh", "unseen")
    ours = found["SADIH"]
    below = [n for n, a, b in zip(names, ours, found["ITQ"], strict=True) if a < b]
    plain = found.get("classifier", (np.nan,) * 3)
    return below + [n for n, a, b in zip(names[:2], ours, plain, strict=False) if a < b - 0.01]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("SADIH_DATA"))
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    folder = None if options.data is None else Path(options.data)
    print(f"{options.bits} bits: learned / fresh / unseen")
    missed = 0
    for case in cases(folder):
        if options.only not in case.name:
            continue
        began = time.perf_counter()
        found = compare(case, options.bits)
        said = " | ".join(
            f"{name} " + " / ".join("-" if np.isnan(v) else f"{v:.3f}" for v in values)
            for name, values in found.items()
        )
        below = broken(found)
        mark = f": NOT MET in {', '.join(below)}" if below else ": met"
        missed += bool(below)
        seconds = time.perf_counter() - began
        print(f"{case.name}, {case.X.shape[0]:,} rows: {said}{mark}  ({seconds:.0f} s)", flush=True)
    print("all met" if not missed else f"{missed} not met")


if __name__ == "__main__":
    main()
