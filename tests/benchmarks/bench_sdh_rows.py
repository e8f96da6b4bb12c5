"""SDH, SDHR and FSDH as published, a code for every row, beside codes that a class shares.

    python -m tests.benchmarks.bench_sdh_rows --data FOLDER [--bits 8 16 64] [--seeds 3]

CIFAR-10, 59,000 rows held in memory, 1,000 anchors. Rows begin with random codes of their own, and
five turns follow. Printed are, after each, the part of the rows whose code is that of most rows of
their class, and at the end mean average precision of the hashed rows; in the last line of a seed
that of class codes that are drawn at once, which is what `model.methods.regression` does.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg as la

from sadih_dask.model.methods.regression import SDH, _with_margin
from sadih_dask.retrieval.codes import pack
from tests.benchmarks.bench_paper import Array, Split, cifar, quality

NU, RIDGE, TURNS, SWEEPS = 1e-5, 1e-5, 5, 10


class Rows:
    """Standardised anchor features of the rows, and the regression of codes from them."""

    def __init__(self, split: Split) -> None:
        anchors: Any = SDH(n_bits=8).fit(split.X, split.Y).anchor_map_
        sides = (split.X, split.queries)
        self.rows, self.queries = (
            np.concatenate([anchors(side[k : k + 4096]) for k in range(0, len(side), 4096)])
            for side in sides
        )
        mean, scale = (f(self.rows, axis=0, dtype=np.float64) for f in (np.mean, np.std))
        self.rows, self.queries = ((s - mean) / scale for s in (self.rows, self.queries))
        gram = self.rows.T @ self.rows
        self.factor = la.cho_factor(gram + RIDGE * len(self.rows) * np.eye(len(gram)))

    def regress(self, B: Array) -> tuple[Array, Array]:
        return la.cho_solve(self.factor, self.rows.T @ B), B.mean(axis=0)


def bits_for(T: Array, B: Array, F: Array) -> Array:
    """Discrete cyclic coordinate descent over the bits of all rows."""
    W = la.solve(B.T @ B + np.eye(B.shape[1]), B.T @ T)
    Q, H, B = T @ W.T + NU * F, W @ W.T, B.copy()
    for _ in range(SWEEPS):
        for k in range(B.shape[1]):
            B[:, k] = np.where(Q[:, k] - B @ H[:, k] + B[:, k] * H[k, k] >= 0.0, 1.0, -1.0)
    return B


def step(method: str, Y: Array, B: Array, F: Array) -> Array:
    if method == "fsdh":
        W = la.solve(Y.T @ Y + np.eye(Y.shape[1]), Y.T @ B)
        return np.where(Y @ W + NU * F >= 0.0, 1.0, -1.0)
    T = Y
    if method == "sdhr":
        scores = B @ la.solve(B.T @ B + np.eye(B.shape[1]), B.T @ Y)
        T = np.array([_with_margin(s, own > 0) for s, own in zip(scores, Y, strict=True)])
    return bits_for(T, B, F)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("SADIH_DATA"))
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    split = next(cifar(options.data, 1))
    held, Y = Rows(split), np.eye(10)[split.Y]
    for n_bits in options.bits:
        for seed in range(options.seeds):
            rng = np.random.default_rng(seed)
            for method in ("sdh", "sdhr", "fsdh", "drawn at once"):
                B = np.random.default_rng(seed).choice([-1.0, 1.0], (len(Y), n_bits))
                if method == "drawn at once":
                    B = rng.choice([-1.0, 1.0], (10, n_bits))[split.Y]
                (P, mean), kept = held.regress(B), []
                for _ in range(0 if method == "drawn at once" else TURNS):
                    B = step(method, Y, B, held.rows @ P + mean)
                    P, mean = held.regress(B)
                    most = np.where(Y.T @ B >= 0.0, 1.0, -1.0)
                    kept.append(f"{(most[split.Y] == B).all(axis=1).mean():.3f}")
                codes = [pack(side @ P + mean) for side in (held.queries, held.rows)]
                found = quality(split, *codes, n_bits)
                print(n_bits, seed, method, *kept, f"MAP {found:.4f}", flush=True)


if __name__ == "__main__":
    main()
