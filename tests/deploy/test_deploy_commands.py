"""The commands in the manifests, run for real: paths and addresses are mapped, nothing else."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from distributed.security import Security

from sadih_dask import SADIH
from sadih_dask.compute.run import reporting
from sadih_dask.ingest.synthetic import generate
from sadih_dask.learning.statistics import MERGE_FAN_IN
from tests.deploy.machine import (
    HEALTH,
    PATIENCE,
    SMALL_RUN,
    Machine,
    Process,
    free_port,
    machine,
    until,
)
from tests.deploy.manifests import (
    KUBERNETES,
    ROOT,
    Command,
    compose_command,
    documents,
    helm_commands,
    in_image,
    nightly_pod,
    operator_makes,
    pod_command,
    standing_cluster,
    unit_command,
)
from tests.faults.forks import TALLY, observed
from tests.support.datasets import blobs
from tests.support.models import same_bits

BLOCK = 256


@pytest.fixture
def here(tmp_path: Path, tls: Path) -> Iterator[Machine]:
    with machine(tmp_path, tls) as found:
        yield found


def bring_up(here: Machine, scheduler: Command, *workers: Command) -> Process:
    """Start all, in this order, and ask each for its health as the image does."""
    started = here.start(scheduler, "scheduler")
    here.until_healthy(started)
    for worker in [here.start(worker, "worker") for worker in workers]:
        here.until_healthy(worker)
    return started


def latest(here: Machine, directory: str) -> dict[str, object]:
    record: dict[str, object] = json.loads(
        (here.folder / "data" / directory / "latest" / "record.json").read_text()
    )
    return record


def digits(here: Machine) -> None:
    """The demo's configuration where deployments look for theirs."""
    text = (ROOT / "pipelines" / "digits.toml").read_text()
    (here.folder / "config" / "pipeline.toml").write_text(text)


def test_compose_runs_and_its_health_check_sees_a_hang(here: Machine) -> None:
    scheduler = bring_up(here, compose_command("scheduler"), compose_command("worker"))
    pages = ("/health", "/info/main/workers.html", "/json/identity.json", "/metrics", "/status")
    assert [here.status(scheduler, page) for page in pages] == [200, 404, 404, 404, 404]
    digits(here)
    code, said = here.run(compose_command("run"), **SMALL_RUN)
    assert code == 0, said
    assert latest(here, "runs/digits")["outcome"] == "complete"
    assert here.log(scheduler).count("Run out-of-band") < 5  # and not all questions of the run

    os.kill(scheduler.pid, signal.SIGSTOP)  # alive, but does not answer
    assert not here.healthy(scheduler)
    scheduler.kill()
    scheduler.wait(timeout=PATIENCE)
    assert not here.healthy(scheduler)


def test_kubernetes_as_the_operator_makes_it(here: Machine) -> None:
    pytest.importorskip("dask_kubernetes", reason="needs pip install dask-kubernetes")
    first, _, *workers = (
        one["spec"]["template"]["spec"] if one["kind"] == "Deployment" else {}
        for one in operator_makes(standing_cluster(), n_workers=2)
    )
    scheduler = bring_up(here, pod_command(first), *map(pod_command, workers))
    until(lambda: here.log(scheduler).count("Register worker") == 2, "two workers that join")
    given = here.here((KUBERNETES / "pipeline.toml").read_text(), "client")
    (here.folder / "config" / "pipeline.toml").write_text(given)
    incoming = here.folder / "data" / "incoming"
    incoming.mkdir()
    features, labels = blobs(n=600, d=8, c=4)
    np.savez(incoming / "day-1.npz", features=features, labels=labels)
    past = time.time() - 3600
    os.utime(incoming / "day-1.npz", (past, past))
    code, said = here.run(pod_command(nightly_pod()), **SMALL_RUN)
    assert code == 0, said
    assert latest(here, "runs")["outcome"] == "complete"


def test_half_of_the_workers_are_told_to_end_and_only_blocks_under_way_are_read_again(
    here: Machine, tmp_path: Path
) -> None:
    store = generate(tmp_path / "s", 160 * BLOCK, 8, 4, chunk_rows=BLOCK)
    form = SADIH(n_bits=16, anchors=400, block_rows=BLOCK)
    calm = form.fit(store)
    here.until_healthy(here.start(compose_command("scheduler"), "scheduler"))
    observing = observed(tmp_path)
    nannies = [here.start(compose_command("worker"), "worker", **observing) for _ in range(4)]
    going = nannies[:2]  # as spot instances do, at once
    left: list[int] = []

    def heard(done: int, total: int) -> None:
        if not left and done >= total // 4:
            left.append(total - done)
            for nanny in going:
                os.kill(nanny.pid, signal.SIGTERM)

    pem = {
        "tls_ca_file": here.tls / "ca.pem",
        "tls_client_cert": here.tls / "client.pem",
        "tls_client_key": here.tls / "client.key",
    }
    security = Security(require_encryption=True, **{name: str(p) for name, p in pem.items()})
    with Client(f"tls://127.0.0.1:{here.port}", security=security, timeout=PATIENCE) as client:
        client.wait_for_workers(len(nannies), timeout=PATIENCE)
        with reporting(heard):
            preempted = SADIH(**form.get_params()).fit(store)
        for nanny in going:
            nanny.wait(timeout=PATIENCE)
            assert "could be handed over" not in here.log(nanny)
    assert [n > 0 for n in left] == [True], "the work was over before they were told to end"
    lines = (tmp_path / TALLY).read_text().splitlines()
    read = Counter(line for line in lines if line.startswith("read") and " features " in line)
    assert len(read) == 160
    assert sum(read.values()) - len(read) <= len(going) * MERGE_FAN_IN  # a task of each
    same_bits(preempted, calm, tmp_path)


def test_systemd(here: Machine) -> None:
    worker = unit_command("systemd/sadih-worker.service")
    bring_up(here, unit_command("systemd/sadih-scheduler.service"), worker)
    digits(here)
    files = {
        "SADIH_TLS_CA": "ca.pem",
        "SADIH_TLS_CERT": "client.pem",
        "SADIH_TLS_KEY": "client.key",
    }
    cluster = {name: str(here.tls / file) for name, file in files.items()}
    cluster["DASK_SCHEDULER_ADDRESS"] = f"tls://127.0.0.1:{here.port}"
    run = unit_command("systemd/sadih-run.service")
    code, said = here.run(run, **SMALL_RUN, **cluster)
    assert code == 0, said
    assert latest(here, "runs/digits")["outcome"] == "complete"


def test_helm_brings_up_an_encrypted_cluster_workers_first(here: Machine) -> None:
    scheduler, worker = helm_commands()
    joined = here.start(worker, "worker", DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT="1s")
    until(lambda: "waiting for the scheduler" in here.log(joined), "a worker that waits")
    started = here.start(scheduler, "scheduler")
    here.until_healthy(started)
    until(lambda: "Register worker" in here.log(started), "a worker that joins")
    assert f"tls://127.0.0.1:{here.port}" in here.log(started)
    here.until_healthy(joined)


def test_a_single_job_waits_for_its_scheduler(here: Machine) -> None:
    pod = documents(KUBERNETES / "job.yaml")[0]["spec"]["job"]["spec"]
    (_, address) = pod["initContainers"][0]["command"]
    door = f"127.0.0.1:{free_port()}"
    words = [sys.executable, str(HEALTH), address.replace("sadih-once-scheduler:8787", door)]
    waiting = here.start(Command(words), "client")
    scheduler = in_image(
        ["dask", "scheduler", "--host=127.0.0.1", "--port=0", f"--dashboard-address={door}"], {}
    )
    assert waiting.poll() is None
    here.start(scheduler, "client")
    assert waiting.wait(timeout=PATIENCE) == 0
    assert here.log(waiting) == f"{door}: ok\n"


def test_a_run_is_well_while_it_lasts(here: Machine) -> None:
    assert here.healthy(here.start(in_image(["run", "--settings"], {}), "client"))


@pytest.mark.parametrize(
    ("words", "address"),
    [
        (["dask", "worker", "tls://s:8786", "--dashboard-address", "8790"], "127.0.0.1:8790"),
        (["/bin/dask", "worker", "tls://s:8786"], "127.0.0.1:8788"),
        (["/sbin/init", "--", "sadih-entrypoint", "dask-worker", "s:1"], "127.0.0.1:8788"),
        (["/sbin/init", "--", "sadih-entrypoint", "dask-scheduler"], "127.0.0.1:8787"),
        (["/sbin/init", "--", "dask", "scheduler", "--dashboard-address=h:1"], "h:1"),
        (["sadih", "run", "dask-worker.toml"], None),
    ],
)
def test_whom_the_health_check_asks(words: list[str], address: str | None) -> None:
    assert runpy.run_path(str(HEALTH))["address_of"](words) == address


def test_a_worker_that_has_no_address_gets_one_that_the_health_check_knows(tmp_path: Path) -> None:
    stand_in, retire = tmp_path / "dask", "--preload-nanny=sadih_dask.cluster.nanny"
    stand_in.write_text('#!/bin/sh\nprintf "%s " "$@"\n')
    stand_in.chmod(0o755)
    for words, said in (
        (["dask-worker", "s:1"], f"worker s:1 --dashboard-address=127.0.0.1:8788 {retire} "),
        (["dask", "worker", "--dashboard-address=:1"], f"worker --dashboard-address=:1 {retire} "),
        (["dask", "scheduler"], "scheduler "),
    ):
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        line = in_image(words, {}).words
        assert subprocess.check_output(line, env=environment, text=True) == said


def test_the_image_speaks_the_words_of_sadih_and_of_dask(here: Machine) -> None:
    code, said = here.run(in_image(["--version"], {}))
    assert (code, said.split()[0]) == (0, "sadih,")
    code, said = here.run(in_image(["dask", "--version"], {}))
    assert (code, said.split()[0]) == (0, "dask,")
