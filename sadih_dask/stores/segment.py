"""A segment in the making: whole chunks from any number of processes, written once and for ever.

    segments/<id>/zarr.json                    a plain Zarr v3 group
    segments/<id>/features/zarr.json, c.0.0 ...
    segments/<id>/manifest                     one digest for each chunk; written last

Every file is *created*, never replaced, under a name that no other call can choose. A task that
is run twice, or a worker that wakes up after the commit, finds its chunk there and writes
nothing; it only makes sure that the chunk holds the rows that it was about to write. Digests come
back from those who wrote, and after a kill they are read from the ends of the files: nothing else
has to be remembered, and what is left to do is seen by one listing an array.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import (
    ConflictError,
    IncompleteError,
    InputError,
    IntegrityError,
    SadihError,
)
from sadih_dask.files.checksum import TRAILER_BYTES, as_bytes_view, canonical_json, crc32c, trailer
from sadih_dask.files.filesystem import TEMPORARY_SUFFIX, Files
from sadih_dask.stores.chunks import DamagedChunkError, decode_chunk, encode_chunk, stored_limit
from sadih_dask.stores.layout import ArrayLayout
from sadih_dask.stores.root import GROUP, ROOT, SEGMENTS, Leaf, Segment, load_json, short_hash

Rows = Mapping[str, npt.NDArray[Any]]
Digests = dict[int, dict[str, int]]
"""Of some chunks, by their numbers: the digest of each array's."""
MAX_MANIFEST_BYTES = 64 << 20
_HEADER_LIMIT = 4096
_READERS = 32


@dataclass(frozen=True)
class Manifest:
    """Which chunks a segment has, and the digest of each: ``digests[name][chunk]``.

    The file is a line of JSON, the digests as little-endian 32-bit numbers, array after array, and
    a CRC-32C of all that. Four bytes a chunk: 10^9 rows of 512 floats have about a megabyte.
    """

    digests: dict[str, npt.NDArray[np.uint32]]

    def to_bytes(self, segment_id: str, n_rows: int, chunk_rows: int) -> bytes:
        """Return the file."""
        header = canonical_json(_header(segment_id, n_rows, chunk_rows, list(self.digests)))
        body = b"".join(digests.astype("<u4").tobytes() for digests in self.digests.values())
        data = header + b"\n" + body
        return data + trailer(crc32c(data))


def _header(segment_id: str, n_rows: int, chunk_rows: int, names: list[str]) -> dict[str, Any]:
    return {"segment": segment_id, "n_rows": n_rows, "chunk_rows": chunk_rows, "arrays": names}


def manifest_bytes(n_rows: int, chunk_rows: int, n_arrays: int) -> int:
    """Return a bound on the length of a manifest."""
    return _HEADER_LIMIT + 4 * n_arrays * -(-n_rows // chunk_rows) + TRAILER_BYTES


def read_manifest(files: Files, segment: Segment, arrays: Mapping[str, Any]) -> Manifest:
    """Read and check the manifest of a segment; IntegrityError if it is missing or damaged."""
    names = list(arrays)
    where = f"{files.url}: {segment.path}/manifest"
    limit = manifest_bytes(segment.n_rows, segment.chunk_rows, len(names))
    try:
        data = files.read(f"{segment.path}/manifest", min(limit, MAX_MANIFEST_BYTES))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise IntegrityError(
            f"{where} is missing; the segment cannot be checked. Restore that file from a copy"
        ) from error
    crc = crc32c(data[:-TRAILER_BYTES])
    if len(data) <= TRAILER_BYTES or trailer(crc) != data[-TRAILER_BYTES:]:
        raise IntegrityError(f"{where} is damaged: its checksum does not fit its contents")
    line_end = max(0, data.find(b"\n", 0, _HEADER_LIMIT))
    header = load_json(data[:line_end], where)
    body = data[line_end + 1 : -TRAILER_BYTES]
    expected = _header(segment.id, segment.n_rows, segment.chunk_rows, names)
    if (
        header != expected
        or crc != segment.manifest_crc
        or len(body) != 4 * len(names) * segment.n_chunks
    ):
        raise IntegrityError(
            f"{where} is not the one that was committed: checksum {crc:08x}, expected "
            f"{segment.manifest_crc:08x}. Restore that file from a copy"
        )
    table = np.frombuffer(body, "<u4").reshape(len(names), segment.n_chunks)
    return Manifest(dict(zip(names, table, strict=True)))


class SegmentWriter:
    """Writes the chunks of one segment, here or in a worker; holds no rows.

    layouts  of its arrays, which share their chunk rows
    foreign  where the features lie, if they are adopted: of these only digests are made
    """

    def __init__(
        self,
        files: Files,
        segment_id: str,
        layouts: dict[str, ArrayLayout],
        n_rows: int,
        foreign: str | None = None,
    ) -> None:
        self.files, self.id, self.layouts, self.n_rows = files, segment_id, layouts, n_rows
        self.foreign = foreign
        self.own = {k: v for k, v in layouts.items() if foreign is None or k != "features"}
        self.path = f"{SEGMENTS}/{segment_id}"
        self.chunk_rows = next(iter(layouts.values())).chunk_rows
        self._digests: Digests = {}

    @property
    def n_chunks(self) -> int:
        """Return the number of chunks of each array."""
        return -(-self.n_rows // self.chunk_rows)

    def check(self) -> None:
        """Refuse a segment that could not be read again."""
        for name, layout in self.layouts.items():
            layout.check(f"{self.files.url}: array {name!r}")
        size = manifest_bytes(self.n_rows, self.chunk_rows, len(self.layouts))
        if size > MAX_MANIFEST_BYTES:
            raise InputError(
                f"{self.n_rows} rows in chunks of {self.chunk_rows} make a manifest of {size} "
                f"bytes, at most {MAX_MANIFEST_BYTES} are allowed; use larger chunks"
            )

    def begin(self) -> None:
        """Write what other Zarr tools need to read the segment."""
        with explained(self.files, "the empty segment"):
            for key, document in self.documents().items():
                self.files.create(key, [json.dumps(document).encode()])

    def documents(self) -> dict[str, dict[str, Any]]:
        """Return the metadata of the group and its arrays, by key."""
        arrays = {name: layout.metadata(self.n_rows) for name, layout in self.own.items()}
        group = {
            **GROUP,
            "attributes": {},
            "consolidated_metadata": {
                "kind": "inline",
                "must_understand": False,
                "metadata": arrays,
            },
        }
        members = {f"{self.path}/{name}/{ROOT}": found for name, found in arrays.items()}
        outer = {**GROUP, "attributes": {}}
        return {f"{SEGMENTS}/{ROOT}": outer, f"{self.path}/{ROOT}": group, **members}

    def missing(self, arrays: Iterable[str] | None = None) -> list[int]:
        """Return the chunks that one of the arrays (default: all) does not have yet.

        That is one listing an array.
        """
        there = set(range(self.n_chunks))
        for name in self.layouts if arrays is None else arrays:
            if name not in self.own:  # nothing but a digest shows that somebody has read it
                there = {k for k in there if name in self._digests.get(k, ())}
                continue
            sizes = self.files.sizes(f"{self.path}/{name}")
            there = {k for k in there if _is_whole(sizes, self.layouts[name], k)}
        return sorted(set(range(self.n_chunks)) - there)

    def write(self, start: int, rows: Rows) -> Digests:
        """Write rows from `start` on: whole chunks, the last one as far as the segment goes.

        Of some arrays, or of all.
        """
        stop = start + len(next(iter(rows.values())))
        size = self.chunk_rows
        if start % size or not (stop == self.n_rows or (stop % size == 0 and stop < self.n_rows)):
            below = start // size * size
            raise InputError(
                f"{self.files.url}: rows {start} to {stop} are not whole blocks; write from a "
                f"multiple of {size} to a multiple of {size} or to the last row, {self.n_rows}: "
                f"for example {below} to {min(below + size, self.n_rows)}. A part of a block is "
                "never written"
            )
        written = {}
        for chunk in range(start // size, -(-stop // size)):
            first = chunk * size - start
            part = {name: array[first : first + size] for name, array in rows.items()}
            written[chunk] = self._write_chunk(chunk, part)
        self.learn(written)
        return written

    def _write_chunk(self, chunk: int, rows: Rows) -> dict[str, int]:
        digests = {}
        for name, array in rows.items():
            layout = self.layouts[name]
            if name not in self.own:
                digests[name] = encode_chunk(array, replace(layout, compression="none"))[1]
                continue
            parts, digest = encode_chunk(array, layout)
            what = f"array {name!r}, block {chunk} (from row {chunk * self.chunk_rows})"
            with explained(self.files, what):
                if not self.files.create(f"{self.path}/{layout.key(chunk)}", parts):
                    digest = self._agree(layout, chunk, array, parts, digest)
            digests[name] = digest
        return digests

    def _agree(
        self, layout: ArrayLayout, chunk: int, rows: npt.NDArray[Any], parts: Any, digest: int
    ) -> int:
        """Make sure that a chunk which is there holds these rows, and return its digest."""
        key = f"{self.path}/{layout.key(chunk)}"
        stored = self.files.read(key, stored_limit(layout))
        try:
            found = decode_chunk(stored, layout)
        except DamagedChunkError:
            # A power cut may have emptied it. Replaced in one step, never deleted first: another
            # process could have put the whole chunk there in the meantime.
            self.files.write(key, parts)
            return digest
        wanted = as_bytes_view(np.ascontiguousarray(rows))
        if not np.array_equal(found[: len(wanted)], wanted) or found[len(wanted) :].any():
            raise ConflictError(
                f"{self.files.url}: array {layout.name!r}, block {chunk}: the same call has "
                "written other rows there before it was interrupted, or is writing them just now. "
                "Its data have changed, or two hosts compute differently"
            )
        return int.from_bytes(stored[-TRAILER_BYTES:], "little")

    def seal(self, absorbed: tuple[Leaf, ...] = ()) -> Segment:
        """Write the manifest once every chunk is there, and return what the root will say.

        `absorbed` are the leaves of rows at the beginning that were written before.
        """
        if missing := self.missing():
            first = missing[0] * self.chunk_rows
            last = min(self.n_rows, first + self.chunk_rows)
            raise IncompleteError(
                f"{self.files.url} is incomplete: {len(missing)} of {self.n_chunks} blocks are not "
                f"written, the first is block {missing[0]} (rows {(first, last)}); write them and "
                "finalise again"
            )
        with explained(self.files, "the manifest"):
            manifest = Manifest(self._all_digests())
            data = manifest.to_bytes(self.id, self.n_rows, self.chunk_rows)
            if not self.files.create(f"{self.path}/manifest", [data]):
                limit = max(len(data), MAX_MANIFEST_BYTES)
                if self.files.read(f"{self.path}/manifest", limit) != data:
                    raise IntegrityError(f"{self.files.url}: {self.path}/manifest is damaged")
            self._tidy()
            for folder in (*(f"{self.path}/{name}" for name in self.own), self.path, SEGMENTS):
                self.files.sync(folder)
            own = self._own_leaf(manifest, sum(leaf.n_rows for leaf in absorbed))
        crc = int.from_bytes(data[-TRAILER_BYTES:], "little")
        layout = next(iter(self.layouts.values()))
        leaves = (*absorbed, own)
        kept = tuple(leaf for leaf in leaves if leaf.n_rows) or leaves[:1]
        form = (self.chunk_rows, layout.compression, crc, kept)
        return Segment(self.id, self.n_rows, *form, foreign=self.foreign)

    def _own_leaf(self, manifest: Manifest, n_absorbed: int) -> Leaf:
        """What tells the rows that this segment brings from others."""
        n_own = self.n_rows - n_absorbed
        hashes = {}
        for name, layout in self.layouts.items():
            digests, chunk_rows = manifest.digests[name].tolist(), self.chunk_rows
            if n_absorbed and n_own:  # as if they had been written by themselves
                stored = self.files.read(f"{self.path}/{layout.key(0)}", stored_limit(layout))
                flat = decode_chunk(stored, layout)[n_absorbed * layout.row_bytes :]
                rows = flat.view(layout.numpy_dtype).reshape(-1, *layout.row_shape)[:n_own]
                digests = [encode_chunk(rows, replace(layout, chunk_rows=n_own))[1]]
                chunk_rows = n_own
            form = [layout.dtype, list(layout.row_shape), n_own, chunk_rows, layout.compression]
            hashes[name] = short_hash([*form, digests])
        return Leaf(n_own, hashes)

    def _all_digests(self) -> dict[str, npt.NDArray[np.uint32]]:
        """Digests of all chunks; those that nobody here has written are read from their files."""
        known = self._digests
        unknown = [k for k in range(self.n_chunks) if len(known.get(k, ())) < len(self.layouts)]

        def tails(chunk: int) -> dict[str, int]:
            return {
                name: int.from_bytes(
                    self.files.read_range(
                        f"{self.path}/{layout.key(chunk)}", -TRAILER_BYTES, TRAILER_BYTES
                    ),
                    "little",
                )
                for name, layout in self.layouts.items()
                if name not in known.get(chunk, ())
            }

        with ThreadPoolExecutor(1 if self.files.is_local else _READERS) as pool:
            self.learn(dict(zip(unknown, pool.map(tails, unknown), strict=True)))
        return {
            name: np.array([self._digests[k][name] for k in range(self.n_chunks)], np.uint32)
            for name in self.layouts
        }

    def learn(self, digests: Digests) -> None:
        """Take over the digests of chunks that others have written."""
        for chunk, found in digests.items():
            self._digests[chunk] = {**self._digests.get(chunk, {}), **found}

    def _tidy(self) -> None:
        """Delete what killed writers left behind; all chunks are there, so nobody needs it."""
        for folder in self.own if self.files.is_local else ():
            for name in self.files.names(f"{self.path}/{folder}"):
                if name.endswith(TEMPORARY_SUFFIX):
                    self.files.delete(f"{self.path}/{folder}/{name}")


def _is_whole(sizes: Mapping[str, int], layout: ArrayLayout, chunk: int) -> bool:
    size = sizes.get(layout.key(chunk).partition("/")[2], 0)
    return size > TRAILER_BYTES if layout.stored_bytes is None else size == layout.stored_bytes


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
