"""Adding rows behind the latest commit: block by block, all or none, and on after a kill.

See `group` for the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sadih_dask.files.checksum import canonical_json
from sadih_dask.files.lease import WriterLock
from sadih_dask.stores.manifest import (
    PENDING,
    Manifest,
    extended,
    read_receipts,
    receipts,
    write_receipt,
)
from sadih_dask.stores.reader import Snapshot, read_rows
from sadih_dask.stores.root import stale_array_documents, write_array_documents
from sadih_dask.stores.segment import (
    APPEND,
    Rows,
    explained,
    name_of_append,
    pour,
    publish,
    write_block,
)


@dataclass(frozen=True)
class NewRows:
    """Rows to be added behind those of a store.

    between         gives the new rows i to j
    properties      attributes to add or replace
    resume_key      stands for these very rows, or is None if an interrupted append shall not go on
    before_commit   may raise to have nothing added
    progress        hears of the new rows that are written, and of all
    """

    n_new: int
    between: Callable[[int, int], Rows]
    properties: Mapping[str, Any] = field(default_factory=dict)
    resume_key: str | None = None
    before_commit: Callable[[], None] | None = None
    progress: Callable[[int, int], None] | None = None


def append_rows(snapshot: Snapshot, lock: WriterLock, new: NewRows) -> int:
    """Add rows behind the latest commit; return how many an interrupted call had written.

    `new.properties` are all that the store is going to have.
    """
    files, commit = snapshot.files, snapshot.commit
    # A writer that was killed just after its commit may have left them at the rows before.
    if stale_array_documents(files, commit):
        write_array_documents(files, commit)
    addition = _Addition(snapshot, lock, new)
    addition.begin()
    left = addition.spans_left()
    n_resumed = done = new.n_new - sum(stop - start for start, stop in left)

    def written(n_rows: int) -> None:
        nonlocal done
        done += n_rows
        if new.progress is not None:
            new.progress(done, new.n_new)

    written(0)
    pour(left, addition.read, addition.write, written)
    if new.before_commit is not None:
        new.before_commit()
    properties = dict(new.properties)
    publish(files, lock, replace(commit, properties=properties), addition.manifest())
    return n_resumed


class _Addition:
    """Blocks behind those of a commit, the first of which may hold rows of the commit too."""

    def __init__(self, snapshot: Snapshot, lock: WriterLock, new: NewRows) -> None:
        self._snapshot, self._lock, self._new = snapshot, lock, new
        self._files, self._commit = snapshot.files, snapshot.commit
        self._old, self._size = self._commit.n_rows, self._commit.layout.block_rows
        self._total = self._old + new.n_new
        self._first = self._old // self._size
        n_blocks = -(-self._total // self._size) if new.n_new else self._first
        self._spans = {
            block: (max(self._old, block * self._size), min(self._total, (block + 1) * self._size))
            for block in range(self._first, n_blocks)
        }
        self._digests: dict[int, dict[str, list[int]]] = {}

    def begin(self) -> None:
        """Keep what this very append has written before it was interrupted.

        Receipts of any other one are deleted, before anything is written over its blocks.
        """
        if self._goes_on():
            self._digests = self._receipts()
            return
        self._clear()
        if self._new.resume_key is not None and self._spans:
            with explained(self._files, "the name of the append"):
                self._files.write(APPEND, [self._name()])

    def spans_left(self) -> list[tuple[int, int]]:
        """Return the rows of each block that is not written yet."""
        return [span for block, span in self._spans.items() if block not in self._digests]

    def read(self, start: int, stop: int) -> Rows:
        """Return the rows of a block."""
        rows = self._new.between(start - self._old, stop - self._old)
        if start // self._size > self._first:
            return rows
        # The rows that were there come first, unchanged: earlier commits stay readable.
        there = (self._first * self._size, self._old)
        return {n: np.concatenate([read_rows(self._snapshot, n, *there), rows[n]]) for n in rows}

    def write(self, start: int, _: int, rows: Rows) -> None:
        """Write a block, and its receipt if the append has a name."""
        block = start // self._size
        self._lock.check_time()
        encoded = write_block(self._files, self._commit, block, rows)
        self._digests[block] = {name: list(found.digests) for name, found in encoded.items()}
        if self._new.resume_key is not None:
            with explained(self._files, f"the receipt of block {block}"):
                write_receipt(self._files, block, encoded)

    def manifest(self) -> Manifest:
        """Return the manifest of the commit to come."""
        added = {
            name: [digest for block in self._spans for digest in self._digests[block][name]]
            for name in self._commit.layouts
        }
        n_kept = self._snapshot.manifest.n_chunks
        if self._spans:
            n_kept = self._first * self._commit.layout.chunks_per_block
        return extended(self._snapshot.manifest, self._total, n_kept, added)

    def _name(self) -> bytes:
        """Return what the append is: its rows, and what they are added to."""
        commit = self._commit
        base = {"uid": commit.uid, "generation": commit.generation, "n_rows": commit.n_rows}
        return canonical_json({**base, "n_new": self._new.n_new, "key": self._new.resume_key})

    def _goes_on(self) -> bool:
        return self._new.resume_key is not None and name_of_append(self._files) == self._name()

    def _receipts(self) -> dict[int, dict[str, list[int]]]:
        layouts, chunk_rows = self._commit.layouts, self._commit.layout.chunk_rows
        sizes = {}
        for block in self._spans.keys() & set(receipts(self._files)):
            n_chunks = -(-(self._spans[block][1] - block * self._size) // chunk_rows)
            sizes[block] = dict.fromkeys(layouts, n_chunks)
        found = read_receipts(self._files, sizes)
        return {block: digests for block, digests in found.items() if digests is not None}

    def _clear(self) -> None:
        """Delete what an abandoned append has left: its blocks that no commit has, its receipts."""
        committed = -(-self._old // self._size)
        for block in receipts(self._files):
            for layout in self._commit.layouts.values():
                if block >= committed and block not in self._spans:
                    self._files.delete(layout.key(block))
        self._files.delete(PENDING)
