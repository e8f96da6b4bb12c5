"""Class names and the numbers they get.

Every label has a name: an integer's name is its digits, so ``3`` in one file and ``"3"`` in
another are the same class. Classes are numbered in the order of their names (integers by value).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sadih_dask.errors import Argument, DtypeError, InputError, LabelError, Remedy
from sadih_dask.sources.contract import Block
from sadih_dask.sources.text import Where, texts_of

Keys: TypeAlias = NDArray[np.int64] | list[str]

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


def keys_of(block: Block, where: Where) -> Keys:
    """Return labels as integers or as non-empty text; refuse what is neither."""
    kind = block.dtype.kind
    if kind in "UST":
        return _text_keys(block, where)
    if kind not in "biuf":
        raise DtypeError(
            f"{where(0)}: labels of type {block.dtype} cannot be classes. "
            "Expected integers, class names, lists of them, or a 0/1 matrix."
        )
    if kind == "f":
        _refuse(np.isnan(block), block, where, "is missing (NaN). Drop the row or label it")
    wrong = block.astype(np.float64) > 2**62 if kind in "uf" else np.zeros(block.shape, bool)
    if kind == "f":
        wrong |= (block != np.floor(block)) | (block < -(2.0**62))
    _refuse(wrong, block, where, "is not a class number. Expected an integer or a class name")
    return block.astype(np.int64)


def _refuse(bad: NDArray[np.bool_], block: Block, where: Where, problem: str) -> None:
    if bad.any():
        at = int(bad.argmax())
        raise LabelError(f"{where(at)}: the label {block[at]} {problem}.")


def _text_keys(block: Block, where: Where) -> list[str]:
    texts = texts_of(block, where)
    if "" in texts:
        raise LabelError(
            f"{where(texts.index(''))}: the label is missing (empty text). "
            "Drop the row or label it."
        )
    return texts


@dataclass(frozen=True)
class Classes:
    """The classes of a data set, in order."""

    names: tuple[str, ...]

    @classmethod
    def discovered(cls, names: set[str]) -> Classes:
        """Order the names found in the labels: integers by value, otherwise alphabetically."""
        if all(map(_INTEGER.fullmatch, names)):
            return cls(tuple(sorted(names, key=int)))
        return cls(tuple(sorted(names)))

    @classmethod
    def given(cls, names: Sequence[str]) -> Classes:
        """Take names in the caller's order; they must differ."""
        texts = tuple(str(name).strip() for name in names)
        for name, count in Counter(texts).items():
            if not name or count > 1:
                raise InputError(
                    f"names of classes: {name!r} is empty or given twice. Each needs one name."
                )
        if not texts:
            raise InputError(
                "there are no names of classes",
                remedy=Remedy("Leave out {} to discover the classes", Argument("class_names")),
            )
        return cls(texts)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def _values(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Sorted integer names and their class numbers; None if the names are not integers."""
        if not all(map(_INTEGER.fullmatch, self.names)):
            return None
        values = np.array([int(name) for name in self.names], dtype=np.int64)
        order = np.argsort(values)
        return values[order], order.astype(np.int64)

    def encode(self, keys: Keys, where: Where) -> NDArray[np.int64]:
        """Return class numbers.

        Integers are matched by name when all names are integers; otherwise they are the class
        numbers themselves (0 is the first name).
        """
        if isinstance(keys, list):
            found = np.array([self._numbers.get(key, -1) for key in keys], dtype=np.int64)
        elif self._values is None:
            found = np.where((keys >= 0) & (keys < len(self.names)), keys, -1)
        else:
            values, numbers = self._values
            at = np.minimum(np.searchsorted(values, keys), len(values) - 1)
            found = np.where(values[at] == keys, numbers[at], -1)
        if (found < 0).any():
            at_key = int((found < 0).argmax())
            raise LabelError(
                f"{where(at_key)}: the label {keys[at_key]!s} is none of the "
                f"{len(self.names)} classes ({_sample(self.names)})",
                remedy=Remedy("Add it to {} or mend the label", Argument("class_names")),
            )
        return found


def _sample(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown}, ..."
