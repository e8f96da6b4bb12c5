"""A lock where no kernel keeps one: an object that its holder renews, and that else runs out.

Only one process can create the object. Its holder writes a sign of life into it every few seconds;
one that is silent for a minute has died, and the lock is taken over. Nobody compares the clocks of
two hosts for that: who wants the lock watches it, and sees within seconds whether it is renewed.
A holder that could not renew it for so long must assume that it has lost it.
"""

from __future__ import annotations

import logging
import threading
import time

from sadih_dask.errors import ConflictError
from sadih_dask.storage.files import Files
from sadih_dask.storage.holder import LOCK_KEY, Holder, read_holder, refusal

logger = logging.getLogger(__name__)

RENEWAL = 10.0
"""Seconds between two signs of life."""
LEASE = 60.0
"""Seconds of silence after which a holder counts as dead."""
_ATTEMPTS = 3
_LOOKS = 10
"""How often a watcher looks in the time of one renewal."""


class Lease:
    """The lock of one store as an object in it."""

    def __init__(self, files: Files, me: Holder) -> None:
        self._files = files
        self._me = me
        self._renewed = 0.0
        self._stop = threading.Event()
        self._renewer: threading.Thread | None = None

    def acquire(self) -> None:
        """Create the object, or raise ConflictError if somebody alive has it."""
        for _ in range(_ATTEMPTS):
            self._me = self._me.alive_now()
            if self._files.create(LOCK_KEY, self._me.to_json()):
                self._renewed = time.monotonic()
                self._renewer = threading.Thread(target=self._renew, name="sadih-lock", daemon=True)
                self._renewer.start()
                return
            holder = read_holder(self._files)
            if holder is not None:
                self._wait_for_its_end(holder)
                if read_holder(self._files) == holder:  # nobody else was faster
                    self._files.delete(LOCK_KEY)
        raise refusal(self._files.url, read_holder(self._files))

    def release(self) -> None:
        """Delete the object, unless somebody has taken it over."""
        self._stop.set()
        if self._renewer is not None:
            self._renewer.join(RENEWAL)
        if read_holder(self._files) == self._me:
            self._files.delete(LOCK_KEY)

    def check(self) -> None:
        """Raise ConflictError if somebody has taken the lock over."""
        if (holder := read_holder(self._files)) != self._me:
            raise refusal(self._files.url, holder)

    def check_time(self) -> None:
        """Raise ConflictError if the lock may have run out; asks nobody."""
        if (silent := time.monotonic() - self._renewed) > LEASE:
            raise ConflictError(
                f"{self._files.url}: its lock could not be renewed for {silent:.0f} s, so another "
                "process may have taken it over. What is written stays: repeat the same call"
            )

    def _wait_for_its_end(self, holder: Holder) -> None:
        """Return when a holder is dead; ConflictError when it shows that it is not."""
        if holder.is_gone():
            return
        if holder.beat is None or holder.is_here():
            raise refusal(self._files.url, holder)
        # If its last sign of life looks old already, two renewals that do not come are enough.
        silent = max(0.0, time.time() - holder.seen)
        patience = min(LEASE, max(2 * RENEWAL, LEASE - silent))
        logger.warning(
            "%s is locked by process %d on %s; watching for up to %.0f s whether it still lives",
            self._files.url,
            holder.pid,
            holder.host,
            patience,
        )
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            time.sleep(RENEWAL / _LOOKS)
            now = read_holder(self._files)
            if now is None:
                return
            if (now, now.beat) != (holder, holder.beat):
                raise refusal(self._files.url, now)

    def _renew(self) -> None:
        while not self._stop.wait(RENEWAL):
            if time.monotonic() - self._renewed > LEASE:
                return  # too late: it may be somebody else's
            try:
                if read_holder(self._files) != self._me:
                    return
                before, self._me = time.monotonic(), self._me.alive_now()
                self._files.write(LOCK_KEY, [self._me.to_json()], durable=False)
                self._renewed = before
            except Exception as error:
                logger.warning("the lock of %s was not renewed: %s", self._files.url, error)
