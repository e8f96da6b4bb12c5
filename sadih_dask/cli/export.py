"""``sadih export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sadih_dask.cli import options
from sadih_dask.cli.progress import Bar


@click.command()
@click.argument("codes")
@click.argument("index", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--kind",
    type=click.Choice(["flat", "ivf", "multihash"]),
    default="flat",
    show_default=True,
    help="Exact; inverted lists; several hash tables.",
)
@click.option(
    "--lists", "n_lists", type=click.IntRange(min=1), help="Inverted lists.  [default: √n]"
)
@click.option("--probe", "n_probe", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--hashes", "n_hashes", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--hash-bits", type=click.IntRange(min=1), help="Bits of a hash table's keys.")
@options.overwrite
@options.quiet
def command(codes: str, index: Path, overwrite: bool, quiet: bool, **form: Any) -> None:
    """Write the code store CODES as the file INDEX, a binary index that FAISS reads.

    Results of the index are the ids of the store where these are integers, else row numbers.
    """
    from sadih_dask import CodeStore
    from sadih_dask.pipeline.searching import check_target
    from sadih_dask.storage.export import export_faiss

    check_target(index, overwrite=overwrite, endings=())
    store = CodeStore.open(codes)
    with (
        options.resumable(f"{index} was not written."),
        Bar("Exporting", quiet=quiet) as bar,
    ):
        path = export_faiss(store, index, progress=bar, **form)
    numbers = "ids" if "ids" in store.arrays and store.dtype("ids").kind == "i" else "row numbers"
    what = f"{form['kind']} index of {store.n_rows:,} codes of {store.n_bits} bits"
    click.echo(f"{path}: {what}, results are {numbers}.")
