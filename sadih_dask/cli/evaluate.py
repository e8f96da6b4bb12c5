"""``sadih evaluate``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from sadih_dask.cli import options

if TYPE_CHECKING:
    from sadih_dask.report.retrieval import Length

_PROTOCOLS = (
    "learned: database rows carry the code of their labels; encoded: they are hashed as queries."
)


@click.command()
@click.argument("model", type=click.Path(dir_okay=False))
@click.argument("queries")
@click.argument("database", required=False)
@click.option("--codes", metavar="CODES", help="DATABASE as hashed by MODEL (sadih encode).")
@click.option(
    "-b",
    "--bits",
    type=click.IntRange(min=1),
    multiple=True,
    help="A further code length, solved from the model's statistics; may be repeated.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write metrics.json, figures and report.html here; earlier ones are replaced.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as a JSON object.")
@options.placed
def command(
    model: str,
    queries: str,
    database: str | None,
    codes: str | None,
    bits: tuple[int, ...],
    output: Path | None,
    as_json: bool,
    **running: Any,
) -> None:
    """Look the rows of the store QUERIES up by their codes and compare labels.

    Under `learned` they are looked up among the rows that MODEL has learned from, each with the
    code of its labels; under `encoded` among the rows of the store DATABASE, hashed by MODEL. A row
    is relevant if it shares a label with the query.
    """
    from sadih_dask import SADIH, CodeStore, FeatureStore
    from sadih_dask.pipeline import evaluating

    began = time.time()
    if codes is not None and database is None:
        raise click.UsageError("--codes are those of DATABASE, which has their labels; give both")
    setting = options.Running(**running)
    learner = SADIH.load(model)
    rows = evaluating.Collection(
        FeatureStore.open(queries),
        None if database is None else FeatureStore.open(database),
        None if codes is None else CodeStore.open(codes),
    )
    rows.check(learner)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)  # an unusable folder is found before the work
    with options.resumable("Repeat the same command."), setting.prepared():
        with setting.bar("Comparing") as bar:
            lengths = evaluating.measure(learner, rows, bits, bar.over)
        if as_json:
            click.echo(json.dumps(evaluating.document(learner, rows, lengths), indent=1))
        else:
            _print(lengths, learner.hash_function_.n_bits, evaluating.TIE_RULE)
        if output is None:
            return
        with setting.bar("Looking at codes") as bar:
            written = evaluating.write(
                output,
                learner,
                rows,
                lengths,
                title=f"Retrieval with {PurePath(model).name}",
                began=began,
                progress=bar.over,
            )
    _say_what_was_written(written.files, written.missing, to_stderr=as_json)


def _print(lengths: Sequence[Length], own: int, ties: str) -> None:
    """The whole table of the model's own length, and MAP of the others."""
    click.echo(repr(next(length.protocols for length in lengths if length.n_bits == own)))
    click.echo(f"\n{_PROTOCOLS}\n{ties}")
    if len(lengths) < 2:
        return
    names = list(lengths[0].known)
    click.echo(f"\n{'bits':>6}" + "".join(f"{f'MAP {name}':>14}" for name in names))
    for length in lengths:
        values = "".join(f"{length.known[name].map:>14.4f}" for name in names)
        click.echo(f"{length.n_bits:>6}{values}")


def _say_what_was_written(files: Sequence[Path], missing: str | None, *, to_stderr: bool) -> None:
    """Stdout is the JSON object's own."""
    click.echo("\nWritten:", err=to_stderr)
    for path in files:
        if path.suffix in (".svg", ".pdf"):
            continue
        click.echo(f"  {path}", err=to_stderr)
    folders = sorted({str(path.parent) for path in files if path.suffix == ".svg"})
    for folder in folders:
        click.echo(f"  {folder}/*.svg, *.pdf", err=to_stderr)
    if missing is not None:
        click.echo(f"No figures and no report: {missing}", err=True)
