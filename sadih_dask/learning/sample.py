"""A few of the rows themselves, kept beside their statistics to judge choices by.

Statistics cannot tell how well rows that were not learned from will be found; rows can. A row is
kept if its *key*, a hash of its features, is among the smallest. So which rows are kept follows
from the rows alone: not from their order, their blocks, or in how many steps they came.
Samples of two sets of rows give the sample of both, and a row that is taken out is taken out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sadih_dask.errors import InputError
from sadih_dask.learning.randomness import splitmix64
from sadih_dask.types import Array, Floats, Ints

KEPT_ROWS = 2560
"""Rows of a sample, unless told otherwise. What it is judged by are the first `USED_ROWS`: so some
of them can be taken out, and those used are still the ones that a sample of the other rows would
have."""
USED_ROWS = 2048
NO_LIMIT = np.uint64(2**64 - 1)
PIECE_VALUES = 2**16
"""Values that are hashed at a time: they stay in a second-level cache."""


@dataclass(frozen=True, eq=False)
class Sample:
    """The rows whose keys are below a limit, in the order of their keys.

    keys      (q,)    hashes of the rows' features, ascending
    features  (q, d)  the rows, as the statistics see them
    group     (q,)    label group of each, numbered as in the statistics
    limit     a row is kept if its key is below; it falls as rows are added, and never rises
    size      rows that are kept at most
    """

    keys: Array
    features: Array
    group: Ints
    limit: np.uint64
    size: int = KEPT_ROWS

    @classmethod
    def of_block(cls, keys: Array, features: Array, group: Ints, size: int = KEPT_ROWS) -> Sample:
        """Copies of the rows of a block with the smallest keys."""
        if len(keys) <= size:
            limit, rows = NO_LIMIT, np.argsort(keys, kind="stable")
        else:
            # Rows that are alike have one key: none of them is kept, or all.
            limit = np.partition(keys, size)[size]
            rows = np.flatnonzero(keys < limit)
            rows = rows[np.argsort(keys[rows], kind="stable")]
        return cls(keys[rows], np.take(features, rows, axis=0), group[rows], limit, size)

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"<Sample of {len(self)} rows of {self.features.shape[1]} features>"

    def merge(self, other: Sample, mine: Ints, theirs: Ints) -> Sample:
        """The sample of both; group k becomes ``mine[k]`` here and ``theirs[k]`` there."""
        keys = np.concatenate([self.keys, other.keys])
        order = np.argsort(keys, kind="stable")
        limit, size = min(self.limit, other.limit), min(self.size, other.size)
        if len(order) > size:
            limit = min(limit, keys[order[size]])
        order = order[: np.searchsorted(keys[order], limit)]
        features = np.concatenate([self.features, other.features])
        group = np.concatenate([mine[self.group], theirs[other.group]])
        return Sample(keys[order], features[order], group[order], limit, size)

    def without(self, other: Sample, place: Ints, left: Ints) -> Sample:
        """The sample when rows are taken out; ``other`` is theirs, its group k ``place[k]`` here.

        ``left`` (g,) is the new number of each group. A row that occurs several times is taken out
        as many times as it occurs there. InputError for rows that would have been kept, and are not
        here: they were never put in, or with other values.
        """
        gone: dict[tuple[int, int], int] = {}
        for key, group in zip(other.keys.tolist(), place[other.group].tolist(), strict=True):
            gone[key, group] = gone.get((key, group), 0) + 1
        keep = np.ones(len(self), bool)
        for k, row in enumerate(zip(self.keys.tolist(), self.group.tolist(), strict=True)):
            if gone.get(row, 0):
                gone[row] -= 1
                keep[k] = False
        strange = sum(n for (key, _), n in gone.items() if key < self.limit)
        if strange:
            raise InputError(
                f"at least {strange} of the rows to take out are not among those that were put in: "
                "rows of other values, or other labels; only rows that were put in can be taken out"
            )
        keep &= left[self.group] >= 0
        return replace(self.take(keep), group=left[self.group[keep]])

    def take(self, rows: Array | slice) -> Sample:
        """Some of the rows, by their places or a mask."""
        return replace(
            self, keys=self.keys[rows], features=self.features[rows], group=self.group[rows]
        )

    def to_arrays(self) -> dict[str, Array]:
        """The sample as plain arrays."""
        parts = {name: getattr(self, name) for name in ("keys", "features", "group")}
        whole = {"limit": np.array(self.limit, np.uint64), "size": np.array(self.size, np.int64)}
        return {**parts, **whole}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], n_groups: int, width: int) -> Sample:
        """The same sample again; ValueError or KeyError if it cannot be one of such rows."""
        names = "keys", "features", "group", "limit", "size"
        keys, features, group, limit, size = (arrays[name] for name in names)
        kinds = [array.dtype.str[1:] for array in (keys, group, limit, size)]
        kinds.append(features.dtype.kind)
        if kinds != ["u8", "i8", "u8", "i8", "f"] or limit.shape or size.shape:
            raise ValueError("the sampled rows have arrays of other types")
        if keys.shape != group.shape or features.shape != (len(keys), width):
            raise ValueError("sampled rows, their features and labels differ in number")
        if len(keys) > size or np.any(keys[1:] < keys[:-1]) or not np.isfinite(features).all():
            raise ValueError("the sampled rows are too many, in no order, or not finite")
        if len(group) and not 0 <= group.min() <= group.max() < n_groups:
            raise ValueError("the sampled rows carry label groups that do not exist")
        return cls(keys, features, group, np.uint64(limit), int(size))


def row_keys(features: Array) -> Array:
    """A hash of the values of each row, (n,) uint64: the same in every layout and number type."""
    n, d = features.shape
    factors = splitmix64(np.arange(d, dtype=np.uint64), 0) | np.uint64(1)
    keys = np.empty(n, np.uint64)
    rows = max(1, PIECE_VALUES // max(d, 1))
    double: Floats = np.empty((min(rows, n), d))
    shifted = np.empty(double.shape, np.uint64)
    for start in range(0, n, rows):
        part = features[start : start + rows]
        # Adding 0 makes -0 and 0 one value. Small whole numbers have all their bits on the left.
        bits = np.add(part, 0.0, out=double[: len(part)]).view(np.uint64)
        bits ^= np.right_shift(bits, np.uint64(32), out=shifted[: len(part)])
        np.einsum("ij,j->i", bits, factors, out=keys[start : start + rows])  # twice as fast as @
    return splitmix64(keys, 0)
