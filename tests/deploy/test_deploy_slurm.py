"""The batch script under a real Slurm: it ends well, resumes, and stays away when cancelled."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.machine import SMALL_RUN, until
from tests.deploy.manifests import DEPLOY, ROOT
from tests.deploy.slurm import Slurm, missing, slurm

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found


def submit(cluster: Slurm, folder: Path) -> str:
    """Submit the script as its page says, for a smaller machine."""
    given = {
        "CONFIG": ROOT / "pipelines" / "digits.toml",
        "SHARED": folder / "shared",
        "SCRATCH": folder,
        "WORKER_MEMORY": "1GiB",
        "MAKE_CERTIFICATES": DEPLOY / "tls" / "make-certificates.sh",
        "SADIH__RUN__DIRECTORY": folder / "runs",
        **SMALL_RUN,
    }
    words = ["sbatch", "--parsable", "--nodes=1", "--cpus-per-task=1", "--mem=0", "--time=10"]
    words += [f"--output={folder}/log.txt", f"--chdir={folder}"]
    export = ",".join(["ALL", *(f"{name}={value}" for name, value in given.items())])
    return cluster.call(*words, f"--export={export}", DEPLOY / "slurm" / "sadih-run.sbatch")


def test_a_stopped_job_is_queued_again_and_resumes(cluster: Slurm, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path)
    log = tmp_path / "log.txt"
    until((tmp_path / "runs").exists, "a run that has begun")
    cluster.call("scancel", "--signal=TERM", "--batch", job)  # as --signal=B:TERM@120 does
    until(lambda: "sadih run ended with 130 (start 1)" in log.read_text(), "a clean stop")
    until(lambda: cluster.job(job)["JobState"] == "PENDING", "a job that is in the queue again")
    assert cluster.job(job)["Restarts"] == "1"

    hurried = set()

    def ended_well() -> object:
        found = cluster.job(job)
        state = found["JobState"]
        assert state not in ("FAILED", "CANCELLED", "TIMEOUT"), log.read_text()
        if state == "PENDING" and found["Restarts"] not in hurried:
            # A node refuses credentials made in the second in which it revoked the last ones.
            cluster.call("scontrol", "update", f"JobId={job}", "StartTime=now+3")
            hurried.add(found["Restarts"])
        # A cluster that does not come up in time ends a start with 4, and is queued once more.
        return re.search(r"sadih run ended with 0 \(start [2-9]\)", log.read_text())

    until(ended_well, "the end of the run")  # it would start by itself after two minutes
    record = json.loads((tmp_path / "runs" / "latest" / "record.json").read_text())
    assert record["outcome"] == "complete"
    until(lambda: cluster.job(job)["JobState"] == "COMPLETED", "a job that is done")
    assert list((tmp_path / "shared").iterdir()) == []


def test_a_cancelled_job_stays_away(cluster: Slurm, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path)
    until((tmp_path / "runs").exists, "a run that has begun")
    cluster.call("scancel", job)
    log = tmp_path / "log.txt"
    until(lambda: "sadih run ended with 130 (start 1)" in log.read_text(), "a clean stop")
    until(lambda: "COMPLETING" not in states(cluster, job), "the end of the job")
    assert states(cluster, job) in ("", "CANCELLED")
    assert cluster.job(job)["Restarts"] == "0"


def states(cluster: Slurm, job: str) -> str:
    """What the queue shows of a job."""
    return cluster.call("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")
