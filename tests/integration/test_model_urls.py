"""Models and checkpoints on an object store, against a real HTTP server that speaks S3."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute.checkpoint import Checkpoint
from sadih_dask.errors import FormatError, InputError, IntegrityError
from sadih_dask.files import file as place
from tests.support.datasets import rows
from tests.support.models import FAST, file_bytes
from tests.support.processes import ROOT, Here, wait_until

s3fs = pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")

# boto and aiohttp leave sockets to the garbage collector; that is not what is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
QUICK = {**FAST, "anchors": 20}
BLOCK = CHUNK = 64
NODE = 8 * BLOCK
N = 10 * NODE
WORDS = ["--bits", 16, "--n-init", 1, "--max-iter", 1, "--block-rows", BLOCK, "--anchors", "none"]


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A server, and an environment in which every process and thread finds it."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "k")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        s3fs.S3FileSystem.clear_instance_cache()
        fs = s3fs.S3FileSystem()
        with suppress(FileExistsError):  # servers of one process share what they hold
            fs.mkdir("bucket")
        yield fs
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture(scope="module")
def model() -> SADIH:
    return SADIH(**QUICK).fit(*rows(600))


def test_an_object_is_the_file(tmp_path: Path, s3: Any, model: SADIH) -> None:
    model.save("s3://bucket/m.sadih")
    model.save(tmp_path / "m.sadih")
    assert s3.cat_file("bucket/m.sadih") == (tmp_path / "m.sadih").read_bytes()
    loaded = SADIH.load("s3://bucket/m.sadih")
    assert file_bytes(loaded, tmp_path) == file_bytes(model, tmp_path)
    model.save("s3://bucket/m.sadih", statistics=False)  # replaced
    assert SADIH.load("s3://bucket/m.sadih").statistics_ is None
    model.save(f"file://{tmp_path}/n.sadih")
    assert (tmp_path / "n.sadih").read_bytes() == (tmp_path / "m.sadih").read_bytes()


def test_options_of_the_library(s3: Any, model: SADIH, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "key": "k", "secret": "s"}
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    model.save("s3://bucket/o.sadih", storage_options=options)
    loaded = SADIH.load("s3://bucket/o.sadih", storage_options=options)
    assert loaded.fingerprint_ == model.fingerprint_


def test_what_is_not_there_and_what_is_no_object(s3: Any, model: SADIH) -> None:
    for url in ("s3://bucket/none.sadih", "s3://nowhere/m.sadih"):
        with pytest.raises(FileNotFoundError, match=f"{url} does not exist"):
            SADIH.load(url)
    for url in ("s3://bucket", "s3://bucket/", "s3://"):
        with pytest.raises(InputError, match="names no object; expected a URL like s3://bucket/"):
            model.save(url)


def test_damage_is_found(s3: Any, model: SADIH) -> None:
    model.save("s3://bucket/d.sadih")
    whole = s3.cat_file("bucket/d.sadih")
    flipped = bytearray(whole)
    flipped[whole.index(b"NUMPY") + 300] ^= 2
    for data in (bytes(flipped), whole[:-5], b"", b"something else"):
        s3.pipe_file("bucket/d.sadih", data)
        with pytest.raises(IntegrityError, match=r"s3://bucket/d\.sadih is damaged or not a"):
            SADIH.load("s3://bucket/d.sadih")
        assert place.is_file("s3://bucket/d.sadih")
    assert not place.is_file("s3://bucket/d")
    assert not place.is_file("s3://bucket")


def test_no_more_is_read_or_written_than_the_limit(
    s3: Any, model: SADIH, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.save("s3://bucket/l.sadih")
    monkeypatch.setattr(place, "OBJECT_BYTES", 1000)
    with pytest.raises(FormatError, match=r"'l\.sadih' is longer than the 1000 bytes"):
        SADIH.load("s3://bucket/l.sadih")
    with pytest.raises(InputError, match=r"would take \d+ bytes; at most 1000 .* local path"):
        model.save("s3://bucket/l.sadih")


def test_the_commands(tmp_path: Path, s3: Any, here: Here) -> None:
    """Everything lies in a bucket: rows, the model, codes."""
    X, y = rows(750)
    url, target = "s3://bucket/run/s.zarr", "s3://bucket/run/m.sadih"
    FeatureStore.create(url, X[:600], y[:600], chunk_rows=128)
    FeatureStore.create("s3://bucket/run/q.zarr", X[650:], y[650:], chunk_rows=128)
    out, _ = here("fit", url, target, *WORDS, "-q")
    assert out.startswith(f"{target}: 16 bits from 600 rows (600 read now, 0 known before)")
    assert "has learned from all 600 rows already" in here("fit", url, target, *WORDS, "-q")[0]
    out, _ = here("fit", url, target, *WORDS, "--alpha", "0.5", "-q", code=1)[::-1]
    assert "s3://bucket/run/m.sadih holds a model with alpha=0.01 (not 0.5)" in out
    FeatureStore.open(url).append(X[600:650], y[600:650])
    assert "(50 read now, 600 known before)" in here("fit", url, target, *WORDS, "-q")[0]
    here("encode", url, target, "s3://bucket/run/c.zarr", "-q")
    out, _ = here("search", "s3://bucket/run/c.zarr", "s3://bucket/run/q.zarr", "--model", target)
    assert "100 queries, 10,000 finds in 650 codes." in out
    codes = ["--codes", "s3://bucket/run/c.zarr"]
    out, _ = here("evaluate", target, "s3://bucket/run/q.zarr", url, *codes, "-q")
    assert "learned" in out
    assert here("verify", target)[0] == f"{target}: model file, intact.\n"
    assert "intact. 650 rows" in here("verify", "s3://bucket/run/c.zarr", "-q")[0]
    names = {path.rsplit("/", 1)[-1] for path in s3.ls("bucket/run", refresh=True)}
    assert names == {"s.zarr", "q.zarr", "c.zarr", "m.sadih"}  # no trial, no checkpoint is left
    here("fit", url, tmp_path / "m.sadih", *WORDS, "-q")  # the same rows, read at once
    codes_there = SADIH.load(target).label_codes_
    np.testing.assert_array_equal(codes_there, SADIH.load(tmp_path / "m.sadih").label_codes_)


def test_a_bucket_that_is_not_there_is_found_before_the_work(tmp_path: Path, here: Here) -> None:
    store = FeatureStore.create(tmp_path / "s", *rows(600), chunk_rows=128)
    _, err = here("fit", store.url, "s3://nowhere/m.sadih", *WORDS, code=1)
    assert err.startswith("sadih: s3://nowhere/m.sadih cannot be written: ")
    assert "Scanning" not in err


SLOWLY = """
import sys, time
from sadih_dask.learning.statistics import Statistics
from sadih_dask.cli import main

real = Statistics.of_block

def of_block(*arguments, **options):
    time.sleep(0.05)
    return real(*arguments, **options)

Statistics.of_block = of_block
sys.argv = ["sadih", *sys.argv[1:]]
main()
"""


def test_a_killed_fit_goes_on_from_the_bucket(tmp_path: Path, s3: Any, here: Here) -> None:
    store = FeatureStore.create(tmp_path / "s", *rows(N, 5), chunk_rows=CHUNK)
    target = "s3://bucket/killed/m.sadih"
    words = ["fit", store.url, target, *WORDS, "--threads", "2", "-q"]
    with subprocess.Popen(
        [sys.executable, "-c", SLOWLY, *map(str, words)], stderr=subprocess.PIPE, cwd=ROOT
    ) as process:

        def has_kept_some() -> bool:
            assert process.poll() is None, process.communicate()
            return len(kept(s3)) >= 3

        wait_until(has_kept_some, "the fit gets on")
        process.kill()
    n_done = NODE * len(kept(s3))
    assert 3 * NODE <= n_done < N
    assert not s3.exists("bucket/killed/m.sadih")
    out, _ = here(*words)
    assert f"({N - n_done:,} read now, {n_done:,} before the interruption" in out
    here("fit", store.url, tmp_path / "m.sadih", *WORDS, "-q")
    assert s3.cat_file("bucket/killed/m.sadih") == (tmp_path / "m.sadih").read_bytes()
    assert [name.rsplit("/", 1)[-1] for name in s3.ls("bucket/killed", refresh=True)] == ["m.sadih"]


def kept(s3: Any) -> list[str]:
    s3.invalidate_cache()
    return [str(name) for name in s3.find("bucket/killed/m.sadih.scan")]


def test_damaged_parts_in_a_bucket_are_not_trusted(
    tmp_path: Path, s3: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = FeatureStore.create(tmp_path / "s", *rows(N, 5), chunk_rows=CHUNK)
    parameters = {**FAST, "block_rows": BLOCK, "anchors": None}
    checkpoint = Checkpoint("s3://bucket/parts")
    expected = SADIH(**parameters).fit(store, checkpoint=checkpoint)
    names = sorted(s3.ls("bucket/parts", refresh=True, detail=False))
    assert len(names) == 10
    s3.pipe_file(names[2], s3.cat_file(names[2])[:-1])
    s3.pipe_file(names[4], b"")
    found = SADIH(**parameters).fit(store, checkpoint=checkpoint)
    assert found.n_rows_loaded_ == N - 2 * NODE
    assert caplog.text.count("are read again") == 2
    assert found.fingerprint_ == expected.fingerprint_
    checkpoint.discard()
    assert not s3.exists("bucket/parts")
