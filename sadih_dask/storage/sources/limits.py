"""Refusals that come before any data is read: memory, row size, element type.

File headers are claims. These checks run on the claims, so that a forged header costs a message
and not the memory of the machine.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sadih_dask.errors import DtypeError, FormatError, InputError, MemoryPlanError
from sadih_dask.storage.sources.contract import Origin

MAX_ROW_BYTES = 64 * 2**20
"""No feature vector or thumbnail is this large: a larger row is a damaged or transposed file."""

MAX_DEFLATE_RATIO = 1040
"""Deflate cannot shrink data more than 1032 times; a header that claims more is forged."""


def check_memory(origin: Origin, nbytes: int, limit: int, remedy: str) -> None:
    """Refuse to load what is larger than the limit, before anything is read."""
    if nbytes > limit:
        raise MemoryPlanError(
            f"{origin}: reading it takes about {nbytes / 2**20:,.0f} MiB of memory, because this "
            f"form cannot be streamed; {limit / 2**20:,.0f} MiB is allowed. {remedy}"
        )


def check_rows(origin: Origin, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse an array without rows, without columns, or with absurdly large rows.

    ``shape`` has the rows first.
    """
    if not shape or min(shape) <= 0:
        raise InputError(
            f"{origin}: shape {shape} holds no rows of data. Choose a variable that has rows."
        )
    nbytes = math.prod(shape[1:]) * dtype.itemsize
    if nbytes > MAX_ROW_BYTES:
        raise FormatError(
            f"{origin}: a row of shape {shape[1:]} {dtype} is {nbytes / 2**20:,.0f} MiB, more than "
            f"{MAX_ROW_BYTES // 2**20} MiB. The file is damaged, or it is transposed: "
            "pass transpose=True if its last axis holds the rows."
        )


def check_size(origin: Origin, needed: int, available: int) -> None:
    """Refuse an array whose header claims more bytes than the file holds."""
    if needed > available:
        raise FormatError(
            f"{origin}: its header claims {needed:,} bytes of data, but the file can hold only "
            f"{available:,}. It is truncated or damaged: copy it again."
        )


def native_dtype(origin: Origin, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype in native byte order if it can hold features or labels; refuse the others."""
    if dtype.hasobject and dtype.kind != "T":
        raise DtypeError(
            f"{origin}: holds Python objects, which could run code when they are read, so they "
            "are refused. Save it as numbers or as fixed-width text: "
            "np.save(path, np.array(x.tolist()))."
        )
    oversized = dtype.kind == "f" and dtype.itemsize > 8
    if dtype.kind not in "biufUST" or dtype.itemsize == 0 or oversized:
        raise DtypeError(
            f"{origin}: elements of type {dtype} have no meaning here. Expected integers, "
            "floats up to 64 bits, booleans or text: convert the array and save it again."
        )
    return dtype.newbyteorder("=")
