"""Whatever a cluster loses it can make again: workers die, clients go, and workers come late."""

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.diagnostics.plugin import WorkerPlugin

from sadih_dask import SADIH, FeatureStore
from sadih_dask.cluster.versions import check_versions
from sadih_dask.compute import remote
from sadih_dask.compute.tree import Tasks
from sadih_dask.errors import ClusterError
from tests.support.datasets import rows
from tests.support.models import FAST, same_bits
from tests.support.processes import PATIENCE, local_cluster

BLOCK = 64
WITH_ANCHORS: dict[str, Any] = {**FAST, "n_bits": 64, "anchors": 200, "block_rows": BLOCK}


@pytest.fixture(scope="module")
def data() -> tuple[Any, Any]:
    X, y = rows(24 * BLOCK, 64)
    return X, y


@pytest.fixture
def store(tmp_path: Path, data: tuple[Any, Any]) -> FeatureStore:
    return FeatureStore.create(tmp_path / "s", *data, chunk_rows=BLOCK)


@pytest.fixture(scope="module")
def expected(data: tuple[Any, Any]) -> SADIH:
    return SADIH(**WITH_ANCHORS).fit(*data)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(2) as found:
        yield found


@pytest.fixture
def no_workers() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=0, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as found:
        yield found


def wait_until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)
    return found


# --- workers die -------------------------------------------------------------------------------


class HeldUp(WorkerPlugin):
    """Lets the later blocks of a scan wait for a file, on new workers too."""

    def __init__(self, signal_file: str) -> None:
        self.file = Path(signal_file)

    def setup(self, worker: Any) -> None:
        from sadih_dask.compute.reduction import Reduction

        real = Reduction.of_block

        def of_block(reduction: Reduction, *args: Any, **options: Any) -> Any:
            while args[2] >= 8 * BLOCK and not self.file.exists():
                time.sleep(0.02)
            return real(reduction, *args, **options)

        Reduction.of_block = of_block  # type: ignore[method-assign]


def holders(of: str, dask_scheduler: Any) -> list[str]:
    """Workers that hold a result of the given kind, if tasks are under way that need it."""
    found = [task for key, task in dask_scheduler.tasks.items() if of in str(key)]
    return [
        worker.address
        for task in found
        for worker in task.who_has or ()
        if any(user.state == "processing" for user in task.dependents)
    ]


@pytest.mark.parametrize("lazy", [False, True], ids=["store", "array"])
def test_all_workers_that_hold_the_anchors_die_again_and_again(
    tmp_path: Path, store: FeatureStore, expected: SADIH, lazy: bool
) -> None:
    """And with them chunks of the array that were kept since the anchors were drawn."""
    go = tmp_path / "go"
    rows = (store.to_dask(), store.to_dask("labels")) if lazy else (store,)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 100}),
        local_cluster(2) as cluster,
        Client(cluster) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        client.register_plugin(HeldUp(str(go)))
        fit = pool.submit(SADIH(**WITH_ANCHORS).fit, *rows)
        try:
            for _ in range(2):
                there = wait_until(
                    lambda: client.run_on_scheduler(partial(holders, "sadih-reduction"))
                )
                for pid in client.run(os.getpid, workers=there, on_error="ignore").values():
                    os.kill(pid, signal.SIGKILL)
                wait_until(lambda t=there: set(t).isdisjoint(client.scheduler_info(-1)["workers"]))
        finally:
            go.touch()
        same_bits(fit.result(timeout=PATIENCE), expected, tmp_path)


class Noted:
    """Items whose tasks leave a line in a file of their own each time; the last one waits."""

    def __init__(self, folder: Path, last: int) -> None:
        self.folder, self.last = folder, last

    def __call__(self, item: int) -> int:
        with (self.folder / str(item)).open("a") as file:
            file.write("run\n")
        while item == self.last and not (self.folder / "go").exists():
            time.sleep(0.02)
        return item * item

    def runs(self, item: int) -> int:
        return len((self.folder / str(item)).read_text().splitlines())


def test_results_that_have_arrived_are_not_computed_again(
    tmp_path: Path, cluster: LocalCluster
) -> None:
    tasks, noted = Tasks("noted"), Noted(tmp_path, last=5)
    shared = tasks.share(noted)
    keys = [tasks.add((k,), Noted.__call__, shared, k) for k in range(6)]
    arrived: dict[int, int] = {}
    with Client(cluster) as client, ThreadPoolExecutor(1) as pool:
        client.wait_for_workers(2, timeout=PATIENCE)
        work = pool.submit(tasks.deliver, keys, arrived.__setitem__)
        try:
            wait_until(lambda: len(arrived) == 5 and (tmp_path / "5").exists())
            before = client.run(os.getpid)
            for pid in before.values():
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: noted.runs(5) == 2)
        finally:
            (tmp_path / "go").touch()
        work.result(timeout=PATIENCE)
        client.wait_for_workers(2, timeout=PATIENCE)
    assert arrived == {k: k * k for k in range(6)}
    assert [noted.runs(k) for k in range(6)] == [1, 1, 1, 1, 1, 2]


class Deadly:
    """Ends the first workers that receive it."""

    def __init__(self, folder: Path, deaths: int) -> None:
        self.folder, self.deaths = folder, deaths

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (self.folder, self.deaths)

    def plus(self, item: int) -> int:
        return item + self.deaths


def _receive(folder: Path, deaths: int) -> Deadly:
    if multiprocessing.parent_process() is not None:  # a worker; the client shares its imports
        for number in range(deaths):
            with suppress(FileExistsError):
                (folder / str(number)).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
    return Deadly(folder, deaths)


@pytest.mark.parametrize("deaths", [1, 10_000])
def test_a_shared_value_is_not_blamed_for_the_deaths_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    monkeypatch.setattr(remote, "SUBMISSIONS", 2)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        local_cluster(1) as cluster,
        Client(cluster),
    ):
        tasks = Tasks("deadly")
        shared = tasks.share(Deadly(tmp_path, deaths))
        keys = [tasks.add((k,), Deadly.plus, shared, k) for k in range(3)]
        if deaths == 1:
            assert tasks.run_each(keys) == [1, 2, 3]
        else:
            with pytest.raises(ClusterError, match=r"has ended 1 workers one after the other"):
                tasks.run_each(keys)
    assert len(list(tmp_path.iterdir())) == min(deaths, 2)


class Unanswering(WorkerPlugin):
    """Has a worker that is asked for its versions leave a file, and never answer."""

    def __init__(self, asked: Path) -> None:
        self.asked = asked

    def setup(self, worker: Any) -> None:
        from sadih_dask.cluster import versions

        def versions_here() -> dict[str, str]:
            self.asked.touch()
            time.sleep(PATIENCE)
            return {}

        versions.versions_here = versions_here


def test_a_worker_that_dies_as_it_is_asked_is_passed_over(tmp_path: Path) -> None:
    with (
        local_cluster(1) as cluster,
        Client(cluster) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        (pid,) = client.run(os.getpid).values()
        client.register_plugin(Unanswering(tmp_path / "asked"))
        check = pool.submit(check_versions, client)
        wait_until((tmp_path / "asked").exists)
        os.kill(pid, signal.SIGKILL)
        check.result(timeout=PATIENCE)


# --- clients go --------------------------------------------------------------------------------


def test_lazy_codes_outlive_their_client(
    cluster: LocalCluster, data: tuple[Any, Any], store: FeatureStore, expected: SADIH
) -> None:
    X = da.from_array(data[0], chunks=(500, -1))
    codes = expected.transform(data[0])
    with Client(cluster) as client:
        lazy = expected.transform(X), expected.transform(store)
        for one in lazy:
            np.testing.assert_array_equal(one.compute(), codes)
            np.testing.assert_array_equal(one.compute(scheduler="threads"), codes)
        client.restart()
        for one in lazy:
            np.testing.assert_array_equal(one.compute(), codes)
    for one in lazy:
        np.testing.assert_array_equal(one.compute(scheduler="threads"), codes)
        with Client(cluster):
            np.testing.assert_array_equal(one.compute(), codes)


def test_the_hash_function_is_in_a_lazy_graph_once(data: tuple[Any, Any], expected: SADIH) -> None:
    from distributed.protocol.pickle import dumps

    few, many = (
        len(dumps(dask.base.collections_to_expr([expected.transform(X)]).optimize()))
        for X in (da.zeros(data[0].shape, chunks=(n, -1)) for n in (len(data[0]), BLOCK))
    )
    assert few > expected.hash_function_.projection.nbytes
    assert many - few < 24 * 2000


def test_an_asynchronous_client(
    cluster: LocalCluster,
    data: tuple[Any, Any],
    store: FeatureStore,
    expected: SADIH,
    tmp_path: Path,
) -> None:
    async def work() -> tuple[Any, SADIH]:
        async with Client(cluster.scheduler_address, asynchronous=True) as client:
            codes = expected.transform(da.from_array(data[0], chunks=(500, -1)))
            with pytest.raises(ClusterError, match=r"await asyncio\.to_thread\(model\.fit"):
                SADIH(**WITH_ANCHORS).fit(store)
            model = await asyncio.to_thread(SADIH(**WITH_ANCHORS).fit, store)
            return await client.compute(codes), model

    codes, model = asyncio.run(work())
    np.testing.assert_array_equal(codes, expected.transform(data[0]))
    same_bits(model, expected, tmp_path)


# --- workers come late, or never ---------------------------------------------------------------


def test_a_cluster_that_adapts_from_no_worker(
    no_workers: LocalCluster,
    data: tuple[Any, Any],
    store: FeatureStore,
    expected: SADIH,
    tmp_path: Path,
) -> None:
    no_workers.adapt(minimum=0, maximum=2, interval="100ms")
    with Client(no_workers):
        same_bits(SADIH(**WITH_ANCHORS).fit(store), expected, tmp_path)
        codes = expected.encode(store, tmp_path / "c").read("codes")
        X = da.from_array(data[0], chunks=(500, -1))
        wait_until(lambda: not no_workers.workers)
        same_bits(SADIH(**WITH_ANCHORS).fit(X, data[1]), expected, tmp_path)
        wait_until(lambda: not no_workers.workers)
        written = expected.encode(X, tmp_path / "w").read("codes")
    np.testing.assert_array_equal(codes, expected.transform(data[0]))
    np.testing.assert_array_equal(written, codes)


def test_no_worker_ever_comes(
    no_workers: LocalCluster, data: tuple[Any, Any], store: FeatureStore, tmp_path: Path
) -> None:
    X, y = (da.from_array(a, chunks=500) for a in data)
    model = SADIH(**FAST, anchors=None).fit(*data)
    jobs: list[Callable[[], Any]] = [
        lambda: SADIH(**WITH_ANCHORS).fit(store),
        lambda: SADIH(**WITH_ANCHORS).fit(X.rechunk((500, -1)), y),
        lambda: model.encode(store, tmp_path / "c"),
    ]
    with Client(no_workers), dask.config.set({"sadih.worker-timeout": "1s"}):
        for job in jobs:
            with pytest.raises(ClusterError, match=r"has had no worker for .*dask worker ADDRESS"):
                job()
