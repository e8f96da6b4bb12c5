"""Time and memory beside other libraries that reduce the same features, each in its own process.

    python -m tests.benchmarks.bench_peers [--rows 200000] [--features 256] [--folder DIR]

None of them does the same job, so a ratio is a sense of scale and not a verdict; the last column
says what each one is. dask-ml and FAISS are optional: pip install 'sadih-dask[bench]'.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask

from sadih_dask.ingest.synthetic import generate
from tests.benchmarks.table import Row, show

BITS = 64
PRELUDE = """
import json, re, sys, time, warnings
warnings.simplefilter("ignore")
import dask, numpy as np
from sadih_dask.stores import FeatureStore
dask.config.set(scheduler="threads", num_workers=2)
store, bits = FeatureStore.open(sys.argv[1]), int(sys.argv[2])
def blocks():
    for start in range(0, store.n_rows, 8192):
        yield store.read("features", start, min(start + 8192, store.n_rows))
"""
FINISH = """
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
print(json.dumps({"wall": wall, "cpu": cpu, "peak": peak}))
"""
TIMER = "wall, cpu = time.perf_counter(), time.process_time()\n"

OWN = "sadih_dask SADIH"
WAYS = {
    OWN: (
        "from sadih_dask import SADIH",
        "SADIH(n_bits=bits, anchors=None).fit(store)",
        "out of core, supervised: codes of the labels and a hash function",
    ),
    "sadih_dask, 1000 anchors": (
        "from sadih_dask import SADIH",
        "SADIH(n_bits=bits, anchors=1000).fit(store)",
        "the same about a kernel map of 1000 features, the default",
    ),
    "dask-ml PCA": (
        "from dask_ml.decomposition import PCA",
        "PCA(n_components=bits, random_state=0).fit(store.to_dask())",
        "out of core in principle, unsupervised: no labels, no codes",
    ),
    "dask-ml IncrementalPCA": (
        "from dask_ml.decomposition import IncrementalPCA",
        "IncrementalPCA(n_components=bits).fit(store.to_dask())",
        "one block after the other, unsupervised: no labels, no codes",
    ),
    "scikit-learn IncrementalPCA": (
        "from sklearn.decomposition import IncrementalPCA",
        "pca = IncrementalPCA(n_components=bits)\nfor block in blocks(): pca.partial_fit(block)",
        "out of core in one process, unsupervised and approximate: no codes",
    ),
    "scikit-learn LDA": (
        "from sklearn.discriminant_analysis import LinearDiscriminantAnalysis as LDA",
        "LDA().fit(store.read('features'), store.read('labels'))",
        "in memory, supervised: at most classes - 1 real directions, no codes",
    ),
    "FAISS ITQ": (
        "import faiss\nfaiss.omp_set_num_threads(2)",
        "faiss.ITQTransform(store.n_features, bits, True).train(store.read('features'))",
        "in memory, unsupervised: codes that follow distances, not labels",
    ),
}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Make a store and run every way in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        with dask.config.set(scheduler="threads", num_workers=2):
            store = generate(
                Path(folder) / "s.zarr", arguments.rows, arguments.features, arguments.classes
            )
        size = store.n_rows * store.n_features * 4 / 2**20
        print(
            f"{store.n_rows} x {store.n_features} float32, {size:.0f} MiB, {BITS} bits or "
            f"components; best of {arguments.rounds}, peak includes Python and its libraries"
        )
        print(f"{'':30}{'wall':>9}{'processor':>12}{'peak':>10}")
        times: dict[str, float] = {}
        for name, (imports, call, what) in WAYS.items():
            found = [run(store.url, imports, call) for _ in range(arguments.rounds)]
            if isinstance(found[0], str):
                print(f"{name:30}{found[0]:>31}  {what}")
                continue
            best: dict[str, Any] = min(found, key=lambda result: result["wall"])
            times[name] = best["cpu"]
            print(
                f"{name:30}{best['wall']:>7.2f} s{best['cpu']:>10.2f} s"
                f"{best['peak'] / 2**20:>6.0f} MiB  {what}",
                flush=True,
            )
    own, peers = times.pop(OWN), [name for name in times if not name.startswith("sadih")]
    return [Row("fit, no anchors", "peer", name, own / times[name]) for name in peers]


def run(url: str, imports: str, call: str) -> Any:
    """Seconds and peak of one way, or why it does not work here."""
    script = f"{PRELUDE}\n{imports}\n{TIMER}{call}\n{FINISH}"
    done = subprocess.run(
        [sys.executable, "-c", script, url, str(BITS)], capture_output=True, text=True
    )
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:60]
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    show(main())
