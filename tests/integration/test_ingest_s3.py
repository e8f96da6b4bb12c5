"""``sadih ingest`` from and to an object store, against a real HTTP server that speaks S3."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sadih_dask.errors import ConflictError
from sadih_dask.files.filesystem import connect
from sadih_dask.ingest import DataFiles, compare, ingest
from sadih_dask.stores import FeatureStore
from tests.support.processes import Here
from tests.support.sources import FORMS, npy, numbered, written

s3fs = pytest.importorskip("s3fs")

# boto and aiohttp leave sockets to the garbage collector; that is not what is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
ROOT = Path(__file__).parents[2]


def put(url: str, data: bytes) -> str:
    s3fs.S3FileSystem().pipe_file(url, data)
    return url


def test_the_command_from_and_to_a_bucket(bucket: str, here: Here) -> None:
    for k in (1, 2, 10):
        put(f"{bucket}/x{k}.npy", npy(numbered(100 * k, 100 * k + 50)))
        put(f"{bucket}/y{k}.npy", npy(np.full(50, k)))
    words = (f"{bucket}/x*.npy", f"{bucket}/s.zarr", "--labels", f"{bucket}/y*.npy")
    out, _ = here("ingest", *words, "--chunk-rows", 16, "-q")
    assert "150 rows of 2 features, 150 written now" in out
    store = FeatureStore.open(f"{bucket}/s.zarr")
    np.testing.assert_array_equal(store.read("labels"), np.repeat([0, 1, 2], 50))
    np.testing.assert_array_equal(store.read("features")[100:], numbered(1000, 1050))
    files = DataFiles(words[0], words[3])
    assert compare(files, words[1]).new == ()
    put(f"{bucket}/x11.npy", npy(numbered(0, 7)))
    put(f"{bucket}/y11.npy", npy(np.full(7, 2)))
    found = compare(files, words[1])
    assert found.new == (f"{bucket}/x11.npy",)
    assert found.n_new_rows == 7
    out, _ = here("ingest", *words, "--append", "-q")
    assert "157 rows of 2 features, 7 written now, 150 kept" in out
    assert "3 of 4 files were in the store already" in out
    assert "intact" in here("verify", words[1], "-q")[0]
    assert "157" in here("inspect", words[1])[0]
    put(f"{bucket}/x2.npy", npy(numbered(0, 50)))
    assert compare(files, words[1]).changed == (f"{bucket}/x2.npy",)
    _, said = here("ingest", *words, "--append", "-q", code=1)
    assert "x2.npy was ingested before and has changed since" in said
    assert "--overwrite" in said


def test_an_object_that_is_replaced_while_it_is_read(bucket: str) -> None:
    url = put(f"{bucket}/x.npy", npy(numbered(0, 50)))
    with pytest.raises(ConflictError, match="changed while it was being read"):
        ingest(
            DataFiles(url),
            f"{bucket}/s",
            progress=lambda *_: put(url, npy(numbered(7, 57))) and None,
        )


@pytest.mark.parametrize("form", FORMS)
def test_every_format_from_a_bucket(bucket: str, tmp_path: Path, form: str) -> None:
    path = written(form, tmp_path)
    s3fs.S3FileSystem().put(str(path), f"{bucket}/x.{form}", recursive=True)
    done = ingest(DataFiles(f"{bucket}/x.{form}"), tmp_path / "s", chunk_rows=64)
    np.testing.assert_array_equal(done.store.read("features"), numbered(0, 300))
    if "labels" in done.store.arrays:
        np.testing.assert_array_equal(done.store.read("labels"), np.arange(300) % 3)
    assert compare(DataFiles(f"{bucket}/x.{form}"), tmp_path / "s").new == ()


def test_an_array_in_a_bucket_is_adopted_where_it_lies(
    bucket: str, tmp_path: Path, here: Here
) -> None:
    path = written("zarr", tmp_path)
    s3fs.S3FileSystem().put(str(path), f"{bucket}/x.zarr", recursive=True)
    out, _ = here("ingest", f"{bucket}/x.zarr", tmp_path / "s", "--in-place", "-q")
    assert "300 rows of 2 features, 300 written now" in out
    assert f"{bucket}/x.zarr/features" in here("inspect", tmp_path / "s")[0]
    np.testing.assert_array_equal(
        FeatureStore.open(tmp_path / "s").read("features"), numbered(0, 300)
    )
    put(f"{bucket}/x.zarr/features/c/0/0", b"other bytes")
    said, _ = here("verify", tmp_path / "s", "-q", code=1)
    assert "chunk 0 of segment 0" in said


def test_labels_as_text_from_a_bucket(bucket: str, tmp_path: Path) -> None:
    x = put(f"{bucket}/x.npy", npy(numbered(0, 3)))
    y = put(f"{bucket}/y.csv", b"label\ncat\nant\ncat\n")
    store = ingest(DataFiles(x, y), tmp_path / "s").store
    assert store.class_names == ("ant", "cat")
    np.testing.assert_array_equal(store.read("labels"), [1, 0, 1])


def test_what_is_not_there_is_named(bucket: str, here: Here) -> None:
    _, said = here("ingest", f"{bucket}/none.npy", f"{bucket}/s", code=1)
    assert f"{bucket}/none.npy: cannot be opened" in said
    _, said = here("ingest", f"{bucket}/none*.npy", f"{bucket}/s", code=1)
    assert f"{bucket}/none*.npy: no file matches" in said


def test_missing_credentials_and_servers_are_no_traceback(
    bucket: str, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = tmp_path / "x.npy"
    np.save(x, numbered(0, 20))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for words in ((x, f"{bucket}/s"), (f"{bucket}/x.npy", tmp_path / "s")):
        s3fs.S3FileSystem.clear_instance_cache()
        _, said = here("ingest", *words, code=1)
        assert "cannot be reached: Unable to locate credentials" in said
        assert "AWS_ACCESS_KEY_ID" in said
    _, said = here("ingest", "s3://nowhere-at-all/x*.npy", tmp_path / "s", code=1)
    assert "cannot be reached" in said


SLOW = """
import sys, time
from sadih_dask.ingest import DataFiles, ingest
url, mode, *files = sys.argv[1:]
def slow(done, total):
    print(done, flush=True)
    time.sleep(0.02)
ingest(DataFiles(files), url, mode=mode, progress=slow, chunk_rows=16 if mode == "create" else None)
"""


def interrupt(url: str, mode: str, *files: str, after: int) -> None:
    command = [sys.executable, "-c", SLOW, url, mode, *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) > after:
                break
        process.kill()


def test_killed_and_resumed(bucket: str) -> None:
    url = f"{bucket}/s"
    old = put(f"{bucket}/old.npy", npy(numbered(0, 203)))
    new = put(f"{bucket}/new.npy", npy(numbered(203, 500)))
    interrupt(url, "create", old, after=50)
    found = compare(DataFiles(old), url)
    assert (found.store, found.goes_on) == ("begun", True)
    done = ingest(DataFiles(old), url, chunk_rows=16)
    assert done.n_kept > 50
    assert done.store.n_rows == 203
    interrupt(url, "append", old, new, after=100)
    assert FeatureStore.open(url).verify().ok
    assert FeatureStore.open(url).n_rows == 203
    done = ingest(DataFiles([old, new]), url, mode="append")
    assert done.n_resumed > 100
    assert done.n_new + done.n_resumed == 297
    assert done.store.verify().ok
    np.testing.assert_array_equal(done.store.read("features"), numbered(0, 500))
    assert done.store.abandon() == 0
    assert done.store.collect() == []
    assert len(connect(url).names("segments")) == 2 + 1  # and the group's own document


def test_what_a_host_that_died_has_begun_holds_nobody_up(bucket: str) -> None:
    url = f"{bucket}/s"
    names = [put(f"{bucket}/{k}.npy", npy(numbered(100 * k, 100 * k + 100))) for k in range(3)]
    ingest(DataFiles(names[0]), url, chunk_rows=16)
    interrupt(url, "append", *names[:2], after=30)
    done = ingest(DataFiles([names[0], names[2]]), url, mode="append")
    assert (done.n_new, done.store.n_rows) == (100, 200)
    done = ingest(DataFiles(names[:2]), url, mode="append")
    assert done.n_resumed > 30
    assert done.store.verify().ok
    np.testing.assert_array_equal(done.store.read("features", 200), numbered(100, 200))


def test_environment_is_all_that_the_command_needs(bucket: str) -> None:
    """A process of its own, with nothing but AWS_* to go by."""
    put(f"{bucket}/x.npy", npy(numbered(0, 20)))
    command = [sys.executable, "-m", "sadih_dask.cli", "ingest", f"{bucket}/x.npy", f"{bucket}/s"]
    done = subprocess.run(
        [*command, "-q"], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "20 rows of 2 features" in done.stdout
