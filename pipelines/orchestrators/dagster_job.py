"""A Dagster job that calls ``sadih run``, and a schedule for it.

From the folder that holds `pipelines`::

    dagster dev -f pipelines/orchestrators/dagster_job.py

The schedule is an example and is off until somebody turns it on.
"""

# Annotations stay objects here (no __future__ import): Dagster reads them.
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import dagster as dg

from pipelines.orchestrators.command import RunFailed, SadihRun
from pipelines.orchestrators.record import headline, measures, report_address, stage_rows, warnings


class Pipeline(dg.Config):
    """Which pipeline to run: its configuration file, and settings as for ``--set``."""

    config: str
    settings: list[str] = []  # noqa: RUF012 (pydantic copies it)


@dg.op(
    out=dg.Out(dg.Nothing),
    retry_policy=dg.RetryPolicy(max_retries=3, delay=60, backoff=dg.Backoff.EXPONENTIAL),
)
def sadih_run(context: dg.OpExecutionContext, config: Pipeline) -> None:
    """Call the command and keep its record as a materialization of the asset ``sadih/NAME``.

    Errors that repeating may help (an interrupted run, a failed cluster, a run directory that
    another run holds) go to the retry policy; all others end the job.
    """
    try:
        record = SadihRun(config.config, config.settings).run(context.log.info)
    except RunFailed as error:
        raise dg.Failure(str(error), _metadata(error.record), allow_retries=False) from error
    for line in warnings(record):
        context.log.warning(line)
    context.log_event(
        dg.AssetMaterialization(
            ["sadih", PurePath(config.config).stem],
            description=headline(record),
            metadata=_metadata(record),
        )
    )


def _metadata(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record as Dagster shows it: numbers are drawn over the runs."""
    if not record:
        return {}
    shown: dict[str, Any] = {
        "run": str(record.get("id")),
        "outcome": str(record["outcome"]),
        "seconds": float(record["seconds"]),
        "stages": dg.TableMetadataValue(
            [dg.TableRecord(row) for row in stage_rows(record)], _STAGE_SCHEMA
        ),
        **measures(record),
    }
    if (address := report_address(record)) is not None:
        shown["report"] = dg.MetadataValue.path(address)
    return shown


_STAGE_SCHEMA = dg.TableSchema(
    [
        dg.TableColumn("name", "string"),
        dg.TableColumn("action", "string"),
        dg.TableColumn("seconds", "float"),
        dg.TableColumn("rows", "int"),
        dg.TableColumn("bytes", "int"),
    ]
)


@dg.job
def sadih_job() -> None:
    """Run one pipeline."""
    sadih_run()


def schedule(
    name: str, cron: str, config: str, settings: Sequence[str] = ()
) -> dg.ScheduleDefinition:
    """Run a pipeline at fixed times."""
    pipeline = Pipeline(config=config, settings=list(settings))
    return dg.ScheduleDefinition(
        name=name,
        job=sadih_job,
        cron_schedule=cron,
        run_config=dg.RunConfig(ops={"sadih_run": pipeline}),
    )


defs = dg.Definitions(
    jobs=[sadih_job], schedules=[schedule("nightly", "0 3 * * *", "pipelines/nightly.toml")]
)
