"""Training a store larger than memory may be: predicted and measured peak, and how time grows.

    python -m tests.benchmarks.bench_memory [--gib 8] [--features 512] [--anchors 1000] [--folder D]

Makes two synthetic stores, one with four times the rows of the other, trains each in a process of
its own and deletes them again. Peak is the most memory that process ever had resident; files in the
page cache are not part of it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask

from sadih_dask.ingest.synthetic import generate
from tests.benchmarks.table import Row, show

THREADS = 2
N_CLASSES = 100
LIMIT = 1.5 * 2**30
FIT = """
import json, re, sys, time
import dask
from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute import memory
url, anchors, threads = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
plans = []
real = memory.plan_scan
memory.plan_scan = lambda *shape: plans.append(real(*shape)) or plans[-1]
wall, cpu = time.perf_counter(), time.process_time()
with dask.config.set(scheduler="threads", num_workers=threads):
    SADIH(n_bits=64, anchors=anchors).fit(FeatureStore.open(url))
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
print(json.dumps({"predicted": plans[0].total, "peak": peak, "wall": wall, "cpu": cpu}))
"""


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Generate, train, print, delete."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=8.0, help="size of the larger store")
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--anchors", type=int, help="default: none, the features themselves")
    parser.add_argument("--folder", type=Path, help="where there is room for the stores")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        needed = 1.25 * arguments.gib * 2**30
        free = shutil.disk_usage(folder).free
        if free < 1.1 * needed:
            sys.exit(
                f"{folder} has {free / 2**30:.1f} GiB free, the stores take {needed / 2**30:.1f}; "
                "choose another --folder or a smaller --gib"
            )
        results = []
        for gib in (arguments.gib / 4, arguments.gib):
            url = Path(folder) / "store.zarr"
            results.append(train(url, gib, arguments.features, arguments.anchors))
            shutil.rmtree(url)
    small, large = results
    print(
        f"\n{'':10}{'rows':>12}{'GiB':>8}{'wall':>10}{'processor':>12}{'peak':>11}{'predicted':>12}"
    )
    for name, found in (("n", small), ("4 n", large)):
        print(
            f"{name:10}{found['rows']:>12}{found['gib']:>8.2f}{found['wall']:>8.1f} s"
            f"{found['cpu']:>10.1f} s{mib(found['peak'])}{mib(found['predicted']):>12}"
        )
    ratios = {key: large[key] / small[key] for key in ("wall", "cpu", "peak")}
    print(
        f"4 n / n: wall {ratios['wall']:.2f} x, processor {ratios['cpu']:.2f} x, "
        f"peak {ratios['peak']:.3f} x"
    )
    print(
        f"predicted / measured peak: {large['predicted'] / large['peak']:.2f} x; measured peak is "
        f"{'under' if large['peak'] < LIMIT else 'OVER'} {LIMIT / 2**30:.1f} GiB"
    )
    return [
        Row("fit, peak memory", "floor", "predicted", large["peak"] / large["predicted"], 1.0),
        Row("fit, peak memory of 4 n rows", "floor", "of n rows", ratios["peak"], 1.05),
        Row("fit, processor time of 4 n rows", "floor", "4 x that of n", ratios["cpu"] / 4, 1.05),
    ]


def mib(n_bytes: float) -> str:
    """Bytes in MiB, for a column."""
    return f"{n_bytes / 2**20:>7.0f} MiB"


def train(url: Path, gib: float, n_features: int, anchors: int | None) -> dict[str, Any]:
    """Generate a store, fit it in a process of its own, return what was measured."""
    n_rows = int(gib * 2**30 / (4 * n_features))
    start = time.perf_counter()
    with dask.config.set(scheduler="threads", num_workers=THREADS):
        generate(url, n_rows, n_features, N_CLASSES)
    seconds = time.perf_counter() - start
    print(f"made {n_rows} x {n_features} float32, {gib:.2f} GiB, in {seconds:.0f} s", flush=True)
    done = subprocess.run(
        [sys.executable, "-c", FIT, str(url), json.dumps(anchors), str(THREADS)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {**json.loads(done.stdout), "rows": n_rows, "gib": gib}


if __name__ == "__main__":
    show(main())
