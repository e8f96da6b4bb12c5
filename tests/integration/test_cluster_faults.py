"""What a cluster does wrong is a clear error in bounded time; what a task does wrong is its own."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from sadih_dask import SADIH, CodeStore, FeatureStore, evaluate, search
from sadih_dask.cluster import ClusterSettings, running
from sadih_dask.compute import process
from sadih_dask.compute import remote as waiting
from sadih_dask.compute.run import reporting, run, unique_name
from sadih_dask.errors import ClusterError, IntegrityError, MemoryPlanError, NonFiniteError
from tests.support.datasets import rows
from tests.support.models import FAST, same_bits
from tests.support.processes import PATIENCE, DaskProcesses, dask_processes, wait_until
from tests.support.rankings import random_codes


@pytest.fixture(scope="module")
def cluster() -> Iterator[DaskProcesses]:
    with dask_processes(2) as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    X, y = rows()
    return FeatureStore.create(tmp_path / "s", X, y, chunk_rows=300)


def place(cluster: DaskProcesses, **changes: Any) -> ClusterSettings:
    return ClusterSettings(kind="scheduler", address=cluster.address, **changes)


def stuck(*_: Any) -> None:
    time.sleep(600)


def get_stuck() -> None:
    """Let every task take for ever on this worker."""
    process._call = stuck


def wait_for_tasks(cluster: DaskProcesses, n: int) -> None:
    """Wait until that many kinds of tasks are under way, on a client of one's own."""
    with cluster.client(set_as_default=False) as client:
        wait_until(lambda: client.run_on_scheduler(n_groups_under_way) >= n, "the work begins")


def n_groups_under_way(dask_scheduler: Any) -> int:
    groups = dask_scheduler.task_groups.values()
    return sum(any(g.states[s] for s in ("queued", "processing", "waiting")) for g in groups)


def jobs(folder: Path, store: FeatureStore) -> dict[str, Callable[[], object]]:
    """Everything that runs on a cluster, on small data."""
    rng = np.random.default_rng(0)
    model = SADIH(**FAST, anchors=None).fit(*rows())
    codes = CodeStore.create(folder / "c", random_codes(rng, 5000, 16), n_bits=16, model="m")
    queries = random_codes(rng, 20, 16)
    return {
        "fit": lambda: SADIH(**FAST, anchors=None).fit(store),
        "encode": lambda: model.encode(store, folder / "e"),
        "search": lambda: search(codes, queries, 5),
        "evaluate": lambda: evaluate(codes, queries, store, rng.integers(0, 5, 20)),
    }


def fails(job: Callable[[], object]) -> BaseException | None:
    try:
        job()
    except BaseException as error:
        return error
    return None


def test_the_scheduler_is_killed_under_all_of_them(tmp_path: Path, store: FeatureStore) -> None:
    todo = jobs(tmp_path, store)
    before = threading.active_count()
    with (
        dask_processes(1) as cluster,
        running(place(cluster)) as there,
        ThreadPoolExecutor(len(todo)) as pool,
    ):
        described = there.describe()
        there.client.run(get_stuck)
        pending = {name: pool.submit(fails, job) for name, job in todo.items()}
        wait_for_tasks(cluster, len(todo))
        cluster.kill(cluster.scheduler)
        for name, future in pending.items():
            error = future.result(timeout=PATIENCE)
            assert isinstance(error, ClusterError), f"{name}: {error!r}"
            assert cluster.address in str(error)
            assert "repeat the same call" in str(error)
        assert there.describe() == described
    assert threading.active_count() <= before


def test_the_scheduler_does_not_answer(tmp_path: Path, store: FeatureStore) -> None:
    """A machine that hangs closes no connection."""
    with dask_processes(1) as cluster, running(place(cluster)) as there:
        there.client.run(get_stuck)
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(fails, lambda: SADIH(**FAST, anchors=None).fit(store))
            wait_for_tasks(cluster, 1)
            cluster.kill(cluster.scheduler, signal.SIGSTOP)
            with dask.config.set({"sadih.scheduler-timeout": "2s"}):
                error = pending.result(timeout=PATIENCE)
        cluster.kill(cluster.scheduler, signal.SIGKILL)
    assert isinstance(error, ClusterError)
    assert "has not answered for" in str(error)


def test_a_driver_that_was_stopped_has_not_waited(
    cluster: DaskProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-Z and fg the clock has moved on; the scheduler is as well as before."""
    ahead = iter([0.0] * 5)
    real = time.monotonic
    monkeypatch.setattr(waiting, "monotonic", lambda: real() + next(ahead, 3600.0))
    name = unique_name("nap")
    with running(place(cluster)):
        assert run({(name, 0): (nap, 1.5)}, (name, 0), name) is None


def test_no_worker_comes_or_all_go(store: FeatureStore) -> None:
    with dask_processes(0, nanny=False) as cluster:
        with (
            pytest.raises(ClusterError, match=r"no worker for .*dask worker"),
            running(place(cluster, worker_timeout=1)),
        ):
            pass
        cluster.start_worker()
        cluster.wait()
        with running(place(cluster)) as there:
            there.client.run(get_stuck)
            with ThreadPoolExecutor(1) as pool:
                pending = pool.submit(fails, lambda: SADIH(**FAST, anchors=None).fit(store))
                wait_for_tasks(cluster, 1)
                cluster.kill(cluster.workers[0])
                with dask.config.set({"sadih.worker-timeout": "1s"}):
                    error = pending.result(timeout=PATIENCE)
    assert isinstance(error, ClusterError)
    assert "has had no worker" in str(error)


def test_nobody_answers_at_an_address() -> None:
    settings = ClusterSettings(kind="scheduler", address="127.0.0.1:1", connect_timeout=1)
    with pytest.raises(ClusterError, match="no Dask scheduler answers at 127"), running(settings):
        pass


# --- tasks -------------------------------------------------------------------------------------


def fail(note: str, error: BaseException) -> None:
    with Path(note).open("a") as file:
        file.write("once\n")
    raise error


@pytest.mark.parametrize(
    "error",
    [
        NonFiniteError("nan at row 7, column 3"),
        IntegrityError("array 'features', chunk 5"),
        FileNotFoundError(2, "No such file"),
        TimeoutError("of the storage"),
        ConnectionResetError("of the storage"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_task_is_its_own_and_comes_once(
    cluster: DaskProcesses, tmp_path: Path, error: Exception
) -> None:
    """Also one that looks like an error of the connection."""
    name, note = unique_name("poison"), tmp_path / "note"
    graph = {(name, 0): (fail, str(note), error)}
    with running(place(cluster)), pytest.raises(type(error)) as caught:
        run(graph, (name, 0), name)
    assert not isinstance(caught.value, ClusterError)
    assert str(caught.value) == str(error)
    assert note.read_text().split() == ["once"]


def die(note: str, _: int) -> None:
    with Path(note).open("a") as file:
        file.write("once\n")
    os._exit(1)


def test_a_task_that_ends_its_workers_is_named(tmp_path: Path) -> None:
    few = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    name, note = unique_name("scan"), tmp_path / "note"
    with (
        dask_processes(2, nanny=False, environment=few) as cluster,
        running(place(cluster)),
        pytest.raises(ClusterError, match=r"task 3 of 'sadih-scan' \(512\) has ended 2 workers"),
    ):
        run({(name, 3): (die, str(note), 512)}, (name, 3), name)
    assert note.read_text().split() == ["once"] * 2


def nap(seconds: float) -> None:
    time.sleep(seconds)


def test_progress_rises_and_is_complete_once(cluster: DaskProcesses) -> None:
    name = unique_name("nap")
    graph: dict[Any, Any] = {(name, k): (nap, 0.1) for k in range(16)}
    said: list[tuple[int, int]] = []
    speakers = set()

    def progress(done: int, total: int) -> None:
        said.append((done, total))
        speakers.add(threading.current_thread())

    with running(place(cluster)):
        with reporting(progress):
            run({**graph, "all": (len, list(graph))}, "all", name)
        bad = {**graph, (name, 16): (fail, os.devnull, ValueError("at the end"))}
        with (
            pytest.raises(ValueError, match="at the end"),
            reporting(lambda *step: said.append(step)),
        ):
            run({**bad, "bad": (len, list(bad))}, "bad", name)
    done = [step for step, _ in said]
    first = done.index(16) + 1
    assert len(done[:first]) > 2
    assert done[:first] == sorted(set(done[:first]))
    assert 17 not in done  # what failed is never complete
    assert speakers == {threading.current_thread()}


# --- workers that are stopped -------------------------------------------------------------------


def naps() -> tuple[dict[Any, Any], str]:
    """Tasks for which a worker imports next to nothing: while it does, it is silent."""
    name = unique_name("nap")
    graph: dict[Any, Any] = {(name, k): (time.sleep, 0.2) for k in range(40)}
    return {**graph, "all": (list, list(graph))}, name


def test_work_of_a_stopped_process_is_done_by_others(caplog: pytest.LogCaptureFixture) -> None:
    graph, name = naps()
    stopped: dict[str, int] = {}
    with (
        dask.config.set({"sadih.worker-silence": "10s"}),
        running(ClusterSettings(kind="processes", workers=2)) as there,
    ):
        address, process = next(iter(there.client.run(os.getpid).items()))

        def stop(done: int, total: int) -> None:
            if not stopped:
                stopped[address] = process
                os.kill(process, signal.SIGSTOP)

        with reporting(stop):
            found = run(graph, "all", name)
    assert stopped
    assert len(found) == 40
    assert f"the worker at {address} has not been heard of for" in caplog.text
    with pytest.raises(ProcessLookupError):  # replaced by its nanny
        os.kill(process, 0)


def test_a_stopped_worker_of_another_cluster_is_named(caplog: pytest.LogCaptureFixture) -> None:
    graph, name = naps()
    with (
        dask_processes(2, nanny=False) as cluster,
        running(place(cluster)) as there,
        dask.config.set({"sadih.worker-silence": "1s"}),
        ThreadPoolExecutor(1) as pool,
    ):
        stopped = cluster.workers[0]
        (address,) = (
            at for at, process in there.client.run(os.getpid).items() if process == stopped.pid
        )
        pending = pool.submit(run, graph, "all", name)
        wait_for_tasks(cluster, 1)
        cluster.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: f"worker at {address} has not been heard of" in caplog.text, "a word")
        assert "others get them after 300 s" in caplog.text
        assert not pending.done()
        cluster.kill(stopped, signal.SIGCONT)
        assert len(pending.result(timeout=PATIENCE)) == 40


# --- workers with little memory, or with other versions ----------------------------------------


def test_a_fit_that_does_not_fit_its_workers_is_refused(store: FeatureStore) -> None:
    with dask_processes(1, memory_limit="200MiB") as cluster, running(place(cluster)) as there:
        before = there.client.run(os.getpid)
        with pytest.raises(MemoryPlanError, match="the scan was not started"):
            SADIH(n_bits=16, anchors=2000, block_rows=4096).fit(store)
        assert there.client.run(os.getpid) == before


def test_a_worker_without_memory_is_an_error_not_a_wait(store: FeatureStore) -> None:
    """A worker that holds as much as it may takes no tasks, and would for ever."""
    model = SADIH(**FAST, anchors=None).fit(*rows())
    pause = {"DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "false"}
    with (
        dask_processes(1, memory_limit="60MiB", environment=pause) as cluster,
        pytest.raises(ClusterError, match="has had no worker with memory left"),
        running(place(cluster, worker_timeout=2)),
    ):
        model.encode(store, Path(store.url).parent / "c")


def test_another_version_is_a_warning(
    store: FeatureStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "path" / "zarr-3.0.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: zarr\nVersion: 3.0.0\n")
    root = Path(__file__).parents[2]
    other = {"PYTHONPATH": f"{tmp_path / 'path'}{os.pathsep}{root}"}
    with dask_processes(1, environment=other) as cluster:
        with running(place(cluster)):
            found = SADIH(**FAST, anchors=None).fit(store)
        assert "zarr 3.0.0 (here " in caplog.text
        assert "results may differ" in caplog.text
    same_bits(found, SADIH(**FAST, anchors=None).fit(*rows()), tmp_path)


def test_a_cluster_without_this_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sadih_dask.py").write_text("raise ImportError('no such package')")
    absent = {"PYTHONPATH": str(tmp_path)}
    with dask_processes(1, nanny=False, environment=absent) as cluster:
        settings = place(cluster)
        with (
            pytest.raises(ClusterError, match=r"the worker at .* cannot run .*install version"),
            running(settings),
        ):
            pass
        cluster.kill(cluster.workers[0])
        cluster.environment["PYTHONPATH"] = str(Path(__file__).parents[2])
        cluster.start_worker()
        with (
            pytest.raises(ClusterError, match=r"the scheduler cannot run .*install version"),
            running(settings),
        ):
            pass


def test_timeouts_are_dasks_configuration() -> None:
    with running(ClusterSettings(scheduler_timeout=7, worker_timeout=8)):
        assert dask.config.get("sadih.scheduler-timeout") == 7
        assert dask.config.get("sadih.worker-timeout") == 8
