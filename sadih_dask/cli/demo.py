"""``sadih demo``."""

from __future__ import annotations

from pathlib import Path

import click

from sadih_dask.parameters import CHOICES
from sadih_dask.pipeline import digits


@click.command()
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
@click.option("--encoder", type=click.Choice(CHOICES["encoder"]), default="auto", show_default=True)
@click.option("--loss", type=click.Choice(CHOICES["loss"]), default="l21", show_default=True)
@click.option("--solver", type=click.Choice(CHOICES["solver"]), default="exact", show_default=True)
def command(output: Path, bits: tuple[int, ...], encoder: str, loss: str, solver: str) -> None:
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
    if result.missing is not None:
        click.echo(f"No report: {result.missing}", err=True)
        return
    click.echo(f"\nTo see it, open {result.files[digits.PAGE].name} there in a browser.")
