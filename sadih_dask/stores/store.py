"""What every store is: immutable segments of rows, and the root that names them.

    store.zarr/
      zarr.json                          the root: the only file that is ever replaced
      segments/<id>/features/c.0.0 ...   chunks of whole rows; labels/ ids/ thumbnails/ alike
      segments/<id>/manifest             the digest of each chunk
      deletions/<id>                     which rows of a segment are dead
      sources/<id>                       the files that the rows came from
      roots/<generation>-<commit>.json   former roots, for those who still read them

Row i of a store is the i-th live row in the order of the segments. A segment is a plain Zarr v3
group that is never touched again, so a store without this package is still a folder of Zarr
arrays.

**The commit.** Replacing the root is the only step that makes rows exist, or not exist any more;
see `commit` for what may be done and what happens when two do it at once. Whoever dies on the way
leaves the store as it was, and the same call goes on where it stopped.

**Readers** name the state that they have opened when they are sent to another process, so a long
job sees the same rows to its end, whatever is appended, deleted, compacted or overwritten
meanwhile.

**What a read checks.** Every read of a chunk checks its length, its checksum (crc32c, as in Zarr)
and the digest from the manifest. The first two find flipped bits and truncation, the last finds
chunks that are valid but not the ones: swapped, stale, zeroed. A missing chunk is an error, never
zeros.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import (
    Argument,
    ConflictError,
    DtypeError,
    IncompleteError,
    InputError,
    Remedy,
    SadihError,
    require,
)
from sadih_dask.files.filesystem import Files, connect
from sadih_dask.stores import columns
from sadih_dask.stores import commit as commits
from sadih_dask.stores.ahead import MOST_CHUNKS
from sadih_dask.stores.commit import Amend, Mode, Plan
from sadih_dask.stores.foreign import tell
from sadih_dask.stores.layout import (
    DEFAULT_CHUNK_BYTES,
    MAX_ROWS,
    check_chunking,
    default_chunk_rows,
)
from sadih_dask.stores.reader import BlockReader, Snapshot, read_rows, take_places, take_rows
from sadih_dask.stores.root import (
    KEPT_GENERATIONS,
    SCHEMAS,
    Root,
    Segment,
    new_id,
    read_root,
    read_state,
    short_hash,
    widest_row,
)
from sadih_dask.stores.segment import Digests, Rows, SegmentWriter
from sadih_dask.stores.verify import Progress, Verification, verify_snapshot
from sadih_dask.types import Ints

if TYPE_CHECKING:
    import dask.array as da
    import xarray
    import zarr

Url = str | os.PathLike[str]
_KEY = re.compile(r"[\w-]{1,100}")
"""What names a call in the root as it is; anything else is hashed."""
Columns = dict[str, tuple[str, tuple[int, ...]]]
RowsBetween = Callable[[Root, int, int], Rows]
"""Rows from one number to another, as they are stored in a state with such arrays."""


def planned(
    kind: str,
    files: Files,
    arrays: Columns,
    properties: Mapping[str, Any],
    chunk_rows: int | None,
    compression: str | None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
) -> Root:
    """Return the root of a store with these arrays (type and row shape each) that has no rows yet.

    Local stores are not compressed by default (zstd reads five times slower than the disk), those
    behind a network are.
    """
    for name, (dtype, row_shape) in arrays.items():
        column = SCHEMAS[kind][name]
        if dtype not in column.dtypes:
            raise DtypeError(
                f"{name} cannot be stored as {dtype}; convert to one of "
                f"{', '.join(sorted(column.dtypes))}"
            )
        if 1 + len(row_shape) not in column.n_dims or any(length < 1 for length in row_shape):
            raise InputError(
                f"{name} of shape (rows, {', '.join(map(str, row_shape))}) cannot be stored; "
                f"expected {' or '.join(map(str, sorted(column.n_dims)))} dimensions, none of them "
                "empty"
            )
    if chunk_rows is None:
        chunk_rows = default_chunk_rows(widest_row(arrays), chunk_bytes)
    compression = compression or ("none" if files.is_local else "zstd")
    check_chunking(chunk_rows, compression)
    return Root(kind, "", arrays, chunk_rows, compression, dict(properties))


class StoreWriter:
    """Rows that are on their way into a store, from any number of processes.

    Copies that are sent to workers (by pickle: URL and plan, no rows) write blocks; `missing` says
    what is left to do, also after a crash and in another process; `finalise` commits.
    """

    def __init__(self, files: Files, plan: Plan, amend: Amend | None = None) -> None:
        self._files, self._plan, self._amend = files, plan, amend
        self._segment: SegmentWriter = plan.writer(files)

    @classmethod
    def _begin(
        cls,
        files: Files,
        root: Root,
        n_new: int,
        mode: Mode,
        key: str | None,
        amend: Amend | None = None,
        *,
        absorb: bool = True,
        foreign: str | None = None,
    ) -> Self:
        if not 0 <= n_new <= MAX_ROWS:
            raise InputError(f"a store cannot have {n_new} rows")
        key = new_id() if key is None else key
        if _KEY.fullmatch(key) is None:
            key = short_hash(key)
        Plan(mode, root, "", key, n_new).writer(files).check()
        found = commits.begin(files, root, n_new, mode, key, absorb=absorb)
        writer = cls(files, replace(found, foreign=foreign), amend)
        writer._segment.begin()
        return writer

    @property
    def url(self) -> str:
        """Return where the store is."""
        return self._files.url

    @property
    def n_rows(self) -> int:
        """Return how many rows are going to be written."""
        return self._plan.n_new

    @property
    def block_rows(self) -> int:
        """Return the rows of a block, the unit of writing."""
        return self._segment.chunk_rows - self._plan.n_absorbed

    @property
    def n_blocks(self) -> int:
        """Return the number of blocks."""
        return self._segment.n_chunks

    def rows_of(self, block: int) -> tuple[int, int]:
        """Return the rows of a block: first and one past the last."""
        return block * self.block_rows, min(self.n_rows, (block + 1) * self.block_rows)

    def missing(self, arrays: Iterable[str] | None = None) -> list[int]:
        """Return the blocks that one of the arrays (default: all) does not have yet."""
        return self._segment.missing(arrays)

    def _write(self, start: int, rows: Rows) -> Digests:
        """Write rows from `start` on, whole blocks, and return the digests of their chunks."""
        if self._plan.absorbs:  # then all of them are one block, behind the rows that were there
            rows = {
                name: np.concatenate([commits.read_absorbed(self._files, self._plan, name), array])
                for name, array in rows.items()
            }
        return self._segment.write(start, rows)

    def learn(self, digests: Digests) -> None:
        """Take over what workers have returned of the blocks that they wrote."""
        self._segment.learn(digests)

    def _fill(self, rows_between: RowsBetween) -> None:
        """Write every block with exactly these rows; those that are there must hold them."""
        for block in range(self.n_blocks):
            first, last = self.rows_of(block)
            self._write(first, rows_between(self._plan.root, first, last))

    def _finalise(self) -> Root:
        """Commit the rows once every block is written."""
        absorbed = tuple(leaf for part in self._plan.absorbs for leaf in part.live_leaves())
        sealed = commits.seal(self._files, self._plan.root.kind, self._segment, absorbed)
        root = commits.commit(self._files, self._plan, sealed, self._amend)
        if root is not None:
            return root
        # Small segments at the end, which were to become one with these rows, have changed. The
        # rows are read first: to begin again with the same key gives up what is written
        rows = commits.rows_alone(self._files, self._plan, sealed)
        place = (self._files, self._plan.root, self.n_rows)
        plan = commits.begin(*place, "append", self._plan.key, absorb=False)
        alone = type(self)(self._files, plan, self._amend)
        alone._segment.begin()
        alone._write(0, rows)
        return alone._finalise()

    def abandon(self) -> None:
        """Give up what is being written; nothing of it can be committed any more."""
        mine = self._plan.segment_id
        commits.abandon(self._files, self._plan.root.kind, lambda entry: entry.id == mine)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Give up what is being written if it fails: for calls that nobody could go on with."""
        try:
            yield
        except Exception:
            with suppress(OSError, SadihError):
                self.abandon()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        # Without what only the committer needs, which in a store of many segments is much
        root = replace(self._plan.root, segments=(), pending=(), history=(), recent=())
        plan = replace(self._plan, root=root)
        return _rebuild, (type(self), self.url, dict(self._files.options), plan)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.url!r}: {self.n_rows} rows in {self.n_blocks} blocks of "
            f"{self.block_rows}>"
        )


Writer = TypeVar("Writer", bound=StoreWriter)


def filled(begin: Callable[[], Writer], rows_between: RowsBetween, overwrite: bool) -> Writer:
    """Write all rows of a store, or those that are missing if the same call has been interrupted.

    It has begun with other rows? Then an overwrite gives those up.
    """
    writer = begin()
    try:
        writer._fill(rows_between)
    except ConflictError as error:
        if not overwrite:
            error.remedy = Remedy("To begin anew say {}", Argument("overwrite", True))
            raise
        seen = writer._plan.root.commit
        writer.abandon()
        writer = begin()
        if writer._plan.root.commit != seen:  # somebody has committed them: not to be replaced
            writer.abandon()
            raise
        writer._fill(rows_between)
    return writer


def _rebuild(
    cls: type[StoreWriter], url: str, options: Mapping[str, Any], plan: Plan
) -> StoreWriter:
    return cls(connect(url, options, follow_links=False), plan)


class LazyArray:
    """What Dask slices: shape and type, and the store to read from.

    It is pickled as the store is (URL and commit), so a task carries a few hundred bytes.
    """

    def __init__(self, store: Store, name: str) -> None:
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
        return type(self).__name__, self._store.commit, self._name


class Store:
    """One state of a store, opened for reading; cheap to copy to a worker, safe in threads."""

    kind: ClassVar[str]
    main_array: ClassVar[str]

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        if not self._root.segments:
            begun = ", ".join(entry.by for entry in self._root.pending) or "nobody any more"
            raise IncompleteError(
                f"{self.url} is incomplete: it has no rows yet, and is being written by {begun}. "
                "Repeat the call that was creating it and it will complete the rest"
            )
        for location in {segment.foreign for segment in self.segments} - {None}:
            tell(self.url, str(location))
        self._check_properties()
        if "ids" in self._root.arrays:
            columns.check_encoding(self._id_encoding, snapshot.layout("ids"), self.url)

    @classmethod
    def open(cls, url: Url, *, storage_options: Mapping[str, Any] | None = None) -> Self:
        """Open the latest state of the store at a local path or an fsspec URL."""
        files = connect(url, storage_options, follow_links=False)
        return cls(Snapshot(files, read_root(files, cls.kind)[0]))

    def _check_properties(self) -> None:
        """Raise FormatError if the attributes are not those of this kind of store."""
        raise NotImplementedError

    @property
    def _root(self) -> Root:
        return self._snapshot.root

    @property
    def url(self) -> str:
        """Return where the store is."""
        return self._snapshot.files.url

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return self._snapshot.n_rows

    @property
    def arrays(self) -> tuple[str, ...]:
        """Return the names of the arrays."""
        return tuple(self._root.arrays)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Return the segments that hold the rows, in order."""
        return self._root.segments

    @property
    def components(self) -> tuple[str, ...]:
        """Return the paths of the main array's parts, for other Zarr tools; dead rows included."""
        return tuple(s.foreign or f"{s.path}/{self.main_array}" for s in self.segments)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Return the rows of each chunk, as Dask does."""
        return tuple(np.diff(self._snapshot.bounds).tolist()) or (0,)

    @property
    def chunk_rows(self) -> int:
        """Return the rows of the largest chunk: the unit of reading."""
        return max(segment.chunk_rows for segment in self.segments)

    @property
    def new_chunk_rows(self) -> int:
        """Return the rows of a chunk in segments to come, unless they are small."""
        return self._root.chunk_rows

    @property
    def uid(self) -> str:
        """Return the identity of the store, which lasts for ever."""
        return self._root.uid

    @property
    def generation(self) -> int:
        """Return the number of the commit."""
        return self._root.generation

    @property
    def commit(self) -> str:
        """Return what tells this state from every other."""
        return self._root.commit

    @property
    def properties(self) -> Mapping[str, Any]:
        """Return the attributes of the store beside those that every store has."""
        return MappingProxyType(dict(self._root.properties))

    @property
    def source(self) -> str:
        """Return where the rows come from, in the words of whoever created the store."""
        return str(self._root.properties["source"])

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row of all arrays, before compression."""
        return self._root.row_bytes

    @property
    def nbytes(self) -> int:
        """Return the bytes of all rows before compression."""
        return self.n_rows * self.row_bytes

    @property
    def compression(self) -> str:
        """Return "none" or "zstd"."""
        return self._root.compression

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
        return str(self._root.properties.get("ids"))

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

    def begin_read(self, name: str, start: int, stop: int) -> Callable[[], npt.NDArray[Any]]:
        """Begin to fetch rows [start, stop) behind a network; return what waits and gives them."""
        read = self.reader(name, stop)
        read.expect(start)

        def finish() -> npt.NDArray[Any]:
            layout = self._snapshot.layout(name)
            out = np.empty((stop - start, *layout.row_shape), layout.numpy_dtype)
            with closing(read):
                read(start, out)
            return self._present(name, out)

        return finish

    def blocks(
        self, name: str, block_rows: int | None = None
    ) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield the first row and the rows of each block; every chunk is read once."""
        step = block_rows or self.chunk_rows
        layout = self._snapshot.layout(name)
        with closing(self.reader(name, self.n_rows)) as read:
            for row in range(0, self.n_rows, step):
                shape = (min(step, self.n_rows - row), *layout.row_shape)
                block = np.empty(shape, layout.numpy_dtype)
                read(row, block)
                yield row, self._present(name, block)

    def reader(self, name: str, end: int, most_ahead: int = MOST_CHUNKS) -> BlockReader:
        """Return what reads ascending ranges of rows up to `end`, and no chunk twice."""
        return BlockReader(self._snapshot, name, end, most_ahead)

    def take(self, name: str, rows: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return single rows in the given order; each chunk that holds any is read once."""
        wanted = np.asarray(rows)
        if wanted.size and wanted.dtype.kind not in "iu":
            raise InputError(f"rows must be integers, got {wanted.dtype}")
        return self._present(name, take_rows(self._snapshot, name, wanted.astype(np.int64)))

    def take_deleted(self, name: str, segment: int, places: Ints) -> npt.NDArray[Any]:
        """Return rows at ascending positions of a segment, also those that are deleted."""
        stored = take_places(self._snapshot, self.segments[segment], name, places)
        return self._present(name, stored)

    def to_dask(self, name: str | None = None) -> da.Array:
        """Return an array (by default the main one) as a lazy Dask array, chunk by chunk.

        Its tasks carry the URL, the commit and a range of rows; no data are read here.
        """
        import dask.array as da

        name = name or self.main_array
        source = LazyArray(self, name)
        from_array: Callable[..., da.Array] = da.from_array
        return from_array(
            source,
            chunks=(self.chunks, *source.shape[1:]),
            name=f"{name}-{self.commit}",
            inline_array=True,
            asarray=False,
            meta=np.empty((0,) * source.ndim, source.dtype),
        )

    def to_xarray(self) -> xarray.Dataset:
        """Return all arrays, lazily as `to_dask` does, as a data set of xarray over `row`.

        Ids are a coordinate, text as text; so are the names of classes that have columns. Other
        properties are attributes. `data.set_index(row="ids")` finds rows by id, and reads the ids.
        """
        dataset: type[xarray.Dataset] = require("xarray", "a data set of xarray").Dataset
        arrays: dict[str, Any] = {}
        for name in self.arrays:
            dimensions = self._snapshot.layout(name).dimensions[: len(self.shape(name))]
            arrays[name] = dimensions, self.to_dask(name)
        properties = {k: v for k, v in self.properties.items() if k != "ids" and v not in ("", [])}
        coordinates = {name: arrays.pop(name) for name in ("ids",) if name in arrays}
        by_class = any("class" in dimensions for dimensions, _ in arrays.values())
        if by_class and "class_names" in properties:
            coordinates["class"] = "class", properties.pop("class_names")
        kept = {k: v for k, v in properties.items() if isinstance(v, str | int | list)}
        return dataset(arrays, coordinates, kept)

    def to_zarr(self) -> zarr.Group:
        """Return the store as a read-only zarr group, for other tools; see `components`.

        zarr checks each chunk's own checksum, but knows nothing of manifests and deletions, and
        reads a missing chunk as zeros.
        """
        import zarr

        options = dict(self._snapshot.files.options) or None
        return zarr.open_group(self.url, mode="r", storage_options=options)

    def verify(
        self,
        arrays: Sequence[str] | None = None,
        *,
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> Verification:
        """Read everything, or the given arrays, and report what is damaged.

        `progress(done, total)` is called after each chunk. The root is read anew first; damage to
        it raises at once, since nothing can be said about the rest.
        """
        files, root = self._snapshot.files, self._root
        state = read_state(files, self.kind, root.generation, root.commit)
        names = self.arrays if arrays is None else arrays
        return verify_snapshot(
            Snapshot(files, state), names, workers or min(4, os.cpu_count() or 1), progress
        )

    def fingerprint(self, arrays: Sequence[str] | None = None) -> str:
        """Return a hash of the rows of the given arrays (default: all); nothing is read for it.

        It does not change when segments are joined, and changes with any row that is added or
        deleted. Equal rows that were written in chunks of another length have another fingerprint.
        """
        names = self.arrays if arrays is None else arrays
        parts = [leaf.of(names) for part in self.segments for leaf in part.live_leaves()]
        return short_hash([list(names), parts])

    def refresh(self) -> Self:
        """Return the latest state of the same store."""
        files = self._snapshot.files
        return type(self)(Snapshot(files, read_root(files, self.kind)[0]))

    def clone(self, url: Url) -> Self:
        """Make these rows a store of their own, which may then be changed by itself.

        Files are shared by hard links, or copied by the server behind a URL: no row is read.
        """
        files = connect(url, self._snapshot.files.options, follow_links=False)
        return type(self)(Snapshot(files, commits.clone(self._snapshot, files)))

    def compact(
        self, *, one_segment: bool = False, purge: bool = False, progress: Progress | None = None
    ) -> Self:
        """Join small segments, and drop the bytes of deleted rows; return the new state.

        `one_segment` joins all. `purge` also forgets every former state, so that nothing of a
        deleted row is left in the store; who reads one of them is told so. It is refused while
        rows that were begun to be written have taken others up, which may be deleted by now.
        """
        files = self._snapshot.files
        place = (files, self.kind)
        if purge and (by := [p.by for p in self.refresh()._root.pending if p.absorbs]):
            raise ConflictError(
                f"{self.url}: {len(by)} additions were begun and not finished (by {by[0]}), and "
                "have copies of rows, maybe of deleted ones. Finish them, or give them up (sadih "
                "compact --abandon); nothing was erased"
            )
        commits.compact(*place, everything=one_segment, progress=progress)
        if purge:  # one that was killed may have copied rows that were deleted afterwards
            commits.abandon(*place, lambda entry: entry.key.startswith(commits.COMPACTION))
        commits.collect(*place, keep=0 if purge else KEPT_GENERATIONS)
        return self.refresh()

    @property
    def keeps_former(self) -> bool:
        """Return whether former states are kept, with rows that may be deleted by now."""
        return bool(self._root.history)

    def collect(self) -> list[str]:
        """Delete files that no state can reach any more; return their keys."""
        return commits.collect(self._snapshot.files, self.kind)

    def abandon(self) -> int:
        """Give up everything that was begun and never finished; return how many segments."""
        return commits.abandon(self._snapshot.files, self.kind)

    def restore(self, generation: int) -> Self:
        """Make a former state the latest again, and return it."""
        commits.restore(self._snapshot.files, self.kind, generation)
        return self.refresh()

    def __len__(self) -> int:
        return self.n_rows

    def __reduce__(self) -> tuple[Any, ...]:
        options = dict(self._snapshot.files.options)
        return _reopen, (type(self), self.url, options, self.generation, self.commit)

    def __repr__(self) -> str:
        arrays = ", ".join(
            f"{name} {'x'.join(map(str, self.shape(name)))} {self.dtype(name)}"
            for name in self.arrays
        )
        return (
            f"<{type(self).__name__} {self.url!r}: {self.n_rows} rows, {arrays}; "
            f"{len(self.segments)} segments, compression {self.compression}, "
            f"{self.nbytes / 2**20:.1f} MiB, commit {self.generation}>"
        )


# A state never changes, so a worker that gets a thousand tasks opens each store once.
_OPENED: OrderedDict[tuple[Any, ...], Store] = OrderedDict()
_OPENED_LOCK = threading.Lock()
_OPENED_LIMIT = 32


def _reopen(
    cls: type[Store], url: str, options: Mapping[str, Any], generation: int, commit: str
) -> Store:
    key = (cls, url, repr(sorted(options.items())), commit)
    with _OPENED_LOCK:
        found = _OPENED.get(key)
    if found is None:
        files = connect(url, options, follow_links=False)
        found = cls(Snapshot(files, read_state(files, cls.kind, generation, commit)))
        with _OPENED_LOCK:
            _OPENED[key] = found
            while len(_OPENED) > _OPENED_LIMIT:
                _OPENED.popitem(last=False)
    # Not the cached object itself: `append` on it would move everybody else's state.
    return cls(found._snapshot)
