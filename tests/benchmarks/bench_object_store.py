"""How busy two threads are that read from a distant object store, with and without reading ahead.

    python -m tests.benchmarks.bench_object_store [--rows 262144] [--features 512]
        [--anchors 0 1000] [--ahead 0 6] [--delay 0.03] [--rate 80e6]

An S3 server (moto) stands behind a proxy that waits before it answers and sends no more than so
many bytes a second over one connection. Client and server are two processes. A thread is *waiting*
while it has nothing to work on because a chunk is not there; the share of its time is printed, and
processor seconds of the client over those that two cores have meanwhile. The server takes its share
of the same two cores, and so does whatever else the machine does: run it on a quiet one, or first
in the queue (``nice -n -10``).
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import dask

from sadih_dask import SADIH, CodeStore, FeatureStore, search
from sadih_dask.ingest.synthetic import generate
from sadih_dask.model.scanning import scan_rows
from sadih_dask.stores import ahead, reader
from tests.support.proxy import proxy_to

THREADS = 2
N_CLASSES = 100
STORE = "s3://bucket/s"


def main() -> None:
    """Serve, let a client of its own process measure, print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=262_144)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--anchors", type=int, nargs="*", default=[0, 1000])
    parser.add_argument("--ahead", type=int, nargs="*", default=[0, ahead.MOST_CHUNKS])
    parser.add_argument("--delay", type=float, default=0.03)
    parser.add_argument("--rate", type=float, default=80e6)
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.client:
        client(said)
        return
    import moto.server
    import s3fs  # type: ignore[import-untyped]

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    with proxy_to("http://{}:{}".format(*server.get_host_and_port())) as proxy:
        keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
        os.environ.update(keys, AWS_ENDPOINT_URL=proxy.url, AWS_DEFAULT_REGION="us-east-1")
        s3fs.S3FileSystem().mkdir("bucket")
        generate(STORE, said.rows, said.features, N_CLASSES)
        proxy.rule = lambda _: time.sleep(said.delay)
        proxy.rate = said.rate
        words = [*sys.argv[1:], "--client"]
        subprocess.run([sys.executable, "-m", __spec__.name, *words], check=True)
    server.stop()


def client(said: argparse.Namespace) -> None:
    """Scan, encode and search with and without reading ahead."""
    dask.config.set(scheduler="threads", num_workers=THREADS)
    store = FeatureStore.open(STORE)
    X, y = (store.read(name, 0, 16_384) for name in ("features", "labels"))
    head = ("anchors", "ahead", "wall", "processor", "busy", "waiting")
    print(f"{'stage':10}" + "".join(f"{word:>11}" for word in head))
    for anchors in said.anchors:
        model = SADIH(anchors=anchors or None).fit(X, y)
        for depth in said.ahead:
            reader.depth_of = partial(_depth_of, depth)  # type: ignore[attr-defined]
            for stage, work in stages(model, store, f"s3://bucket/codes-{anchors}-{depth}").items():
                show(f"{stage:10}{anchors:>11}{depth:>11}", work)


def _depth_of(depth: int, chunk_bytes: int, most: int = ahead.MOST_CHUNKS) -> int:
    return min(depth, ahead.depth_of(chunk_bytes, most))


def stages(model: SADIH, store: FeatureStore, url: str) -> dict[str, Callable[[], Any]]:
    """What is done with the store."""
    return {
        "scan": lambda: scan_rows(model, store, None),
        "encode": lambda: model.encode(store, url),
        "search": lambda: search(CodeStore.open(url), store_queries(url), 100),
    }


def store_queries(url: str) -> Any:
    """Some codes to search for."""
    return CodeStore.open(url).read("codes", 0, 1000)


def show(name: str, work: Callable[[], Any]) -> None:
    """Run, and print how long threads have waited."""
    waited: dict[int, float] = {}
    take = ahead.ReadAhead.take

    def timed(self: ahead.ReadAhead, *given: Any) -> Any:
        begun = time.perf_counter()
        try:
            return take(self, *given)
        finally:
            here = threading.get_ident()
            waited[here] = waited.get(here, 0.0) + time.perf_counter() - begun

    ahead.ReadAhead.take = timed  # type: ignore[method-assign]
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    ahead.ReadAhead.take = take  # type: ignore[method-assign]
    waiting = sum(waited.values()) / (THREADS * wall)
    busy = cpu / THREADS / wall
    print(f"{name}{wall:>9.2f} s{cpu:>9.2f} s{busy:>11.0%}{waiting:>11.0%}", flush=True)


if __name__ == "__main__":
    main()
