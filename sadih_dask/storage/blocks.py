"""A store in the making: whole blocks from any number of processes, then one commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np

from sadih_dask.errors import ConflictError, IncompleteError, InputError
from sadih_dask.storage.codec import chunk_digests
from sadih_dask.storage.commit import Commit, Schema, read_commit
from sadih_dask.storage.files import Files, connect
from sadih_dask.storage.lock import WriterLock
from sadih_dask.storage.manifest import (
    PENDING,
    Manifest,
    read_receipt,
    read_receipts,
    receipts,
    write_receipt,
)
from sadih_dask.storage.writer import Rows, begin, explained, find_existing, publish, write_block


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
