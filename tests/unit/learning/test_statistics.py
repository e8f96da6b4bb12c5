"""Statistics of one block, and what they refuse."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sadih_dask.errors import DtypeError, InputError, LabelError, NonFiniteError
from sadih_dask.learning.statistics import (
    MERGE_FAN_IN,
    Statistics,
    canonical_blocks,
    check_finite,
    compute_dtype,
    merge_in_order,
)
from tests.support.dense import standardise
from tests.support.statistics import assert_same, reference


def rows(seed: int = 0, n: int = 50, d: int = 4, c: int = 3) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(c, size=n)
    return rng.normal(size=(n, d)) * 3 + labels[:, None], labels


# --- one block -------------------------------------------------------------------------------


def test_by_hand() -> None:
    found = Statistics.of_block(np.array([[1.0, 2], [3, 2], [5, 8]]), np.array([1, 0, 1]))
    assert found.counts.tolist() == [1, 2]
    assert found.mean.tolist() == [3, 4]
    assert found.sums.tolist() == [[0, -2], [0, 2]]
    assert found.gram.tolist() == [[8, 12], [12, 24]]
    assert (found.n_samples, found.n_features) == (3, 2)
    np.testing.assert_allclose(found.variance, [8 / 3, 8])


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, np.uint8, np.int8, np.int32, np.int64, bool]
)
def test_a_block_of_any_number_type(dtype: type) -> None:
    rng = np.random.default_rng(1)
    features = rng.random((300, 100)) * 100  # more columns than are summed at once
    features = features < 30 if dtype is bool else features.astype(dtype)
    labels = rng.integers(4, size=300)
    found = Statistics.of_block(features, labels)
    for array in (found.mean, found.sums, found.gram):
        assert array.dtype == np.float64
    # Products in float32 leave 6e-6 in the Gram matrix, whose terms here are often all equal.
    single = compute_dtype(features.dtype) == np.float32
    assert_same(found, reference(features, labels), 1e-5 if single else 1e-12)


def test_working_precision_holds_the_data_exactly() -> None:
    assert {compute_dtype(np.dtype(t)) for t in ("f2", "f4", "u1", "i2", "?")} == {np.dtype("f4")}
    assert {compute_dtype(np.dtype(t)) for t in ("f8", "i4", "i8", "u8")} == {np.dtype("f8")}


def test_any_memory_layout() -> None:
    features, labels = rows()
    expected = Statistics.of_block(features, labels)
    for other in (np.asfortranarray(features), np.repeat(features, 2, axis=0)[::2]):
        assert_same(Statistics.of_block(other, labels), expected)
    read_only = features.copy()
    read_only.flags.writeable = False
    assert_same(Statistics.of_block(read_only, labels), expected)


@pytest.mark.parametrize("sparse", [False, True])
def test_multi_label_rows(sparse: bool) -> None:
    features, _ = rows(n=40)
    labels = np.random.default_rng(2).integers(0, 2, size=(40, 4))
    labels[:, 3] |= labels.sum(axis=1) == 0
    found = Statistics.of_block(features, sp.csr_array(labels) if sparse else labels)
    assert_same(found, reference(features, labels))
    # The sums over labels, X Y^T, follow from the sums over groups.
    raw = found.sums + found.counts[:, None] * found.mean
    np.testing.assert_allclose(found.groups.matrix.T @ raw, labels.T @ features, atol=1e-10)


def test_one_row() -> None:
    found = Statistics.of_block(np.array([[1e6, 3.0]]), np.array([2]))
    assert (found.mean.tolist(), found.counts.tolist()) == ([1e6, 3], [1])
    assert not found.sums.any()
    assert not found.gram.any()
    assert found.scale.tolist() == [1, 1]


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-12), (np.float32, 1e-6)])
def test_a_large_mean_loses_nothing(dtype: type, rtol: float) -> None:
    # The values themselves are rounded on entry, to 0.06 in float32; the reference sees the same
    # values. In float32 only the products are rounded, not the sums: those stay exact.
    rng = np.random.default_rng(3)
    features = (1e6 + rng.standard_normal((5000, 6))).astype(dtype)
    labels = rng.integers(3, size=5000)
    found, expected = Statistics.of_block(features, labels), reference(features, labels)
    assert_same(found, expected, rtol)
    np.testing.assert_allclose(found.variance, expected.gram.diagonal() / 5000, rtol=rtol)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float16, np.float32])
def test_long_sums_of_few_digits_do_not_drift(dtype: type) -> None:
    # Rows sorted by class, where the sums grow largest: a running sum in float32 would put the
    # mean of the booleans off by 3e-4 standard deviations.
    n = 2**16
    rng = np.random.default_rng(0)
    features = (rng.random((n, 2)) < np.repeat([0.1, 0.9], n // 2)[:, None]).astype(dtype)
    labels = np.repeat([0, 1], n // 2)
    found, expected = Statistics.of_block(features, labels), reference(features, labels)
    assert_same(found, expected, 1e-5)
    np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-9)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9)


# --- views -----------------------------------------------------------------------------------


def test_standardised_views() -> None:
    features, labels = rows()
    features[:, 2] = 0.3
    found = Statistics.of_block(features, labels)
    members = labels == np.arange(3)[:, None]
    Z = standardise(features.T)
    np.testing.assert_allclose(found.standardised_sums(), members @ Z.T, atol=1e-10)
    np.testing.assert_allclose(found.standardised_gram(), Z @ Z.T, atol=1e-10)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6 / 3, 1e-20, 1e100])
@pytest.mark.parametrize("cuts", [[], [1, 4, 11, 74, 301, 302]])
def test_a_constant_column_is_centred_and_not_scaled(value: float, cuts: list[int]) -> None:
    # Means of different numbers of rows round differently, and leave noise where they are merged.
    features = np.column_stack([np.full(700, value), np.arange(700.0)])
    labels = np.arange(700) % 3
    parts = zip(np.split(features, cuts), np.split(labels, cuts), strict=True)
    found = merge_in_order(Statistics.of_block(part, part_labels, 3) for part, part_labels in parts)
    assert found.scale[0] == 1
    assert abs(found.mean[0] - value) <= 1e-15 * abs(value)
    assert np.abs(found.standardised_sums()[:, 0]).max() <= 1e-12 * abs(value)
    assert np.abs(found.standardised_gram()[0]).max() <= 1e-10 * abs(value)


def test_noise_about_a_constant_is_not_scaled_to_unit_variance() -> None:
    blocks = [Statistics.of_block(np.full((k, 1), 0.1), np.zeros(k, int)) for k in range(1, 200)]
    means = {float(block.mean[0]) for block in blocks}
    merged = merge_in_order(blocks)
    # What is left when two means differ in the last digit.
    noisy = replace(merged, gram=np.full((1, 1), 1e-31))
    assert means <= {0.1, np.nextafter(0.1, 0), np.nextafter(0.1, 1)}
    assert merged.scale == noisy.scale == 1


def test_a_small_column_is_not_a_constant_one() -> None:
    features = np.random.default_rng(0).standard_normal((50, 2)) * [1e-30, 1e-9] + [0, 1]
    found = Statistics.of_block(features, np.zeros(50, int))
    np.testing.assert_allclose(found.scale, features.std(axis=0), rtol=1e-6)
    np.testing.assert_allclose(np.diagonal(found.standardised_gram()), 50)


def test_relabel_and_compact() -> None:
    features, labels = rows(c=3)
    found = Statistics.of_block(features, labels)
    assert_same(
        found.relabel(np.array([1, 4, 5]), 7),
        Statistics.of_block(features, np.array([1, 4, 5])[labels], n_classes=7),
    )
    small, kept = found.relabel(np.array([1, 4, 5]), 7).compact()
    assert kept.tolist() == [1, 4, 5]
    assert_same(small, found)


# --- the reduction tree ----------------------------------------------------------------------


def test_canonical_blocks_cover_the_rows_once() -> None:
    assert list(canonical_blocks(10, 4)) == [slice(0, 4), slice(4, 8), slice(8, 10)]
    assert list(canonical_blocks(8, 4)) == [slice(0, 4), slice(4, 8)]
    assert list(canonical_blocks(3, 4)) == [slice(0, 3)]
    assert list(canonical_blocks(0, 4)) == []


class Name:
    """Stands in for statistics, and writes down in which order it was merged."""

    def __init__(self, name: str) -> None:
        self.name = name

    def merge(self, other: "Name") -> "Name":
        return Name(f"({self.name} {other.name})")


@pytest.mark.parametrize("count", [*range(1, 30), 63, 64, 65, 72, 73, 512, 513, 600])
def test_the_tree_has_the_documented_shape(count: int) -> None:
    nodes: list[Any] = [Name(str(k)) for k in range(count)]
    found: Any = merge_in_order(iter(nodes))
    while len(nodes) > 1:
        level = []
        for start in range(0, len(nodes), MERGE_FAN_IN):
            first, *others = nodes[start : start + MERGE_FAN_IN]
            for other in others:
                first = first.merge(other)
            level.append(first)
        nodes = level
    assert found.name == nodes[0].name


def test_no_parts() -> None:
    with pytest.raises(InputError, match="no rows to learn from"):
        merge_in_order([])


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_number_that_is_not_finite_is_named(value: float, dtype: type) -> None:
    features, labels = rows()
    features = features.astype(dtype)
    features[[17, 30], [3, 0]] = value
    with pytest.raises(NonFiniteError, match=rf"{value} at row 17, column 3;.*Remove or impute"):
        Statistics.of_block(features, labels)
    with pytest.raises(NonFiniteError, match=r"at row 1000017, column 3"):
        Statistics.of_block(features, labels, first_row=10**6)
    with pytest.raises(NonFiniteError, match=r"queries hold .* at row 22, column 3"):
        check_finite(features, first_row=5, name="queries")


@pytest.mark.parametrize(("dtype", "huge"), [(np.float64, 1e200), (np.float32, 1e30)])
def test_squares_that_overflow(dtype: type, huge: float) -> None:
    features, labels = rows()
    features = features.astype(dtype)
    features[3, 1] = huge
    check_finite(features)
    with pytest.raises(NonFiniteError, match=r"rows 200 to 249, column 1, .*overflow; rescale"):
        Statistics.of_block(features, labels, first_row=200)


def test_a_mean_that_overflows() -> None:
    features, labels = rows()
    features[:, 2] = 1.7e308
    with pytest.raises(NonFiniteError, match=r"column 2, .*overflow; rescale"):
        Statistics.of_block(features, labels)


@pytest.mark.parametrize("shape", [(0, 4), (5,), (2, 2, 2)])
def test_features_that_are_not_a_table_of_rows(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"features have shape .*with a row or more"):
        Statistics.of_block(np.zeros(shape), np.zeros(5, int))


@pytest.mark.parametrize("dtype", ["U3", object, complex, "M8[s]"])
def test_features_that_are_not_numbers(dtype: Any) -> None:
    with pytest.raises(DtypeError, match=r"features have dtype .*astype"):
        Statistics.of_block(np.zeros((2, 2)).astype(dtype), np.array([0, 1]))


def test_labels_of_other_rows() -> None:
    features, labels = rows()
    with pytest.raises(LabelError, match="50 rows of features but 49 rows of labels"):
        Statistics.of_block(features, labels[:-1])
    with pytest.raises(LabelError, match=r"not below n_classes=2"):
        Statistics.of_block(features, labels, n_classes=2)


def test_statistics_of_other_columns() -> None:
    a, b = (Statistics.of_block(np.ones((2, d)), np.array([0, 1])) for d in (3, 4))
    with pytest.raises(InputError, match=r"statistics of 3 features .* statistics of 4"):
        a.merge(b)
    with pytest.raises(InputError, match=r"statistics of 4 features .* statistics of 3"):
        b.without(a)


def test_one_part_may_know_more_classes_than_the_other() -> None:
    a, b = (Statistics.of_block(np.ones((2, 3)), np.array([0, 1]), c) for c in (2, 3))
    assert a.merge(b).groups.n_classes == b.merge(a).groups.n_classes == 3
    assert a.merge(b).groups.n_groups == 2
    with pytest.raises(LabelError, match="count 3 and 2 classes"):
        b.without(a)


def test_rows_that_were_never_put_in_cannot_be_taken_out() -> None:
    def block(labels: list[int]) -> Statistics:
        return Statistics.of_block(np.ones((len(labels), 2)), np.array(labels), n_classes=3)

    held = block([0, 1, 1])
    for other in (block([2]), block([0, 0])):
        with pytest.raises(LabelError, match="only rows that were put in can be taken out"):
            held.without(other)
    with pytest.raises(InputError, match="all 3 rows would be taken out"):
        held.without(held)
