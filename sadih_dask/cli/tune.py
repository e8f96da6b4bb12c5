"""``sadih tune``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sadih_dask.cli import fit, options
from sadih_dask.cli.progress import Bar

_KEPT = (
    "encoder",
    "loss",
    "solver",
    "anchors",
    "gamma",
    "ridge",
    "similarity",
    "n_init",
    "max_iter",
    "block_rows",
    "random_state",
)
"""Parameters that are not searched, with the options of ``sadih fit``."""


@click.command()
@options.store
@click.argument("model", type=click.Path(dir_okay=False))
@click.option(
    "-b",
    "--bits",
    type=click.IntRange(min=1),
    multiple=True,
    default=(16, 32, 64),
    show_default="16, 32 and 64",
    help="A code length to search at; may be repeated.",
)
@click.option(
    "--alpha",
    type=click.FloatRange(min=0),
    multiple=True,
    help="A weight of reconstruction to try; may be repeated.  [default: 0.01, 0.1, 1, 5, 10]",
)
@click.option(
    "--beta",
    type=click.FloatRange(min=0),
    multiple=True,
    help="A weight of encoding to try; may be repeated.  [default: 0.01, 0.1, 1, 5, 10]",
)
@click.option("--folds", type=click.IntRange(min=2), default=5, show_default=True)
@click.option(
    "--queries",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Rows of each fold that are looked up.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write all results as JSON, and a figure of them, here; earlier ones are replaced.",
)
@options.overwrite
@options.running
def command(
    store: str,
    model: str,
    bits: tuple[int, ...],
    alpha: tuple[float, ...],
    beta: tuple[float, ...],
    folds: int,
    queries: int,
    output: Path | None,
    overwrite: bool,
    **given: Any,
) -> None:
    """Choose weights for STORE by cross-validation and write the best model to the file MODEL.

    STORE is read once, for all folds, weights and code lengths. Every combination is scored by the
    mean average precision of rows of a fold among the rows of the others.

    What a long scan has come to is kept in MODEL.scan until MODEL is written: an interrupted run
    goes on when the same command is repeated.
    """
    from sadih_dask import FeatureStore
    from sadih_dask.errors import ConflictError
    from sadih_dask.pipeline import tuning
    from sadih_dask.selection.grid import PAPER_GRID
    from sadih_dask.storage.checkpoint import Checkpoint
    from sadih_dask.storage.place import locate

    parameters = {name: given.pop(name) for name in _KEPT}
    setting = options.Running(**given)
    opened, place = FeatureStore.open(store), locate(model)
    if place.is_file() and not overwrite:
        raise ConflictError(f"{model} is there already; replace it with overwrite=True")
    place.check()
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)  # an unusable folder is found before the work
    checkpoint = Checkpoint(f"{model}.scan")
    grid = {"alpha": alpha or PAPER_GRID["alpha"], "beta": beta or PAPER_GRID["beta"]}
    hint = (
        f"{model} is as it was before. What a long scan has come to stays in {model}.scan: repeat "
        "the same command to go on."
    )

    def bar(title: str, unit: str, n_units: int) -> Bar:
        return Bar(title, unit=unit, goes_on=unit == "rows", quiet=setting.quiet).over(n_units)

    with options.resumable(hint), setting.prepared():
        tuned = tuning.tune(
            opened,
            parameters,
            grid,
            bits,
            folds,
            queries,
            progress=bar,
            checkpoint=checkpoint,
        )
    tuned.model.save(model)
    checkpoint.discard()
    click.echo(tuned.table)
    best = tuned.search.best_params_
    click.echo(f"\n{model}: {best['n_bits']} bits from {tuned.n_rows:,} rows.")
    if output is not None:
        _say_what_was_written(*tuning.write(output, tuned))


_OUTPUT = next(k for k, option in enumerate(command.params) if option.name == "output")
command.params[_OUTPUT:_OUTPUT] = [o for o in fit.command.params if o.name in _KEPT]


def _say_what_was_written(files: tuple[Path, ...], missing: str | None) -> None:
    click.echo("\nWritten:")
    for path in files:
        click.echo(f"  {path}")
    if missing is not None:
        click.echo(f"No figure: {missing}", err=True)
