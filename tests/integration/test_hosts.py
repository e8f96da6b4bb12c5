"""Two hosts on one shared folder, and a host whose clock was set back."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sadih_dask import FeatureStore
from sadih_dask.runs.directory import RunDirectory
from tests.support.datasets import configuration, drop
from tests.support.processes import PATIENCE, ROOT, Here, clock_set_back, other_host, wait_until

WAITING = """
import sys, time
from pathlib import Path
from sadih_dask.cli import main
from sadih_dask.runs.directory import RunDirectory

there = Path(sys.argv.pop())

def waiting(*_, **__):
    there.touch()
    time.sleep(600)

RunDirectory.move_latest = waiting
main()
"""
COMMAND = Path(sys.executable).with_name("sadih")


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    drop(tmp_path / "incoming", "a", 600, 1)
    return configuration(tmp_path)


def called(*words: object, code: int = 0) -> str:
    done = subprocess.run(
        list(map(str, words)), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_run_of_another_host_is_waited_for_until_it_is_dead(tmp_path: Path, toml: Path) -> None:
    """Both have the process number 1 and the same name."""
    words = (*other_host("same"), sys.executable, "-c", WAITING, "run", toml, "--quiet")
    second = (*other_host("same"), COMMAND)
    there = tmp_path / "there"
    with subprocess.Popen([*map(str, words), str(there)], cwd=ROOT) as process:
        try:
            wait_until(lambda: there.exists() or process.poll() is not None, "it has worked")
            said = called(*second, "run", toml, "--quiet", code=5)
            assert "another run is at work" in said
            assert RunDirectory(tmp_path / "runs").latest() is None
        finally:
            process.kill()
            process.wait(PATIENCE)
    record = json.loads(called(*second, "run", toml, "--json", "--quiet"))
    assert record["outcome"] == "complete"
    assert [stage["action"] for stage in record["stages"]] == ["reused"] * 4


def test_nothing_depends_on_the_clock(tmp_path: Path, toml: Path, here: Here) -> None:
    """Each command believes that it runs before the one before it."""

    def run(days: int, *words: str) -> dict[str, Any]:
        said = called(*clock_set_back(days), COMMAND, "run", toml, "--json", "--quiet", *words)
        found: dict[str, Any] = json.loads(said)
        return found

    keep = ("--set", "run.keep=2")
    first = json.loads(here("run", toml, "--json", "--quiet", *keep)[0])
    drop(tmp_path / "incoming", "b", 300, 2)
    second = run(40, *keep)
    assert second["id"] < first["id"], "the clock was not set back"
    assert second["previous"] == first["id"]
    assert second["rows"] > first["rows"]
    third = run(80, *keep, "--set", "model.n_bits=8")
    directory = RunDirectory(tmp_path / "runs")
    assert directory.runs() == [second["id"], third["id"]]
    here("rollback", tmp_path / "runs")
    assert directory.latest() == second["id"]
    here("verify", tmp_path / "runs")
    store = FeatureStore.open(tmp_path / "runs/database.zarr")
    assert store.n_rows == second["rows"]
