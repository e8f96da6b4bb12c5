"""An Airflow operator that calls ``sadih run``, and a DAG of it.

Airflow must find the folder that holds `pipelines` on PYTHONPATH. A file in its DAG folder then
needs two lines::

    from pipelines.orchestrators.airflow_dag import sadih_dag
    nightly = sadih_dag("nightly", "/srv/pipelines/nightly.toml", schedule="0 3 * * *")
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from pipelines.orchestrators.command import RunFailed, SadihRun
from pipelines.orchestrators.record import headline, warnings


class SadihRunOperator(BaseOperator):
    """Call the command; its record is the task's XCom, ``failed`` instead if it failed.

    Errors that repeating may help (an interrupted run, a failed cluster, a run directory that
    another run holds) are retried as often as `retries` says; all others fail at once.
    """

    template_fields: Sequence[str] = ("config", "settings")

    def __init__(self, *, config: str, settings: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.settings = list(settings)
        self._run: SadihRun | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Call the command."""
        self._run = SadihRun(self.config, self.settings)
        try:
            record = self._run.run(self.log.info)
        except RunFailed as error:
            context["ti"].xcom_push("failed", error.record)
            raise AirflowFailException(str(error)) from error
        for line in warnings(record):
            self.log.warning(line)
        self.log.info(headline(record))
        return record

    def on_kill(self) -> None:
        """Stop the command when Airflow stops the task; it keeps what it has finished."""
        if self._run is not None:
            self._run.stop()


def sadih_dag(
    dag_id: str,
    config: str,
    settings: Sequence[str] = (),
    *,
    schedule: str | None = None,
    retries: int = 3,
    retry_delay: timedelta = timedelta(minutes=1),
) -> DAG:
    """Return a DAG of one pipeline; a run waits for the one before."""
    with DAG(
        dag_id,
        schedule=schedule,
        start_date=datetime(2025, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        tags=["sadih"],
    ) as dag:
        SadihRunOperator(
            task_id="sadih_run",
            config=config,
            settings=settings,
            retries=retries,
            retry_delay=retry_delay,
        )
    return dag
