"""Which defaults retrieve best, on validation rows of real data sets.

    python tests/benchmarks/bench_defaults.py [--data FOLDER] [--splits 3] [--bits 16 64]

Validation rows are held out of the training rows; nothing here ever looks at test queries. Digits
come with scikit-learn; Fashion-MNIST is read from Debian's package dataset-fashion-mnist; CIFAR-10
GIST and Tiny-ImageNet features are read from FOLDER (or $SADIH_DATA) where they exist. Every row
changes one parameter of the default estimator. The numbers are mean average precision, the database
carrying its learned codes, averaged over splits.
"""

from __future__ import annotations

import argparse
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedShuffleSplit

from sadih_dask import SADIH

FASHION = Path("/usr/share/datasets/fashion-mnist")
Data = tuple[NDArray[Any], NDArray[Any]]

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("default", {}),
    ("loss=l1", {"loss": "l1"}),
    ("start=random", {"start": "random"}),
    ("encoder=ridge", {"encoder": "ridge"}),
    ("encoder=posterior", {"encoder": "posterior"}),
    ("encoder=orthogonal", {"encoder": "orthogonal"}),
    ("encoder=lemma", {"encoder": "lemma"}),
    ("solver=paper", {"solver": "paper"}),
    (
        "solver=paper, encoder=lemma, start=random",
        {"solver": "paper", "encoder": "lemma", "start": "random"},
    ),
    ("max_iter=0 (starting codes)", {"max_iter": 0}),
    ("alpha=beta=1", {"alpha": 1.0, "beta": 1.0}),
    ("n_init=1", {"n_init": 1}),
    ("n_init=24", {"n_init": 24}),
    ("ridge=1e-3", {"ridge": 1e-3}),
    ("ridge=1e-7", {"ridge": 1e-7}),
    ("anchors=None, encoder=ridge", {"anchors": None, "encoder": "ridge"}),
    ("anchors=3000, encoder=ridge", {"anchors": 3000, "encoder": "ridge"}),
]
RESCAN = {"anchors"}


def data_sets(folder: Path | None) -> Iterator[tuple[str, Data]]:
    digits = load_digits()
    yield "digits", (digits.data.astype(np.float32), digits.target)
    if (found := fashion()) is not None:
        yield "fashion", found
    if folder is not None and (path := folder / "cifar10_gist512.npz").exists():
        with np.load(path) as file:
            yield "cifar-gist", (file["features"].astype(np.float32), file["labels"].astype(int))
    if folder is not None and (path := folder / "tiny_imagenet100_effnet1280.npz").exists():
        with np.load(path) as file:
            train = ~file["is_query"].astype(bool)
            features = file["features_u8"][train].astype(np.float32) * file["scale"]
            yield "tiny-imagenet", (features.astype(np.float32), file["labels"][train].astype(int))


def fashion() -> Data | None:
    found = sorted(FASHION.rglob("train-*-ubyte.gz")) if FASHION.exists() else []
    if len(found) != 2:
        return None
    images, labels = (gzip.decompress(path.read_bytes()) for path in found)
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 784)
    return pixels.astype(np.float32), np.frombuffer(labels, np.uint8, offset=8).astype(int)


def measure(data: Data, bits: list[int], splits: int) -> dict[str, list[float]]:
    """Mean validation MAP of every variant at every length; one scan serves most of them."""
    features, labels = data
    n_queries = min(2000, len(labels) // 5)
    scores: dict[str, list[list[float]]] = {name: [] for name, _ in VARIANTS}
    for seed in range(splits):
        splitter = StratifiedShuffleSplit(1, test_size=n_queries, random_state=seed)
        train, held = next(splitter.split(features, labels))
        base = SADIH(random_state=seed).fit(features[train], labels[train])
        for name, changes in VARIANTS:
            model = base
            if RESCAN & set(changes):
                model = SADIH(random_state=seed, **changes).fit(features[train], labels[train])
            before = model.get_params()
            row = []
            for n_bits in bits:
                model.set_params(n_bits=n_bits, **changes).refit()
                row.append(model.score(features[held], labels[held]))
            model.set_params(**before)
            scores[name].append(row)
    return {name: list(np.mean(rows, axis=0)) for name, rows in scores.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("SADIH_DATA"))
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 16, 64])
    options = parser.parse_args()
    folder = None if options.data is None else Path(options.data)
    for name, data in data_sets(folder):
        print(f"\n{name}: {data[0].shape[0]} rows x {data[0].shape[1]}, {options.splits} splits")
        print(f"{'':44}" + "".join(f"{b:>8}" for b in options.bits), flush=True)
        for variant, row in measure(data, options.bits, options.splits).items():
            print(f"{variant:44}" + "".join(f"{value:8.4f}" for value in row), flush=True)


if __name__ == "__main__":
    main()
