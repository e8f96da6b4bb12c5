"""All methods of the paper's Table 1 on its first data set, and on deep features of 100 classes.

    python -m tests.benchmarks.bench_table1 cifar --data FOLDER --work FOLDER [--splits 5]
    python -m tests.benchmarks.bench_table1 tiny --data FOLDER --work FOLDER --bits 16 64

Data and splits are those of `bench_paper.py`. Stores and every number are kept under --work, so
that a run that is interrupted goes on with the same command. Printed is Markdown: mean average
precision of every method at every length, mean and standard deviation over splits, and the paper's.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sadih_dask import FeatureStore
from sadih_dask.jobs.methods import compare_methods
from sadih_dask.model.methods import METHODS
from sadih_dask.model.parameters import CLASS_FOLDS
from sadih_dask.report.methods import Outcome
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
SHOWN = ("learned", "encoded", "fresh")


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


def table(splits: Sequence[Sequence[Outcome]], names: Sequence[str], bits: Sequence[int]) -> str:
    """Markdown: a line for each method and protocol, the paper's below."""
    lines = ["| method | MAP | " + " | ".join(f"{n} bits" for n in bits) + " | solve, s |"]
    lines.append("|---|---|" + "---|" * (len(bits) + 1))
    for place, name in enumerate(names):
        cells = [each[place * len(bits) : (place + 1) * len(bits)] for each in splits]
        cost = [cell[-1] for cell in cells]
        seconds = np.mean([one.seconds for one in cost])
        for protocol in SHOWN:
            row = []
            for k in range(len(bits)):
                found = [c[k].numbers[protocol]["MAP"] for c in cells if protocol in c[k].numbers]
                spread = f" ± {np.std(found):.3f}" if len(found) > 1 else ""
                row.append(f"{np.mean(found):.4f}{spread}" if found else "-")
            if any(cell != "-" for cell in row):
                last = f"{seconds:.1f}" if protocol == "encoded" else ""
                lines.append(f"| `{name}` | {protocol} | {' | '.join(row)} | {last} |")
        if name in PAPER:
            said = dict(zip(LENGTHS, PAPER[name], strict=True))
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
    options = parser.parse_args()
    if options.data is None:
        parser.error("give the folder with the data: --data FOLDER, or $SADIH_DATA")
    splits = {"cifar": cifar, "tiny": tiny}[options.data_set](options.data, options.splits)
    found = []
    for k, split in enumerate(splits):
        folder = options.work / f"{options.data_set}{k}"
        folder.mkdir(parents=True, exist_ok=True)
        found.append(measure(folder, split, options.methods, options.bits, 0 if k else CLASS_FOLDS))
    print(f"\n{len(found)} splits\n")
    print(table(found, options.methods, options.bits))


if __name__ == "__main__":
    main()
