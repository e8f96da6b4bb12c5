"""Binary codes as bytes.

A code of ``n_bits`` bits is ``ceil(n_bits / 8)`` bytes; bit ``k`` is bit ``k % 8`` of byte
``k // 8`` (little bit order), set where the code is +1. These are the bytes that FAISS binary
indexes take. When ``n_bits`` is not a multiple of 8 the spare bits are zero in every code, so
Hamming distances are those of the ``n_bits`` bits.
"""

from __future__ import annotations

import numpy as np

from sadih_dask.arrays import Array, Bytes
from sadih_dask.errors import DtypeError, InputError


def n_bytes(n_bits: int) -> int:
    """Bytes of one packed code."""
    return -(-n_bits // 8)


def pack(codes: Array) -> Bytes:
    """Pack codes (rows, n_bits), positive where a bit is set, into (rows, n_bytes)."""
    return np.packbits(codes > 0, axis=1, bitorder="little")


def unpack(packed: Bytes, n_bits: int) -> Bytes:
    """Unpack (rows, n_bytes) into bits 0 and 1, (rows, n_bits)."""
    check_packed(packed, n_bits)
    return np.unpackbits(packed, axis=1, count=n_bits, bitorder="little")


def check_packed(packed: Bytes, n_bits: int, name: str = "codes") -> None:
    """Refuse an array that cannot be packed codes of ``n_bits`` bits."""
    if packed.dtype != np.uint8:
        raise DtypeError(
            f"{name} have dtype {packed.dtype}; packed codes are uint8. "
            "Pack bits with sadih_dask.retrieval.codes.pack"
        )
    if packed.ndim != 2 or packed.shape[1] != n_bytes(n_bits):
        raise InputError(
            f"{name} have shape {packed.shape}; {n_bits} bits take (rows, {n_bytes(n_bits)})"
        )
