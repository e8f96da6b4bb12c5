"""The whole pipeline on an object store: sources, stores, artefacts, records and `latest`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sadih_dask import SADIH, CodeStore, FeatureStore
from sadih_dask.files import conditional
from sadih_dask.runs.directory import RunDirectory
from tests.support.datasets import CONFIGURATION, drop, rows
from tests.support.processes import Here, wait_until
from tests.support.proxy import proxy_to

# boto and aiohttp leave sockets to the garbage collector; that is not what is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
COMMAND = Path(sys.executable).with_name("sadih")


@pytest.fixture
def configuration(bucket: str, tmp_path: Path) -> Path:
    upload(bucket, drop(tmp_path, "a", 1500, 1))
    path = tmp_path / "pipeline.toml"
    path.write_text(CONFIGURATION.format(directory=f"{bucket}/runs", drop=f"{bucket}/incoming"))
    return path


def upload(bucket: str, path: Path) -> None:
    import s3fs

    s3fs.S3FileSystem().put_file(str(path), f"{bucket}/incoming/{path.name}")


def run(here: Here, configuration: Path, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(here("run", configuration, "--json", *words)[0])
    return found


def test_run_append_and_verify(
    here: Here, bucket: str, configuration: Path, tmp_path: Path
) -> None:
    with_index = ("--set", "export.index=flat", "--set", "report.enabled=true")
    first = run(here, configuration, *with_index)
    assert first["outcome"] == "complete"
    directory = RunDirectory(f"{bucket}/runs")
    assert directory.latest() == first["id"]
    assert SADIH.load(first["files"]["model.sadih"]).fingerprint_ == first["fingerprints"]["model"]
    assert CodeStore.open(first["files"]["codes.zarr"]).n_rows == first["rows"]
    page = directory.files.read(
        first["files"]["report.html"].removeprefix(f"{directory.url}/"), 1 << 24
    )
    assert b"<svg" in page
    assert run(here, configuration, *with_index)["outcome"] == "nothing to do"
    upload(bucket, drop(tmp_path, "b", 700, 2))
    second = run(here, configuration)
    assert second["rows"] + second["queries"] == 2200
    fit = next(stage for stage in second["stages"] if stage["name"] == "fit")
    assert fit["rows"] == second["rows"] - first["rows"]
    for store in ("database.zarr", "queries.zarr"):
        assert "intact" in here("verify", f"{bucket}/runs/{store}", "--quiet")[0]
    assert "intact" in here("verify", second["files"]["codes.zarr"], "--quiet")[0]
    assert first["id"] in here("runs", f"{bucket}/runs")[0]
    here("rollback", f"{bucket}/runs", first["id"])
    assert directory.latest() == first["id"]
    everything = json.dumps([first, second])
    assert "AWS" not in everything
    assert '"s"' not in everything


def test_killed_and_resumed(here: Here, bucket: str, configuration: Path) -> None:
    process = subprocess.Popen(
        [COMMAND, "run", configuration],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    directory = RunDirectory(f"{bucket}/runs")

    def has_fitted() -> bool:
        assert process.poll() is None
        return any(found.done() for found in directory.artefacts("fit"))

    wait_until(has_fitted, "the run gets on")
    process.kill()
    process.wait()
    assert directory.latest() is None
    record = run(here, configuration)
    assert record["outcome"] == "complete"
    done = [stage["name"] for stage in record["stages"] if stage["action"] == "done"]
    assert not {"ingest", "fit"} & set(done)


@pytest.mark.parametrize("command", ["fit", "tune", "run", "rollback"])
def test_a_server_that_ignores_conditions_is_refused_by_name_before_the_first_write(
    here: Here,
    bucket: str,
    configuration: Path,
    s3_server: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import s3fs

    store = FeatureStore.create(tmp_path / "s", *rows(60))
    upload_to = f"{bucket}/runs/runs/20260101T000000Z-1/manifest.json"
    if command == "rollback":
        s3fs.S3FileSystem().pipe_file(upload_to, b"{}")
    before = s3fs.S3FileSystem().find(bucket)
    monkeypatch.setattr(conditional, "_probed", set())
    with proxy_to(s3_server) as proxy:
        proxy.rule = lambda _: "bare"
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        words = {
            "fit": ("fit", store.url, f"{bucket}/m.sadih"),
            "tune": ("tune", store.url, f"{bucket}/m.sadih"),
            "run": ("run", configuration),
            "rollback": ("rollback", f"{bucket}/runs"),
        }[command]
        _, err = here(*words, code=1)
    assert "this server ignores the conditions of a write" in err
    assert bucket in err
    assert "Scanning" not in err
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    s3fs.S3FileSystem.clear_instance_cache()
    assert s3fs.S3FileSystem().find(bucket) == before
