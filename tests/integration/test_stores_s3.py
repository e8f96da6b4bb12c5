"""The same promises on an object store, against a real HTTP server that speaks S3."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask.errors import ConflictError, IncompleteError, IntegrityError
from sadih_dask.stores import FeatureStore

pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")

# boto and aiohttp leave sockets to the garbage collector; that is not what is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
N = 50
FEATURES = np.random.default_rng(0).standard_normal((N, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    import s3fs

    options = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
    with suppress(FileExistsError):  # servers of one process share what they hold
        s3fs.S3FileSystem(**options).mkdir("bucket")
    yield options
    server.stop()


@pytest.mark.parametrize("shard_rows", [None, 16])
def test_create_read_append_verify(options: dict[str, Any], shard_rows: int | None) -> None:
    url = f"s3://bucket/store-{shard_rows}"
    store = FeatureStore.create(
        url, FEATURES, np.arange(N), chunk_rows=8, shard_rows=shard_rows, storage_options=options
    )
    assert store.compression == "zstd"
    held = pickle.dumps(store)
    store.append(FEATURES[:5], np.arange(5), at=N)
    np.testing.assert_array_equal(store.read("features", 3, N), FEATURES[3:])
    np.testing.assert_array_equal(
        store.to_dask()[40:].compute(scheduler="threads"), store.read("features", 40)
    )
    np.testing.assert_array_equal(store.to_zarr()["features"][:N], FEATURES)
    assert store.verify().ok
    assert pickle.loads(held).verify().ok


def test_damage_and_absence(options: dict[str, Any]) -> None:
    import s3fs

    url = "s3://bucket/damaged"
    store = FeatureStore.create(url, FEATURES, chunk_rows=8, storage_options=options)
    fs = s3fs.S3FileSystem(**options)
    data = bytearray(fs.cat_file("bucket/damaged/features/c.2.0"))
    data[7] ^= 1
    fs.pipe_file("bucket/damaged/features/c.2.0", bytes(data))
    with pytest.raises(IntegrityError, match=r"s3://bucket/damaged: array 'features', chunk 2"):
        store.read("features")
    fs.rm_file("bucket/damaged/features/c.2.0")
    with pytest.raises(IntegrityError, match="its file is missing"):
        store.read("features")


def test_an_interrupted_creation_is_completed(options: dict[str, Any]) -> None:
    url = "s3://bucket/unfinished"
    with FeatureStore.allocate(
        url, N, 4, label_dtype=None, chunk_rows=8, storage_options=options
    ) as writer:
        writer.write(8, FEATURES[8:24])
        assert writer.missing() == [0, 3, 4, 5, 6]
    with pytest.raises(IncompleteError, match="2 of 7 blocks are written"):
        FeatureStore.open(url, storage_options=options)
    store = FeatureStore.create(url, FEATURES, chunk_rows=8, storage_options=options)
    np.testing.assert_array_equal(store.read("features"), FEATURES)


HOLDER = """
import sys, os
from sadih_dask.stores import FeatureStore
options = dict(key="k", secret="s", endpoint_url=sys.argv[1])
writer = FeatureStore.allocate("s3://bucket/locked", 10, 2, storage_options=options)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_the_lock_of_a_killed_writer_is_taken_over(options: dict[str, Any]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, options["endpoint_url"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        with pytest.raises(ConflictError, match=f"is being written by process {pid} on "):
            FeatureStore.allocate("s3://bucket/locked", 10, 2, storage_options=options)
        os.kill(pid, 9)
    with FeatureStore.allocate("s3://bucket/locked", 10, 2, storage_options=options) as writer:
        assert writer.missing() == [0]
