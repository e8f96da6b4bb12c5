"""One BLAS thread a task: tasks are the parallelism, and products have the same bits anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


@cache
def _blas() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401 (the limit is for libraries that are loaded)

    return ThreadpoolController()


class _Limit:
    """Set for the first who wants it, lifted after the last.

    BLAS knows one limit for the whole process, and only the thread that has set it may lift it;
    threadpoolctl passes over all others in silence. Tasks come and go on many threads, so a thread
    of its own holds the limit for as long as there is a task.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._holder: threading.Thread | None = None
        self._over = threading.Event()

    def take(self) -> None:
        with self._lock:
            if self._users == 0:
                self._over, held = threading.Event(), threading.Event()
                self._holder = threading.Thread(
                    target=_hold, args=(held, self._over), name="one BLAS thread", daemon=True
                )
                self._holder.start()
                held.wait()
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._holder is not None:
                self._over.set()
                self._holder.join()


def _hold(held: threading.Event, over: threading.Event) -> None:
    try:
        with _blas().limit(limits=1):
            held.set()
            over.wait()
    finally:
        held.set()


_limit = _Limit()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep linear algebra on one thread in this process."""
    _limit.take()
    try:
        yield
    finally:
        _limit.leave()


def limited(task: Any) -> Any:
    """The same task of a graph, on one BLAS thread in whichever process it runs.

    Workers that a nanny started are limited by their environment. Others have as many BLAS threads
    as the machine has cores.
    """
    if isinstance(task, tuple) and task and callable(task[0]):
        return (_call, *task)
    return task


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    with one_blas_thread():
        return function(*arguments)
