"""Hamming distances of packed codes."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sadih_dask.arrays import Bytes, Ints
from sadih_dask.errors import DtypeError, InputError

Words: TypeAlias = NDArray[np.uint64]


def distances(queries: Bytes, database: Bytes) -> Ints:
    """Hamming distance of every query to every database code, (q, n), as int64.

    Forms q x n x bytes / 8 words; callers bound q x n.
    """
    check_widths(queries, database)
    words_q, words_n = words(queries), words(database)
    total = np.zeros((len(queries), len(database)), np.int64)
    for k in range(words_q.shape[1]):
        total += np.bitwise_count(words_q[:, k, None] ^ words_n[None, :, k])
    return total


def check_widths(queries: Bytes, database: Bytes) -> None:
    """Refuse codes that cannot be compared."""
    for codes, name in ((queries, "queries"), (database, "the database")):
        if codes.dtype != np.uint8:
            raise DtypeError(
                f"{name} have dtype {codes.dtype}; packed codes are uint8. "
                "Pack bits with sadih_dask.retrieval.codes.pack"
            )
        if codes.ndim != 2 or codes.shape[1] == 0:
            raise InputError(f"{name} have shape {codes.shape}; packed codes are (rows, bytes)")
    if queries.shape[1] != database.shape[1]:
        raise InputError(
            f"queries have {queries.shape[1]} bytes a code and the database "
            f"{database.shape[1]}; both must come from the same model"
        )


def words(codes: Bytes) -> Words:
    """Codes as 64-bit words, zero-padded: eight times fewer operations than bytes."""
    n, width = codes.shape
    if width % 8 == 0:
        return np.ascontiguousarray(codes).view(np.uint64)
    padded = np.zeros((n, -(-width // 8) * 8), np.uint8)
    padded[:, :width] = codes
    return padded.view(np.uint64)


def columns(codes: Bytes) -> Words:
    """Codes as 64-bit words, (words, n): the layout in which kernels take a database block."""
    return np.ascontiguousarray(words(codes).T)
