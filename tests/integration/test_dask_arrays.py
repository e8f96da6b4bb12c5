"""Dask arrays on a cluster of processes: the same bits, and every chunk computed once."""

import asyncio
import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from distributed import Client, LocalCluster
from distributed.protocol.pickle import dumps

from sadih_dask import SADIH, SADIHCV, FeatureStore
from sadih_dask.compute import memory, tree
from sadih_dask.errors import ClusterError, ConflictError, DtypeError, InputError, LabelError
from tests.support.datasets import Array, rows
from tests.support.models import FAST, same_bits
from tests.support.processes import local_cluster

xarray = pytest.importorskip("xarray")

N = 20_000
"""Rows, of which a sample of 10,000 is drawn from 40 blocks."""
WITH_ANCHORS: dict[str, Any] = {**FAST, "anchors": 40}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(2) as found:
        yield found


@pytest.fixture(scope="module")
def data() -> tuple[Array, Array]:
    X, y = rows(N, 8)
    return X, y


@pytest.fixture(scope="module")
def expected(data: tuple[Array, Array]) -> SADIH:
    return SADIH(**WITH_ANCHORS).fit(*data)


class Counting:
    """Passes blocks on, and leaves a mark in a file for every one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def __call__(self, block: Array, block_info: Any = None) -> Array:
        if block_info:
            with (self.folder / str(block_info[0]["chunk-location"][0])).open("a") as file:
                file.write("x")
        return block

    def over(self, array: Any) -> da.Array:
        """The same array, whose blocks are counted."""
        return array.map_blocks(self, dtype=array.dtype, meta=np.empty((0,) * array.ndim))

    def times(self) -> dict[int, int]:
        """How often each block was computed."""
        return {int(path.name): len(path.read_text()) for path in self.folder.iterdir()}


# --- every chunk once ----------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_rows", [400, 1999, 7001])
@pytest.mark.parametrize("where", ["cluster", "threads"])
def test_every_chunk_is_computed_once(
    tmp_path: Path,
    cluster: LocalCluster,
    data: tuple[Array, Array],
    expected: SADIH,
    chunk_rows: int,
    where: str,
) -> None:
    features, labels = Counting(tmp_path / "X"), Counting(tmp_path / "y")
    X = features.over(da.from_array(data[0], chunks=(chunk_rows, -1)))
    y = labels.over(da.from_array(data[1], chunks=1111))
    with Client(cluster), dask.config.set(scheduler="threads" if where == "threads" else None):
        model = SADIH(**WITH_ANCHORS).fit(X, y)
        assert features.times() == dict.fromkeys(range(X.numblocks[0]), 1)
        assert labels.times() == dict.fromkeys(range(y.numblocks[0]), 1)
        same_bits(model, expected, tmp_path)
        model.partial_fit(X, y)
        assert features.times() == dict.fromkeys(range(X.numblocks[0]), 2)
        model.encode(X, tmp_path / "codes")
        assert features.times() == dict.fromkeys(range(X.numblocks[0]), 3)


def test_persisted_chunks_are_taken_as_they_are(
    tmp_path: Path, cluster: LocalCluster, data: tuple[Array, Array], expected: SADIH
) -> None:
    counting = Counting(tmp_path / "X")
    X = counting.over(da.from_array(data[0], chunks=(1999, -1)))
    with Client(cluster):
        kept = X.persist()
        for given in (kept, kept + 0):
            same_bits(SADIH(**WITH_ANCHORS).fit(given, data[1]), expected, tmp_path)
    assert counting.times() == dict.fromkeys(range(X.numblocks[0]), 1)


def odd_or_even(block: Array) -> Array:
    return (block[:, 0] > np.median(block[:, 0])).astype(np.int64)


@pytest.mark.parametrize("anchors", [None, 40])
def test_labels_that_are_made_of_the_features(
    tmp_path: Path, cluster: LocalCluster, data: tuple[Array, Array], anchors: int | None
) -> None:
    counting = Counting(tmp_path / "X")
    X = counting.over(da.from_array(data[0], chunks=(1999, -1)))
    y = X.map_blocks(odd_or_even, dtype=np.int64, drop_axis=1)
    with Client(cluster):
        model = SADIH(**{**FAST, "anchors": anchors}).fit(X, y)
        assert counting.times() == dict.fromkeys(range(X.numblocks[0]), 1)
        targets = y.compute()
    same_bits(model, SADIH(**{**FAST, "anchors": anchors}).fit(data[0], targets), tmp_path)


def test_without_room_only_the_chunks_of_the_sample_are_computed_again(
    tmp_path: Path, cluster: LocalCluster, data: tuple[Array, Array]
) -> None:
    X, y = np.concatenate([data[0]] * 8), np.concatenate([data[1]] * 8)
    counting = Counting(tmp_path / "X")
    lazy = counting.over(da.from_array(X, chunks=(500, -1)))
    expected = SADIH(**WITH_ANCHORS).fit(X, y)
    with Client(cluster), patch.object(memory, "ROOM", 0.0):
        model = SADIH(**WITH_ANCHORS).fit(lazy, y)
    same_bits(model, expected, tmp_path)
    times = collections.Counter(counting.times().values())
    # 64 blocks of 512 rows, each in two chunks or three, of 320.
    assert times.keys() == {1, 2}
    assert 64 <= times[2] <= 3 * 64


def test_folds_of_dask_arrays(
    tmp_path: Path, cluster: LocalCluster, data: tuple[Array, Array]
) -> None:
    search: dict[str, Any] = {"param_grid": {"alpha": [0.1, 1.0]}, "n_bits": 8, "n_folds": 2}
    counting = Counting(tmp_path / "X")
    X = counting.over(da.from_array(data[0], chunks=(1999, -1)))
    with Client(cluster):
        found = SADIHCV(SADIH(**WITH_ANCHORS), **search).fit(X, data[1])
    assert counting.times() == dict.fromkeys(range(X.numblocks[0]), 1)
    known = SADIHCV(SADIH(**WITH_ANCHORS), **search).fit(*data)
    same_bits(found.best_estimator_, known.best_estimator_, tmp_path)


# --- what a scheduler gets -----------------------------------------------------------------------


def graphs_of(model: SADIH, X: Any, y: Any) -> list[dict[Any, Any]]:
    """The graphs of a fit."""
    found = []
    real = tree.run

    def run(graph: Any, *rest: Any) -> Any:
        found.append(dict(graph))
        return real(graph, *rest)

    with patch.object(tree, "run", run):
        model.fit(X, y)
    return found


@pytest.mark.parametrize("anchors", [None, 40])
def test_a_task_for_each_chunk_and_the_tree(data: tuple[Array, Array], anchors: int | None) -> None:
    X, y = (da.zeros(a.shape, chunks=(1999, -1)[: a.ndim]) + a for a in data)
    n_chunks, n_nodes = 11, 5
    with dask.config.set(scheduler="threads"):
        graph = graphs_of(SADIH(**{**FAST, "anchors": anchors}), X, y.astype(int))[-1]
    names = collections.Counter(
        str(key[0] if isinstance(key, tuple) else key).rpartition("-")[0] for key in graph
    )
    assert 5 <= names["sadih-scan"] <= n_chunks
    assert names["sadih-join"] <= n_chunks + 2 * n_nodes
    ours = sum(count for name, count in names.items() if name.startswith("sadih-"))
    assert ours <= 2 * (n_chunks + n_nodes) + 2


def test_labels_in_memory_travel_in_small_pieces(data: tuple[Array, Array]) -> None:
    X, y = da.zeros((3_000_000, 2), chunks=(100_000, -1)), np.arange(3_000_000) % 7
    with (
        patch.object(tree, "run", side_effect=InterruptedError("here")) as run,
        pytest.raises(InterruptedError, match="here"),
    ):
        SADIH(anchors=None).fit(X, y)
    graph = run.call_args.args[0]
    pieces = [len(dumps(task)) for key, task in graph.items() if "sadih-scan" in str(key)]
    assert len(pieces) > 3
    assert sum(pieces) < 1.1 * len(y)  # a byte a row


def test_progress_from_the_first_chunk_of_the_sample(
    cluster: LocalCluster, data: tuple[Array, Array]
) -> None:
    heard: list[tuple[int, int]] = []
    X = da.from_array(data[0], chunks=(1999, -1))
    with Client(cluster):
        SADIH(**WITH_ANCHORS).fit(X, data[1], progress=lambda *of: heard.append(of))
    (total,) = {of for _, of in heard}
    assert total > 11  # a task of the sample for each chunk, and those of the scan
    assert (heard[0], heard[-1]) == ((0, total), (total, total))
    assert heard == sorted(heard)


# --- lazy in, lazy out ---------------------------------------------------------------------------


def test_scores_and_learned_codes_are_lazy(
    tmp_path: Path, cluster: LocalCluster, data: tuple[Array, Array], expected: SADIH
) -> None:
    counting = Counting(tmp_path / "X")
    X = counting.over(da.from_array(data[0], chunks=(1999, 5)).rechunk((1999, -1)))
    y = da.from_array(data[1], chunks=777)
    with Client(cluster):
        scores, codes = expected.project(X), expected.learned_codes(y)
        assert not counting.times()
        np.testing.assert_allclose(scores.compute(), expected.project(data[0]), atol=1e-6)
        assert counting.times() == dict.fromkeys(range(X.numblocks[0]), 1)
    for scheduler in ("threads", "synchronous"):
        found = codes.compute(scheduler=scheduler)
        np.testing.assert_array_equal(found, expected.learned_codes(data[1]))
    sets = np.eye(5, dtype=np.uint8)[data[1]]
    known = SADIH(**FAST, anchors=None).fit(data[0], sets)
    found = known.learned_codes(da.from_array(sets, chunks=(777, 2))).compute(scheduler="threads")
    np.testing.assert_array_equal(found, known.learned_codes(sets))


def test_a_lazy_label_that_no_row_had(data: tuple[Array, Array], expected: SADIH) -> None:
    y = data[1].copy()
    y[5000] = 99
    codes = expected.learned_codes(da.from_array(y, chunks=777))
    with pytest.raises(LabelError, match=r"in rows 4662 to 5173 of y: .* row 338 is .*99"):
        codes.compute(scheduler="threads")


@pytest.mark.parametrize("chunks", [1999, (1, 7999, 12_000)])
@pytest.mark.parametrize("lazy_ids", [False, True])
def test_codes_of_a_dask_array_are_written_by_workers(
    tmp_path: Path,
    cluster: LocalCluster,
    data: tuple[Array, Array],
    expected: SADIH,
    chunks: Any,
    lazy_ids: bool,
) -> None:
    X = da.from_array(data[0], chunks=(chunks, -1))
    ids: Any = np.array([f"röw {k}" for k in range(N)])
    heard: list[tuple[int, int]] = []
    with Client(cluster):
        codes = expected.encode(
            X,
            tmp_path / "c",
            ids=da.from_array(ids, chunks=3000) if lazy_ids else ids,
            progress=lambda *of: heard.append(of),
        )
        with pytest.raises(ConflictError, match="overwrite=True"):
            expected.encode(X, tmp_path / "c")
        again = expected.encode(X, tmp_path / "c", overwrite=True)
    np.testing.assert_array_equal(codes.read("codes"), expected.transform(data[0]))
    np.testing.assert_array_equal(codes.read("ids"), ids)
    assert (codes.model, codes.n_bits) == (expected.fingerprint_, 16)
    assert heard[-1][0] == heard[-1][1] > 0
    assert not again.verify().problems
    assert again.arrays == ("codes",)


def test_an_encoding_that_fails_leaves_nothing_to_go_on_with(
    tmp_path: Path, data: tuple[Array, Array], expected: SADIH
) -> None:
    bad = data[0].copy()
    bad[3000, 2] = np.nan
    with dask.config.set(scheduler="threads"):
        with pytest.raises(InputError, match="row 3000, column 2"):
            expected.encode(da.from_array(bad, chunks=(1000, -1)), tmp_path / "c")
        good = expected.encode(da.from_array(data[0], chunks=(1000, -1)), tmp_path / "c")
    np.testing.assert_array_equal(good.read("codes"), expected.transform(data[0]))


def test_what_cannot_be_encoded(tmp_path: Path, data: tuple[Array, Array], expected: SADIH) -> None:
    X = da.from_array(data[0], chunks=(1000, -1))
    store = FeatureStore.create(tmp_path / "s", *data)
    for given, options, error, match in [
        (X[X[:, 0] > 0], {}, InputError, r"compute_chunk_sizes\(\)"),
        (X, {"ids": np.arange(5)}, InputError, r"ids have shape \(5,\)"),
        (X, {"ids": da.zeros(N, dtype=object, chunks=N)}, InputError, r"astype\('U32'\)"),
        (X, {"learned": True}, LabelError, "learned_codes"),
        (store, {"ids": np.arange(N)}, InputError, "holds its own ids"),
    ]:
        with pytest.raises(error, match=match):
            expected.encode(given, tmp_path / "c", **options)
    assert not (tmp_path / "c").exists()
    in_memory = expected.encode(data[0], tmp_path / "m", ids=np.arange(N))
    np.testing.assert_array_equal(in_memory.read("codes"), expected.transform(data[0]))


# --- other libraries -----------------------------------------------------------------------------


def test_xarray_keeps_the_coordinates_of_its_rows(
    tmp_path: Path, data: tuple[Array, Array], expected: SADIH
) -> None:
    row = np.arange(N) * 2
    labelled = {"row": row, "place": ("row", row % 3), "band": np.arange(8)}
    array = xarray.DataArray(data[0], labelled, ("row", "band"))
    array.to_dataset(name="x").to_zarr(tmp_path / "x.zarr", consolidated=False)
    opened = xarray.open_zarr(tmp_path / "x.zarr", chunks=None, consolidated=False)["x"]
    targets = xarray.DataArray(data[1], dims="row")
    with dask.config.set(scheduler="threads"):
        for found, lazy in ((array, False), (array.chunk(row=1999, band=3), True), (opened, True)):
            same_bits(SADIH(**WITH_ANCHORS).fit(found, targets), expected, tmp_path)
            codes, scores = expected.transform(found), expected.project(found)
            assert (codes.chunks is not None) == (scores.chunks is not None) == lazy
            assert (codes.dims, scores.dims) == (("row", "byte"), ("row", "bit"))
            assert set(codes.coords) == {"row", "place"}
            np.testing.assert_array_equal(codes["row"], row)
            np.testing.assert_array_equal(codes, expected.transform(data[0]))
            some = expected.score(data[0][:200], data[1][:200])
            assert expected.score(found[:200], targets[:200]) == some


def test_zarr_arrays(tmp_path: Path, data: tuple[Array, Array], expected: SADIH) -> None:
    X = zarr.create_array(str(tmp_path / "X"), shape=(N, 8), chunks=(1999, 3), dtype="f4")
    y = zarr.create_array(str(tmp_path / "y"), shape=(N,), chunks=(777,), dtype="i8")
    X[:], y[:] = data
    with dask.config.set(scheduler="threads"):
        same_bits(SADIH(**WITH_ANCHORS).fit(X, y), expected, tmp_path)
        assert isinstance(expected.transform(X), da.Array)
        codes = expected.encode(X, tmp_path / "c").read("codes")
        np.testing.assert_array_equal(codes, expected.transform(data[0]))
        np.testing.assert_array_equal(expected.learned_codes(y), expected.learned_codes(data[1]))


def test_data_frames(tmp_path: Path, data: tuple[Array, Array]) -> None:
    frame = pd.DataFrame(data[0], columns=list("abcdefgh"))
    lazy = dd.from_pandas(frame, npartitions=7)
    model = SADIH(**WITH_ANCHORS).fit(frame, data[1])
    with dask.config.set(scheduler="threads"):
        codes = model.transform(lazy)
        assert isinstance(codes, da.Array)
        np.testing.assert_array_equal(codes, model.transform(frame))
        with pytest.raises(InputError, match=r"X\.to_dask_array\(lengths=True\)"):
            SADIH(**WITH_ANCHORS).fit(lazy, data[1])
        known = SADIH(**WITH_ANCHORS).fit(lazy.to_dask_array(lengths=True), data[1])
    assert known.fingerprint_ == model.fingerprint_
    with pytest.raises(InputError, match="feature names should match"):
        model.transform(lazy[list("hgfedcba")])


def as_sparse(block: Array) -> Any:
    return sp.csr_array(block)


def test_sparse_blocks_are_refused_before_any_is_reduced(data: tuple[Array, Array]) -> None:
    X = da.from_array(data[0], chunks=(1999, -1))
    honest = X.map_blocks(as_sparse)
    lying = X.map_blocks(as_sparse, dtype=X.dtype, meta=np.empty((0, 0), X.dtype))
    for sparse in (honest, lying):
        with dask.config.set(scheduler="threads"), pytest.raises(DtypeError, match="densify them"):
            SADIH(**WITH_ANCHORS).fit(sparse, data[1])


def shorter(block: Array) -> Array:
    return block[:-1]


def test_chunks_that_are_not_as_long_as_they_say(data: tuple[Array, Array]) -> None:
    X = da.from_array(data[0], chunks=(1999, -1)).map_blocks(shorter, dtype=np.float32)
    for anchors in (None, 40):
        with (
            dask.config.set(scheduler="threads"),
            pytest.raises(InputError, match=r"compute_chunk_sizes\(\)"),
        ):
            SADIH(**{**FAST, "anchors": anchors}).fit(X, data[1])


def test_frames_of_lazy_codes(data: tuple[Array, Array]) -> None:
    model = SADIH(**FAST, anchors=None).fit(*data).set_output(transform="pandas")
    assert isinstance(model.transform(data[0]), pd.DataFrame)
    with pytest.raises(InputError, match=r"set_output\(transform='default'\)"):
        model.transform(da.from_array(data[0]))


# --- asynchronous clients ------------------------------------------------------------------------


def test_an_asynchronous_client(
    tmp_path: Path, cluster: LocalCluster, data: tuple[Array, Array], expected: SADIH
) -> None:
    X = da.from_array(data[0], chunks=(1999, -1))

    async def work() -> tuple[Any, Any, SADIH]:
        async with Client(cluster.scheduler_address, asynchronous=True) as client:
            lazy = expected.project(X), expected.learned_codes(da.from_array(data[1], chunks=777))
            for job in (
                lambda: SADIH(**WITH_ANCHORS).fit(X, data[1]),
                lambda: expected.encode(X, tmp_path / "c"),
            ):
                with pytest.raises(ClusterError, match=r"await asyncio\.to_thread"):
                    job()
            model = await asyncio.to_thread(SADIH(**WITH_ANCHORS).fit, X, data[1])
            return await client.compute(lazy[0]), await client.compute(lazy[1]), model

    scores, codes, model = asyncio.run(work())
    np.testing.assert_allclose(scores, expected.project(data[0]), atol=1e-6)
    np.testing.assert_array_equal(codes, expected.learned_codes(data[1]))
    same_bits(model, expected, tmp_path)
