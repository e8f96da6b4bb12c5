"""IDX files, the format of the MNIST family: plain or inside gzip, big-endian."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from sadih_dask.storage.sources.contract import OpenOptions, RowSource, reading
from sadih_dask.storage.sources.gzipped import array_source, open_bytes
from sadih_dask.storage.sources.layout import Layout
from sadih_dask.storage.sources.variables import Variable

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def is_idx(head: bytes) -> bool:
    """Recognise the four-byte magic: two zeros, a type, a number of dimensions."""
    return len(head) >= 4 and head[:2] == b"\0\0" and head[2] in _TYPES and 1 <= head[3] <= 8


def list_variables(path: str, options: OpenOptions) -> tuple[Variable, ...]:  # noqa: ARG001
    """List the one array of the file under the file's name."""
    shape, dtype, _ = _header(path)
    return (Variable(Path(path).name.partition(".")[0], shape, "numbers", str(dtype)),)


def open_variable(path: str, variable: Variable, options: OpenOptions) -> RowSource:  # noqa: ARG001
    """Open the array of the file."""
    shape, dtype, offset = _header(path)
    layout = Layout(shape, rows_last=options.rows_last)
    return array_source(path, layout, dtype, offset, options)


def _header(path: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    with reading(path), open_bytes(path) as stream:
        head = stream.read(4)
        if not is_idx(head):
            raise ValueError(f"an IDX file does not start with {head!r}")
        ndim = head[3]
        shape = struct.unpack(f">{ndim}I", stream.read(4 * ndim))
        return shape, np.dtype(_TYPES[head[2]]), 4 + 4 * ndim
