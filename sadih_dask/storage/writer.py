"""Writing: whole blocks only, and nothing counts before the commit.

See `group` for the protocol. The functions here take prepared arrays (stored types, one row count);
the store classes know what may go into them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import (
    ConflictError,
    FormatError,
    IncompleteError,
    InputError,
    SadihError,
)
from sadih_dask.storage.codec import EncodedBlock, encode_block
from sadih_dask.storage.commit import (
    ROOT,
    Commit,
    Schema,
    read_commit,
    stale_array_documents,
    write_array_documents,
)
from sadih_dask.storage.files import TEMPORARY_SUFFIX, Files
from sadih_dask.storage.lock import WriterLock
from sadih_dask.storage.manifest import (
    FOLDER,
    KEPT_GENERATIONS,
    MAX_MANIFEST_BYTES,
    PENDING,
    Manifest,
    extended,
    manifest_bytes,
    manifest_key,
)
from sadih_dask.storage.reader import Snapshot, read_rows

Rows = Mapping[str, npt.NDArray[Any]]


def write_block(files: Files, commit: Commit, block: int, rows: Rows) -> dict[str, EncodedBlock]:
    """Write one block of every array; each file is replaced in one step."""
    encoded = {name: encode_block(rows[name], layout) for name, layout in commit.layouts.items()}
    for name, layout in commit.layouts.items():
        what = f"array {name!r}, block {block} (from row {block * layout.block_rows})"
        with explained(files, what):
            files.write(layout.key(block), encoded[name].parts)
    return encoded


@contextmanager
def explained(files: Files, what: str) -> Iterator[None]:
    """Turn a full disk and the like into an error that says what it means for the store."""
    try:
        yield
    except SadihError:
        raise
    except OSError as error:
        failure = IncompleteError(
            f"{files.url}: {what} could not be written: {error.strerror or error}. Nothing that "
            "was committed before is affected; remove the cause and repeat the same call"
        )
        failure.errno = error.errno
        raise failure from error


def publish(files: Files, lock: WriterLock, commit: Commit, manifest: Manifest) -> Commit:
    """Commit: write the manifest, then replace the root, then tidy up."""
    data = manifest.to_bytes()
    with explained(files, f"the manifest of commit {manifest.generation}"):
        files.write(manifest_key(manifest.generation), [data])
        for folder in (FOLDER, *commit.layouts):
            files.sync(folder)
    lock.check()
    commit = replace(
        commit,
        complete=True,
        generation=manifest.generation,
        n_rows=manifest.n_rows,
        planned_rows=manifest.n_rows,
        previous_rows=commit.n_rows,
        manifest_crc=int.from_bytes(data[-4:], "little"),
    )
    with explained(files, f"commit {manifest.generation}"):
        files.write(ROOT, [commit.to_bytes()])  # the commit
        files.sync("")
        write_array_documents(files, commit)
    _tidy(files, commit)
    return commit


def _tidy(files: Files, commit: Commit) -> None:
    """Delete what the commit has made superfluous and what killed writers left behind."""
    if commit.generation > KEPT_GENERATIONS:
        files.delete(manifest_key(commit.generation - KEPT_GENERATIONS))
    files.delete(PENDING)
    for name in commit.layouts if files.is_local else ():
        for left_behind in files.names(name):
            if left_behind.endswith(TEMPORARY_SUFFIX):
                files.delete(f"{name}/{left_behind}")


def append_rows(
    snapshot: Snapshot,
    lock: WriterLock,
    n_new: int,
    rows_between: Callable[[int, int], Rows],
    properties: dict[str, Any],
) -> Commit:
    """Add rows behind the latest commit; `rows_between(i, j)` gives the new rows i to j."""
    files, commit = snapshot.files, snapshot.commit
    # A writer that was killed just after its commit may have left them at the rows before.
    if stale_array_documents(files, commit):
        write_array_documents(files, commit)
    old, size = commit.n_rows, commit.layout.block_rows
    first_block = old // size
    head = {name: read_rows(snapshot, name, first_block * size, old) for name in commit.layouts}
    digests: dict[str, list[int]] = {name: [] for name in commit.layouts}
    for block in range(first_block, -(-(old + n_new) // size)):
        start, stop = max(old, block * size), min(old + n_new, (block + 1) * size)
        rows = rows_between(start - old, stop - old)
        if block == first_block:
            # The rows that were there come first, unchanged: earlier commits stay readable.
            rows = {name: np.concatenate([head[name], rows[name]]) for name in head}
        for name, encoded in write_block(files, commit, block, rows).items():
            digests[name] += encoded.digests
    first_chunk = first_block * commit.layout.chunks_per_block
    manifest = extended(snapshot.manifest, old + n_new, first_chunk, digests)
    return publish(files, lock, replace(commit, properties=properties), manifest)


def begin(files: Files, plan: Commit, schema: Schema, overwrite: bool) -> Commit:
    """Lay out a store to be filled, or find the unfinished one that has the same plan."""
    _check_size(files, plan)
    found = find_existing(files, plan, schema)
    if found is not None and not found.complete and found.same_plan(plan):
        write_array_documents(files, found)
        return found
    if found is not None and not overwrite:
        state = "a finished store" if found.complete else "an unfinished store of another plan"
        raise ConflictError(
            f"{files.url} already holds {state}; choose another path, or delete it (overwrite=True)"
        )
    plan = replace(plan, uid=uuid.uuid4().hex)
    with explained(files, "the empty store"):
        # From here on the old store is gone for every reader, before any of its chunks is.
        files.write(ROOT, [plan.to_bytes()])
        for name in schema:
            files.delete(name)
        for name in files.names(FOLDER):
            if name != "lock":
                files.delete(f"{FOLDER}/{name}")
        write_array_documents(files, plan)
    return plan


def find_existing(files: Files, plan: Commit, schema: Schema) -> Commit | None:
    """Return what stands at the place of a new store; ConflictError if that is not ours."""
    try:
        return read_commit(files, plan.kind, schema)
    except FormatError as error:
        strangers = [name for name in files.names("") if name != FOLDER]
        if not strangers:
            return None
        raise ConflictError(
            f"{files.url} holds something that is not a store of this kind ({strangers[0]!r} among "
            f"other names) and is left alone; choose another path ({error})"
        ) from error


def _check_size(files: Files, plan: Commit) -> None:
    for name, layout in plan.layouts.items():
        layout.check(f"{files.url}: array {name!r}")
    size = manifest_bytes(plan.planned_rows, plan.layout.chunk_rows, len(plan.layouts))
    if size > MAX_MANIFEST_BYTES:
        raise InputError(
            f"{plan.planned_rows} rows in chunks of {plan.layout.chunk_rows} make a manifest of "
            f"{size} bytes, at most {MAX_MANIFEST_BYTES} are allowed; use larger chunks"
        )
