"""Database codes as tasks read them: arrays in memory, a code store, or rows hashed on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sadih_dask.compute.encode import HashRows
from sadih_dask.compute.rows import ArrayRows, StoreRows
from sadih_dask.errors import Argument, DtypeError, InputError, Remedy
from sadih_dask.retrieval.codes import check_bitorder, check_packed, n_bytes, reorder
from sadih_dask.stores import CodeStore
from sadih_dask.types import Array, BitOrder, Bytes, Ints

BLOCK_BYTES = 4 * 2**20
"""Bytes of codes read at a time, unless a storage chunk is larger."""


@dataclass(frozen=True, eq=False)
class DatabaseCodes:
    """Codes in blocks of rows, in little bit order, however a store has them.

    source      packed codes, a code store, or rows that ``encoder`` hashes when they are looked at
    n_bits      length of a code
    chunk_rows  rows that cost as much to read as one
    block_rows  rows of a block
    local       whether they are in this process; a store is sent to workers by its address
    """

    source: Any
    n_bits: int
    n_rows: int
    chunk_rows: int
    block_rows: int
    local: bool
    encoder: HashRows | None = None

    @classmethod
    def in_memory(cls, codes: Bytes, n_bits: int) -> DatabaseCodes:
        """Packed codes of an array."""
        return cls(codes, n_bits, len(codes), 1, _block_rows(codes.shape[1], 1), local=True)

    @classmethod
    def of_store(cls, store: CodeStore) -> DatabaseCodes:
        """Codes of a store, read in whole chunks."""
        block_rows = _block_rows(n_bytes(store.n_bits), store.chunk_rows)
        return cls(store, store.n_bits, store.n_rows, store.chunk_rows, block_rows, local=False)

    @classmethod
    def of_rows(
        cls, rows: ArrayRows | StoreRows, encoder: HashRows, block_rows: int
    ) -> DatabaseCodes:
        """Codes without a store, made in the blocks in which `SADIH.encode` hashes."""
        sizes = encoder.function.n_bits, rows.n_rows, rows.chunk_rows, block_rows
        return cls(rows, *sizes, rows.local, encoder)

    @property
    def store(self) -> CodeStore | None:
        """The code store that holds them, if one does."""
        return self.source if isinstance(self.source, CodeStore) else None

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, Bytes]]:
        """Codes of rows ``[start, stop)`` in blocks, each with its first row and read once."""
        if self.encoder is not None:
            for row, features in self.source.blocks("features", start, stop, self.block_rows):
                yield row, self.encoder(np.asarray(features), row)
            return
        for row in range(start, stop, self.block_rows):
            last = min(row + self.block_rows, stop)
            store = self.store
            yield row, self.source[row:last] if store is None else in_little(store, row, last)

    def take(self, rows: Ints) -> Bytes:
        """Codes of single rows."""
        if self.store is None:
            picked: Bytes = self.source[rows]
            return picked
        return reorder(self.store.take("codes", rows), self.store.bitorder, "little")


def in_little(store: CodeStore, start: int = 0, stop: int | None = None) -> Bytes:
    """Codes of a store in little bit order."""
    return reorder(store.read("codes", start, stop), store.bitorder, "little")


def open_codes(
    database: Any, queries: Any, n_bits: int | None = None, bitorder: BitOrder | None = None
) -> tuple[DatabaseCodes, Bytes]:
    """Packed codes (n, bytes) or code stores, as something to read blocks from, and all queries.

    ``bitorder`` is that of arrays; it may be left out where it is little, or where both are arrays
    in one order. Stores know their own.
    """
    order = _order_of_arrays(database, queries, bitorder)
    if isinstance(database, CodeStore):
        codes = DatabaseCodes.of_store(database)
    else:
        packed = _packed(database, "the database")
        if n_bits is not None:
            check_packed(packed, n_bits, "the database")
        packed = reorder(packed, order, "little")
        codes = DatabaseCodes.in_memory(packed, n_bits or 8 * packed.shape[1])
    return codes, _read_queries(queries, codes, order)


def _order_of_arrays(database: Any, queries: Any, bitorder: BitOrder | None) -> BitOrder:
    if bitorder is not None:
        check_bitorder(bitorder)
        return bitorder
    stores = [codes for codes in (database, queries) if isinstance(codes, CodeStore)]
    if len(stores) == 1 and stores[0].bitorder == "big":
        raise InputError(
            f"{stores[0].url} has codes in big bit order, and codes in an array do not say theirs",
            remedy=Remedy(
                "Say it: {} for those of model.transform, {} for those of np.packbits",
                Argument("bitorder", "little"),
                Argument("bitorder", "big"),
            ),
        )
    return "little"


def _read_queries(queries: Any, database: DatabaseCodes, order: BitOrder) -> Bytes:
    """Packed codes of all queries, after a check that they can be compared with the database."""
    if isinstance(queries, CodeStore):
        if queries.n_bits != database.n_bits:
            raise InputError(
                f"queries have {queries.n_bits} bits and the database {database.n_bits}; both must "
                "come from the same model"
            )
        if (store := database.store) is not None and queries.model != store.model:
            raise InputError(
                f"{queries.url} holds codes of model {queries.model!r} and {store.url} of "
                f"{store.model!r}; codes of two models cannot be compared"
            )
        return in_little(queries)
    codes = _packed(queries, "queries")
    check_packed(codes, database.n_bits, "queries")
    return reorder(codes, order, "little")


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
