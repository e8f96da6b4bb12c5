"""The DAG, run by Airflow with a database of its own."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.orchestrators.pipelines import DONE, RESUMED, REUSED, UNREACHABLE, Digits, actions

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

pytestmark = [
    pytest.mark.skipif(find_spec("airflow") is None, reason="Airflow is not installed"),
    pytest.mark.filterwarnings("default"),  # those of Airflow and what it needs are not ours
]

DAG_FILE = """
from datetime import timedelta
from pipelines.orchestrators.airflow_dag import sadih_dag
dag = sadih_dag({name!r}, {config!r}, {settings!r}, retries=2, retry_delay=timedelta(0))
"""


@pytest.fixture(scope="module", autouse=True)
def dag_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where Airflow looks for DAGs, in a home of its own; set before Airflow is imported."""
    home = tmp_path_factory.mktemp("airflow")
    folder = home / "dags"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_HOME", str(home))
        patch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(folder))
        patch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
        patch.setenv("AIRFLOW__USAGE_DATA_COLLECTION__ENABLED", "False")
        subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True)
        yield folder


def run(folder: Path, digits: Digits, *settings: str) -> DagRun:
    """Put a DAG into the folder and let Airflow run it."""
    name = f"dag_{len(list(folder.iterdir()))}"
    file = folder / f"{name}.py"
    file.write_text(DAG_FILE.format(name=name, config=digits.config, settings=settings))
    return runpy.run_path(str(file))["dag"].test()


def task_of(dag_run: DagRun) -> TaskInstance:
    (task,) = dag_run.get_task_instances()
    return task


def record(dag_run: DagRun, key: str = "return_value") -> dict[str, Any]:
    return task_of(dag_run).xcom_pull("sadih_run", key=key)


def test_success_then_nothing_to_do_then_a_refused_model_is_not_retried(
    digits: Digits, dag_folder: Path
) -> None:
    first = run(dag_folder, digits)
    assert first.state == "success"
    assert actions(record(first)) == DONE
    assert 0.5 < record(first)["metrics"]["lengths"]["8"]["encoded"]["MAP"] <= 1

    again = run(dag_folder, digits)
    assert again.state == "success"
    assert record(again)["outcome"] == "nothing to do"
    assert actions(record(again)) == REUSED

    refused = run(dag_folder, digits, UNREACHABLE)
    assert refused.state == "failed"
    assert "map_min" in record(refused, "failed")["gate"]["reasons"][0]
    assert task_of(refused).try_number == 1


def test_skipped_files_are_no_failure(tmp_path: Path, dag_folder: Path) -> None:
    done = run(dag_folder, Digits.one_of_two_files(tmp_path))
    assert done.state == "success"
    (named,) = record(done)["skipped"]
    assert named.endswith("bad.csv")


def test_an_interrupted_run_is_retried_and_goes_on(digits: Digits, dag_folder: Path) -> None:
    with digits.interrupted_once():
        resumed = run(dag_folder, digits)
    assert resumed.state == "success"
    assert task_of(resumed).try_number == 2
    assert actions(record(resumed)) == RESUMED


def test_a_cancelled_task_stops_the_command(digits: Digits, dag_folder: Path) -> None:
    def not_airflow(*_: object) -> None:
        raise AssertionError("Airflow did not handle the signal")

    before = signal.signal(signal.SIGTERM, not_airflow)
    try:
        with digits.interrupted_once(os.getpid):  # the task runs in this process
            retried = run(dag_folder, digits)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert task_of(retried).try_number == 2
    assert actions(record(retried)) == RESUMED


def test_a_wrong_configuration_is_not_retried(
    digits: Digits, dag_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = run(dag_folder, digits, "model.n_bitz=3")
    assert wrong.state == "failed"
    assert "wrong usage or configuration" in "".join(capfd.readouterr())
    assert task_of(wrong).try_number == 1


def test_busy_is_retried_a_limited_number_of_times(digits: Digits, dag_folder: Path) -> None:
    with digits.held():
        busy = run(dag_folder, digits)
    assert busy.state == "failed"
    assert task_of(busy).try_number == 3
