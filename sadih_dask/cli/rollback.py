"""``sadih rollback``."""

from __future__ import annotations

import click


@click.command()
@click.argument("directory")
@click.argument("run", required=False)
def command(directory: str, run: str | None) -> None:
    """Make RUN the latest of DIRECTORY again; without RUN, the complete run before the latest.

    Nothing is removed or computed. What is rolled back stays so: `sadih run` does not make the same
    result the latest again, only one from other data or settings.
    """
    from sadih_dask.errors import FormatError
    from sadih_dask.runs.workspace import Workspace

    workspace = Workspace(directory)
    if not workspace.runs():  # a lock would make the folder of a mistyped name
        raise FormatError(f"{workspace.url} has no runs; nothing was changed")
    with workspace.locked():
        before = workspace.latest()
        chosen = run or workspace.previous_complete()
        if not workspace.manifest(chosen).get("complete"):
            raise FormatError(f"run {chosen} of {workspace.url} is not complete; choose another")
        workspace.reject_after(chosen)
        workspace.point_latest_at(chosen)
    click.echo(f"{workspace.url}: latest was {before}, is {chosen}.")
