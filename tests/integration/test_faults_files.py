"""Damaged files, hostile files and two writers; the long versions are in tests/faults."""

import pickle
from pathlib import Path

from tests.faults import flips, hostile, two_writers
from tests.faults.forged import Payload


def test_damage_to_any_file_is_noticed_and_named(tmp_path: Path) -> None:
    found = flips.run(tmp_path, trials=5 * 33, seed=1)
    assert found.ok, found.failures[:3]


def test_hostile_files_run_nothing_and_take_little_memory(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()  # the payload would be noticed
    found = hostile.run(tmp_path, trials=1, seed=0)
    assert found.trials > 100
    assert found.ok, found.failures[:3]


def test_two_writers_on_one_store(tmp_path: Path) -> None:
    found = two_writers.run(tmp_path, trials=4, seed=1)
    assert found.ok, found.failures[:3]
