"""Labels as files have them: a value, a list or a multi-hot row for each row of features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sadih_dask.errors import LabelError
from sadih_dask.storage.sources.contract import Block, Ragged, RaggedSource, RowSource
from sadih_dask.storage.sources.texts import texts_of

Form = Literal["values", "lists", "matrix"]

_BLOCK_ROWS = 65_536
_BLOCK_CELLS = 2**20


@dataclass(frozen=True)
class RawLabels:
    """Labels as the file has them, and how they are to be understood."""

    source: RowSource | RaggedSource
    form: Form
    separator: str | None
    allow_unlabelled: bool

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield row ranges whose memory is bounded whatever the width."""
        width = self.source.width if isinstance(self.source, RowSource) else 1
        step = max(1, min(_BLOCK_ROWS, _BLOCK_CELLS // max(width, 1)))
        for start in range(0, self.source.n_rows, step):
            yield start, min(start + step, self.source.n_rows)

    def lists(self, start: int, stop: int) -> Ragged:
        """Read label lists, splitting text if that is what they are; refuse empty ones."""
        if isinstance(self.source, RaggedSource):
            ragged = self.source.read(start, stop)
        else:
            ragged = self._split(self.source.read(start, stop), start)
        self._check_labelled(np.diff(ragged.offsets) > 0, start)
        return ragged

    def matrix(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Read multi-hot rows, as 0 and 1."""
        return (self.signs(start, stop) > 0).astype(np.uint8)

    def signs(self, start: int, stop: int) -> Block:
        """Read multi-hot rows as they are; refuse values but 0/1 or -1/1, and empty rows."""
        block = self._rows(start, stop)
        wrong = ~np.isin(block, (-1, 0, 1))
        if wrong.any():
            row, column = (int(i) for i in np.argwhere(wrong)[0])
            raise LabelError(
                f"{self.source.locate(start + row)}, column {column}: is {block[row, column]}, "
                "but a label matrix holds 0 and 1, or -1 and 1. Choose the variable with labels."
            )
        self._check_labelled(np.any(block > 0, axis=1), start)
        return block

    def values(self, start: int, stop: int) -> Block:
        """Read one label a row."""
        return self._rows(start, stop).reshape(stop - start)

    def where(self, start: int, position: int) -> str:
        """Name the row of the ``position``-th value after ``start``."""
        return self.source.locate(start + position)

    def where_listed(self, start: int, rows: NDArray[np.int64], position: int) -> str:
        """Name the row of a list value; ``rows`` is ``Ragged.row_of_value``."""
        return self.where(start, int(rows[position]) if len(rows) else 0)

    def _rows(self, start: int, stop: int) -> Block:
        assert isinstance(self.source, RowSource)  # noqa: S101 (lists are read by lists())
        return self.source.read(start, stop)

    def _split(self, block: Block, start: int) -> Ragged:
        pieces = [
            [piece for raw in text.split(self.separator) if (piece := raw.strip())]
            for text in texts_of(block.ravel(), partial(self.where, start))
        ]
        flat = [piece for labels in pieces for piece in labels]
        offsets = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
        return Ragged(np.array(flat, dtype=np.dtypes.StringDType()), offsets)

    def _check_labelled(self, labelled: NDArray[np.bool_], start: int) -> None:
        if not self.allow_unlabelled and not labelled.all():
            row = start + int(labelled.argmin())
            raise LabelError(
                f"{self.source.locate(row)}: has no label. Drop the row, or pass "
                "allow_unlabelled=True to keep rows that are similar to no other."
            )


def rows_last(shapes: list[tuple[int, ...]], n_rows: int | None) -> bool:
    """Decide the row axis of label shapes: the first, unless only the last one fits.

    >>> rows_last([(983, 16105)], 16105), rows_last([(983, 16105)], None)
    (True, False)
    >>> rows_last([(1, 50)], None), rows_last([(50, 50)], 50)
    (True, False)
    """
    if any(len(shape) != 2 for shape in shapes):
        return False
    first, last = (sum(shape[axis] for shape in shapes) for axis in (0, 1))
    if n_rows is None:
        return all(shape[0] == 1 < shape[1] for shape in shapes)
    return first != n_rows and last == n_rows


def form_of(source: RowSource | RaggedSource, separator: str | None) -> Form:
    """Tell the form of labels by shape and type."""
    if isinstance(source, RaggedSource):
        return "lists"
    text = source.dtype.kind in "UST"
    if source.width == 1 and len(source.row_shape) <= 1:
        return "lists" if text and separator else "values"
    if text or len(source.row_shape) != 1:
        raise LabelError(
            f"{source.describe()}: cannot be labels. Expected one label a row, a list a row, "
            "or a matrix with one column a class."
        )
    return "matrix"
