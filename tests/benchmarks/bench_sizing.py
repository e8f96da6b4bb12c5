"""Numbers of deploy/SIZING.md: rates of this machine, memory, and clusters that are simulated.

    python -m tests.benchmarks.bench_sizing [-o FILE.json] [--rates FILE.json ...] [--only ...]

Measures rates (`sizing_rates`), runs real scans beside simulated ones (`sizing_validation`), then
simulates 10^7 to 10^9 rows of 512 features on up to 400 workers (`sizing_simulation`), and prints
tables in Markdown. With `--rates` the rates of earlier runs are taken, of each the best: on a busy
machine even processor seconds grow. The assumptions about an object store and a network are in
`sizing_model`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.benchmarks import sizing_rates, sizing_validation
from tests.benchmarks.sizing_cluster import Cluster, Store
from tests.benchmarks.sizing_graph import Task, encode_tasks, scan_tasks
from tests.benchmarks.sizing_model import CLOUD, HOUSE, NETWORK, Job, driver_seconds, work_of
from tests.benchmarks.sizing_simulation import simulate
from tests.benchmarks.sizing_tables import show_cases, show_deaths, show_rates, show_validation

ROWS = (10**7, 10**8, 10**9)
WORKERS = (1, 4, 16, 100, 400)
CORES = 2
"""Of a worker, and its threads by default, as in the deployments here."""
PARTS = ("validation", "simulation")


def main() -> None:
    """Measure, validate, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="where to write the numbers as JSON")
    parser.add_argument(
        "--rates", type=Path, nargs="+", help="earlier outputs, instead of measuring"
    )
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS, help="after the rates")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.rates:
            found = least([json.loads(file.read_text()) for file in arguments.rates])
        else:
            found = {"machine": machine(), **sizing_rates.measured(Path(folder))}
        if "validation" in arguments.only:
            found.pop("sustained", None)
            found |= {"validation": [*validated(found, Path(folder))], "load": os.getloadavg()[0]}
            found["sustained"] = sizing_validation.sustained(found["validation"])
            show_validation(found["validation"], found["load"])
        show_rates(found)
        if "simulation" in arguments.only:
            found["simulation"] = simulated(found)
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1))


def machine() -> dict[str, Any]:
    """Where and how busy."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")
    return {
        "processor": model or platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def least(runs: list[Any]) -> Any:
    """The least of each number in outputs of the same form; of anything else the first."""
    first = runs[0]
    if isinstance(first, dict):
        names = dict.fromkeys(name for run in runs for name in run)
        return {name: least([run[name] for run in runs if name in run]) for name in names}
    if isinstance(first, list):
        return [least(list(values)) for values in zip(*runs, strict=True)]
    return min(runs) if isinstance(first, int | float) else first


def validated(rates: dict[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    """Real runs and simulated ones."""
    yield from sizing_validation.threads(rates, folder)
    yield from sizing_validation.scans(rates, folder)
    yield from sizing_validation.sleeps(rates)


def simulated(rates: dict[str, Any]) -> list[dict[str, Any]]:
    """All sizes on all clusters; a table for each kind of work."""
    found = []
    for title, store, kind, anchors in (
        ("scan, no anchors, cloud store", CLOUD, "scan", 0),
        ("scan, 1,000 anchors, cloud store", CLOUD, "scan", 1000),
        ("scan, 3,000 anchors, cloud store", CLOUD, "scan", 3000),
        ("encode, 1,000 anchors, cloud store", CLOUD, "encode", 1000),
        ("scan, no anchors, store of 5 GB/s", HOUSE, "scan", 0),
    ):
        cases = [
            case(rates, Job(n_rows, anchors=anchors, kind=kind), cluster(rates, workers, store))
            for n_rows in ROWS
            for workers in WORKERS
        ]
        show_cases(title, cases)
        found += [{"title": title, **one} for one in cases]
    return found + more_threads(rates) + deaths(rates)


def cluster(rates: dict[str, Any], workers: int, store: Store) -> Cluster:
    """Workers as the deployments have them."""
    return Cluster(workers, CORES, CORES, store, NETWORK, rates["scheduling"]["scheduler"])


def case(rates: dict[str, Any], job: Job, place: Cluster) -> dict[str, Any]:
    """One job on one cluster."""
    threads = place.workers * place.threads
    tasks = scan_graph(job.n_rows, threads) if job.kind == "scan" else encode_graph(job.n_rows)
    return {
        "rows": job.n_rows,
        "workers": place.workers,
        "threads": place.threads,
        "cores": place.cores,
        "driver": driver_seconds(rates, job, place.store),
        "run": asdict(simulate(tasks, place, work_of(rates, job, remote=True))),
    }


@cache
def scan_graph(n_rows: int, threads: int) -> list[Task]:
    """The graph of a scan, built once."""
    return scan_tasks(n_rows, threads)


@cache
def encode_graph(n_rows: int) -> list[Task]:
    """The graph of an encoding, built once."""
    return encode_tasks(n_rows)


def more_threads(rates: dict[str, Any]) -> list[dict[str, Any]]:
    """Threads that wait for an object store leave the cores idle: more of them."""
    found = []
    for kind, anchors in (("scan", 0), ("scan", 1000), ("encode", 1000)):
        title = f"more threads than cores, {kind}, {anchors or 'no'} anchors, cloud store"
        cases = [
            case(
                rates,
                Job(n_rows, anchors=anchors, kind=kind),
                replace(cluster(rates, workers, CLOUD), threads=threads),
            )
            for n_rows, workers in ((10**8, 16), (10**9, 100))
            for threads in (2, 4, 8, 16)
        ]
        show_cases(title, cases)
        found += [{"title": title, **one} for one in cases]
    return found


def deaths(rates: dict[str, Any]) -> list[dict[str, Any]]:
    """Workers that die and come back after half a minute."""
    title = "deaths, scan of 10^9 rows, 1,000 anchors, cloud store, 100 workers"
    print(f"\n{title}")
    job, place = Job(10**9, anchors=1000), cluster(rates, 100, CLOUD)
    found = [
        {
            "title": title,
            "rate": rate,
            **case(rates, job, replace(place, deaths_per_hour=rate, seed=seed)),
        }
        for rate, seeds in ((0.0, 1), (0.1, 3), (1.0, 3))
        for seed in range(seeds)
    ]
    show_deaths(found)
    return found


if __name__ == "__main__":
    main()
