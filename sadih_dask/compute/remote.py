"""Running a graph on a Dask cluster, and saying what went wrong with it.

An error of a task arrives as it was raised, and the task is not tried again. What the cluster does
wrong (a scheduler that dies, workers that stay away or die of a task) is a `ClusterError`.

A cluster is waited for, but never for ever: the thread that wants a result waits for it and, now
and then, asks the scheduler how things stand. One that does not answer, or whose workers are all
gone or out of memory, is an error after a while; one without any worker has been given work, so a
cluster that adapts to it starts some meanwhile. A worker of which nothing is heard is named in a
warning: its tasks wait for it. The questions run on the client's own loop, one at a time: none
blocks the wait, and no thread is left behind that could still speak when the work is over.
"""

from __future__ import annotations

import logging
from asyncio import ensure_future, gather, run_coroutine_threadsafe, sleep
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future as Handle
from concurrent.futures import wait
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Lock
from time import monotonic, time
from typing import Any, NamedTuple, TypeVar

import dask
from dask._task_spec import DataNode
from dask.optimization import cull
from dask.utils import parse_timedelta
from distributed.client import ClosedClientError, FutureCancelledError, FuturesCancelledError
from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError

from sadih_dask.compute.process import prepared
from sadih_dask.errors import Argument, ClusterError, Remedy

logger = logging.getLogger(__name__)
_submitting = Lock()
SUBMISSIONS = 10
"""How often a graph is given to a cluster, at most, whose workers die before they do anything."""


def identity_of(client: Any, n_workers: int = -1) -> dict[str, Any]:
    """What a scheduler says of itself and of that many workers, by default all."""
    with conversation(client):
        found: dict[str, Any] = settle(client, client.scheduler.identity(n_workers=n_workers))
    return found


def count_threads(client: Any) -> int:
    """Threads of all workers; one, if there is no worker yet."""
    return max(1, int(identity_of(client, n_workers=0)["total_threads"]))


@contextmanager
def conversation(client: Any) -> Iterator[None]:
    """An error of the connection in here, time-outs among them, is the cluster's."""
    try:
        yield
    except ClusterError:
        raise
    except (OSError, ClosedClientError) as error:
        raise ClusterError(
            f"{name_of(client)} cannot be spoken to ({type(error).__name__}: {error}). {LOST}"
        ) from error


def run_on_cluster(
    client: Any,
    graph: Mapping[Any, Any],
    keys: Sequence[Any],
    counted: str,
    report: Callable[[int], None] | None,
    take: Callable[[int, Any], None],
) -> None:
    """Compute keys; ``take`` gets the place and the result of each as soon as it is there.

    Workers that die are replaced and their tasks repeated by the scheduler: it has the recipe of
    everything in the graph. What has been taken is no longer held by any worker, so that it is not
    computed again when one dies.
    """
    wanted: dict[int, Any] = dict(enumerate(keys))

    def taken(place: int, result: Any) -> None:
        del wanted[place]
        take(place, result)

    for again in range(SUBMISSIONS):
        try:
            _submit(client, graph, dict(wanted), counted, report, taken)
            return
        except KilledWorker as error:
            # The scheduler blames what a worker was given first for all that befalls it
            if not isinstance(graph.get(error.task), DataNode) or again == SUBMISSIONS - 1:
                raise _verdict(error, graph) from error
            logger.warning(
                "workers die as soon as they have joined, the last one at %s; what is left to do "
                "is given to others",
                error.last_worker.address,
            )


def _submit(
    client: Any,
    graph: Mapping[Any, Any],
    keys: Mapping[int, Any],
    counted: str,
    report: Callable[[int], None] | None,
    take: Callable[[int, Any], None],
) -> None:
    with _submission(client):
        tasks = {name: prepared(task) for name, task in graph.items()}
        futures = client.get(tasks, list(keys.values()), sync=False)
    results = _Results(dict(zip(keys, futures, strict=True)))
    try:
        settle(client, results.come(client), counted, report, lambda: results.pass_on(take))
    except (FutureCancelledError, FuturesCancelledError) as error:
        gone = "scheduler-connection-lost" in str(error)
        what = "is gone: the connection was lost" if gone else f"has cancelled it: {error}"
        raise ClusterError(f"{name_of(client)} {what}. {LOST}") from error
    except (NoWorkerError, NoValidWorkerError) as error:
        raise _verdict(error, graph) from error
    except (OSError, ClosedClientError):
        if results.a_task_failed:
            raise
        with conversation(client):
            raise


class _Results:
    """Results that come from a cluster one by one, on its client's loop, and are taken here."""

    def __init__(self, futures: dict[int, Any]) -> None:
        self._futures = futures
        self._arrived: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self.a_task_failed = False

    async def come(self, client: Any) -> None:
        """Wait for all of them; whatever happens, the cluster is rid of them in the end."""
        waiting = [ensure_future(self._one(place)) for place in list(self._futures)]
        try:
            await gather(*waiting)
        finally:
            for one in waiting:
                one.cancel()
            if client.status == "running":
                for future in self._futures.values():
                    future.release()
                await sleep(0)  # the loop does it now, before anything of these names is asked for

    async def _one(self, place: int) -> None:
        future = self._futures[place]
        try:
            self._arrived.put((place, await future.result()))
        except BaseException:
            self.a_task_failed |= future.status == "error"
            raise
        future.release()

    def pass_on(self, take: Callable[[int, Any], None]) -> None:
        """Hand over what has arrived."""
        while not self._arrived.empty():
            take(*self._arrived.get())


def hold(client: Any, graph: Mapping[Any, Any], keys: Sequence[Any]) -> list[Any]:
    """Futures of keys, which are computed and kept on workers for as long as they live."""
    if not keys:
        return []
    with _submission(client):
        found: list[Any] = client.get(cull(dict(graph), list(keys))[0], list(keys), sync=False)
    return found


@contextmanager
def _submission(client: Any) -> Iterator[None]:
    """One graph at a time, however large.

    Shared values are in it, once, by intention: see `sadih_dask.compute.tree.Tasks`.
    """
    no_warning = {"distributed.admin.large-graph-warning-threshold": "1TiB"}
    with conversation(client), _submitting, dask.config.set(no_warning):
        yield


def _verdict(error: KilledWorker | NoWorkerError | NoValidWorkerError, graph: Any) -> ClusterError:
    task = _in_words(error.task, graph)
    if not isinstance(error, KilledWorker):
        return ClusterError(
            f"no worker took {task} for {error.timeout:.0f} s. Start workers: dask worker ADDRESS"
        )
    return ClusterError(
        f"{task} has ended {error.allowed_failures + 1} workers one after the other, the last at "
        f"{error.last_worker.address}. Most likely they ran out of memory; their logs say more",
        remedy=Remedy(
            "Start workers with more (dask worker --memory-limit), or take a smaller {}",
            Argument("block_rows"),
        ),
    )


def _in_words(key: Any, graph: Any) -> str:
    """Which task it is: purpose and number, and the numbers (rows, blocks) that it was given.

    >>> _in_words(("sadih-scan-0123", 3), {("sadih-scan-0123", 3): (max, 768, 1024)})
    "task 3 of 'sadih-scan' (768, 1024)"
    """
    name, *place = key if isinstance(key, tuple) else (key,)
    given = graph.get(key, ())
    numbers = [value for value in given if type(value) is int] if isinstance(given, tuple) else []
    at = f"task {', '.join(map(str, place))} of" if place else "task"
    arguments = f" ({', '.join(map(str, numbers))})" if numbers else ""
    return f"{at} {str(name).rpartition('-')[0]!r}{arguments}"


Result = TypeVar("Result")

SCHEDULER_TIMEOUT = "sadih.scheduler-timeout", "30s"
"""Dask configuration, and its default: how long a scheduler may be silent."""
WORKER_TIMEOUT = "sadih.worker-timeout", "600s"
"""Dask configuration, and its default: how long there may be no worker that takes tasks."""
WORKER_SILENCE = "sadih.worker-silence", "30s"
"""Dask configuration, and its default: how long a worker may be silent before it is named.

The scheduler of processes on this machine gives its tasks to others then.
"""
INTERVAL = 0.25
"""Seconds between two questions."""
LOST = (
    "Check that it runs and what its log says, then repeat the same call: what was finished in "
    "stores is kept"
)


class State(NamedTuple):
    """What a scheduler says of itself.

    unfinished  tasks that are not over
    workers, willing   how many there are, and how many of them take tasks
    silent      addresses of workers, and the seconds since they were last heard of
    patience    seconds after which the scheduler gives the tasks of such a worker to others
    """

    unfinished: int | None
    workers: int
    willing: int
    silent: dict[str, float]
    patience: float | None


def settle(
    client: Any,
    work: Coroutine[Any, Any, Result],
    prefix: str | None = None,
    report: Callable[[int], None] | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Result:
    """Result of a coroutine on the client's loop, for as long as the cluster is alive.

    ``report`` is called, in this thread, with how many tasks of the group ``prefix`` are not over,
    and ``meanwhile`` now and then, and at the end.
    """
    handle = run_coroutine_threadsafe(_outcome(work), client.loop.asyncio_loop)
    watch = _Watch(client, prefix, report)
    try:
        over = False
        while not over:
            over = bool(wait([handle], timeout=INTERVAL).done)
            if meanwhile is not None:
                meanwhile()
            if not over:
                watch.look()
        result, error = handle.result()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]
    finally:
        handle.cancel()
        watch.stop()


async def _outcome(
    work: Coroutine[Any, Any, Result],
) -> tuple[Result | None, BaseException | None]:
    """A cancelled task is a result here; raised on a loop it would lose its reason."""
    try:
        return await work, None
    except (FutureCancelledError, FuturesCancelledError) as error:
        return None, error


class _Watch:
    """Judges a scheduler by its answers."""

    def __init__(
        self, client: Any, prefix: str | None, report: Callable[[int], None] | None
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._report = report
        self._question: Handle[State] | None = None
        self._looked = self._heard = self._staffed = monotonic()
        self._silence = 0.0
        self._lack = "no worker"
        self._named: set[str] = set()

    def look(self) -> None:
        """Take an answer if there is one, ask again, and raise if it has been too bad too long."""
        if self._client.status in ("closed", "closing"):
            raise ClusterError(f"{name_of(self._client)} has closed the connection. {LOST}")
        if self._question is not None and self._question.done():
            if not self._question.cancelled() and self._question.exception() is None:
                self._take(self._question.result())
            self._question = None
        if self._question is None:
            question = self._client.run_on_scheduler(
                _state, self._prefix, configured(WORKER_SILENCE), asynchronous=True
            )
            self._question = run_coroutine_threadsafe(question, self._client.loop.asyncio_loop)
        self._judge()

    def _take(self, state: State) -> None:
        self._heard, self._silence = monotonic(), 0.0
        if state.willing:
            self._staffed = self._heard
        self._lack = "no worker with memory left" if state.workers else "no worker"
        if self._report is not None and state.unfinished is not None:
            self._report(state.unfinished)
        after = (
            "" if state.patience is None else f", until others get them after {state.patience:g} s"
        )
        for address in state.silent.keys() - self._named:
            logger.warning(
                "the worker at %s has not been heard of for %.0f s: its process is stopped, or its "
                "machine hangs. Its tasks wait for it%s",
                address,
                state.silent[address],
                after,
            )
        self._named = set(state.silent)

    def _judge(self) -> None:
        # A process that was stopped for an hour (Ctrl-Z) has not listened for an hour.
        now = monotonic()
        self._silence += min(now - self._looked, 8 * INTERVAL)
        self._looked = now
        if self._silence > configured(SCHEDULER_TIMEOUT):
            raise ClusterError(
                f"{name_of(self._client)} has not answered for {self._silence:.0f} s "
                f"(dask configuration {SCHEDULER_TIMEOUT[0]!r}). {LOST}"
            )
        vacancy = self._heard - self._staffed
        if vacancy > configured(WORKER_TIMEOUT):
            raise ClusterError(
                f"{name_of(self._client)} has had {self._lack} for {vacancy:.0f} s (dask "
                f"configuration {WORKER_TIMEOUT[0]!r}). Start workers (dask worker ADDRESS), or "
                "ones with more memory, and repeat the same call"
            )

    def stop(self) -> None:
        """Ask no more."""
        if self._question is not None:
            self._question.cancel()


def _state(prefix: str | None, silence: float, dask_scheduler: Any = None) -> State:
    """On the scheduler: how things stand."""
    logging.getLogger("distributed.worker").addFilter(_is_no_question)  # the same one is no second
    left = None
    if prefix is not None:
        group = dask_scheduler.task_groups.get(prefix)
        open_states = ("waiting", "no-worker", "queued", "processing")
        left = 0 if group is None else sum(group.states[state] for state in open_states)
    workers, now = dask_scheduler.workers, time()
    unheard = {address: now - worker.last_seen for address, worker in workers.items()}
    silent = {address: seconds for address, seconds in unheard.items() if seconds > silence}
    willing, patience = len(dask_scheduler.running), dask_scheduler.worker_ttl
    return State(left, len(workers), willing, silent, patience)


def _is_no_question(record: logging.LogRecord) -> bool:
    """Whether a line belongs into a scheduler's log; four a second that it was asked do not."""
    return record.args != (_state.__name__,)


def configured(setting: tuple[str, str]) -> float:
    """Seconds of a setting."""
    name, default = setting
    return float(parse_timedelta(dask.config.get(name, default)))


def name_of(client: Any) -> str:
    """A client's scheduler in an error message, also after the connection was lost."""
    return f"the Dask scheduler at {getattr(client.scheduler, 'address', 'an unknown address')}"
