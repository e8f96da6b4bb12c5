"""Rows about a point near their mean, and their sums by group."""

import numpy as np
import pytest

import sadih_dask.learning.centring as centring
from sadih_dask.learning.centring import (
    choose_shift,
    is_far,
    representable,
    shift_rows,
    sums_by_columns,
    sums_by_group,
)
from sadih_dask.learning.statistics import Statistics, merge_in_order
from tests.rows import Array, assert_same, reference

FIELDS = ("counts", "mean", "sums", "gram")


def assert_same_bits(found: Statistics, expected: Statistics) -> None:
    assert found.groups == expected.groups
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def rows(dtype: type, n: int = 500, d: int = 20) -> tuple[Array, Array]:
    """Columns with means from 0 to 1,000 deviations away."""
    rng = np.random.default_rng(0)
    means = np.concatenate([np.zeros(d // 2), 10.0 ** np.linspace(-1, 3, d - d // 2)])
    return (means + rng.standard_normal((n, d))).astype(dtype), rng.integers(4, size=n)


# --- the point -------------------------------------------------------------------------------


def test_columns_about_zero_stay_where_they_are() -> None:
    features = np.random.default_rng(0).normal([0.1, 50.0], 1.0, (4000, 2))
    shift = choose_shift(features, np.dtype(np.float32))
    assert shift.dtype == np.float32
    assert shift[0] == 0
    assert abs(shift[1] - 50) < 0.5


@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 1000])
def test_any_number_of_rows_has_a_sample(n: int) -> None:
    assert choose_shift(np.full((n, 1), 3.0), np.dtype(np.float64)).tolist() == [3.0]


def test_a_point_that_cannot_be_represented_is_zero() -> None:
    with np.errstate(over="ignore"):
        found = representable(np.array([1e300, np.nan, np.inf, 2.0]), np.dtype(np.float32))
    assert found.tolist() == [0, 0, 0, 2]


def test_far_is_further_than_the_rows_scatter() -> None:
    shift = np.array([1.0, 1.0])
    assert not is_far(np.array([0.5, 0.0]), shift, np.array([1.25, 0.0]))
    assert is_far(np.array([0.5, 2.0]), shift, np.array([1.25, 4.1]))
    # A constant column is as near as its mean can be written down.
    assert not is_far(np.array([1e-16, 0.0]), shift, np.array([1e-32, 0.0]))


# --- the rows --------------------------------------------------------------------------------


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.uint8, bool])
@pytest.mark.parametrize("shifted", [0, 1, 20])
def test_shifted_rows(dtype: type, shifted: int, overwrite: bool) -> None:
    features = (np.random.default_rng(0).random((30, 20)) * 9).astype(dtype)
    original = features.copy()
    work = np.float64 if dtype == np.float64 else np.float32
    shift = np.zeros(20, work)
    shift[:shifted] = 3
    found = shift_rows(features, shift, overwrite=overwrite)
    np.testing.assert_array_equal(found, original.astype(work) - shift)
    assert found.dtype == work
    assert found.flags.c_contiguous
    if not overwrite:
        np.testing.assert_array_equal(features, original)


def test_rows_that_may_not_be_written_are_copied() -> None:
    features = np.ones((4, 3))
    features.flags.writeable = False
    assert shift_rows(features, np.ones(3), overwrite=True).tolist() == [[0, 0, 0]] * 4
    columns = np.asfortranarray(np.ones((4, 3)))
    assert shift_rows(columns, np.ones(3), overwrite=True).tolist() == [[0, 0, 0]] * 4
    assert columns.all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("piece", [1, 70, 10**6])
def test_sums_by_group(dtype: type, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values, ids = rows(dtype)
    monkeypatch.setattr(centring, "PIECE_VALUES", piece)
    found = sums_by_group(values, ids, 5)  # group 4 has no rows
    expected = [values[ids == k].astype(np.longdouble).sum(axis=0) for k in range(5)]
    np.testing.assert_allclose(found, np.array(expected, np.float64), rtol=1e-13, atol=1e-10)
    np.testing.assert_array_equal(found, sums_by_columns(values, ids, 5))


def test_a_scipy_without_its_inner_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = rows(np.float32)
    expected = Statistics.of_block(features, labels)
    monkeypatch.setattr(centring, "_add_rows", None)
    assert_same_bits(Statistics.of_block(features, labels), expected)


# --- statistics ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_overwriting_changes_the_features_and_nothing_else(dtype: type) -> None:
    features, labels = rows(dtype)
    original = features.copy()
    expected = Statistics.of_block(features, labels)
    np.testing.assert_array_equal(features, original)
    assert_same_bits(Statistics.of_block(features, labels, overwrite=True), expected)


def test_merging_in_place_gives_the_same_bits() -> None:
    features, labels = rows(np.float64, n=300)

    def parts() -> list[Statistics]:
        cuts = range(0, 300, 10)
        return [Statistics.of_block(features[k : k + 10], labels[k : k + 10], 4) for k in cuts]

    kept = parts()
    expected = merge_in_order(kept)
    for part, again in zip(kept, parts(), strict=True):
        assert_same_bits(part, again)  # nothing is written over unless that was asked for
    assert_same_bits(merge_in_order(parts(), overwrite=True), expected)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_sample_unlike_its_block(dtype: type, rtol: float, overwrite: bool) -> None:
    # Every 32nd row is looked at for the shift, and it is just those that are different.
    rng = np.random.default_rng(0)
    features = (1e4 + rng.standard_normal((4096, 3))).astype(dtype)
    features[::32] = rng.standard_normal((128, 3)).astype(dtype)
    features[::32, 2] = 1e6
    labels = rng.integers(3, size=4096)
    expected = reference(features, labels)
    assert_same(Statistics.of_block(features, labels, overwrite=overwrite), expected, rtol)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_a_block_sorted_by_value(dtype: type, rtol: float) -> None:
    features = np.sort(np.random.default_rng(0).normal(1e3, 1.0, (3000, 4)), axis=0).astype(dtype)
    labels = np.repeat([0, 1, 2], 1000)
    assert_same(Statistics.of_block(features, labels), reference(features, labels), rtol)
