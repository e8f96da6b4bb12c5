"""Counts of items and relevant items by Hamming distance."""

from typing import Any

import numpy as np
import pytest

from sadih_dask.errors import InputError, LabelError
from sadih_dask.learning.labels import group_rows
from sadih_dask.retrieval import histograms as module
from sadih_dask.retrieval.codes import pack
from sadih_dask.retrieval.histograms import Histograms, hamming_histograms
from tests.support import rankings


def codes(n: int, n_bits: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(2, size=(n, n_bits), dtype=np.uint8)


def multi_hot(n: int, c: int, seed: int) -> Any:
    labels = np.random.default_rng(seed).random((n, c)) < 0.3
    labels[np.arange(n), np.arange(n) % c] = True
    return labels.astype(np.uint8)


def naive(queries: Any, Y_queries: Any, database: Any, Y_database: Any) -> Histograms:
    distance = (queries[:, None] != database[None]).sum(axis=2)
    relevant = Y_queries.astype(int) @ Y_database.astype(int).T > 0
    return rankings.histograms(distance, relevant, queries.shape[1])


def equal(found: Histograms, expected: Histograms) -> None:
    np.testing.assert_array_equal(found.relevant, expected.relevant)
    np.testing.assert_array_equal(found.total, expected.total)
    assert found.relevant.dtype == found.total.dtype == np.int64


def test_by_hand() -> None:
    query, items = (
        np.array([[0b0011]], np.uint8),
        np.array([[0b0011], [0b0111], [0b1011]], np.uint8),
    )
    found = hamming_histograms(query, group_rows([1], 3), items, group_rows([1, 1, 2]), 4)
    assert found.total.tolist() == [[1, 2, 0, 0, 0]]
    assert found.relevant.tolist() == [[1, 1, 0, 0, 0]]


@pytest.mark.parametrize("n_bits", [1, 5, 16, 70])
@pytest.mark.parametrize("pairs", [1, 100, 2**22])
def test_against_a_loop(n_bits: int, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_PAIRS", pairs)
    queries, database = codes(13, n_bits, 0), codes(40, n_bits, 1)
    Y_queries, Y_database = multi_hot(13, 5, 2), multi_hot(40, 5, 3)
    found = hamming_histograms(
        pack(queries), group_rows(Y_queries), pack(database), group_rows(Y_database), n_bits
    )
    equal(found, naive(queries, Y_queries, database, Y_database))
    assert np.all(found.total.sum(axis=1) == 40)


def test_parts_of_the_database_add_up() -> None:
    queries, database = codes(6, 12, 0), codes(30, 12, 1)
    Y_queries, Y_database = multi_hot(6, 4, 2), multi_hot(30, 4, 3)

    def of(rows: slice) -> Histograms:
        part = group_rows(Y_database[rows], 4)
        return hamming_histograms(
            pack(queries), group_rows(Y_queries, 4), pack(database[rows]), part, 12
        )

    parts = of(slice(0, 7)).merge(of(slice(7, 7))).merge(of(slice(7, 30)))
    equal(parts, of(slice(0, 30)))


def test_counts_stand_for_that_many_rows() -> None:
    """The learned protocol: one code a label group, with its number of rows, or every row."""
    queries, Y_queries = codes(8, 16, 0), multi_hot(8, 4, 2)
    groups, ids = group_rows(multi_hot(60, 4, 3))
    learned = codes(len(groups), 16, 1)
    by_count = hamming_histograms(
        pack(queries),
        group_rows(Y_queries),
        pack(learned),
        (groups, np.arange(len(groups))),
        16,
        counts=np.bincount(ids),
    )
    by_row = hamming_histograms(
        pack(queries), group_rows(Y_queries), pack(learned[ids]), (groups, ids), 16
    )
    equal(by_count, by_row)


def test_counts_of_a_large_collection_are_exact() -> None:
    groups = group_rows([0, 1])
    found = hamming_histograms(
        pack(np.eye(2)), groups, pack(np.eye(2)), groups, 2, counts=np.array([2**52 - 1, 2**40 + 1])
    )
    assert found.total.tolist() == [[2**52 - 1, 0, 2**40 + 1], [2**40 + 1, 0, 2**52 - 1]]


def test_no_queries_and_no_items() -> None:
    some, none = pack(codes(3, 8, 0)), pack(codes(0, 8, 0))
    labels, nothing = group_rows([0, 1, 0], 2), group_rows(np.zeros(0, int), 2)
    assert hamming_histograms(none, nothing, some, labels, 8).total.shape == (0, 9)
    assert not hamming_histograms(some, labels, none, nothing, 8).total.any()


def test_labels_that_do_not_fit_the_codes() -> None:
    some = pack(codes(3, 8, 0))
    with pytest.raises(LabelError, match="queries hold 3 codes but 2 rows of labels"):
        hamming_histograms(some, group_rows([0, 1]), some, group_rows([0, 1, 1]), 8)
    with pytest.raises(LabelError, match="the database hold 3 codes but 2 rows of labels"):
        hamming_histograms(some, group_rows([0, 1, 1]), some, group_rows([0, 1]), 8)


def test_codes_of_another_length() -> None:
    labels = group_rows([0, 1, 1])
    with pytest.raises(InputError, match=r"bytes a code|bits take"):
        hamming_histograms(pack(codes(3, 8, 0)), labels, pack(codes(3, 9, 0)), labels, 8)
