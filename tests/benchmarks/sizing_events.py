"""A clock of events, and what many jobs share in equal parts: processors, a network, a store."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

Then = Callable[[], None]


class Clock:
    """Calls functions at their times, in the order of time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._count = itertools.count()

    def after(self, seconds: float, then: Then) -> None:
        """Call something later."""
        heapq.heappush(self._events, (self.now + seconds, next(self._count), then))

    def run(self, until: Callable[[], bool]) -> None:
        """Go from event to event until something is the case."""
        while not until():
            if not self._events:
                raise RuntimeError("nothing is left to happen, and the work is not done")
            self.now, _, then = heapq.heappop(self._events)
            then()


class Shared:
    """A capacity that jobs share equally, none of them taking more than ``each``.

    ``served`` is how much work was done, ``most`` how many jobs there were at a time.
    """

    def __init__(self, clock: Clock, capacity: float, each: float) -> None:
        self._clock = clock
        self._capacity = capacity
        self._each = each
        self._jobs: list[tuple[float, int, Then]] = []
        self._count = itertools.count()
        self._done_each = 0.0  # what a job that has always been here has got
        self._looked = 0.0
        self._version = 0
        self.served = 0.0
        self.most = 0

    @property
    def _rate(self) -> float:
        return min(self._each, self._capacity / max(1, len(self._jobs)))

    def start(self, work: float, then: Then) -> None:
        """Begin a job; ``then`` is called when it is done."""
        self.served += work
        if work == 0 or math.isinf(min(self._each, self._capacity)):
            self._clock.after(0.0, then)
            return
        self._advance()
        heapq.heappush(self._jobs, (self._done_each + work, next(self._count), then))
        self.most = max(self.most, len(self._jobs))
        self._plan()

    def _advance(self) -> None:
        self._done_each += (self._clock.now - self._looked) * self._rate
        self._looked = self._clock.now

    def _plan(self) -> None:
        """Wake up when the next job is done, unless another comes first."""
        self._version += 1
        if self._jobs:
            version = self._version
            left = max(0.0, self._jobs[0][0] - self._done_each)
            self._clock.after(left / self._rate, lambda: self._wake(version))

    def _wake(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        target, _, then = heapq.heappop(self._jobs)
        self._done_each = max(self._done_each, target)
        self._plan()
        then()


class Queue:
    """One server that takes jobs one after the other: a scheduler."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._free_at = 0.0
        self.times: list[float] = []

    def serve(self, then: Then) -> None:
        """Call ``then`` when all jobs before, and this one, have had their time."""
        self._free_at = max(self._free_at, self._clock.now) + self._seconds
        self.times.append(self._free_at)
        self._clock.after(self._free_at - self._clock.now, then)

    @property
    def busy(self) -> float:
        """Seconds that it has worked."""
        return self._seconds * len(self.times)

    def peak(self, window: float = 1.0) -> float:
        """Most jobs in a second."""
        most, first = 0, 0
        for last, time in enumerate(self.times):
            while self.times[first] <= time - window:
                first += 1
            most = max(most, last - first + 1)
        return most / window
