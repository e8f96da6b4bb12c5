"""How far encoding is from a bare loop over the same bytes, and how many rows need float64.

    python -m tests.benchmarks.bench_encode [--rows 200000] [--features 512 1024] [--rounds 5]

"floor" reads the chunk files with `readinto`, forms the same products in float32 (of the kernel
features too, where there are anchors), takes signs, packs and writes: no checksum, no vote, no
error bound. Both take turns on one thread; the ratio is one of processor seconds. The hash function
is learned from 20,000 of the rows, the best of its kinds ("auto") and by ridge regression.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import dask
import numpy as np

from sadih_dask import SADIH
from sadih_dask.compute.encode import HashRows, write_codes
from sadih_dask.compute.process import one_blas_thread
from sadih_dask.ingest.synthetic import generate
from sadih_dask.learning.encoders import HashFunction
from sadih_dask.learning.signs import signs
from sadih_dask.stores import FeatureStore
from tests.benchmarks.bench_scan import chunk_files
from tests.benchmarks.table import Row, measure, show

LEARNED_ROWS = 20_000
BLOCK_ROWS = 8192
N_CLASSES = 100


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Make stores, fit, encode in turns with the floor, print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--features", type=int, nargs="*", default=[512, 1024])
    parser.add_argument("--anchors", type=int, nargs="*", default=[0, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(argv)
    print(
        f"{'features':>9}{'anchors':>9}{'encoder':>9}{'processor':>12}{'x floor':>9}{'float64':>9}"
    )
    rows = []
    for n_features in arguments.features:
        with tempfile.TemporaryDirectory() as folder:
            store = generate(Path(folder) / "s.zarr", arguments.rows, n_features, N_CLASSES)
            X = store.read("features", 0, LEARNED_ROWS)
            y = store.read("labels", 0, LEARNED_ROWS)
            for anchors in arguments.anchors:
                model = SADIH(anchors=anchors or None).fit(X, y)
                for encoder in ("auto", "ridge"):
                    function = model.set_params(encoder=encoder).refit().hash_function_
                    cpu, ratio = compare(store, function, Path(folder), arguments.rounds)
                    part = float64_part(store, function)
                    what = f"{n_features:>9}{anchors:>9}{encoder:>9}"
                    print(f"{what}{cpu:>10.2f} s{ratio:>9.2f}{part:>9.2%}", flush=True)
                    stage = f"encode, {n_features} features, {anchors} anchors, {encoder}"
                    rows.append(
                        Row(stage, "floor", "read, float32 product, sign, write", ratio, 1.2)
                    )
    return rows


def compare(
    store: FeatureStore, function: HashFunction, folder: Path, rounds: int
) -> tuple[float, float]:
    """Processor seconds of encoding, and what they are to those of the floor."""

    def encode() -> None:
        write_codes(
            store,
            HashRows(function),
            folder / "codes.zarr",
            n_bits=function.n_bits,
            model="bench",
            block_rows=BLOCK_ROWS,
            overwrite=True,
        )

    with dask.config.set(scheduler="synchronous"), one_blas_thread():
        times = measure(
            {"floor": lambda: floor(store, function, folder / "codes"), "encode": encode}, rounds
        )
    return times["encode"][1], times["encode"][1] / times["floor"][1]


def floor(store: FeatureStore, function: HashFunction, path: Path) -> None:
    """Read, multiply in float32, take signs, pack, write; nothing else."""
    weights = function.projection.astype(np.float32)
    if function.opening is not None:
        weights = np.hstack([weights, function.opening.projection.astype(np.float32)])
    chunk = np.empty((store.chunk_rows, store.n_features), np.float32)
    anchors = function.anchor_map
    points = None
    if anchors is not None:
        points = (anchors.anchors.T / anchors.sigma**2).astype(np.float32)
    with path.open("wb") as out:
        for file in chunk_files(store):
            with file.open("rb", buffering=0) as source:
                source.readinto(chunk.reshape(-1).view(np.uint8).data)
            rows = chunk if points is None else np.exp(chunk @ points)
            bits = (rows @ weights)[:, -function.n_bits :] > 0
            out.write(np.packbits(bits, axis=1, bitorder="little").data)


def float64_part(store: FeatureStore, function: HashFunction) -> float:
    """Part of some rows that float32 leaves open."""
    rows = store.read("features", 0, min(store.n_rows, 4 * BLOCK_ROWS))
    return len(signs(function, rows)[1]) / len(rows)


if __name__ == "__main__":
    show(main())
