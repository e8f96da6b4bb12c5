"""Shifted rows and group sums: what may be taken as it is, and what may not."""

from typing import Any

import numpy as np
import pytest

from sadih_dask.learning import statistics as centring
from sadih_dask.learning.statistics import Statistics
from tests.support.statistics import assert_same, reference


@pytest.mark.parametrize("n_columns", [1, 5, 700, 70_000])
def test_public_and_direct_sums_have_the_same_bits(n_columns: int) -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        values = rng.standard_normal((300, n_columns)).astype(dtype)
        ids = rng.integers(7, size=300)
        direct = centring.sums_by_group(values, ids, 7)
        np.testing.assert_array_equal(direct, centring.sums_by_columns(values, ids, 7))


def test_statistics_without_the_direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((500, 9)), rng.integers(4, size=500)
    expected = Statistics.of_block(*rows)
    monkeypatch.setattr(centring, "_add_rows", None)
    np.testing.assert_array_equal(Statistics.of_block(*rows).sums, expected.sums)


def test_only_a_mean_that_matters_is_shifted_away() -> None:
    rng = np.random.default_rng(0)
    features = (rng.standard_normal((1000, 4)) + np.array([0, 0.2, 5, -1e6])).astype(np.float32)
    shift = centring.choose_shift(features, features.dtype)
    assert (shift != 0).tolist() == [False, False, True, True]
    kept = features.copy()
    shifted = centring.shift_rows(features, shift, overwrite=False)
    np.testing.assert_array_equal(features, kept)
    np.testing.assert_array_equal(shifted, kept - shift)
    in_place = centring.shift_rows(features, shift, overwrite=True)
    assert in_place is features
    np.testing.assert_array_equal(in_place, shifted)


def test_few_columns_are_shifted_alone_with_the_same_bits() -> None:
    features = np.random.default_rng(0).standard_normal((500, 64)).astype(np.float32)
    features[:, 9] += 100
    shift = centring.choose_shift(features, features.dtype)
    assert np.flatnonzero(shift).tolist() == [9]
    expected = features - shift
    np.testing.assert_array_equal(centring.shift_rows(features, shift, overwrite=True), expected)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sample_that_is_unlike_the_block(dtype: Any, overwrite: bool) -> None:
    """Every sampled row is far from all others, and so is the first shift from the mean."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((centring.SAMPLED_ROWS * 40, 3)).astype(dtype)
    features[::40] += dtype(1e4)
    features[:, 2] = 1e4  # and a column in which nothing is wrong
    labels = rng.integers(3, size=len(features))
    expected = reference(features, labels)
    found = Statistics.of_block(features, labels, overwrite=overwrite)
    assert_same(found, expected, 1e-6 if dtype == np.float32 else 1e-12)


def test_only_what_may_be_overwritten_is() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=200)
    features = 5 + rng.standard_normal((200, 4))
    kept = features.copy()
    expected = Statistics.of_block(features, labels)
    np.testing.assert_array_equal(features, kept)
    found = Statistics.of_block(features, labels, overwrite=True)
    np.testing.assert_array_equal(found.gram, expected.gram)
    assert not np.array_equal(features, kept)


def test_merging_in_place_has_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    a, b = (
        Statistics.of_block(rng.standard_normal((100, 5)) + k, rng.integers(3 + k, size=100), 5)
        for k in range(2)
    )
    expected = a.merge(b)
    gram = a.gram
    found = a.merge(b, overwrite=True)
    assert found.gram is gram
    for name in ("counts", "mean", "sums", "gram"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
