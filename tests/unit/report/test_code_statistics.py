"""What a report shows of codes: bits, neighbours, pictures, the best that was possible."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sadih_dask import SADIH, CodeStore, FeatureStore
from sadih_dask.compute.codes import DatabaseCodes
from sadih_dask.compute.encode import HashRows
from sadih_dask.compute.rows import ArrayRows
from sadih_dask.report.code_statistics import (
    BitCounts,
    Buckets,
    gather,
    pictured,
    spread_of,
)
from sadih_dask.retrieval.codes import distances, pack
from sadih_dask.retrieval.nearest import Neighbours

N_BITS = 13


def codes(n: int, seed: int) -> np.ndarray:
    return pack(np.random.default_rng(seed).choice([-1.0, 1.0], (n, N_BITS)))


def same_bits(found: BitCounts, expected: BitCounts) -> None:
    assert found.n_rows == expected.n_rows
    np.testing.assert_array_equal(found.ones, expected.ones)
    np.testing.assert_array_equal(found.both, expected.both)


def test_one_pass_gives_bits_and_neighbours(tmp_path: Path) -> None:
    """However rows are divided, they are the first of a stable sort of all distances."""
    database, queries = codes(500, 1), codes(5, 2)
    d = distances(queries, database)
    order = np.argsort(d, axis=1, kind="stable")[:, :9]
    store = CodeStore.create(tmp_path / "c", database, n_bits=N_BITS, model="m", chunk_rows=64)
    for source in (DatabaseCodes.in_memory(database, N_BITS), DatabaseCodes.of_store(store)):
        counted, found = gather(source, queries, k=9)
        np.testing.assert_array_equal(found.rows, order)
        np.testing.assert_array_equal(found.distances, np.take_along_axis(d, order, axis=1))
        same_bits(counted, BitCounts.of_block(database, N_BITS))


def test_rows_can_be_hashed_on_the_way() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 6)), rng.integers(0, 3, 200)
    model = SADIH(n_bits=N_BITS, anchors=None, n_init=1).fit(x, y)
    hashed = DatabaseCodes.of_rows(ArrayRows(x, y), HashRows(model.hash_function_), 50)
    counted, found = gather(hashed, model.transform(x[:3]), k=4)
    expected_counts, expected = gather(
        DatabaseCodes.in_memory(model.transform(x), N_BITS), model.transform(x[:3]), k=4
    )
    np.testing.assert_array_equal(found.rows, expected.rows)
    same_bits(counted, expected_counts)
    same_bits(BitCounts.learned(model), BitCounts.of_block(model.learned_codes(y), N_BITS))


@pytest.mark.parametrize(("n", "q"), [(4, 2), (4, 0), (0, 2)])
def test_fewer_rows_than_neighbours(n: int, q: int) -> None:
    counted, found = gather(DatabaseCodes.in_memory(codes(n, 1), N_BITS), codes(q, 2), k=10)
    assert found.rows.shape == found.distances.shape == (q, n)
    assert counted.n_rows == n


def test_queries_are_picked_from_the_worst_to_the_best() -> None:
    quality = np.array([0.5, np.nan, 0.1, 0.9, 0.7, 0.3])
    assert spread_of(quality, 3).tolist() == [2, 0, 3]
    assert spread_of(quality, 99).tolist() == [2, 5, 0, 4, 3]
    assert spread_of(np.full(3, np.nan), 2).tolist() == []


def test_pictures_know_what_is_right(tmp_path: Path) -> None:
    pictures = np.arange(5, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8)
    rows = np.array([[3, 1]])
    found = Neighbours(rows, np.array([[0, 4]]), rows)
    chosen = np.array([2])

    def store(name: str, labels: list[object]) -> FeatureStore:
        features = np.zeros((5, 1), np.float32)
        return FeatureStore.create(tmp_path / name, features, np.array(labels), thumbnails=pictures)

    single = store("single", [0, 1, 2, 2, 1])
    shown = pictured(single, chosen, single, found, ["ant", "bee"])
    assert shown.relevant.tolist() == [[True, False]]
    assert shown.names == ("2",)  # more classes than names
    assert shown.found == (("2", "bee"),)
    assert shown.queries[:, 0, 0].tolist() == [2]
    assert shown.pictures[0, :, 0, 0].tolist() == [3, 1]
    several = store("several", [[1, 0], [0, 1], [1, 1], [1, 0], [0, 0]])
    shown = pictured(several, chosen, several, found, ["ant", "bee"])
    assert shown.relevant.tolist() == [[True, True]]
    assert shown.names == ("ant, bee",)


def test_equal_codes_and_constant_bits() -> None:
    packed = codes(50, 1)
    packed[:7] = packed[20]
    found = Buckets.of(DatabaseCodes.in_memory(packed, N_BITS))
    assert found is not None
    distinct = {row.tobytes() for row in packed}
    most = max(sum(row.tobytes() == one for row in packed) for one in distinct)
    assert (found.n_rows, found.n_distinct, found.largest) == (50, len(distinct), most)
    assert most >= 8
    assert found.seconds > 0
    assert Buckets.of(DatabaseCodes.in_memory(packed[:0], N_BITS)) is None
    assert not len(BitCounts.of_block(packed, N_BITS).constant)
    packed[:, 0] = packed[:, 0] & ~np.uint8(0b100) | np.uint8(0b1)
    assert BitCounts.of_block(packed, N_BITS).constant.tolist() == [0, 2]
