"""Packed codes and their Hamming distances."""

from typing import Any

import faiss
import numpy as np
import pytest

from sadih_dask.errors import DtypeError, InputError
from sadih_dask.retrieval.codes import check_packed, distances, n_bytes, pack, unpack


def bits(n: int, n_bits: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(2, size=(n, n_bits), dtype=np.uint8)


def test_by_hand() -> None:
    code = np.array([[1, -1, 1, -1, -1, -1, -1, -1, 1]])
    assert pack(code).tolist() == [[0b101, 1]]
    assert unpack(pack(code), 9).tolist() == [[1, 0, 1, 0, 0, 0, 0, 0, 1]]


def test_zero_is_not_set() -> None:
    assert pack(np.array([[0.0, -0.0, 1e-300, -1e-300]])).tolist() == [[0b100]]


@pytest.mark.parametrize(("n_bits", "expected"), [(1, 1), (8, 1), (9, 2), (64, 8), (65, 9)])
def test_bytes_of_a_code(n_bits: int, expected: int) -> None:
    assert n_bytes(n_bits) == expected
    assert pack(bits(3, n_bits)).shape == (3, expected)


def test_codes_that_are_none() -> None:
    packed = pack(bits(3, 12))
    with pytest.raises(DtypeError, match=r"dtype int64; packed codes are uint8.*pack"):
        unpack(packed.astype(np.int64), 12)
    with pytest.raises(InputError, match=r"shape \(3, 2\); 17 bits take \(rows, 3\)"):
        unpack(packed, 17)
    with pytest.raises(InputError, match=r"queries have shape \(2,\); 12 bits take \(rows, 2\)"):
        check_packed(packed[0], 12, "queries")


@pytest.mark.parametrize("n_bits", [1, 7, 8, 63, 64, 65, 200])
def test_distances_against_a_loop(n_bits: int) -> None:
    queries, database = bits(5, n_bits), bits(9, n_bits, 1)
    expected = [[int(np.sum(a != b)) for b in database] for a in queries]
    found = distances(pack(queries), pack(database))
    assert found.dtype == np.int64
    assert found.tolist() == expected


def test_distances_of_codes_in_any_memory_layout() -> None:
    packed = pack(bits(10, 128))
    expected = distances(packed, packed)
    assert expected.diagonal().sum() == 0
    for other in (np.asfortranarray(packed), np.repeat(packed, 2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(distances(other, other), expected)
    packed.flags.writeable = False
    np.testing.assert_array_equal(distances(packed, packed[::-1]), expected[:, ::-1])


def test_distances_to_nothing() -> None:
    packed = pack(bits(3, 16))
    assert distances(packed, packed[:0]).shape == (3, 0)
    assert distances(packed[:0], packed).shape == (0, 3)


def test_codes_of_different_lengths() -> None:
    with pytest.raises(InputError, match=r"1 bytes a code and the database 2; both must come from"):
        distances(pack(bits(1, 8)), pack(bits(1, 16)))


@pytest.mark.parametrize("n_bits", [8, 32, 64, 13])
def test_faiss_reads_the_same_bytes(n_bits: int) -> None:
    queries, database = pack(bits(7, n_bits)), pack(bits(50, n_bits, 1))
    index = faiss.IndexBinaryFlat(8 * n_bytes(n_bits))
    index.add(database)
    near, places = index.search(queries, 50)
    np.testing.assert_array_equal(
        near, np.take_along_axis(distances(queries, database), places, axis=1)
    )
