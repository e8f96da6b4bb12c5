"""Jobs of SLURM: the scripts, and a fit on workers that a batch system started from them."""

import gc
import os
import shutil
import signal
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from sadih_dask import SADIH, FeatureStore
from sadih_dask.cluster import ClusterSettings, running
from sadih_dask.cluster.launchers import slurm_options
from tests.support.datasets import rows
from tests.support.models import FAST, same_bits
from tests.support.processes import wait_until

jobqueue = pytest.importorskip("dask_jobqueue.slurm")

SBATCH = """#!/bin/bash
# A batch system of one machine: every job is a process group, known by its number.
cp "$1" "$QUEUE/script-$$"
setsid bash "$QUEUE/script-$$" >"$QUEUE/job-$$.log" 2>&1 </dev/null &
echo $! >>"$QUEUE/submitted"
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/bash
echo "$1" >>"$QUEUE/cancelled"
kill -- "-$1"
"""


@pytest.fixture(autouse=True)
def tidied() -> Iterator[None]:
    """dask-jobqueue leaves files to the garbage collector: collect them where that is no error."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Commands `sbatch` and `scancel` that really run and end jobs; the folder of their notes."""
    folder = tmp_path / "queue"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("QUEUE", str(folder))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    yield folder
    for job in numbers(folder / "submitted"):
        if alive(job):
            os.killpg(job, signal.SIGKILL)


def numbers(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def settings(folder: Path) -> ClusterSettings:
    return ClusterSettings(
        kind="slurm",
        workers=2,
        worker_timeout=180,
        options={
            "queue": "long",
            "account": "lab",
            "walltime": "00:10:00",
            "memory": "1GiB",
            "interface": "lo",
            "shared_directory": str(folder),
        },
    )


def test_the_script_of_a_job(tmp_path: Path) -> None:
    with jobqueue.SLURMCluster(**slurm_options(settings(tmp_path))) as cluster:
        script = cluster.job_script()
        keys = list(tmp_path.glob(".dask-jobqueue.worker.key.*"))
        assert [key.stat().st_mode & 0o077 for key in keys] == [0]  # for nobody else
        key = keys[0].read_text()
    for line in ("-p long", "-A lab", "-t 00:10:00", "--mem=1G", "--cpus-per-task=1"):
        assert f"#SBATCH {line}" in script
    assert "tls://127.0.0.1:" in script
    assert "PRIVATE KEY" not in script
    assert "PRIVATE KEY" in key
    file = tmp_path / "script"
    file.write_text(script)
    subprocess.run(["bash", "-n", file], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--shell=bash", file], check=True)


def test_a_fit_on_jobs(tmp_path: Path, queue: Path) -> None:
    X, y = rows()
    store = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=300)
    expected = SADIH(**FAST, anchors=20).fit(X, y)
    with running(settings(tmp_path)) as cluster:
        cluster.client.wait_for_workers(2, timeout=180)
        found = SADIH(**FAST, anchors=20).fit(store)
        described = cluster.describe()
    assert described["kind"] == "slurm"
    assert (described["workers"], described["encrypted"]) == (2, True)
    same_bits(found, expected, tmp_path)
    jobs = numbers(queue / "submitted")
    assert len(jobs) == 2
    assert sorted(numbers(queue / "cancelled")) == sorted(jobs)
    wait_until(lambda: not any(map(alive, jobs)), "jobs end")
