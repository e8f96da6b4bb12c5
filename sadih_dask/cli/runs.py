"""``sadih run``, ``sadih runs``, ``sadih compare`` and ``sadih rollback``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sadih_dask.cli import options
from sadih_dask.cli.output import Bar, complain, echo, echo_json

if TYPE_CHECKING:
    from sadih_dask.cluster import ClusterSettings
    from sadih_dask.runs.record import Difference, Record
    from sadih_dask.runs.run import Pipeline


GATE_REFUSED = 3
FILES_SKIPPED = 6
_RESUME = "What is finished stays: repeat the same command to go on."


def _show_settings(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from sadih_dask.runs.loading import describe

    for line in describe():
        echo(line)
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
def run_command(
    configuration: str,
    overrides: tuple[str, ...],
    only_plan: bool,
    as_json: bool,
    running: options.Running,
) -> int:
    """Bring a collection up to date as the TOML file CONFIG says: codes, metrics, a report.

    \b
    sadih run pipelines/digits.toml
    sadih run nightly.toml --set model.n_bits=32 --plan

    Stages: ingest, fit, encode, evaluate, export, report. What is current is not done again, so
    the command may be repeated at any time, and resumes what was interrupted. Settings may also be
    given as environment variables: SADIH__MODEL__N_BITS=32.

    Exit codes: 0 done, or nothing to do; 1 bad data or damage; 2 wrong usage or configuration; 3
    the quality gate refused the model; 4 the cluster failed; 5 another run is at work; 6 done, but
    files were skipped; 130 interrupted.
    """  # noqa: D301 - click reads this escape
    from sadih_dask.runs.loading import load

    settings = load(configuration, overrides)
    cluster = running.over(settings.cluster)  # refused before anything is begun
    from sadih_dask.runs.run import Pipeline, plan

    pipeline = Pipeline(
        settings,
        configuration,
        partial(Bar, quiet=running.quiet),
        lambda: _placed(running, cluster),
        lambda line: None if running.quiet else echo(line, err=as_json),
    )
    if only_plan:
        _print_plan(plan(pipeline), as_json)
        return 0
    try:
        with options.resumable(_RESUME):
            record = pipeline.run()
    finally:
        if as_json and pipeline.record is not None:
            echo_json(pipeline.record.to_dict())
    if not as_json and not running.quiet:
        _print_record(record, pipeline)
    if record.outcome == "refused":
        for reason in (record.gate or {}).get("reasons", []):
            complain(reason)
        complain(f"latest is still {record.previous or 'none'}.")
        return GATE_REFUSED
    for reason in record.skipped.values():
        complain(f"skipped: {reason}")
    return FILES_SKIPPED if record.skipped else 0


@contextmanager
def _placed(
    running: options.Running, settings: ClusterSettings
) -> Iterator[Mapping[str, Any] | None]:
    with running.prepared(settings) as cluster:
        yield cluster.describe()


def _print_plan(stages: Iterator[Mapping[str, Any]], as_json: bool) -> None:
    from dask.utils import format_bytes

    if as_json:
        echo_json(list(stages))
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
        if stage.get("solving") is not None:
            words.append(f"then about {stage['solving']:.2g} s of a processor to solve")
        echo(", ".join(words))
    echo("Nothing was done (--plan).")


def _print_record(record: Record, pipeline: Pipeline) -> None:
    """What was done, and how good it is."""
    directory = pipeline.settings.run.directory
    if record.outcome == "nothing to do":
        echo(f"Nothing to do: {directory} is up to date (run {record.id}).")
        return
    for stage in record.stages:
        rows = f"{stage.facts['rows']:>12,} rows" if "rows" in stage.facts else ""
        seconds = f"{stage.seconds:>8.2f} s" if stage.action == "done" else ""
        echo(f"  {stage.name:<10}{stage.action:<8}{seconds:>10}{rows}")
    if record.refresh is not None:
        _print_decision(record.refresh)
    _print_metrics(record.metrics, record.queries)
    if record.outcome == "complete":
        echo(f"Run {record.id} is the latest: {directory}/latest")
        width = max(map(len, record.files), default=0)
        for name, path in record.files.items():
            echo(f"  {name:<{width}}  {path}")


def _print_decision(decided: Mapping[str, Any]) -> None:
    echo(f"The model is {decided['decision']}: {decided['reason']}.")
    if "codes_changed" in decided:
        word = "change" if decided["decision"] == "refreshed" else "would change"
        bits = f"{decided['bits_changed']:.1%} of all bits"
        echo(f"About {decided['codes_changed']:,} codes {word} with a new one, {bits}.")


def _print_metrics(metrics: Mapping[str, Any], n_queries: int | None) -> None:
    lengths, errors = metrics.get("lengths", {}), metrics.get("standard_errors", {})
    if not lengths:
        return
    of = f"{metrics['n_queries']:,} of {n_queries:,} queries"
    echo(f"Means over {of} ± their standard errors:")
    protocols = list(next(iter(lengths.values())))
    echo(f"{'bits':>6}" + "".join(f"{f'MAP {protocol}':>18}" for protocol in protocols))
    for bits, found in lengths.items():
        pairs = ((found[name].get("MAP"), errors[bits][name].get("MAP")) for name in protocols)
        cells = (" ± ".join(f"{v:.4f}" for v in pair if v is not None) for pair in pairs)
        echo(f"{bits:>6}" + "".join(f"{cell:>18}" for cell in cells))


@click.command()
@click.argument("directory")
@click.option("--json", "as_json", is_flag=True, help="Print the records as a JSON array.")
def runs_command(directory: str, as_json: bool) -> None:
    """List the runs of the run directory DIRECTORY, oldest first, with their metrics.

    The run that is the latest has a star.
    """
    from sadih_dask.errors import SadihError
    from sadih_dask.runs.directory import RunDirectory

    runs = RunDirectory(directory)
    records: list[dict[str, Any]] = []
    for run in runs.runs():
        try:
            found = runs.record(run) or {"outcome": "running"}
        except SadihError as error:
            found = {"outcome": "damaged", "error": str(error)}
        records.append({**found, "id": run})
    for record in records if not runs.is_held() else records[:-1]:
        if record["outcome"] == "running":  # nobody is at it any more
            record["outcome"] = "killed"
    if as_json:
        echo_json(records)
        return
    if not records:
        echo(f"{runs.url} has no runs yet; make one with: sadih run CONFIG")
        return
    latest = runs.latest()
    width = max(len(record["id"]) for record in records)
    echo(
        f"  {'run':<{width}}  {'outcome':<12}{'seconds':>9}{'rows':>14}{'bits':>6}"
        f"{'MAP learned':>13}{'MAP fresh':>13}  stages done"
    )
    for record in records:
        star = "*" if record["id"] == latest else " "
        try:
            line = _line(record)
        except (TypeError, KeyError, ValueError, AttributeError):  # forged: its checksum fits
            line = "damaged: its record is not that of a run"
        echo(f"{star} {record['id']:<{width}}  {line}")
        for remark in _why(record):
            echo(f"    {remark}")


def _why(record: Mapping[str, Any]) -> Iterator[str]:
    """Why a run did not become the latest, what it passed over, and where its report is."""
    if record.get("error"):
        yield str(record["error"])
    yield from (record.get("gate") or {}).get("reasons", [])
    yield from (remark for remark in record.get("remarks", []) if " classes: " in remark)
    yield from (f"skipped: {reason}" for reason in (record.get("skipped") or {}).values())
    if report := (record.get("files") or {}).get("report.html"):
        yield f"report: {report}"


def _line(record: Mapping[str, Any]) -> str:
    from sadih_dask.runs.record import mean_average_precision

    stages = record.get("stages", [])
    done = ", ".join(stage["name"] for stage in stages if stage["action"] == "done")
    outcome = record["outcome"]
    rows = record.get("rows")
    bits = (record.get("metrics") or {}).get("n_bits")
    values = [mean_average_precision(record, protocol) for protocol in ("learned", "fresh")]
    shown = "".join(f"{'' if value is None else f'{value:.4f}':>13}" for value in values)
    seconds = record.get("seconds", 0.0)
    return (
        f"{outcome:<12}{seconds:>9.1f}{'' if rows is None else f'{rows:,}':>14}"
        f"{'' if bits is None else bits:>6}{shown}  {done or 'none'}"
    )


@click.command()
@click.argument("directory")
@click.argument("first", metavar="A")
@click.argument("second", metavar="[B]", default="latest")
@click.option("--json", "as_json", is_flag=True, help="Print everything as a JSON object.")
def compare_command(directory: str, first: str, second: str, as_json: bool) -> None:
    """Show what changed from run A to run B of DIRECTORY: settings, data, versions and metrics.

    A and B are ids as `sadih runs` lists them, or the word latest.  [default for B: latest]
    """
    from sadih_dask.errors import FormatError
    from sadih_dask.runs.directory import RunDirectory
    from sadih_dask.runs.record import compare

    runs = RunDirectory(directory)

    def record_of(name: str) -> dict[str, Any]:
        run = (runs.latest() or name) if name == "latest" else name
        runs.manifest(run)  # says which runs there are, if it is none of them
        if (found := runs.record(run)) is None:
            raise FormatError(f"run {run} of {runs.url} was killed before it left a record")
        return found

    found = compare(record_of(first), record_of(second))
    if as_json:
        echo_json(found.to_dict())
        return
    echo(f"from {first} to {second}", *found.remarks)
    _print_differences("settings", found.settings)
    _print_differences("data and results", found.data)
    _print_differences("versions", found.versions)
    # The other metrics follow it, and are in --json.
    places = ((row, row.what.split(".")) for row in found.metrics if row.what.endswith(".MAP"))
    values = [replace(row, what=f"{bits} bits, {protocol}") for row, (bits, protocol, _) in places]
    _print_differences("mean average precision", values)


def _print_differences(title: str, differences: Iterable[Difference]) -> None:
    rows = list(differences)
    if not rows:
        echo("", f"{title}: the same")
        return
    echo("", f"{title}")
    width = max(len(row.what) for row in rows)
    for row in rows:
        change = "" if row.change is None else f"  {_signed(row.change)}"
        echo(f"  {row.what:<{width}}  {_short(row.first)} -> {_short(row.second)}{change}")


def _signed(change: float) -> str:
    return f"{change:+,.0f}" if change.is_integer() and change else f"{change:+.4f}"


def _short(value: Any) -> str:
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:16]}..."


@click.command()
@click.argument("directory")
@click.argument("run", required=False)
def rollback_command(directory: str, run: str | None) -> None:
    """Make RUN the latest of DIRECTORY again; without RUN, the complete run before the latest.

    Nothing is removed or computed. What is rolled back stays so: `sadih run` does not make the same
    result the latest again, only one from other data or settings.
    """
    from sadih_dask.errors import FormatError
    from sadih_dask.runs.directory import RunDirectory

    runs = RunDirectory(directory)
    if not runs.runs():  # a lock would make the folder of a mistyped name
        raise FormatError(f"{runs.url} has no runs; nothing was changed")
    with runs.locked():
        before, chosen = runs.roll_back(run)
    echo(f"{runs.url}: latest was {before}, is {chosen}.")
