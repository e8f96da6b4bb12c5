"""Which chunks must exist, and the digest of the rows in each.

One manifest belongs to one commit and never changes. The file is a line of JSON, the digests as
little-endian 32-bit numbers, array after array, and a CRC-32C of all that. Four bytes a chunk: a
store of 10^9 rows of 512 floats has a manifest of about a megabyte.

While a store is being made by many processes, each writes a *receipt* with the digests of a block
after the block itself; the manifest is made of the receipts at the end. A block without a
receipt that can be read has not been written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import IntegrityError
from sadih_dask.files.checksum import TRAILER_BYTES, canonical_json, crc32c, trailer
from sadih_dask.files.filesystem import Files
from sadih_dask.stores.chunks import EncodedBlock
from sadih_dask.stores.root import load_json

FOLDER = "_commits"
PENDING = f"{FOLDER}/pending"
MAX_MANIFEST_BYTES = 64 << 20
KEPT_GENERATIONS = 16
_HEADER_LIMIT = 4096
_RECEIPT_LIMIT = 4 << 20
_READERS = 32


@dataclass(frozen=True)
class Manifest:
    """The digests of one commit: `digests[name][chunk]`, and the rows that they cover.

    `crc` is the checksum of the file that it was read from.
    """

    uid: str
    generation: int
    n_rows: int
    chunk_rows: int
    digests: dict[str, npt.NDArray[np.uint32]]
    crc: int = 0

    @property
    def n_chunks(self) -> int:
        """Return the number of chunks of each array."""
        return -(-self.n_rows // self.chunk_rows)

    def rows_of(self, chunk: int) -> tuple[int, int]:
        """Return the committed rows of a chunk: first and one past the last."""
        return chunk * self.chunk_rows, min(self.n_rows, (chunk + 1) * self.chunk_rows)

    def to_bytes(self) -> bytes:
        """Return the file."""
        header = canonical_json(_header(self))
        body = b"".join(self.digests[name].astype("<u4").tobytes() for name in self.digests)
        data = header + b"\n" + body
        return data + trailer(crc32c(data))


def _header(manifest: Manifest) -> dict[str, Any]:
    return {
        "uid": manifest.uid,
        "generation": manifest.generation,
        "n_rows": manifest.n_rows,
        "chunk_rows": manifest.chunk_rows,
        "arrays": list(manifest.digests),
    }


def manifest_key(generation: int) -> str:
    """Return the key of a commit's manifest."""
    return f"{FOLDER}/manifest-{generation:08d}"


def manifest_bytes(n_rows: int, chunk_rows: int, n_arrays: int) -> int:
    """Return a bound on the length of a manifest."""
    return _HEADER_LIMIT + 4 * n_arrays * -(-n_rows // chunk_rows) + TRAILER_BYTES


def read_manifest(
    files: Files, generation: int, uid: str, chunk_rows: int, names: tuple[str, ...], limit: int
) -> Manifest:
    """Read and check the manifest of one commit; IntegrityError if it is missing or damaged."""
    key = manifest_key(generation)
    where = f"{files.url}: manifest of commit {generation} ({key})"
    try:
        data = files.read(key, min(limit, MAX_MANIFEST_BYTES))
    except FileNotFoundError as error:
        raise IntegrityError(
            f"{where} is missing; the store cannot be checked. Restore that file from a copy"
        ) from error
    if len(data) <= TRAILER_BYTES or trailer(crc32c(data[:-TRAILER_BYTES])) != data[-4:]:
        raise IntegrityError(f"{where} is damaged: its checksum does not fit its contents")
    line_end = data.find(b"\n", 0, _HEADER_LIMIT)
    header = load_json(data[: max(0, line_end)], where)
    body = data[line_end + 1 : -TRAILER_BYTES]
    n_rows = header.get("n_rows")
    expected = [uid, generation, chunk_rows, list(names)]
    found = [header.get(field) for field in ("uid", "generation", "chunk_rows", "arrays")]
    n_chunks = -(-n_rows // chunk_rows) if type(n_rows) is int else -1
    if found != expected or not isinstance(n_rows, int) or len(body) != 4 * n_chunks * len(names):
        raise IntegrityError(
            f"{where} belongs to another store or commit: it says {found} and {n_rows} rows with "
            f"{len(body)} bytes of digests, expected {expected}"
        )
    table = np.frombuffer(body, "<u4").reshape(len(names), n_chunks)
    digests = dict(zip(names, table, strict=True))
    crc = int.from_bytes(data[-TRAILER_BYTES:], "little")
    return Manifest(uid, generation, n_rows, chunk_rows, digests, crc)


def extended(
    manifest: Manifest, n_rows: int, first_chunk: int, added: dict[str, list[int]]
) -> Manifest:
    """Return the next commit's manifest: digests from `first_chunk` on are replaced by `added`."""
    digests = {
        name: np.concatenate([old[:first_chunk], np.array(added[name], np.uint32)])
        for name, old in manifest.digests.items()
    }
    return Manifest(manifest.uid, manifest.generation + 1, n_rows, manifest.chunk_rows, digests)


def write_receipt(files: Files, block: int, digests: dict[str, EncodedBlock]) -> None:
    """Record that all arrays of a block are written."""
    record = {name: list(encoded.digests) for name, encoded in digests.items()}
    data = canonical_json(record)
    # Not durable: one that is lost in a power cut only means that the block is written again.
    files.write(f"{PENDING}/{block}", [data + trailer(crc32c(data))], durable=False)


def read_receipt(files: Files, block: int, expected: dict[str, int]) -> dict[str, list[int]] | None:
    """Return the digests of a block, or None if it has no receipt that can be trusted.

    `expected` says how many digests of which arrays it must have.
    """
    try:
        data = files.read(f"{PENDING}/{block}", _RECEIPT_LIMIT)
    except (FileNotFoundError, ValueError):
        return None
    if len(data) <= TRAILER_BYTES or trailer(crc32c(data[:-TRAILER_BYTES])) != data[-4:]:
        return None
    found: dict[str, list[int]] = json.loads(data[:-TRAILER_BYTES])
    return found if {name: len(found[name]) for name in found} == expected else None


def read_receipts(
    files: Files, expected: Mapping[int, dict[str, int]]
) -> dict[int, dict[str, list[int]] | None]:
    """Read the receipts of many blocks, side by side where each is a request to a server."""
    if files.is_local:
        return {block: read_receipt(files, block, sizes) for block, sizes in expected.items()}
    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(lambda one: read_receipt(files, *one), expected.items())
        return dict(zip(expected, found, strict=True))


def receipts(files: Files) -> list[int]:
    """Return the blocks that have a receipt, in order, by one listing."""
    return sorted(int(name) for name in files.names(PENDING) if name.isdecimal())
