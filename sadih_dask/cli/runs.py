"""``sadih runs``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click


@click.command()
@click.argument("directory")
@click.option("--json", "as_json", is_flag=True, help="Print the records as a JSON array.")
def command(directory: str, as_json: bool) -> None:
    """List the runs of the run directory DIRECTORY, oldest first, with their metrics.

    The run that is the latest has a star.
    """
    from sadih_dask.errors import SadihError
    from sadih_dask.runs.workspace import Workspace

    workspace = Workspace(directory)
    records: list[dict[str, Any]] = []
    for run in workspace.runs():
        try:
            found = workspace.record(run) or {"outcome": "running"}
        except SadihError as error:
            found = {"outcome": "damaged", "error": str(error)}
        records.append({**found, "id": run})
    for record in records if not workspace.is_held() else records[:-1]:
        if record["outcome"] == "running":  # nobody is at it any more
            record["outcome"] = "killed"
    if as_json:
        click.echo(json.dumps(records, indent=1))
        return
    if not records:
        click.echo(f"{workspace.url} has no runs yet; make one with: sadih run CONFIG")
        return
    latest = workspace.latest()
    width = max(len(record["id"]) for record in records)
    click.echo(
        f"  {'run':<{width}}  {'outcome':<12}{'seconds':>9}{'rows':>14}{'bits':>6}"
        f"{'MAP learned':>13}{'MAP encoded':>13}  stages done"
    )
    for record in records:
        star = "*" if record["id"] == latest else " "
        click.echo(f"{star} {record['id']:<{width}}  {_line(record)}")


def _line(record: Mapping[str, Any]) -> str:
    from sadih_dask.runs.record import mean_average_precision

    stages = record.get("stages", [])
    done = ", ".join(stage["name"] for stage in stages if stage["action"] == "done")
    outcome = record["outcome"]
    rows = record.get("rows")
    bits = (record.get("metrics") or {}).get("n_bits")
    values = [mean_average_precision(record, protocol) for protocol in ("learned", "encoded")]
    shown = "".join(f"{'' if value is None else f'{value:.4f}':>13}" for value in values)
    seconds = record.get("seconds", 0.0)
    return (
        f"{outcome:<12}{seconds:>9.1f}{'' if rows is None else f'{rows:,}':>14}"
        f"{'' if bits is None else bits:>6}{shown}  {done or 'none'}"
    )
