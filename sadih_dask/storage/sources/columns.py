"""Parquet and Arrow (Feather, IPC) files: one column of vectors, values or lists.

Batches are decoded one at a time, forwards; going back starts again at the row group. Rules:
a column of float lists, or of fixed-size lists, holds vectors (or multi-hot labels); a column of
variable-length integer or text lists holds label lists when labels are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from sadih_dask.errors import DtypeError, InputError, LabelError
from sadih_dask.storage.sources.contract import (
    Block,
    OpenOptions,
    Origin,
    Ragged,
    RaggedSource,
    RowSource,
    reading,
)
from sadih_dask.storage.sources.limits import check_rows
from sadih_dask.storage.sources.opened import BatchCursor, Lazy
from sadih_dask.storage.sources.optional import require
from sadih_dask.storage.sources.tables import Table, open_table
from sadih_dask.storage.sources.variables import Kind, Variable

_TEXT = np.dtypes.StringDType()


@dataclass(frozen=True)
class ColumnSource(RowSource):
    """A column of numbers, text, or vectors of one width."""

    cursor: BatchCursor[Any] = field(repr=False, compare=False)

    def _read(self, start: int, stop: int) -> Block:
        out = np.empty((stop - start, *self.row_shape), self.dtype)
        at = 0
        for piece in self.cursor.read(start, stop, _cut):
            out[at : at + len(piece)] = self._decode(piece, start + at)
            at += len(piece)
        return out

    def _decode(self, piece: Any, first: int) -> Block:
        if piece.null_count:
            row = first + _first_null(piece)
            error = InputError if self.row_shape else LabelError
            raise error(
                f"{self.locate(row)}: is missing (null). Every row needs a value: "
                "drop the row or fill it."
            )
        if not self.row_shape:
            values = piece.to_pylist() if self.dtype == _TEXT else _numbers(piece)
            return np.array(values, dtype=self.dtype)
        lengths = _numbers(piece.value_lengths())
        wrong = np.flatnonzero(lengths != self.width)
        if wrong.size:
            row = first + int(wrong[0])
            raise InputError(
                f"{self.locate(row)}: has {lengths[wrong[0]]} numbers, "
                f"but the rows before it have {self.width}."
            )
        values = piece.flatten()
        if values.null_count:
            row, column = divmod(_first_null(values), self.width)
            raise InputError(f"{self.locate(first + row)}, column {column}: is missing (null).")
        return _numbers(values).reshape(len(piece), self.width)


@dataclass(frozen=True)
class ListColumn(RaggedSource):
    """A column of label lists."""

    cursor: BatchCursor[Any] = field(repr=False, compare=False)

    def _read(self, start: int, stop: int) -> Ragged:
        values: list[Any] = []
        lengths: list[int] = [0]
        for piece in self.cursor.read(start, stop, _cut):
            for labels in piece.to_pylist():
                if labels is None or None in labels:
                    row = start + len(lengths) - 1
                    raise LabelError(
                        f"{self.locate(row)}: its label list is missing or holds a null. "
                        "Drop the row or fill the list."
                    )
                values += labels
                lengths.append(len(labels))
        text = bool(values) and isinstance(values[0], str)
        block = np.array(values, dtype=_TEXT if text else np.int64)
        return Ragged(block, np.array(list(accumulate(lengths)), dtype=np.int64))


def list_variables(path: str, options: OpenOptions) -> tuple[Variable, ...]:  # noqa: ARG001
    """List the columns."""
    pa = require("pyarrow", path)
    with reading(path):
        table = open_table(path)
        return tuple(_variable(pa, column, table.n_rows) for column in table.schema)


def open_variable(path: str, variable: Variable, options: OpenOptions) -> RowSource | RaggedSource:
    """Open one column."""
    pa = require("pyarrow", path)
    origin = Origin(path, variable.name)
    if options.rows_last:
        raise InputError(f"{origin}: a column cannot be transposed; leave transpose out.")
    if variable.kind == "other":
        raise DtypeError(
            f"{origin}: a column of type {variable.note} has no meaning here. "
            "Expected numbers, text, or lists of them."
        )
    with reading(path):
        table = Lazy(partial(open_table, path))
        cursor = BatchCursor(_Batches(table, variable.name))
        if variable.kind == "lists" and options.as_lists:
            return ListColumn(origin, table.get().n_rows, cursor)
        n_rows = table.get().n_rows
        inner = _value_type(pa, _plain(table.get().schema.field(variable.name).type))
        row_shape: tuple[int, ...] = ()
        if len(variable.shape) == 2:
            row_shape = (_width(cursor, origin, n_rows, variable),)
    dtype = _TEXT if variable.kind == "text" else np.dtype(inner.to_pandas_dtype())
    if variable.kind == "lists" and dtype.kind not in "biuf":
        raise DtypeError(f"{origin}: lists of {inner} are not vectors of numbers.")
    check_rows(origin, (n_rows, *row_shape), dtype)
    return ColumnSource(origin, n_rows, row_shape, dtype, cursor)


@dataclass(frozen=True)
class _Batches:
    """Starts the batches of one column at a row; picklable, unlike the open file."""

    table: Lazy[Table]
    name: str

    def __call__(self, row: int) -> Iterator[tuple[int, Any]]:
        pa = require("pyarrow", self.name)
        for first, column in self.table.get().batches(self.name, row):
            # Arrow trusts offsets and lengths in the file, and aborts on wrong ones later
            column.validate(full=True)
            plain = column.storage if isinstance(column, pa.ExtensionArray) else column
            dictionary = pa.types.is_dictionary(plain.type)
            yield first, plain.dictionary_decode() if dictionary else plain


def _variable(pa: Any, column: Any, n_rows: int) -> Variable:
    plain = _plain(column.type)
    types = pa.types
    inner = _value_type(pa, plain)
    numeric = types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)
    text = types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)
    kind: Kind = "numbers" if numeric else "text" if text else "other"
    shape: tuple[int, ...] = (n_rows,)
    if types.is_fixed_size_list(plain):
        shape, kind = (n_rows, plain.list_size), kind if numeric else "other"
    elif types.is_list(plain) or types.is_large_list(plain):
        shape = (n_rows, -1)
        if text or types.is_integer(inner):
            kind = "lists"
    return Variable(column.name, shape, kind, str(column.type))


def _plain(kind: Any) -> Any:
    """Look through extension types (tensors) and dictionaries (categories)."""
    kind = getattr(kind, "storage_type", kind)
    return getattr(kind, "value_type", kind) if hasattr(kind, "index_type") else kind


def _value_type(pa: Any, plain: Any) -> Any:
    types = pa.types
    if types.is_fixed_size_list(plain) or types.is_list(plain) or types.is_large_list(plain):
        return plain.value_type
    return plain


def _width(cursor: BatchCursor[Any], origin: Origin, n_rows: int, variable: Variable) -> int:
    if variable.shape[1] >= 0:
        return variable.shape[1]
    if n_rows == 0:
        return 0
    first = cursor.read(0, 1, _cut)[0]
    if first.null_count:
        raise InputError(f"{origin} row 0: is missing (null). Every row needs a vector.")
    return int(first.value_lengths()[0].as_py())


def _cut(batch: Any, start: int, stop: int) -> Any:
    return batch.slice(start, stop - start)


def _numbers(values: Any) -> Block:
    block: Block = values.to_numpy(zero_copy_only=False)
    return block


def _first_null(values: Any) -> int:
    return int(np.argmax(_numbers(values.is_null())))
