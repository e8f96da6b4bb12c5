"""Anchor features: radial basis functions about training rows."""

from typing import Any

import numpy as np
import pytest

from sadih_dask.errors import DtypeError, NonFiniteError
from sadih_dask.learning.features import WIDTH, AnchorMap, sample_rows


def rows(n: int = 40, d: int = 3, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(n, d)) * [1, 10, 0.1] + [5, -100, 0]


def make(sample: Any, n_anchors: int = 7, **options: Any) -> AnchorMap:
    return AnchorMap.from_sample(sample, n_anchors, np.random.default_rng(1), **options)


def test_by_the_formula() -> None:
    X = rows()
    mapped = make(X)
    anchors = mapped.anchors + mapped.centre
    expected = [[np.exp(-np.sum((x - a) ** 2) / (2 * mapped.sigma**2)) for a in anchors] for x in X]
    found = mapped(X)
    assert found.shape == (40, 7) == (len(X), mapped.n_features)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_anchors_are_rows_of_the_sample_and_none_twice() -> None:
    X = rows()
    mapped = make(X)
    distance = np.linalg.norm((mapped.anchors + mapped.centre)[:, None] - X, axis=2)
    nearest = distance.argmin(axis=1)
    np.testing.assert_allclose(distance.min(axis=1), 0.0, atol=1e-12)
    assert len(set(nearest)) == 7


def test_the_width_follows_the_mean_distance() -> None:
    X = rows()
    mapped = make(X)
    distance = np.linalg.norm(X[:, None] - (mapped.anchors + mapped.centre), axis=2)
    assert mapped.sigma == pytest.approx(WIDTH * distance.mean())
    assert make(X * 1000).sigma == pytest.approx(1000 * mapped.sigma)


def test_a_given_width_is_kept() -> None:
    X = rows()
    assert make(X, sigma=3.5).sigma == 3.5
    wide, narrow = make(X, sigma=1e6)(X), make(X, sigma=1e-3)(X)
    np.testing.assert_allclose(wide, 1.0)
    assert sorted(narrow.sum(axis=1).round(6)) == [0] * 33 + [1] * 7  # each anchor sees itself


def test_a_row_far_away_is_near_no_anchor() -> None:
    mapped = make(rows())
    assert mapped(np.full((1, 3), 1e9)).tolist() == [[0.0] * 7]


def test_fewer_rows_than_anchors() -> None:
    X = rows(5)
    assert make(X, 100).n_features == 5
    np.testing.assert_allclose(make(X, 100)(X).diagonal(), 1.0)


def test_identical_rows() -> None:
    X = np.full((6, 3), 2.5)
    mapped = make(X)
    assert mapped.sigma == 1.0
    assert mapped(X).tolist() == [[1.0] * 6] * 6


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int16])
def test_low_precision_comes_close(dtype: type) -> None:
    X = np.abs(rows() * [1, 0.5, 100]).astype(dtype)
    mapped = make(X)
    found = mapped(X)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, mapped(X.astype(np.float64)), atol=1e-5)


def test_double_precision_for_what_needs_it() -> None:
    assert {make(rows())(rows().astype(t)).dtype for t in (np.float64, np.int64)} == {
        np.dtype(float)
    }


def test_a_large_mean_changes_nothing() -> None:
    X = np.round(rows() * 1024) / 1024
    near, far = make(X), make(X + 2.0**20)
    np.testing.assert_allclose(far(X + 2.0**20), near(X), rtol=1e-6)


def test_the_input_is_not_changed() -> None:
    X = rows()
    before = X.copy()
    X.flags.writeable = False
    make(X)(X)
    np.testing.assert_array_equal(X, before)


def test_the_same_generator_gives_the_same_map() -> None:
    X = rows()
    np.testing.assert_array_equal(make(X).anchors, make(X).anchors)


def test_what_is_not_a_number() -> None:
    with pytest.raises(DtypeError, match=r"dtype <U.*expected real numbers"):
        make(rows())(rows().astype(str))


def test_numbers_whose_distances_overflow() -> None:
    with pytest.raises(NonFiniteError, match=r"so large that the squares.*rescale"):
        make(rows() * 1e200)


# --- which rows are looked at ----------------------------------------------------------------


def test_a_small_collection_is_its_own_sample() -> None:
    rng = np.random.default_rng(0)
    assert sample_rows(10, 10, 4, rng).tolist() == list(range(10))
    assert sample_rows(10, 99, 4, rng).tolist() == list(range(10))


@pytest.mark.parametrize(
    ("n", "size", "block_rows"),
    [(1000, 100, 64), (1000, 999, 1), (100_000, 500, 256), (77, 9, 100)],
)
def test_a_sample_is_ascending_and_about_as_large_as_asked(
    n: int, size: int, block_rows: int
) -> None:
    found = sample_rows(n, size, block_rows, np.random.default_rng(0))
    assert np.all(np.diff(found) > 0)
    assert 0 <= found[0] <= found[-1] < n
    assert min(size, 64 * block_rows) <= len(found) <= size + 64


def test_a_sample_comes_from_few_blocks_of_all_parts_of_the_collection() -> None:
    found = sample_rows(1_000_000, 10_000, 1000, np.random.default_rng(0))
    blocks = np.unique(found // 1000)
    assert len(blocks) == 64
    assert np.all(np.diff(blocks) < 2 * 1000 / 64 + 1)
