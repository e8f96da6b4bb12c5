"""A real run at two sizes: what every stage takes, and how that grows.

    python -m tests.benchmarks.bench_scale [--rows 2500000 10000000] [--features 512]
        [--anchors none 1000] [--places threads processes s3] [--s3-rows ...] [--folder D]

Runs `sadih run pipelines/synthetic_large.toml` as a command, on two threads, on two processes of
one thread each, and with everything on an S3 server (moto, which keeps it in memory, so that case
has a tenth of the rows unless it is told; the server is no part of what is counted). Watches the
command and all its processes: wall and processor seconds of each stage, bytes that system calls
read from and wrote to files (not what goes through sockets to S3), and the most memory that each
process ever had resident, beside the plan that `fit` has made. Floors are the bare loops of
`bench_scan` (without anchors) and `bench_encode`, in processor seconds on some of the rows, times
the rest. `fit` contains what is done once, whatever the rows: anchors, solving. Growth is that of
processor seconds, over that of rows: 1 is linear, and a constant part makes it less. The stores are
removed again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import psutil
from dask.utils import parse_bytes

from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute.process import one_blas_thread
from sadih_dask.ingest.synthetic import generate
from sadih_dask.runs.directory import LOG, RUNS, RunDirectory
from tests.benchmarks import bench_encode, bench_scan

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("sadih")
STAGES = ("ingest", "fit", "encode", "evaluate")
FLOOR_ROWS = 131_072
LIMIT = 1.5 * 2**30
SMALL = 2**26
PLACES = {
    "threads": ("--set", "cluster.kind=threads", "--set", "cluster.threads=2"),
    "processes": ("--set", "cluster.kind=processes", "--set", "cluster.workers=2",
                  "--set", "cluster.threads=1"),
    "s3": ("--set", "cluster.kind=threads", "--set", "cluster.threads=2"),
}  # fmt: skip


@dataclass
class Used:
    """Processor seconds, bytes read, bytes written."""

    cpu: float = 0.0
    read: float = 0.0
    written: float = 0.0

    def __sub__(self, other: Used) -> Used:
        return Used(self.cpu - other.cpu, self.read - other.read, self.written - other.written)


@dataclass
class Watch:
    """A command and its processes, looked at again and again.

    The processor time of a process that has ended is remembered; the bytes that it moved are among
    those of its parent from then on.
    """

    process: psutil.Process
    cpu: dict[int, float] = field(default_factory=dict)
    read: int = 0
    written: int = 0
    peaks: dict[int, int] = field(default_factory=dict)

    def look(self) -> Used:
        """Everything that was used so far."""
        try:
            found = [self.process, *self.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            found = []
        read = written = 0
        for one in found:
            try:
                times, io = one.cpu_times(), one.io_counters()
                status = Path(f"/proc/{one.pid}/status").read_text()
            except (psutil.Error, OSError):
                continue
            self.cpu[one.pid] = times.user + times.system
            read, written = read + io.read_chars, written + io.write_chars
            if high := re.search(r"VmHWM:\s*(\d+) kB", status):
                self.peaks[one.pid] = max(self.peaks.get(one.pid, 0), int(high[1]) * 1024)
        self.read, self.written = max(self.read, read), max(self.written, written)
        return Used(sum(self.cpu.values()), self.read, self.written)

    def high(self) -> list[int]:
        """The most memory of each process so far; small ones, such as a resource tracker, not."""
        return sorted((peak for peak in self.peaks.values() if peak > SMALL), reverse=True)


@dataclass
class Outcome:
    """One run by stages; peaks of its processes, also up to the end of `fit`, and its plan."""

    rows: int
    wall: dict[str, float]
    used: dict[str, Used]
    peaks: list[int]
    learning: list[int]
    plan: int


def run(words: list[str], directory: str, rows: int) -> Outcome:
    """Run the pipeline, and watch it."""
    command = [COMMAND, "run", ROOT / "pipelines" / "synthetic_large.toml", "--json", *words]
    given = ["--set", f"run.directory={directory}", "--set", f"source.rows={rows}"]
    process = subprocess.Popen(
        [*command, *given, "--set", "report.enabled=false"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watch, done = Watch(psutil.Process(process.pid)), threading.Event()
    marks: list[tuple[str, Used, list[int]]] = []

    def keep_looking() -> None:
        while not done.wait(0.1):
            watch.look()

    looker = threading.Thread(target=keep_looking)
    looker.start()
    said = []
    for line in process.stderr or ():
        said.append(line)
        if begun := re.match(r"\[\d+/\d+\] (\w+)", line):
            marks.append((begun[1], watch.look(), watch.high()))
    out = process.stdout.read() if process.stdout else ""
    marks.append(("", watch.look(), watch.high()))
    done.set()
    looker.join()
    if process.wait():
        sys.exit("".join(said))
    record = json.loads(out)
    wall = {one["name"]: one["seconds"] for one in record["stages"]}
    used = {name: after - before for (name, before, _), (_, after, _) in pairwise(marks)}
    learning = next(peaks for (name, _, _), (_, _, peaks) in pairwise(marks) if name == "fit")
    log = RunDirectory(directory).files.read(f"{RUNS}/{record['id']}/{LOG}", 1 << 24).decode()
    plan = re.search(r"predicted peak ([\d.]+ \w+) a process", log)
    return Outcome(rows, wall, used, watch.high(), learning, parse_bytes(plan[1]) if plan else 0)


@contextmanager
def s3(folder: Path) -> Iterator[str]:
    """An S3 server in a process of its own, and the URL of a bucket."""
    moto = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    log = (folder / "moto.log").open("w+")
    server = subprocess.Popen(moto, stdout=log, stderr=log)
    try:
        while not (
            found := re.search(r"http://127.0.0.1:(\d+)", (folder / "moto.log").read_text())
        ):
            if server.poll() is not None:
                sys.exit((folder / "moto.log").read_text())
            time.sleep(0.1)
        address = f"http://127.0.0.1:{found[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
        os.environ.update(keys, AWS_ENDPOINT_URL=address, AWS_DEFAULT_REGION="us-east-1")
        import s3fs  # type: ignore[import-untyped]

        s3fs.S3FileSystem.clear_instance_cache()  # of a server before this one
        s3fs.S3FileSystem().mkdir("scale")
        yield "s3://scale/runs"
    finally:
        server.terminate()
        server.wait()


def floors(folder: Path, n_features: int, anchors: int | None) -> dict[str, float]:
    """Processor seconds a row of bare loops, by stage."""
    store = generate(
        folder / "floor.zarr", FLOOR_ROWS, n_features, 100, chunk_rows=bench_scan.BLOCK_ROWS
    )
    found = {}
    with dask.config.set(scheduler="threads", num_workers=2), one_blas_thread():
        ways: dict[str, Any] = {}
        if anchors is None:
            labels = store.read("labels")
            ways["fit"] = lambda: bench_scan.floor(store, labels)
        function = _hash_function(store, anchors)
        ways["encode"] = lambda: bench_encode.floor(store, function, folder / "floor")
        for name, (_, cpu) in bench_scan.measure(ways, 3).items():
            found[name] = cpu / FLOOR_ROWS
    shutil.rmtree(folder / "floor.zarr")
    return found


def _hash_function(store: FeatureStore, anchors: int | None) -> Any:
    X, y = (store.read(name, 0, 20_000) for name in ("features", "labels"))
    return SADIH(anchors=anchors).fit(X, y).hash_function_


def show(place: str, anchors: str, outcomes: list[Outcome], base: dict[str, float]) -> None:
    """Print the rows of a case."""
    for one in outcomes:
        for name in STAGES:
            used = one.used[name]
            ratio = f"{used.cpu / (base[name] * one.rows):.2f}" if name in base else ""
            cells = (
                f"{one.wall[name]:.1f} s", f"{used.cpu:.1f} s", f"{used.read / 2**30:.2f}",
                f"{used.written / 2**30:.2f}", ratio,
            )  # fmt: skip
            print(f"| {place} | {anchors} | {one.rows:,} | {name} | {' | '.join(cells)} |")
        peaks, learning = (
            ", ".join(f"{peak / 2**20:,.0f}" for peak in found)
            for found in (one.peaks, one.learning)
        )
        limit = "" if max(one.peaks) <= LIMIT else " (above 1.5 GiB)"
        plan = f"up to fit {learning}, planned {one.plan / 2**20:,.0f}"
        said = f"peak {peaks} MiB{limit}; {plan}"
        wall, cpu = sum(one.wall.values()), sum(u.cpu for u in one.used.values())
        print(
            f"| {place} | {anchors} | {one.rows:,} | all | {wall:.1f} s | {cpu:.1f} s | {said} |||"
        )
    if len(outcomes) == 2:
        small, large = outcomes
        rows = large.rows / small.rows
        grown = {n: large.used[n].cpu / max(small.used[n].cpu, 1e-9) / rows for n in STAGES}
        words = ", ".join(f"{name} {ratio:.2f}" for name, ratio in grown.items())
        verdict = "met" if max(grown.values()) <= 1.05 else "missed"
        print(
            f"| {place} | {anchors} | x {rows:g} | growth | {words}; at most 1.05: {verdict} |||||"
        )
    sys.stdout.flush()


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs=2, default=[2_500_000, 10_000_000])
    parser.add_argument("--s3-rows", type=int, nargs=2, help="default: a tenth")
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--anchors", nargs="*", default=["none", "1000"])
    parser.add_argument("--places", nargs="*", default=list(PLACES), choices=PLACES)
    parser.add_argument("--folder", type=Path, help="where there is room for the larger store")
    said = parser.parse_args()
    print(
        "| where | anchors | rows | stage | wall | processor | read, GiB | written, GiB | x floor |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for anchors in said.anchors:
        with tempfile.TemporaryDirectory(dir=said.folder) as folder:
            base = floors(Path(folder), said.features, None if anchors == "none" else int(anchors))
        for place in said.places:
            sizes = said.rows
            if place == "s3":
                sizes = said.s3_rows or [rows // 10 for rows in sizes]
            words = [*PLACES[place], "--set", f"model.anchors={anchors}"]
            words += ["--set", f"source.features={said.features}"]
            outcomes = []
            for rows in sizes:
                with tempfile.TemporaryDirectory(dir=said.folder) as folder:
                    _check_room(Path(folder), rows * said.features * 4)
                    if place != "s3":
                        outcomes.append(run(words, f"{folder}/runs", rows))
                        continue
                    with s3(Path(folder)) as url:
                        outcomes.append(run(words, url, rows))
            show(place, anchors, outcomes, base)


def _check_room(folder: Path, n_bytes: int) -> None:
    if (free := shutil.disk_usage(folder).free) < 1.2 * n_bytes:
        sys.exit(
            f"{folder} has {free / 2**30:.1f} GiB free, the store takes {n_bytes / 2**30:.1f}; "
            "name another folder with --folder, or fewer rows with --rows"
        )


if __name__ == "__main__":
    main()
