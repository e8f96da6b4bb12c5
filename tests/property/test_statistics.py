"""Merging and removing statistics: the way in which rows were cut never shows."""

from functools import reduce
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sadih_dask.learning.statistics import MERGE_FAN_IN, Statistics, merge_in_order
from tests.support.statistics import Array, assert_same, reference

DTYPES = [np.float64, np.float32, np.float16, np.uint8]


@st.composite
def collections(draw: st.DrawFn, min_rows: int = 3) -> tuple[Array, Array]:
    """Features and labels; rows may be sorted by label, so that blocks miss groups and classes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d, c = draw(st.integers(min_rows, 60)), draw(st.integers(1, 6)), draw(st.integers(1, 5))
    if draw(st.booleans()):
        labels = rng.integers(c, size=n)
        order = np.argsort(labels, kind="stable")
    else:
        labels = (rng.random((n, c)) < 0.4).astype(np.uint8)
        labels[np.arange(n), rng.integers(c, size=n)] = 1
        order = np.lexsort(labels.T)
    offset = draw(st.sampled_from([0.0, 10.0, 1e6]))
    features = offset + rng.standard_normal((n, d)) * rng.uniform(0.1, 10, size=d)
    if draw(st.booleans()):
        features[:, 0] = offset / 3
    if draw(st.booleans()):
        features, labels = features[order], labels[order]
    return features, labels


def n_classes(labels: Array) -> int:
    return labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1


def cut(features: Array, labels: Array, at: list[int]) -> list[Statistics]:
    """Statistics of the blocks between the cuts, empty blocks left out."""
    bounds = [0, *sorted(k % (len(features) + 1) for k in at), len(features)]
    return [
        Statistics.of_block(features[a:b], labels[a:b], n_classes(labels))
        for a, b in pairwise(bounds)
        if a < b
    ]


@given(collections(), st.sampled_from(DTYPES))
@settings(max_examples=60, deadline=None)
def test_a_block_equals_its_definition(rows: tuple[Array, Array], dtype: type) -> None:
    features, labels = rows
    double = dtype == np.float64
    features = features if double else np.clip(features, 0, 255).astype(dtype)
    rtol = 1e-12 if double else 1e-5
    assert_same(Statistics.of_block(features, labels), reference(features, labels), rtol)


@given(collections(), st.lists(st.integers(0, 100), max_size=20))
@settings(max_examples=100, deadline=None)
def test_cuts_do_not_show(rows: tuple[Array, Array], at: list[int]) -> None:
    features, labels = rows
    expected = reference(features, labels)
    parts = cut(features, labels, at)
    assert_same(merge_in_order(parts), expected)
    assert_same(reduce(Statistics.merge, parts), expected)
    assert_same(reduce(lambda a, b: b.merge(a), parts), expected)


@given(collections(), st.tuples(*[st.integers(1, 100)] * 2))
@settings(max_examples=60, deadline=None)
def test_merge_commutes_and_associates(rows: tuple[Array, Array], at: tuple[int, int]) -> None:
    a, b, c = (cut(*rows, list(at)) * 3)[:3]
    assert_same(a.merge(b), b.merge(a))
    assert_same(a.merge(b).merge(c), a.merge(b.merge(c)))


@given(collections(min_rows=4), st.integers(1, 100))
@settings(max_examples=100, deadline=None)
def test_without_undoes_merge(rows: tuple[Array, Array], at: int) -> None:
    features, labels = rows
    at = 1 + at % (len(features) - 1)
    a, b = cut(features, labels, [at])
    both = a.merge(b)
    left = both.without(b)
    # Digits that the sum never held cannot come back: rounding is relative to all the rows.
    assert_same(left, a, among=both)
    assert_same(left.merge(b), both)


@given(collections(min_rows=20), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_the_tree_gives_the_same_bits_however_it_is_processed(
    rows: tuple[Array, Array], size: int
) -> None:
    features, labels = rows
    parts = cut(features, labels, list(range(size, len(features), size)))
    # Level by level, the last node of each level first, as a scheduler might.
    nodes = parts
    while len(nodes) > 1:
        starts = range(0, len(nodes), MERGE_FAN_IN)
        done = {k: reduce(Statistics.merge, nodes[k : k + MERGE_FAN_IN]) for k in reversed(starts)}
        nodes = [done[k] for k in starts]
    for found in (merge_in_order(parts), merge_in_order(part for part in parts)):
        assert found.groups == nodes[0].groups
        for name in ("counts", "mean", "sums", "gram"):
            np.testing.assert_array_equal(getattr(found, name), getattr(nodes[0], name))
