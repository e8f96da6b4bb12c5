"""Writing: whole blocks only, and nothing counts before the commit.

See `group` for the protocol. The functions here take prepared arrays (stored types, one row count);
the store classes know what may go into them.

A store in the making: whole blocks from any number of processes, then one commit.

Reading in order while earlier blocks are still being written.
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import (
    Argument,
    ConflictError,
    FormatError,
    IncompleteError,
    InputError,
    Remedy,
    SadihError,
)
from sadih_dask.files.filesystem import TEMPORARY_SUFFIX, Files, connect
from sadih_dask.files.lease import WriterLock
from sadih_dask.stores.chunks import EncodedBlock, chunk_digests, encode_block
from sadih_dask.stores.manifest import (
    FOLDER,
    KEPT_GENERATIONS,
    MAX_MANIFEST_BYTES,
    PENDING,
    Manifest,
    manifest_bytes,
    manifest_key,
    read_receipt,
    read_receipts,
    receipts,
    write_receipt,
)
from sadih_dask.stores.root import (
    ROOT,
    Commit,
    Schema,
    load_json,
    read_commit,
    write_array_documents,
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
            f"{files.url} already holds {state}",
            remedy=Remedy("Choose another path, or delete it: {}", Argument("overwrite", True)),
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


class BlockWriter:
    """A store that is being made by any number of processes.

    The process that allocates it holds the store's lock until `finalise` or `close`; copies that
    are sent to workers (by pickle: URL and plan, no data) write blocks without it. `missing` says
    what is left to do, also after a crash and in another process.
    """

    kind: ClassVar[str]
    schema: ClassVar[Schema]

    def __init__(self, files: Files, plan: Commit, lock: WriterLock | None = None) -> None:
        self._files = files
        self._plan = plan
        self._lock = lock

    @classmethod
    def _begin(cls, files: Files, plan: Commit, overwrite: bool) -> Self:
        # First without the lock, so that a folder of somebody else is not even touched.
        find_existing(files, plan, cls.schema)
        with explained(files, "its lock"):
            lock = WriterLock(files).acquire()
        try:
            return cls(files, begin(files, plan, cls.schema, overwrite), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def resume(
        cls, url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
    ) -> Self:
        """Return a writer for an unfinished store, without taking its lock."""
        files = connect(url, storage_options)
        plan = read_commit(files, cls.kind, cls.schema)
        if plan.complete:
            raise ConflictError(f"{files.url} is finished; add rows with append")
        return cls(files, plan)

    @property
    def url(self) -> str:
        """Return where the store is."""
        return self._files.url

    @property
    def n_rows(self) -> int:
        """Return how many rows the store is going to have."""
        return self._plan.planned_rows

    @property
    def block_rows(self) -> int:
        """Return the rows of a block, the unit of writing."""
        return self._plan.layout.block_rows

    @property
    def n_blocks(self) -> int:
        """Return the number of blocks."""
        return self._plan.n_blocks

    def rows_of(self, block: int) -> tuple[int, int]:
        """Return the rows of a block: first and one past the last."""
        return block * self.block_rows, min(self.n_rows, (block + 1) * self.block_rows)

    def missing(self) -> list[int]:
        """Return the blocks that are not written yet."""
        return sorted(set(range(self.n_blocks)) - set(receipts(self._files)))

    def _sizes(self, block: int) -> dict[str, int]:
        """Return how many digests of each array the receipt of a block must have."""
        first, last = self.rows_of(block)
        n_chunks = -(-(last - first) // self._plan.layout.chunk_rows)
        return dict.fromkeys(self._plan.layouts, n_chunks)

    def _write(self, start: int, rows: Rows) -> None:
        """Write rows from `start` on: whole blocks, the last one as far as the store goes."""
        length = len(next(iter(rows.values())))
        stop = start + length
        size = self.block_rows
        if start % size or not (stop == self.n_rows or (stop % size == 0 and stop < self.n_rows)):
            below = start // size * size
            raise InputError(
                f"{self.url}: rows {start} to {stop} are not whole blocks; write from a multiple "
                f"of {size} to a multiple of {size} or to the last row, {self.n_rows}: for example "
                f"{below} to {min(below + size, self.n_rows)}. A part of a block is never written"
            )
        self._check_still_ours()
        for block in range(start // size, -(-stop // size)):
            first, last = self.rows_of(block)
            part = {name: array[first - start : last - start] for name, array in rows.items()}
            encoded = write_block(self._files, self._plan, block, part)
            with explained(self._files, f"the receipt of block {block}"):
                write_receipt(self._files, block, encoded)

    def _fill(self, rows_between: Callable[[int, int], Rows]) -> None:
        """Write every block that is not there yet with exactly these rows, then commit."""
        for block in range(self.n_blocks):
            first, last = self.rows_of(block)
            rows = rows_between(first, last)
            wanted = {
                name: chunk_digests(rows[name], layout)
                for name, layout in self._plan.layouts.items()
            }
            if read_receipt(self._files, block, self._sizes(block)) != wanted:
                self._write(first, rows)
        self._finalise()

    def _check_still_ours(self) -> None:
        found = read_commit(self._files, self.kind, self.schema)
        if found.uid != self._plan.uid or found.complete:
            raise ConflictError(
                f"{self.url} has been {'finished' if found.complete else 'replaced'} by another "
                "writer; nothing was written"
            )

    def _finalise(self) -> None:
        lock = self._lock or WriterLock(self._files).acquire()
        try:
            self._check_still_ours()
            publish(self._files, lock, self._plan, self._manifest())
        finally:
            lock.release()
            self._lock = None

    def _manifest(self) -> Manifest:
        names = self._plan.layouts
        digests: dict[str, list[int]] = {name: [] for name in names}
        missing = self.missing()
        sizes = {} if missing else {block: self._sizes(block) for block in range(self.n_blocks)}
        for block, receipt in read_receipts(self._files, sizes).items():
            if receipt is None:
                self._files.delete(f"{PENDING}/{block}")
                missing.append(block)
                continue
            for name in names:
                digests[name] += receipt[name]
        if missing:
            raise IncompleteError(
                f"{self.url} is incomplete: {len(missing)} of {self.n_blocks} blocks are not "
                f"written, the first is block {missing[0]} (rows {self.rows_of(missing[0])}); "
                "write them and finalise again"
            )
        arrays = {name: np.array(digests[name], np.uint32) for name in names}
        return Manifest(self._plan.uid, 1, self.n_rows, self._plan.layout.chunk_rows, arrays)

    def close(self) -> None:
        """Let go of the store; what is written stays, and the same call goes on from there."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy has no lock: it stays with the process that allocated the store.
        return _rebuild, (type(self), self.url, dict(self._files.options), self._plan)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.url!r}: {self.n_rows} rows in {self.n_blocks} blocks of "
            f"{self.block_rows}>"
        )


def _rebuild(
    cls: type[BlockWriter], url: str, options: Mapping[str, Any], plan: Commit
) -> BlockWriter:
    return cls(connect(url, options), plan)


Read = TypeVar("Read")
WRITERS = 4
"""Blocks that are written at the same time, beside the one that is read."""


def pour(
    spans: Iterable[tuple[int, int]],
    read: Callable[[int, int], Read],
    write: Callable[[int, int, Read], None],
    written: Callable[[int], None],
) -> None:
    """Read spans of rows one after the other, here, and write them in threads.

    A writer waits for the disk or the network after every block; the reader need not. `written`
    hears of the number of rows of each block, in order, when it is written.
    """
    pool = ThreadPoolExecutor(WRITERS)
    under_way: deque[tuple[int, Future[None]]] = deque()

    def wait_for_oldest() -> None:
        n_rows, future = under_way.popleft()
        future.result()
        written(n_rows)

    try:
        for first, last in spans:
            rows = read(first, last)
            if len(under_way) == WRITERS:
                wait_for_oldest()
            under_way.append((last - first, pool.submit(write, first, last, rows)))
        while under_way:
            wait_for_oldest()
    finally:
        pool.shutdown(cancel_futures=True)
