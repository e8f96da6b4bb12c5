"""How the numbers of an array lie in a file, and how rows are made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy import ascontiguousarray, moveaxis

from sadih_dask.storage.sources.contract import Block


@dataclass(frozen=True)
class Layout:
    """The shape and order of an array in a file, and the axis that holds the rows.

    ``fortran`` is column-major order; ``rows_last`` says that the last axis holds the rows.
    A transposed C array is a Fortran array, so two booleans cover every case:

    >>> Layout((2, 3), fortran=False, rows_last=True).contiguous
    False
    >>> Layout((2, 3), fortran=True, rows_last=True).contiguous
    True
    """

    shape: tuple[int, ...]
    fortran: bool = False
    rows_last: bool = False

    @property
    def n_rows(self) -> int:
        """Count the rows."""
        return self.shape[-1] if self.rows_last else self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of one row."""
        return self.shape[:-1] if self.rows_last else self.shape[1:]

    @property
    def rows_first(self) -> tuple[int, ...]:
        """Return the shape as it is read: rows first."""
        return (self.n_rows, *self.row_shape) if self.shape else ()

    @property
    def width(self) -> int:
        """Count the numbers in a row."""
        return math.prod(self.row_shape)

    @property
    def contiguous(self) -> bool:
        """Tell whether the numbers of a row lie together, so that a row range is one piece."""
        return self.fortran == self.rows_last or len(self.shape) == 1

    def arrange(self, flat: Block, n_rows: int) -> Block:
        """Turn numbers in file order into rows, (n_rows, *row_shape).

        When rows are not contiguous, ``flat`` is the row range of each column in turn.
        """
        inner = self.row_shape[::-1] if self.fortran else self.row_shape
        if self.contiguous:
            rows = flat.reshape(n_rows, *inner)
        else:
            rows = moveaxis(flat.reshape(*inner, n_rows), -1, 0)
        if self.fortran:
            rows = rows.transpose(0, *range(rows.ndim - 1, 0, -1))
        return ascontiguousarray(rows)
