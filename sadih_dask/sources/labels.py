"""Labels of a data set: class numbers, or multi-hot rows, from whatever form they come in.

====================  =================================================  ==================
form in the file      examples                                           read as
====================  =================================================  ==================
one value a row       integers, class names; (n,), (n, 1) or (1, n)      (m,) int64
a list a row          list column, HDF5 lists, text with ``separator``   (m, c) uint8
a matrix              (n, c) of 0/1 or -1/1, dense or sparse             (m, c) uint8
====================  =================================================  ==================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sadih_dask.errors import Argument, InputError, LabelError, Remedy
from sadih_dask.sources.classes import Classes, keys_of, number_in
from sadih_dask.sources.contract import (
    DEFAULT_MEMORY_LIMIT,
    Block,
    OpenOptions,
    Ragged,
    RaggedSource,
    RowSource,
    Source,
)
from sadih_dask.sources.features import Paths, expand, join
from sadih_dask.sources.formats import find, open_file
from sadih_dask.sources.text import texts_of

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

    def are_integers(self) -> bool:
        """Say whether labels are integers, and not names."""
        if isinstance(self.source, RowSource):
            return self.source.dtype.kind in "biuf"
        lists = (self.lists(*block).values for block in self.blocks())
        return not any(len(values) and values.dtype.kind in "UST" for values in lists)

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
                f"{self.source.locate(row)}: has no label",
                remedy=Remedy("Label it, or pass {}", Argument("unlabelled", "drop")),
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


MAX_CLASSES = 65_536


@dataclass(frozen=True)
class LabelSource(RowSource):
    """Normalised labels: (m,) int64 class numbers, or (m, n_classes) uint8 multi-hot blocks."""

    raw: RawLabels
    classes: Classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the name of each class number."""
        return self.classes.names

    @property
    def multi_label(self) -> bool:
        """Tell whether rows are multi-hot."""
        return bool(self.row_shape)

    def _read(self, start: int, stop: int) -> Block:
        if self.raw.form == "matrix":
            return self.raw.matrix(start, stop)
        if self.raw.form == "values":
            where = partial(self.raw.where, start)
            return self.classes.encode(keys_of(self.raw.values(start, stop), where), where)
        ragged = self.raw.lists(start, stop)
        rows = ragged.row_of_value
        where_value = partial(self.raw.where_listed, start, rows)
        numbers = self.classes.encode(keys_of(ragged.values, where_value), where_value)
        block = np.zeros((stop - start, len(self.class_names)), np.uint8)
        block[rows, numbers] = 1
        return block

    def locate(self, row: int) -> str:
        """Name the row in the label file."""
        return self.raw.source.locate(row)

    def files(self) -> tuple[str, ...]:
        """Return the label files."""
        return self.raw.source.files()


def open_labels(
    paths: Paths | Source,
    variable: str | None = None,
    *,
    class_names: Sequence[str] | None = None,
    n_rows: int | None = None,
    transpose: bool | None = None,
    separator: str | None = None,
    allow_unlabelled: bool = False,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
) -> LabelSource:
    """Open labels and check every one of them in a streaming pass over the labels alone.

    ``paths`` may be an open feature source: then the labels lie in the same files. With
    ``n_rows`` (that of the features) the count is checked, and a (c x n) matrix is recognised
    as transposed when only its last axis fits; ``transpose`` overrules. ``class_names`` fixes
    classes and order; integers are matched by name if any name is a number, else by position.
    ``separator`` splits text into label lists.
    """
    if isinstance(paths, Source):
        n_rows, paths = paths.n_rows if n_rows is None else n_rows, paths.files()
    source = _open_raw(expand(paths), variable, n_rows, transpose, memory_limit)
    if n_rows is not None and source.n_rows != n_rows:
        raise LabelError(
            f"{source.describe()}: has labels for {source.n_rows:,} rows, but the features have "
            f"{n_rows:,}. Check that both come from the same files."
        )
    raw = RawLabels(source, form_of(source, separator), separator, allow_unlabelled)
    names = None if class_names is None else Classes.given(class_names)
    classes = _matrix_classes(raw, names) if raw.form == "matrix" else names or _discover(raw)
    multi = raw.form != "values"
    row_shape = (len(classes.names),) if multi else ()
    dtype = np.dtype(np.uint8 if multi else np.int64)
    labels = LabelSource(source.origin, source.n_rows, row_shape, dtype, raw, classes)
    if names is not None and raw.form != "matrix":
        for start, stop in raw.blocks():
            labels.read(start, stop)
    return labels


def read_class_names(path: str | PathLike[str], variable: str | None = None) -> tuple[str, ...]:
    """Read class names in order: a text file, a MATLAB cell array, an .npy file of text."""
    (name,) = expand(path)
    source = open_file(name, variable, "labels", OpenOptions())
    if isinstance(source, RaggedSource) or source.dtype.kind not in "UST":
        raise InputError(f"{source.describe()}: class names must be text, one a row.")
    if source.n_rows > MAX_CLASSES:
        raise InputError(f"{source.describe()}: more than {MAX_CLASSES:,} classes.")
    block = source.read(0, source.n_rows).ravel()
    return Classes.given(texts_of(block, source.locate)).names


def _open_raw(
    names: tuple[str, ...],
    variable: str | None,
    n_rows: int | None,
    transpose: bool | None,
    memory_limit: int,
) -> RowSource | RaggedSource:
    alone = n_rows if len(names) == 1 else None
    options = OpenOptions(memory_limit=memory_limit, n_rows=alone, as_lists=True)
    found = [find(name, variable, "labels", options) for name in names]
    if transpose is None:
        transpose = rows_last([chosen.shape for _, chosen in found], n_rows)
    options = OpenOptions(transpose, memory_limit, alone, as_lists=True)
    opened = zip(names, found, strict=True)
    return join([form.open_variable(name, chosen, options) for name, (form, chosen) in opened])


def _matrix_classes(raw: RawLabels, names: Classes | None) -> Classes:
    assert isinstance(raw.source, RowSource)  # noqa: S101 (that is what form "matrix" means)
    width = raw.source.width
    if names is not None and len(names.names) != width:
        raise LabelError(
            f"{raw.source.describe()}: has {width} label columns, but {len(names.names)} names "
            "of classes are given. Give one name for each column."
        )
    has_zero = has_minus = False
    for start, stop in raw.blocks():
        block = raw.signs(start, stop)
        has_zero |= bool((block == 0).any())
        has_minus |= bool((block < 0).any())
        if has_zero and has_minus:
            raise LabelError(
                f"{raw.source.locate(start)} to row {stop - 1}: the matrix mixes 0 and -1, so it "
                "is not clear which means absent. Replace one of them."
            )
    return names or Classes(tuple(map(str, range(width))))


def _discover(raw: RawLabels) -> Classes:
    """Find the distinct labels in one pass."""
    names: set[str] = set()
    for start, stop in raw.blocks():
        names |= set(_names(raw, start, stop))
        if len(names) > MAX_CLASSES:
            raise LabelError(
                f"{raw.source.locate(stop - 1)}: more than {MAX_CLASSES:,} different labels so "
                "far. This looks like an id or a measurement; choose the variable with labels."
            )
    if not names:
        raise LabelError(f"{raw.source.describe()}: holds no label at all.")
    classes = Classes.discovered(names)
    lowest = classes.names[0]
    if (number_in(lowest) or 0) < 0 and names != {"-1", "1"}:
        _refuse_negative(raw, lowest)
    return classes


def _names(raw: RawLabels, start: int, stop: int) -> list[str]:
    """Return the distinct label names of a row range."""
    if raw.form == "values":
        keys = keys_of(raw.values(start, stop), partial(raw.where, start))
    else:
        ragged = raw.lists(start, stop)
        keys = keys_of(ragged.values, partial(raw.where_listed, start, ragged.row_of_value))
    return keys if isinstance(keys, list) else list(map(str, np.unique(keys).tolist()))


def _refuse_negative(raw: RawLabels, lowest: str) -> None:
    """Find the first row of a negative label: most files mean "unlabelled" by it."""
    for start, stop in raw.blocks():
        for row in range(start, stop) if lowest in _names(raw, start, stop) else ():
            if lowest in _names(raw, row, row + 1):
                raise LabelError(
                    f"{raw.source.locate(row)}: the label is {lowest}. Negative labels usually "
                    "mean unlabelled",
                    remedy=Remedy(
                        "Drop these rows, or list the class in {}", Argument("class_names")
                    ),
                )
