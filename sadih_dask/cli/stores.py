"""``sadih inspect`` and ``sadih verify``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sadih_dask.cli import options
from sadih_dask.cli.output import Bar, complain, echo, echo_json

if TYPE_CHECKING:
    from sadih_dask.jobs.inspect import LabelDescription, ModelDescription, StoreDescription


_SHOWN_SEGMENTS = 8
_SHOWN_CLASSES = 20


@click.command()
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="The same as a JSON object.")
def inspect_command(path: str, as_json: bool) -> None:
    """Show what the feature store, code store or model file at PATH is.

    Labels are read, to count classes and label groups; of the rest only metadata.
    """
    from sadih_dask.jobs.inspect import ModelDescription, inspect

    found = inspect(path)
    if as_json:
        echo_json(asdict(found))
        return
    lines = _of_model(found) if isinstance(found, ModelDescription) else _of_store(found)
    for name, value in lines:
        echo(f"{name:<14}{value}" if name else f"{'':<14}{value}")


def _of_store(store: StoreDescription) -> Iterator[tuple[str, str]]:
    yield "store", f"{store.url} ({store.kind})"
    if not store.complete:
        yield "state", "INCOMPLETE: no rows yet; repeat the command that was making it"
    yield "rows", f"{store.n_rows:,}"
    for array in store.arrays:
        shape = " x ".join(map(str, array.shape))
        yield array.name, f"{shape} {array.dtype}, {_size(array.n_bytes)}"
    yield "chunks", f"up to {store.chunk_rows:,} rows, compression {store.compression}"
    yield from _of_segments(store)
    if store.stored_bytes is not None:
        yield "on disk", _size(store.stored_bytes)
    if store.complete:
        kept = f"; {store.kept[0]} to {store.kept[-1]} are kept" if store.kept else ""
        yield "commit", f"{store.generation}{kept}"
    yield "checksums", store.checksums
    checked = f"{', '.join(store.verified)} (intact); the rest" if store.verified else "nothing;"
    if store.complete:
        yield "verified", f"{checked} by: sadih verify {store.url}"
    if store.n_source_files is not None:
        yield "source files", f"{store.n_source_files:,}"
    for name, value in store.attributes.items():
        yield name, f"{value}"
    if store.labels is not None:
        yield from _of_labels(store.labels, store.n_rows)


def _of_segments(store: StoreDescription) -> Iterator[tuple[str, str]]:
    for number, (n_rows, n_deleted, path) in enumerate(store.segments[:_SHOWN_SEGMENTS]):
        gone = f", {n_deleted:,} of them deleted" if n_deleted else ""
        yield "" if number else "segments", f"{path}: {n_rows:,} rows{gone}"
    if (more := len(store.segments) - _SHOWN_SEGMENTS) > 0:
        yield "", f"and {more:,} more; sadih compact joins small ones"
    for number, who in enumerate(store.unfinished):
        yield "" if number else "unfinished", f"begun by {who}; the same command goes on"


def _of_labels(labels: LabelDescription, n_rows: int) -> Iterator[tuple[str, str]]:
    counts = labels.class_counts
    share = f"{min(counts):,} to {max(counts):,} rows each" if counts else "none"
    several = f", {labels.labels_per_row:.2f} labels a row" if labels.multi_label else ""
    yield "classes", f"{len(counts)}, {share}{several}"
    ordered = sorted(zip(labels.class_names, counts, strict=True), key=lambda item: -item[1])
    width = max((len(name) for name, _ in ordered[:_SHOWN_CLASSES]), default=0)
    for name, count in ordered[:_SHOWN_CLASSES]:
        yield "", f"{name:<{width}}  {count:>12,}  {count / max(1, n_rows):7.2%}"
    if len(ordered) > _SHOWN_CLASSES:
        yield "", f"... and {len(ordered) - _SHOWN_CLASSES} more"
    if labels.n_unlabelled:
        yield "unlabelled", f"{labels.n_unlabelled:,} rows"
    if labels.more_groups:
        yield "label groups", f"more than {labels.n_groups:,}"
        return
    largest = ", ".join(labels.largest_group[:5]) or "no label"
    yield (
        "label groups",
        (f"{labels.n_groups:,}, the largest has {labels.largest_group_rows:,} rows ({largest})"),
    )


def _of_model(model: ModelDescription) -> Iterator[tuple[str, str]]:
    yield "model", f"{model.url} ({_size(model.stored_bytes)})"
    yield "codes", f"{model.n_bits} bits of {model.n_features} features, by {model.method}"
    form = "several labels a row" if model.multi_label else "one class a row"
    yield "labels", f"{model.n_classes:,} classes, {model.n_groups:,} label groups, {form}"
    if model.n_rows_learned is None:
        yield "learned from", "saved without statistics: it hashes, but cannot learn more"
    else:
        place = f" of {model.learned_from}" if model.learned_from else ""
        without = f", {model.n_forgotten:,} forgotten again" if model.n_forgotten else ""
        yield "learned from", f"{model.n_rows_learned:,} rows{place}{without}"
    yield "fingerprint", model.fingerprint
    yield "parameters", ", ".join(f"{name}={value}" for name, value in model.parameters.items())


def _size(n_bytes: int) -> str:
    from dask.utils import format_bytes

    return f"{format_bytes(n_bytes)} ({n_bytes:,} bytes)" if n_bytes >= 1024 else f"{n_bytes} bytes"


@click.command()
@options.store
@click.option("--workers", type=options.COUNT, help="Threads that read.  [default: 4]")
@options.quiet
def verify_command(store: str, workers: int | None, quiet: bool) -> None:
    """Read all of STORE and name every chunk that is not what was written (exit code 1).

    STORE is a feature store, a code store, a model file, or a run directory with all it holds.
    """
    from sadih_dask.jobs.verify import verify
    from sadih_dask.runs.directory import is_run_directory

    if is_run_directory(store):
        _verify_runs(store)
        return
    bar = Bar("Verifying", unit="chunks", quiet=quiet)
    with options.resumable("Nothing was changed."), bar:
        found = verify(store, workers=workers)
    if found is None:
        echo(f"{store}: model file, intact.")
        return
    for problem in found.problems:
        echo(problem)
    if not found.ok:
        damaged = f"{len(found.problems)} of {found.n_chunks} chunks are damaged"
        complain(f"{found.url}: {damaged}")
        raise click.exceptions.Exit(1)
    echo(
        f"{found.url}: intact. {found.n_rows:,} rows, {found.n_chunks:,} chunks, "
        f"{found.n_bytes:,} bytes read and compared with their checksums and digests."
    )


def _verify_runs(directory: str) -> None:
    from sadih_dask.runs.directory import RunDirectory

    runs = RunDirectory(directory)
    found = list(runs.problems())
    for problem in found:
        echo(problem)
    if found:
        complain(f"{runs.url}: {len(found)} things are damaged")
        raise click.exceptions.Exit(1)
    echo(f"{runs.url}: intact. {len(runs.runs())} runs, all that they made.")


@click.command()
@options.store
@click.option("--ids", required=True, metavar="FILE", help="Ids of the rows, one each.")
@click.option("--ids-variable", metavar="NAME", help="Variable or column of the ids.")
def delete_command(store: str, ids: str, ids_variable: str | None) -> None:
    """Delete the rows of STORE with the ids in a file (.npy, text, Parquet, ...).

    They are gone for every reader to come; what was learned from them goes at the next sadih fit,
    their codes at the next sadih encode. Their bytes stay until sadih compact --purge.
    """
    from sadih_dask.sources import open_ids
    from sadih_dask.stores import FeatureStore

    source = open_ids(ids, ids_variable)
    found = FeatureStore.open(store)
    n_rows = found.delete(source.read(0, source.n_rows))
    echo(f"{found.url}: {n_rows:,} rows deleted, {found.n_rows:,} are left.")


@click.command()
@options.store
@click.option("--one-segment", is_flag=True, help="Join all, so that other tools see one array.")
@click.option(
    "--purge", is_flag=True, help="Leave nothing of deleted rows: former commits go, too."
)
@click.option(
    "--made",
    multiple=True,
    metavar="PATH",
    help="With --purge: a model, codes or an export made of STORE, to look into; may be repeated.",
)
@click.option("--abandon", is_flag=True, help="Give up what was begun and is not finished.")
@options.quiet
def compact_command(
    store: str, one_segment: bool, purge: bool, made: tuple[str, ...], abandon: bool, quiet: bool
) -> None:
    """Join small segments of STORE, drop deleted rows, and delete files that nobody needs.

    Rows and their order stay, so no model and no code has to be made anew. With --purge nothing of
    a deleted row is left in STORE, and STORE.purged-N.json says what was erased. Models, codes,
    indexes and reports that were made with it are other files: bring them up to date with sadih
    fit, encode, export and evaluate first, and name them with --made to have that looked into.
    """
    from sadih_dask.jobs.inspect import open_store
    from sadih_dask.jobs.purge import purge as erase

    found = open_store(store)
    n_given_up = found.abandon() if abandon else 0
    bar = Bar("Compacting", unit="rows", quiet=quiet)
    record, n_segments = f"{store.rstrip('/')}.purged-{found.generation}.json", len(found.segments)
    if made and not purge:
        raise click.UsageError("--made is looked into by --purge; give both")
    with options.resumable("Nothing was lost: repeat the same command to go on."), bar:
        if purge:
            erased = erase(found, made, record=record, one_segment=one_segment, progress=bar)
        else:
            found.compact(one_segment=one_segment, progress=bar)
    after = open_store(store)
    given_up = f" {n_given_up} unfinished ones given up." if n_given_up else ""
    if purge:
        echo(f"{after.url}: {erased.n_rows:,} deleted rows erased, and all former commits.")
        for one in erased.examined:
            anchors = f" ({one.n_anchors:,} of them)" if one.n_anchors else ""
            echo(f"  {one.path}: {one.kind}, {one.remark}{anchors}.")
        echo(f"Not reached: {'; '.join(erased.not_reached)}.", f"{record}: the record.")
    echo(
        f"{after.url}: {after.n_rows:,} rows in {len(after.segments):,} segments, "
        f"{n_segments:,} before.{given_up}"
    )


@click.command()
@options.store
@click.argument("commit", type=click.IntRange(min=0))
def restore_command(store: str, commit: int) -> None:
    """Make a former COMMIT of STORE the latest again; sadih inspect says which are kept."""
    from sadih_dask.jobs.inspect import open_store

    after = open_store(store).restore(commit)
    echo(f"{after.url}: {after.n_rows:,} rows as of commit {commit}.")
