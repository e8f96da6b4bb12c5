"""Workers and the scheduler are killed under `sadih run`; long versions are in tests/faults."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.forks import Forks, observed
from tests.faults.jobs import Size
from tests.faults.scheduler import Lost
from tests.faults.workers import ENVIRONMENT, STAGES, Disturbance, Disturbed
from tests.support.processes import DaskProcesses, dask_processes

SIZE = Size(n_rows=12_000, n_features=16, anchors=150, chunk_rows=512, block_rows=128, n_queries=50)


@pytest.fixture(scope="module")
def shaken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaskProcesses, Forks, Path]]:
    """A cluster whose workers say that they have joined, and a folder for what they say."""
    folder = tmp_path_factory.mktemp("shaken")
    environment = {**ENVIRONMENT, **observed(folder)}
    with dask_processes(2, environment=environment) as cluster, Forks(folder) as forks:
        yield cluster, forks, folder


@pytest.mark.parametrize("stage", STAGES)
def test_workers_that_are_killed_change_nothing(
    shaken: tuple[DaskProcesses, Forks, Path], stage: str
) -> None:
    cluster, forks, folder = shaken
    disturbed = Disturbed(forks, folder, cluster, stage, SIZE)
    disturbed.run(Disturbance(random.Random(0), every=0.5, most=2))
    assert disturbed.killed.total() >= 1
    assert (disturbed.hangs, disturbed.repeats, disturbed.read_again) == (0, 0, 0)


def test_workers_that_are_stopped_for_a_while_change_nothing(
    shaken: tuple[DaskProcesses, Forks, Path],
) -> None:
    cluster, forks, folder = shaken
    disturbed = Disturbed(forks, folder, cluster, "fit", SIZE)
    disturbed.run(Disturbance(random.Random(0), every=0.5, stop=0.5, most=2))
    assert disturbed.killed.total() >= 1
    assert (disturbed.hangs, disturbed.repeats) == (0, 0)


def test_a_scheduler_that_is_killed_is_exit_code_4_and_resumed(tmp_path: Path) -> None:
    with dask_processes(2) as cluster, Forks(tmp_path) as forks:
        lost = Lost(forks, tmp_path, cluster, SIZE)
        while not lost.noticed:  # a fit that was over before the kill proves nothing
            lost.kill_in("fit", 0.0)
    assert (lost.resumed, len(lost.noticed)) == (1, 1)
