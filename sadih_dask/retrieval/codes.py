"""Binary codes as bytes.

A code of ``n_bits`` bits is ``ceil(n_bits / 8)`` bytes; bit ``k`` is bit ``k % 8`` of byte
``k // 8`` (little bit order), set where the code is +1. These are the bytes that FAISS binary
indexes take. In big bit order, which is NumPy's default, it is bit ``7 - k % 8`` of that byte: what
is handed out or stored may be so, and everything in between computes with the little order. When
``n_bits`` is not a multiple of 8 the spare bits are zero in every code, so Hamming distances are
those of the ``n_bits`` bits.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from sadih_dask.errors import DtypeError, InputError
from sadih_dask.types import Array, BitOrder, Bytes, Ints

Words: TypeAlias = NDArray[np.uint64]


def n_bytes(n_bits: int) -> int:
    """Bytes of one packed code."""
    return -(-n_bits // 8)


def pack(codes: Array, bitorder: BitOrder = "little") -> Bytes:
    """Pack codes (rows, n_bits), positive where a bit is set, into (rows, n_bytes)."""
    return np.packbits(codes > 0, axis=1, bitorder=bitorder)


_MIRRORED = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)).reshape(256, 8)[:, ::-1])


def reorder(packed: Bytes, found: BitOrder, wanted: BitOrder) -> Bytes:
    """Packed codes in another bit order: every byte mirrored, or as it is."""
    return packed if found == wanted else _MIRRORED[packed]


def check_bitorder(bitorder: str) -> None:
    """Refuse a word that is no bit order."""
    if bitorder not in get_args(BitOrder):
        raise InputError(f"bitorder={bitorder!r} is unknown; choose one of {get_args(BitOrder)}")


def unpack(packed: Bytes, n_bits: int) -> Bytes:
    """Unpack (rows, n_bytes) into bits 0 and 1, (rows, n_bits)."""
    check_packed(packed, n_bits)
    return np.unpackbits(packed, axis=1, count=n_bits, bitorder="little")


def check_packed(packed: Bytes, n_bits: int, name: str = "codes") -> None:
    """Refuse an array that cannot be packed codes of ``n_bits`` bits."""
    _check_dtype(packed, name)
    if packed.ndim != 2 or packed.shape[1] != n_bytes(n_bits):
        raise InputError(
            f"{name} have shape {packed.shape}; {n_bits} bits take (rows, {n_bytes(n_bits)})"
        )


def _check_dtype(packed: Bytes, name: str) -> None:
    if packed.dtype != np.uint8:
        raise DtypeError(
            f"{name} have dtype {packed.dtype}; packed codes are uint8. "
            "Pack bits with sadih_dask.retrieval.codes.pack"
        )


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
    for codes, name in ((queries, "queries"), (database, "codes of the database")):
        _check_dtype(codes, name)
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
