"""What figures and pages are made of: plain arrays under plain names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sadih_dask.errors import InputError
from sadih_dask.retrieval.codes import unpack
from sadih_dask.types import Array, Bytes, Floats, Ints


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of a figure. Lines of one name look alike in every panel.

    name    what the legend says: a method, a code length
    x, y    (points,); points with a NaN are left out
    panel   the panel that it belongs to: a protocol, a code length
    spread  (points,) half the height of an error bar, such as the deviation over splits
    """

    name: str
    x: Floats
    y: Floats
    panel: str = ""
    spread: Floats | None = None

    def __post_init__(self) -> None:
        lengths = {np.shape(a) for a in (self.x, self.y, self.spread) if a is not None}
        if len(lengths) != 1 or len(next(iter(lengths))) != 1:
            raise InputError(
                f"curve {self.name!r} has x, y and spread of shapes {sorted(lengths)}; "
                "they must be vectors of one length"
            )


@dataclass(frozen=True, eq=False)
class PairDistances:
    """How many pairs lie at each Hamming distance: those that share a label and those that do not.

    similar, dissimilar  (n_bits + 1,) counts
    """

    similar: Array
    dissimilar: Array
    panel: str = ""

    def __post_init__(self) -> None:
        if np.ndim(self.similar) != 1 or np.shape(self.similar) != np.shape(self.dissimilar):
            raise InputError(
                f"distances have shapes {np.shape(self.similar)} (similar) and "
                f"{np.shape(self.dissimilar)} (dissimilar); both must be (n_bits + 1,)"
            )

    @property
    def n_bits(self) -> int:
        """Length of the codes."""
        return len(self.similar) - 1

    @property
    def overlap(self) -> float:
        """Share that the two distributions have in common: 0 where a radius separates them."""
        a, b = share(self.similar), share(self.dissimilar)
        return float(np.minimum(a, b).sum())


def share(counts: Array) -> Floats:
    """Counts as parts of their sum; zeros where there is nothing."""
    values = np.asarray(counts, np.float64)
    return values / max(float(values.sum()), 1.0)


@dataclass(frozen=True, eq=False)
class BitCounts:
    """How often bits are set, alone and in pairs: mergeable over blocks of codes.

    n_rows  codes counted
    ones    (n_bits,)         codes in which a bit is set
    both    (n_bits, n_bits)  codes in which two bits are set
    """

    n_rows: int
    ones: Ints
    both: Ints

    @classmethod
    def of_block(cls, packed: Bytes, n_bits: int) -> BitCounts:
        """Count one block of packed codes; O(rows n_bits^2)."""
        ones, both = np.zeros(n_bits, np.int64), np.zeros((n_bits, n_bits), np.int64)
        # float32 products run at BLAS speed and are exact up to 2^24 rows.
        for start in range(0, len(packed), 1 << 16):
            bits = unpack(packed[start : start + (1 << 16)], n_bits).astype(np.float32)
            ones += bits.sum(axis=0).astype(np.int64)
            both += (bits.T @ bits).astype(np.int64)
        return cls(len(packed), ones, both)

    def merge(self, other: BitCounts) -> BitCounts:
        """Cover the codes of both."""
        return BitCounts(self.n_rows + other.n_rows, self.ones + other.ones, self.both + other.both)

    @property
    def balance(self) -> Floats:
        """Share of codes in which each bit is set, (n_bits,); NaN without codes."""
        return self.ones / self.n_rows if self.n_rows else np.full(len(self.ones), np.nan)

    @property
    def correlation(self) -> Floats:
        """Pearson correlation of every two bits; NaN where one of them is constant."""
        p = self.balance
        deviation = np.sqrt(p * (1 - p))
        with np.errstate(divide="ignore", invalid="ignore"):
            found = (self.both / self.n_rows - np.outer(p, p)) / np.outer(deviation, deviation)
        return np.where(np.outer(deviation > 0, deviation > 0), np.clip(found, -1, 1), np.nan)


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Query pictures and the pictures of their nearest neighbours, nearest first.

    queries     (q, h, w) or (q, h, w, 3) uint8
    pictures    (q, k, h, w) or (q, k, h, w, 3) uint8
    relevant    (q, k) whether a neighbour shares a label with its query
    distances   (q, k) Hamming distances
    names       q names of what the queries show
    found       q rows of k names of what the neighbours show
    """

    queries: Bytes
    pictures: Bytes
    relevant: Array
    distances: Ints
    names: tuple[str, ...]
    found: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        q, k = self.pictures.shape[:2]
        picture = self.queries.shape[1:]
        if self.pictures.shape != (len(self.queries), k, *picture) or not (
            len(picture) == 2 or (len(picture) == 3 and picture[2] == 3)
        ):
            raise InputError(
                f"pictures have shapes {self.queries.shape} (queries) and {self.pictures.shape} "
                "(neighbours); expected (q, h, w) and (q, k, h, w), or the same with 3 colours last"
            )
        if self.queries.dtype != np.uint8 or self.pictures.dtype != np.uint8:
            raise InputError(
                f"pictures have dtypes {self.queries.dtype} and {self.pictures.dtype}; expected "
                "uint8, 0 is black and 255 white"
            )
        if np.shape(self.relevant) != (q, k) or np.shape(self.distances) != (q, k):
            raise InputError(
                f"relevant and distances have shapes {np.shape(self.relevant)} and "
                f"{np.shape(self.distances)}; expected ({q}, {k}), one value a neighbour"
            )
        if len(self.names) != q or [len(row) for row in self.found] != [k] * q:
            raise InputError(f"expected {q} names of queries and {q} rows of {k} found names")


@dataclass(frozen=True, eq=False)
class Quality:
    """Retrieval quality of one code length.

    metrics  protocol -> metric -> value, such as ``{"learned": {"MAP": 0.9}, "encoded": {...}}``
    """

    n_bits: int
    metrics: Mapping[str, Mapping[str, float]]
    method: str = "SADIH"
    seconds: float | None = None
