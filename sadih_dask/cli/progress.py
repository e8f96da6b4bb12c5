"""Progress on stderr: a bar on a terminal, now and then a line elsewhere, nothing if quiet."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Self

from sadih_dask.cli.output import echo

SECONDS_BETWEEN_LINES = 5.0


class Bar:
    """Hears, while its block lasts, what is done and what there is to do.

    With `goes_on` the first call says what was done before, which does not count for the speed.
    """

    def __init__(
        self, title: str, *, unit: str = "rows", goes_on: bool = False, quiet: bool = False
    ) -> None:
        self._title, self._unit, self._quiet = title, unit, quiet
        self._first: float | None = None if goes_on else 0.0
        self._began = self._said = time.monotonic()
        self._display: Any = None
        self._listening = ExitStack()

    def begin(self, title: str, unit: str) -> None:
        """Show something else from now on."""
        self._stop()
        self._title, self._unit, self._first = title, unit, 0.0
        self._began = self._said = time.monotonic()
        self._start()

    def __call__(self, done: int, total: int) -> None:
        """Show progress."""
        if self._quiet or total == 0:
            return
        moment = time.monotonic()
        if self._first is None:
            self._first, self._began = done, moment
        elapsed = moment - self._began
        speed = (done - self._first) / elapsed if elapsed > 0 else 0.0
        if self._display is not None:
            self._display.update(0, completed=done, total=total, speed=speed)
        elif moment - self._said >= SECONDS_BETWEEN_LINES or done == total:
            self._said = moment
            pace = f"{speed:,.0f} {self._unit}/s, " if speed > 0 else ""  # unknown at first
            left = f", {_clock((total - done) / speed)} left" if speed > 0 and done < total else ""
            echo(
                f"{self._title}: {done:,} of {total:,} {self._unit} ({done / total:.0%}), "
                f"{pace}{_clock(elapsed)} elapsed{left}",
                err=True,
            )

    def __enter__(self) -> Self:
        from sadih_dask.compute.run import reporting

        self._listening.enter_context(reporting(self))
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self._stop()

    def _start(self) -> None:
        if not self._quiet and sys.stderr.isatty():
            self._display = _display(self._title, self._unit)
            self._display.start()

    def _stop(self) -> None:
        if self._display is not None:
            self._display.stop()


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _display(title: str, unit: str) -> Any:
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn

    display = Progress(
        *Progress.get_default_columns()[:3],
        f"{{task.completed:,.0f}} of {{task.total:,.0f}} {unit}",
        f"{{task.fields[speed]:,.0f}} {unit}/s",
        TimeElapsedColumn(),
        "elapsed,",
        TimeRemainingColumn(),
        "left",
        console=Console(stderr=True),
    )
    display.add_task(title, total=1, speed=0.0)
    return display
