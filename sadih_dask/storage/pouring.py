"""Reading in order while earlier blocks are still being written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Rows = TypeVar("Rows")
WRITERS = 4
"""Blocks that are written at the same time, beside the one that is read."""


def pour(
    spans: Iterable[tuple[int, int]],
    read: Callable[[int, int], Rows],
    write: Callable[[int, int, Rows], None],
    written: Callable[[int], None],
) -> None:
    """Read spans of rows one after the other, here, and write them in threads.

    A writer waits for the disk or the network after every block; the reader need not. `written`
    hears of the number of rows of each block, in order, when it is written.
    """
    pool = ThreadPoolExecutor(WRITERS)
    under_way: deque[tuple[int, Future[None]]] = deque()

    def wait_for_oldest() -> None:
        n_rows, future = under_way.popleft()
        future.result()
        written(n_rows)

    try:
        for first, last in spans:
            rows = read(first, last)
            if len(under_way) == WRITERS:
                wait_for_oldest()
            under_way.append((last - first, pool.submit(write, first, last, rows)))
        while under_way:
            wait_for_oldest()
    finally:
        pool.shutdown(cancel_futures=True)
