"""Text files: CSV, TSV, or one value a line; plain or inside gzip.

A value is text here; class discovery treats ``"3"`` and 3 alike. Cells are read row by row, with
a limit on the length of a line, so a file without line ends cannot fill the memory. Features, a
column each, are decoded by Arrow, as 64-bit numbers.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from sadih_dask.errors import FormatError, InputError, LabelError
from sadih_dask.files.filesystem import Status, status
from sadih_dask.sources.arrays import open_bytes
from sadih_dask.sources.arrow import BatchedSource, WideSource
from sadih_dask.sources.contract import (
    TEXT,
    Batches,
    Block,
    OpenOptions,
    Origin,
    RowSource,
    Variable,
    check_rows,
    format_library,
    reading,
)

Where = Callable[[int], str]
"""Names the row of a value of a block, for a message."""


def texts_of(block: Block, where: Where) -> list[str]:
    """Return text without surrounding blanks; bytes must be UTF-8."""
    if block.dtype.kind != "S":
        return [str(text).strip() for text in block.tolist()]
    texts = []
    for position, raw in enumerate(block.tolist()):
        try:
            texts.append(raw.decode("utf-8").strip())
        except UnicodeDecodeError as error:
            raise FormatError(
                f"{where(position)}: the text {raw[:20]!r} is not UTF-8. "
                "Save it as text in that encoding."
            ) from error
    return texts


SUFFIXES = (".csv", ".tsv", ".txt")
_MAX_LINE = 2**20
_BATCH_ROWS = 4096
_BATCH_BYTES = 2**22


@dataclass(frozen=True)
class TextShape:
    """How a text file is to be read; an empty delimiter means one value a line."""

    delimiter: str
    has_header: bool
    columns: tuple[str, ...]
    n_rows: int


@dataclass(frozen=True)
class TextColumn(BatchedSource):
    """One column of a text file."""

    def _read(self, start: int, stop: int) -> Block:
        return np.array([*chain.from_iterable(self.batches.read(start, stop))], dtype=TEXT)


def list_variables(path: str, options: OpenOptions) -> tuple[Variable, ...]:
    """List the columns by header, or by number if there is no header."""
    shape = examine(path, options.n_rows)
    return tuple(Variable(name, (shape.n_rows,), "text", "text") for name in shape.columns)


def open_variable(path: str, variable: Variable, options: OpenOptions) -> RowSource:
    """Open one column, or one for each feature."""
    shape = examine(path, options.n_rows)
    if variable.columns:
        return _open_numbers(path, shape, variable)
    origin = Origin(path, variable.name if len(shape.columns) > 1 else None)
    check_rows(origin, (shape.n_rows,), TEXT)
    column = shape.columns.index(variable.name)
    batches = Batches(partial(_batches, path, shape, column))
    return TextColumn(origin, shape.n_rows, (), TEXT, batches, (0,))


def _open_numbers(path: str, shape: TextShape, variable: Variable) -> RowSource:
    names, origin = variable.columns, Origin(path, variable.name)
    if not shape.delimiter:
        raise InputError(
            f"{path}: a .txt file has one value a line, and features have several. Save it as "
            ".csv, or as an array: np.save(name, np.loadtxt(path))."
        )
    batches = Batches(partial(_number_batches, path, shape, names))
    check_rows(origin, (shape.n_rows, len(names)), np.dtype(np.float64))
    dtype = np.dtype(np.float64)
    return WideSource(origin, shape.n_rows, (len(names),), dtype, batches, (0,), names)


def _number_batches(
    path: str,
    shape: TextShape,
    names: tuple[str, ...],
    row: int,  # noqa: ARG001 (a text file has no index to start later)
) -> Iterator[tuple[int, Any]]:
    pa, arrow_csv = format_library("pyarrow", path), format_library("pyarrow.csv", path)
    options = {
        "read_options": arrow_csv.ReadOptions(
            use_threads=False,
            block_size=_BATCH_BYTES,
            column_names=list(shape.columns),
            skip_rows_after_names=int(shape.has_header),
        ),
        "parse_options": arrow_csv.ParseOptions(delimiter=shape.delimiter, newlines_in_values=True),
        "convert_options": arrow_csv.ConvertOptions(
            include_columns=list(names), column_types=dict.fromkeys(names, pa.float64())
        ),
    }
    first = 0
    with open_bytes(path) as raw:
        try:
            for batch in arrow_csv.open_csv(raw, **options):
                yield first, batch
                first += batch.num_rows
        except pa.ArrowInvalid as error:
            said = re.sub(  # Arrow counts columns of the file
                r"CSV column #(\d+)",
                lambda found: f"column {shape.columns[int(found[1])]!r}",
                f"{error}",
            )
            raise InputError(
                f"{path}: after row {first}: {said}. Features must be numbers, as many in each "
                "line as the first one has; mend it, or name other columns."
            ) from error


def examine(path: str, n_rows: int | None) -> TextShape:
    """Say how to read a file; counting its rows is one pass, remembered while it is unchanged."""
    with reading(path):
        return _examine(path, n_rows, status(path))


@lru_cache(maxsize=64)
def _examine(path: str, n_rows: int | None, state: Status) -> TextShape:  # noqa: ARG001
    """Count the rows and decide whether the first line is a header.

    With ``n_rows`` known, the count decides. Otherwise the first line is a header if it has no
    number in it and the second line has one, or if it holds a usual name such as ``label``.
    """
    with reading(path):
        delimiter = _delimiter(path)
        first: list[str] = []
        second: list[str] = []
        count = 0
        for cells in _records(path, delimiter):
            first, second = (cells, second) if count == 0 else (first, second or cells)
            count += 1
        first = [cell.strip() for cell in first]
    if count == n_rows:
        has_header = False
    elif n_rows is not None and count == n_rows + 1:
        has_header = True
    else:
        has_header = _looks_like_header(first, second)
    columns = first if has_header else [str(i) for i in range(len(first))]
    if len(set(columns)) < len(columns):
        raise FormatError(f"{path}: two columns of its header have the same name: {columns}.")
    return TextShape(delimiter, has_header, tuple(columns), count - has_header)


def _looks_like_header(first: list[str], second: list[str]) -> bool:
    if any(_is_number(cell) for cell in first):
        return False
    usual = {"label", "labels", "class", "target", "tags", "category", "id"}
    return any(map(_is_number, second)) or any(cell.lower() in usual for cell in first)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _delimiter(path: str) -> str:
    suffixes = Path(path).suffixes
    if ".txt" in suffixes:
        return ""
    if ".tsv" in suffixes:
        return "\t"
    line = next(_lines(path), "")
    found = max(",;\t|", key=line.count)
    return found if found in line else ","


def _batches(path: str, shape: TextShape, column: int, row: int) -> Iterator[tuple[int, list[str]]]:  # noqa: ARG001
    """Yield cells of one column from the beginning; a text file has no index to start later."""
    first, batch = 0, list[str]()
    records = _records(path, shape.delimiter)
    if shape.has_header:
        next(records, None)
    for number, cells in enumerate(records):
        if len(cells) != len(shape.columns):
            raise LabelError(
                f"{path} row {number}: has {len(cells)} cells, expected {len(shape.columns)} "
                f"({', '.join(shape.columns)}). Mend the line, or quote cells that hold "
                f"{shape.delimiter!r}."
            )
        batch.append(cells[column].strip())
        if len(batch) == _BATCH_ROWS:
            yield first, batch
            first, batch = first + len(batch), []
    if batch:
        yield first, batch


def _records(path: str, delimiter: str) -> Iterator[list[str]]:
    """Yield the cells of each record; empty lines count unless they end the file."""
    if delimiter:
        records: Iterator[list[str]] = csv.reader(_lines(path), delimiter=delimiter, strict=True)
    else:
        records = ([line.rstrip("\r\n")] for line in _lines(path))
    empty = 0
    try:
        for cells in records:
            if len(cells) <= 1 and not any(map(str.strip, cells)):
                empty += 1
                continue
            for _ in range(empty):
                yield [""]
            empty = 0
            yield cells
    except csv.Error as error:
        raise FormatError(f"{path}: is not a CSV file ({error}). Export it again.") from error


def _lines(path: str) -> Iterator[str]:
    with open_bytes(path) as raw, TextIOWrapper(raw, "utf-8-sig", newline="") as stream:
        number = 0
        while line := stream.readline(_MAX_LINE):
            if len(line) == _MAX_LINE and not line.endswith("\n"):
                raise FormatError(
                    f"{path} line {number}: is longer than {_MAX_LINE:,} characters. "
                    "It does not look like a file of labels."
                )
            yield line
            number += 1
