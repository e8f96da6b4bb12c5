"""The disk is full at some write; the long version is in tests/faults/full_disk.py."""

from pathlib import Path

import pytest

from tests.faults import full_disk


def test_a_full_disk_in_every_stage(tmp_path: Path) -> None:
    try:
        with full_disk.disk(tmp_path / "trial"):
            pass
    except PermissionError as error:
        pytest.skip(str(error))
    weights = {"ingest": 2, "fit": 1, "encode": 1, "export": 1, "evaluate": 0}
    found = full_disk.fill_disks(tmp_path, trials=5, seed=3, weights=weights)
    assert found.ok, found.failures[:3]
