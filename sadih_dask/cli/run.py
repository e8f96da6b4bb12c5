"""``sadih run``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from sadih_dask.cli import options
from sadih_dask.cli.progress import Bar

if TYPE_CHECKING:
    from sadih_dask.cluster import ClusterSettings
    from sadih_dask.pipeline.run import Pipeline
    from sadih_dask.runs.record import Record

GATE_REFUSED = 3
_RESUME = "What is finished stays: repeat the same command to go on."


def _show_settings(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from sadih_dask.config.loading import describe

    for line in describe():
        click.echo(line)
    context.exit()


@click.command()
@click.argument("configuration", type=click.Path(), metavar="CONFIG")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a setting, such as model.n_bits=32; may be repeated.",
)
@click.option("--plan", "only_plan", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the record as a JSON object.")
@click.option(
    "--settings",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_settings,
    help="List all settings of a configuration, and exit.",
)
@options.running
def command(
    configuration: str,
    overrides: tuple[str, ...],
    only_plan: bool,
    as_json: bool,
    **running: Any,
) -> int:
    """Bring a collection up to date as the TOML file CONFIG says: codes, metrics, a report.

    \b
    sadih run pipelines/digits.toml
    sadih run nightly.toml --set model.n_bits=32 --plan

    Stages: ingest, fit, encode, evaluate, export, report. What is current is not done again, so
    the command may be repeated at any time, and resumes what was interrupted. Settings may also be
    given as environment variables: SADIH__MODEL__N_BITS=32.

    Exit codes: 0 done, or nothing to do; 1 bad data or damage; 2 wrong usage or configuration; 3
    the quality gate refused the model; 4 the cluster failed; 5 another run is at work; 130
    interrupted.
    """  # noqa: D301 - click reads this escape
    from sadih_dask.config import load

    settings = load(configuration, overrides)
    setting = options.Running(**running)
    setting.check(settings.cluster.chosen)
    from sadih_dask.pipeline.run import Pipeline, plan

    pipeline = Pipeline(
        settings,
        configuration,
        _Display(setting.quiet),
        lambda: _placed(setting, settings.cluster.chosen),
        lambda line: None if setting.quiet else click.echo(line, err=as_json),
    )
    if only_plan:
        _print_plan(plan(pipeline), as_json)
        return 0
    try:
        with options.resumable(_RESUME):
            record = pipeline.run()
    finally:
        if as_json and pipeline.record is not None:
            click.echo(json.dumps(pipeline.record.to_dict(), indent=1))
    if not as_json and not setting.quiet:
        _print(record, pipeline)
    if record.outcome == "refused":
        for reason in (record.gate or {}).get("reasons", []):
            click.echo(f"sadih: {reason}", err=True)
        click.echo(f"sadih: latest is still {record.previous or 'none'}.", err=True)
        return GATE_REFUSED
    return 0


class _Display:
    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def bar(self, title: str, *, unit: str = "rows", goes_on: bool = False) -> Bar:
        return Bar(title, unit=unit, goes_on=goes_on, quiet=self._quiet)


@contextmanager
def _placed(setting: options.Running, said: ClusterSettings) -> Iterator[Mapping[str, Any] | None]:
    with setting.prepared(said) as place:
        yield place.describe()


def _print_plan(stages: Iterator[Mapping[str, Any]], as_json: bool) -> None:
    from dask.utils import format_bytes

    if as_json:
        click.echo(json.dumps(list(stages), indent=1))
        return
    for stage in stages:
        words = [f"{stage['stage']:<10}{stage['action']}"]
        if stage.get("reason"):
            words.append(str(stage["reason"]))
        if stage.get("rows") is not None:
            words.append(f"{stage['rows']:,} rows")
        if stage.get("bytes") is not None:
            words.append(f"{format_bytes(stage['bytes'])} to read")
        if stage.get("memory") is not None:
            words.append(f"at most {format_bytes(stage['memory'])} of memory")
        click.echo(", ".join(words))
    click.echo("Nothing was done (--plan).")


def _print(record: Record, pipeline: Pipeline) -> None:
    """What was done, and how good it is."""
    directory = pipeline.settings.run.directory
    if record.outcome == "nothing to do":
        click.echo(f"Nothing to do: {directory} is up to date (run {record.id}).")
        return
    for stage in record.stages:
        rows = f"{stage.facts['rows']:>12,} rows" if "rows" in stage.facts else ""
        seconds = f"{stage.seconds:>8.2f} s" if stage.action == "done" else ""
        click.echo(f"  {stage.name:<10}{stage.action:<8}{seconds:>10}{rows}")
    _print_metrics(record.metrics)
    if record.outcome == "complete":
        click.echo(f"Run {record.id} is the latest: {directory}/latest")
        for name, path in record.files.items():
            click.echo(f"  {name:<14}{path}")


def _print_metrics(metrics: Mapping[str, Any]) -> None:
    lengths = metrics.get("lengths", {})
    if not lengths:
        return
    protocols = list(next(iter(lengths.values())))
    names = ["MAP", "precision@100"]
    titles = [f"{name} {protocol}" for protocol in protocols for name in names]
    click.echo(f"{'bits':>6}" + "".join(f"{title:>23}" for title in titles))
    for bits, found in lengths.items():
        values = [found[protocol].get(name) for protocol in protocols for name in names]
        shown = "".join(f"{'' if v is None else f'{v:.4f}':>23}" for v in values)
        click.echo(f"{bits:>6}{shown}")
