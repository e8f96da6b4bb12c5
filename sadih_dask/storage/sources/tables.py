"""Column files opened for forward reading: Parquet, Arrow IPC files (Feather) and IPC streams.

Arrow files are memory-mapped: a record batch can be the whole file, and mapped pages can be taken
back by the system at any time, while a copy could not. Compressed batches are decoded one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from sadih_dask.storage.sources.optional import require
from sadih_dask.storage.sources.places import head, is_url, open_binary

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
    parquet = require("pyarrow.parquet", path)
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
    ipc = require("pyarrow.ipc", path)
    return ipc.open_file(_mapped(path), options=_options(ipc, column))


def _ipc_stream(path: str, column: int | None = None) -> Any:
    ipc = require("pyarrow.ipc", path)
    return ipc.open_stream(_mapped(path), options=_options(ipc, column))


def _mapped(path: str) -> Any:
    arrow = require("pyarrow", path)
    return arrow.PythonFile(open_binary(path)) if is_url(path) else arrow.memory_map(path, "r")


def _options(ipc: Any, column: int | None) -> Any:
    fields = [] if column is None else [column]
    return ipc.IpcReadOptions(included_fields=fields, use_threads=False)
