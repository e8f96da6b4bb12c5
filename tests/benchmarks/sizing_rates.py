"""Rates of this machine that sizes are computed from: one thread, processor seconds.

Processor seconds do not count what other programs take, so they hold on a busy machine too, but for
caches that are shared. What a disk takes is by the wall clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from dask.delayed import Delayed
from distributed.protocol.pickle import dumps

from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute import scan
from sadih_dask.compute.blas import one_blas_thread
from sadih_dask.compute.encode import HashRows
from sadih_dask.compute.reduction import Reduction
from sadih_dask.compute.rows import StoreRows
from sadih_dask.compute.tree import Tasks
from sadih_dask.ingest import DataFiles, ingest
from sadih_dask.ingest.synthetic import Clouds, generate
from sadih_dask.learning.encoders import HashFunction
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model.solve import learn
from tests.benchmarks.sizing_graph import BLOCK_ROWS
from tests.support.processes import dask_processes

FEATURES = (128, 512, 1024)
ANCHORS = (0, 1000, 3000)
N_CLASSES, N_BITS = 100, 64
N_BLOCKS = 2
N_EMPTY_TASKS = 4000


def best(step: Callable[[], object], repeats: int = 3) -> float:
    """Least processor seconds of this thread, after one call that does not count."""
    step()
    found = []
    for _ in range(repeats):
        start = time.thread_time()
        step()
        found.append(time.thread_time() - start)
    return min(found)


def of_rows(folder: Path) -> list[dict[str, float]]:
    """Seconds of a row in a scan and in an encoding, the read from the page cache included."""
    found = []
    for d in FEATURES:
        n_rows = N_BLOCKS * BLOCK_ROWS
        store = generate(folder / f"rows-{d}", n_rows, d, N_CLASSES)
        rows = StoreRows.of(store)
        sample = store.read("features", 0, max(ANCHORS))
        for m in ANCHORS:
            rng = np.random.default_rng(0)
            anchors = AnchorMap.from_sample(sample, m, rng) if m else None
            projection = rng.standard_normal((m or d, N_BITS))
            encoder = HashRows(HashFunction(anchors, projection, np.zeros(N_BITS)))
            reduction = Reduction(BLOCK_ROWS, N_CLASSES, anchors)
            scanning = best(partial(scan._scan_range, rows, 0, n_rows, reduction))
            encoding = best(partial(_encode, rows, encoder))
            found.append(
                {"d": d, "anchors": m, "scan": scanning / n_rows, "encode": encoding / n_rows}
            )
    return found


def _encode(rows: StoreRows, encoder: HashRows) -> None:
    for row, block in rows.blocks("features", 0, rows.n_rows, BLOCK_ROWS):
        encoder(block, row)


def of_reading(folder: Path) -> dict[str, float]:
    """Seconds of a byte: checked, from the page cache; the same of zstd; and from a cold disk."""
    n_rows, found = 4 * BLOCK_ROWS, {}
    for name, compression in (("plain", "none"), ("zstd", "zstd")):
        store = generate(folder / name, n_rows, 512, N_CLASSES, compression=compression)
        out = np.empty((n_rows, 512), np.float32)
        found[name] = best(partial(store.read, "features", out=out)) / out.nbytes
        if name == "zstd":
            files = list(Path(store.url, "features").glob("c.*"))
            found["compressed"] = sum(file.stat().st_size for file in files) / out.nbytes
    found["cold"] = _cold(Path(folder, "plain", "features"))
    return found


def of_ingestion(folder: Path) -> dict[str, float]:
    """Seconds of a byte from a .npy file to a store, synced to the disk: processor and wall."""
    x, y = folder / "x.npy", folder / "y.npy"
    features, labels = Clouds(512, N_CLASSES).rows(0, 8 * BLOCK_ROWS)
    np.save(x, features)
    np.save(y, labels)
    processor, wall = time.process_time(), time.perf_counter()
    ingest(DataFiles(x, y), folder / "ingested")
    return {
        "processor": (time.process_time() - processor) / features.nbytes,
        "wall": (time.perf_counter() - wall) / features.nbytes,
    }


def _cold(folder: Path) -> float:
    """Seconds by the wall clock of a byte whose page is not in memory."""
    os.sync()
    size, seconds = 0, 0.0
    for file in folder.glob("c.*"):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        size += len(os.read(descriptor, 1 << 30))
        seconds += time.perf_counter() - start
        os.close(descriptor)
    return seconds / size


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
        small = _process_seconds(lambda: store.read("labels")) / len(store.chunks)
        large = _process_seconds(lambda: store.read("features"))
    return {"object": small, "byte": max(0.0, large - len(store.chunks) * small) / X.nbytes}


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


def of_merges() -> list[dict[str, float]]:
    """Seconds of a merge of two partial statistics into a third, and the bytes of one."""
    found = []
    for width in (*FEATURES, 1000, 3000):
        one, other = (_statistics(width, N_CLASSES, seed) for seed in range(2))
        found.append(
            {"width": width, "seconds": best(partial(one.merge, other)), "bytes": len(dumps(one))}
        )
    return found


def of_solving() -> list[dict[str, float]]:
    """Seconds from statistics to a model of 64 bits."""
    found = []
    for width in (512, 1000, 3000):
        for n_classes in (10, 100):
            statistics = _statistics(width, n_classes, 0)
            model = SADIH(n_bits=N_BITS, anchors=None)
            start = time.process_time()
            learn(model, statistics, None, 0)
            found.append(
                {"width": width, "classes": n_classes, "seconds": time.process_time() - start}
            )
    return found


def _statistics(width: int, n_classes: int, seed: int) -> Statistics:
    features, labels = Clouds(width, n_classes, seed=seed).rows(0, BLOCK_ROWS)
    with one_blas_thread():
        return Statistics.of_block(features, labels, n_classes)


def of_scheduling(n_tasks: int = N_EMPTY_TASKS) -> dict[str, float]:
    """Processor seconds of a real scheduler, and of a worker, for a task that does nothing.

    The graph is that of a scan with its functions taken out; the values that all tasks read stay.
    """
    graph, top = _empty_graph(n_tasks)
    with dask_processes(2, nanny=False) as cluster, cluster.client() as client:
        warm_up, end = _empty_graph(n_tasks // 10)
        client.compute(Delayed(end, warm_up)).result()
        watched = psutil.Process(cluster.scheduler.pid)
        workers = [psutil.Process(one.pid) for one in cluster.workers]
        before, busy = _used(watched), sum(map(_used, workers))
        start = time.perf_counter()
        client.compute(Delayed(top, graph)).result()
        wall = time.perf_counter() - start
        return {
            "tasks": len(graph),
            "scheduler": (_used(watched) - before) / len(graph),
            "worker": (sum(map(_used, workers)) - busy) / len(graph),
            "wall": wall / len(graph),
            "graph_bytes": len(dumps(graph)) / len(graph),
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


def measured(folder: Path) -> dict[str, Any]:
    """All rates."""
    with one_blas_thread():
        found: dict[str, Any] = {"rows": of_rows(folder), "reading": of_reading(folder)}
        found |= {"merges": of_merges(), "solving": of_solving()}
    found["ingestion"] = of_ingestion(folder)
    return {**found, "objects": of_objects(), "scheduling": of_scheduling()}
