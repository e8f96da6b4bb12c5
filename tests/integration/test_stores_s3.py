"""Stores behind S3: a real server, and a proxy that holds, drops, repeats or bares requests."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sadih_dask.errors import IncompleteError, InputError, IntegrityError
from sadih_dask.files import conditional
from sadih_dask.files.filesystem import client
from sadih_dask.stores import FeatureStore
from tests.faults.two_writers import OLD, Stage, Trial, all_trials, do, rows_of, stage, table
from tests.support.proxy import Request

s3fs = pytest.importorskip("s3fs")

# boto and aiohttp leave sockets to the garbage collector; that is not what is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
N = 50
FEATURES = np.random.default_rng(0).standard_normal((N, 4)).astype(np.float32)
HELD = 30
"""Moments at which a writer is held, of several hundred: `tests.faults.two_writers` tries all."""


@pytest.fixture(scope="module")
def found(s3_server: str) -> Iterator[Stage]:
    with stage(s3_server) as ready:
        yield ready


@pytest.fixture
def options(found: Stage) -> dict[str, Any]:
    found.proxy.rule = lambda _: None
    return found.proxy.options("nobody")


def content(url: str, options: dict[str, Any]) -> tuple[int, ...]:
    store = FeatureStore.open(url, storage_options=options)
    assert store.verify().ok
    return tuple(store.read("ids").tolist())


def test_create_read_append_delete_verify(found: Stage, options: dict[str, Any]) -> None:
    url = found.fresh(empty=True)
    given = {"ids": np.arange(N), "chunk_rows": 8, "storage_options": options}
    store = FeatureStore.create(url, FEATURES, np.arange(N), **given)
    assert store.compression == "zstd"
    held = pickle.dumps(store)
    store.append(FEATURES[:5], np.arange(5), np.arange(100, 105), at=N)
    np.testing.assert_array_equal(store.read("features", 3, N), FEATURES[3:])
    np.testing.assert_array_equal(
        store.to_dask()[40:].compute(scheduler="threads"), store.read("features", 40)
    )
    np.testing.assert_array_equal(store.to_zarr()[store.components[0]][:], FEATURES)
    assert store.delete([3, 101]) == 2
    assert store.n_rows == N + 3
    assert store.verify().ok
    former = pickle.loads(held)
    assert former.verify().ok
    np.testing.assert_array_equal(former.read("features"), FEATURES)


def test_damage_and_absence(found: Stage, options: dict[str, Any]) -> None:
    url = found.fresh(empty=True)
    store = FeatureStore.create(url, FEATURES, chunk_rows=8, storage_options=options)
    fs = s3fs.S3FileSystem(**options)
    chunk = f"{url}/{store.components[0]}/c.2.0"
    data = bytearray(fs.cat_file(chunk))
    data[7] ^= 1
    fs.pipe_file(chunk, bytes(data))
    with pytest.raises(IntegrityError, match=rf"{url}: array 'features', chunk 2"):
        store.read("features")
    fs.rm_file(chunk)
    with pytest.raises(IntegrityError, match="its file is missing"):
        store.read("features")


def test_an_interrupted_creation_is_completed(found: Stage, options: dict[str, Any]) -> None:
    url = found.fresh(empty=True)
    given = {"chunk_rows": 8, "storage_options": options}
    writer = FeatureStore.allocate(url, N, 4, label_dtype=None, **given)
    writer.write(8, FEATURES[8:24])
    assert writer.missing() == [0, 3, 4, 5, 6]
    with pytest.raises(IncompleteError, match="it has no rows yet"):
        FeatureStore.open(url, storage_options=options)
    store = FeatureStore.create(url, FEATURES, **given)
    np.testing.assert_array_equal(store.read("features"), FEATURES)


def test_whoever_is_held_at_any_request_tells_the_truth_and_no_row_is_lost(found: Stage) -> None:
    trials = [trial for trial in all_trials(found) if not trial.lost]
    said = [found.try_one(trial) for trial in trials[:: len(trials) // HELD]]
    assert any(outcome == ("done", "done") for outcome in said)
    assert any("ConflictError" in first for first, _ in said)


@pytest.mark.parametrize("first", ["append", "overwrite", "delete"])
def test_the_answer_of_each_write_of_the_root_may_be_lost(found: Stage, first: str) -> None:
    commits = [request.number for request in found.requests(first) if request.writes_root]
    for k in commits:
        found.try_one(Trial(first, "append", k, lost=True))
    assert commits


@pytest.mark.parametrize(
    "works",
    [
        [("append", 20), ("append many", 18), ("append", None)],
        [("overwrite", 15), ("append", 24), ("delete", None)],
        [("compact", 27), ("delete", 9), ("append many", None)],
        [("append", 8), ("overwrite", 10), ("append", None)],
    ],
    ids=lambda works: " ".join(work for work, _ in works),
)
def test_three_at_once(found: Stage, works: list[tuple[str, int | None]]) -> None:
    found.try_three(works)


@pytest.mark.parametrize("work", ["append", "append many", "overwrite", "delete", "create"])
def test_every_request_may_arrive_twice(found: Stage, options: dict[str, Any], work: str) -> None:
    url = found.fresh(empty=work == "create")
    found.proxy.rule = lambda request: "repeat" if request.method == "PUT" else None
    assert do(work, url, 3, found.proxy.options("3")) == "done"
    found.proxy.rule = lambda _: None
    expected = {
        "create": rows_of(work, 3),
        "overwrite": rows_of(work, 3),
        "delete": (0, 1, 2, 4, 5),
    }
    assert content(url, options) == expected.get(work, OLD + rows_of(work, 3))


def test_a_server_that_ignores_conditions_is_refused_before_anything_is_written(
    found: Stage, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditional, "_probed", set())
    url = found.fresh(empty=True)
    found.proxy.rule = lambda _: "bare"
    with pytest.raises(InputError, match=f"{url}: this server ignores the conditions of a write"):
        FeatureStore.create(url, **table(OLD), storage_options=found.proxy.options("bare"))
    found.proxy.rule = lambda _: None
    assert s3fs.S3FileSystem(**options).find(url) == []


def test_a_lost_answer_to_the_trial_is_not_held_against_the_server(
    found: Stage, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditional, "_probed", set())
    url = found.fresh(empty=True)

    def rule(request: Request) -> str | None:
        return "drop" if ".probe-" in request.path and not request.number else None

    found.proxy.rule = rule
    FeatureStore.create(url, **table(OLD), storage_options=found.proxy.options("trial"))
    assert [".probe-" in request.path for request in found.proxy.seen[:2]] == [True, True]
    assert content(url, options) == OLD


def test_a_client_that_drops_conditions_is_refused(found: Stage) -> None:
    url, options = found.fresh(empty=True), found.proxy.options("old client")
    fs, _ = client(url, options)
    fs.connect()
    del fs.s3.meta.service_model.operation_model("PutObject").input_shape.members["IfMatch"]
    with pytest.raises(InputError, match=r"botocore does not know conditional writes\. Upgrade it"):
        FeatureStore.create(url, **table(OLD), storage_options=options)
    assert not [request for request in found.proxy.seen if request.method == "PUT"]


def test_places_without_conditions_are_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from sadih_dask.files.filesystem import RemoteFiles

    files = RemoteFiles("memory://somewhere/s", {})
    monkeypatch.setattr(files, "protocol", "gs")
    with pytest.raises(InputError, match="conditional writes to gs:// are not supported"):
        conditional.check_writable(files)


@pytest.mark.parametrize("answer", ["busy", "reset"])
def test_requests_are_repeated_a_few_times_and_that_is_told(
    found: Stage,
    options: dict[str, Any],
    answer: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that is busy, or closes connections, at the first attempt at chunks and roots."""
    monkeypatch.setattr("sadih_dask.files.filesystem._failures", itertools.count(1))
    seen: dict[tuple[str, str], int] = {}

    def rule(request: Request) -> str | None:
        if "/c." not in request.path and not request.writes_root:
            return None
        key = request.method, request.path
        seen[key] = seen.get(key, 0) + 1
        # The first reset is taken for the end of a kept connection, and nothing is said
        return answer if seen[key] <= 1 + (answer == "reset") else None

    url = found.fresh(empty=True)
    found.proxy.rule = rule
    store = FeatureStore.create(url, FEATURES, storage_options=options)
    np.testing.assert_array_equal(store.read("features"), FEATURES)
    assert min(seen.values()) > 1
    assert "attempt 1: " in caplog.text
    assert "It is repeated after a pause" in caplog.text


def test_attempts_are_bounded(
    found: Stage, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    url = found.fresh(empty=True)
    FeatureStore.create(url, FEATURES, storage_options=options)
    asked: list[str] = []

    def rule(request: Request) -> str | None:
        if "/c." not in request.path:
            return None
        asked.append(request.path)
        return "busy"

    found.proxy.rule = rule
    store = FeatureStore.open(url, storage_options=options)
    with pytest.raises(OSError, match="Service Unavailable"):
        store.read("features", 0, 1)
    assert len(asked) == 2
