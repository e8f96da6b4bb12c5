"""Running a graph: on threads in this process, or on the Dask cluster that is current.

Which of the two is Dask's own choice (``dask.config``, an active ``distributed.Client``). One BLAS
thread per task: tasks are the parallelism, and a product then has the same bits on any machine.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias
from uuid import uuid4
from weakref import WeakKeyDictionary

import dask
import dask.array as da
from dask.base import get_scheduler
from dask.callbacks import Callback
from dask.delayed import Delayed
from distributed import Future
from distributed.client import FutureCancelledError
from distributed.protocol.pickle import dumps
from threadpoolctl import ThreadpoolController

logger = logging.getLogger(__name__)

Graph: TypeAlias = Mapping[Any, Any]
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished and of all tasks that count as progress."""
SMALL_VALUE = 2**16
"""Bytes of a value that may travel in a graph."""
ATTEMPTS = 3
"""How often a pass is begun when the cluster loses what was sent to it."""
_sent: WeakKeyDictionary[Future[Any], Any] = WeakKeyDictionary()


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep linear algebra on one thread in this process."""
    with _blas().limit(limits=1):
        yield


def unique_name(purpose: str) -> str:
    """A key prefix that no other run on the same scheduler has."""
    return f"sadih-{purpose}-{uuid4().hex[:12]}"


def current_client() -> Any | None:
    """The distributed client that Dask would use now, or None for a local scheduler."""
    scheduler = get_scheduler()
    client = getattr(scheduler, "__self__", None)
    return client if hasattr(client, "scatter") else None


def is_lazy(value: Any) -> bool:
    """Whether a value is a Dask array."""
    return isinstance(value, da.Array)


def share(value: Any, local: bool = False) -> Any:
    """Put a value that many tasks read where they can reach it, once.

    On a cluster a large value is sent to the workers and a reference travels in the graph; on
    threads the object itself is referred to. Small ones travel in the graph, where no dying worker
    can take them along.
    """
    client = None if local else current_client()
    if client is None or len(dumps(value)) <= SMALL_VALUE:
        return value
    return _send(client, value)


def _send(client: Any, value: Any) -> Future[Any]:
    future: Future[Any] = client.scatter(value, broadcast=True, hash=False)
    _sent[future] = value
    return future


def run(
    graph: Graph, key: Any, counted: str, progress: Progress | None = None, local: bool = False
) -> Any:
    """Compute one key; tasks whose key is a tuple that begins with ``counted`` are progress.

    ``local`` graphs hold data of this process and run on its threads.
    """
    client = None if local else current_client()
    if client is not None:
        return _run_on_cluster(client, graph, key, counted, progress)
    wanted = Delayed(key, graph)
    total = _count(graph, counted)
    with one_blas_thread(), _local_progress(counted, total, progress):
        return wanted.compute(scheduler="threads") if local else wanted.compute()


def _count(graph: Graph, counted: str) -> int:
    return sum(1 for key in graph if isinstance(key, tuple) and key[0] == counted)


def _local_progress(counted: str, total: int, progress: Progress | None) -> Callback:
    """Report finished tasks of a local scheduler."""
    done = itertools.count(1)

    def finished(key: Any, *_: Any) -> None:
        if progress is not None and isinstance(key, tuple) and key[0] == counted:
            progress(next(done), total)

    return Callback(posttask=finished)


def _run_on_cluster(
    client: Any, graph: Graph, key: Any, counted: str, progress: Progress | None
) -> Any:
    """Run a graph; once more if the cluster has lost a shared value.

    Workers that die are replaced and their tasks repeated by the scheduler. Only a value that was
    sent from here, and that no other worker has a copy of, it cannot make again.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return _run_once(client, graph, key, counted, progress)
        except FutureCancelledError:
            lost = {name: value for name, value in graph.items() if isinstance(value, Future)}
            if not lost:
                raise
            logger.warning("a worker died with data that had no copy; the pass starts again")
            again = {name: _send(client, _sent[future]) for name, future in lost.items()}
            graph = {**graph, **again}
    return _run_once(client, graph, key, counted, progress)


def _run_once(client: Any, graph: Graph, key: Any, counted: str, progress: Progress | None) -> Any:
    future = client.compute(Delayed(key, graph))
    stop = threading.Event()
    watcher = None
    if progress is not None:
        total = _count(graph, counted)
        arguments = (client, counted, total, progress, stop)
        watcher = threading.Thread(target=_watch, args=arguments, daemon=True)
        watcher.start()
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
    finally:
        stop.set()
        if watcher is not None:
            watcher.join(timeout=5)


def _watch(
    client: Any, counted: str, total: int, progress: Progress, stop: threading.Event
) -> None:
    """Ask the scheduler now and then how many of the counted tasks are over."""
    while not stop.wait(0.5):
        left = client.run_on_scheduler(_unfinished, prefix=counted)
        progress(total - min(left, total), total)
    progress(total, total)


def _unfinished(prefix: str, dask_scheduler: Any = None) -> int:
    group = dask_scheduler.task_groups.get(prefix)
    if group is None:
        return 0
    return sum(group.states[state] for state in ("waiting", "no-worker", "queued", "processing"))


def default_workers() -> int:
    """Threads that the local scheduler will use."""
    from dask.system import CPU_COUNT

    return int(dask.config.get("num_workers", None) or CPU_COUNT)


def total_threads(local: bool = False) -> int:
    """Threads that tasks can run on now, in all processes."""
    client = None if local else current_client()
    if client is None:
        return default_workers()
    return max(1, sum(client.nthreads().values()))
