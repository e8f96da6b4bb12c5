"""The root of a store: one small document, the only file that is ever replaced.

`zarr.json` of the group names the segments that hold the rows, in order. It carries the metadata
of their arrays too (consolidated, as zarr writes it), so that other Zarr tools see what is
committed and nothing else, and a checksum of itself.

    format, version, uid     what it is; `uid` is the store's identity for ever
    generation, commit       which state this is: a number, and 128 random bits
    arrays                   type and row shape of each
    chunk_rows, compression  of segments to come, unless they are small
    properties               class names, the model of codes, ...
    sources                  names the record of the files that rows came from, if there is one
    segments                 id, rows, chunks, checksum of the manifest, deletions, leaves
    pending                  segments that somebody is writing: named here before their first byte
    history                  generations that can still be read
    recent                   the last commits, by which a lost answer is recognised: the segment
                             that each has added, whatever it was joined to since, or a random id
    nonce                    random, so that no two roots are alike
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

import numpy as np

from sadih_dask.errors import ConflictError, FormatError, InputError, IntegrityError
from sadih_dask.files import conditional
from sadih_dask.files.checksum import canonical_json, crc32c
from sadih_dask.files.conditional import Version
from sadih_dask.files.filesystem import Files
from sadih_dask.stores.foreign import check_location
from sadih_dask.stores.layout import COMPRESSIONS, DTYPES, MAX_ROWS, ArrayLayout
from sadih_dask.types import FloatType

FORMAT_VERSION: Final = 2
ROOT: Final = "zarr.json"
SEGMENTS: Final = "segments"
DELETIONS: Final = "deletions"
SOURCES: Final = "sources"
FORMER_ROOTS: Final = "roots"
ROOT_LIMIT: Final = 16 << 20
KEPT_GENERATIONS: Final = 16
MAX_CHUNKS: Final = 1 << 24
"""Of a store: 16 MiB each are 256 TiB. What a reader remembers of each has to fit memory."""
MAX_DELETED: Final = 1 << 26
"""Rows of one segment."""
_MOST_RECENT: Final = 64
ATTRIBUTE: Final = "sadih_dask"
GROUP: Final[dict[str, Any]] = {"zarr_format": 3, "node_type": "group"}
_INLINE: Final[dict[str, Any]] = {"kind": "inline", "must_understand": False}
_ID: Final = re.compile(r"[0-9a-f]{32}")


def new_id() -> str:
    """Return a name that nobody else can choose."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Column:
    """What an array of a store may be: its types and its numbers of dimensions."""

    dtypes: frozenset[str]
    n_dims: frozenset[int]


_FLOATS = frozenset(get_args(FloatType))
_BYTES = frozenset(["uint8"])
_IDS = Column(frozenset(["int64", "uint8"]), frozenset([1, 2]))
SCHEMAS: Final[Mapping[str, Mapping[str, Column]]] = {
    "sadih-features": {
        "features": Column(_FLOATS, frozenset([2])),
        "labels": Column(DTYPES - _FLOATS, frozenset([1, 2])),
        "ids": _IDS,
        "thumbnails": Column(_BYTES, frozenset([3, 4])),
    },
    "sadih-codes": {
        "codes": Column(_BYTES, frozenset([2])),
        "ids": _IDS,
        "labels": Column(DTYPES - _FLOATS, frozenset([1])),
        "label_bits": Column(_BYTES, frozenset([2])),
    },
}
"""The arrays that each kind of store may have."""


@dataclass(frozen=True)
class Leaf:
    """Rows that were written together: how many, and a hash of each array's."""

    n_rows: int
    hashes: Mapping[str, str]

    def of(self, arrays: Iterable[str]) -> tuple[int, tuple[str, ...]]:
        """What tells these rows from others, as far as some arrays are concerned."""
        return self.n_rows, tuple(self.hashes[name] for name in arrays)


@dataclass(frozen=True)
class Deleted:
    """The dead rows of a segment: the file that lists them, how many, and a hash of the list."""

    id: str
    n_rows: int
    hash: str


@dataclass(frozen=True)
class Segment:
    """Rows that never change, in chunks of their own.

    leaves  what its rows are made of. Rows that are rewritten with others keep their leaves, so
            that models and codes recognise them.
    foreign where its features lie, if they were adopted: a Zarr array of somebody else
    """

    id: str
    n_rows: int
    chunk_rows: int
    compression: str
    manifest_crc: int
    leaves: tuple[Leaf, ...]
    deleted: Deleted | None = None
    foreign: str | None = None

    @property
    def path(self) -> str:
        """Return the key of its folder."""
        return f"{SEGMENTS}/{self.id}"

    @property
    def adopted(self) -> tuple[str, ...]:
        """Return the arrays whose chunks lie elsewhere."""
        return () if self.foreign is None else ("features",)

    @property
    def n_live(self) -> int:
        """Return how many of its rows are not deleted."""
        return self.n_rows - (0 if self.deleted is None else self.deleted.n_rows)

    @property
    def n_chunks(self) -> int:
        """Return the number of chunks of each array."""
        return -(-self.n_rows // self.chunk_rows)

    def live_leaves(self) -> tuple[Leaf, ...]:
        """What its live rows are: its leaves, or one that stands for what deletions have left."""
        if self.deleted is None or not self.n_live:
            return self.leaves if self.n_live else ()
        hashes = {
            name: short_hash([*(leaf.hashes[name] for leaf in self.leaves), self.deleted.hash])
            for name in self.leaves[0].hashes
        }
        return (Leaf(self.n_live, hashes),)


def short_hash(value: Any) -> str:
    """Return 128 bits of a hash of what JSON can hold."""
    return hashlib.sha256(canonical_json({"": value})).hexdigest()[:32]


@dataclass(frozen=True)
class Pending:
    """A segment that somebody is writing; `key` is what the same call will have again."""

    id: str
    key: str
    by: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")

    @property
    def absorbs(self) -> bool:
        """Whether rows that were there before are written again, before the new ones."""
        return ":" in self.key


@dataclass(frozen=True)
class Root:
    """One state of a store; see the module."""

    kind: str
    uid: str
    arrays: Mapping[str, tuple[str, tuple[int, ...]]]
    chunk_rows: int
    compression: str
    properties: Mapping[str, Any]
    generation: int = 0
    commit: str = ""
    segments: tuple[Segment, ...] = ()
    pending: tuple[Pending, ...] = ()
    history: tuple[tuple[int, str], ...] = ()
    sources: str | None = None
    recent: tuple[str, ...] = ()

    @property
    def n_rows(self) -> int:
        """Return how many rows there are."""
        return sum(segment.n_live for segment in self.segments)

    @property
    def n_chunks(self) -> int:
        """Return how many chunks each array has."""
        return sum(segment.n_chunks for segment in self.segments)

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row of all arrays."""
        return sum(layout.row_bytes for layout in self.layouts(1, "none").values())

    @property
    def form(self) -> dict[str, Any]:
        """Return what an overwrite replaces beside the rows."""
        names = ("arrays", "chunk_rows", "compression", "properties", "sources")
        return {name: getattr(self, name) for name in names}

    def layouts(self, chunk_rows: int, compression: str) -> dict[str, ArrayLayout]:
        """Return the arrays of a segment with these chunks."""
        return {
            name: ArrayLayout(name, dtype, shape, chunk_rows, compression)
            for name, (dtype, shape) in self.arrays.items()
        }

    def layouts_of(self, segment: Segment) -> dict[str, ArrayLayout]:
        """Return the arrays of a segment."""
        return self.layouts(segment.chunk_rows, segment.compression)

    def pending_with(self, key: str) -> Pending | None:
        """Return the unfinished segment of a call, if there is one."""
        return next((entry for entry in self.pending if entry.key == key), None)

    def committed(self, segment: Segment | None = None, **changes: Any) -> Root:
        """Return the next state, by adding a segment or otherwise, with this one in its history."""
        history = (*self.history, (self.generation, self.commit)) if self.segments else ()
        recent = (*self.recent, new_id() if segment is None else segment.id)
        return replace(
            self,
            generation=self.generation + 1,
            commit=new_id(),
            history=history[-KEPT_GENERATIONS:],
            recent=recent[-_MOST_RECENT:],
            **changes,
        )

    def without_pending(self, segment_id: str) -> tuple[Pending, ...]:
        """Return what others are writing."""
        return tuple(entry for entry in self.pending if entry.id != segment_id)

    def to_bytes(self) -> bytes:
        """Return the document; each time another, since it holds random bits."""
        record = {
            "format": self.kind,
            "version": FORMAT_VERSION,
            "uid": self.uid,
            "generation": self.generation,
            "commit": self.commit,
            "arrays": {name: [dtype, list(shape)] for name, (dtype, shape) in self.arrays.items()},
            "chunk_rows": self.chunk_rows,
            "compression": self.compression,
            "properties": dict(self.properties),
            "sources": self.sources,
            "segments": [_segment_record(segment) for segment in self.segments],
            "pending": [vars(entry) for entry in self.pending],
            "history": [list(entry) for entry in self.history],
            "recent": list(self.recent),
            "nonce": new_id(),
        }
        record["checksum"] = _checksum(record)
        document = {
            **GROUP,
            "attributes": {ATTRIBUTE: record},
            "consolidated_metadata": self._consolidated(),
        }
        if self.n_chunks > MAX_CHUNKS:
            raise InputError(
                f"the store would have {self.n_chunks} chunks, at most {MAX_CHUNKS} are allowed; "
                "create it with larger ones"
            )
        data = json.dumps(document, allow_nan=False).encode()
        if len(data) > ROOT_LIMIT:
            raise InputError(
                f"the root of the store takes {len(data)} bytes, at most {ROOT_LIMIT} are allowed; "
                "shorten the class names, or join its segments with compact"
            )
        return data

    def _consolidated(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {SEGMENTS: {**GROUP, "attributes": {}}}
        for segment in self.segments:
            metadata[segment.path] = {**GROUP, "attributes": {}}
            for name, layout in self.layouts_of(segment).items():
                if name not in segment.adopted:
                    metadata[f"{segment.path}/{name}"] = layout.metadata(segment.n_rows)
        return {**_INLINE, "metadata": metadata}


def _segment_record(segment: Segment) -> dict[str, Any]:
    return {
        "id": segment.id,
        "n_rows": segment.n_rows,
        "chunk_rows": segment.chunk_rows,
        "compression": segment.compression,
        "manifest_crc32c": segment.manifest_crc,
        "deleted": None if segment.deleted is None else vars(segment.deleted),
        "leaves": [[leaf.n_rows, dict(leaf.hashes)] for leaf in segment.leaves],
        **({} if segment.foreign is None else {"foreign": segment.foreign}),
    }


def _checksum(record: Mapping[str, Any]) -> int:
    return crc32c(canonical_json({k: v for k, v in record.items() if k != "checksum"}))


def read_root(files: Files, kind: str) -> tuple[Root, Version]:
    """Read and check the root; FormatError if there is none."""
    version = conditional.read(files, ROOT, ROOT_LIMIT)
    if version is None:
        raise FormatError(
            f"{files.url} is not a store: it has no {ROOT}. Check the path; files of rows have to "
            "be ingested into a store first"
        )
    return parse_root(files.url, version.data, kind), version


def former_root_key(generation: int, commit: str) -> str:
    """Return where a root is kept when another has taken its place."""
    return f"{FORMER_ROOTS}/{generation:08d}-{commit}.json"


def read_state(files: Files, kind: str, generation: int, commit: str) -> Root:
    """Return the state that a reader has opened, whatever has been committed since."""
    latest, _ = read_root(files, kind)
    if latest.commit == commit:
        return latest
    key = former_root_key(generation, commit)
    try:
        data = files.read(key, ROOT_LIMIT)
    except FileNotFoundError as error:
        raise ConflictError(
            f"{files.url}: commit {generation} is no longer kept, the latest is "
            f"{latest.generation}; open the store again ({key} is gone)"
        ) from error
    root = parse_root(files.url, data, kind, key)
    if root.commit != commit:
        raise IntegrityError(f"{files.url}: {key} is that of another commit")
    return root


def parse_root(url: str, data: bytes, kind: str, key: str = ROOT) -> Root:
    """Return the root that a document holds; an error unless it is just what was written."""
    document = load_json(data, f"{url}: {key}")
    attributes = document.get("attributes")
    record = attributes.get(ATTRIBUTE) if isinstance(attributes, Mapping) else None
    if not isinstance(record, Mapping):
        raise FormatError(
            f"{url} has no {ATTRIBUTE!r} attributes: it was not written by this package, or "
            f"its {key} is damaged. Plain Zarr arrays have to be ingested into a store first"
        )
    if (version := record.get("version")) != FORMAT_VERSION:
        raise FormatError(
            f"{url} has format version {repr(version)[:40]}, this release reads {FORMAT_VERSION}: "
            f"upgrade sadih_dask, ingest its source files again, or restore its {key} if it is "
            "damaged"
        )
    if record.get("checksum") != _checksum_of(record):
        raise IntegrityError(
            f"{url}: {key} is damaged: its checksum does not fit its contents. Restore that file "
            f"from a copy, or from {FORMER_ROOTS}/"
        )
    if record.get("format") != kind:
        raise FormatError(f"{url} holds {str(record.get('format'))[:40]!r}, expected {kind!r}")
    try:
        root = _parse(url, record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{url}: {key} is not that of a store ({error!r})"[:300]) from error
    _check_frame(f"{url}: {key}", document, root)
    return root


def _checksum_of(record: Mapping[str, Any]) -> int | None:
    try:
        return _checksum(record)
    except (RecursionError, ValueError, TypeError):
        return None


def _check_frame(where: str, document: Mapping[str, Any], root: Root) -> None:
    """Raise if what other Zarr tools read is not what our record says.

    Further fields and attributes may be there: those tools can add some.
    """
    expected = {**GROUP, "consolidated_metadata": root._consolidated()}
    for name, value in expected.items():
        if document.get(name) != value:
            raise IntegrityError(
                f"{where} is damaged: field {name!r} is not as it was written. Restore that "
                f"file from a copy, or from {FORMER_ROOTS}/"
            )


def _parse(url: str, record: Mapping[str, Any]) -> Root:
    arrays = {
        name: (_one_of(dtype, DTYPES), tuple(_size(n) for n in shape))
        for name, (dtype, shape) in record["arrays"].items()
    }
    _check_arrays(url, arrays, record["format"])
    history = tuple((_size(generation), _id(commit)) for generation, commit in record["history"])
    root = Root(
        kind=record["format"],
        uid=_id(record["uid"]),
        arrays=arrays,
        chunk_rows=_size(record["chunk_rows"], 1),
        compression=_one_of(record["compression"], COMPRESSIONS),
        properties=dict(record["properties"]),
        generation=_size(record["generation"]),
        commit=_id(record["commit"]) if record["commit"] else "",
        segments=tuple(_parse_segment(part, set(arrays)) for part in record["segments"]),
        pending=tuple(
            Pending(_id(entry["id"]), str(entry["key"])[:128], str(entry["by"])[:256])
            for entry in record["pending"]
        ),
        history=history,
        sources=None if record["sources"] is None else _id(record["sources"]),
        recent=tuple(map(_id, record["recent"])),
    )
    for segment in root.segments:
        for name, layout in root.layouts_of(segment).items():
            layout.check(f"{url}: array {name!r}")
    if len({segment.id for segment in root.segments}) < len(root.segments):
        raise FormatError(f"{url}: {ROOT} names a segment twice")
    if root.n_chunks > MAX_CHUNKS or sum(part.n_rows for part in root.segments) > MAX_ROWS:
        raise FormatError(f"{url}: {ROOT} names more rows or chunks than a store may have")
    return root


def _parse_segment(record: Mapping[str, Any], arrays: set[str]) -> Segment:
    deleted = record["deleted"]
    leaves = tuple(
        Leaf(_size(n_rows), {str(name): _id(value) for name, value in hashes.items()})
        for n_rows, hashes in record["leaves"]
    )
    segment = Segment(
        id=_id(record["id"]),
        n_rows=_size(record["n_rows"]),
        chunk_rows=_size(record["chunk_rows"], 1),
        compression=_one_of(record["compression"], COMPRESSIONS),
        manifest_crc=_size(record["manifest_crc32c"]),
        leaves=leaves,
        deleted=deleted
        and Deleted(_id(deleted["id"]), _size(deleted["n_rows"], 1), _id(deleted["hash"])),
        foreign=check_location(record["foreign"]) if "foreign" in record else None,
    )
    if sum(leaf.n_rows for leaf in leaves) != segment.n_rows or segment.n_live < 0:
        raise ValueError("rows of a segment and of its leaves differ")
    if segment.n_rows - segment.n_live > MAX_DELETED:
        raise ValueError("more deleted rows than can be listed")
    if not leaves or any(set(leaf.hashes) != arrays for leaf in leaves):
        raise ValueError("leaves of other arrays")
    return segment


def _check_arrays(url: str, arrays: Mapping[str, tuple[str, tuple[int, ...]]], kind: str) -> None:
    schema = SCHEMAS[kind]
    for name, (dtype, shape) in arrays.items():
        where = f"{url}: array {name[:40]!r}"
        if name not in schema:
            raise FormatError(f"{where} is unknown; a store may have {', '.join(schema)}")
        column = schema[name]
        if dtype not in column.dtypes or 1 + len(shape) not in column.n_dims:
            raise FormatError(
                f"{where} has type {dtype} and rows of shape {shape}, expected "
                f"{' or '.join(sorted(column.dtypes))} with "
                f"{' or '.join(map(str, sorted(column.n_dims)))} dimensions"
            )
    if not arrays:
        raise FormatError(f"{url} has no arrays")


def _id(value: object) -> str:
    if not isinstance(value, str) or _ID.fullmatch(value) is None:
        raise ValueError(f"{str(value)[:40]!r} is not an id")
    return value


def _size(value: object, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= MAX_ROWS:
        raise ValueError(f"{str(value)[:40]!r} is not a size")
    return value


def _one_of(value: object, known: Iterable[str]) -> str:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{str(value)[:40]!r} is not one of {', '.join(sorted(known))}")
    return value


def load_json(data: bytes, where: str) -> Mapping[str, Any]:
    """Return the object that a JSON document of bounded length holds."""
    try:
        document = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(
            f"{where} is damaged: it is not valid JSON ({str(error)[:80]}). Restore it from a copy"
        ) from error
    if not isinstance(document, Mapping):
        raise IntegrityError(f"{where} is damaged: it holds no JSON object")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def widest_row(arrays: Mapping[str, tuple[str, Sequence[int]]]) -> int:
    """Return the bytes of a row of the widest array."""
    return max(
        np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        for dtype, shape in arrays.values()
    )
