"""How many requests a store behind S3 takes, and how many objects it has.

    python tests/benchmarks/bench_store_requests.py [--rows 1000000000] [--bits 64]

Requests of single calls are counted on a server of this machine, behind a proxy. Those of an
encode of many rows are computed from the layout; reading the features is not in them.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import moto.server
import numpy as np
import s3fs

from sadih_dask.stores import FeatureStore
from sadih_dask.stores.codes import CODE_CHUNK_BYTES
from sadih_dask.stores.layout import default_chunk_rows
from tests.support.proxy import Proxy, proxy_to

PAGE = 1000
"""Names that one answer to a listing holds."""
ROWS, WIDTH, CHUNK = 1000, 16, 100


def main() -> None:
    """Count and compute, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--bits", type=int, default=64)
    given = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        with proxy_to("http://{}:{}".format(*server.get_host_and_port())) as proxy:
            count(proxy)
    finally:
        server.stop()
    compute(given.rows, given.bits)


def count(proxy: Proxy) -> None:
    """Print the requests of each call on a small store."""
    options = proxy.options("k")
    s3fs.S3FileSystem(**options).mkdir("bucket")
    url = "s3://bucket/s"

    def table(first: int, last: int) -> dict[str, Any]:
        ids = np.arange(first, last)
        return {"features": np.ones((last - first, WIDTH), np.float32), "ids": ids}

    def create(url: str) -> FeatureStore:
        return FeatureStore.create(url, **table(0, ROWS), chunk_rows=CHUNK, storage_options=options)

    create("s3://bucket/other")  # the server is tried once in a process
    store = create(url)
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: FeatureStore.open(url, storage_options=options),
        "read a chunk": lambda: store.read("features", 0, CHUNK),
        "read the next chunk": lambda: store.read("features", CHUNK, 2 * CHUNK),
        "append, 1 chunk": lambda: store.append(**table(ROWS, ROWS + CHUNK)),
        "append, 10 chunks": lambda: store.append(**table(2 * ROWS, 3 * ROWS)),
        "append, small": lambda: store.append(**table(4000, 4010)),
        "append, small, to a small one": lambda: store.append(**table(4010, 4020)),
        "delete 2 ids of 2,120": lambda: store.delete([1, 4000]),
        "compact": lambda: store.compact(),
    }
    print("| call | requests | of these |\n|---|---:|---|")
    for name, call in calls.items():
        proxy.seen.clear()
        call()
        kinds = Counter(
            "LIST" if "list-type" in request.path else request.method for request in proxy.seen
        )
        told = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
        print(f"| {name} | {len(proxy.seen)} | {told} |")


def compute(n_rows: int, n_bits: int) -> None:
    """Print objects and requests of an encode, with integer ids."""
    row_bytes = {"codes": -(-n_bits // 8), "ids": 8}
    chunk_rows = default_chunk_rows(max(row_bytes.values()), CODE_CHUNK_BYTES)
    n_chunks = -(-n_rows // chunk_rows)
    documents = 2 + len(row_bytes)  # of the segments, the segment and its arrays
    objects = n_chunks * len(row_bytes) + documents + 2  # the manifest, the root
    pages = len(row_bytes) * -(-(n_chunks + 1) // PAGE)
    lists = 2 * pages  # what is missing, before and after
    puts = objects + 1  # the root is replaced once
    print(f"\nAn encode of {n_rows:,} rows to {n_bits} bits, with ids, computed:")
    print(f"{n_chunks:,} chunks of {chunk_rows:,} rows an array: {objects:,} objects;")
    print(f"{puts:,} PUT, {lists} LIST, 4 to read the root; none for digests.")


if __name__ == "__main__":
    main()
