"""Reading one commit of a store, block by block, with every byte checked.

A snapshot is immutable and holds no row data; its functions keep no state between calls, so any
number of threads may read through the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import (
    ConflictError,
    FormatError,
    IncompleteError,
    InputError,
    IntegrityError,
)
from sadih_dask.files.checksum import as_bytes_view, crc32c
from sadih_dask.files.filesystem import Files, LocalFiles
from sadih_dask.stores import chunks
from sadih_dask.stores.layout import ArrayLayout
from sadih_dask.stores.manifest import (
    KEPT_GENERATIONS,
    Manifest,
    manifest_bytes,
    read_manifest,
    receipts,
)
from sadih_dask.stores.root import Commit, Schema, check_array_documents, read_commit

_ATTEMPTS = 5


@dataclass(frozen=True)
class Snapshot:
    """One commit: where it is, what it consists of, and the digests of its chunks."""

    files: Files
    commit: Commit
    manifest: Manifest

    def layout(self, name: str) -> ArrayLayout:
        """Return the layout of an array, or InputError with the names that there are."""
        try:
            return self.commit.layouts[name]
        except KeyError:
            raise InputError(
                f"{self.files.url} has no array {name!r}; it has {', '.join(self.commit.layouts)}"
            ) from None


def open_snapshot(
    files: Files, kind: str, schema: Schema, uid: str | None = None, generation: int | None = None
) -> Snapshot:
    """Open the latest commit, or the one that `uid` and `generation` name."""
    commit = _read_settled_commit(files, kind, schema)
    if uid is not None and uid != commit.uid:
        raise ConflictError(
            f"{files.url} has been replaced by another store since it was opened; open it again"
        )
    if not commit.complete:
        raise IncompleteError(
            f"{files.url} is incomplete: {len(receipts(files))} of {commit.n_blocks} blocks are "
            "written. Repeat the call that was creating it and it will complete the rest"
        )
    wanted = commit.generation if generation is None else generation
    if wanted <= commit.generation - KEPT_GENERATIONS:
        raise ConflictError(
            f"{files.url}: commit {wanted} is no longer kept, the latest is {commit.generation}; "
            "open the store again"
        )
    # Rows are only ever added, so the latest row count bounds every earlier manifest too.
    limit = manifest_bytes(commit.n_rows, commit.layout.chunk_rows, len(commit.layouts))
    names = tuple(commit.layouts)
    manifest = read_manifest(files, wanted, commit.uid, commit.layout.chunk_rows, names, limit)
    if wanted != commit.generation:
        commit = replace(commit, generation=wanted, n_rows=manifest.n_rows)
    elif (manifest.n_rows, manifest.crc) != (commit.n_rows, commit.manifest_crc):
        raise IntegrityError(
            f"{files.url}: manifest of commit {wanted} is not the one that was committed: it "
            f"covers {manifest.n_rows} rows with checksum {manifest.crc:08x}, expected "
            f"{commit.n_rows} and {commit.manifest_crc:08x}"
        )
    return Snapshot(files, commit, manifest)


def _read_settled_commit(files: Files, kind: str, schema: Schema) -> Commit:
    for attempt in range(_ATTEMPTS):
        commit = read_commit(files, kind, schema)
        if not commit.complete:
            return commit
        try:
            check_array_documents(files, commit, schema)
        except ConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            break
    return commit


def read_rows(
    snapshot: Snapshot,
    name: str,
    start: int = 0,
    stop: int | None = None,
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Return rows [start, stop) of an array as stored, in `out` if it is given."""
    layout = snapshot.layout(name)
    stop = snapshot.commit.n_rows if stop is None else stop
    if not 0 <= start <= stop <= snapshot.commit.n_rows:
        raise InputError(
            f"{snapshot.files.url}: rows {start} to {stop} of {name!r} were asked for, but it has "
            f"rows 0 to {snapshot.commit.n_rows}"
        )
    shape = (stop - start, *layout.row_shape)
    if out is None:
        out = np.empty(shape, layout.numpy_dtype)
    elif out.shape != shape or out.dtype != layout.numpy_dtype or not out.flags.c_contiguous:
        raise InputError(
            f"out must be a C-contiguous {layout.dtype} array of shape {shape}, got {out.dtype} "
            f"of shape {out.shape}"
        )
    if start == stop:
        return out
    target = as_bytes_view(out)
    fetched = _ShardIndex()
    for chunk in range(start // layout.chunk_rows, -(-stop // layout.chunk_rows)):
        first, last = snapshot.manifest.rows_of(chunk)
        low, high = max(start, first), min(stop, last)
        view = target[(low - start) * layout.row_bytes : (high - start) * layout.row_bytes]
        read_chunk(snapshot, layout, chunk, (low - first, high - first), view, fetched)
    return out


def take_rows(snapshot: Snapshot, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return the given rows in the given order; each chunk that holds any is read once."""
    layout = snapshot.layout(name)
    n_rows = snapshot.commit.n_rows
    if rows.ndim != 1 or (rows.size and not 0 <= rows.min() <= rows.max() < n_rows):
        raise InputError(
            f"{snapshot.files.url}: rows must be a list of numbers from 0 to {n_rows - 1}"
        )
    out = np.empty((rows.size, *layout.row_shape), layout.numpy_dtype)
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    _, starts = np.unique(ordered // layout.chunk_rows, return_index=True)
    for first, last in zip(starts, [*starts[1:], rows.size], strict=False):
        wanted = ordered[first:last]
        low, high = int(wanted[0]), int(wanted[-1]) + 1
        out[order[first:last]] = read_rows(snapshot, name, low, high)[wanted - low]
    return out


class _ShardIndex:
    """The index of the shard that was read last: neighbouring chunks need it again."""

    block = -1
    entries: tuple[tuple[int, int], ...] = ()


def read_chunk(
    snapshot: Snapshot,
    layout: ArrayLayout,
    chunk: int,
    want: tuple[int, int],
    out: npt.NDArray[np.uint8],
    index: _ShardIndex | None = None,
) -> None:
    """Read the rows `want` (counted within the chunk) into `out` and check the whole chunk."""
    first, last = snapshot.manifest.rows_of(chunk)
    committed = (last - first) * layout.row_bytes
    span = (want[0] * layout.row_bytes, want[1] * layout.row_bytes)
    files = snapshot.files
    try:
        if isinstance(files, LocalFiles) and chunks.can_read(layout):
            digest = chunks.read_plain(files, layout, chunk, committed, span, out)
        else:
            data = chunks.decode_chunk(_fetch(files, layout, chunk, index or _ShardIndex()), layout)
            digest = crc32c(data[:committed])
            out[:] = data[span[0] : span[1]]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _damaged(snapshot, layout, chunk, "its file is missing") from error
    except (chunks.DamagedChunkError, FormatError, IsADirectoryError) as error:
        raise _damaged(snapshot, layout, chunk, str(error)) from error
    expected = int(snapshot.manifest.digests[layout.name][chunk])
    if digest != expected:
        reason = (
            f"it is a valid chunk, but not the one that was committed (digest {digest:08x}, "
            f"expected {expected:08x}): swapped, stale or overwritten"
        )
        raise _damaged(snapshot, layout, chunk, reason)


def check_padding(snapshot: Snapshot, layout: ArrayLayout) -> None:
    """Check the chunks of the last shard that have no committed rows; nothing else reads them."""
    n_chunks, size = snapshot.manifest.n_chunks, layout.chunks_per_block
    index = _ShardIndex()
    for chunk in range(n_chunks, -(-n_chunks // size) * size):
        try:
            chunks.decode_chunk(_fetch(snapshot.files, layout, chunk, index), layout)
        except chunks.DamagedChunkError as error:
            raise _damaged(snapshot, layout, chunk, str(error)) from error


def _fetch(files: Files, layout: ArrayLayout, chunk: int, index: _ShardIndex) -> bytes:
    """Return the stored bytes of a chunk that is a file of its own, or a part of a shard."""
    if layout.shard_rows is None:
        return files.read(layout.key(chunk), chunks.stored_limit(layout))
    block, inner = divmod(chunk, layout.chunks_per_block)
    key = layout.key(block)
    if index.block != block:
        length = chunks.index_bytes(layout)
        index.entries = tuple(chunks.decode_index(files.read_range(key, -length, length), layout))
        index.block = block
    offset, length = index.entries[inner]
    chunks.check_entry((offset, length), layout)
    stored = files.read_range(key, offset, length)
    if len(stored) != length:
        raise chunks.DamagedChunkError(f"it is truncated to {len(stored)} bytes of {length}")
    return stored


def _damaged(snapshot: Snapshot, layout: ArrayLayout, chunk: int, reason: str) -> IntegrityError:
    first, last = snapshot.manifest.rows_of(chunk)
    key = layout.key(chunk // layout.chunks_per_block)
    rows = f"rows {first} to {last - 1}" if first < last else "no rows yet"
    return IntegrityError(
        f"{snapshot.files.url}: array {layout.name!r}, chunk {chunk} ({rows}, "
        f"file {key}): {reason}. Restore that file from a copy or write the rows again"
    )
