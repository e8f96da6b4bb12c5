"""Parquet and Arrow (Feather, IPC) files: one column of vectors, values or lists.

Batches are decoded one at a time, forwards; going back starts again at the row group. Rules:
a column of float lists, or of fixed-size lists, holds vectors (or multi-hot labels); a column of
variable-length integer or text lists holds label lists when labels are asked for.

Column files opened for forward reading: Parquet, Arrow IPC files (Feather) and IPC streams.

Arrow files are memory-mapped: a record batch can be the whole file, and mapped pages can be taken
back by the system at any time, while a copy could not. Compressed batches are decoded one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from sadih_dask.errors import DtypeError, InputError, LabelError
from sadih_dask.files.filesystem import head, is_url, open_binary
from sadih_dask.sources.contract import (
    Block,
    OpenOptions,
    Origin,
    Ragged,
    RaggedSource,
    RowSource,
    check_rows,
    format_library,
    reading,
)
from sadih_dask.sources.streams import BatchCursor, Lazy
from sadih_dask.sources.variables import Kind, Variable

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
    pa = format_library("pyarrow", path)
    with reading(path):
        table = open_table(path)
        return tuple(_variable(pa, column, table.n_rows) for column in table.schema)


def open_variable(path: str, variable: Variable, options: OpenOptions) -> RowSource | RaggedSource:
    """Open one column."""
    pa = format_library("pyarrow", path)
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
        pa = format_library("pyarrow", self.name)
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


_BATCH_ROWS = 2048
_BUFFER = 2**20


class Table(Protocol):
    """A file of named columns."""

    @property
    def schema(self) -> Any:
        """Return the Arrow schema."""

    @property
    def n_rows(self) -> int:
        """Count the rows."""

    def batches(self, column: str, row: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, values) of one column from at or before ``row`` on."""


@dataclass(frozen=True)
class ParquetTable:
    """Rows are found by row group; within a group, pages are decoded a batch at a time."""

    file: Any
    starts: tuple[int, ...]

    @property
    def schema(self) -> Any:
        """Return the Arrow schema."""
        return self.file.schema_arrow

    @property
    def n_rows(self) -> int:
        """Count the rows."""
        return int(self.file.metadata.num_rows)

    def batches(self, column: str, row: int) -> Iterator[tuple[int, Any]]:
        """Yield batches from the beginning of the row group that holds ``row``."""
        group = max(bisect_right(self.starts, row) - 1, 0)
        groups = range(group, self.file.num_row_groups)
        first = self.starts[group] if self.starts else 0
        for batch in self.file.iter_batches(
            _BATCH_ROWS, row_groups=groups, columns=[column], use_threads=False
        ):
            yield first, batch.column(0)
            first += batch.num_rows


@dataclass(frozen=True)
class ArrowTable:
    """An IPC file: record batches are found by number."""

    path: str
    schema: Any
    starts: tuple[int, ...]
    n_rows: int

    def batches(self, column: str, row: int) -> Iterator[tuple[int, Any]]:
        """Yield record batches from the one that holds ``row``; only the column is decoded."""
        reader = _ipc_file(self.path, self.schema.get_field_index(column))
        for number in range(max(bisect_right(self.starts, row) - 1, 0), len(self.starts)):
            yield self.starts[number], reader.get_batch(number).column(0)


@dataclass(frozen=True)
class ArrowStream:
    """An IPC stream, as ``datasets`` writes: no index, so rows are counted by walking through."""

    path: str
    schema: Any
    n_rows: int

    def batches(self, column: str, row: int) -> Iterator[tuple[int, Any]]:  # noqa: ARG002
        """Yield record batches from the beginning."""
        first = 0
        for batch in _ipc_stream(self.path, self.schema.get_field_index(column)):
            yield first, batch.column(0)
            first += batch.num_rows


def open_table(path: str) -> Table:
    """Open a column file by its first bytes."""
    beginning = head(path)
    if beginning.startswith(b"PAR1"):
        return _open_parquet(path)
    if beginning.startswith(b"ARROW1"):
        return _open_ipc_file(path)
    reader = _ipc_stream(path)
    cheapest = _ipc_stream(path, _cheapest(reader.schema))
    return ArrowStream(path, reader.schema, sum(map(_count, cheapest)))


def _open_parquet(path: str) -> ParquetTable:
    parquet = format_library("pyarrow.parquet", path)
    # pre_buffer would hold whole row groups, which are often the whole file
    source = open_binary(path) if is_url(path) else path
    file = parquet.ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False)
    starts, first = [], 0
    for group in range(file.num_row_groups):
        starts.append(first)
        first += file.metadata.row_group(group).num_rows
    return ParquetTable(file, tuple(starts))


def _open_ipc_file(path: str) -> ArrowTable:
    schema = _ipc_file(path).schema
    counter = _ipc_file(path, _cheapest(schema))
    starts, first = [], 0
    for number in range(counter.num_record_batches):
        starts.append(first)
        first += _count(counter.get_batch(number))
    return ArrowTable(path, schema, tuple(starts), first)


def _count(batch: Any) -> int:
    """Count the rows of a batch, whose length is a claim until it is validated."""
    batch.validate()
    rows = int(batch.num_rows)
    if rows < 0:
        raise ValueError(f"a record batch claims {rows} rows")
    return rows


def _cheapest(schema: Any) -> int:
    """Pick the column that counting rows decodes: a flat one if there is any."""
    return next((i for i, column in enumerate(schema) if column.type.num_fields == 0), 0)


def _ipc_file(path: str, column: int | None = None) -> Any:
    ipc = format_library("pyarrow.ipc", path)
    return ipc.open_file(_mapped(path), options=_options(ipc, column))


def _ipc_stream(path: str, column: int | None = None) -> Any:
    ipc = format_library("pyarrow.ipc", path)
    return ipc.open_stream(_mapped(path), options=_options(ipc, column))


def _mapped(path: str) -> Any:
    arrow = format_library("pyarrow", path)
    return arrow.PythonFile(open_binary(path)) if is_url(path) else arrow.memory_map(path, "r")


def _options(ipc: Any, column: int | None) -> Any:
    fields = [] if column is None else [column]
    return ipc.IpcReadOptions(included_fields=fields, use_threads=False)
