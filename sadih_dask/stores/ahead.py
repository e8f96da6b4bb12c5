"""Reading ahead: chunks behind a network are fetched while those before them are worked on.

A request to an object store takes some 30 ms before its first byte, and one connection is slower
than a processor. So whoever reads chunks in a known order says so, and a few of the next ones are
always under way. What they may take together is a constant that the memory plan counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

MOST_CHUNKS = 6
"""Chunks under way beside the one that is read: 80 MB/s each keep up with a scan of one core."""
MOST_BYTES = 96 * 2**20
"""What they may take together, where that is less; one is always under way."""
Fetch: TypeAlias = tuple[Hashable, Callable[[], Any]]
"""The name of a chunk, and what gets its bytes."""


def depth_of(chunk_bytes: int, most: int = MOST_CHUNKS) -> int:
    """Chunks of such a size that are under way at a time.

    >>> depth_of(16 * 2**20), depth_of(64 * 2**20), depth_of(2**30, most=0)
    (6, 1, 0)
    """
    return min(most, max(1, MOST_BYTES // max(1, chunk_bytes)))


class ReadAhead:
    """Fetches chunks in the order in which they will be asked for, ``depth`` ahead of that."""

    def __init__(self, fetches: Iterable[Fetch], depth: int) -> None:
        self._fetches: Iterator[Fetch] = iter(fetches)
        self._depth = depth
        self._under_way: dict[Hashable, Future[Any]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def take(self, name: Hashable, fetch: Callable[[], Any]) -> Any:
        """What was fetched, or is fetched now if nobody expected it."""
        self.begin()
        found = self._under_way.pop(name, None)
        if found is None:
            return fetch()
        self._fill(self._depth)
        return found.result()

    def begin(self) -> None:
        """Fetch the next chunk, and some after it."""
        self._fill(self._depth + 1)

    def _fill(self, wanted: int) -> None:
        while len(self._under_way) < wanted and (after := next(self._fetches, None)) is not None:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._depth + 1, "sadih-read-ahead")
            name, fetch = after
            self._under_way[name] = self._threads.submit(fetch)

    def close(self) -> None:
        """Fetch no more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
