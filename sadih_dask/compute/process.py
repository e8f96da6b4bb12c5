"""What tasks want of the process that they run in: one BLAS thread each, memory that is reused.

Tasks are the parallelism, and on one thread products have the same bits anywhere.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

REUSED_BYTES = 32 << 20
"""Arrays up to this size take memory that was freed before; glibc allows no more."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


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


def release_memory() -> None:
    """Give back what the threads of a scan have freed, before solving takes as much again.

    The allocator of glibc keeps it for each thread otherwise; others have no such call.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@cache
def reuse_memory() -> None:
    """Let glibc take the memory of one block for the next.

    A process does so by itself, but not below a nanny of Dask, which sets a threshold by which
    every large array goes back to the kernel. That clears the pages of the next one again: half of
    the processor time of an ingestion.
    """
    with suppress(AttributeError, OSError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, REUSED_BYTES)
        set_option(_M_TRIM_THRESHOLD, 2 * REUSED_BYTES)


def prepared(task: Any) -> Any:
    """The same task of a graph, on one BLAS thread and in reused memory, in whichever process.

    Workers that a nanny started are limited by their environment. Others have as many BLAS threads
    as the machine has cores.
    """
    if isinstance(task, tuple) and task and callable(task[0]):
        return (_call, *task)
    return task


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    reuse_memory()
    with one_blas_thread():
        return function(*arguments)
