"""The job, run by Dagster."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from logging import WARNING
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dagster")

import dagster as dg

from pipelines.orchestrators.dagster_job import Pipeline, defs, sadih_job, sadih_run, schedule
from tests.orchestrators.pipelines import DONE, RESUMED, REUSED, UNREACHABLE, Digits

REPOSITORY = Path(__file__).parents[2]
JOB_FILE = "pipelines/orchestrators/dagster_job.py"


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    """A home of its own: it remembers the runs of this module, and reports to nobody."""
    with dg.instance_for_test() as instance:
        yield instance


@dg.job
def impatient_job() -> None:
    """The job as it is, but its retries come at once."""
    sadih_run.with_retry_policy(dg.RetryPolicy(max_retries=2))()


def run(instance: dg.DagsterInstance, digits: Digits, *settings: str) -> dg.ExecuteInProcessResult:
    pipeline = Pipeline(config=digits.config, settings=list(settings))
    return impatient_job.execute_in_process(
        run_config=dg.RunConfig(ops={"sadih_run": pipeline}),
        instance=instance,
        raise_on_error=False,
    )


def attempts(result: dg.ExecuteInProcessResult) -> int:
    """How often the op was tried."""
    retries = [event for event in result.all_events if event.is_step_restarted]
    return 1 + len(retries)


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """What the materialization of a run shows."""
    (event,) = result.asset_materializations_for_node("sadih_run")
    return {name: value.value for name, value in event.metadata.items()}


def actions(shown: dict[str, Any]) -> dict[str, str]:
    return {row.data["name"]: row.data["action"] for row in shown["stages"].records}


def test_success_shows_stages_metrics_and_the_report(
    finished: Digits, instance: dg.DagsterInstance
) -> None:
    result = run(instance, finished)
    assert result.success
    shown = metadata(result)
    assert shown["outcome"] == "complete"
    assert actions(shown) == DONE | {"report": "done"}
    assert 0.5 < shown["MAP, encoded, 8 bits"] <= 1
    assert shown["report"].endswith("report.html")
    assert instance.get_latest_materialization_event(dg.AssetKey(["sadih", "Some Digits"]))


def test_a_second_run_has_nothing_to_do(finished: Digits, instance: dg.DagsterInstance) -> None:
    run(instance, finished)
    shown = metadata(run(instance, finished))
    assert shown["outcome"] == "nothing to do"
    assert actions(shown) == REUSED | {"report": "reused"}


def test_a_refused_model_fails_without_retry_and_shows_why(
    finished: Digits, instance: dg.DagsterInstance
) -> None:
    result = run(instance, finished, UNREACHABLE)
    assert not result.success
    assert attempts(result) == 1
    failure = result.failure_data_for_node("sadih_run")
    assert "quality gate refused" in str(failure.user_failure_data.description)
    assert failure.user_failure_data.metadata["outcome"].value == "refused"


def test_an_interrupted_run_is_retried_and_goes_on(
    digits: Digits, instance: dg.DagsterInstance
) -> None:
    with digits.interrupted_once():
        result = run(instance, digits)
    assert result.success
    assert attempts(result) == 2
    assert actions(metadata(result)) == RESUMED


def test_skipped_files_are_a_warning(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    result = run(instance, Digits.one_of_two_files(tmp_path))
    assert result.success
    assert attempts(result) == 1
    logged = [log.user_message for log in instance.all_logs(result.run_id) if log.level == WARNING]
    assert any("skipped: " in line and "bad.csv" in line for line in logged)


def test_a_wrong_configuration_is_not_retried(digits: Digits, instance: dg.DagsterInstance) -> None:
    result = run(instance, digits, "model.n_bitz=3")
    assert not result.success
    assert attempts(result) == 1


def test_busy_is_retried_a_limited_number_of_times(
    digits: Digits, instance: dg.DagsterInstance
) -> None:
    with digits.held():
        result = run(instance, digits)
    assert not result.success
    assert attempts(result) == 3


def test_a_cancelled_job_stops_the_command(
    digits: Digits, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    asked = tmp_path / "run.json"
    asked.write_text(json.dumps({"ops": {"sadih_run": {"config": {"config": digits.config}}}}))
    process = subprocess.Popen(
        [sys.executable, "-m", "dagster", "job", "execute", "-f", JOB_FILE, "-c", str(asked)],
        cwd=REPOSITORY,
        env={**os.environ, "DAGSTER_HOME": instance.root_directory},
    )
    try:
        with digits.interrupted_once(lambda: process.pid):
            assert process.wait(300) != 0
    finally:
        process.kill()
    assert digits.was_stopped()


def test_a_schedule_asks_for_a_run_of_its_pipeline(
    finished: Digits, instance: dg.DagsterInstance
) -> None:
    nightly = schedule("at_three", "0 3 * * *", finished.config)
    with dg.build_schedule_context(instance) as context:
        (request,) = nightly.evaluate_tick(context).run_requests
    assert sadih_job.execute_in_process(request.run_config, instance).success


def test_the_example_is_sound() -> None:
    assert defs.resolve_schedule_def("nightly").cron_schedule == "0 3 * * *"
    dg.Definitions.validate_loadable(defs)
