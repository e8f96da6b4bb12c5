"""Spans join to what the tree says, whatever the chunks, and in whatever order they meet."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sadih_dask.compute.span import Joiner, Loose, Reduced, Span
from sadih_dask.learning.statistics import canonical_blocks, merge_in_order
from tests.support.datasets import Array


@dataclass(frozen=True)
class Said:
    """A partial result that says how it came to be."""

    how: str

    def merge(self, other: "Said", *, overwrite: bool = False) -> "Said":
        return Said(f"({self.how} {other.how})")


@dataclass(frozen=True)
class Saying:
    """A reduction whose results name the rows and labels that they have seen."""

    block_rows: int

    def of_block(
        self, features: Array, labels: Array, first_row: int, *, overwrite: bool = False
    ) -> Said:
        np.testing.assert_array_equal(features[:, 0], np.arange(len(features)) + first_row)
        np.testing.assert_array_equal(labels, -features[:, 0])
        return Said(f"{first_row}+{len(features)}")

    def identity(self) -> str:
        return ""

    def columns(self, n_features: int) -> int:
        return n_features

    def to_arrays(self, partial: Any) -> dict[str, Array]:
        raise NotImplementedError

    def from_arrays(self, arrays: Mapping[str, Array], n_rows: int) -> Said:
        raise NotImplementedError


def expected(n_rows: int, block_rows: int) -> Any:
    blocks = [Said(f"{b.start}+{b.stop - b.start}") for b in canonical_blocks(n_rows, block_rows)]
    return merge_in_order(blocks)  # type: ignore[arg-type]


@st.composite
def chunks(draw: st.DrawFn) -> tuple[int, ...]:
    """Chunks of one row, of a prime number, alike or not, or all rows in one."""
    n = draw(st.integers(1, 700))
    size = draw(st.sampled_from([1, 2, 7, 13, 64, 101, n]))
    edges = draw(st.one_of(st.just(range(size, n, size)), st.sets(st.integers(1, n), max_size=9)))
    inner = sorted(edge for edge in edges if edge < n)
    return tuple(np.diff([0, *inner, n]).tolist())


@given(chunks(), st.integers(1, 90), st.booleans(), st.integers(0, 2**32 - 1))
def test_any_chunks_in_any_order(
    sizes: tuple[int, ...], block_rows: int, loose: bool, seed: int
) -> None:
    n, rng = sum(sizes), np.random.default_rng(seed)
    joiner = Joiner(Saying(block_rows), n, loose)
    rows = np.arange(n, dtype=float)[:, None]
    firsts = np.cumsum([0, *sizes[:-1]]).tolist()
    spans: list[Span] = [
        joiner.span_of(rows[first : first + size], -rows[first : first + size, 0], first)
        for first, size in zip(firsts, sizes, strict=True)
    ]
    while len(spans) > 1:
        k = int(rng.integers(len(spans) - 1))
        spans[k : k + 2] = [joiner.join(spans[k], spans[k + 1], 0, n)]
    assert joiner.result(spans[0]) == expected(n, block_rows)


def test_what_a_chunk_leaves_is_no_larger_than_it() -> None:
    """Rows before the first node of the tree stay rows; those after it come to one result."""
    rows = np.arange(1000, dtype=float)[:, None]
    span = Joiner(Saying(10), 10_000, loose=True).span_of(rows[30:500], -rows[30:500, 0], 30)
    assert [(type(part), part.first, part.last) for part in span] == [
        (Loose, 30, 80),
        *((Reduced, first, first + 80) for first in (80, 160, 240, 320, 400)),
        (Reduced, 480, 500),
    ]
    assert all(part.features.base is None for part in span if isinstance(part, Loose))


def test_blocks_that_are_smaller_than_their_rows_are_reduced_at_once() -> None:
    rows = np.arange(1000, dtype=float)[:, None]
    span = Joiner(Saying(10), 10_000, loose=False).span_of(rows[35:95], -rows[35:95, 0], 35)
    assert [(type(part), part.first, part.last) for part in span] == [
        (Loose, 35, 40),
        *((Reduced, first, first + 10) for first in (40, 50, 60, 70)),
        (Reduced, 80, 90),
        (Loose, 90, 95),
    ]
