"""CRC-32C, the checksum of every stored chunk and of every piece of metadata.

It is the checksum that Zarr's `crc32c` codec writes, and hardware computes it faster than
memory delivers the bytes: keeping it costs next to nothing, leaving it out loses flipped bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

TRAILER_BYTES = 4


def _implementation() -> Callable[[Any, int], int]:
    """Return the fastest CRC-32C that is installed, as a function of data and starting value."""
    try:
        # Carry-less multiplication: 3 to 4 times the speed of google-crc32c on recent processors.
        from fastcrc.crc32 import iscsi  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from google_crc32c import extend  # comes with zarr

        return lambda data, start: int(extend(start, data))
    fastest: Callable[[Any, int], int] = iscsi
    return fastest


_extended = _implementation()


def crc32c(data: bytes | npt.NDArray[np.uint8], start: int = 0) -> int:
    """Return the checksum of `data`, continuing from the checksum `start` of what came before."""
    return _extended(data, start)


def trailer(crc: int) -> bytes:
    """Return `crc` as the four bytes that Zarr's codec puts after a chunk."""
    return crc.to_bytes(TRAILER_BYTES, "little")


def canonical_json(value: Mapping[str, Any]) -> bytes:
    """Return one spelling of a JSON value, so that equal values have equal checksums."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def as_bytes_view(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of a C-contiguous array as a flat view, without a copy."""
    return array.reshape(-1).view(np.uint8)
