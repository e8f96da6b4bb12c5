"""From what a caller wants to the plan of a new store."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sadih_dask.errors import DtypeError, InputError
from sadih_dask.files.filesystem import Files
from sadih_dask.stores.layout import (
    DEFAULT_CHUNK_BYTES,
    MAX_ROWS,
    ArrayLayout,
    check_chunking,
    default_chunk_rows,
)
from sadih_dask.stores.root import Commit, Schema

Columns = Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Chunking:
    """What a caller said about chunks; None leaves the choice to the defaults."""

    chunk_rows: int | None = None
    shard_rows: int | None = None
    compression: str | None = None
    chunk_bytes: int = DEFAULT_CHUNK_BYTES


def new_plan(
    kind: str,
    schema: Schema,
    files: Files,
    columns: Columns,
    n_rows: int,
    chunking: Chunking,
    properties: Mapping[str, Any],
) -> Commit:
    """Return the plan of a store with these arrays (type and row shape each).

    Local stores are not compressed by default (zstd reads five times slower than the disk), those
    behind a network are.
    """
    if not 0 <= n_rows <= MAX_ROWS:
        raise InputError(f"a store cannot have {n_rows} rows")
    for name, (dtype, row_shape) in columns.items():
        _check_column(schema, name, dtype, row_shape)
    widest = max(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in columns.values())
    chunk_rows = chunking.chunk_rows
    if chunk_rows is None:
        chunk_rows = default_chunk_rows(widest, n_rows, chunking.chunk_bytes)
        if chunking.shard_rows is not None:
            chunk_rows = math.gcd(chunk_rows, chunking.shard_rows)
    compression = chunking.compression or ("none" if files.is_local else "zstd")
    check_chunking(chunk_rows, chunking.shard_rows, compression)
    layouts = {
        name: ArrayLayout(name, *column, chunk_rows, chunking.shard_rows, compression)
        for name, column in columns.items()
    }
    return Commit(kind, "", layouts, n_rows, dict(properties))


def _check_column(schema: Schema, name: str, dtype: str, row_shape: tuple[int, ...]) -> None:
    column = schema[name]
    if dtype not in column.dtypes:
        raise DtypeError(
            f"{name} cannot be stored as {dtype}; convert to one of "
            f"{', '.join(sorted(column.dtypes))}"
        )
    if 1 + len(row_shape) not in column.n_dims or any(length < 1 for length in row_shape):
        raise InputError(
            f"{name} of shape (rows, {', '.join(map(str, row_shape))}) cannot be stored; expected "
            f"{' or '.join(map(str, sorted(column.n_dims)))} dimensions, none of them empty"
        )
