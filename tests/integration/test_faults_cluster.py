"""Workers and the scheduler are killed under `sadih run`; long versions are in tests/faults."""

import random
from pathlib import Path

from tests.faults.forks import Forks
from tests.faults.jobs import Size
from tests.faults.scheduler import Lost
from tests.faults.workers import Disturbed
from tests.support.processes import dask_processes

SIZE = Size(n_rows=12_000, n_features=16, anchors=150, chunk_rows=512, block_rows=128, n_queries=50)


def test_workers_that_are_killed_change_nothing(tmp_path: Path) -> None:
    with dask_processes(2) as cluster, Forks(tmp_path) as forks:
        disturbed = Disturbed(forks, tmp_path, cluster, SIZE, report=False)
        disturbed.run(random.Random(0), pause=1.0, most=2)
    assert disturbed.killed.total() >= 1
    assert disturbed.hangs == 0


def test_a_scheduler_that_is_killed_is_exit_code_4_and_resumed(tmp_path: Path) -> None:
    with dask_processes(2) as cluster, Forks(tmp_path) as forks:
        lost = Lost(forks, tmp_path, cluster, SIZE)
        while not lost.noticed:  # a fit that was over before the kill proves nothing
            lost.kill_in("fit", 0.0)
    assert (lost.resumed, len(lost.noticed)) == (1, 1)
