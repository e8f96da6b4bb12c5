"""The flow, run by Prefect with a server of its own on this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prefect")

from prefect import State
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL
from prefect.testing.utilities import prefect_test_harness

from pipelines.orchestrators.command import RunFailed
from pipelines.orchestrators.prefect_flow import sadih_run
from tests.orchestrators.pipelines import DONE, RESUMED, REUSED, UNREACHABLE, Digits, actions

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """A temporary database and server."""
    with prefect_test_harness(server_startup_timeout=300):
        yield


def run(digits: Digits, *settings: str) -> State[Any]:
    return sadih_run(digits.config, settings, retries=2, retry_delay_seconds=0, return_state=True)


def attempts(state: State[Any]) -> int:
    """How often the task of a flow run was tried; the server hears of it a little later."""
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
    deadline = time.monotonic() + 300
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            for task_run in client.read_task_runs(flow_run_filter=wanted):
                if task_run.state is not None and task_run.state.is_final():
                    return task_run.run_count
            time.sleep(0.1)
    raise TimeoutError("Prefect's server never heard of the end of the task")


def artifacts(state: State[Any]) -> dict[str, str]:
    """What a flow run left to look at, by key."""
    wanted = ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id])
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=wanted))
    return {str(artifact.key): str(artifact.data) for artifact in found}


def test_success_shows_stages_metrics_and_the_report(finished: Digits) -> None:
    state = run(finished)
    assert state.is_completed()
    assert actions(state.result()) == DONE | {"report": "done"}
    found = artifacts(state)
    stages = json.loads(found["sadih-some-digits-stages"])
    assert [row["name"] for row in stages] == ["ingest", "fit", "encode", "evaluate", "report"]
    page = found["sadih-some-digits-run"]
    assert "report.html](" in page
    assert "| MAP, encoded, 8 bits | 0." in page


def test_a_second_run_has_nothing_to_do(finished: Digits) -> None:
    run(finished)
    state = run(finished)
    assert state.is_completed()
    assert "nothing to do" in str(state.message)
    assert actions(state.result()) == REUSED | {"report": "reused"}


def test_a_refused_model_fails_without_retry_and_shows_why(finished: Digits) -> None:
    state = run(finished, UNREACHABLE)
    assert state.is_failed()
    with pytest.raises(RunFailed, match="quality gate"):
        state.result()
    assert attempts(state) == 1
    assert "map_min" in artifacts(state)["sadih-some-digits-run"]


def test_an_interrupted_run_is_retried_and_goes_on(digits: Digits) -> None:
    with digits.interrupted_once():
        state = run(digits)
    assert state.is_completed()
    assert attempts(state) == 2
    assert actions(state.result()) == RESUMED


def test_skipped_files_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = run(Digits.one_of_two_files(tmp_path))
    assert state.is_completed()
    assert "1 skipped" in str(state.message)
    assert "bad.csv" in artifacts(state)["sadih-some-digits-run"]
    warned = [found.getMessage() for found in caplog.records if found.levelname == "WARNING"]
    assert any("skipped: " in line and "bad.csv" in line for line in warned)


def test_a_wrong_configuration_is_not_retried(digits: Digits) -> None:
    state = run(digits, "model.n_bitz=3")
    assert state.is_failed()
    assert attempts(state) == 1


def test_busy_is_retried_a_limited_number_of_times(digits: Digits) -> None:
    with digits.held():
        state = run(digits)
    assert state.is_failed()
    assert attempts(state) == 3


@contextmanager
def command_line(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The flow as a command, as the README says."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipelines.orchestrators.prefect_flow", *arguments],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "PREFECT_API_URL": str(PREFECT_API_URL.value()),
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        },
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        # A server that has once said "database is locked" can leave the runner waiting for it.
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()


def test_a_cancelled_flow_stops_the_command(digits: Digits) -> None:
    with command_line(digits.config) as process:
        with digits.interrupted_once(lambda: process.pid):
            assert process.wait(300) != 0
        assert digits.was_stopped()


def deployment(name: str, process: subprocess.Popen[bytes]) -> DeploymentResponse:
    """What the server knows of a deployment, as soon as it does."""
    deadline = time.monotonic() + 300
    with get_client(sync_client=True) as client:
        while True:
            try:
                return client.read_deployment_by_name(name)
            except ObjectNotFound:
                assert time.monotonic() < deadline, f"{name} was never served"
                assert process.poll() is None, "the serving process has ended"
                time.sleep(0.2)


def test_served_on_a_schedule(digits: Digits) -> None:
    with command_line(digits.config, "--cron", "0 3 * * *") as process:
        found = deployment("sadih-run/Some Digits", process)
        assert [entry.schedule.cron for entry in found.schedules] == ["0 3 * * *"]
        flow_run = run_deployment(found.id, timeout=300, poll_interval=0.5)
    assert flow_run.state.is_completed(), flow_run.state.message
    assert (digits.directory / "latest").exists()
