"""One model, to the last bit, however the rows are stored and whoever computes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from sadih_dask import SADIH, FeatureStore
from tests.support.datasets import Array, rows
from tests.support.models import CHOSEN, FAST, same_bits
from tests.support.processes import local_cluster
from tests.support.statistics import same_statistics

CASES = [
    pytest.param(multi_label, anchors, dtype, id=f"{form}-{anchors}-{dtype}")
    for multi_label, form in ((False, "classes"), (True, "multi-hot"))
    for anchors in (None, 40)
    for dtype in ("float16", "float32", "float64")
]


def fit(X: Any, y: Any = None, threads: int = 2, **parameters: Any) -> SADIH:
    with dask.config.set(scheduler="threads", num_workers=threads):
        return SADIH(**{**FAST, "anchors": None, **parameters}).fit(X, y)


@pytest.mark.parametrize(("multi_label", "anchors", "dtype"), CASES)
def test_chunks_and_threads_do_not_show(
    tmp_path: Path, multi_label: bool, anchors: int | None, dtype: str
) -> None:
    X, y = rows(multi_label=multi_label, dtype=dtype)
    expected = fit(X, y, threads=1, anchors=anchors)
    for chunk_rows, threads in ((977, 4), (4096, 1), (len(X), 2)):
        store = FeatureStore.create(tmp_path / f"{chunk_rows}", X, y, chunk_rows=chunk_rows)
        same_bits(fit(store, threads=threads, anchors=anchors), expected, tmp_path)


def test_every_chunking_with_every_number_of_threads(tmp_path: Path) -> None:
    X, y = rows()
    expected = fit(X, y, threads=1)
    for chunk_rows in (977, 4096, len(X)):
        store = FeatureStore.create(tmp_path / f"{chunk_rows}", X, y, chunk_rows=chunk_rows)
        for threads in (1, 2, 4):
            same_bits(fit(store, threads=threads), expected, tmp_path)


@pytest.mark.parametrize("anchors", [None, 40])
def test_neither_do_compression_segments_and_memory_layout(
    tmp_path: Path, anchors: int | None
) -> None:
    X, y = rows()
    expected = fit(X, y, anchors=anchors)
    zstd = FeatureStore.create(tmp_path / "z", X, y, chunk_rows=700, compression="zstd")
    segments = FeatureStore.create(tmp_path / "s", X[:2100], y[:2100], chunk_rows=300)
    segments.append(X[2100:], y[2100:])
    assert len(segments.segments) == 2
    for found in (zstd, segments, segments.compact(one_segment=True)):
        same_bits(fit(found, anchors=anchors), expected, tmp_path)
    same_bits(fit(np.asfortranarray(X), y, anchors=anchors), expected, tmp_path)


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("anchors", [None, 40])
def test_dask_arrays_of_odd_chunks(tmp_path: Path, multi_label: bool, anchors: int | None) -> None:
    X, y = rows(multi_label=multi_label)
    expected = fit(X, y, anchors=anchors)
    for sizes in ((1, 1699, 3300), (5000,), (617,) * 8 + (64,)):
        lazy = da.from_array(X, chunks=(sizes, 5))
        labels = da.from_array(y, chunks=(1250, *y.shape[1:]))
        same_bits(fit(lazy, labels, anchors=anchors), expected, tmp_path)
        same_bits(fit(lazy, y, anchors=anchors), expected, tmp_path)
    store = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=700)
    same_bits(fit(store.to_dask(), store.to_dask("labels"), anchors=anchors), expected, tmp_path)


def test_a_tree_of_several_levels(tmp_path: Path) -> None:
    X, y = rows(d=4)
    expected = fit(X, y, threads=1, block_rows=20)  # 250 blocks: three levels
    for chunk_rows in (70, 1300, 5000):  # a chunk holds up to 250 blocks
        store = FeatureStore.create(tmp_path / f"{chunk_rows}", X, y, chunk_rows=chunk_rows)
        for threads in (1, 8):
            same_bits(fit(store, threads=threads, block_rows=20), expected, tmp_path)


# --- processes ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(1) as found:
        yield found


class Seen:
    """What progress was reported last."""

    def __call__(self, done: int, total: int) -> None:
        self.last = (done, total)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_worker_processes_do_not_show(tmp_path: Path, cluster: LocalCluster, workers: int) -> None:
    cluster.scale(workers)
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, CHOSEN),
        ({"multi_label": True, "dtype": "float16"}, {"anchors": 40}),
        ({"dtype": "float64"}, {"block_rows": 100}),
    ]
    for k, (data, parameters) in enumerate(cases):
        X, y = rows(**data)
        expected = fit(X, y, **parameters)
        store = FeatureStore.create(tmp_path / f"{k}", X, y, chunk_rows=977)
        progress = Seen()
        with Client(cluster) as client:
            client.wait_for_workers(workers, timeout=120)
            model = SADIH(**{**FAST, "anchors": None, **parameters})
            model.fit(store, progress=progress)
            same_bits(model, expected, tmp_path)
            lazy = da.from_array(X, chunks=(1234, -1))
            model = SADIH(**{**FAST, "anchors": None, **parameters}).fit(lazy, y)
            same_bits(model, expected, tmp_path)
        assert progress.last[0] == progress.last[1] > 0


BLAS_SCRIPT = """
import sys, numpy as np
from threadpoolctl import threadpool_info
from sadih_dask import SADIH, FeatureStore
model = SADIH(n_bits=16, n_init=2, max_iter=2, block_rows=2048, anchors=None)
model.fit(FeatureStore.open(sys.argv[1]))
model.save(sys.argv[2])
print(max(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"))
"""


def test_blas_threads_do_not_show(tmp_path: Path) -> None:
    # Wide enough that OpenBLAS would use its threads.
    X, y = rows(n=8000, d=160)
    store = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=1000)
    files = []
    for threads in ("1", "2"):
        path = tmp_path / f"{threads}.sadih"
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", BLAS_SCRIPT, store.url, str(path)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert done.stdout.strip() == threads  # and the setting of the process is left alone
        files.append(path.read_bytes())
    assert files[0] == files[1]


# --- what a block does not change --------------------------------------------------------------


def test_arrays_of_the_caller_are_left_alone() -> None:
    X, y = rows()
    kept = X.copy()
    fit(X, y)
    np.testing.assert_array_equal(X, kept)
    lazy = da.from_array(X, chunks=(1000, -1))
    fit(lazy, y)
    np.testing.assert_array_equal(X, kept)


def test_a_frozen_array_is_learned_from() -> None:
    X, y = rows()
    expected = fit(X, y)
    X.flags.writeable = False
    same_statistics(fit(X, y).statistics_, expected.statistics_)


def read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


def test_frozen_blocks_of_dask_arrays() -> None:
    X, y = rows()
    lazy = da.from_array(X, chunks=(512, -1)).map_blocks(read_only, dtype=X.dtype)
    same_statistics(fit(lazy, y).statistics_, fit(X, y).statistics_)
