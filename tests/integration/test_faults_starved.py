"""Slow workers and small ones; the long version is in tests/faults/starved.py."""

import random
from pathlib import Path

from tests.faults import starved
from tests.faults.forks import Forks
from tests.faults.table import Outcome
from tests.faults.workers import worker_processes
from tests.support.processes import dask_processes


def test_a_worker_that_is_slow_and_workers_that_are_too_small(tmp_path: Path) -> None:
    outcome = Outcome("starved")
    with Forks(tmp_path) as forks:
        job = starved.Fit(forks, tmp_path, n_rows=10_000, anchors=100)
        with dask_processes(2) as cluster:
            before = starved.pids(cluster)
            with starved.slowed(random.Random(0).choice(list(worker_processes(cluster)))):
                job.check_same(outcome, "slow", job.run(cluster))
            assert starved.pids(cluster) == before
        assert job.in_too_little_memory(outcome) == 1
    assert not outcome.failures, outcome.failures
