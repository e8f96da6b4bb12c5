"""Running a graph on a Dask cluster, and saying what went wrong with it.

An error of a task arrives as it was raised, and the task is not tried again. What the cluster does
wrong (a scheduler that dies, workers that stay away or die of a task) is a `ClusterError`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import sleep
from typing import Any
from weakref import WeakKeyDictionary

from dask.delayed import Delayed
from distributed import Future
from distributed.client import ClosedClientError, FutureCancelledError, FuturesCancelledError
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError

from sadih_dask.compute.blas import limited
from sadih_dask.compute.waiting import INTERVAL, LOST, WORKER_TIMEOUT, configured, name_of, settle
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
