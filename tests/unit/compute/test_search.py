"""search(): arrays and stores, any chunking, ids, radius, weighted bits, result files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import dask
import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr

from sadih_dask import CodeStore, search
from sadih_dask.compute.search import rescore
from sadih_dask.compute.tree import plan_grid
from sadih_dask.errors import ConflictError, DtypeError, InputError
from sadih_dask.jobs.search import write_results
from sadih_dask.retrieval.codes import pack
from sadih_dask.retrieval.kernels import ROW_BITS
from sadih_dask.retrieval.nearest import Neighbours, WithinRadius, bit_weights
from sadih_dask.stores.reader import BlockReader
from tests.support.rankings import naive_distances, random_codes

N_BITS = 20


@pytest.fixture
def codes() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return random_codes(rng, 4000, N_BITS), random_codes(rng, 37, N_BITS)


def store_of(path: Path, codes: np.ndarray, **options) -> CodeStore:
    return CodeStore.create(path, codes, n_bits=N_BITS, model="m", **options)


def naive(database: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = naive_distances(queries, database)
    rows = np.argsort(pairs, axis=1, kind="stable")[:, :k]
    return rows, np.take_along_axis(pairs, rows, axis=1)


def test_arrays(codes) -> None:
    database, queries = codes
    found = search(database, queries, 15)
    rows, distances = naive(database, queries, 15)
    np.testing.assert_array_equal(found.ids, rows)
    np.testing.assert_array_equal(found.distances, distances)
    assert (len(found), found.k) == (37, 15)
    assert repr(found).startswith("<Neighbours of 37 queries, 15 each, distances ")


@pytest.mark.parametrize("chunk_rows", [1, 7, 100, 4000, 10_000])
@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_any_chunking_and_scheduler_gives_the_same(
    codes, tmp_path: Path, chunk_rows: int, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, queries = codes
    database = database[:300] if chunk_rows == 1 else database
    monkeypatch.setattr("sadih_dask.compute.tree.ROWS_PER_TASK", 50)
    monkeypatch.setattr("sadih_dask.compute.tree.PARTIAL_BYTES", 8 * 15 * 10)
    monkeypatch.setattr("sadih_dask.compute.codes.BLOCK_BYTES", 600)
    store = store_of(tmp_path / "c", database, chunk_rows=chunk_rows)
    asked = store_of(tmp_path / "q", queries, chunk_rows=5)
    rows, distances = naive(database, queries, 15)
    done = []
    with dask.config.set(scheduler=scheduler, num_workers=3):
        found = search(store, asked, 15, progress=lambda a, b: done.append((a, b)))
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_array_equal(found.distances, distances)
    assert done[-1][0] == done[-1][1] >= 4


def test_a_store_is_read_in_small_blocks_and_every_chunk_once(
    codes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, queries = codes
    monkeypatch.setattr("sadih_dask.compute.tree.ROWS_PER_TASK", 500)
    monkeypatch.setattr("sadih_dask.compute.codes.BLOCK_BYTES", 3 * 128)
    store = store_of(tmp_path / "c", database, chunk_rows=64)
    read: list[tuple[int, int]] = []
    real = BlockReader.__call__

    def noted(self: BlockReader, start: int, out: np.ndarray) -> None:
        read.append((start, start + len(out)))
        real(self, start, out)

    monkeypatch.setattr(BlockReader, "__call__", noted)
    search(store, queries, 3)
    assert max(b - a for a, b in read) == 128
    assert all(a % 64 == 0 for a, _ in read)
    assert sorted(read)[0][0] == 0
    assert sum(b - a for a, b in read) == len(database)


def test_ids_of_the_store_are_carried(codes, tmp_path: Path) -> None:
    database, queries = codes
    numbers = np.arange(len(database)) * 10 - 7
    names = np.array([f"picture {i}" for i in range(len(database))])
    rows, _ = naive(database, queries, 4)
    by_number = search(store_of(tmp_path / "n", database, ids=numbers), queries, 4)
    np.testing.assert_array_equal(by_number.ids, numbers[rows])
    np.testing.assert_array_equal(by_number.rows, rows)
    by_name = search(store_of(tmp_path / "t", database, ids=names), queries, 4)
    np.testing.assert_array_equal(by_name.ids, names[rows])
    within = search(store_of(tmp_path / "w", database, ids=names), queries, radius=1)
    np.testing.assert_array_equal(within.ids, names[within.rows])


def test_fewer_rows_than_neighbours_gives_all_rows(codes) -> None:
    database, queries = codes
    found = search(database[:6], queries, 100)
    rows, distances = naive(database[:6], queries, 6)
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_array_equal(found.distances, distances)
    assert search(database[:0], queries, 3).ids.shape == (37, 0)
    assert search(database, queries[:0], 3).ids.shape == (0, 3)
    assert search(database[:0], queries, radius=3).lims[-1] == 0
    assert search(database, queries).k == 10


@pytest.mark.parametrize("chunk_rows", [13, 4000])
def test_radius(codes, tmp_path: Path, chunk_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    database, queries = codes
    monkeypatch.setattr("sadih_dask.compute.tree.ROWS_PER_TASK", 500)
    store = store_of(tmp_path / "c", database, chunk_rows=chunk_rows)
    found = search(store, queries, radius=2)
    pairs = naive_distances(queries, database)
    np.testing.assert_array_equal(found.counts, (pairs <= 2).sum(axis=1))
    for i in range(len(queries)):
        ids, distances = found.of(i)
        order = np.argsort(pairs[i], kind="stable")[: len(ids)]
        np.testing.assert_array_equal(ids, order)
        np.testing.assert_array_equal(distances, pairs[i][order])
    assert f"{found.lims[-1]} items of 37 queries" in repr(found)
    total = int(found.lims[-1])
    assert search(store, queries, radius=2, max_results=total).lims[-1] == total
    with pytest.raises(InputError, match=f"more than {total - 1} items"):
        search(store, queries, radius=2, max_results=total - 1)


@pytest.mark.parametrize("n_bits", [20, 64, 70, 200])
@pytest.mark.parametrize("k", [1, 8, 300])
def test_projections_weight_the_bits(
    n_bits: int, k: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(n_bits)
    monkeypatch.setattr("sadih_dask.compute.tree.ROWS_PER_TASK", 500)
    monkeypatch.setattr("sadih_dask.retrieval.nearest.CACHE_BYTES", 100 * n_bits)
    bits = rng.random((1500, n_bits)) < 0.4
    bits[700:800] = bits[:100]  # ties, which go by the row
    database = pack(bits)
    scores = rng.standard_normal((23, n_bits))
    scores[0] = 0.0
    scores[1, 1:] = 0.0
    queries = pack(scores)
    weights = bit_weights(scores)[:, :n_bits]
    differ = (scores > 0)[:, None] != bits[None]
    far = np.einsum("qnb,qb->qn", differ, weights)
    order = np.argsort(far, axis=1, kind="stable")[:, :k]
    store = CodeStore.create(tmp_path / "c", database, n_bits=n_bits, model="m", chunk_rows=130)
    for source in (database, store):
        found = search(source, queries, k, projections=scores)
        np.testing.assert_array_equal(found.rows, order)
    share = np.abs(scores) / np.maximum(np.abs(scores).sum(axis=1, keepdims=True), 1e-300)
    exact = n_bits * np.einsum("qnb,qb->qn", differ, share)
    np.testing.assert_allclose(
        found.distances[1:], np.take_along_axis(exact, order, 1)[1:], atol=0.01 * n_bits / 20
    )
    # Where nothing is certain all bits count alike.
    hamming = search(database, queries[:1], k)
    np.testing.assert_array_equal(found.rows[:1], hamming.rows)
    np.testing.assert_allclose(found.distances[:1], hamming.distances, rtol=1e-6)


def test_keys_hold_the_farthest_weighted_distance() -> None:
    for n_bits in (1, 64, 2048):
        scores = np.ones((1, n_bits))
        scores[0, ::2] = 1e-9
        assert bit_weights(scores).sum() < 1 << (63 - ROW_BITS)
        everything = pack(np.ones((1, n_bits)))
        found = search(~everything & everything, everything, 1, projections=scores)
        assert found.distances[0, 0] == pytest.approx(n_bits, rel=1e-3)


def test_what_cannot_be_searched(codes, tmp_path: Path) -> None:
    database, queries = codes
    store = store_of(tmp_path / "c", database)
    with pytest.raises(InputError, match="k is 0"):
        search(database, queries, 0)
    with pytest.raises(InputError, match="not both"):
        search(database, queries, 3, radius=2)
    with pytest.raises(InputError, match="radius is -1"):
        search(database, queries, radius=-1)
    with pytest.raises(InputError, match="their signs are other bits"):
        search(database, queries, 3, projections=np.ones((37, N_BITS)))
    with pytest.raises(InputError, match="not finite"):
        search(database, queries, 3, projections=np.full((37, N_BITS), np.nan))
    with pytest.raises(InputError, match="queries have shape"):
        search(database, queries[:, :2], 3)
    with pytest.raises(DtypeError, match=r"model\.transform"):
        search(database.astype(float), queries, 3)
    with pytest.raises(InputError, match=r"37 queries of 20 bits have \(37, 20\)"):
        search(store, queries, 3, projections=np.zeros((36, N_BITS)))
    other = CodeStore.create(tmp_path / "o", queries, n_bits=N_BITS, model="another")
    with pytest.raises(InputError, match="codes of two models cannot be compared"):
        search(store, other, 3)
    longer = CodeStore.create(tmp_path / "l", queries, n_bits=24, model="m")
    with pytest.raises(InputError, match="queries have 24 bits and the database 20"):
        search(store, longer, 3)


def test_tasks_cover_all_pairs_once() -> None:
    for n_queries, n_rows, chunk, most, threads in (
        (1000, 10**6, 65536, 10**5, 2),
        (50_000, 10**7, 500_000, 16_000, 4),
        (3, 10, 1, 100, 8),
        (0, 0, 5, 10, 2),
        (1, 10**9, 2**19, 10**4, 2),
    ):
        queries, rows = plan_grid(n_queries, n_rows, chunk, most, threads)
        for ranges, length in ((queries, n_queries), (rows, n_rows)):
            assert ranges[0].start == 0
            assert ranges[-1].stop == length
            assert all(a.stop == b.start for a, b in pairwise(ranges))
        assert all(rows.start % chunk == 0 for rows in rows)
        assert max(len(part) for part in queries) <= most


def results(codes, tmp_path: Path) -> tuple[Neighbours, WithinRadius]:
    database, queries = codes
    ids = np.array([f"é{i}" for i in range(len(database))])
    store = store_of(tmp_path / "c", database, ids=ids)
    return search(store, queries, 3), search(store, queries, radius=1)


def test_result_files(codes, tmp_path: Path) -> None:
    nearest, within = results(codes, tmp_path)
    table = pq.read_table(write_results(nearest, tmp_path / "r.parquet")).to_pydict()
    assert table["query"][:4] == [0, 0, 0, 1]
    assert table["rank"][:4] == [0, 1, 2, 0]
    assert table["id"] == nearest.ids.reshape(-1).tolist()
    assert table["row"] == nearest.rows.reshape(-1).tolist()
    assert table["distance"] == nearest.distances.reshape(-1).tolist()
    named = np.array([f"q{i}" for i in range(len(nearest))])
    path = write_results(within, tmp_path / "w.parquet", query_ids=named)
    table = pq.read_table(path).to_pydict()
    assert table["query"] == np.repeat(named, within.counts).tolist()
    with np.load(write_results(within, tmp_path / "w.npz"), allow_pickle=False) as file:
        np.testing.assert_array_equal(file["lims"], within.lims)
        np.testing.assert_array_equal(file["ids"], within.ids)
    database, queries = codes
    plain = search(database, queries, 3)
    group = zarr.open_group(write_results(plain, tmp_path / "r.zarr"), mode="r")
    np.testing.assert_array_equal(group["distances"][:], plain.distances)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "c",
        "r.parquet",
        "r.zarr",
        "w.npz",
        "w.parquet",
    ]


def test_result_files_are_not_overwritten_by_accident(codes, tmp_path: Path) -> None:
    database, queries = codes
    found = search(database, queries, 3)
    for name in ("r.npz", "r.zarr", "r.parquet"):
        write_results(found, tmp_path / name)
        with pytest.raises(ConflictError, match="is there already"):
            write_results(found, tmp_path / name)
        write_results(found, tmp_path / name, overwrite=True)
    with pytest.raises(InputError, match=r"must end in one of \.parquet"):
        write_results(found, tmp_path / "r.csv")
    with pytest.raises(InputError, match="is not a folder"):
        write_results(found, tmp_path / "no" / "r.npz")
    with pytest.raises(InputError, match="2 query ids were given for 37"):
        write_results(found, tmp_path / "x.npz", query_ids=np.arange(2))
    nearest, _ = results(codes, tmp_path)
    with pytest.raises(InputError, match="no settled type"):
        write_results(nearest, tmp_path / "t.zarr")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("bitorder", ["little", "big"])
def test_a_shortlist_is_ordered_as_a_search_with_weights_orders_all(codes, tmp_path, bitorder):
    scores = np.random.default_rng(3).normal(size=(9, N_BITS))
    database = codes[0] if bitorder == "little" else _mirrored(codes[0])
    store = store_of(tmp_path / "c", database, bitorder=bitorder, ids=np.arange(4000) + 7)
    whole = search(store, pack(scores), 6, projections=scores, bitorder="little")
    everything = np.random.default_rng(4).permuted(np.tile(np.arange(4000), (9, 1)), axis=1)
    for given in (everything, np.hstack([whole.rows[:, ::-1], everything[:, :3]])):
        found = rescore(store, given, 6, projections=scores)
        np.testing.assert_array_equal(found.rows, whole.rows)
        np.testing.assert_array_equal(found.distances, whole.distances)
        np.testing.assert_array_equal(found.ids, whole.ids)
    again = rescore(codes[0], everything, 6, projections=scores)
    np.testing.assert_array_equal(again.rows, whole.rows)


def _mirrored(codes: np.ndarray) -> np.ndarray:
    return np.packbits(np.unpackbits(codes, axis=1, bitorder="little"), axis=1)


def test_a_shortlist_must_be_rows_and_long_enough(codes):
    scores = np.random.default_rng(3).normal(size=(2, N_BITS))
    with pytest.raises(InputError, match=r"query 1 has fewer than k=3"):
        rescore(codes[0], [[5, 1, 2], [4, -1, 3]], 3, projections=scores)
    with pytest.raises(InputError, match="not rows of 4,000 codes"):
        rescore(codes[0], [[5, 1], [4, 4000]], 1, projections=scores)
    with pytest.raises(InputError, match=r"candidates of shape \(2, 2\) .* at least k"):
        rescore(codes[0], [[5, 1], [4, 3]], 3, projections=scores)
