"""The disk is full at some write; the long version is in tests/faults/full_disk.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.forks import Forks
from tests.faults.full_disk import disk, fill_disks


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    folder = tmp_path_factory.mktemp("forks")
    try:
        with disk(folder / "trial"):
            pass
    except PermissionError as error:
        pytest.skip(str(error))
    with Forks(folder) as found:
        yield found


@pytest.mark.parametrize("stage", ["ingest", "fit", "encode", "export", "tune", "run"])
def test_a_full_disk(tmp_path: Path, forks: Forks, stage: str) -> None:
    found = fill_disks(forks, tmp_path, trials=2, seed=3, stage=stage)
    assert found.ok, found.failures
    assert "failed for space" in found.figures
