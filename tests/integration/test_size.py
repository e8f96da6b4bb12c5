"""Requests that `sadih size` counts, beside those that a server sees."""

from __future__ import annotations

import re

import pytest

from sadih_dask import SADIH
from sadih_dask.ingest.synthetic import generate
from sadih_dask.jobs.rates import Rates
from sadih_dask.jobs.size import Case, size
from tests.support.proxy import Proxy, proxy_to


def chunks_asked_for(proxy: Proxy) -> int:
    """Requests of chunks since the last call; the rest is a few, however many rows there are."""
    paths = [request.path for request in proxy.seen]
    proxy.seen.clear()
    return sum(bool(re.search(r"/c\.\d+", path)) for path in paths)


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
