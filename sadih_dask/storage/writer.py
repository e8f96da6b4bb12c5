"""Writing: whole blocks only, and nothing counts before the commit.

See `group` for the protocol. The functions here take prepared arrays (stored types, one row count);
the store classes know what may go into them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

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
    load_json,
    read_commit,
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
    manifest_bytes,
    manifest_key,
)

Rows = Mapping[str, npt.NDArray[Any]]
APPEND = f"{PENDING}/append"
"""Names the append that receipts belong to."""
_NAME_LIMIT = 4096


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
    """Delete what the commit has made superfluous and what killed writers left behind.

    An interrupted append to just this commit may still go on: its receipts stay.
    """
    if commit.generation > KEPT_GENERATIONS:
        files.delete(manifest_key(commit.generation - KEPT_GENERATIONS))
    if base_of_append(files) != (commit.uid, commit.generation):
        files.delete(PENDING)
    for folder in ("", FOLDER, *commit.layouts) if files.is_local else ():
        for left_behind in files.names(folder):
            if left_behind.endswith(TEMPORARY_SUFFIX):
                files.delete(f"{folder}/{left_behind}".lstrip("/"))


def name_of_append(files: Files) -> bytes:
    """Return what names the unfinished append of a store, or nothing if there is none."""
    try:
        return files.read(APPEND, _NAME_LIMIT)
    except (FileNotFoundError, NotADirectoryError, FormatError):
        return b""


def base_of_append(files: Files) -> tuple[str, int] | None:
    """Return the store and commit that an unfinished append was adding to, if there is one."""
    try:
        found = load_json(name_of_append(files), APPEND)
        return str(found["uid"]), int(found["generation"])
    except (OSError, ValueError, KeyError, TypeError):  # absent, or not written by us
        return None


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
        ours = (FOLDER, TEMPORARY_SUFFIX)  # a writer may have been killed at its very first file
        strangers = [name for name in files.names("") if not name.endswith(ours)]
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
