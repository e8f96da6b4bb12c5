"""How far reading a store is from reading its bytes: raw `readinto`, this package, and zarr.

    python -m tests.benchmarks.bench_storage_read [--gib 1] [--features 512] [--folder DIR]

All read the same chunk files from the page cache, in turns; medians of several rounds.
"raw" is the floor: a loop of `readinto` into one buffer, unchecked. The ratio of processor seconds
(of all threads) is the one to look at on a machine that does other work as well.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sadih_dask.stores import FeatureStore
from tests.benchmarks.table import Row, measure, show


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Make a store, read it in every way, print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        store = make(Path(folder) / "s.zarr", arguments.gib, arguments.features)
        ways = {
            "raw readinto, one buffer": lambda: raw(store),
            "store.read(out=buffer)": lambda: lean(store, reuse=True),
            "store.read, new arrays": lambda: lean(store, reuse=False),
            "store.verify, 2 threads": lambda: store.verify(["features"], workers=2),
            "zarr, chunk by chunk": lambda: through_zarr(store),
        }
        times = measure(ways, arguments.rounds)
    size = store.n_rows * store.n_features * 4 / 2**30
    floor, own, *_, zarr = times.values()
    print(f"{size:.2f} GiB, {len(store.chunks)} chunks of {store.chunk_rows} x {store.n_features}")
    for name, (wall, cpu) in times.items():
        ratios = f"{wall / floor[0]:5.2f} x raw, {cpu / floor[1]:5.2f} x in processor seconds"
        print(f"{name:26} {wall:7.3f} s {size / wall:6.2f} GiB/s {ratios}")
    return [
        Row("read", "floor", "readinto, unchecked", own[1] / floor[1], 1.5),
        Row("read", "peer", "zarr", own[1] / zarr[1], 0.5),
    ]


def make(path: Path, gib: float, n_features: int) -> FeatureStore:
    """Write a float32 store of about `gib` GiB in whole chunks."""
    n_rows = int(gib * 2**30 / (4 * n_features))
    writer = FeatureStore.allocate(path, n_rows, n_features, label_dtype=None)
    rows = np.random.default_rng(0).standard_normal(
        (writer.block_rows, n_features), dtype=np.float32
    )
    for block in range(writer.n_blocks):
        start, stop = writer.rows_of(block)
        writer.write(start, rows[: stop - start])
    return writer.finalise()


def raw(store: FeatureStore) -> None:
    """Read the files and look at nothing."""
    # NumPy's buffers lie on huge pages and a bytearray does not: the floor deserves the same.
    buffer = np.empty(store.chunk_rows * store.n_features * 4 + 4, np.uint8)
    (component,) = store.components
    folder = Path(store.url, component)
    for chunk in range(len(store.chunks)):
        with (folder / f"c.{chunk}.0").open("rb", buffering=0) as file:
            file.readinto(buffer.data)


def lean(store: FeatureStore, *, reuse: bool) -> None:
    """Read checked blocks, into one buffer or into new arrays."""
    buffer = np.empty((store.chunk_rows, store.n_features), np.float32)
    for start in range(0, store.n_rows, store.chunk_rows):
        stop = min(store.n_rows, start + store.chunk_rows)
        store.read("features", start, stop, out=buffer[: stop - start] if reuse else None)


def through_zarr(store: FeatureStore) -> None:
    """Read the same blocks through zarr, which checks the chunks' own checksums only."""
    (component,) = store.components
    array = store.to_zarr()[component]
    for start in range(0, store.n_rows, store.chunk_rows):
        array[start : start + store.chunk_rows]


if __name__ == "__main__":
    show(main())
