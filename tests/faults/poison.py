"""A block of rows that cannot be used, in the middle of a million.

    python -m tests.faults.poison [--trials 6] [--seed 20]

On a cluster of worker processes, ``sadih fit`` and ``sadih encode`` meet a NaN, an infinity or a
label that cannot be, a fit of a Dask array meets a block of another type, and ``sadih ingest``
meets a file of another type among its shards. What must hold: exit code 1 and a message that names
the row (the rows of the block, the file); the model and the codes that were there before are what
they were; no worker dies; and no task of ours runs more than once, let alone the one with the
poison (the scheduler counts).
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from distributed import SchedulerPlugin

from sadih_dask import SADIH, FeatureStore
from sadih_dask.errors import DtypeError
from tests.faults.forks import Ended, Forks
from tests.faults.table import Outcome, main
from tests.faults.workers import worker_processes
from tests.support.processes import DaskProcesses, dask_processes

N_ROWS, N_FEATURES = 1_000_000, 8
CHUNK = 16_384
KINDS = ("nan", "block", "label", "file", "inf")


class Tally(SchedulerPlugin):
    """How often each task of this package has run to an end, good or bad."""

    name = "tally"

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        """Count ends of running."""
        if start == "processing" and finish in ("memory", "erred") and "sadih-" in str(key):
            self.runs[str(key)] += 1


def most_runs(dask_scheduler: Any = None) -> tuple[int, int]:
    """On the scheduler: tasks that have run, and the most runs of any; begins anew."""
    runs = dask_scheduler.plugins["tally"].runs
    found = len(runs), max(runs.values(), default=0)
    runs.clear()
    return found


def _spoil(rows: np.ndarray[Any, Any], spoilt: int, block_info: Any = None) -> Any:
    """Rows as they are, but for one block."""
    at = 0 if block_info is None else block_info[0]["chunk-location"][0]
    return np.full(rows.shape, "abc") if at == spoilt and len(rows) else rows


def run(folder: Path, trials: int, seed: int) -> Outcome:
    """Poison rows, fit, encode and ingest."""
    return poison(folder, trials, seed, N_ROWS, CHUNK)


def poison(folder: Path, trials: int, seed: int, n_rows: int, chunk: int) -> Outcome:
    """The row with another number of rows."""
    outcome = Outcome(f"a poison block among {n_rows:,} rows")
    rng = random.Random(seed)
    with dask_processes(2) as cluster, Forks(folder) as forks:
        with cluster.client(set_as_default=False) as client:
            client.register_plugin(Tally())
        kitchen = Kitchen(forks, folder, cluster, n_rows, chunk)
        for trial in range(trials):
            kind = KINDS[trial % len(KINDS)]
            outcome.trials += 1
            try:
                kitchen.serve(kind, rng)
            except AssertionError as error:
                outcome.failures.append(f"{kind}: {error}")
    outcome.figures = {
        "named by row": f"{kitchen.named}",
        "by file": f"{kitchen.by_file}",
        "runs of any task": f"at most {kitchen.most_runs}",
        "tasks that ran": f"{kitchen.n_tasks}",
        "workers lost": f"{kitchen.workers_lost}",
        "written over": "nothing" if outcome.ok else "see below",
    }
    return outcome


class Kitchen:
    """Stores with a bad row, and commands that are given them."""

    def __init__(
        self, forks: Forks, folder: Path, cluster: DaskProcesses, n_rows: int, chunk: int
    ) -> None:
        self._forks, self._folder, self._cluster = forks, folder, cluster
        self._n, self._chunk = n_rows, chunk
        rng = np.random.default_rng(0)
        self._y = rng.integers(5, size=n_rows)
        self._x = rng.normal(size=(n_rows, N_FEATURES)).astype(np.float32) + self._y[:, None]
        self.named = self.by_file = self.most_runs = self.n_tasks = self.workers_lost = 0
        small = FeatureStore.create(folder / "good", self._x[:2000], self._y[:2000], chunk_rows=500)
        learning = ("--anchors", "none", "--n-init", 1, "--max-iter", 1, "--block-rows", 500)
        self._model, self._codes = folder / "m.sadih", folder / "codes"
        for words in (
            ("fit", small.url, self._model, *learning),
            ("encode", small.url, self._model, self._codes),
        ):
            assert forks.run(*words, "--quiet").code == 0, words

    def serve(self, kind: str, rng: random.Random) -> None:
        """Poison one row somewhere in the middle and give it to a command."""
        row = rng.randrange(self._n // 4, 3 * self._n // 4)
        workers = {process.pid for process in worker_processes(self._cluster)}
        before = self._state()
        if kind == "file":
            self._serve_shards(row)
        elif kind == "block":
            self._serve_array(row)
        else:
            self._serve_store(kind, row, rng.randrange(N_FEATURES))
        assert self._state() == before, "what was there has changed"
        lost = workers - {process.pid for process in worker_processes(self._cluster)}
        self.workers_lost += len(lost)
        assert not lost, f"{len(lost)} workers died"
        with self._cluster.client(set_as_default=False) as client:
            tasks, most = client.run_on_scheduler(most_runs)
        self.n_tasks += tasks
        self.most_runs = max(self.most_runs, most)
        assert most <= 1, f"a task ran {most} times"

    def _serve_store(self, kind: str, row: int, column: int) -> None:
        x, y = self._x, self._y
        kept = x[row, column], y[row]
        if kind == "label":
            y[row], words = -1, f"the label of row {row} is -1"
        else:
            x[row, column], words = float(kind), f"{kind} at row {row}, column {column}"
        store = FeatureStore.create(
            self._folder / "bad", x, y, chunk_rows=self._chunk, overwrite=True
        )
        x[row, column], y[row] = kept
        place = ("--scheduler", self._cluster.address, "--overwrite", "--quiet")
        learning = ("--anchors", "none", "--n-init", 1, "--max-iter", 1)
        self._refused(self._forks.run("fit", store.url, self._model, *learning, *place), words)
        if kind != "label":
            target = self._folder / "new-codes"
            ended = self._forks.run("encode", store.url, self._model, target, *place)
            self._refused(ended, words)
        self.named += 1

    def _serve_array(self, row: int) -> None:
        """A Dask array whose block in the middle is of text, against what it says of itself."""
        whole = FeatureStore.create(
            self._folder / "whole", self._x, self._y, chunk_rows=self._chunk, overwrite=True
        )
        block = row // self._chunk
        lazy = whole.to_dask().map_blocks(_spoil, block, dtype=np.float32, meta=np.empty((0, 0)))
        learner = SADIH(16, anchors=None, n_init=1, max_iter=1, block_rows=self._chunk)
        with self._cluster.client():
            try:
                learner.fit(lazy, whole.to_dask("labels"))
            except DtypeError as error:
                said = str(error)
            else:
                raise AssertionError("text was learned from")
        found = re.search(r"dtype <U\d+ in rows (\d+) to (\d+)", said)
        assert found is not None, said
        first, last = int(found[1]), int(found[2])
        assert first <= block * self._chunk <= last < first + max(self._chunk, self._n // 8), said
        self.named += 1

    def _serve_shards(self, row: int) -> None:
        """Three shards, the one in the middle of text: refused before a row is written."""
        parts = [self._x[:row], np.full((1000, N_FEATURES), "1.5"), self._x[row:]]
        for number, part in enumerate(parts):
            np.save(self._folder / f"part{number}.npy", part)
        pattern, target = self._folder / "part*.npy", self._folder / "poured"
        ended = self._forks.run("ingest", pattern, target, "--quiet")
        self._refused(ended, "part1.npy")
        assert not target.exists(), "something was written"
        self.by_file += 1

    @staticmethod
    def _refused(ended: Ended, words: str) -> None:
        assert ended.code == 1, f"exit code {ended.code}: {ended.said[-500:]}"
        assert words in ended.said, f"{words!r} is not said: {ended.said[-500:]}"
        assert "Traceback" not in ended.said, ended.said[-500:]

    def _state(self) -> str:
        """A hash of the model and of every file of the codes."""
        digest = hashlib.sha256(self._model.read_bytes())
        for path in sorted(self._codes.rglob("*")):
            if path.is_file():
                digest.update(path.read_bytes())
        return digest.hexdigest()


if __name__ == "__main__":
    main(run, trials=10)
