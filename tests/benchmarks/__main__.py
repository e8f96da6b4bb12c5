"""All that has a floor or a peer, in one run, and one table in the end.

    python -m tests.benchmarks [--only scan search]

Sizes are small, so that it takes some minutes; each benchmark runs alone with others.
"""

from __future__ import annotations

import argparse

from tests.benchmarks import (
    bench_dask,
    bench_encode,
    bench_ingest,
    bench_memory,
    bench_peers,
    bench_scan,
    bench_search,
    bench_storage_read,
)
from tests.benchmarks.table import Row, show

STAGES = {
    "read": (bench_storage_read.main, "--gib 0.5 --rounds 5"),
    "ingest": (bench_ingest.main, "--gib 1 --rounds 3"),
    "scan": (bench_scan.main, "--rows 600000 --features 512 1024 --rounds 3"),
    "dask": (bench_dask.main, "--rows 400000"),
    "memory": (bench_memory.main, "--gib 2"),
    "fit": (bench_peers.main, "--rows 100000"),
    "encode": (bench_encode.main, "--rows 100000 --features 512 1024 --rounds 3"),
    "search": (
        bench_search.main,
        "--rows 1e6 --bits 64 128 --queries 200 --rounds 3 --approximate",
    ),
}


def main() -> None:
    """Run every benchmark, or some, and print what they say together."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=STAGES, default=list(STAGES))
    rows: list[Row] = []
    for name in parser.parse_args().only:
        run, sizes = STAGES[name]
        print(f"\n== {name} {sizes}", flush=True)
        rows += run(sizes.split())
    show(rows)


if __name__ == "__main__":
    main()
