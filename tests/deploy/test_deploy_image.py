"""The image itself: built from the Dockerfile as it is, and run in every role of Kubernetes."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask import __version__
from tests.deploy.image import BUILD_SECONDS, Builder, Sandbox, missing, sandbox
from tests.deploy.machine import PATIENCE, SMALL_RUN, until
from tests.deploy.manifests import (
    KUBERNETES,
    ROOT,
    nightly_pod,
    operator_makes,
    pod_arguments,
    standing_cluster,
)
from tests.support.datasets import blobs

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(BUILD_SECONDS),
]
USER = 10001


@pytest.fixture(scope="module")
def built() -> Iterator[tuple[Builder, dict[str, Any]]]:
    builder = Builder(ROOT / ".image")
    builder.folder.mkdir(exist_ok=True)
    yield builder, builder.build()
    builder.forget()


@pytest.fixture(scope="module")
def image(built: tuple[Builder, dict[str, Any]]) -> Iterator[Path]:
    with built[0].mounted() as found:
        yield found


@pytest.fixture
def beside(built: tuple[Builder, dict[str, Any]], image: Path, tmp_path: Path) -> Iterator[Sandbox]:
    (tmp_path / "containers").mkdir()
    with sandbox(image, built[1], tmp_path / "containers") as found:
        yield found


def test_what_is_in_it(built: tuple[Builder, dict[str, Any]], image: Path) -> None:
    config = built[1]
    assert config["User"] == f"{USER}:{USER}"
    packages = next((image / "opt/sadih/lib").glob("python3*/site-packages"))
    assert not [*packages.rglob("tests"), *packages.glob("*/test"), *packages.glob("pip")]
    assert (packages / "sklearn/datasets/data/digits.csv.gz").exists()  # for a first try
    assert list(packages.glob("sadih_dask/__pycache__"))  # nobody can compile on a read-only root
    size = sum(path.lstat().st_size for path in (image / "opt/sadih").rglob("*"))
    assert size < 950e6, f"{size / 1e6:.0f} MB"


def owned(folder: Path) -> Path:
    """A folder that the image's user may write into."""
    folder.mkdir()
    os.chown(folder, USER, USER)
    return folder


def test_the_nightly_run_of_kubernetes(beside: Sandbox, tmp_path: Path, tls: Path) -> None:
    pytest.importorskip("dask_kubernetes", reason="needs pip install dask-kubernetes")
    data, config = owned(tmp_path / "data"), owned(tmp_path / "config")
    (config / "pipeline.toml").write_text((KUBERNETES / "pipeline.toml").read_text())
    (data / "incoming").mkdir()
    features, labels = blobs(n=600, d=8, c=4)
    np.savez(data / "incoming" / "day-1.npz", features=features, labels=labels)
    past = time.time() - 3600
    os.utime(data / "incoming" / "day-1.npz", (past, past))
    first, _, *workers = (
        one["spec"]["template"]["spec"] if one["kind"] == "Deployment" else {}
        for one in operator_makes(standing_cluster(), n_workers=2)
    )
    binds = {"/data": data, "/config": config}

    def secret(role: str) -> dict[str, Path]:
        made = owned(tmp_path / f"tls-{role}")
        files = (("ca.pem", "ca.pem"), ("tls.crt", f"{role}.pem"), ("tls.key", f"{role}.key"))
        for name, file in files:
            (made / name).write_bytes((tls / file).read_bytes())
            os.chown(made / name, USER, USER)
        return {**binds, "/tls": made}

    hosts = ("sadih-scheduler",)
    words, environment = pod_arguments(first)
    scheduler = beside.start(words, secret("scheduler"), hosts=hosts, **environment)
    beside.until_healthy(scheduler)
    own, started = secret("worker"), []
    for number, worker in enumerate(workers):
        words, environment = pod_arguments(worker)
        # Pods have an address each; these share one.
        words = [word.replace("=:8788", f"=:{8788 + number}") for word in words]
        started.append(beside.start(words, own, hosts=hosts, **environment))
    for one in started:
        beside.until_healthy(one)
    until(lambda: beside.log(scheduler).count("Register worker") == 2, "two workers that join")
    words, environment = pod_arguments(nightly_pod())
    client = secret("client")
    code, said = beside.run(words, client, hosts=hosts, **environment, **SMALL_RUN)
    assert code == 0, said
    assert '"complete"' in (data / "runs" / "latest" / "record.json").read_text()
    for one in (*started, scheduler):
        beside.first_process(one).send_signal(signal.SIGTERM)
        one.wait(timeout=PATIENCE)
    assert "handed over" not in "".join(map(beside.log, started))  # nothing went wrong meanwhile


def test_anybody_may_run_it(beside: Sandbox, tmp_path: Path) -> None:
    code, said = beside.run(["--version"], {}, user=54321)
    assert (code, said) == (0, f"sadih, version {__version__}\n")
    code, said = beside.run(["dask", "--version"], {}, user=54321)
    assert (code, said.split()[0]) == (0, "dask,")
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 54321, 54321)
    np.savez(data / "day.npz", features=np.eye(8, dtype=np.float32), labels=np.arange(8) % 2)
    words = ["ingest", "/data/day.npz", "/data/store"]
    code, said = beside.run(words, {"/data": data}, user=54321)
    assert code == 0, said
    assert (data / "store").stat().st_uid == 54321


def test_a_healthy_container_is_not_a_stopped_one(beside: Sandbox) -> None:
    scheduler = beside.start(["dask", "scheduler", "--host=127.0.0.1", "--port=0"], {})
    beside.until_healthy(scheduler)
    os.kill(beside.first_process(scheduler).pid, signal.SIGSTOP)
    assert not beside.healthy(scheduler)
