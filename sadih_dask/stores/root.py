"""The root of a store: one small document whose replacement *is* the commit.

`zarr.json` of the group holds our record among its attributes and the metadata of all arrays
(consolidated, as zarr writes it): readers of this package, and any Zarr library, learn from this
one file how many rows there are. It carries a checksum of itself and that of its manifest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sadih_dask.errors import ConflictError, FormatError, InputError, IntegrityError
from sadih_dask.files.checksum import canonical_json, crc32c
from sadih_dask.files.filesystem import Files
from sadih_dask.stores.layout import MAX_ROWS, ArrayLayout, parse_metadata

FORMAT_VERSION: Final = 1
ROOT: Final = "zarr.json"
ROOT_LIMIT: Final = 16 << 20
ARRAY_LIMIT: Final = 64 << 10
ATTRIBUTE: Final = "sadih_dask"
_GROUP: Final[dict[str, Any]] = {"zarr_format": 3, "node_type": "group"}
_INLINE: Final[dict[str, Any]] = {"kind": "inline", "must_understand": False}


@dataclass(frozen=True)
class Column:
    """What an array of a store may be: its types and its numbers of dimensions."""

    dtypes: frozenset[str]
    n_dims: frozenset[int]


Schema = Mapping[str, Column]


@dataclass(frozen=True)
class Commit:
    """The state of a store.

    While it is being made `complete` is False, `n_rows` is 0 and `planned_rows` says what it is
    going to have. `previous_rows` is the row count of the commit before.
    """

    kind: str
    uid: str
    layouts: dict[str, ArrayLayout]
    planned_rows: int
    properties: dict[str, Any]
    complete: bool = False
    generation: int = 0
    n_rows: int = 0
    previous_rows: int = 0
    manifest_crc: int = 0
    checksum: int = field(default=0, compare=False)

    @property
    def layout(self) -> ArrayLayout:
        """Return any of the layouts, for what they have in common: chunk and block rows."""
        return next(iter(self.layouts.values()))

    @property
    def n_blocks(self) -> int:
        """Return the number of files of each array that the plan has."""
        return -(-self.planned_rows // self.layout.block_rows)

    def same_plan(self, other: Commit) -> bool:
        """Say whether both are going to be the same store, apart from its identity."""
        mine = (self.kind, self.layouts, self.planned_rows, self.properties)
        return mine == (other.kind, other.layouts, other.planned_rows, other.properties)

    def to_bytes(self) -> bytes:
        """Return the group's `zarr.json`."""
        record = {
            "format": self.kind,
            "version": FORMAT_VERSION,
            "uid": self.uid,
            "state": "complete" if self.complete else "incomplete",
            "generation": self.generation,
            "n_rows": self.n_rows,
            "planned_rows": self.planned_rows,
            "previous_rows": self.previous_rows,
            "manifest_crc32c": self.manifest_crc,
            **self.properties,
        }
        arrays = {name: layout.metadata(self.n_rows) for name, layout in self.layouts.items()}
        record["checksum"] = _checksum(record, arrays)
        document = {
            **_GROUP,
            "attributes": {ATTRIBUTE: record},
            "consolidated_metadata": {**_INLINE, "metadata": arrays},
        }
        data = json.dumps(document, indent=1, allow_nan=False).encode()
        if len(data) > ROOT_LIMIT:
            raise InputError(
                f"the attributes of the store take {len(data)} bytes, at most {ROOT_LIMIT} are "
                "allowed; shorten the class names or the source description"
            )
        return data


_OWN_FIELDS: Final = frozenset(
    [
        "format",
        "version",
        "uid",
        "state",
        "generation",
        "n_rows",
        "planned_rows",
        "previous_rows",
        "manifest_crc32c",
        "checksum",
    ]
)


def _checksum(record: Mapping[str, Any], arrays: Mapping[str, Any]) -> int:
    covered = {key: value for key, value in record.items() if key != "checksum"}
    return crc32c(canonical_json({"record": covered, "arrays": arrays}))


def read_commit(files: Files, kind: str, schema: Schema) -> Commit:
    """Read and check the root of a store."""
    try:
        data = files.read(ROOT, ROOT_LIMIT)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FormatError(
            f"{files.url} is not a store: it has no {ROOT}. Check the path, or create the store"
        ) from error
    document = load_json(data, f"{files.url}: {ROOT}")
    attributes = document.get("attributes")
    record = attributes.get(ATTRIBUTE) if isinstance(attributes, Mapping) else None
    if not isinstance(record, Mapping):
        raise FormatError(
            f"{files.url} has no {ATTRIBUTE!r} attributes: it was not written by this package, or "
            f"its {ROOT} is damaged. Plain Zarr arrays have to be ingested into a store first"
        )
    commit = _parse(files.url, kind, schema, record, document.get("consolidated_metadata"))
    _check_frame(files.url, document)
    return commit


def _check_frame(url: str, document: Mapping[str, Any]) -> None:
    """Raise if what stands around the checksummed parts, for other Zarr tools, is not as written.

    Further fields and attributes may be there: those tools can add some.
    """
    for part, fields in ((document, _GROUP), (document["consolidated_metadata"], _INLINE)):
        for name, value in fields.items():
            if part.get(name) != value:
                raise IntegrityError(
                    f"{url}: {ROOT} is damaged: field {name!r} is {str(part.get(name))[:40]!r}, "
                    f"expected {value!r}. Restore that file from a copy"
                )


def _parse(
    url: str, kind: str, schema: Schema, record: Mapping[str, Any], consolidated: object
) -> Commit:
    version = record.get("version")
    if type(version) is int and version > FORMAT_VERSION:
        raise FormatError(
            f"{url} has format version {version}, this release reads up to {FORMAT_VERSION}; "
            f"upgrade sadih_dask, or restore its {ROOT} if it is damaged"
        )
    if version != FORMAT_VERSION:
        raise FormatError(f"{url}: {ROOT} has no known format version: {str(version)[:40]!r}")
    arrays = consolidated.get("metadata") if isinstance(consolidated, Mapping) else None
    try:
        intact = isinstance(arrays, Mapping) and record.get("checksum") == _checksum(record, arrays)
    except RecursionError:
        intact = False
    if not intact or not isinstance(arrays, Mapping):
        raise IntegrityError(
            f"{url}: {ROOT} is damaged: its checksum does not fit its contents. Restore that file "
            "from a copy"
        )
    if record.get("format") != kind:
        raise FormatError(f"{url} holds {str(record.get('format'))[:40]!r}, expected {kind!r}")
    layouts = _parse_arrays(url, schema, arrays)
    numbers = {
        name: _integer(url, record, name)
        for name in ("generation", "n_rows", "planned_rows", "previous_rows")
    }
    return Commit(
        kind=kind,
        uid=str(record.get("uid"))[:64],
        layouts=layouts,
        properties={key: value for key, value in record.items() if key not in _OWN_FIELDS},
        complete=record.get("state") == "complete",
        manifest_crc=_integer(url, record, "manifest_crc32c"),
        checksum=_integer(url, record, "checksum"),
        **numbers,
    )


def _parse_arrays(url: str, schema: Schema, arrays: Mapping[str, Any]) -> dict[str, ArrayLayout]:
    layouts: dict[str, ArrayLayout] = {}
    for name, document in arrays.items():
        where = f"{url}: array {name[:40]!r}"
        if name not in schema:
            raise FormatError(f"{where} is unknown; a store may have {', '.join(schema)}")
        layout, _ = parse_metadata(name, document, where)
        column = schema[name]
        if layout.dtype not in column.dtypes or 1 + len(layout.row_shape) not in column.n_dims:
            raise FormatError(
                f"{where} has type {layout.dtype} and rows of shape {layout.row_shape}, expected "
                f"{' or '.join(sorted(column.dtypes))} with "
                f"{' or '.join(map(str, sorted(column.n_dims)))} dimensions"
            )
        layouts[name] = layout
    if not layouts:
        raise FormatError(f"{url} has no arrays")
    if len({(layout.chunk_rows, layout.shard_rows) for layout in layouts.values()}) != 1:
        raise FormatError(f"{url}: its arrays differ in their rows a chunk")
    return layouts


def check_array_documents(files: Files, commit: Commit, schema: Schema) -> None:
    """Raise if an array's own `zarr.json` is missing, damaged or says other than the root.

    Only other Zarr tools read those files, but what they would read must not be wrong. They are
    rewritten just after a commit, so they may still have the row count of the commit before; and
    if somebody commits while we look, the root is read again.
    """
    for name, layout in commit.layouts.items():
        where = f"{files.url}: array {name!r}"
        try:
            data = files.read(f"{name}/{ROOT}", ARRAY_LIMIT)
        except FileNotFoundError as error:
            raise IntegrityError(f"{where} has no {ROOT}; restore that file from a copy") from error
        found, n_rows = parse_metadata(name, load_json(data, f"{where}: {ROOT}"), where)
        if found == layout and n_rows in {commit.n_rows, commit.previous_rows}:
            continue
        if read_commit(files, commit.kind, schema).checksum != commit.checksum:
            raise ConflictError(f"{files.url} was committed to while it was being opened")
        raise IntegrityError(
            f"{where} has shape {(n_rows, *found.row_shape)} and layout {found}, but "
            f"{(commit.n_rows, *layout.row_shape)} and {layout} were committed. Restore "
            f"{name}/{ROOT} from a copy"
        )


def stale_array_documents(files: Files, commit: Commit) -> list[str]:
    """Name the arrays whose own `zarr.json` has another row count than the root."""
    return [
        name
        for name, layout in commit.layouts.items()
        if load_json(files.read(f"{name}/{ROOT}", ARRAY_LIMIT), f"{files.url}: {name}/{ROOT}")
        != layout.metadata(commit.n_rows)
    ]


def write_array_documents(files: Files, commit: Commit) -> None:
    """Write each array's own `zarr.json`."""
    for name, layout in commit.layouts.items():
        text = json.dumps(layout.metadata(commit.n_rows), indent=1)
        files.write(f"{name}/{ROOT}", [text.encode()])


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


def _integer(url: str, record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    if type(value) is not int or not 0 <= value <= MAX_ROWS:
        raise FormatError(f"{url}: attribute {name!r} is {str(value)[:40]}, expected a size")
    return value
