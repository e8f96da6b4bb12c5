"""Rows of a segment that are dead: a file that lists them, and what that does to row numbers.

A segment never changes, so a deleted row stays where it is, and a small file lists the positions
of all dead rows of a segment (cumulative: a root names at most one for each). Logical rows are
the live ones in order. Nothing is erased before the segment is rewritten without them
(`compact`).
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import InputError, IntegrityError
from sadih_dask.files.checksum import TRAILER_BYTES, crc32c, trailer
from sadih_dask.files.filesystem import Files
from sadih_dask.stores.root import DELETIONS, MAX_DELETED, Deleted, Segment, new_id
from sadih_dask.types import Ints

NONE: Ints = np.zeros(0, np.int64)


def write_deletions(files: Files, dead: Ints) -> Deleted:
    """Write the positions of dead rows (ascending), and return what the root says of them."""
    if len(dead) > MAX_DELETED:
        raise InputError(
            f"{files.url}: {len(dead)} deleted rows in one segment, at most {MAX_DELETED} can be "
            "listed; compact the store first"
        )
    data = dead.astype("<u8").tobytes()
    deleted = Deleted(new_id(), len(dead), positions_hash(dead))
    files.create(f"{DELETIONS}/{deleted.id}", [data, trailer(crc32c(data))])
    return deleted


def positions_hash(dead: npt.NDArray[np.integer]) -> str:
    """Return a hash of dead rows."""
    return hashlib.sha256(dead.astype("<u8").tobytes()).hexdigest()[:32]


def read_deletions(files: Files, segment: Segment) -> Ints:
    """Return the positions of the dead rows of a segment, ascending."""
    if segment.deleted is None:
        return NONE
    deleted = segment.deleted
    where = f"{files.url}: {DELETIONS}/{deleted.id}, the deleted rows of segment {segment.id}"
    try:
        data = files.read(f"{DELETIONS}/{deleted.id}", 8 * deleted.n_rows + TRAILER_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise IntegrityError(f"{where}, is missing. Restore that file from a copy") from error
    body = data[:-TRAILER_BYTES]
    if len(body) != 8 * deleted.n_rows or trailer(crc32c(body)) != data[-TRAILER_BYTES:]:
        raise IntegrityError(f"{where}, is damaged. Restore that file from a copy")
    dead = np.frombuffer(body, "<u8")
    if positions_hash(dead) != deleted.hash:
        raise IntegrityError(f"{where}, is not the one that was committed")
    if (dead[1:] <= dead[:-1]).any() or dead[-1] >= segment.n_rows:
        raise IntegrityError(f"{where}, lists rows that the segment does not have")
    return dead.astype(np.int64)


def physical(dead: Ints, live: Ints) -> Ints:
    """Positions of live rows, given by their number among the live ones.

    >>> physical(np.array([0, 2]), np.array([0, 1, 2]))
    array([1, 3, 4])
    """
    return live + np.searchsorted(dead - np.arange(len(dead)), live, "right")


def live_before(dead: Ints, positions: Ints) -> Ints:
    """How many live rows there are before each position.

    >>> live_before(np.array([0, 2]), np.array([0, 1, 3, 5]))
    array([0, 0, 1, 3])
    """
    return positions - np.searchsorted(dead, positions, "left")
