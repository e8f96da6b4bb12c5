"""Running a graph on a Dask cluster, and saying what went wrong with it.

An error of a task arrives as it was raised, and the task is not tried again. What the cluster does
wrong (a scheduler that dies, workers that stay away or die of a task) is a `ClusterError`.

Waiting for a cluster, but never for ever.

The thread that wants a result waits for it and, now and then, asks the scheduler how things stand.
A scheduler that does not answer, or one whose workers are all gone or out of memory, is an error
after a while. The questions run on the client's own loop, one at a time: none blocks the wait, and
no thread is left behind that could still speak when the work is over.
"""

from __future__ import annotations

import logging
from asyncio import run_coroutine_threadsafe
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future as Handle
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import dask
from dask.delayed import Delayed
from dask.utils import parse_timedelta
from distributed import Future
from distributed.client import ClosedClientError, FutureCancelledError, FuturesCancelledError
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError

from sadih_dask.compute.blas import limited
from sadih_dask.errors import ClusterError

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""How often a pass is begun when the cluster loses what was sent to it."""
SENDINGS = 8
"""How often a value is sent when workers die while they get it."""


class _WorkerDied(Exception):
    """A worker went away while the scheduler spoke to it."""


_DIED_MEANWHILE = (_WorkerDied, KeyError)
"""KeyError is what the scheduler itself raises when it looks for such a worker."""
_sent: WeakKeyDictionary[Future[Any], Any] = WeakKeyDictionary()


def send(client: Any, value: Any) -> Future[Any]:
    """Put a value on every worker; once more if one dies while it is being sent to."""
    for attempt in range(1, SENDINGS + 1):
        try:
            with conversation(client):
                future = _send_once(client, value)
        except _DIED_MEANWHILE as error:
            if attempt == SENDINGS:
                raise ClusterError(
                    f"{name_of(client)} could not send data to its workers, as these keep dying "
                    f"({type(error).__name__}: {error}). Their logs say why. {LOST}"
                ) from error
            logger.warning("a worker died while data were sent to it; they are sent again")
            sleep(INTERVAL)
        else:
            break
    _sent[future] = value
    return future


def _send_once(client: Any, value: Any) -> Future[Any]:
    # Whether there are workers is judged while waiting; that must come before scatter gives up.
    patience = configured(WORKER_TIMEOUT) + 20 * INTERVAL
    # A list of one: the elements of a tuple or a list would be scattered one by one.
    sending = client.scatter(
        [value], broadcast=True, hash=False, timeout=patience, asynchronous=True
    )
    try:
        future: Future[Any]
        [future] = settle(client, sending)
    except CommClosedError as error:
        # The scheduler's connection to a worker, or ours to the scheduler: does it still answer?
        settle(client, client.scheduler.identity(n_workers=0))
        raise _WorkerDied(str(error)) from error
    return future


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
    key: Any,
    counted: str,
    report: Callable[[int], None] | None,
) -> Any:
    """Compute one key; once more if the cluster has lost a shared value.

    Workers that die are replaced and their tasks repeated by the scheduler. Only a value that was
    sent from here, and that no other worker has a copy of, it cannot make again.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _run_once(client, graph, key, counted, report)
        except (FutureCancelledError, FuturesCancelledError) as error:
            shared = {name: value for name, value in graph.items() if isinstance(value, Future)}
            gone = "scheduler-connection-lost" in str(error)
            if gone or not shared or attempt == ATTEMPTS:
                what = "is gone: the connection was lost" if gone else f"has cancelled it: {error}"
                raise ClusterError(f"{name_of(client)} {what}. {LOST}") from error
            logger.warning("a worker died with data that had no copy; the pass starts again")
            again = {name: send(client, _sent[future]) for name, future in shared.items()}
            graph = {**graph, **again}
    raise AssertionError("the last attempt returns or raises")


def _run_once(
    client: Any,
    graph: Mapping[Any, Any],
    key: Any,
    counted: str,
    report: Callable[[int], None] | None,
) -> Any:
    with conversation(client):
        future = client.compute(Delayed(key, {name: limited(task) for name, task in graph.items()}))
    try:
        return settle(client, _result(future), counted, report)
    except (KilledWorker, NoWorkerError, NoValidWorkerError) as error:
        raise ClusterError(_verdict(error, graph)) from error
    except (OSError, ClosedClientError):
        if future.status == "error":  # raised by a task, on a worker
            raise
        with conversation(client):
            raise
    finally:
        _let_go(future)


async def _result(future: Future[Any]) -> Any:
    return await future.result()


def _let_go(future: Future[Any]) -> None:
    """Stop what still runs, and forget what was cancelled: another attempt has the same keys."""
    if future.client.status == "running" and future.status != "finished":
        future.cancel()


def _verdict(error: KilledWorker | NoWorkerError | NoValidWorkerError, graph: Any) -> str:
    task = _in_words(error.task, graph)
    if isinstance(error, KilledWorker):
        return (
            f"{task} has ended {error.allowed_failures + 1} workers one after the other, the last "
            f"at {error.last_worker.address}. Most likely they ran out of memory: start workers "
            "with more (dask worker --memory-limit) or take smaller blocks (block_rows). Their "
            "logs say more"
        )
    return f"no worker took {task} for {error.timeout:.0f} s. Start workers: dask worker ADDRESS"


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
WORKER_TIMEOUT = "sadih.worker-timeout", "60s"
"""Dask configuration, and its default: how long there may be no worker that takes tasks."""
INTERVAL = 0.25
"""Seconds between two questions."""
LOST = (
    "Check that it runs and what its log says, then repeat the same call: what was finished in "
    "stores is kept"
)


@dataclass(frozen=True)
class State:
    """What a scheduler says of itself: tasks that are not over, workers, and those that work."""

    unfinished: int | None
    workers: int
    willing: int


def settle(
    client: Any,
    work: Coroutine[Any, Any, Result],
    prefix: str | None = None,
    report: Callable[[int], None] | None = None,
) -> Result:
    """Result of a coroutine on the client's loop, for as long as the cluster is alive.

    ``report`` is called, in this thread, with how many tasks of the group ``prefix`` are not over.
    """
    handle = run_coroutine_threadsafe(_outcome(work), client.loop.asyncio_loop)
    watch = _Watch(client, prefix, report)
    try:
        while not _over(handle, INTERVAL):
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


def _over(handle: Handle[Any], timeout: float) -> bool:
    return bool(wait([handle], timeout=timeout).done)


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

    def look(self) -> None:
        """Take an answer if there is one, ask again, and raise if it has been too bad too long."""
        if self._client.status in ("closed", "closing"):
            raise ClusterError(f"{name_of(self._client)} has closed the connection. {LOST}")
        if self._question is not None and self._question.done():
            if not self._question.cancelled() and self._question.exception() is None:
                self._take(self._question.result())
            self._question = None
        if self._question is None:
            question = _ask(self._client, self._prefix)
            self._question = run_coroutine_threadsafe(question, self._client.loop.asyncio_loop)
        self._judge()

    def _take(self, state: State) -> None:
        self._heard, self._silence = monotonic(), 0.0
        if state.willing:
            self._staffed = self._heard
        self._lack = "no worker with memory left" if state.workers else "no worker"
        if self._report is not None and state.unfinished is not None:
            self._report(state.unfinished)

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


async def _ask(client: Any, prefix: str | None) -> State:
    return State(*await client.run_on_scheduler(_state, prefix=prefix, asynchronous=True))


def _state(prefix: str | None, dask_scheduler: Any = None) -> tuple[int | None, int, int]:
    """On the scheduler: fields of a `State`."""
    left = None
    if prefix is not None:
        group = dask_scheduler.task_groups.get(prefix)
        open_states = ("waiting", "no-worker", "queued", "processing")
        left = 0 if group is None else sum(group.states[state] for state in open_states)
    return left, len(dask_scheduler.workers), len(dask_scheduler.running)


def configured(setting: tuple[str, str]) -> float:
    """Seconds of a setting."""
    name, default = setting
    return float(parse_timedelta(dask.config.get(name, default)))


def name_of(client: Any) -> str:
    """A client's scheduler in an error message, also after the connection was lost."""
    return f"the Dask scheduler at {getattr(client.scheduler, 'address', 'an unknown address')}"
