"""Damaged files, hostile files and two writers; the long versions are in tests/faults."""

import pickle
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.faults import flips, fuzz, hostile, power_cut, two_writers
from tests.faults.forged import Payload


def test_damage_to_any_file_is_noticed_and_named(tmp_path: Path) -> None:
    found = flips.run(tmp_path, trials=5 * 33, seed=1)
    assert found.ok, found.failures[:3]


def test_a_power_cut_at_any_step_leaves_the_state_before_or_after(tmp_path: Path) -> None:
    found = power_cut.run(tmp_path, trials=16 * 5, seed=3)
    assert found.ok, found.failures[:3]


@pytest.mark.parametrize(
    ("without", "work"),
    [("sync_folder", "ingest"), ("sync_folder", "run again"), ("sync_file", "append")],
)
def test_what_is_not_synchronised_would_be_noticed(tmp_path: Path, without: str, work: str) -> None:
    with patch(f"sadih_dask.files.filesystem.{without}"):
        found = power_cut.cut(tmp_path, 18, 3, work)
    assert found.failures


def test_hostile_files_run_nothing_and_take_little_memory(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()  # the payload would be noticed
    found = hostile.run(tmp_path, trials=1, seed=0)
    assert found.trials > 100
    assert found.ok, found.failures[:3]


def test_whatever_is_changed_nothing_else_is_touched_and_the_place_is_named(tmp_path: Path) -> None:
    found = fuzz.run(tmp_path, trials=120, seed=1)
    assert found.trials == 120
    assert found.ok, found.failures[:3]


def test_two_writers_on_one_store(tmp_path: Path) -> None:
    found = two_writers.run(tmp_path, trials=4, seed=1)
    assert found.ok, found.failures[:3]
