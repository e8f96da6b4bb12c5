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
from dataclasses import dataclass, replace
from itertools import chain
from os import PathLike
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sadih_dask.errors import Advice, Argument, InputError, LabelError, Remedy
from sadih_dask.learning.classes import Vocabulary
from sadih_dask.sources.classes import Classes, Keys, keys_of, number_in
from sadih_dask.sources.contract import DEFAULT_MEMORY_LIMIT, TEXT, Block, OpenOptions, RowSource
from sadih_dask.sources.features import (
    Paths,
    View,
    check_pairs,
    expand,
    join,
    parts_of,
    rows_of_one,
)
from sadih_dask.sources.formats import find, open_file
from sadih_dask.sources.text import Where, texts_of

Form = Literal["values", "lists", "matrix"]

MAX_CLASSES = 65_536
_BLOCK_ROWS = 65_536
_BLOCK_CELLS = 2**20


@dataclass(frozen=True)
class LabelSource(View):
    """Normalised labels: (m,) int64 class numbers, or (m, n_classes) uint8 multi-hot blocks."""

    form: Form
    separator: str | None
    allow_unlabelled: bool
    classes: Classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the name of each class number."""
        return self.classes.names

    @property
    def multi_label(self) -> bool:
        """Tell whether rows are multi-hot."""
        return self.form != "values"

    def numbered(self, classes: Classes) -> LabelSource:
        """Return the same labels under the numbers of these classes."""
        row_shape = (len(classes.names),) if self.multi_label else ()
        return replace(self, classes=classes, row_shape=row_shape)

    def _read(self, start: int, stop: int) -> Block:
        if self.form == "matrix":
            return (self.signs(start, stop) > 0).astype(np.uint8)
        keys, rows, where = self.keys(start, stop)
        numbers = self.classes.encode(keys, where)
        if not self.multi_label:
            return numbers
        block = np.zeros((stop - start, len(self.class_names)), np.uint8)
        block[rows, numbers] = 1
        return block

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield row ranges whose memory is bounded whatever the width."""
        step = max(1, min(_BLOCK_ROWS, _BLOCK_CELLS // max(self.inner.width, 1)))
        for start in range(0, self.n_rows, step):
            yield start, min(start + step, self.n_rows)

    def keys(self, start: int, stop: int) -> tuple[Keys, NDArray[np.int64], Where]:
        """Read the labels of rows as integers or names; return the row of each, and how to name it.

        Lists come one after the other, text split into them if that is what it is.
        """
        block, rows = self.inner.read(start, stop), np.arange(stop - start)

        def where(position: int) -> str:
            return self.locate(start + (int(rows[position]) if len(rows) else 0))

        if self.form == "lists":
            lists = block.tolist() if self.inner.holds_lists else self._split(block, where)
            lengths = np.array([len(labels) for labels in lists], np.int64)
            self._check_labelled(lengths > 0, start)
            rows, flat = np.repeat(rows, lengths), [*chain.from_iterable(lists)]
            text = bool(flat) and isinstance(flat[0], str)
            block = np.array(flat, TEXT if text else None) if flat else np.empty(0, np.int64)
        return keys_of(block.reshape(len(rows)), where), rows, where

    def signs(self, start: int, stop: int) -> Block:
        """Read multi-hot rows as they are; refuse values but 0/1 or -1/1, and empty rows."""
        block = self.inner.read(start, stop)
        wrong = ~np.isin(block, (-1, 0, 1))
        if wrong.any():
            row, column = (int(i) for i in np.argwhere(wrong)[0])
            raise LabelError(
                f"{self.locate(start + row)}, column {column}: is {block[row, column]}, "
                "but a label matrix holds 0 and 1, or -1 and 1. Choose the variable with labels."
            )
        self._check_labelled(np.any(block > 0, axis=1), start)
        return block

    def are_integers(self) -> bool:
        """Say whether labels are integers, and not names."""
        if not self.inner.holds_lists:
            return not self.inner.holds_text
        return not any(isinstance(self.keys(*block)[0], list) for block in self.blocks())

    def _split(self, block: Block, where: Where) -> list[list[str]]:
        return [
            [piece for raw in text.split(self.separator) if (piece := raw.strip())]
            for text in texts_of(block.ravel(), where)
        ]

    def _check_labelled(self, labelled: NDArray[np.bool_], start: int) -> None:
        if not self.allow_unlabelled and not labelled.all():
            raise LabelError(
                f"{self.locate(start + int(labelled.argmin()))}: has no label",
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


def form_of(source: RowSource, separator: str | None) -> Form:
    """Tell the form of labels by shape and type."""
    if source.width == 1 and len(source.row_shape) <= 1:
        return "lists" if source.holds_lists or (source.holds_text and separator) else "values"
    if source.holds_text or len(source.row_shape) != 1:
        raise LabelError(
            f"{source.describe()}: cannot be labels. Expected one label a row, a list a row, "
            "or a matrix with one column a class."
        )
    return "matrix"


def open_labels(
    paths: Paths | RowSource,
    variable: str | None = None,
    *,
    class_names: Sequence[str] | None = None,
    n_rows: int | None = None,
    features: RowSource | None = None,
    separator: str | None = None,
    allow_unlabelled: bool = False,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
) -> LabelSource:
    """Open labels and check every one of them in a streaming pass over the labels alone.

    ``paths`` may be an open feature source: then the labels lie in the same files. With
    ``features``, or ``n_rows`` of them, the count is checked, of shards pair by pair, and a (c x n)
    matrix is recognised as transposed when only its last axis fits. ``class_names`` fixes classes
    and order, by default those that the files name; integers are matched by name if any name is a
    number, else by position. ``separator`` splits text into label lists.
    """
    if isinstance(paths, RowSource):
        features, paths = paths, paths.files()
    if features is not None:
        n_rows = features.n_rows
    source = _open_raw(expand(paths), variable, n_rows, memory_limit)
    check_pairs(source, features, "labels")
    if n_rows is not None and source.n_rows != n_rows:
        raise LabelError(
            f"{source.describe()}: has labels for {source.n_rows:,} rows, but the features have "
            f"{n_rows:,}. Check that both come from the same files."
        )
    form = form_of(source, separator)
    dtype = np.dtype(np.int64 if form == "values" else np.uint8)
    rows = (source.origin, source.n_rows, (), dtype, source)
    labels = LabelSource(*rows, form, separator, allow_unlabelled, Classes(()))
    if form == "matrix":
        return labels.numbered(_matrix_classes(labels, class_names))
    if class_names is None:
        class_names = _named_in_files(source)
    if class_names is None:
        return labels.numbered(_discover(labels))
    labels = labels.numbered(Classes.given(class_names))
    for start, stop in labels.blocks():
        labels.read(start, stop)
    return labels


def _named_in_files(source: RowSource) -> tuple[str, ...] | None:
    """Return the classes that the files themselves name, if all of them name the same."""
    parts = parts_of(source)
    found = {part.named_classes for part in parts}
    if len(found) > 1:
        raise LabelError(
            f"{parts[0].origin} and {len(parts) - 1} more files do not name the same classes",
            remedy=Remedy("Ingest them apart, or give all names with {}", Argument("class_names")),
        )
    return found.pop() or None


def advice(labels: LabelSource, n_rows: int) -> Iterator[Advice]:
    """Say what of the labels is probably not meant as it is."""
    names = labels.class_names
    if not labels.multi_label and (mark := Vocabulary(np.array(names, str)).separator()):
        shown = next(name for name in names if mark in name)
        yield Advice(
            f"{labels.origin}: some of the {len(names):,} classes are several tags with {mark!r} "
            f"between them, such as {shown!r}, and rows are only similar if they have all of them "
            "in common",
            remedy=Remedy("For several labels a row pass {}", Argument("separator", mark)),
        )
    if len(names) == 1:
        yield Advice(
            f"{labels.origin}: all rows have the same label, {names[0]!r}; codes are learned from "
            "what tells classes apart, so nothing can be learned from them alone"
        )
    elif 1 < n_rows <= len(names) and not labels.multi_label:
        yield Advice(
            f"{labels.origin}: {len(names):,} classes for {n_rows:,} rows, hardly two rows are "
            "similar. They look like ids; choose the variable with labels",
            remedy=Remedy("Name it with {}", Argument("labels_variable")),
        )


def read_class_names(path: str | PathLike[str], variable: str | None = None) -> tuple[str, ...]:
    """Read class names in order: a text file, a MATLAB cell array, an .npy file of text."""
    (name,) = expand(path)
    source = open_file(name, variable, "labels", OpenOptions())
    if not source.holds_text:
        raise InputError(f"{source.describe()}: class names must be text, one a row.")
    if source.n_rows > MAX_CLASSES:
        raise InputError(f"{source.describe()}: more than {MAX_CLASSES:,} classes.")
    block = source.read(0, source.n_rows).ravel()
    return Classes.given(texts_of(block, source.locate)).names


def _open_raw(
    names: tuple[str, ...],
    variable: str | None,
    n_rows: int | None,
    memory_limit: int,
) -> RowSource:
    alone = rows_of_one(names, n_rows)
    options = OpenOptions(memory_limit=memory_limit, n_rows=alone, as_lists=True)
    found = [find(name, variable, "labels", options) for name in names]
    last = rows_last([chosen.shape for _, chosen in found], n_rows)
    options = replace(options, rows_last=last)
    opened = zip(names, found, strict=True)
    return join([form.open_variable(name, chosen, options) for name, (form, chosen) in opened])


def _matrix_classes(labels: LabelSource, class_names: Sequence[str] | None) -> Classes:
    width = labels.inner.width
    names = Classes(tuple(map(str, range(width))))
    if class_names is not None:
        names = Classes.given(class_names)
    if len(names.names) != width:
        raise LabelError(
            f"{labels.inner.describe()}: has {width} label columns, but {len(names.names)} names "
            "of classes are given. Give one name for each column."
        )
    has_zero = has_minus = False
    for start, stop in labels.blocks():
        block = labels.signs(start, stop)
        has_zero |= bool((block == 0).any())
        has_minus |= bool((block < 0).any())
        if has_zero and has_minus:
            raise LabelError(
                f"{labels.locate(start)} to row {stop - 1}: the matrix mixes 0 and -1, so it "
                "is not clear which means absent. Replace one of them."
            )
    return names


def _discover(labels: LabelSource) -> Classes:
    """Find the distinct labels in one pass."""
    names: set[str] = set()
    for start, stop in labels.blocks():
        keys, _, _ = labels.keys(start, stop)
        names |= set(keys if isinstance(keys, list) else map(str, np.unique(keys).tolist()))
        if len(names) > MAX_CLASSES:
            raise LabelError(
                f"{labels.locate(stop - 1)}: more than {MAX_CLASSES:,} different labels so "
                "far. This looks like an id or a measurement; choose the variable with labels."
            )
    if not names:
        raise LabelError(f"{labels.inner.describe()}: holds no label at all.")
    classes = Classes.discovered(names)
    lowest = classes.names[0]
    if (number_in(lowest) or 0) < 0 and names != {"-1", "1"}:
        _refuse_negative(labels, lowest)
    return classes


def _refuse_negative(labels: LabelSource, lowest: str) -> None:
    """Find the first row of a negative label: most files mean "unlabelled" by it."""
    for start, stop in labels.blocks():
        keys, _, where = labels.keys(start, stop)
        names = list(map(str, keys))
        if lowest in names:
            raise LabelError(
                f"{where(names.index(lowest))}: the label is {lowest}. Negative labels usually "
                "mean unlabelled",
                remedy=Remedy("Drop these rows, or list the class in {}", Argument("class_names")),
            )
