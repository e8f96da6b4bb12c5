"""All methods of the paper's Table 1 on its first data set, and on deep features of 100 classes.

    python -m tests.benchmarks.bench_table1 cifar --data FOLDER --work FOLDER [--splits 5]
    python -m tests.benchmarks.bench_table1 tiny --data FOLDER --work FOLDER --bits 16 64

Data and splits are those of `bench_paper.py`. Stores and every number are kept under --work, so
that a run that is interrupted goes on with the same command. Printed is Markdown: mean average
precision and precision@100 of every method at every length, mean and standard deviation over
splits, and the paper's. With --class-folds classes that were left out are looked up as well.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sadih_dask import FeatureStore
from sadih_dask.jobs.methods import compare_methods
from sadih_dask.model.methods import METHODS
from sadih_dask.report.methods import METRICS, Outcome
from sadih_dask.retrieval.evaluation import PROTOCOLS
from tests.benchmarks.bench_paper import LENGTHS, Split, cifar, tiny

PAPER = {
    "itq": (0.1528, 0.1552, 0.1642, 0.1700, 0.1719, 0.1757),
    "sgh": (0.1411, 0.1522, 0.1643, 0.1711, 0.1759, 0.1781),
    "cbe": (0.1134, 0.1168, 0.1335, 0.1454, 0.1552, 0.1564),
    "dsh": (0.1441, 0.1437, 0.1548, 0.1589, 0.1622, 0.1651),
    "mfh": (0.1428, 0.1483, 0.1543, 0.1605, 0.1649, 0.1638),
    "och": (0.0744, 0.1395, 0.2299, 0.3048, 0.3459, 0.3720),
    "itq-cca": (0.2736, 0.3157, 0.3361, 0.3519, 0.3588, 0.3552),
    "ksh": (0.2477, 0.2786, 0.3044, 0.3202, 0.3330, 0.3349),
    "lfh": (0.2845, 0.3849, 0.5013, 0.5891, 0.6144, 0.6109),
    "cosdish": (0.4990, 0.5573, 0.6263, 0.6155, 0.6399, 0.6551),
    "sdh": (0.2855, 0.3956, 0.4478, 0.4610, 0.4735, 0.4789),
    "sdhr": (0.2547, 0.3782, 0.4422, 0.4583, 0.4727, 0.4782),
    "fsdh": (0.3211, 0.4196, 0.4285, 0.4629, 0.4703, 0.4708),
    "fasth": (0.2965, 0.3679, 0.4358, 0.4715, 0.4917, 0.5018),
    "sadih": (0.4647, 0.6992, 0.7263, 0.7271, 0.7367, 0.7319),
    "sadih-l1": (0.6131, 0.6994, 0.7277, 0.7298, 0.7289, 0.7348),
}
"""Mean average precision of the paper's Table 1, CIFAR-10, by `LENGTHS`."""
PRECISION = {
    "itq": (0.2012, 0.2341, 0.2798, 0.3035, 0.3146, 0.3295),
    "sgh": (0.1995, 0.2487, 0.2866, 0.3085, 0.3280, 0.3329),
    "cbe": (0.1370, 0.1545, 0.1927, 0.2449, 0.2706, 0.2791),
    "dsh": (0.1649, 0.1986, 0.2358, 0.2498, 0.2680, 0.2738),
    "mfh": (0.1908, 0.2410, 0.2645, 0.2944, 0.3146, 0.3124),
    "och": (0.1530, 0.3276, 0.4895, 0.5994, 0.6489, 0.6765),
    "itq-cca": (0.3815, 0.4205, 0.4417, 0.4574, 0.4650, 0.4634),
    "ksh": (0.2511, 0.2849, 0.3068, 0.3164, 0.3283, 0.3298),
    "lfh": (0.2163, 0.2889, 0.4126, 0.5039, 0.5353, 0.5279),
    "cosdish": (0.4347, 0.4818, 0.5483, 0.5284, 0.5591, 0.5728),
    "sdh": (0.3633, 0.4920, 0.5298, 0.5419, 0.5527, 0.5543),
    "sdhr": (0.3221, 0.4783, 0.5306, 0.5478, 0.5503, 0.5561),
    "fsdh": (0.4170, 0.5046, 0.5231, 0.5399, 0.5433, 0.5449),
    "fasth": (0.3582, 0.4414, 0.5107, 0.5528, 0.5751, 0.5875),
    "sadih": (0.4204, 0.6404, 0.6682, 0.6609, 0.6703, 0.6666),
    "sadih-l1": (0.5487, 0.6472, 0.6647, 0.6673, 0.6621, 0.6697),
}
"""Precision of the first 100, likewise."""


def stores(folder: Path, split: Split) -> tuple[FeatureStore, FeatureStore]:
    """The rows of a split as stores; those that are there are taken."""
    sides = {"database": (split.X, split.Y), "queries": (split.queries, split.Y_queries)}
    for name, side in sides.items():
        if not (folder / f"{name}.zarr").exists():
            FeatureStore.create(folder / f"{name}.zarr", *side)
    return FeatureStore.open(folder / "database.zarr"), FeatureStore.open(folder / "queries.zarr")


def measure(
    folder: Path, split: Split, names: Sequence[str], bits: Sequence[int], class_folds: int
) -> list[Outcome]:
    """Every method at every length, in the order of names; what was measured before is read."""
    rows, found = stores(folder, split), {}
    for given in ({}, {"loss": "l1"}):
        asked = [name for name in names if (name == "sadih-l1") == bool(given)]
        outcomes = compare_methods(
            *rows,
            ["sadih"] if given else asked,
            bits,
            parameters=given,
            class_folds=class_folds,
            results=folder / ("l1" if given else "methods"),
            told=lambda one: print(one.method, one.n_bits, one.failure or one.numbers, flush=True),
        )
        for k, name in enumerate(asked):
            found[name] = outcomes[k * len(bits) : (k + 1) * len(bits)]
    return [one for name in names for one in found[name]]


def table(
    splits: Sequence[Sequence[Outcome]],
    names: Sequence[str],
    bits: Sequence[int],
    metric: str,
    paper: Mapping[str, Sequence[float]],
) -> str:
    """Markdown: a line for each method and protocol, the paper's below."""
    lines = [f"| method | {metric} | " + " | ".join(f"{n} bits" for n in bits) + " | solve, s |"]
    lines.append("|---|---|" + "---|" * (len(bits) + 1))
    for place, name in enumerate(names):
        cells = [each[place * len(bits) : (place + 1) * len(bits)] for each in splits]
        cost = [cell[-1] for cell in cells]
        seconds = np.mean([one.seconds for one in cost])
        for protocol in PROTOCOLS:
            row = []
            for k in range(len(bits)):
                found = [c[k].numbers[protocol][metric] for c in cells if protocol in c[k].numbers]
                spread = f" ± {np.std(found):.3f}" if len(found) > 1 else ""
                row.append(f"{np.mean(found):.4f}{spread}" if found else "-")
            if any(cell != "-" for cell in row):
                last = f"{seconds:.1f}" if protocol == "encoded" else ""
                lines.append(f"| `{name}` | {protocol} | {' | '.join(row)} | {last} |")
        if name in paper:
            said = dict(zip(LENGTHS, paper[name], strict=True))
            values = " | ".join(f"{said[n]:.4f}" if n in said else "-" for n in bits)
            lines.append(f"| | *paper* | {values} | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_set", choices=["cifar", "tiny"])
    parser.add_argument("--data", type=Path, default=os.environ.get("SADIH_DATA"), required=False)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--bits", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--methods", nargs="+", default=[*METHODS, "sadih-l1"])
    parser.add_argument("--class-folds", type=int, default=0)
    options = parser.parse_args()
    if options.data is None:
        parser.error("give the folder with the data: --data FOLDER, or $SADIH_DATA")
    splits = {"cifar": cifar, "tiny": tiny}[options.data_set](options.data, options.splits)
    found = []
    for k, split in enumerate(splits):
        folder = options.work / f"{options.data_set}{k}"
        folder.mkdir(parents=True, exist_ok=True)
        found.append(measure(folder, split, options.methods, options.bits, options.class_folds))
    print(f"\n{len(found)} splits\n")
    for metric, paper in zip(METRICS, (PAPER, PRECISION), strict=True):
        beside = paper if options.data_set == "cifar" else {}
        print(table(found, options.methods, options.bits, metric, beside), end="\n\n")


if __name__ == "__main__":
    main()
