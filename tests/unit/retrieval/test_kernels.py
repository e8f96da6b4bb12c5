"""Compiled loops against NumPy on every pair."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from sadih_dask.errors import DtypeError, InputError, LabelError
from sadih_dask.learning.labels import group_rows
from sadih_dask.retrieval import kernels, nearest
from sadih_dask.retrieval.codes import distances
from sadih_dask.retrieval.histograms import Histograms, hamming_histograms
from tests.support.rankings import naive_distances, random_codes


def blocks(codes: np.ndarray, step: int):
    return [(start, codes[start : start + step]) for start in range(0, len(codes), step)]


@pytest.mark.parametrize("n_bits", [1, 7, 8, 9, 31, 63, 64, 65, 100, 127, 128, 129, 130, 200, 1000])
def test_nearest_is_a_stable_sort(n_bits: int) -> None:
    rng = np.random.default_rng(n_bits)
    database, queries = random_codes(rng, 5000, n_bits), random_codes(rng, 9, n_bits)
    pairs = naive_distances(queries, database)
    np.testing.assert_array_equal(distances(queries, database), pairs)
    for k, step in ((1, 5000), (10, 5000), (100, 777), (3000, 2048), (5000, 64), (7000, 1000)):
        order = np.argsort(pairs, axis=1, kind="stable")[:, :k]
        keys = nearest.nearest_keys(queries, blocks(database, step), k)
        np.testing.assert_array_equal(nearest.rows_of(keys), order)
        expected = np.take_along_axis(pairs, order, axis=1)
        np.testing.assert_array_equal(nearest.distances_of(keys), expected)


def test_the_worst_order_of_rows() -> None:
    # Every row is nearer than the ones before: each becomes a candidate, and most are sorted out.
    bits = np.tril(np.ones((1024, 1024), bool))[::-1]
    database = np.packbits(bits, axis=1, bitorder="little")
    query = np.zeros((1, 128), np.uint8)
    keys = nearest.nearest_keys(query, blocks(database, 1024), 5)
    np.testing.assert_array_equal(nearest.rows_of(keys)[0], [1023, 1022, 1021, 1020, 1019])
    np.testing.assert_array_equal(nearest.distances_of(keys)[0], [1, 2, 3, 4, 5])


def test_codes_longer_than_a_narrow_count() -> None:
    for n_bytes in (24, 32, 40, 8192):  # 192 bits fit uint8, 65,536 need more than uint16
        database = np.stack([np.zeros(n_bytes, np.uint8), np.full(n_bytes, 255, np.uint8)])
        keys = nearest.nearest_keys(database[:1], blocks(database, 2), 2)
        np.testing.assert_array_equal(nearest.distances_of(keys)[0], [0, 8 * n_bytes])


def test_merging_parts_in_any_order_is_the_whole() -> None:
    rng = np.random.default_rng(5)
    database, queries = random_codes(rng, 1000, 12), random_codes(rng, 6, 12)
    whole = nearest.nearest_keys(queries, blocks(database, 1000), 50)
    parts = [nearest.nearest_keys(queries, [block], 50) for block in blocks(database, 130)]
    np.testing.assert_array_equal(nearest.merge_keys(parts[::-1], 50), whole)


@pytest.mark.parametrize("n_bits", [3, 20, 64, 100, 130])
@pytest.mark.parametrize("radius", [0, 2, 15, 1000])
def test_within_a_radius(n_bits: int, radius: int) -> None:
    rng = np.random.default_rng(n_bits)
    database, queries = random_codes(rng, 3000, n_bits), random_codes(rng, 8, n_bits)
    pairs = naive_distances(queries, database)
    found = nearest.keys_within(queries, blocks(database, 700), radius, 10**6)
    np.testing.assert_array_equal(found.counts, (pairs <= radius).sum(axis=1))
    start = 0
    for i, count in enumerate(found.counts):
        keys = found.keys[start : start + count]
        rows = np.argsort(pairs[i], kind="stable")[:count]
        np.testing.assert_array_equal(nearest.rows_of(keys), rows)
        start += count


def test_a_radius_that_finds_too_much_is_stopped() -> None:
    codes = np.zeros((100, 2), np.uint8)
    with pytest.raises(InputError, match="more than 999 items lie within radius 3"):
        nearest.keys_within(codes[:10], blocks(codes, 10), 3, 999)


def test_codes_that_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="same model"):
        nearest.nearest_keys(np.zeros((1, 2), np.uint8), [(0, np.zeros((1, 3), np.uint8))], 1)
    with pytest.raises(DtypeError, match="packed codes are uint8"):
        distances(np.zeros((1, 2)), np.zeros((1, 2), np.uint8))


def both_ways(*arguments: object) -> tuple[Histograms, Histograms]:
    return hamming_histograms(*arguments, compiled=True), hamming_histograms(
        *arguments, compiled=False
    )


@pytest.mark.parametrize("n_bits", [1, 8, 13, 64, 65, 130, 300])
@pytest.mark.parametrize("classes", [None, 2, 40])
def test_compiled_histograms_are_those_of_numpy(n_bits: int, classes: int | None) -> None:
    rng = np.random.default_rng(n_bits)
    n, q = 4099, 21
    if classes is None:
        labels, asked = rng.integers(0, 7, n), rng.integers(0, 9, q)  # two classes nobody has
    else:
        labels, asked = (rng.random((m, classes)) < 0.15 for m in (n, q))
        labels[:, 0] |= ~labels.any(axis=1)
        asked[:, -1] |= ~asked.any(axis=1)
    codes, queries = random_codes(rng, n, n_bits), random_codes(rng, q, n_bits)
    for counts in (None, rng.integers(0, 10**6, n)):
        fast, slow = both_ways(
            queries, group_rows(asked), codes, group_rows(labels), n_bits, counts
        )
        np.testing.assert_array_equal(fast.relevant, slow.relevant)
        np.testing.assert_array_equal(fast.total, slow.total)
        pairs = naive_distances(queries, codes)
        shares = labels[None] == asked[:, None] if classes is None else (asked @ labels.T) > 0
        for d in (0, n_bits // 3, n_bits):
            here = (pairs == d) * (1 if counts is None else counts)
            np.testing.assert_array_equal(fast.total[:, d], here.sum(axis=1))
            np.testing.assert_array_equal(fast.relevant[:, d], (here * shares).sum(axis=1))


@pytest.mark.parametrize("compiled", [True, False])
def test_spare_bits_that_are_set_are_found(compiled: bool) -> None:
    labels = group_rows(np.zeros(1, int))
    zero, full = np.zeros((1, 1), np.uint8), np.full((1, 1), 255, np.uint8)
    with pytest.raises(InputError, match="spare bits"):
        hamming_histograms(zero, labels, full, labels, 3, compiled=compiled)


def test_group_numbers_outside_their_table_are_refused() -> None:
    groups, ids = group_rows(np.array([0, 1]))
    codes = np.zeros((2, 1), np.uint8)
    with pytest.raises(LabelError, match="numbered 1 to 2, but the table has 2 groups"):
        hamming_histograms(codes, (groups, ids), codes, (groups, ids + 1), 8)


def test_histograms_of_nothing() -> None:
    codes, none = np.zeros((3, 2), np.uint8), np.zeros((0, 2), np.uint8)
    labels, nobody = group_rows(np.array([0, 1, 1])), group_rows(np.zeros(0, int))
    for compiled in (True, False):
        empty = hamming_histograms(codes, labels, none, nobody, 16, compiled=compiled)
        assert empty.total.shape == (3, 17)
        assert empty.total.sum() == 0
        assert len(hamming_histograms(none, nobody, codes, labels, 16, compiled=compiled)) == 0


def test_loops_compile_where_nothing_can_be_cached() -> None:
    # As with an install that cannot be written to, and no home and no NUMBA_CACHE_DIR.
    script = """
import numba.core.caching as caching
def no_place(*_, **__): raise RuntimeError("cannot cache function: no locator available")
caching.CacheImpl.__init__ = no_place
import numpy as np
from sadih_dask.retrieval.nearest import nearest_keys
codes = np.arange(4, dtype=np.uint8)[:, None]
print(nearest_keys(codes[:1], [(0, codes)], 2).tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == str([[0, (1 << kernels.ROW_BITS) | 1]]), done.stderr
