"""Reading one state of a store: logical rows -> segments -> chunks, with every byte checked.

A snapshot is immutable and holds no rows; manifests and deletions are read when they are first
needed, so a worker that reads one segment reads one manifest. Any number of threads may read
through the same snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import (
    ConflictError,
    FormatError,
    InputError,
    IntegrityError,
    SadihError,
)
from sadih_dask.files import conditional
from sadih_dask.files.checksum import as_bytes_view
from sadih_dask.files.filesystem import Files, LocalFiles, is_url
from sadih_dask.stores import chunks, foreign
from sadih_dask.stores.ahead import MOST_CHUNKS, Fetch, ReadAhead, depth_of
from sadih_dask.stores.deletions import live_before, physical, read_deletions
from sadih_dask.stores.layout import ArrayLayout
from sadih_dask.stores.root import ROOT, ROOT_LIMIT, Root, Segment
from sadih_dask.stores.segment import Manifest, read_manifest
from sadih_dask.types import Ints


class Snapshot:
    """One state of a store, and where it is."""

    def __init__(self, files: Files, root: Root) -> None:
        self.files, self.root = files, root
        self._manifests: dict[str, Manifest] = {}
        self._dead: dict[str, Ints] = {}
        self._bounds: Ints | None = None

    @cached_property
    def starts(self) -> Ints:
        """First logical row of each segment, and one past the last of all."""
        return np.cumsum([0, *(segment.n_live for segment in self.root.segments)])

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return int(self.starts[-1])

    @property
    def bounds(self) -> Ints:
        """First logical row of each chunk that has any, and one past the last of all."""
        if self._bounds is None:  # Python 3.11 would lock all snapshots while files are read
            found = [
                start + live_before(self.dead(segment), _chunk_starts(segment))
                for segment, start in zip(self.root.segments, self.starts, strict=False)
            ]
            self._bounds = np.unique(np.concatenate([np.array([0, self.n_rows]), *found]))
        return self._bounds

    def dead(self, segment: Segment) -> Ints:
        """Positions of the deleted rows of a segment."""
        if segment.id not in self._dead:
            try:
                self._dead[segment.id] = read_deletions(self.files, segment)
            except IntegrityError as error:
                raise self.reason(error) from error
        return self._dead[segment.id]

    def manifest(self, segment: Segment) -> Manifest:
        """The digests of a segment's chunks."""
        if segment.id not in self._manifests:
            try:
                self._manifests[segment.id] = read_manifest(self.files, segment, self.root.arrays)
            except IntegrityError as error:
                raise self.reason(error) from error
        return self._manifests[segment.id]

    def reason(self, error: IntegrityError) -> SadihError:
        """Return the error, or another one if files are gone because this state is not kept."""
        latest = conditional.read(self.files, ROOT, ROOT_LIMIT)
        # A root names its own commit and those that are kept
        if latest is None or self.root.commit.encode() in latest.data:
            return error
        return ConflictError(
            f"{self.files.url}: commit {self.root.generation} is no longer kept; open the store "
            "again"
        )

    def check_array(self, name: str) -> None:
        """Raise InputError with the names that there are."""
        if name not in self.root.arrays:
            raise InputError(
                f"{self.files.url} has no array {name!r}; it has {', '.join(self.root.arrays)}"
            )

    def layout(self, name: str) -> ArrayLayout:
        """Type and row shape of an array, in chunks as new segments have them."""
        self.check_array(name)
        return self.root.layouts(self.root.chunk_rows, self.root.compression)[name]

    def positions(self, rows: Ints) -> Iterator[tuple[Segment, Ints, Ints]]:
        """For ascending logical rows: segments, which of the rows they hold, and where."""
        cuts = np.searchsorted(rows, self.starts)
        for segment, start, first, last in zip(
            self.root.segments, self.starts, cuts, cuts[1:], strict=False
        ):
            if first < last:
                here = np.arange(first, last)
                yield segment, here, physical(self.dead(segment), rows[here] - start)


def _chunk_starts(segment: Segment) -> Ints:
    return np.arange(0, segment.n_rows, segment.chunk_rows)


def read_rows(
    snapshot: Snapshot,
    name: str,
    start: int = 0,
    stop: int | None = None,
    out: npt.NDArray[Any] | None = None,
    ahead: ReadAhead | None = None,
) -> npt.NDArray[Any]:
    """Return rows [start, stop) of an array as stored, in `out` if it is given."""
    layout = snapshot.layout(name)
    stop = snapshot.n_rows if stop is None else stop
    if not 0 <= start <= stop <= snapshot.n_rows:
        raise InputError(
            f"{snapshot.files.url}: rows {start} to {stop} of {name!r} were asked for, but it has "
            f"rows 0 to {snapshot.n_rows}"
        )
    shape = (stop - start, *layout.row_shape)
    if out is None:
        out = np.empty(shape, layout.numpy_dtype)
    elif out.shape != shape or out.dtype != layout.numpy_dtype or not out.flags.c_contiguous:
        raise InputError(
            f"out must be a C-contiguous {layout.dtype} array of shape {shape}, got {out.dtype} "
            f"of shape {out.shape}"
        )
    pieces = list(_pieces(snapshot, name, start, stop))
    if ahead is not None:
        _read_pieces(snapshot, pieces, out, ahead)
        return out
    with _ahead_of(snapshot, pieces, depth_of(layout.chunk_bytes)) as own:
        _read_pieces(snapshot, pieces, out, own)
    return out


class _Piece(NamedTuple):
    """Rows of one chunk: the range, counted within it, and the deleted ones of them."""

    segment: Segment
    layout: ArrayLayout
    chunk: int
    want: tuple[int, int]
    gone: Ints

    @property
    def n_live(self) -> int:
        """How many rows it gives."""
        return self.want[1] - self.want[0] - len(self.gone)


def _pieces(snapshot: Snapshot, name: str, start: int, stop: int) -> Iterator[_Piece]:
    """The chunks that hold rows [start, stop), in order."""
    first = int(np.searchsorted(snapshot.starts, start, "right")) - 1
    for segment, begin in zip(
        snapshot.root.segments[first:], snapshot.starts[first:], strict=False
    ):
        if begin >= stop:
            break
        low, high = max(start, int(begin)), min(stop, int(begin) + segment.n_live)
        if low < high:
            yield from _live_pieces(snapshot, segment, name, low - int(begin), high - int(begin))


def _live_pieces(
    snapshot: Snapshot, segment: Segment, name: str, low: int, high: int
) -> Iterator[_Piece]:
    """The chunks that hold live rows [low, high) of a segment."""
    dead = snapshot.dead(segment)
    layout = snapshot.root.layouts_of(segment)[name]
    if len(dead):
        places = physical(dead, np.array([low, high - 1]))
        low, high = int(places[0]), int(places[1]) + 1
    for chunk in range(low // layout.chunk_rows, -(-high // layout.chunk_rows)):
        first = chunk * layout.chunk_rows
        want = max(low, first) - first, min(high, first + layout.chunk_rows) - first
        gone = dead[np.searchsorted(dead, first + want[0]) : np.searchsorted(dead, first + want[1])]
        piece = _Piece(segment, layout, chunk, want, gone - first - want[0])
        if piece.n_live:
            yield piece


def _read_pieces(
    snapshot: Snapshot, pieces: list[_Piece], out: npt.NDArray[Any], ahead: ReadAhead | None
) -> None:
    filled = 0
    for segment, layout, chunk, want, gone in pieces:
        n_live = want[1] - want[0] - len(gone)
        target = out[filled : filled + n_live]
        if not len(gone):
            read_chunk(snapshot, segment, layout, chunk, want, target, ahead)
        else:
            rows = np.empty((want[1] - want[0], *layout.row_shape), layout.numpy_dtype)
            read_chunk(snapshot, segment, layout, chunk, want, rows, ahead)
            target[:] = np.delete(rows, gone, axis=0)
        filled += n_live


def _fetches(snapshot: Snapshot, pieces: Iterable[_Piece]) -> Iterator[Fetch]:
    """Those of the chunks that are fetched as a whole, over a network."""
    for segment, layout, chunk, *_ in pieces:
        adopted = segment.foreign if layout.name in segment.adopted else None
        if is_url(snapshot.files.url if adopted is None else adopted):
            name = (segment.id, layout.name, chunk)
            yield name, partial(_fetch, snapshot, segment, layout, chunk)


def _ahead_of(snapshot: Snapshot, pieces: Iterable[_Piece], depth: int) -> closing[ReadAhead]:
    return closing(ReadAhead(_fetches(snapshot, pieces), depth))


def _fetch(snapshot: Snapshot, segment: Segment, layout: ArrayLayout, chunk: int) -> Any:
    """The stored bytes of a chunk, or rows of an array that was adopted; not checked yet."""
    if segment.foreign is not None and layout.name in segment.adopted:
        first = chunk * layout.chunk_rows
        n_rows = min(layout.chunk_rows, segment.n_rows - first)
        return foreign.read_rows(segment.foreign, layout, first, n_rows)
    return snapshot.files.read(f"{segment.path}/{layout.key(chunk)}", chunks.stored_limit(layout))


def take_rows(snapshot: Snapshot, name: str, rows: Ints) -> npt.NDArray[Any]:
    """Return the given rows in the given order; each chunk that holds any is read once."""
    layout = snapshot.layout(name)
    n_rows = snapshot.n_rows
    if rows.ndim != 1 or (rows.size and not 0 <= rows.min() <= rows.max() < n_rows):
        raise InputError(
            f"{snapshot.files.url}: rows must be a list of numbers from 0 to {n_rows - 1}"
        )
    out = np.empty((rows.size, *layout.row_shape), layout.numpy_dtype)
    order = np.argsort(rows, kind="stable")
    for segment, here, places in snapshot.positions(rows[order]):
        out[order[here]] = take_places(snapshot, segment, name, places)
    return out


def take_places(snapshot: Snapshot, segment: Segment, name: str, places: Ints) -> npt.NDArray[Any]:
    """Return rows at ascending positions of a segment, dead ones too."""
    layout = snapshot.root.layouts_of(segment)[name]
    out = np.empty((len(places), *layout.row_shape), layout.numpy_dtype)
    numbers, starts = np.unique(places // layout.chunk_rows, return_index=True)
    nothing = places[:0]
    pieces = [_Piece(segment, layout, int(chunk), (0, 0), nothing) for chunk in numbers]
    with _ahead_of(snapshot, pieces, depth_of(layout.chunk_bytes)) as ahead:
        ends = np.append(starts, len(places))[1:]
        for chunk, first, last in zip(numbers, starts, ends, strict=True):
            inside = places[first:last] - chunk * layout.chunk_rows
            low, high = int(inside[0]), int(inside[-1]) + 1
            rows = np.empty((high - low, *layout.row_shape), layout.numpy_dtype)
            read_chunk(snapshot, segment, layout, int(chunk), (low, high), rows, ahead)
            out[first:last] = rows[inside - low]
    return out


def read_chunk(
    snapshot: Snapshot,
    segment: Segment,
    layout: ArrayLayout,
    chunk: int,
    want: tuple[int, int],
    out: npt.NDArray[Any],
    ahead: ReadAhead | None = None,
) -> None:
    """Read the rows `want` (counted within the chunk) into `out` and check the whole chunk."""
    expected = int(snapshot.manifest(segment).digests[layout.name][chunk])
    key = f"{segment.path}/{layout.key(chunk)}"
    span = want[0] * layout.row_bytes, want[1] * layout.row_bytes
    target = as_bytes_view(out)
    files = snapshot.files
    adopted = segment.foreign is not None and layout.name in segment.adopted
    try:
        if isinstance(files, LocalFiles) and layout.compression == "none" and not adopted:
            chunks.read_plain(files, key, layout, span, target, expected)
            return
        fetch = partial(_fetch, snapshot, segment, layout, chunk)
        found = fetch() if ahead is None else ahead.take((segment.id, layout.name, chunk), fetch)
        if adopted:
            parts, digest = chunks.encode_chunk(found, replace(layout, compression="none"))
            chunks.check_crc(digest, parts[1], expected)
            target[:] = as_bytes_view(found)[span[0] : span[1]]
        else:
            target[:] = chunks.decode_chunk(found, layout, expected)[span[0] : span[1]]
    except (FileNotFoundError, NotADirectoryError) as error:
        missing = damaged(snapshot, segment, layout, chunk, "its file is missing")
        raise snapshot.reason(missing) from error
    except (chunks.DamagedChunkError, FormatError, IsADirectoryError) as error:
        raise damaged(snapshot, segment, layout, chunk, str(error)) from error


def damaged(
    snapshot: Snapshot, segment: Segment, layout: ArrayLayout, chunk: int, reason: str
) -> IntegrityError:
    """Name the chunk, its rows as the store counts them, and its file."""
    number = snapshot.root.segments.index(segment)
    first = chunk * segment.chunk_rows
    ends = np.array([first, min(segment.n_rows, first + segment.chunk_rows)])
    rows = snapshot.starts[number] + live_before(snapshot.dead(segment), ends)
    held = f"rows {rows[0]} to {rows[1] - 1}" if rows[0] < rows[1] else "deleted rows"
    if layout.name in segment.adopted:
        return IntegrityError(
            f"{snapshot.files.url}: array {layout.name!r}, chunk {chunk} of segment {number} "
            f"({held}, rows {ends[0]} to {ends[1] - 1} of {segment.foreign}): {reason}. Put the "
            "array back as it was when it was adopted, or adopt it anew"
        )
    return IntegrityError(
        f"{snapshot.files.url}: array {layout.name!r}, chunk {chunk} of segment {number} ({held}, "
        f"file {segment.path}/{layout.key(chunk)}): {reason}. Restore that file from a copy or "
        "write the rows again"
    )


class BlockReader:
    """Reads ranges of rows in ascending order, up to row ``end``, and no chunk twice.

    Chunks are the unit in which bytes are read and checked. Those that lie within a range are read
    straight into place; one that goes on in the next range is kept for it.
    """

    def __init__(
        self, snapshot: Snapshot, name: str, end: int, most_ahead: int = MOST_CHUNKS
    ) -> None:
        self._snapshot, self._name, self._end = snapshot, name, end
        self._depth = depth_of(snapshot.layout(name).chunk_bytes, most_ahead)
        self._held: tuple[int, npt.NDArray[Any]] | None = None
        self._ahead: ReadAhead | None = None

    def expect(self, start: int) -> None:
        """Begin to fetch the rows from ``start`` on, where they are behind a network."""
        pieces = _pieces(self._snapshot, self._name, start, self._end)
        self._ahead = ReadAhead(_fetches(self._snapshot, pieces), self._depth)
        self._ahead.begin()

    def close(self) -> None:
        """Fetch no more."""
        if self._ahead is not None:
            self._ahead.close()

    def __call__(self, start: int, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with the rows from ``start`` on."""
        bounds, stop = self._snapshot.bounds, start + len(out)
        row = start
        if self._ahead is None:
            self.expect(start)
        while row < stop:
            chunk = int(np.searchsorted(bounds, row, "right")) - 1
            first, limit = int(bounds[chunk]), int(bounds[chunk + 1])
            if (self._held is not None and self._held[0] == chunk) or limit > stop < self._end:
                until = min(limit, stop)
                out[row - start : until - start] = self._chunk(chunk)[row - first : until - first]
            else:  # the rest of the range, but for a chunk at its end that the next range needs
                last = int(bounds[int(np.searchsorted(bounds, stop, "right")) - 1])
                until = stop if stop == self._end else max(limit, last)
                part = out[row - start : until - start]
                read_rows(self._snapshot, self._name, row, until, part, self._ahead)
            row = until

    def _chunk(self, chunk: int) -> npt.NDArray[Any]:
        if self._held is None or self._held[0] != chunk:
            bounds = self._snapshot.bounds
            ends = int(bounds[chunk]), int(bounds[chunk + 1])
            rows = read_rows(self._snapshot, self._name, *ends, ahead=self._ahead)
            self._held = (chunk, rows)
        return self._held[1]
