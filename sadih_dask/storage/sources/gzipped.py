"""A file that may lie inside gzip, and the array in it."""

from __future__ import annotations

import gzip
import math
from functools import partial
from typing import IO, Any, cast

import numpy as np

from sadih_dask.storage.sources.arrays import plain_source, streamed_source
from sadih_dask.storage.sources.contract import OpenOptions, Origin, RowSource
from sadih_dask.storage.sources.layout import Layout
from sadih_dask.storage.sources.limits import MAX_DEFLATE_RATIO, check_size
from sadih_dask.storage.sources.places import head, is_url, open_binary, status

GZIP_MAGIC = b"\x1f\x8b"


def is_gzip(path: str) -> bool:
    """Tell by its first bytes whether a file is gzip."""
    return head(path).startswith(GZIP_MAGIC)


def open_bytes(path: str) -> IO[bytes]:
    """Open a file for reading, decompressing it if it is gzip."""
    return open_gzip(path) if is_gzip(path) else open_binary(path)


def open_gzip(path: str) -> IO[bytes]:
    """Open a gzip file for reading."""
    return cast(IO[bytes], gzip.open(open_binary(path) if is_url(path) else path, "rb"))


def array_source(
    path: str, layout: Layout, stored: np.dtype[Any], offset: int, options: OpenOptions
) -> RowSource:
    """Describe the array that starts at ``offset``: read in place, or streamed from gzip."""
    origin = Origin(path)
    size, needed = status(path).size, math.prod(layout.shape) * stored.itemsize
    if is_gzip(path):
        check_size(origin, needed, size * MAX_DEFLATE_RATIO)
        opener = partial(open_gzip, path)
        return streamed_source(origin, layout, stored, offset, opener, options)
    check_size(origin, needed, size - offset)
    return plain_source(origin, layout, stored, offset)
