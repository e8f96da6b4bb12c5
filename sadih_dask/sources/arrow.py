"""Parquet and Arrow (Feather, IPC) files: a column of vectors, values or lists, or one a feature.

Batches are decoded one at a time, forwards; going back starts again at the row group. Rules:
a column of float lists, or of fixed-size lists, holds vectors (or multi-hot labels); a column of
variable-length integer or text lists holds label lists when labels are asked for. Where the schema
names the classes of a column of numbers (``ClassLabel`` of Hugging Face's ``datasets``), its labels
are these names. Of features in a column each, a page of every column is in memory.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, islice
from typing import Any

import numpy as np

from sadih_dask.errors import DtypeError, InputError, LabelError
from sadih_dask.files.filesystem import head, is_url, open_binary
from sadih_dask.sources.contract import (
    LISTS,
    TEXT,
    Batches,
    Block,
    Kind,
    OpenOptions,
    Origin,
    RowSource,
    Variable,
    check_rows,
    format_library,
    reading,
)

_BATCH_ROWS = 2048
_BUFFER = 2**20
_LEAST_BUFFER = 2**15
_BUFFERS = 2**24


@dataclass(frozen=True)
class BatchedSource(RowSource):
    """Rows that are decoded in batches, forwards, from those numbered ``starts`` on."""

    batches: Batches = field(repr=False, compare=False)
    starts: tuple[int, ...] = field(repr=False)

    def entry(self, row: int) -> int:
        """Return the first row of the row group or record batch."""
        return self.starts[bisect_right(self.starts, row) - 1]

    def reopened(self, start: int, stop: int) -> RowSource:  # noqa: ARG002
        """Return it with batches of its own."""
        return replace(self, batches=copy(self.batches))

    @property
    def working_bytes(self) -> int:
        """Return the bytes of buffers, and of a batch as it is decoded."""
        return _BUFFERS + 2 * _BATCH_ROWS * self.width * self.dtype.itemsize


@dataclass(frozen=True)
class WideSource(BatchedSource):
    """A column for each number of a row."""

    columns: tuple[str, ...]

    def in_order_of(self, other: RowSource) -> WideSource:
        """Return it with columns as another table has them, however its own are ordered."""
        if not isinstance(other, WideSource) or other.columns == self.columns:
            return self
        if set(other.columns) != set(self.columns):
            own = sorted({*self.columns} - {*other.columns}) or [*self.columns]
            raise InputError(
                f"{self.origin} has columns that {other.origin} does not have, or not all of its: "
                f"{', '.join(own[:3])}. Shards of one data set must agree: name the columns of the "
                "features, or convert one of them."
            )
        return replace(self, columns=other.columns)

    def _read(self, start: int, stop: int) -> Block:
        out = np.empty((stop - start, self.width), self.dtype)
        at = 0
        for piece in self.batches.read(start, stop):
            for number, name in enumerate(self.columns):
                column = piece.column(name)
                if column.null_count:
                    row = start + at + _first_null(column)
                    raise InputError(
                        f"{self.locate(row)}, column {name!r}: is missing (null). "
                        "Drop the row or fill the value."
                    )
                out[at : at + len(column), number] = _numbers(column)
            at += len(piece)
        return out


@dataclass(frozen=True)
class ColumnSource(BatchedSource):
    """A column of numbers, text, label lists, or vectors of one width.

    ``names`` are those of classes that its numbers stand for, from 0.
    """

    names: tuple[str, ...] = ()

    @property
    def named_classes(self) -> tuple[str, ...]:
        """Return the classes that the schema names."""
        return self.names

    def _named(self, number: int, row: int) -> str:
        if not 0 <= number < len(self.names):
            raise LabelError(
                f"{self.locate(row)}: the label is {number}, and the file names {len(self.names)} "
                "classes, from 0. Drop the row or label it."
            )
        return self.names[number]

    def _read(self, start: int, stop: int) -> Block:
        out = np.empty((stop - start, *self.row_shape), self.dtype)
        at = 0
        for piece in self.batches.read(start, stop):
            decode = self._lists if self.holds_lists else self._decode
            out[at : at + len(piece)] = decode(piece, start + at)
            at += len(piece)
        return out

    def _lists(self, piece: Any, first: int) -> Block:
        lists = piece.to_pylist()
        for row, labels in enumerate(lists, first):
            if labels is None or None in labels:
                raise LabelError(
                    f"{self.locate(row)}: its label list is missing or holds a null. "
                    "Drop the row or fill the list."
                )
        if self.names:
            rows = enumerate(lists, first)
            lists = [[self._named(number, row) for number in labels] for row, labels in rows]
        return np.fromiter(lists, LISTS)

    def _decode(self, piece: Any, first: int) -> Block:
        if piece.null_count:
            row = first + _first_null(piece)
            error = InputError if self.row_shape else LabelError
            raise error(
                f"{self.locate(row)}: is missing (null). Every row needs a value: "
                "drop the row or fill it."
            )
        if not self.row_shape:
            values = piece.to_pylist() if self.holds_text else _numbers(piece)
            if self.names:
                values = [self._named(number, row) for row, number in enumerate(values, first)]
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


def list_variables(path: str, options: OpenOptions) -> tuple[Variable, ...]:  # noqa: ARG001
    """List the columns."""
    pa = format_library("pyarrow", path)
    with reading(path):
        table = Table.open(path)
        return tuple(_variable(pa, column, table.n_rows) for column in table.schema)


def open_variable(path: str, variable: Variable, options: OpenOptions) -> RowSource:
    """Open one column, or one for each feature."""
    pa = format_library("pyarrow", path)
    origin = Origin(path, variable.name)
    if options.rows_last:
        raise InputError(f"{origin}: a column cannot be transposed; leave transpose out.")
    if variable.columns:
        return _open_wide(path, origin, variable)
    if variable.kind == "other":
        raise DtypeError(
            f"{origin}: a column of type {variable.note} has no meaning here. "
            "Expected numbers, text, or lists of them."
        )
    with reading(path):
        table = Table.open(path)
        n_rows = table.n_rows
        batches = Batches(partial(table.column, variable.name))
        names = _class_names(table.schema, variable.name) if options.as_lists else ()
        if variable.kind == "lists" and options.as_lists:
            return ColumnSource(origin, n_rows, (), LISTS, batches, table.entries, names)
        inner = _value_type(pa, _plain(table.schema.field(variable.name).type))
        row_shape: tuple[int, ...] = ()
        if len(variable.shape) == 2:
            row_shape = (_width(batches, origin, n_rows, variable),)
    names = names if not row_shape and pa.types.is_integer(inner) else ()
    dtype = TEXT if variable.kind == "text" or names else np.dtype(inner.to_pandas_dtype())
    if variable.kind == "lists" and dtype.kind not in "biuf":
        raise DtypeError(f"{origin}: lists of {inner} are not vectors of numbers.")
    check_rows(origin, (n_rows, *row_shape), dtype)
    return ColumnSource(origin, n_rows, row_shape, dtype, batches, table.entries, names)


def _open_wide(path: str, origin: Origin, variable: Variable) -> RowSource:
    names = variable.columns
    with reading(path):
        table = Table.open(path)
        fields = [table.schema.field(name) for name in names]
        batches = Batches(partial(table.rows, names))
    dtype = np.result_type(*(np.dtype(field.type.to_pandas_dtype()) for field in fields))
    check_rows(origin, (table.n_rows, len(names)), dtype)
    rows = (origin, table.n_rows, (len(names),), dtype)
    return WideSource(*rows, batches, table.entries, names)


def _class_names(schema: Any, column: str) -> tuple[str, ...]:
    """Return the names that ``datasets`` has put beside a column of class numbers, if any."""
    try:
        said = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][column]
        while not isinstance(said, dict) or said.get("_type") != "ClassLabel":
            said = said[0] if isinstance(said, list) else said["feature"]  # of a list
        names = said["names"]
    except (KeyError, IndexError, TypeError, ValueError):
        return ()
    fits = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return tuple(names) if fits else ()


@dataclass(frozen=True)
class Table:
    """A file of named columns, whose row groups or record batches begin at ``starts``."""

    path: str
    schema: Any
    starts: tuple[int, ...]

    @classmethod
    def open(cls, path: str) -> Table:
        """Read the schema and count the rows; of IPC files that means to look at every batch."""
        if _is_parquet(path):
            file = _parquet(path)
            groups = range(file.num_row_groups)
            counts = [file.metadata.row_group(group).num_rows for group in groups]
            return cls(path, file.schema_arrow, (0, *accumulate(counts)))
        schema = _ipc(path).schema
        flat = (number for number, column in enumerate(schema) if column.type.num_fields == 0)
        counts = [_count(batch) for batch in _record_batches(path, [next(flat, 0)])]
        return cls(path, schema, (0, *accumulate(counts)))

    @property
    def n_rows(self) -> int:
        """Count the rows."""
        return self.starts[-1]

    @property
    def entries(self) -> tuple[int, ...]:
        """Return the rows that reading can begin at; a stream behind a URL comes from its start."""
        indexed = not is_url(self.path) or head(self.path).startswith((b"PAR1", b"ARROW1"))
        return self.starts[:-1] if indexed and len(self.starts) > 1 else (0,)

    def column(self, name: str, row: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, values) of a column, from the group or batch that holds ``row`` on."""
        pa = format_library("pyarrow", self.path)
        for first, batch in self.rows((name,), row):
            column = batch.column(0)
            plain = column.storage if isinstance(column, pa.ExtensionArray) else column
            dictionary = pa.types.is_dictionary(plain.type)
            yield first, plain.dictionary_decode() if dictionary else plain

    def rows(self, names: tuple[str, ...], row: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, batch) of some columns, likewise."""
        piece = max(bisect_right(self.starts, row, hi=len(self.starts) - 1) - 1, 0)
        first = self.starts[piece]
        for batch in self._batches(names, piece):
            # Arrow trusts offsets and lengths in the file, and aborts on wrong ones later
            batch.validate(full=True)
            yield first, batch
            first += batch.num_rows

    def _batches(self, names: tuple[str, ...], piece: int) -> Iterator[Any]:
        if not _is_parquet(self.path):
            places = [self.schema.get_field_index(name) for name in names]
            return _record_batches(self.path, places, piece)
        groups = range(piece, len(self.starts) - 1)
        found: Iterator[Any] = _parquet(self.path, len(names)).iter_batches(
            _BATCH_ROWS, row_groups=groups, columns=list(names), use_threads=False
        )
        return found


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


def _width(batches: Batches, origin: Origin, n_rows: int, variable: Variable) -> int:
    if variable.shape[1] >= 0:
        return variable.shape[1]
    if n_rows == 0:
        return 0
    first = batches.read(0, 1)[0]
    if first.null_count:
        raise InputError(f"{origin} row 0: is missing (null). Every row needs a vector.")
    return int(first.value_lengths()[0].as_py())


def _numbers(values: Any) -> Block:
    block: Block = values.to_numpy(zero_copy_only=False)
    return block


def _first_null(values: Any) -> int:
    return int(np.argmax(_numbers(values.is_null())))


def _is_parquet(path: str) -> bool:
    return head(path).startswith(b"PAR1")


def _parquet(path: str, n_columns: int = 1) -> Any:
    source = open_binary(path) if is_url(path) else path
    buffer = max(_LEAST_BUFFER, min(_BUFFER, _BUFFERS // n_columns))
    # pre_buffer would hold whole row groups, which are often the whole file
    options: dict[str, Any] = {"buffer_size": buffer, "pre_buffer": False}
    return format_library("pyarrow.parquet", path).ParquetFile(source, **options)


def _ipc(path: str, columns: list[int] | None = None) -> Any:
    """Open an IPC file, or a stream as ``datasets`` writes; of batches some columns are decoded.

    It is memory-mapped: a record batch can be the whole file, and mapped pages can be taken back
    by the system at any time, while a copy could not.
    """
    arrow, ipc = format_library("pyarrow", path), format_library("pyarrow.ipc", path)
    source = arrow.PythonFile(open_binary(path)) if is_url(path) else arrow.memory_map(path, "r")
    options = ipc.IpcReadOptions(included_fields=columns or [], use_threads=False)
    opened = ipc.open_file if head(path).startswith(b"ARROW1") else ipc.open_stream
    return opened(source, options=options)


def _record_batches(path: str, columns: list[int], first: int = 0) -> Iterator[Any]:
    reader = _ipc(path, columns)
    if not hasattr(reader, "num_record_batches"):  # a stream has no index: walk through it
        yield from islice(reader, first, None)
        return
    for number in range(first, reader.num_record_batches):
        yield reader.get_batch(number)


def _count(batch: Any) -> int:
    """Count the rows of a batch, whose length is a claim until it is validated."""
    batch.validate()
    rows = int(batch.num_rows)
    if rows < 0:
        raise ValueError(f"a record batch claims {rows} rows")
    return rows
