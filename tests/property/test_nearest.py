"""Search and histograms do not depend on how a database is divided."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sadih_dask.learning.labels import group_rows
from sadih_dask.retrieval import nearest
from sadih_dask.retrieval.histograms import hamming_histograms
from tests.support.rankings import naive_distances, random_codes

shapes = st.tuples(
    st.integers(0, 400),  # rows
    st.integers(0, 5),  # queries
    st.integers(1, 130),  # bits
    st.integers(1, 450),  # neighbours
    st.integers(0, 2**32 - 1),  # seed
)
cuts = st.lists(st.integers(0, 400), max_size=6)


def divide(codes: np.ndarray, at: list[int]) -> list[tuple[int, np.ndarray]]:
    edges = sorted({0, len(codes), *(c for c in at if c < len(codes))})
    return [(a, codes[a:b]) for a, b in pairwise(edges)]


@settings(deadline=None, max_examples=200)
@given(shapes, cuts)
def test_nearest(shape: tuple[int, ...], at: list[int]) -> None:
    n, q, n_bits, k, seed = shape
    rng = np.random.default_rng(seed)
    database, queries = random_codes(rng, n, n_bits), random_codes(rng, q, n_bits)
    parts = divide(database, at)
    pairs = naive_distances(queries, database)
    rows = np.argsort(pairs, axis=1, kind="stable")[:, :k]
    one_after_another = nearest.nearest_keys(queries, parts, k)
    np.testing.assert_array_equal(nearest.rows_of(one_after_another), rows)
    if parts:
        merged = nearest.merge_keys([nearest.nearest_keys(queries, [p], k) for p in parts[::-1]], k)
        np.testing.assert_array_equal(merged, one_after_another)
    radius = n_bits // 4
    found = nearest.keys_within(queries, parts, radius, 10**9)
    np.testing.assert_array_equal(found.counts, (pairs <= radius).sum(axis=1))


@settings(deadline=None, max_examples=60)
@given(shapes, cuts, st.floats(0, 1), st.booleans())
def test_nearest_of_some_rows(
    shape: tuple[int, ...], at: list[int], share: float, weighted: bool
) -> None:
    n, q, n_bits, k, seed = shape
    rng = np.random.default_rng(seed)
    database, queries = random_codes(rng, n, n_bits), random_codes(rng, q, n_bits)
    kept = np.flatnonzero(rng.random(n) < share)
    parts = []
    for first, codes in divide(database, at):
        rows = kept[(first <= kept) & (kept < first + len(codes))]
        parts += [(rows, codes[rows - first])] if len(rows) else []
    weights = nearest.bit_weights(rng.standard_normal((q, n_bits))) if weighted else None
    keys = nearest.nearest_keys(queries, parts, k, weights)
    alone = nearest.nearest_keys(queries, [(0, database[kept])] if len(kept) else [], k, weights)
    np.testing.assert_array_equal(nearest.rows_of(keys), kept[nearest.rows_of(alone)])
    np.testing.assert_array_equal(nearest.distances_of(keys), nearest.distances_of(alone))
    radius = n_bits // 4
    found = nearest.keys_within(queries, parts, radius, 10**9)
    near = naive_distances(queries, database[kept]) <= radius
    np.testing.assert_array_equal(found.counts, near.sum(axis=1))
    assert set(nearest.rows_of(found.keys)) == set(kept[near.any(axis=0)])


@settings(deadline=None, max_examples=100)
@given(shapes, cuts, st.booleans())
def test_histograms(shape: tuple[int, ...], at: list[int], multi_label: bool) -> None:
    n, q, n_bits, _, seed = shape
    rng = np.random.default_rng(seed)
    database, queries = random_codes(rng, n, n_bits), random_codes(rng, q, n_bits)
    if multi_label:
        labels, asked = (rng.random((m, 5)) < 0.4 for m in (n, q))
        labels[:, 0] |= ~labels.any(axis=1)
        asked[:, 0] |= ~asked.any(axis=1)
    else:
        labels, asked = rng.integers(0, 4, n), rng.integers(0, 4, q)
    groups = group_rows(asked)
    whole = hamming_histograms(
        queries, groups, database, group_rows(labels), n_bits, compiled=False
    )
    held = None
    for start, block in divide(database, at):
        mine = group_rows(labels[start : start + len(block)])
        part = hamming_histograms(queries, groups, block, mine, n_bits, compiled=True)
        held = part if held is None else held.merge(part)
    if held is not None:
        np.testing.assert_array_equal(held.relevant, whole.relevant)
        np.testing.assert_array_equal(held.total, whole.total)
