"""``sadih inspect`` and ``sadih verify``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sadih_dask.cli import options
from sadih_dask.cli.output import complain, echo, echo_json
from sadih_dask.cli.progress import Bar

if TYPE_CHECKING:
    from sadih_dask.jobs.inspect import LabelDescription, ModelDescription, StoreDescription


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
        written = f"{store.n_blocks_written} of {store.n_blocks} blocks are written"
        yield "state", f"INCOMPLETE: {written}; repeat the command that was making it"
    yield "rows", f"{store.n_rows:,}" + ("" if store.complete else " planned")
    for array in store.arrays:
        shape = " x ".join(map(str, array.shape))
        yield array.name, f"{shape} {array.dtype}, {_size(array.n_bytes)}"
    shards = "" if store.shard_rows is None else f" in shards of {store.shard_rows:,}"
    yield "chunks", f"{store.chunk_rows:,} rows{shards}, compression {store.compression}"
    if store.stored_bytes is not None:
        yield "on disk", _size(store.stored_bytes)
    if store.complete:
        yield "commit", f"{store.generation}"
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
    yield "codes", f"{model.n_bits} bits of {model.n_features} features"
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
@click.option("--workers", type=click.IntRange(min=1), help="Threads that read.  [default: 4]")
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
        found = verify(store, workers=workers, progress=bar)
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
