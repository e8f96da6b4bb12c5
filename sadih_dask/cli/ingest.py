"""``sadih ingest``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from sadih_dask.cli import options
from sadih_dask.cli.output import echo, warn
from sadih_dask.types import Compression, FloatType, Unlabelled

if TYPE_CHECKING:
    from sadih_dask.ingest import HoldOut, Ingested


_RESUME = "Blocks that are written stay: repeat the same command to go on."
_APPEND = (
    "No row was added yet, but blocks that are written stay: repeat the same command to go on."
)


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@options.store
@click.option("--labels", multiple=True, metavar="FILE", help="Labels; repeat it for shards.")
@click.option(
    "--features-variable",
    "--features-columns",
    "features_variable",
    metavar="NAME",
    help="Variable or column of the features, or a pattern such as 'e*' of one column each.",
)
@click.option("--labels-variable", metavar="NAME", help="Variable or column of the labels.")
@click.option(
    "--ids", multiple=True, metavar="FILE", help="One integer or text a row, no two alike."
)
@click.option("--ids-variable", metavar="NAME", help="Variable or column of the ids; '': none.")
@click.option("--thumbnails", multiple=True, metavar="FILE", help="One small uint8 picture a row.")
@click.option("--transpose", is_flag=True, help="The last axis of the features holds the rows.")
@click.option("--scale", metavar="X", help="A number, or a variable, that multiplies the features.")
@click.option(
    "--dtype",
    type=click.Choice(get_args(FloatType)),
    help="Type to store features in.  [default: their own; float32 for integers]",
)
@click.option("--class-names", metavar="FILE", help="Names of the classes in order, one a line.")
@click.option("--separator", metavar="TEXT", help="Splits text into several labels a row.")
@click.option("--chunk-rows", type=options.COUNT, help="[default: chunks of 8 to 16 MiB]")
@click.option(
    "--compression",
    type=click.Choice(get_args(Compression)),
    help="[default: none on a local disk, zstd behind a URL]",
)
@click.option(
    "--in-place",
    is_flag=True,
    help="Leave features in the Zarr array SOURCE: it is read once, for digests, not copied.",
)
@click.option("--append", is_flag=True, help="Add the files that the store does not have yet.")
@options.overwrite
@click.option(
    "--unlabelled",
    type=click.Choice(get_args(Unlabelled)),
    default="error",
    help="What to do about rows without any label, where rows may have several.",
)
@click.option("--queries", metavar="STORE", help="Where to put the rows of --hold-out.")
@click.option(
    "--hold-out",
    type=click.FloatRange(0, 0.5, min_open=True),
    metavar="FRACTION",
    help="Put this part of the rows, chosen at random, into --queries instead.",
)
@click.option("--seed", type=int, default=0, help="Of --hold-out.")
@click.option(
    "--min-age",
    type=click.FloatRange(min=0),
    default=0,
    metavar="SECONDS",
    help="Pass over files that were written less than this ago.",
)
@options.running
def ingest_command(
    sources: tuple[str, ...],
    store: str,
    min_age: float,
    running: options.Running,
    **chosen: Any,
) -> None:
    """Pour feature files into STORE, with their labels.

    \b
    sadih ingest x.npy s.zarr --labels y.npy
    sadih ingest 'shards/*.parquet' s.zarr --append
    sadih ingest 's3://bucket/x*.npy' s3://bucket/s.zarr --scheduler tls://host:8786
    sadih ingest x.npy s.zarr --labels y.npy --hold-out 0.1 --queries q.zarr

    SOURCE is .npy, .npz, .mat, HDF5, IDX, .fbin, Parquet, Arrow, CSV or Zarr, a folder, a pattern,
    or several of them. Without --labels or --ids these are taken from the same files, if one
    variable is named like labels, or id; features may be one variable, or a column each.
    Workers read the files and write the store, so both must be where all of them reach it.
    An interrupted ingestion goes on when the same command is repeated; with --append, files that
    are in the store already are passed over, and the new rows are added all at once.
    """  # noqa: D301 - click reads this escape
    from sadih_dask.ingest.changes import pass_over_young
    from sadih_dask.jobs.ingest import Stores, ingest

    mode = _mode(chosen.pop("append"), chosen.pop("overwrite"))
    form = {name: chosen.pop(name) for name in ("dtype", "chunk_rows", "compression", "in_place")}
    queries = chosen.pop("queries")
    parts = _parts(store, queries, chosen.pop("hold_out"), chosen.pop("seed"))
    chosen["memory_limit"] = running.memory_limit
    files, too_young = pass_over_young(_files(sources, chosen), min_age)
    if too_young:
        echo(f"{len(too_young)} files are younger than {min_age:g} s: passed over.")
    if files is None:
        return
    reads = {url: (replace(files, hold_out=part), mode) for url, part in parts.items()}
    hint = _APPEND if mode == "append" else _RESUME
    with options.resumable(hint), running.prepared(), running.bar("Ingesting", goes_on=True):
        done = ingest(reads, Stores(store, queries), form)
    for one in done.values():
        _report(one)
    if any(one.n_new for one in done.values()):
        echo(f"From {next(iter(done.values())).store.source}.")
    warn(one for found in done.values() for one in found.advice)


def _report(done: Ingested) -> None:
    what = f"{done.store.url}: {done.store.n_rows:,} rows of {done.store.n_features} features"
    resumed = (
        f" ({done.n_resumed:,} of them by a call that was interrupted)" if done.n_resumed else ""
    )
    echo(f"{what}, {done.n_new:,} written now, {done.n_kept:,} kept{resumed}.")
    if done.n_passed_over:
        echo(f"{done.n_passed_over} of {done.n_files} files were in the store already.")
    if done.n_dropped:
        echo(f"{done.n_dropped:,} rows without a label were left out.")
    if "labels" not in done.store.arrays:
        echo("It has no labels (--labels): its rows can be hashed, but not learned from.")


def _parts(
    store: str, queries: str | None, fraction: float | None, seed: int
) -> dict[str, HoldOut | None]:
    """Return the stores to be filled, and which part of the rows goes into each."""
    from sadih_dask.files.filesystem import connect
    from sadih_dask.ingest import HoldOut

    if queries is None and fraction is None:
        return {store: None}
    if queries is None or fraction is None:
        raise click.UsageError("--hold-out and --queries belong together: give both or none")
    if connect(store).url == connect(queries).url:
        raise click.UsageError("--queries is STORE itself; held-out rows need a store of their own")
    return {
        store: HoldOut(fraction, seed, "database"),
        queries: HoldOut(fraction, seed, "queries"),
    }


def _mode(append: bool, overwrite: bool) -> Any:
    if append and overwrite:
        raise click.UsageError("--append and --overwrite exclude each other")
    return "append" if append else "overwrite" if overwrite else "create"


def _files(sources: tuple[str, ...], chosen: dict[str, Any]) -> Any:
    from sadih_dask.ingest import DataFiles
    from sadih_dask.sources import read_class_names

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
