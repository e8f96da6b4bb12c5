"""``sadih encode``, ``sadih search`` and ``sadih export``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from sadih_dask.cli import options
from sadih_dask.cli.output import Bar, echo
from sadih_dask.types import IndexKind

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
    from sadih_dask import FeatureStore, load_model
    from sadih_dask.jobs.encode import encode

    opened, learner = FeatureStore.open(store), load_model(model)
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
@click.option("-k", "--k", type=options.COUNT, help="Neighbours of a query.  [default: 100]")
@click.option("--radius", type=click.IntRange(min=0), help="Instead: all up to this distance.")
@click.option(
    "--model",
    type=click.Path(dir_okay=False),
    help="Hash QUERIES first: a feature store, or a file of features.",
)
@click.option(
    "--symmetric",
    is_flag=True,
    help="Order features (--model) by Hamming distance, too: all bits count alike.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Only among rows with this label or id, as label=cat or id=10..19; repeat for others.",
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
    type=options.COUNT,
    default=50_000_000,
    help="Stop a search by --radius that finds more.",
)
@click.option(
    "--show", type=click.IntRange(min=0), default=5, help="Queries to show on the terminal."
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
    where: tuple[str, ...],
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
    from sadih_dask import CodeStore, load_model
    from sadih_dask.jobs.search import check_target, look_up, open_queries, write_results

    if output is not None:
        check_target(output, overwrite=overwrite)
    database = CodeStore.open(codes)
    learner = None if model is None else load_model(model)
    with options.resumable("Nothing was written."), running.prepared():
        exact = symmetric or radius is not None
        asked = open_queries(queries, database, learner, symmetric=exact)
        with running.bar("Searching"):
            form: dict[str, Any] = {"max_results": max_results, "where": where}
            found = look_up(database, asked, k or 100, radius, **form)
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
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--format",
    "form",
    type=click.Choice(["faiss", "usearch", "parquet", "npy", "csv"]),
    help="[default: as TARGET ends; else faiss]",
)
@click.option(
    "--kind",
    type=click.Choice(get_args(IndexKind)),
    help="Of FAISS: exact; inverted lists; several hash tables.  [default: flat]",
)
@click.option("--lists", "n_lists", type=options.COUNT, help="Inverted lists.  [default: √n]")
@click.option(
    "--probe", "n_probe", type=options.COUNT, help="Lists that are searched.  [default: 8]"
)
@click.option("--hashes", "n_hashes", type=options.COUNT, help="Hash tables.  [default: 4]")
@click.option("--hash-bits", type=options.COUNT, help="Bits of a hash table's keys.")
@options.bitorder
@options.overwrite
@options.quiet
def export_command(
    codes: str, target: Path, form: Any, bitorder: Any, overwrite: bool, quiet: bool, **index: Any
) -> None:
    """Write the code store CODES as TARGET, a file that other programs search.

    \b
    sadih export codes.zarr codes.faiss        an index of FAISS; exact, or --kind ivf
    sadih export codes.zarr codes.parquet      columns id and code
    sadih export codes.zarr codes.npy          packed codes; ids in codes.npy.ids.npy
    sadih export codes.zarr codes.csv          id and text of 0 and 1, for bit(n) of PostgreSQL
    sadih export codes.zarr codes.usearch      an index of usearch

    An index finds ids where these are integers, else row numbers; text ids lie beside it.
    """  # noqa: D301 - click reads this escape
    from sadih_dask import CodeStore
    from sadih_dask.jobs.export import export
    from sadih_dask.jobs.search import check_target

    check_target(target, overwrite=overwrite, endings=())
    store = CodeStore.open(codes)
    given = {name: value for name, value in index.items() if value is not None}
    with (
        options.resumable(f"{target} was not written."),
        Bar("Exporting", quiet=quiet) as bar,
    ):
        done = export(store, target, form, bitorder=bitorder, progress=bar, **given)
    packed = "" if done.form == "csv" else f", packed in {bitorder} bit order"
    echo(f"{done.path}: {done.form}, {store.n_rows:,} codes of {store.n_bits} bits{packed}.")
    if done.ids is not None:
        echo(f"{done.ids}: the ids, row by row.")
