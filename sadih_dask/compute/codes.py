"""Database codes as tasks read them: arrays in memory, a code store, or rows hashed on the way.

A search may be confined to some rows, a `Selection`: those of a label, of some ids, or of a mask.
Columns are looked at block by block before the codes are: a block without such a row is not read,
and of the others only the codes of these rows are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from operator import index
from typing import Any, TypeAlias

import numpy as np

from sadih_dask.compute.encode import HashRows
from sadih_dask.compute.rows import ArrayRows, StoreRows
from sadih_dask.errors import Argument, DtypeError, InputError, Remedy
from sadih_dask.files.filesystem import refuse_path
from sadih_dask.learning.classes import Vocabulary, in_short
from sadih_dask.retrieval.codes import check_bitorder, check_packed, n_bytes, reorder
from sadih_dask.stores import CodeStore
from sadih_dask.types import Array, BitOrder, Bytes, Ints

BLOCK_BYTES = 4 * 2**20
"""Bytes of codes read at a time, unless a storage chunk is larger."""
Where: TypeAlias = Mapping[str, Any] | Array
"""Values of columns that rows must have ("label", "id"), or one truth value for each row."""
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


@dataclass(frozen=True, eq=False)
class Selection:
    """Rows of a database that have one of the ``accepted`` values in every column, or a mask."""

    accepted: Mapping[str, Array | range]
    mask: Array | None = None

    def rows(self, source: Any, start: int, stop: int) -> Ints:
        """Which of the rows ``[start, stop)`` are selected, counted from ``start``."""
        kept = np.ones(stop - start, bool) if self.mask is None else self.mask[start:stop]
        for name, values in self.accepted.items():
            if kept.any():
                kept = kept & _has(name, source.read(name, start, stop), values)
        return np.flatnonzero(kept)


def _has(name: str, held: Array, values: Array | range) -> Array:
    """Where one of the values is held: a number between two, a bit that is set, or an equal."""
    if isinstance(values, range):
        return np.asarray((held >= values.start) & (held < values.stop))
    if name == "label_bits":
        bits = np.bitwise_or.reduce([held[:, v >> 3] >> (v & 7) for v in values])
        return np.asarray(bits & 1, bool)
    return np.isin(held, values, kind="sort" if len(values) < 16 else None)


@dataclass(frozen=True, eq=False)
class DatabaseCodes:
    """Codes in blocks of rows, in little bit order, however a store has them.

    source      packed codes, a code store, or rows that ``encoder`` hashes when they are looked at
    n_bits      length of a code
    chunk_rows  rows that cost as much to read as one
    block_rows  rows of a block
    local       whether they are in this process; a store is sent to workers by its address
    where       the rows to search among, if not all
    """

    source: Any
    n_bits: int
    n_rows: int
    chunk_rows: int
    block_rows: int
    local: bool
    encoder: HashRows | None = None
    where: Selection | None = None

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
        starts = range(start, stop, self.block_rows)
        if (store := self.store) is None:
            for row in starts:
                yield row, self.source[row : min(row + self.block_rows, stop)]
            return
        with closing(store.reader("codes", stop)) as read:
            for row in starts:
                held = np.empty((min(self.block_rows, stop - row), n_bytes(self.n_bits)), np.uint8)
                read(row, held)
                yield row, reorder(held, store.bitorder, "little")

    def selected(self, start: int, stop: int) -> Iterator[tuple[int | Ints, Bytes]]:
        """As `blocks`, of the rows to search among: with all their numbers where some are not."""
        if self.where is None:
            yield from self.blocks(start, stop)
            return
        for row in range(start, stop, self.block_rows):
            last = min(row + self.block_rows, stop)
            rows = self.where.rows(self.source, row, last)
            if len(rows) == last - row:
                yield row, self._between(row, last)
            elif len(rows):
                yield row + rows, self._between(row, last).take(rows, axis=0)

    def _between(self, start: int, stop: int) -> Bytes:
        store = self.store
        held: Bytes = self.source[start:stop] if store is None else in_little(store, start, stop)
        return held

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
    database: Any,
    queries: Any,
    n_bits: int | None = None,
    bitorder: BitOrder | None = None,
    where: Where | None = None,
) -> tuple[DatabaseCodes, Bytes]:
    """Packed codes (n, bytes) or code stores, as something to read blocks from, and all queries.

    ``bitorder`` is that of arrays; it may be left out where it is little, or where both are arrays
    in one order. Stores know their own.
    """
    order = _order_of_arrays(database, queries, bitorder)
    if isinstance(database, CodeStore):
        codes = DatabaseCodes.of_store(database)
    else:
        packed = _packed(database, "codes of the database")
        if n_bits is not None:
            check_packed(packed, n_bits, "codes of the database")
        packed = reorder(packed, order, "little")
        codes = DatabaseCodes.in_memory(packed, n_bits or 8 * packed.shape[1])
    if where is not None:
        codes = replace(codes, where=_selection(codes, where))
    return codes, _read_queries(queries, codes, order)


def _selection(codes: DatabaseCodes, where: Where) -> Selection:
    """The rows that are meant, in the numbers of the store."""
    if not isinstance(where, Mapping):
        mask = np.asarray(where)
        if mask.dtype != bool or mask.shape != (codes.n_rows,):
            raise InputError(
                f"where is an array of {mask.dtype} and shape {mask.shape}; give one truth value "
                f"for each of {codes.n_rows:,} rows, or values of columns: {{'label': 'cat'}}"
            )
        return Selection({}, mask)
    if codes.store is None:
        raise InputError(
            "codes in an array have no columns to search by; give where as one truth value a row"
        )
    return Selection(dict(_accepted(codes.store, *item) for item in where.items()))


def _accepted(store: CodeStore, column: str, given: Any) -> tuple[str, Array | range]:
    """The array that a column is, and its values that are meant: as they are stored, or a range."""
    arrays = {"id": ("ids",), "label": ("labels", "label_bits")}
    array = next((name for name in arrays.get(column, ()) if name in store.arrays), "")
    if not array:
        there = [name for name, forms in arrays.items() if not {*forms}.isdisjoint(store.arrays)]
        raise InputError(
            f"{store.url} has no column {column!r} to search by; it has {there or 'codes only'}. "
            "Labels and ids are those of the feature store that was encoded; codes that were "
            "written without have to be encoded anew",
            remedy=Remedy("Replace them with {}", Argument("overwrite", True)),
        )
    named, kind = array != "ids" and bool(store.class_names), store.dtype(array).kind
    if isinstance(given, str) and not named and kind in "iu" and (span := _RANGE.fullmatch(given)):
        given = range(int(span[1]), int(span[2]) + 1)
    if isinstance(given, range) and not named and array != "label_bits" and given.step == 1:
        return array, given
    values = [given] if isinstance(given, str | bytes) or not np.iterable(given) else list(given)
    if not values:
        raise InputError(f"where gives no value of {column!r}; leave it out to search all rows")
    if named:
        return array, _class_numbers(store, values)
    try:
        numbers = np.array(values, kind) if kind in "SU" else _whole(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{column} {values[0]!r}: {store.url} has "
            f"{'text' if kind in 'SU' else 'whole numbers without names'} there"
        ) from error
    n_labels = store.properties.get("n_labels", 0)
    if array == "label_bits" and not 0 <= numbers.min() <= numbers.max() < n_labels:
        raise InputError(f"{store.url} has labels 0 to {n_labels - 1}, got {given!r}")
    return array, numbers


def _whole(values: list[Any]) -> Ints:
    """Whole numbers, or what a command line says of them; none is rounded."""
    return np.array([int(v) if isinstance(v, str | bytes) else index(v) for v in values], np.int64)


def _class_numbers(store: CodeStore, values: list[Any]) -> Ints:
    """Numbers of classes by their names."""
    known, wanted = Vocabulary.of_names(store.class_names), Vocabulary(np.array(values))
    numbers = known.find(wanted)
    if np.any(numbers < 0):
        unknown = values[int(np.argmax(numbers < 0))]
        has = in_short(store.class_names)
        raise InputError(f"{store.url} has no class {unknown!r}; it has {has}")
    return numbers


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
    refuse_path(codes, "CodeStore.open(path), or np.load(path) of an array")
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
