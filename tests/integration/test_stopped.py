"""Processes that sleep for longer than anybody waits, and wake up when others have gone on."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from sadih_dask import SADIH, FeatureStore
from sadih_dask.runs.directory import RunDirectory
from tests.integration.test_run_s3 import configuration, run, upload
from tests.support.datasets import drop
from tests.support.processes import PATIENCE, ROOT, Here, wait_until

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
__all__ = ["configuration"]

STOPPING = """
import os, signal, sys
from sadih_dask.cli import main
from sadih_dask.files import filesystem, lease
from sadih_dask.model.methods.sadih import SADIH
from sadih_dask.runs.directory import RunDirectory

def stop_before(owner, name, first=lambda *_: True):
    method = getattr(owner, name)

    def stopping(self, *args, **named):
        if first(*args):
            setattr(owner, name, method)
            os.kill(os.getpid(), signal.SIGSTOP)
        return method(self, *args, **named)

    setattr(owner, name, stopping)

lease._kernel = lambda: "of another host"
"""
SAVING = "stop_before(SADIH, 'save')"
MOVING = "stop_before(RunDirectory, 'move_latest')"
REMOVING = "stop_before(filesystem.RemoteFiles, 'delete', lambda key: key.startswith('artefacts'))"


@contextmanager
def stopped(where: str, code: int, *words: object) -> Iterator[list[str]]:
    """A command that has stopped itself somewhere; it goes on, and says things, at the end."""
    said: list[str] = []
    script = f"{STOPPING}{where}\nmain()\n"
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, words)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:

        def sleeps() -> bool:
            assert process.poll() is None
            status = Path(f"/proc/{process.pid}/stat").read_text()
            return status.rpartition(")")[2].split()[0] == "T"

        try:
            wait_until(sleeps, "it stops itself")
            yield said
            process.send_signal(signal.SIGCONT)
            said.append(process.communicate(timeout=PATIENCE)[1])
        finally:
            process.kill()
    assert process.returncode == code, said


@pytest.mark.parametrize("there", [True, False])
def test_an_older_model_does_not_replace_a_newer(here: Here, tmp_path: Path, there: bool) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 8)), np.arange(300) % 3
    store, model = tmp_path / "s", tmp_path / "m.sadih"
    FeatureStore.create(store, X[:100], y[:100])
    words = ("fit", store, model, "--bits", "8", "--anchors", "20", "--quiet")
    if there:
        here(*words)
        FeatureStore.open(store).append(X[100:200], y[100:200])
    with stopped(SAVING, 1, *words) as said:
        FeatureStore.open(store).append(X[200:], y[200:])
        here(*words)
        newer = model.read_bytes()
    assert "m.sadih was written by another process since this one began" in said[0]
    assert model.read_bytes() == newer
    here(*words)
    assert SADIH.load(model).coverage_.n_rows == FeatureStore.open(store).n_rows
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.sadih", "s"]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for one that gives no signs of life."""
    monkeypatch.setattr("sadih_dask.files.lease.RENEWAL", 0.1)
    monkeypatch.setattr("sadih_dask.files.lease.LEASE", 0.6)


@pytest.mark.usefixtures("soon")
def test_an_older_run_does_not_become_the_latest_after_a_newer(
    here: Here, bucket: str, configuration: Path, tmp_path: Path
) -> None:
    directory = RunDirectory(f"{bucket}/runs")
    with stopped(MOVING, 1, "run", configuration) as said:
        upload(bucket, drop(tmp_path, "b", 300, 2))
        newer = run(here, configuration)
    assert f"latest is {newer['id']}, and was None when this began" in said[0]
    assert directory.latest() == newer["id"]
    assert run(here, configuration)["outcome"] == "nothing to do"


@pytest.mark.usefixtures("soon")
def test_what_a_newer_run_refers_to_is_not_removed_by_an_older(
    here: Here, bucket: str, configuration: Path, tmp_path: Path
) -> None:
    directory = RunDirectory(f"{bucket}/runs")
    keep, other = ("--set", "run.keep=1"), ("--set", "model.alpha=0.5")
    run(here, configuration, *keep)
    with stopped(REMOVING, 0, "run", configuration, *keep, *other):
        # The first configuration again, whose artefacts are about to be removed.
        newer = run(here, configuration, "--set", "run.keep=5")
        assert newer["outcome"] == "complete"
    assert directory.latest() == newer["id"]
    assert not list(directory.problems())
    assert run(here, configuration)["outcome"] in ("nothing to do", "complete")
    assert not list(directory.problems())
