"""A Prefect flow that calls ``sadih run``.

Once, or every night until it is stopped, from the folder that holds `pipelines`::

    python -m pipelines.orchestrators.prefect_flow pipelines/digits.toml
    python -m pipelines.orchestrators.prefect_flow pipelines/nightly.toml --cron '0 3 * * *'
"""

# Annotations stay objects here (no __future__ import): Prefect reads them.
import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed
from prefect.tasks import Task

from pipelines.orchestrators.command import Repeatable, RunError, SadihRun
from pipelines.orchestrators.record import headline, markdown, stage_rows, warnings


def _may_help(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:  # noqa: ARG001
    return isinstance(state.result(raise_on_failure=False), Repeatable)


@task(name="sadih run", retry_condition_fn=_may_help, cache_policy=NO_CACHE, persist_result=False)
def call(config: str, settings: Sequence[str]) -> dict[str, Any]:
    """Call the command; its lines are this task's log."""
    logger = get_run_logger()
    record = SadihRun(config, settings).run(logger.info)
    for line in warnings(record):
        logger.warning(line)
    return record


@flow(name="sadih-run", persist_result=False)
def sadih_run(
    config: str,
    settings: Sequence[str] = (),
    retries: int = 3,
    retry_delay_seconds: float = 60,
) -> State[Any]:
    """Run the pipeline of a configuration file; two artifacts show its stages and metrics.

    Only what repeating may help is retried: an interrupted run, a failed cluster, and a run
    directory that another run holds.
    """
    persistent = call.with_options(retries=retries, retry_delay_seconds=retry_delay_seconds)
    try:
        record = persistent(config, list(settings))
    except RunError as error:
        _show(config, error.record)
        raise
    _show(config, record)
    return Completed(message=headline(record), data=record)


def _show(config: str, record: Mapping[str, Any]) -> None:
    """Keep the record in Prefect, under keys that make one history a configuration."""
    if not record:
        return
    name = re.sub("[^a-z0-9]+", "-", PurePath(config).stem.lower()).strip("-")
    create_table_artifact(stage_rows(record), key=f"sadih-{name}-stages")
    create_markdown_artifact(markdown(record), key=f"sadih-{name}-run")


def main() -> None:
    """Run the flow once, or serve it on a schedule."""
    parser = argparse.ArgumentParser(description="Run a sadih pipeline as a Prefect flow.")
    parser.add_argument("config", help="configuration file of the pipeline (.toml)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--cron", help="serve the flow on this schedule, such as '0 3 * * *'")
    given = parser.parse_args()
    parameters = {"config": given.config, "settings": given.set}
    if given.cron is None:
        sadih_run(**parameters)
    else:
        name = PurePath(given.config).stem
        sadih_run.serve(name=name, cron=given.cron, parameters=parameters, limit=1)


if __name__ == "__main__":
    main()
