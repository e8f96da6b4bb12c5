"""How far an ingestion is from copying the file: bytes a second and processor time, beside `cp`.

    python -m tests.benchmarks.bench_ingest [--gib 2] [--features 512] [--rounds 3] [--folder DIR]

All take turns, each followed by a `sync`, and the best of several rounds counts. Processor time is
that of all threads and processes, but workers are there before the clock starts. The source is in
the page cache. On a machine that does other work as well, processor time is what to look at. A
virtual machine gives free memory back to its host within seconds, and to get it again takes longer
than the copy: before every step as much as it writes is taken and freed.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from sadih_dask.cluster import ClusterSettings, running
from sadih_dask.ingest import DataFiles, ingest
from sadih_dask.ingest.synthetic import Clouds
from tests.benchmarks.table import Row, show

WAYS: dict[str, dict[str, Any]] = {
    "1 thread": {"kind": "threads", "threads": 1},
    "2 threads": {"kind": "threads", "threads": 2},
    "1 process": {"kind": "processes", "workers": 1, "threads": 1},
    "2 processes": {"kind": "processes", "workers": 2, "threads": 1},
}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Make files, copy and ingest them in turns, print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compression", default="none")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        size = written(folder, given.features, int(given.gib * 2**30 / (4 * given.features)))
        best = measured(folder, given.rounds, given.compression)
    copied, copying = best.pop("cp + sync")
    print(f"{size / 2**30:.2f} GiB, {given.features} features, compression {given.compression}")
    print(
        f"{'cp + sync':12} {copied:6.2f} s {size / copied / 2**20:6.0f} MiB/s, {copying:.2f} s CPU"
    )
    for way, (wall, cpu) in best.items():
        print(
            f"{way:12} {wall:6.2f} s {size / wall / 2**20:6.0f} MiB/s, {cpu:.2f} s CPU: "
            f"{copied / wall:.2f} of cp's bytes/s, {cpu / copying:.2f} x its processor time"
        )
    return [
        Row(f"ingest, {way}", "floor", "cp + sync", cpu / copying, 2.0)
        for way, (_, cpu) in best.items()
    ]


def written(folder: Path, n_features: int, n_rows: int) -> int:
    """Write features and labels; return the bytes of both."""
    clouds, labels = Clouds(n_features, 100), np.empty(n_rows, np.int64)
    rows = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (n_rows, n_features))
    for first in range(0, n_rows, 1 << 14):
        here = slice(first, min(first + (1 << 14), n_rows))
        rows[here], labels[here] = clouds.rows(here.start, here.stop)
    np.save(folder / "y.npy", labels)
    np.save(folder / "few.npy", rows[:64])
    return sum((folder / name).stat().st_size for name in ("x.npy", "y.npy"))


def measured(folder: Path, rounds: int, compression: str) -> dict[str, tuple[float, float]]:
    """Return the least wall and processor seconds of `cp` and of each way."""
    files, target = DataFiles(folder / "x.npy", folder / "y.npy"), folder / "target"
    copy = ["cp", "--reflink=never", str(folder / "x.npy"), str(folder / "y.npy"), str(target)]
    least: dict[str, tuple[float, float]] = {}

    size = sum(path.stat().st_size for path in folder.glob("[xy].npy"))

    def take(way: str, step: Callable[[], object]) -> None:
        np.ones(size + (size >> 2), np.uint8)
        found = seconds(step)
        before = least.get(way, found)
        least[way] = min(before[0], found[0]), min(before[1], found[1])
        shutil.rmtree(target)

    for _ in range(rounds):
        target.mkdir()
        take("cp + sync", lambda: subprocess.run(copy, check=True))
        for way, settings in WAYS.items():
            with running(ClusterSettings(**settings)):
                ingest(DataFiles(folder / "few.npy"), target)  # workers import what they need
                shutil.rmtree(target)
                os.utime(folder / "x.npy")  # what is known of its bytes does not count
                take(way, lambda: ingest(files, target, compression=compression))
    return least


def seconds(step: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds of a step, with all processes below this one, and of a sync."""
    os.sync()
    start, before = time.perf_counter(), processor_seconds()
    step()
    os.sync()
    return time.perf_counter() - start, processor_seconds() - before


def processor_seconds() -> float:
    """Of this process, of children that are over, and of all below it that are not."""
    over = resource.getrusage(resource.RUSAGE_CHILDREN)
    alive = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = [process.cpu_times() for process in alive]
    return over.ru_utime + over.ru_stime + sum(one.user + one.system for one in found)


if __name__ == "__main__":
    show(main())
