"""A store's array as a Dask array of lazy block reads.

A Zarr v3 group with commits: what every store of this package is.

    store.zarr/
      zarr.json                    the root: attributes, row count, metadata of all arrays
      features/zarr.json           the array's own metadata, for other Zarr tools
      features/c.0.0, c.1.0 ...    chunks (or shards) of whole rows
      labels/ ids/ thumbnails/     the same rows in the same chunks
      _commits/manifest-00000003   which chunks commit 3 has, and a digest of the rows in each
      _commits/pending/17          a receipt: block 17 of an unfinished store or append is written
      _commits/pending/append      which append the receipts belong to
      _commits/lock                who is writing

**The commit.** The number of rows stands in one place, the root, and replacing the root (one
rename, one PUT) is the only step that makes rows exist. Before it come the chunks, then the
manifest; the arrays' own metadata follow. Whoever dies on the way leaves the store as it was at
the commit before, and the next writer simply writes the same files again. A store that has never
been committed says "incomplete"; its arrays have zero rows, so that nobody takes unwritten chunks
for zeros.

**Appending into the last chunk.** A partly filled chunk is replaced by a longer version of
itself: the same rows, then the new ones. Two readers may therefore look at the same file through
different commits. Both are right, because the manifest keeps, for each chunk, the digest of the
*committed rows* and not of the file: the reader of the older commit checks its prefix, the reader
of the newer one checks more. Manifests are numbered and never rewritten, the last 16 are kept,
and a reader names its commit when it is sent to another process, so a long job sees the same rows
to its end even while rows are appended.

An append whose rows have a name (`resume_key`) leaves receipts too. Killed and called again, with
the same rows on the same commit, it keeps the blocks that have one; any other append deletes the
receipts before it writes a block, so that nobody takes its blocks for his own.

**What a read checks.** Every read of a chunk checks the length and the checksum of the whole file
(crc32c, as in Zarr) and the digest from the manifest. The first finds flipped bits and
truncation, the second finds chunks that are valid but are not the ones: swapped, stale, zeroed. A
missing chunk is an error, never zeros.

**Making a big store in parallel.** `allocate` writes an uncommitted root, any process writes
whole blocks and leaves a receipt for each, `finalise` gathers the receipts into the first
manifest and commits. Blocks without a receipt are what is left to do.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import ConflictError, InputError
from sadih_dask.files.checksum import canonical_json
from sadih_dask.files.filesystem import connect
from sadih_dask.files.lease import WriterLock
from sadih_dask.stores import columns
from sadih_dask.stores.chunks import chunk_digests
from sadih_dask.stores.commit import NewRows, append_rows
from sadih_dask.stores.reader import Snapshot, open_snapshot, read_rows, take_rows
from sadih_dask.stores.root import Schema
from sadih_dask.stores.verify import Progress, Verification, verify_snapshot

if TYPE_CHECKING:
    import dask.array as da
    import zarr


class LazyArray:
    """What Dask slices: shape and type, and the store to read from.

    It is pickled as the store is (URL and commit), so a task carries a few hundred bytes.
    """

    def __init__(self, store: CommittedGroup, name: str) -> None:
        self._store = store
        self._name = name
        self.shape = store.shape(name)
        self.dtype = store.dtype(name)
        self.ndim = len(self.shape)

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        rows, rest = (key[0], key[1:]) if isinstance(key, tuple) else (key, ())
        if isinstance(rows, slice) and (rows.step or 1) > 0:
            start, stop, step = rows.indices(self.shape[0])
            block = self._store.read(self._name, start, max(start, stop))
            return block[(slice(None, None, step), *rest)]
        picked = np.arange(self.shape[0])[rows]
        block = self._store.take(self._name, np.atleast_1d(picked))
        return block[(slice(None) if np.ndim(picked) else 0, *rest)]

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self._store.uid, self._store.generation, self._name


def to_dask(store: CommittedGroup, name: str) -> da.Array:
    """Return a Dask array with one chunk for each storage chunk."""
    import dask.array as da

    source = LazyArray(store, name)
    chunks = (store.chunk_rows, *source.shape[1:])
    from_array: Callable[..., da.Array] = da.from_array
    return from_array(
        source,
        chunks=chunks,
        name=f"{name}-{store.uid[:12]}-{store.generation}",
        inline_array=True,
        asarray=False,
        meta=np.empty((0,) * source.ndim, source.dtype),
    )


class CommittedGroup:
    """One commit of a store, opened for reading; cheap to copy to a worker, safe in threads."""

    kind: ClassVar[str]
    schema: ClassVar[Schema]
    main_array: ClassVar[str]

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._check_properties()
        if "ids" in snapshot.commit.layouts:
            columns.check_encoding(self._id_encoding, snapshot.layout("ids"), self.url)

    @classmethod
    def open(
        cls, url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
    ) -> Self:
        """Open the latest commit of the store at a local path or an fsspec URL."""
        return cls(open_snapshot(connect(url, storage_options), cls.kind, cls.schema))

    def _check_properties(self) -> None:
        """Raise FormatError if the attributes are not those of this kind of store."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Return where the store is."""
        return self._snapshot.files.url

    @property
    def n_rows(self) -> int:
        """Return the committed number of rows."""
        return self._snapshot.commit.n_rows

    @property
    def arrays(self) -> tuple[str, ...]:
        """Return the names of the arrays."""
        return tuple(self._snapshot.commit.layouts)

    @property
    def chunk_rows(self) -> int:
        """Return the rows of a chunk: the unit of reading."""
        return self._snapshot.commit.layout.chunk_rows

    @property
    def block_rows(self) -> int:
        """Return the rows of a stored file (a chunk or a shard): the unit of writing."""
        return self._snapshot.commit.layout.block_rows

    @property
    def n_chunks(self) -> int:
        """Return the number of chunks of each array."""
        return self._snapshot.manifest.n_chunks

    @property
    def uid(self) -> str:
        """Return the identity of the store, which lasts until it is overwritten."""
        return self._snapshot.commit.uid

    @property
    def generation(self) -> int:
        """Return the number of the commit."""
        return self._snapshot.commit.generation

    @property
    def properties(self) -> Mapping[str, Any]:
        """Return the attributes of the store beside those that every store has."""
        return MappingProxyType(self._snapshot.commit.properties)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all committed rows before compression."""
        layouts = self._snapshot.commit.layouts.values()
        return self.n_rows * sum(layout.row_bytes for layout in layouts)

    @property
    def compression(self) -> str:
        """Return "none" or "zstd"."""
        return self._snapshot.commit.layout.compression

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array as `read` gives it."""
        row_shape = self._snapshot.layout(name).row_shape
        return (self.n_rows,) if name == "ids" else (self.n_rows, *row_shape)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the type of an array as `read` gives it."""
        layout = self._snapshot.layout(name)
        if name == "ids":
            return columns.decoded_dtype(layout, self._id_encoding)
        return layout.numpy_dtype

    @property
    def _id_encoding(self) -> str:
        return str(self._snapshot.commit.properties.get("ids"))

    def _present(self, name: str, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Turn stored values into those that a caller gets."""
        return columns.decode_ids(stored, self._id_encoding) if name == "ids" else stored

    def read(
        self,
        name: str,
        start: int = 0,
        stop: int | None = None,
        *,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Return rows [start, stop) of an array; every chunk that they touch is checked.

        With `out` (C-contiguous, of the stored type) no memory is allocated for rows. Whole chunks
        are cheapest: a part of a chunk costs as much as the chunk.
        """
        return self._present(name, read_rows(self._snapshot, name, start, stop, out))

    def take(self, name: str, rows: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return single rows in the given order; each chunk that holds any is read once."""
        wanted = np.asarray(rows)
        if wanted.size and wanted.dtype.kind not in "iu":
            raise InputError(f"rows must be integers, got {wanted.dtype}")
        return self._present(name, take_rows(self._snapshot, name, wanted.astype(np.int64)))

    def to_dask(self, name: str | None = None) -> da.Array:
        """Return an array (by default the main one) as a lazy Dask array, chunk by chunk.

        Its tasks carry the URL, the commit and a range of rows; no data are read here.
        """
        return to_dask(self, name or self.main_array)

    def to_zarr(self) -> zarr.Group:
        """Return the store as a read-only zarr group, for other tools.

        zarr checks each chunk's own checksum, but knows nothing of the manifest, and reads a
        missing chunk as zeros.
        """
        import zarr

        files = self._snapshot.files
        options = dict(files.options) or None
        return zarr.open_group(files.url, mode="r", storage_options=options)

    def verify(
        self,
        arrays: Sequence[str] | None = None,
        *,
        chunks: range | None = None,
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> Verification:
        """Read everything, or the given arrays and chunks, and report what is damaged.

        `progress(done, total)` is called after each chunk. Metadata are read anew first; damage
        to them raises at once, since nothing can be said about the rest.
        """
        files, commit = self._snapshot.files, self._snapshot.commit
        open_snapshot(files, self.kind, self.schema, commit.uid, commit.generation)
        return verify_snapshot(
            self._snapshot,
            self.arrays if arrays is None else arrays,
            range(self.n_chunks) if chunks is None else chunks,
            workers or min(4, os.cpu_count() or 1),
            progress,
        )

    def fingerprint(self, n_rows: int | None = None, arrays: Sequence[str] | None = None) -> str:
        """Return a hash of the first `n_rows` rows (default: all) of the given arrays.

        It is made of the chunk digests, so it costs the read of one chunk at most, and rows that
        were appended later do not change the fingerprint of those before. Equal rows in chunks of
        another length have another fingerprint.
        """
        n_rows = self.n_rows if n_rows is None else n_rows
        whole, rest = divmod(n_rows, self.chunk_rows)
        parts: dict[str, Any] = {"n_rows": n_rows, "chunk_rows": self.chunk_rows}
        for name in self.arrays if arrays is None else arrays:
            layout = self._snapshot.layout(name)
            digests = [int(digest) for digest in self._snapshot.manifest.digests[name][:whole]]
            if rest:
                tail = read_rows(self._snapshot, name, n_rows - rest, n_rows)
                digests += chunk_digests(tail, layout)
            parts[name] = [layout.dtype, list(layout.row_shape), digests]
        return hashlib.sha256(canonical_json(parts)).hexdigest()

    def refresh(self) -> Self:
        """Return the latest commit of the same store."""
        files = self._snapshot.files
        return type(self)(open_snapshot(files, self.kind, self.schema, self.uid))

    def _append(self, rows: NewRows, at: int | None) -> int:
        """Add rows behind the latest commit and look at the new commit from now on.

        Return how many of them an interrupted call had written.
        """
        with WriterLock(self._snapshot.files) as lock:
            latest = self.refresh()._snapshot
            if at is not None and at != latest.commit.n_rows:
                raise ConflictError(
                    f"{self.url} has {latest.commit.n_rows} rows, but rows were to be appended at "
                    f"row {at}: they are there already, or somebody else has appended"
                )
            merged = {**latest.commit.properties, **rows.properties}
            n_resumed = 0
            if rows.n_new or merged != latest.commit.properties:
                n_resumed = append_rows(latest, lock, replace(rows, properties=merged))
            self._snapshot = self.refresh()._snapshot
            return n_resumed

    def __len__(self) -> int:
        return self.n_rows

    def __reduce__(self) -> tuple[Any, ...]:
        options = dict(self._snapshot.files.options)
        return _reopen, (type(self), self.url, options, self.uid, self.generation)

    def __repr__(self) -> str:
        arrays = ", ".join(
            f"{name} {'x'.join(map(str, self.shape(name)))} {self.dtype(name)}"
            for name in self.arrays
        )
        return (
            f"<{type(self).__name__} {self.url!r}: {self.n_rows} rows, {arrays}; {self.n_chunks} "
            f"chunks of {self.chunk_rows} rows, compression {self.compression}, "
            f"{self.nbytes / 2**20:.1f} MiB, commit {self.generation}>"
        )


# A commit never changes, so a worker that gets a thousand tasks opens each store once.
_OPENED: OrderedDict[tuple[Any, ...], CommittedGroup] = OrderedDict()
_OPENED_LOCK = threading.Lock()
_OPENED_LIMIT = 32


def _reopen(
    cls: type[CommittedGroup], url: str, options: Mapping[str, Any], uid: str, generation: int
) -> CommittedGroup:
    key = (cls, url, repr(sorted(options.items())), uid, generation)
    with _OPENED_LOCK:
        found = _OPENED.get(key)
    if found is None:
        files = connect(url, options)
        found = cls(open_snapshot(files, cls.kind, cls.schema, uid, generation))
        with _OPENED_LOCK:
            _OPENED[key] = found
            while len(_OPENED) > _OPENED_LIMIT:
                _OPENED.popitem(last=False)
    # Not the cached object itself: `append` on it would move everybody else's commit.
    return cls(found._snapshot)
