"""How far the scan is from a bare loop over the same bytes, and where the difference goes.

    python -m tests.benchmarks.bench_scan [--rows 600000] [--features 512 1024] [--rounds 7]

"floor" is two plain threads that read the chunk files with `readinto`, add up groups with a SciPy
CSR product and form one float32 `X.T @ X` a block: no checksum, no centring, sums in float32, so it
is what the hardware allows and not a usable result. All ways take turns on the same files in the
page cache. On a machine that does other work too, look at the ratio of processor seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import numpy as np
import scipy.sparse as sp

from sadih_dask.compute.process import one_blas_thread
from sadih_dask.compute.reduction import Reduction
from sadih_dask.compute.rows import StoreRows
from sadih_dask.compute.scan import scan
from sadih_dask.ingest.synthetic import generate
from sadih_dask.learning import statistics as centring
from sadih_dask.learning.labels import group_rows
from sadih_dask.learning.statistics import Statistics
from sadih_dask.stores import FeatureStore
from tests.benchmarks.table import Row, measure, show

THREADS = 2
N_CLASSES = 100
BLOCK_ROWS = 8192


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Make stores, run every way, print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--features", type=int, nargs="*", default=[512, 1024])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args(argv)
    rows = []
    for n_features in arguments.features:
        with (
            tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
            dask.config.set(scheduler="threads", num_workers=THREADS),
        ):
            store = generate(Path(folder) / "s.zarr", arguments.rows, n_features, N_CLASSES)
            rows.append(report(store, arguments.rounds))
    return rows


def report(store: FeatureStore, rounds: int) -> Row:
    """Print one table of ratios and one of the parts of a block."""
    rows, reduction = StoreRows.of(store), Reduction(BLOCK_ROWS, N_CLASSES, None)
    labels = store.read("labels")
    times = measure(
        {
            "floor": lambda: floor(store, labels),
            "raw read alone": lambda: raw(store),
            "checked read alone": lambda: checked(store),
            "scan": lambda: scan(rows, reduction),
        },
        rounds,
    )
    size = store.n_rows * store.n_features * 4 / 2**30
    print(
        f"\n{store.n_rows} x {store.n_features} float32, {size:.2f} GiB, "
        f"{len(store.chunks)} chunks; "
        f"blocks of {BLOCK_ROWS} rows, {THREADS} threads, medians of {rounds} rounds in turns"
    )
    print(f"{'':22}{'wall':>10}{'GiB/s':>8}{'x floor':>9}{'processor':>12}{'x floor':>9}")
    base = times["floor"]
    for name, (wall, cpu) in times.items():
        print(
            f"{name:22}{wall:>8.3f} s{size / wall:>8.2f}{wall / base[0]:>9.3f}"
            f"{cpu:>10.3f} s{cpu / base[1]:>9.3f}"
        )
    raw_wall, raw_cpu = times["raw read alone"]
    wall, cpu = times["scan"]
    print(f"scan against the raw read: {wall / raw_wall:.1f} x, processor {cpu / raw_cpu:.1f} x")
    print("one block, milliseconds of one thread, best of many:")
    for name, seconds in parts_of_a_block(store):
        print(f"  {name:48}{1e3 * seconds:>8.2f}")
    stage = f"scan, {store.n_features} features"
    return Row(stage, "floor", "read, sums and Gram matrix, unchecked", cpu / base[1], 1.2)


def chunk_files(store: FeatureStore) -> list[Path]:
    """The files of the features, in order."""
    (component,) = store.components
    return [Path(store.url, component, f"c.{chunk}.0") for chunk in range(len(store.chunks))]


def raw(store: FeatureStore) -> None:
    """Read the bytes in two threads and look at nothing."""
    files = chunk_files(store)

    def read(first: int) -> None:
        buffer = np.empty(store.chunk_rows * store.n_features * 4, np.uint8)
        for path in files[first::THREADS]:
            with path.open("rb", buffering=0) as file:
                file.readinto(buffer.data)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(read, range(THREADS)))


def checked(store: FeatureStore) -> None:
    """Read the rows with every checksum and digest compared."""

    def read(first: int) -> None:
        buffer = np.empty((store.chunk_rows, store.n_features), np.float32)
        for start in range(first * store.chunk_rows, store.n_rows, THREADS * store.chunk_rows):
            stop = min(start + store.chunk_rows, store.n_rows)
            store.read("features", start, stop, out=buffer[: stop - start])

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(read, range(THREADS)))


def floor(store: FeatureStore, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Group sums and Gram matrix with nothing around them."""
    files, d, size = chunk_files(store), store.n_features, store.chunk_rows
    chunks_per_block = BLOCK_ROWS // size

    def work(first: int) -> tuple[np.ndarray, np.ndarray]:
        buffer = np.empty((BLOCK_ROWS, d), np.float32)
        ones = np.ones(BLOCK_ROWS, np.float32)
        sums, gram = np.zeros((N_CLASSES, d)), np.zeros((d, d))
        for start in range(first * BLOCK_ROWS, store.n_rows, THREADS * BLOCK_ROWS):
            chunk = start // size
            for k, path in enumerate(files[chunk : chunk + chunks_per_block]):
                with path.open("rb", buffering=0) as file:
                    file.readinto(buffer[k * size : (k + 1) * size].reshape(-1).view(np.uint8).data)
            ids = labels[start : start + BLOCK_ROWS]
            k = len(ids)
            members = sp.csr_array((ones[:k], ids, np.arange(k + 1)), shape=(k, N_CLASSES)).T
            x = buffer[:k]
            sums += members @ x
            gram += x.T @ x
        return sums, gram

    with one_blas_thread(), ThreadPoolExecutor(THREADS) as pool:
        (sums, gram), (more_sums, more_gram) = pool.map(work, range(THREADS))
    return sums + more_sums, gram + more_gram


def parts_of_a_block(store: FeatureStore) -> Iterator[tuple[str, float]]:
    """Seconds of the steps of one block, each by itself."""
    size, d = BLOCK_ROWS, store.n_features
    paths = chunk_files(store)[: max(1, size // store.chunk_rows)]
    x, labels = store.read("features", 0, size), store.read("labels", 0, size)
    y, buffer, raw_buffer = x.copy(), x.copy(), np.empty(x.nbytes // len(paths), np.uint8)
    _, ids = group_rows(labels, N_CLASSES)
    shift = x.mean(axis=0)
    ones = np.ones(size, np.float32)
    double = np.empty((d, d))
    one, other = (Statistics.of_block(x, labels, N_CLASSES) for _ in range(2))

    def readinto() -> None:
        for path in paths:
            with path.open("rb", buffering=0) as file:
                file.readinto(raw_buffer.data)

    def csr() -> None:
        _ = sp.csr_array((ones, ids, np.arange(size + 1)), shape=(size, N_CLASSES)).T @ x

    steps: dict[str, Callable[[], object]] = {
        "floor: readinto": readinto,
        "floor: float32 group sums": csr,
        "both: X.T @ X": lambda: x.T @ x,
        "both: add it into float64": lambda: np.add(double, x[:d, :d], out=double),
        "scan: read, checksum and digest": lambda: store.read("features", 0, size, out=buffer),
        "scan: label groups": lambda: group_rows(labels, N_CLASSES),
        "scan: choice of a shift": lambda: centring.choose_shift(x, x.dtype),
        "scan: float64 group sums": lambda: centring.sums_by_group(x, ids, N_CLASSES),
        "scan: all statistics of a block": lambda: Statistics.of_block(
            y, labels, N_CLASSES, overwrite=True
        ),
        "scan: shift of all columns, where they need it": lambda: centring.shift_rows(
            y, shift, overwrite=True
        ),
        "scan: merge in place": lambda: one.merge(other, overwrite=True),
        "scan: merge into new memory": lambda: one.merge(other),
    }
    with one_blas_thread():
        for name, step in steps.items():
            yield name, best(step)


def best(step: Callable[[], object], repeats: int = 15) -> float:
    """Least processor seconds of this thread."""
    found = []
    for _ in range(repeats):
        start = time.thread_time()
        step()
        found.append(time.thread_time() - start)
    return min(found)


if __name__ == "__main__":
    show(main())
