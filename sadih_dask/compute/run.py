"""Running a graph: on threads in this process, or on the Dask cluster that is current.

Which of the two is Dask's own choice (``dask.config``, an active ``distributed.Client``). One BLAS
thread per task: tasks are the parallelism, and a product then has the same bits on any machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeAlias
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask.base import get_scheduler
from dask.callbacks import Callback
from dask.delayed import Delayed

from sadih_dask.compute.process import one_blas_thread
from sadih_dask.compute.remote import count_threads, hold, run_on_cluster
from sadih_dask.errors import ClusterError
from sadih_dask.types import Array

Graph: TypeAlias = Mapping[Any, Any]
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished and of all tasks that count as progress."""
_listener: ContextVar[Progress | None] = ContextVar("listener", default=None)


@contextmanager
def reporting(progress: Progress | None) -> Iterator[None]:
    """Let somebody hear of the long work of a block; None leaves it to who hears already."""
    token = _listener.set(progress if progress is not None else _listener.get())
    try:
        yield
    finally:
        _listener.reset(token)


def listener() -> Progress | None:
    """Who hears of long work now, if anybody does."""
    return _listener.get()


def nobody(done: int, total: int) -> None:
    """Hear nothing, as of short work before or after that which is counted."""


def heard_in(n_units: int, *stage: str) -> Progress | None:
    """Who hears of long work now, told of units, such as rows, where tasks are counted.

    ``stage``, a title and a unit, goes to a listener that has a method `begin`, before the first.
    """
    if (hearer := listener()) is None:
        return None
    begin: Callable[..., object] | None = getattr(hearer, "begin", None) if stage else None

    def report(done: int, total: int) -> None:
        nonlocal begin
        if begin is not None:
            begin(*stage)
            begin = None
        hearer(round(done / max(1, total) * n_units), n_units)

    return report


def in_rows(n_before: int, n_rows: int, progress: Progress | None = None) -> Progress | None:
    """Who hears of long work now, told of rows of a store, those that were there among them."""
    if (hearer := progress or listener()) is None:
        return None
    hearer(n_before, n_rows)
    return lambda done, total: hearer(n_before + round(done / total * (n_rows - n_before)), n_rows)


class Steps:
    """Steps of work in this process; a listener that has a method `begin` is told of each."""

    def __init__(self, total: int, title: str, unit: str = "steps") -> None:
        hearer = listener()
        begin: Callable[..., object] | None = getattr(hearer, "begin", None)
        self._heard = hearer if begin is not None else None
        self._done, self._total = 0, total
        if begin is not None:
            begin(title, unit, brief=True)

    def __call__(self) -> None:
        """One more is done."""
        self._done += 1
        if self._heard is not None and self._done <= self._total:
            self._heard(self._done, self._total)

    def end(self) -> None:
        """There are no more, as when less was enough."""
        if self._done < self._total:
            self._done = self._total - 1
            self()


def amid(before: int, n_tasks: int, after: int) -> Progress | None:
    """Who hears of long work now, told of tasks that come before and after it as well."""
    if (hearer := listener()) is None:
        return None
    total = before + n_tasks + after
    hearer(before, total)
    return lambda done, _: hearer(before + done, total)


def unique_name(purpose: str) -> str:
    """A key prefix that no other run on the same scheduler has."""
    return f"sadih-{purpose}-{uuid4().hex[:12]}"


def current_client() -> Any | None:
    """The distributed client that Dask would use now, or None for a local scheduler."""
    try:
        scheduler = get_scheduler()
    except RuntimeError as error:
        raise ClusterError(
            f"this call waits for tasks, in the event loop that runs them ({error}). Call it in a "
            "thread: await asyncio.to_thread(model.fit, X, y)"
        ) from error
    client = getattr(scheduler, "__self__", None)
    return client if hasattr(client, "scatter") else None


def is_lazy(value: Any) -> bool:
    """Whether a value is a Dask array."""
    return isinstance(value, da.Array)


def run(graph: Graph, key: Any, counted: str = "", local: bool = False) -> Any:
    """Compute one key; tasks whose key is a tuple that begins with ``counted`` are progress.

    ``local`` graphs hold data of this process and run on its threads.
    """
    found: list[Any] = []
    run_each_key(graph, [key], lambda _, result: found.append(result), counted, local)
    return found[0]


def run_each_key(
    graph: Graph,
    keys: Sequence[Any],
    take: Callable[[int, Any], None],
    counted: str = "",
    local: bool = False,
) -> None:
    """Compute keys; ``take`` gets the place of each and its result, in this thread.

    From a cluster they come in the order in which they are finished: what has arrived here is not
    lost with the worker that has computed it.
    """
    client = None if local else current_client()
    total = sum(1 for task in graph if _counts(task, counted))
    progress = listener() if total else None
    if client is not None:
        report = _remote_progress(total, progress)
        run_on_cluster(client, graph, keys, counted, report, take)
        if progress is not None:
            progress(total, total)
        return
    everything = unique_name("all")
    wanted = Delayed(everything, {**graph, everything: (list, list(keys))})
    with one_blas_thread(), _local_progress(counted, total, progress):
        results = wanted.compute(scheduler="threads") if local else wanted.compute()
    for place, result in enumerate(results):
        take(place, result)


def held_on_cluster(graph: Graph, keys: Sequence[Any]) -> list[Any] | None:
    """Compute keys and keep them where they are, for as long as the futures live; None if local."""
    client = current_client()
    return None if client is None else hold(client, graph, keys)


def computed(array: da.Array) -> Array:
    """A Dask array, in memory; what goes wrong with a cluster is a ClusterError here too."""
    whole = array.rechunk(dict.fromkeys(range(1, array.ndim), -1))
    key, zeros = unique_name("values"), (0,) * (whole.ndim - 1)
    chunks = [(whole.name, k, *zeros) for k in range(whole.numblocks[0])]
    graph: Graph = {**dict(whole.__dask_graph__()), key: (np.concatenate, chunks)}
    found: Array = run(graph, key)
    return found


def _counts(key: Any, counted: str) -> bool:
    return isinstance(key, tuple) and key[0] == counted


def _local_progress(counted: str, total: int, progress: Progress | None) -> Any:
    """Report finished tasks of a local scheduler."""
    if progress is None:
        return nullcontext()
    done = itertools.count(1)

    def finished(key: Any, *_: Any) -> None:
        if _counts(key, counted):
            progress(next(done), total)

    return Callback(posttask=finished)


def _remote_progress(total: int, progress: Progress | None) -> Callable[[int], None] | None:
    """Report what is new; that all is done is said once, when the result is here."""
    if progress is None:
        return None
    said = 0

    def report(unfinished: int) -> None:
        nonlocal said
        if unfinished and total - unfinished > said:
            said = total - unfinished
            progress(said, total)

    return report


def default_workers() -> int:
    """Threads that the local scheduler will use."""
    from dask.system import CPU_COUNT

    return int(dask.config.get("num_workers", None) or CPU_COUNT)


def total_threads(local: bool = False) -> int:
    """Threads that tasks can run on now, in all processes."""
    client = None if local else current_client()
    if client is None:
        return default_workers()
    return count_threads(client)
