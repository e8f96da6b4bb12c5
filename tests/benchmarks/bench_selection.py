"""A search of the paper's grid in one scan, beside a loop of fits.

    python -m tests.benchmarks.bench_selection [--rows 20000 --features 512 --classes 100]

Prints seconds of processor time (other programs on the machine do not count), and the ratio to a
loop: a scan of the training rows for every fold, and a solve for every combination on it. Solves
of the loop are measured on some combinations. Without options the rows are scikit-learn's digits.
"""

from __future__ import annotations

import argparse
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from sadih_dask import SADIH
from sadih_dask.model.cross_validation import SADIHCV
from sadih_dask.model.parameters import DEFAULT_GRID, candidates
from sadih_dask.model.solve import learn

LENGTHS = (16, 32, 64)
FOLDS = 5
MEASURED = 8
"""Every so many combinations one is solved alone."""


def data(rows: int | None, features: int, classes: int) -> tuple[Any, Any]:
    if rows is None:
        return load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    y = rng.integers(classes, size=rows)
    centres = rng.normal(scale=0.25, size=(classes, features))
    return (rng.normal(size=(rows, features)) + centres[y]).astype("float32"), y


def seconds(job: Any) -> tuple[float, float, Any]:
    """Processor time, time on the clock, result."""
    processor, clock = time.process_time(), time.perf_counter()
    result = job()
    return time.process_time() - processor, time.perf_counter() - clock, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--anchors", type=int, default=1000, help="0: none")
    said = parser.parse_args()
    X, y = data(said.rows, said.features, said.classes)
    model = SADIH(anchors=said.anchors or None)
    search = SADIHCV(model, n_bits=LENGTHS, n_folds=FOLDS)
    processor, clock, found = seconds(lambda: search.fit(X, y))
    n_solves = FOLDS * len(found.cv_results_["params"])
    print(f"{X.shape[0]:,} rows x {X.shape[1]}, anchors {model.anchors}: {n_solves} solves")
    print(f"search  {processor:8.1f} s processor, {clock:.1f} s on the clock")

    fitted = SADIH(**model.get_params()).set_params(max_iter=0, n_init=1)
    scan, _, _ = seconds(lambda: fitted.fit(X, y))
    tried = candidates(DEFAULT_GRID, LENGTHS)[::MEASURED]
    alone = [
        seconds(lambda p=p: learn(SimpleNamespace(**p), fitted.statistics_, None, 0))[0]
        for p in ({**model.get_params(), **one} for one in tried)
    ]
    loop = FOLDS * scan + n_solves * float(np.mean(alone))
    print(
        f"loop    {loop:8.1f} s processor ({FOLDS} scans of {scan:.1f} s and {n_solves} solves "
        f"of {np.mean(alone):.2f} s, {len(alone)} of them measured)"
    )
    print(f"ratio   {loop / processor:8.1f}")
    print(found.table().splitlines()[-1])


if __name__ == "__main__":
    main()
