"""``sadih encode``, ``sadih search`` and ``sadih export``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sadih_dask.cli import options
from sadih_dask.cli.output import Bar, echo

if TYPE_CHECKING:
    from sadih_dask.retrieval.nearest import Neighbours, WithinRadius


@click.command()
@options.store
@click.argument("model")
@click.argument("codes")
@click.option("--learned", is_flag=True, help="Write the learned codes of the rows' labels.")
@options.bitorder
@options.overwrite
@options.placed
def encode_command(
    store: str, model: str, codes: str, running: options.Running, **form: Any
) -> None:
    """Hash every row of STORE with MODEL and write the packed codes to the code store CODES.

    An interrupted run goes on when the same command is repeated.
    """
    from sadih_dask import SADIH, FeatureStore
    from sadih_dask.jobs.encode import encode

    opened, learner = FeatureStore.open(store), SADIH.load(model)
    hint = "Codes that are written stay: repeat the same command to go on."
    with options.resumable(hint), running.prepared(), running.bar("Encoding"):
        done = encode(learner, opened, codes, **form)
    kind = "learned codes" if form["learned"] else "codes"
    echo(
        f"{done.codes.url}: {done.codes.n_rows:,} {kind} of {done.codes.n_bits} bits, "
        f"{done.n_rows_encoded:,} encoded now."
    )


@click.command()
@click.argument("codes")
@click.argument("queries")
@click.option(
    "-k", "--k", type=click.IntRange(min=1), help="Neighbours of a query.  [default: 100]"
)
@click.option("--radius", type=click.IntRange(min=0), help="Instead: all up to this distance.")
@click.option(
    "--model",
    type=click.Path(dir_okay=False),
    help="Hash QUERIES first: a feature store, or a .npy file of features.",
)
@click.option(
    "--symmetric",
    is_flag=True,
    help="Order features (--model) by Hamming distance, too: all bits count alike.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write all results to .parquet, .zarr or .npz.",
)
@click.option(
    "--max-results",
    type=click.IntRange(min=1),
    default=50_000_000,
    show_default=True,
    help="Stop a search by --radius that finds more.",
)
@click.option(
    "--show",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Queries to show on the terminal.",
)
@options.overwrite
@options.placed
def search_command(
    codes: str,
    queries: str,
    k: int | None,
    radius: int | None,
    model: str | None,
    symmetric: bool,
    output: Path | None,
    max_results: int,
    show: int,
    overwrite: bool,
    running: options.Running,
) -> None:
    """Find the nearest codes in the code store CODES for each of QUERIES, exactly.

    QUERIES is a code store of the same model or, with --model, features. Nearest is the smallest
    Hamming distance; of features the bits are weighted by how certain they are, by 1 on average,
    which finds better (--symmetric: not). Rows at equal distance come in the order of the store.
    """
    if radius is not None and k is not None:
        raise click.UsageError("--radius finds all within a distance; leave out --k")
    from sadih_dask import SADIH, CodeStore
    from sadih_dask.jobs.search import check_target, look_up, open_queries, write_results

    if output is not None:
        check_target(output, overwrite=overwrite)
    database = CodeStore.open(codes)
    learner = None if model is None else SADIH.load(model)
    with options.resumable("Nothing was written."), running.prepared():
        exact = symmetric or radius is not None
        asked = open_queries(queries, database, learner, symmetric=exact)
        with running.bar("Searching"):
            found = look_up(database, asked, k or 100, radius, max_results=max_results)
    names = range(len(found)) if asked.ids is None else asked.ids
    for line in _table(found, names, show):
        echo(line)
    echo(f"{len(found):,} queries, {found.rows.size:,} finds in {database.n_rows:,} codes.")
    if output is not None:
        echo(f"{write_results(found, output, query_ids=asked.ids, overwrite=overwrite)}: written.")


def _table(found: Neighbours | WithinRadius, names: Any, show: int) -> Iterator[str]:
    """A line for each of the first queries: as many neighbours as the terminal is wide."""
    from sadih_dask.jobs.search import first_finds

    shown = min(show, len(found))
    if not shown:
        return
    titles = [str(names[query]) for query in range(shown)]
    width = max(len("query"), *map(len, titles))
    weighted = found.distances.dtype.kind == "f"
    kind = "weighted Hamming distance" if weighted else "Hamming distance"
    yield f"{'query':>{width}}  finds, nearest first: id ({kind})"
    room = max(40, shutil.get_terminal_size((100, 20)).columns) - width - 2
    for query, title in enumerate(titles):
        ids, distances = first_finds(found, query)
        yield f"{title:>{width}}  {_line(ids, distances, room)}"
    if shown < len(found):
        yield f"{'...':>{width}}  {len(found) - shown:,} queries more"


def _line(ids: Any, distances: Any, room: int) -> str:
    """Finds side by side; those that do not fit are counted."""
    if not len(ids):
        return "none"
    line = ""
    for place, (name, distance) in enumerate(zip(ids, distances, strict=True)):
        item = f"{'  ' if line else ''}{name} ({round(float(distance), 1):g})"
        left = len(ids) - place - 1
        rest = f"  ... {left:,} more" if left else ""
        if line and len(line) + len(item) + len(rest) > room:
            return f"{line}  ... {left + 1:,} more"
        line += item
    return line


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
@options.bitorder
@options.overwrite
@options.quiet
def export_command(codes: str, index: Path, overwrite: bool, quiet: bool, **form: Any) -> None:
    """Write the code store CODES as the file INDEX, a binary index that FAISS reads.

    Results of the index are the ids of the store where these are integers, else row numbers.
    """
    from sadih_dask import CodeStore
    from sadih_dask.jobs.export import export_faiss
    from sadih_dask.jobs.search import check_target

    check_target(index, overwrite=overwrite, endings=())
    store = CodeStore.open(codes)
    with (
        options.resumable(f"{index} was not written."),
        Bar("Exporting", quiet=quiet) as bar,
    ):
        path = export_faiss(store, index, progress=bar, **form)
    numbers = "ids" if "ids" in store.arrays and store.dtype("ids").kind == "i" else "row numbers"
    what = f"{form['kind']} index of {store.n_rows:,} codes of {store.n_bits} bits"
    echo(f"{path}: {what}, results are {numbers}.")
