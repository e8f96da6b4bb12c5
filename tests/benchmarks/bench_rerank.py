"""What asymmetric re-ranking is worth on real data, under the `encoded` protocol.

    SADIH_DATA=DIR python tests/benchmarks/bench_rerank.py [--bits 16 32 64 128] [--first 1000]

Digits come with scikit-learn; CIFAR-10 GIST is read from DIR/cifar10_gist512.npz if it is there
(1,000 queries, 100 a class; the rest is learned from, hashed and searched). Both rankings hold the
same items: the first by Hamming distance, in its order (ties by row) and in the re-ranked one.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from sadih_dask import SADIH, search


def main() -> None:
    """Print MAP@k and precision@100 before and after, for each data set and code length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bits", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--anchors", type=int, default=1000)
    arguments = parser.parse_args()
    digits = load_digits()
    compare("digits", digits.data, digits.target, 30, arguments)
    cifar = Path(os.environ.get("SADIH_DATA", "."), "cifar10_gist512.npz")
    if cifar.exists():
        with np.load(cifar, allow_pickle=False) as file:
            features, labels = file["features"].astype(np.float32), file["labels"]
        compare("CIFAR-10 GIST", features, labels.astype(np.int64), 100, arguments)


def compare(
    name: str,
    features: np.ndarray,
    labels: np.ndarray,
    per_class: int,
    arguments: argparse.Namespace,
) -> None:
    """Hold queries out of every class, learn from the rest, search it with and without."""
    rng = np.random.default_rng(0)
    classes = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    asked = np.concatenate([rng.permutation(rows)[:per_class] for rows in classes])
    # Shuffled: files are often sorted by class, and ties by row would then favour the first.
    rest = rng.permutation(np.setdiff1d(np.arange(len(labels)), asked))
    k = min(arguments.first, len(rest))
    model = SADIH(anchors=min(arguments.anchors, len(rest)))
    for n_bits in arguments.bits:
        model.set_params(n_bits=n_bits)
        if n_bits == arguments.bits[0]:
            model.fit(features[rest], labels[rest])
        else:
            model.refit()
        database, queries = model.transform(features[rest]), model.transform(features[asked])
        scores = model.project(features[asked])
        before = search(database, queries, k)
        after = search(database, queries, k, projections=scores, candidates=k)
        found = labels[rest]
        relevant = np.array([np.sum(found == label) for label in labels[asked]])
        best = np.minimum(k, relevant)
        values = [quality(found[n.rows] == labels[asked, None], best) for n in (before, after)]
        gain = values[1][0] - values[0][0]
        error = gain.std() / np.sqrt(len(gain))
        print(
            f"{name:14} {n_bits:4} bits  MAP@{k} {values[0][0].mean():.4f} -> "
            f"{values[1][0].mean():.4f} ({gain.mean():+.4f} +- {error:.4f})  precision@100 "
            f"{values[0][1].mean():.4f} -> {values[1][1].mean():.4f}",
            flush=True,
        )


def quality(hits: np.ndarray, best: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """AP@k of each query, divided by the hits that it could have had, and precision@100."""
    precisions = np.cumsum(hits, axis=1) / np.arange(1, hits.shape[1] + 1)
    return (precisions * hits).sum(axis=1) / best, hits[:, :100].mean(axis=1)


if __name__ == "__main__":
    main()
