"""``sadih ingest``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sadih_dask.cli import options
from sadih_dask.cli.progress import Bar

_RESUME = "Blocks that are written stay: repeat the same command to go on."


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@options.store
@click.option("--labels", multiple=True, metavar="FILE", help="Labels; repeat it for shards.")
@click.option("--features-variable", metavar="NAME", help="Variable or column of the features.")
@click.option("--labels-variable", metavar="NAME", help="Variable or column of the labels.")
@click.option("--ids", multiple=True, metavar="FILE", help="One integer or text a row.")
@click.option("--thumbnails", multiple=True, metavar="FILE", help="One small uint8 picture a row.")
@click.option("--transpose", is_flag=True, help="The last axis of the features holds the rows.")
@click.option("--scale", metavar="X", help="A number, or a variable, that multiplies the features.")
@click.option(
    "--dtype",
    type=click.Choice(["float16", "float32", "float64"]),
    help="Type to store features in.  [default: their own; float32 for integers]",
)
@click.option("--class-names", metavar="FILE", help="Names of the classes in order, one a line.")
@click.option("--separator", metavar="TEXT", help="Splits text into several labels a row.")
@click.option("--chunk-rows", type=click.IntRange(min=1), help="[default: chunks of 8 to 16 MiB]")
@click.option(
    "--compression",
    type=click.Choice(["none", "zstd"]),
    help="[default: none on a local disk, zstd behind a URL]",
)
@click.option("--append", is_flag=True, help="Add the files that the store does not have yet.")
@options.overwrite
@click.option(
    "--unlabelled",
    type=click.Choice(["error", "drop"]),
    default="error",
    show_default=True,
    help="What to do about rows without any label, where rows may have several.",
)
@options.memory_limit
@options.quiet
def command(sources: tuple[str, ...], store: str, quiet: bool, **chosen: Any) -> None:
    r"""Pour feature files into STORE, with their labels.

    \b
    sadih ingest x.npy s.zarr --labels y.npy
    sadih ingest 'shards/*.parquet' s.zarr --append

    SOURCE is .npy, .npz, .mat, HDF5, IDX, Parquet, Arrow or Zarr, a pattern, or several of them.
    Without --labels, labels are taken from the same files if one variable is named like labels.
    An interrupted ingestion goes on when the same command is repeated; with --append, files that
    are in the store already are passed over, and the new rows are added all at once.
    """
    from sadih_dask.storage.ingest import ingest

    mode = _mode(chosen.pop("append"), chosen.pop("overwrite"))
    form = {name: chosen.pop(name) for name in ("dtype", "chunk_rows", "compression")}
    hint = _RESUME if mode != "append" else "Nothing was added: repeat the same command."
    with options.resumable(hint), Bar("Ingesting", goes_on=True, quiet=quiet) as bar:
        done = ingest(_files(sources, chosen), store, mode=mode, progress=bar, **form)
    what = f"{done.store.url}: {done.store.n_rows:,} rows of {done.store.n_features} features"
    click.echo(f"{what}, {done.n_new:,} written now, {done.n_kept:,} kept.")
    if done.n_passed_over:
        click.echo(f"{done.n_passed_over} of {done.n_files} files were in the store already.")
    if done.n_dropped:
        click.echo(f"{done.n_dropped:,} rows without a label were left out.")
    if "labels" not in done.store.arrays:
        click.echo("It has no labels (--labels): its rows can be hashed, but not learned from.")


def _mode(append: bool, overwrite: bool) -> Any:
    if append and overwrite:
        raise click.UsageError("--append and --overwrite exclude each other")
    return "append" if append else "overwrite" if overwrite else "create"


def _files(sources: tuple[str, ...], chosen: dict[str, Any]) -> Any:
    from sadih_dask.storage.ingest import DataFiles
    from sadih_dask.storage.sources import read_class_names

    if chosen["class_names"] is not None:
        chosen["class_names"] = read_class_names(Path(chosen["class_names"]))
    if chosen["memory_limit"] is None:
        del chosen["memory_limit"]
    for name in ("labels", "ids", "thumbnails"):
        chosen[name] = chosen[name] or None
    chosen["scale"] = _number_or_name(chosen["scale"])
    return DataFiles(sources, **chosen)


def _number_or_name(text: str | None) -> float | str | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
