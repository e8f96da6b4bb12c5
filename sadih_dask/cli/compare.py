"""``sadih compare``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sadih_dask.runs.comparing import Difference


@click.command()
@click.argument("directory")
@click.argument("first", metavar="A")
@click.argument("second", metavar="[B]", default="latest")
@click.option("--json", "as_json", is_flag=True, help="Print everything as a JSON object.")
def command(directory: str, first: str, second: str, as_json: bool) -> None:
    """Show what changed from run A to run B of DIRECTORY: settings, data, versions and metrics.

    A and B are ids as `sadih runs` lists them, or the word latest.  [default for B: latest]
    """
    from sadih_dask.errors import FormatError
    from sadih_dask.runs.comparing import compare
    from sadih_dask.runs.workspace import Workspace

    workspace = Workspace(directory)

    def record_of(name: str) -> dict[str, Any]:
        run = (workspace.latest() or name) if name == "latest" else name
        workspace.manifest(run)  # says which runs there are, if it is none of them
        if (found := workspace.record(run)) is None:
            raise FormatError(f"run {run} of {workspace.url} was killed before it left a record")
        return found

    found = compare(record_of(first), record_of(second))
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=1))
        return
    click.echo(f"from {first} to {second}")
    _print("settings", found.settings)
    _print("data and results", found.data)
    _print("versions", found.versions)
    _print("mean average precision", [_named(row) for row in found.metrics if _is_map(row)])


def _is_map(row: Difference) -> bool:
    """MAP of every length and protocol; the other metrics follow it and are in --json."""
    return row.what.endswith(".MAP")


def _named(row: Difference) -> Difference:
    bits, protocol, _ = row.what.split(".")
    return replace(row, what=f"{bits} bits, {protocol}")


def _print(title: str, differences: Iterable[Difference]) -> None:
    rows = list(differences)
    if not rows:
        click.echo(f"\n{title}: the same")
        return
    click.echo(f"\n{title}")
    width = max(len(row.what) for row in rows)
    for row in rows:
        change = "" if row.change is None else f"  {_signed(row.change)}"
        click.echo(f"  {row.what:<{width}}  {_short(row.first)} -> {_short(row.second)}{change}")


def _signed(change: float) -> str:
    return f"{change:+,.0f}" if change.is_integer() and change else f"{change:+.4f}"


def _short(value: Any) -> str:
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:16]}..."
