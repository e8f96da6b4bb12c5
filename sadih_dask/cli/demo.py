"""The ``sadih`` command: parse, delegate, translate errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import click

from sadih_dask import __version__
from sadih_dask.errors import SadihError
from sadih_dask.learning.encoders import EncoderKind
from sadih_dask.learning.solver import Loss, SolverKind
from sadih_dask.pipeline import digits


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sadih")
def commands() -> None:
    """Learn binary codes whose Hamming distance follows labels."""


@commands.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/digits"),
    show_default=True,
    help="Folder for the model, the codes and the report.",
)
@click.option(
    "-b",
    "--bits",
    type=click.IntRange(min=1),
    multiple=True,
    default=(8, 16, 32, 64),
    show_default=True,
    help="Code length; repeat for several, all from one scan of the data.",
)
@click.option(
    "--encoder", type=click.Choice(get_args(EncoderKind)), default="ridge", show_default=True
)
@click.option("--loss", type=click.Choice(get_args(Loss)), default="l21", show_default=True)
@click.option(
    "--solver", type=click.Choice(get_args(SolverKind)), default="exact", show_default=True
)
def demo(output: Path, bits: tuple[int, ...], encoder: str, loss: str, solver: str) -> None:
    """Hash scikit-learn's handwritten digits and report retrieval quality."""
    result = digits.run(output, bits, encoder=encoder, loss=loss, solver=solver)
    click.echo(
        f"Handwritten digits: {result.n_database} database rows, {result.n_queries} held-out "
        "queries, 10 classes.\n"
        "MAP and precision in the first 100 (P@100), ties averaged over all orders.\n"
        "learned: database rows carry the code of their label; encoded: they are hashed too.\n"
    )
    click.echo(f"{'':>6}  {'learned':^15}  {'encoded':^15}")
    click.echo(f"{'bits':>6}  {'MAP':>7} {'P@100':>7}  {'MAP':>7} {'P@100':>7}  {'seconds':>8}")
    for row in result.rows:
        click.echo(
            f"{row.n_bits:>6}  {row.map_learned:>7.4f} {row.precision_100_learned:>7.4f}  "
            f"{row.map_encoded:>7.4f} {row.precision_100_encoded:>7.4f}  {row.seconds:>8.2f}"
        )
    click.echo("\nThe first length includes the one pass over the data; the others reuse it.")
    click.echo(f"\nWritten, the model and codes at {result.rows[-1].n_bits} bits:")
    for path in result.files.values():
        click.echo(f"  {path}")


def main() -> None:
    """Run the command line; a wrong input or an unusable file is one line, not a traceback."""
    try:
        commands(prog_name="sadih")
    except (SadihError, OSError) as error:
        click.echo(f"sadih: {error}", err=True)
        sys.exit(1)
