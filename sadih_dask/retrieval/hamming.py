"""Hamming distances of packed codes."""

from __future__ import annotations

import numpy as np

from sadih_dask.arrays import Bytes, Ints
from sadih_dask.errors import InputError


def distances(queries: Bytes, database: Bytes) -> Ints:
    """Hamming distance of every query to every database code, (q, n), as int64.

    Forms q x n x bytes / 8 words; callers bound q x n.
    """
    if queries.shape[1] != database.shape[1]:
        raise InputError(
            f"queries have {queries.shape[1]} bytes a code and the database "
            f"{database.shape[1]}; both must come from the same model"
        )
    words_q, words_n = _words(queries), _words(database)
    total = np.zeros((len(queries), len(database)), np.int64)
    for k in range(words_q.shape[1]):
        total += np.bitwise_count(words_q[:, k, None] ^ words_n[None, :, k])
    return total


def _words(codes: Bytes) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    """Codes as 64-bit words, zero-padded: eight times fewer operations than bytes."""
    n, width = codes.shape
    padded = np.zeros((n, -(-width // 8) * 8), np.uint8)
    padded[:, :width] = codes
    return padded.view(np.uint64)
