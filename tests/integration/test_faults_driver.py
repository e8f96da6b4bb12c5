"""The driver is killed around commits and resumed; the long version is tests/faults/driver.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.driver import Ordeal
from tests.faults.forks import Forks
from tests.faults.table import Outcome


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with Forks(tmp_path_factory.mktemp("forks")) as found:
        yield found


def test_kills_around_steps(tmp_path: Path, forks: Forks) -> None:
    outcome = Outcome("kill -9 of the driver")
    ordeal = Ordeal(forks, tmp_path, outcome)
    step = ordeal.n_steps // 3
    for place in range(3):
        ordeal.at_step("before", place * step + 1)
        ordeal.at_step("after", place * step + step // 2)
    assert outcome.trials == 6
    assert outcome.ok, outcome.failures
    assert ordeal.repeated.total() == 0


@pytest.mark.parametrize("stage", ["fit", "encode", "search", "tune"])
def test_kills_of_single_commands(tmp_path: Path, forks: Forks, stage: str) -> None:
    outcome = Outcome("kill -9 of the driver")
    ordeal = Ordeal(forks, tmp_path, outcome, stage=stage)
    ordeal.at_step("after", ordeal.n_steps // 2)
    ordeal.at_moment(0.5)
    assert outcome.trials == 2
    assert outcome.ok, outcome.failures


def test_no_process_outlives_a_killed_driver(tmp_path: Path, forks: Forks) -> None:
    outcome = Outcome("kill -9 of the driver")
    Ordeal(forks, tmp_path, outcome, stage="fit", processes=2).at_moment(0.7)
    assert outcome.ok, outcome.failures


def test_kills_at_random_moments(tmp_path: Path, forks: Forks) -> None:
    outcome = Outcome("kill -9 of the driver")
    ordeal = Ordeal(forks, tmp_path, outcome)
    for share in (0.3, 0.7):
        ordeal.at_moment(share)
    assert outcome.ok, outcome.failures
