"""Class names and the numbers they get.

Every label has a name: an integer's name is its digits, so ``3`` in one file and ``"3"`` in
another are the same class. Classes are numbered in the order of their names, or by value if all of
them are numbers.

Integers beside names are read by one rule: if any class has a number as its name, an integer is the
class of that number, however it is written (``1`` is ``"01"`` where there is no ``"1"``); if none
has, it is the number of a class, from 0.
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

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_LARGEST = 2**63 - 1


def number_in(name: str) -> int | None:
    """Return the number that a class name is, if it is one that an integer label can be.

    >>> number_in("07"), number_in("-1"), number_in("7a"), number_in("9999999999999999999")
    (7, -1, None, None)
    """
    if not _NUMBER.fullmatch(name) or abs(int(name)) > _LARGEST:
        return None
    return int(name)


def keys_of(block: Block, where: Where) -> Keys:
    """Return labels as integers or as non-empty text; refuse what is neither."""
    kind = block.dtype.kind
    if kind in "UST":
        texts = texts_of(block, where)
        if "" in texts:
            raise LabelError(
                f"{where(texts.index(''))}: the label is missing (empty text). "
                "Drop the row or label it."
            )
        return texts
    if kind not in "biuf":
        raise DtypeError(
            f"{where(0)}: labels of type {block.dtype} cannot be classes. "
            "Expected integers, class names, lists of them, or a 0/1 matrix."
        )
    if kind == "f":
        _refuse(np.isnan(block), block, where, "is missing (NaN). Drop the row or label it")
        wrong = (block != np.floor(block)) | (np.abs(block) > 2.0**53)
        _refuse(wrong, block, where, "is not a class number. Expected an integer or a class name")
    elif kind == "u":
        _refuse(block > _LARGEST, block, where, "does not fit into 63 bits. Write it as text")
    return block.astype(np.int64)


def _refuse(bad: NDArray[np.bool_], block: Block, where: Where, problem: str) -> None:
    if bad.any():
        at = int(bad.argmax())
        raise LabelError(f"{where(at)}: the label {block[at]} {problem}.")


@dataclass(frozen=True)
class Classes:
    """The classes of a data set, in order."""

    names: tuple[str, ...]

    @classmethod
    def discovered(cls, names: set[str]) -> Classes:
        """Order the names found in the labels: numbers by value, otherwise alphabetically."""
        numbers = {name: number for name in names if (number := number_in(name)) is not None}
        by_value = len(numbers) == len(names)
        return cls(tuple(sorted(names, key=lambda name: (numbers[name] if by_value else 0, name))))

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
    def _values(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers that are names, ascending, and their class numbers; the plain spelling first."""
        plain_first = sorted(self._numbers, key=lambda name: name != str(number_in(name)))
        named: dict[int, str] = {}
        for name in plain_first:
            number = number_in(name)
            if number is None:
                continue
            taken = named.setdefault(number, name)
            if taken not in (name, str(number)):
                raise LabelError(
                    f"the classes {taken!r} and {name!r} are the same number, so labels that are "
                    "integers cannot be told apart. Give the labels as text."
                )
        values = np.array(sorted(named), dtype=np.int64)
        classes = [self._numbers[named[value]] for value in sorted(named)]
        return values, np.array(classes, dtype=np.int64)

    def has_number(self, number: int) -> bool:
        """Say whether an integer label is one of these classes."""
        values, _ = self._values
        return number in values if len(values) else 0 <= number < len(self.names)

    def encode(self, keys: Keys, where: Where) -> NDArray[np.int64]:
        """Return class numbers, of integers by the rule above."""
        if isinstance(keys, list):
            found = np.array([self._numbers.get(key, -1) for key in keys], dtype=np.int64)
        elif len(self._values[0]):
            values, numbers = self._values
            at = np.minimum(np.searchsorted(values, keys), len(values) - 1)
            found = np.where(values[at] == keys, numbers[at], -1)
        else:
            found = np.where((keys >= 0) & (keys < len(self.names)), keys, -1)
        if (found < 0).any():
            at_key = int((found < 0).argmax())
            sample = ", ".join([*self.names[:5], *["..."] * (len(self.names) > 5)])
            raise LabelError(
                f"{where(at_key)}: the label {keys[at_key]!s} is none of the "
                f"{len(self.names)} classes ({sample})",
                remedy=Remedy("Add it to {} or mend the label", Argument("class_names")),
            )
        return found
