"""Label groups: the distinct label sets of some rows, found from every form of labels."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sadih_dask.errors import DtypeError, LabelError, SadihError
from sadih_dask.learning.labels import LabelGroups, group_rows

MULTI_HOT = np.array([[0, 1, 1], [1, 0, 0], [0, 1, 1], [0, 0, 1], [1, 0, 1]])
SETS = [(0,), (2,), (0, 2), (1, 2)]  # smaller sets first, then by their labels
IDS = [3, 0, 3, 1, 2]


def empty(n_classes: int) -> LabelGroups:
    return LabelGroups(np.zeros(1, np.int64), np.zeros(0, np.int64), n_classes)


def sets(groups: LabelGroups) -> list[tuple[int, ...]]:
    bounds = zip(groups.indptr[:-1], groups.indptr[1:], strict=True)
    return [tuple(int(k) for k in groups.indices[start:stop]) for start, stop in bounds]


def of_sets(label_sets: list[tuple[int, ...]], n_classes: int) -> LabelGroups:
    matrix = np.zeros((len(label_sets), n_classes), np.uint8)
    for row, labels in enumerate(label_sets):
        matrix[row, list(labels)] = 1
    return group_rows(matrix)[0]


# --- every form of labels --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint16, np.float32])
def test_class_numbers(dtype: type) -> None:
    groups, ids = group_rows(np.array([2, 0, 2, 5], dtype))
    assert sets(groups) == [(0,), (2,), (5,)]
    assert ids.tolist() == [1, 0, 1, 2]
    assert ids.dtype == np.int64
    assert (groups.n_classes, groups.n_groups, len(groups)) == (6, 3, 3)
    assert groups.single_label


def test_class_numbers_as_list_as_booleans_and_sparse() -> None:
    assert sets(group_rows([1, 0, 1])[0]) == [(0,), (1,)]
    for labels in (np.array([True, False, True]), sp.coo_array(np.array([1, 0, 1]))):
        groups, ids = group_rows(labels)
        assert sets(groups) == [(0,), (1,)]
        assert ids.tolist() == [1, 0, 1]


def test_more_classes_than_occur() -> None:
    groups, ids = group_rows(np.array([3, 1]), n_classes=10)
    assert (groups.n_classes, sets(groups), ids.tolist()) == (10, [(1,), (3,)], [1, 0])


def test_no_rows_make_no_groups() -> None:
    for labels in (np.zeros(0, np.int64), np.zeros((0, 4), bool), sp.csr_array((0, 4))):
        groups, ids = group_rows(labels)
        assert groups.n_groups == 0
        assert len(ids) == 0
    assert group_rows(np.zeros(0, np.int64), 7)[0] == empty(7)


@pytest.mark.parametrize(
    "labels",
    [
        MULTI_HOT.astype(bool),
        MULTI_HOT.astype(np.uint8),
        MULTI_HOT.astype(np.float64),
        MULTI_HOT.astype(np.float16),
        MULTI_HOT.tolist(),
        sp.csr_array(MULTI_HOT),
        sp.csc_array(MULTI_HOT.astype(bool)),
        sp.coo_array(MULTI_HOT.astype(np.float32)),
        sp.csr_matrix(MULTI_HOT),
    ],
    ids=lambda labels: f"{type(labels).__name__}-{getattr(labels, 'dtype', 'int')}",
)
def test_multi_hot(labels: Any) -> None:
    groups, ids = group_rows(labels)
    assert sets(groups) == SETS
    assert ids.tolist() == IDS
    assert groups.n_classes == 3
    assert not groups.single_label
    np.testing.assert_array_equal(groups.matrix.toarray()[ids], MULTI_HOT)


def test_stored_zeros_and_unsorted_indices_of_a_sparse_matrix_do_not_matter() -> None:
    data, indices, indptr = [1, 1, 0, 1], [2, 1, 0, 2], [0, 2, 4]
    messy = sp.csr_array((data, indices, indptr), shape=(2, 3))
    groups, ids = group_rows(messy)
    assert (sets(groups), ids.tolist()) == ([(2,), (1, 2)], [1, 0])
    assert messy.nnz == 4  # the caller's matrix is left alone


def test_one_label_per_row_is_the_same_in_every_form() -> None:
    numbers = np.array([2, 0, 2, 1])
    groups, ids = group_rows(numbers)
    for labels in (np.eye(3)[numbers], sp.csr_array(np.eye(3)[numbers])):
        other, other_ids = group_rows(labels)
        assert other == groups
        assert other.single_label
        assert other_ids.tolist() == ids.tolist()


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_groups_does_not_depend_on_the_order_of_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, size=(60, 5))
    labels[:, 0] |= labels.sum(axis=1) == 0
    groups, ids = group_rows(labels)
    assert sets(groups) == sorted(set(sets(groups)), key=lambda s: (len(s), s))
    np.testing.assert_array_equal(groups.matrix.toarray()[ids], labels)
    order = rng.permutation(60)
    other, other_ids = group_rows(labels[order])
    assert other == groups
    np.testing.assert_array_equal(other_ids, ids[order])


# --- tables ----------------------------------------------------------------------------------


def test_equality_is_by_value_and_tables_are_unhashable() -> None:
    groups = of_sets([(0,), (1, 2)], 3)
    assert groups == of_sets([(1, 2), (0,), (0,)], 3)
    assert groups != of_sets([(0,), (1, 2)], 4)
    assert groups != of_sets([(0,), (0, 2)], 3)
    assert groups != "groups"
    with pytest.raises(TypeError, match="unhashable"):
        hash(groups)


def test_union_says_where_each_group_went() -> None:
    a, b = of_sets([(2,), (0, 1)], 3), of_sets([(0,), (2,), (0, 1, 2)], 3)
    union, of_a, of_b = a.union(b)
    assert sets(union) == [(0,), (2,), (0, 1), (0, 1, 2)]
    assert [sets(union)[k] for k in of_a] == sets(a)
    assert [sets(union)[k] for k in of_b] == sets(b)
    flipped, of_b, of_a = b.union(a)
    assert flipped == union
    assert [sets(flipped)[k] for k in of_a] == sets(a)


def test_union_with_itself_and_with_nothing() -> None:
    a = of_sets([(2,), (0, 1)], 3)
    same, first, second = a.union(of_sets([(2,), (0, 1)], 3))
    assert (same, first.tolist(), second.tolist()) == (a, [0, 1], [0, 1])
    union, of_a, of_none = a.union(empty(3))
    assert (union, of_a.tolist(), len(of_none)) == (a, [0, 1], 0)


def test_find_gives_minus_one_for_what_is_not_there() -> None:
    a = of_sets([(2,), (0, 1)], 3)
    assert a.find(of_sets([(1,), (2,), (0, 1), (0, 2)], 3)).tolist() == [-1, 0, 1, -1]
    assert a.find(a).tolist() == [0, 1]
    assert empty(3).find(a).tolist() == [-1, -1]


def test_take_by_mask_and_by_position() -> None:
    a = of_sets([(0,), (1,), (0, 1)], 2)
    assert sets(a.take(np.array([True, False, True]))) == [(0,), (0, 1)]
    assert sets(a.take(np.array([1, 2]))) == [(1,), (0, 1)]
    assert a.take(np.zeros(3, bool)) == empty(2)


def test_relabel_keeps_the_order_of_groups() -> None:
    a = of_sets([(0,), (2,), (0, 1)], 3)
    wider, _ = a.relabel(np.array([1, 3, 4]), 6)
    assert sets(wider) == [(1,), (4,), (1, 3)]
    assert wider == of_sets(sets(wider), 6)  # still canonical


def test_relabelling_in_any_order_says_where_groups_went() -> None:
    a = of_sets([(0,), (2,), (0, 1), (0, 2)], 3)
    found, order = a.relabel(np.array([4, 0, 2]), 5)
    assert sets(found) == [(2,), (4,), (0, 4), (2, 4)]
    assert order.tolist() == [1, 0, 2, 3]
    assert found == of_sets(sets(found), 5)  # still canonical


def test_compact_drops_labels_that_no_group_carries() -> None:
    a = of_sets([(1,), (1, 4)], 6)
    small, kept = a.compact()
    assert (sets(small), small.n_classes, kept.tolist()) == ([(0,), (0, 1)], 2, [1, 4])
    assert small.relabel(kept, 6)[0] == a


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "n_classes", "message"),
    [
        ([0, -1, -1], None, r"row 1 is .*-1.*negative \(2 such rows\).*drop unlabelled rows"),
        ([0.0, np.nan], None, r"row 1 is .*nan.*missing.*drop the row or give it a class"),
        ([0.0, np.inf], None, r"row 1 is .*inf.*missing"),
        ([0.0, 1.5], None, r"row 1 is .*1\.5.*not a whole number"),
        ([0, 3, 1], 3, r"row 1 is .*3.*not below n_classes=3.*raise n_classes"),
        ([[1, 0], [0, 2]], None, r"holds .*2.* at row 1, column 1; .*only 0 and 1"),
        ([[1.0, 0.0], [np.nan, 1.0]], None, r"holds .*nan.* at row 1, column 0"),
        ([[1, 0], [0, -1]], None, r"holds .*-1.* at row 1, column 1"),
        ([[1, 0], [0, 0], [0, 0]], None, r"row 1 .*no label \(2 such rows\).*drop unlabelled"),
        ([[1, 0]], 3, r"has 2 columns; expected n_classes=3"),
        (np.zeros((2, 2, 2)), None, r"have 3 dimensions; expected \(rows,\) or \(rows, classes\)"),
        (np.array(1), None, r"have 0 dimensions"),
        (sp.csr_array([[1, 0], [0, 3]]), None, r"holds .*3.* at row 1, column 1; .*only 0 and 1"),
        (sp.coo_array(([1, 1], ([0, 0], [1, 1]))), None, r"holds .*2.* at row 0, column 1"),
        (sp.csr_array([[1, 0], [0, 0]]), None, r"row 1 .*no label"),
        (sp.csr_array([[1, 0]]), 3, r"has 2 columns; expected n_classes=3"),
    ],
)
def test_labels_that_cannot_be_used(labels: Any, n_classes: int | None, message: str) -> None:
    with pytest.raises(LabelError, match=message) as caught:
        group_rows(labels, n_classes)
    assert isinstance(caught.value, SadihError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "labels", [["cat", "dog"], np.array([1j]), np.array([None, 1]), sp.csr_array([[1j]])]
)
def test_labels_that_are_not_numbers(labels: Any) -> None:
    with pytest.raises(DtypeError, match=r"labels have dtype .*Encode class names as integers"):
        group_rows(labels)


def test_tables_of_different_classes_do_not_mix() -> None:
    with pytest.raises(LabelError, match=r"count 2 and 3 classes"):
        empty(2).union(empty(3))
    with pytest.raises(LabelError, match=r"count 3 and 2 classes"):
        empty(3).find(empty(2))
