"""Database codes as tasks read them: arrays in memory, a code store, or rows hashed on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from sadih_dask.compute.encode import HashRows
from sadih_dask.compute.rows import ArrayRows, StoreRows
from sadih_dask.errors import DtypeError, InputError
from sadih_dask.retrieval.codes import check_packed, n_bytes
from sadih_dask.stores import CodeStore
from sadih_dask.types import Array, Bytes

BLOCK_BYTES = 4 * 2**20
"""Bytes of codes read at a time, unless a storage chunk is larger."""


@dataclass(frozen=True, eq=False)
class ArrayCodes:
    """Packed codes in memory."""

    codes: Bytes
    n_bits: int

    local = True
    chunk_rows = 1

    @property
    def n_rows(self) -> int:
        """How many codes there are."""
        return len(self.codes)

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return _block_rows(self.codes.shape[1], 1)

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, Bytes]]:
        """Codes of rows ``[start, stop)`` in blocks, each with its first row."""
        for row in range(start, stop, self.block_rows):
            yield row, self.codes[row : min(row + self.block_rows, stop)]


@dataclass(frozen=True)
class StoreCodes:
    """A code store; sent to workers by its address."""

    store: CodeStore

    local = False

    @property
    def n_bits(self) -> int:
        """Length of a code."""
        return self.store.n_bits

    @property
    def n_rows(self) -> int:
        """How many codes there are."""
        return self.store.n_rows

    @property
    def chunk_rows(self) -> int:
        """Rows of a storage chunk."""
        return self.store.chunk_rows

    @property
    def block_rows(self) -> int:
        """Rows of a block: whole chunks."""
        return _block_rows(n_bytes(self.n_bits), self.chunk_rows)

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, Bytes]]:
        """Codes of rows ``[start, stop)`` in whole chunks, each read once."""
        for row in range(start, stop, self.block_rows):
            yield row, self.store.read("codes", row, min(row + self.block_rows, stop))


@dataclass(frozen=True, eq=False)
class HashedRows:
    """Rows that are hashed when they are looked at, so that no code store is needed."""

    rows: ArrayRows | StoreRows
    encoder: HashRows
    block_rows: int

    @property
    def local(self) -> bool:
        """Whether the rows are in this process."""
        return self.rows.local

    @property
    def n_bits(self) -> int:
        """Length of a code."""
        return self.encoder.function.n_bits

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self.rows.n_rows

    @property
    def chunk_rows(self) -> int:
        """Rows of a storage chunk."""
        return self.rows.chunk_rows

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, Bytes]]:
        """Codes of rows ``[start, stop)``, in the blocks in which `encode` hashes."""
        for row, features in self.rows.blocks("features", start, stop, self.block_rows):
            yield row, self.encoder(np.asarray(features), row)


StoredCodes: TypeAlias = ArrayCodes | StoreCodes
DatabaseCodes: TypeAlias = StoredCodes | HashedRows


def open_database(database: Any, n_bits: int | None = None) -> StoredCodes:
    """Packed codes (n, bytes) or a code store, as something to read blocks from."""
    if isinstance(database, CodeStore):
        return StoreCodes(database)
    codes = _packed(database, "the database")
    return ArrayCodes(codes, known_bits(codes, n_bits, "the database"))


def read_queries(queries: Any, database: DatabaseCodes) -> Bytes:
    """Packed codes of all queries, after a check that they can be compared with the database."""
    if isinstance(queries, CodeStore):
        if queries.n_bits != database.n_bits:
            raise InputError(
                f"queries have {queries.n_bits} bits and the database {database.n_bits}; both must "
                "come from the same model"
            )
        if isinstance(database, StoreCodes) and queries.model != database.store.model:
            raise InputError(
                f"{queries.url} holds codes of model {queries.model!r} and {database.store.url} of "
                f"{database.store.model!r}; codes of two models cannot be compared"
            )
        return queries.read("codes")
    codes = _packed(queries, "queries")
    check_packed(codes, database.n_bits, "queries")
    return codes


def known_bits(codes: Bytes, n_bits: int | None, name: str) -> int:
    """The given number of bits, or all bits of the bytes."""
    if n_bits is None:
        return 8 * codes.shape[1]
    check_packed(codes, n_bits, name)
    return n_bits


def _packed(codes: Any, name: str) -> Bytes:
    array: Array = np.asarray(codes)
    if array.dtype != np.uint8:
        raise DtypeError(
            f"{name} have dtype {array.dtype}; packed codes are uint8. Pack bits with "
            "sadih_dask.retrieval.codes.pack, or hash features with model.transform"
        )
    if array.ndim != 2 or array.shape[1] == 0:
        raise InputError(f"{name} have shape {array.shape}; packed codes are (rows, bytes)")
    return array


def _block_rows(width: int, chunk_rows: int) -> int:
    """Rows to read at a time: whole chunks, about `BLOCK_BYTES`."""
    return chunk_rows * max(1, BLOCK_BYTES // max(1, width * chunk_rows))
