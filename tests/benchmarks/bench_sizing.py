"""Rates of this machine, in the form that `sadih size --rates FILE` reads.

    python -m tests.benchmarks.bench_sizing -o rates.json

Processor seconds: they do not count what other programs take, so they hold on a busy machine too,
but for caches that are shared. What a disk takes is by the wall clock.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import dask
import numpy as np
import psutil
from dask.delayed import Delayed
from distributed.protocol.pickle import dumps

from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute.process import one_blas_thread
from sadih_dask.compute.tree import Tasks
from sadih_dask.ingest import DataFiles, ingest
from sadih_dask.ingest.synthetic import Clouds, generate
from sadih_dask.jobs.evaluate import Collection, measure
from sadih_dask.jobs.rates import BLOCK_ROWS, best, measure_rows
from sadih_dask.learning.labels import group_rows
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model.solve import learn
from sadih_dask.retrieval.histograms import hamming_histograms
from tests.support.processes import dask_processes

N_CLASSES, N_BITS = 100, 64
N_EMPTY_TASKS = 4000


def main() -> None:
    """Measure, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="the rates file")
    output = parser.parse_args().output
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder))
    output.write_text(json.dumps(found, indent=1) + "\n")


def measured(folder: Path) -> dict[str, Any]:
    """All rates."""
    rows = [
        one
        for n_features in (128, 512, 1024)
        for one in measure_rows(folder, n_features, (0, 1000, 3000), N_BITS)
    ]
    with one_blas_thread():
        found = {"solving": of_solving(), "comparing": of_comparing(), "merging": of_merging()}
        found["reading"] = of_reading(folder)
    return {
        "machine": machine(),
        "command": "python -m tests.benchmarks.bench_sizing -o rates.json",
        "rows": rows,
        **found,
        "judging": of_judging(),
        "ingesting": of_ingesting(folder),
        "objects": of_objects(),
        "tasks": of_tasks(),
    }


def machine() -> str:
    """Where and how busy."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")
    load = os.getloadavg()[0]
    return f"{model or platform.processor()}, {os.cpu_count()} cores, load {load:.0f}"


def of_solving() -> list[dict[str, float]]:
    """Seconds from statistics to a model of 64 bits."""
    found = []
    for columns in (512, 1000, 3000):
        for n_classes in (10, 100):
            statistics = _statistics(columns, n_classes, 0)
            model = SADIH(n_bits=N_BITS, anchors=None)
            start = time.process_time()
            learn(model, statistics, None, 0)
            seconds = time.process_time() - start
            found.append({"columns": columns, "classes": n_classes, "seconds": seconds})
    return found


def _statistics(columns: int, n_classes: int, seed: int) -> Statistics:
    features, labels = Clouds(columns, n_classes, seed=seed).rows(0, BLOCK_ROWS)
    return Statistics.of_block(features, labels, n_classes)


def of_comparing(n_queries: int = 1000, n_rows: int = 1 << 16) -> list[dict[str, float]]:
    """Seconds of a pair in the histograms of an evaluation."""
    rng = np.random.default_rng(0)
    found = []
    for n_bits in (16, 64, 128, 256):
        codes, others = (rng.bytes(n * n_bits // 8) for n in (n_queries, n_rows))
        packed = [np.frombuffer(one, np.uint8).reshape(-1, n_bits // 8) for one in (codes, others)]
        labels = [group_rows(rng.integers(N_CLASSES, size=len(one)), None) for one in packed]
        step = partial(
            hamming_histograms, packed[0], labels[0], packed[1], labels[1], n_bits, compiled=True
        )
        found.append({"bits": n_bits, "seconds": best(step) / (n_queries * n_rows)})
    return found


def of_merging() -> float:
    """Seconds of a byte of two partial statistics that are merged."""
    found = []
    for columns in (512, 1000, 3000):
        one, other = (_statistics(columns, N_CLASSES, seed) for seed in range(2))
        found.append(best(partial(one.merge, other)) / len(dumps(one)))
    return median(found)


def of_reading(folder: Path) -> dict[str, float]:
    """Seconds of a byte: checked, from the page cache; the same of zstd; and from a cold disk."""
    n_rows, found = 4 * BLOCK_ROWS, {}
    for name, compression in (("plain", "none"), ("zstd", "zstd")):
        store = generate(folder / name, n_rows, 512, N_CLASSES, compression=compression)
        out = np.empty((n_rows, 512), np.float32)
        found[name] = best(partial(store.read, "features", out=out)) / out.nbytes
        files = list(Path(store.url).glob("segments/*/features/c.*"))
        found["compressed"] = sum(file.stat().st_size for file in files) / out.nbytes
    found["disk"] = _cold(list(Path(folder, "plain").glob("segments/*/features/c.*")))
    return found


def _cold(files: list[Path]) -> float:
    """Seconds by the wall clock of a byte whose page is not in memory."""
    os.sync()
    size, seconds = 0, 0.0
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        size += len(os.read(descriptor, 1 << 30))
        seconds += time.perf_counter() - start
        os.close(descriptor)
    return seconds / size


def of_ingesting(folder: Path) -> dict[str, float]:
    """Processor seconds of a byte from a .npy file to a store on the disk, all threads together."""
    x, y = folder / "x.npy", folder / "y.npy"
    features, labels = Clouds(512, N_CLASSES).rows(0, 32 * BLOCK_ROWS)
    np.save(x, features)
    np.save(y, labels)
    found = {}
    for name, compression in (("plain", "none"), ("zstd", "zstd")):
        start = time.process_time()
        with dask.config.set(num_workers=1):
            ingest(DataFiles(x, y), folder / f"ingested-{name}", compression=compression)
        found[name] = (time.process_time() - start) / features.nbytes
    return found


def of_judging() -> list[dict[str, float]]:
    """What `evaluate` does with samples of the rows, in a process of its own."""
    found = []
    for n_features, anchors in ((128, 0), (512, 0), (128, 1000), (512, 1000), (1024, 1000)):
        context = get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_judge, args=(theirs, n_features, anchors))
        process.start()
        seconds, size = mine.recv()
        process.join()
        at = {"features": n_features, "anchors": anchors}
        found.append({**at, "seconds": seconds, "bytes": size})
    return found


def _judge(pipe: Connection[Any, Any], n_features: int, anchors: int) -> None:
    with tempfile.TemporaryDirectory() as folder, one_blas_thread():
        rows = generate(Path(folder, "rows"), 30_000, n_features, N_CLASSES)
        queries = generate(Path(folder, "queries"), 10_000, n_features, N_CLASSES, part="queries")
        model = SADIH(n_bits=N_BITS, anchors=anchors or None).fit(rows)
        start = time.process_time()
        measure(model, Collection(queries, rows))
        seconds = time.process_time() - start
    # Not getrusage, whose peak is that of the process that started this one.
    peak = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]
    pipe.send((seconds, int(peak) << 10))


def of_objects() -> dict[str, float]:
    """Processor seconds that a client spends on an object of an S3 server, and on each byte."""
    with _s3_server() as address:
        import s3fs  # type: ignore[import-untyped]

        options = {"key": "k", "secret": "s", "endpoint_url": address}
        s3fs.S3FileSystem(**options).mkdir("sizing")
        X = np.zeros((8 * 512, 512), np.float32)
        store = FeatureStore.create(
            "s3://sizing/s",
            X,
            np.arange(len(X)) % 2,
            chunk_rows=512,
            compression="none",
            storage_options=options,
        )
        n_chunks = len(X) // 512
        small = _process_seconds(lambda: store.read("labels")) / n_chunks
        large = _process_seconds(lambda: store.read("features"))
    return {"request": small, "byte": max(0.0, large - n_chunks * small) / X.nbytes}


def _process_seconds(step: Callable[[], object], repeats: int = 3) -> float:
    """Least processor seconds of all threads of this process."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        step()
        found.append(time.process_time() - start)
    return min(found)


@contextmanager
def _s3_server() -> Iterator[str]:
    """A server in a process of its own, whose time is not the client's."""
    context = get_context("spawn")
    mine, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(theirs,))
    server.start()
    try:
        yield mine.recv()
    finally:
        mine.send("stop")
        server.join(timeout=30)
        server.kill()


def _serve(pipe: Connection[Any, Any]) -> None:
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    pipe.send("http://{}:{}".format(*server.get_host_and_port()))
    pipe.recv()
    server.stop()


def of_tasks(n_tasks: int = N_EMPTY_TASKS) -> dict[str, float]:
    """What a task that does nothing costs a real scheduler, and a worker.

    The graph is that of a scan with its functions taken out; the values that all tasks read stay.
    """
    graph, top = _empty_graph(n_tasks)
    with dask_processes(2, nanny=False) as cluster, cluster.client() as client:
        warm_up, end = _empty_graph(n_tasks // 10)
        client.compute(Delayed(end, warm_up)).result()
        scheduler = psutil.Process(cluster.scheduler.pid)
        workers = [psutil.Process(one.pid) for one in cluster.workers]
        before, busy = _used(scheduler), sum(map(_used, workers))
        empty = scheduler.memory_info().rss
        client.compute(Delayed(top, graph)).result()
        return {
            "scheduler": (_used(scheduler) - before) / len(graph),
            "worker": (sum(map(_used, workers)) - busy) / len(graph),
            "bytes": (scheduler.memory_info().rss - empty) / len(graph),
            "empty": float(empty),
        }


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _empty_graph(n_tasks: int) -> tuple[dict[Any, Any], str]:
    """Leaves and binary merges, as in a scan; and the key of the last."""
    tasks = Tasks("empty")
    rows = tasks.share(object, "rows")
    leaves = [tasks.add((k,), _nothing, rows, k, k + BLOCK_ROWS) for k in range(n_tasks // 2)]
    top = tasks.after("top", _nothing, tasks.fold(leaves, _nothing))
    return tasks.graph, top


def _nothing(*_: Any) -> None:
    """Do nothing."""


if __name__ == "__main__":
    main()
