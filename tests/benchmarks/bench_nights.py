"""What a night costs: a collection, and then some rows more every night.

    python -m tests.benchmarks.bench_nights [--rows 200000] [--night-rows 2000] [--nights 30]
        [--features 64] [--refresh when-better] [--new-class-at 20] [--report]

Every night is the command `sadih run` in a process of its own, on threads. Printed are processor
seconds a stage and of the whole process (starting Python and importing included), what that is of
the first run, which has read everything, and how many segments the stores have. In the end the
nights are laid beside the target: 2 % of the first run for 1 % of its rows, and a constant, which
is what nights without any rows to speak of cost on average (``--constant-rows``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from sadih_dask import CodeStore, FeatureStore

CLASSES = 50
SMALL_NIGHTS = 6
"""Nights with hardly any rows, spread over the others."""
STAGES = ("ingest", "fit", "encode", "evaluate", "export", "report")
COMMAND = Path(sys.executable).with_name("sadih")
CONFIGURATION = """
[run]
directory = "{folder}/runs"
keep = 3

[source]
features = "{folder}/incoming/*.npz"
hold_out = 0.02

[model]
n_bits = 64
{model}

[export]
index = "flat"

[report]
enabled = {report}
"""


def main() -> None:
    """Run the nights and print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--night-rows", type=int, default=2_000)
    parser.add_argument("--constant-rows", type=int, default=100)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--new-class-at", type=int, default=20, help="night that brings a class")
    parser.add_argument("--refresh", default="when-better")
    parser.add_argument("--anchors", default="none")
    parser.add_argument("--report", action="store_true", help="write the page with figures, too")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = f'anchors = {json.dumps(said.anchors)}\nrefresh = "{said.refresh}"'
        if said.anchors.isdigit():
            model = model.replace(f'"{said.anchors}"', said.anchors)
        text = CONFIGURATION.format(folder=folder, model=model, report=str(said.report).lower())
        (folder / "nights.toml").write_text(text)
        print(f"{'night':>6}" + "".join(f"{name:>10}" for name in (*STAGES, "process", "of full")))
        first = _night(folder, said, 0, said.rows)
        costs, small = [], []
        for night in range(1, said.nights + 1):
            costs.append(_night(folder, said, night, said.night_rows, first))
            if night % max(1, said.nights // SMALL_NIGHTS) == 0:  # in turns, as benchmarks do
                small.append(_night(folder, said, night + 0.5, said.constant_rows, first))
        constant = float(np.mean(small))
    _conclude(said, first, costs, constant)


def _night(
    folder: Path, said: argparse.Namespace, night: float, n_rows: int, first: float | None = None
) -> float:
    """Drop a file, run the pipeline, print a line; processor seconds of the process."""
    drop(folder / "incoming", night, n_rows, said.features, night >= said.new_class_at)
    before = os.times()
    done = subprocess.run(
        [COMMAND, "run", folder / "nights.toml", "--json", "--quiet"],
        check=True,
        stdout=subprocess.PIPE,
    )
    after = os.times()
    cost = sum(after[2:4]) - sum(before[2:4])
    record = json.loads(done.stdout)
    seconds = {one["name"]: one.get("processor_seconds", 0.0) for one in record["stages"]}
    cells = "".join(f"{seconds.get(name, 0.0):>10.2f}" for name in STAGES)
    share = "" if first is None else f"{cost / first:>10.1%}"
    print(f"{night:>6}{cells}{cost:>10.2f}{share:>10}  {_state(folder, record)}", flush=True)
    return cost


def drop(folder: Path, night: float, n_rows: int, n_features: int, new_class: bool) -> None:
    """Put a file of rows into the folder; classes are clouds about the same centres every night."""
    folder.mkdir(exist_ok=True)
    centres = 0.3 * np.random.default_rng(1).standard_normal((CLASSES + 1, n_features), np.float32)
    rng = np.random.default_rng([2, int(2 * night)])
    labels = rng.integers(CLASSES + new_class, size=n_rows)
    features = centres[labels] + rng.standard_normal((n_rows, n_features), np.float32)
    np.savez(folder / f"{night:06.1f}.npz", features=features, labels=labels)


def _state(folder: Path, record: dict[str, Any]) -> str:
    """What was decided, and how many segments there are."""
    database = FeatureStore.open(folder / "runs" / "database.zarr")
    codes = CodeStore.open(folder / "runs" / "latest" / "codes.zarr")
    encode = next(one for one in record["stages"] if one["name"] == "encode")
    said = f"{len(database.segments)}+{len(codes.segments)} segments, hashed {encode['rows']:,}"
    decided = record["refresh"] or {}
    return f"{said}; {decided.get('decision', '')} {decided.get('reason', '')}"


def _conclude(said: argparse.Namespace, first: float, costs: list[float], constant: float) -> None:
    mean, target = float(np.mean(costs)), 0.02 * first + constant
    print(
        f"full run {first:.1f} s; {said.nights} nights of {said.night_rows / said.rows:.1%} new "
        f"rows: mean {mean:.2f} s ({mean / first:.1%}), worst {max(costs):.2f} s; of that constant "
        f"{constant:.2f} s (nights of {said.constant_rows} rows), so rows cost "
        f"{(mean - constant) / first:.2%} of the full run; target 2 %: "
        f"{'met' if mean <= target else 'missed'}"
    )


if __name__ == "__main__":
    main()
