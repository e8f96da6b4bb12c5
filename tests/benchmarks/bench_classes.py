"""What many classes cost and keep: a solve of 100 to 100,000 classes, 1,000 features.

    python -m tests.benchmarks.bench_classes [--classes 100 1000 2000 20000] [--bits 32]

Normal rows about normal class means, without anchors. Solve: processor seconds from statistics to
hash function, and per class in terms of the first line's; memory beyond what the statistics take,
in multiples of them. Quality: mean average precision of rows that were not learned from, looked up
among each other, beside the plain classifier (`ClassCodes`): linear discriminant analysis and a
random code for each class. 100,000 classes take 10 GiB.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sadih_dask import SADIH
from sadih_dask.learning.encoders import HashFunction
from sadih_dask.learning.statistics import Statistics, merge_in_order
from sadih_dask.model.methods.classifier import ClassCodes
from sadih_dask.model.scanning import Scanned
from sadih_dask.model.solve import learn
from sadih_dask.retrieval.codes import pack
from tests.benchmarks.bench_robustness import quality

FEATURES = 1000
NOISE = 4.0
FRESH = 2000
BLOCK = 8192
Array = NDArray[Any]


def blocks(means: Array, per_class: int, rng: np.random.Generator) -> Iterator[Statistics]:
    """Statistics of rows about the class means."""
    y = rng.permutation(np.repeat(np.arange(len(means)), per_class))
    for start in range(0, len(y), BLOCK):
        part = y[start : start + BLOCK]
        yield Statistics.of_block(rows_about(means[part], rng), part, len(means))


def rows_about(means: Array, rng: np.random.Generator) -> Array:
    return means + np.float32(NOISE) * rng.standard_normal(means.shape, np.float32)


def judge(function: HashFunction, rows: Array, y: Array) -> float:
    """Fresh rows among each other; a third are queries."""
    codes, third = pack(function.project(rows)), len(rows) // 3
    return quality(codes[:third], y[:third], codes[third:], y[third:])


def measure(n_classes: int, n_bits: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    means = rng.standard_normal((n_classes, FEATURES), np.float32)
    per_class = 20 if n_classes <= 2000 else 4
    statistics = merge_in_order(blocks(means, per_class, rng), overwrite=True)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    began = time.process_time()
    solution, function = learn(SADIH(n_bits, anchors=None), statistics, None, 0)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    some = rng.integers(0, min(n_classes, FRESH // 8), FRESH)  # a few rows of each of some classes
    rows = rows_about(means[some], rng)
    scanned = Scanned(statistics, np.arange(n_classes), False, None, 0)
    plain = ClassCodes(n_bits)._solve(scanned).hash_function
    found = solution.state.B.T > 0
    return {
        "seconds": seconds,
        "memory": max(0, peak - held) / (statistics.sums.nbytes + statistics.gram.nbytes),
        "peak": peak / 2**20,
        "distinct": len(np.unique(np.packbits(found, axis=1), axis=0)),
        "fresh": judge(function, rows, some),
        "classifier": judge(plain, rows, some),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 1000, 2000, 20_000])
    parser.add_argument("--bits", type=int, default=32)
    options = parser.parse_args()
    print(f"{options.bits} bits, {FEATURES} features")
    first: tuple[int, float] | None = None
    for n_classes in options.classes:
        found = measure(n_classes, options.bits)
        first = first or (n_classes, found["seconds"])
        linear = found["seconds"] / first[1] / (n_classes / first[0])
        all_distinct = found["distinct"] == min(n_classes, 2**options.bits)
        met = linear <= 1.5 and all_distinct and found["fresh"] >= found["classifier"] - 0.01
        print(
            f"{n_classes:>7,} classes: {found['seconds']:6.1f} s, {linear:5.2f} of linear, "
            f"{found['memory']:4.1f} x statistics, {found['peak']:,.0f} MiB at the peak, "
            f"{found['distinct']:,} codes, "
            f"fresh {found['fresh']:.3f}, classifier {found['classifier']:.3f}: "
            f"{'met' if met else 'NOT MET'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
