"""Codes, histograms and metrics for whatever Hypothesis draws."""

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sadih_dask.learning.labels import group_rows
from sadih_dask.retrieval.codes import distances, n_bytes, pack, unpack
from sadih_dask.retrieval.histograms import Histograms, hamming_histograms
from sadih_dask.retrieval.metrics import average_precision, precision_at
from tests.support import rankings

some = settings(max_examples=60, deadline=None)


def bits(n: Any, n_bits: Any) -> Any:
    return arrays.arrays(np.uint8, st.tuples(n, n_bits), elements=st.integers(0, 1))


@some
@given(bits(st.integers(0, 9), st.integers(1, 130)))
def test_unpack_undoes_pack(codes: Any) -> None:
    n_bits = codes.shape[1]
    packed = pack(codes)
    assert packed.shape == (len(codes), n_bytes(n_bits))
    np.testing.assert_array_equal(unpack(packed, n_bits), codes)
    np.testing.assert_array_equal(pack(2.0 * codes - 1.0), packed)


@some
@given(st.data(), st.integers(1, 130))
def test_distance_is_a_metric_that_counts_bits(data: st.DataObject, n_bits: int) -> None:
    codes = data.draw(bits(st.just(6), st.just(n_bits)))
    found = distances(pack(codes), pack(codes))
    np.testing.assert_array_equal(found, (codes[:, None] != codes[None]).sum(axis=2))
    assert np.all(found[:, :, None] + found[None] >= found[:, None].swapaxes(1, 2))


@st.composite
def ties(draw: st.DrawFn) -> Histograms:
    """Small counts of one query: relevant never exceeds total."""
    total = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(lambda t: sum(t) < 8))
    relevant = [draw(st.integers(0, t)) for t in total]
    return Histograms(np.array([relevant]), np.array([total]))


@some
@given(ties(), st.integers(1, 9))
def test_metrics_are_means_over_every_order(histograms: Histograms, k: int) -> None:
    relevant, total = histograms.relevant[0], histograms.total[0]
    distance = np.repeat(np.arange(len(total)), total)
    flags = np.concatenate([np.arange(t) < r for r, t in zip(relevant, total, strict=True)])
    every = rankings.all_orders(distance, flags)
    if len(distance):
        expected = np.mean([rankings.precision(order, k) for order in every])
        np.testing.assert_allclose(precision_at(histograms, k), [expected], atol=1e-12)
    if flags.any():
        expected = np.mean([rankings.average_precision(order) for order in every])
        np.testing.assert_allclose(average_precision(histograms), [expected], atol=1e-12)
    else:
        assert np.isnan(average_precision(histograms)[0])


@some
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 30), max_size=3))
def test_histograms_of_any_parts_add_up(seed: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    queries, items = rng.integers(2, size=(4, 10)), rng.integers(2, size=(30, 10))
    y, labels = rng.integers(3, size=4), rng.integers(3, size=30)
    edges = [0, *sorted(cuts), 30]
    parts = [
        hamming_histograms(
            pack(queries),
            group_rows(y, 3),
            pack(items[start:stop]),
            group_rows(labels[start:stop], 3),
            10,
        )
        for start, stop in pairwise(edges)
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merge(part)
    expected = rankings.histograms(
        (queries[:, None] != items[None]).sum(axis=2), y[:, None] == labels, 10
    )
    np.testing.assert_array_equal(whole.relevant, expected.relevant)
    np.testing.assert_array_equal(whole.total, expected.total)
