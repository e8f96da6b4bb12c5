"""``sadih verify``."""

from __future__ import annotations

import click

from sadih_dask.cli import options
from sadih_dask.cli.progress import Bar


@click.command()
@options.store
@click.option("--workers", type=click.IntRange(min=1), help="Threads that read.  [default: 4]")
@options.quiet
def command(store: str, workers: int | None, quiet: bool) -> None:
    """Read all of STORE and name every chunk that is not what was written (exit code 1).

    STORE is a feature store, a code store, a model file, or a run directory with all it holds.
    """
    from sadih_dask.runs.verifying import is_run_directory
    from sadih_dask.storage.inspect import open_store
    from sadih_dask.storage.model import read_model
    from sadih_dask.storage.place import is_file

    if is_file(store):
        read_model(store)
        click.echo(f"{store}: model file, intact.")
        return
    if is_run_directory(store):
        _verify_runs(store)
        return
    opened = open_store(store)
    with (
        options.resumable("Nothing was changed."),
        Bar("Verifying", unit="chunks", quiet=quiet) as b,
    ):
        found = opened.verify(workers=workers, progress=b)
    for problem in found.problems:
        click.echo(problem)
    if not found.ok:
        damaged = f"{len(found.problems)} of {found.n_chunks} chunks are damaged"
        click.echo(f"sadih: {found.url}: {damaged}", err=True)
        raise click.exceptions.Exit(1)
    click.echo(
        f"{found.url}: intact. {found.n_rows:,} rows, {found.n_chunks:,} chunks, "
        f"{found.n_bytes:,} bytes read and compared with their checksums and digests."
    )


def _verify_runs(directory: str) -> None:
    from sadih_dask.runs.verifying import problems
    from sadih_dask.runs.workspace import Workspace

    workspace = Workspace(directory)
    found = list(problems(workspace))
    for problem in found:
        click.echo(problem)
    if found:
        click.echo(f"sadih: {workspace.url}: {len(found)} things are damaged", err=True)
        raise click.exceptions.Exit(1)
    click.echo(f"{workspace.url}: intact. {len(workspace.runs())} runs, all that they made.")
