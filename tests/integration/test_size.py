"""Requests that `sadih size` counts, beside those that a server sees."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sadih_dask import SADIH
from sadih_dask.cli import commands
from sadih_dask.ingest.synthetic import generate
from sadih_dask.jobs.rates import Rates
from sadih_dask.jobs.size import Case, size
from tests.support.datasets import blobs
from tests.support.proxy import Proxy, proxy_to


def chunks_asked_for(proxy: Proxy) -> int:
    """Requests of chunks since the last call; the rest is a few, however many rows there are."""
    paths = [request.path for request in proxy.seen]
    proxy.seen.clear()
    return sum(bool(re.search(r"/c\.\d+", path)) for path in paths)


def test_requests_of_an_ingestion_grow_with_its_chunks(
    bucket: str, s3_server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import s3fs

    seen, counted = [], []
    with proxy_to(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        for name, array in zip("xy", blobs(n=2000, d=4, c=3), strict=True):
            np.save(tmp_path / f"{name}.npy", array)
            s3fs.S3FileSystem().put(str(tmp_path / f"{name}.npy"), f"{bucket}/{name}.npy")
        for chunk in (500, 100, 50):  # what the first one learns of the server is not asked again
            case = Case(2000, 4, chunk_rows=chunk, store="s3")
            counted.append(next(iter(size(case, Rates.load()).stages)).requests)
            proxy.seen.clear()
            words = [
                "ingest",
                f"{bucket}/x.npy",
                f"{bucket}/{chunk}",
                "--labels",
                f"{bucket}/y.npy",
            ]
            words += ["--chunk-rows", str(chunk)]
            said = CliRunner().invoke(commands, words, catch_exceptions=False)
            assert said.exit_code == 0, said.output
            seen.append(len(proxy.seen))
    s3fs.S3FileSystem.clear_instance_cache()
    assert seen[2] - seen[1] == counted[2] - counted[1]


def test_requests_of_a_fit_and_an_encoding(
    bucket: str, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    n_rows, chunk = 20 * 1024 + 7, 1024
    case = Case(n_rows, 4, n_classes=3, anchors=8, n_bits=8, chunk_rows=chunk, store="s3")
    stages = {one.name: one for one in size(case, Rates.load()).stages}
    with proxy_to(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        store = generate(f"{bucket}/s", n_rows, 4, 3, chunk_rows=chunk)
        assert chunks_asked_for(proxy) == 2 * case.n_chunks
        model = SADIH(n_bits=8, anchors=8).fit(store)
        assert chunks_asked_for(proxy) == stages["fit"].requests
        model.encode(store, f"{bucket}/c")
        assert chunks_asked_for(proxy) == stages["encode"].requests
    s3fs.S3FileSystem.clear_instance_cache()
