"""Progress on stderr: a bar on a terminal, now and then a line elsewhere, nothing if quiet."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any, Self

from sadih_dask.cli.output import echo

SECONDS_BETWEEN_LINES = 5.0


class Bar:
    """A context manager that is called with what is done and what there is to do.

    With `goes_on` the first call says what was done before, which does not count for the speed.
    """

    def __init__(
        self, title: str, *, unit: str = "rows", goes_on: bool = False, quiet: bool = False
    ) -> None:
        self._title, self._unit, self._quiet = title, unit, quiet
        self._n_units: int | None = None
        self._first: float | None = None if goes_on else 0.0
        self._began = self._said = time.monotonic()
        self._display: Any = None

    def over(self, n_units: int) -> Self:
        """Say how many units the total stands for: a scan counts tasks, one wants to see rows."""
        self._n_units = n_units
        self._began = time.monotonic()
        return self

    def __call__(self, done: int, total: int) -> None:
        """Show progress."""
        if self._quiet or total == 0:
            return
        units = total if self._n_units is None else self._n_units
        now, moment = done / total * units, time.monotonic()
        if self._first is None:
            self._first, self._began = now, moment
        elapsed = moment - self._began
        speed = (now - self._first) / elapsed if elapsed > 0 else 0.0
        if self._display is not None:
            self._display.update(0, completed=now, total=units, speed=speed)
        elif moment - self._said >= SECONDS_BETWEEN_LINES or done == total:
            self._said = moment
            pace = f"{speed:,.0f} {self._unit}/s, " if speed > 0 else ""  # unknown at first
            left = f", {_clock((units - now) / speed)} left" if speed > 0 and now < units else ""
            echo(
                f"{self._title}: {now:,.0f} of {units:,.0f} {self._unit} ({done / total:.0%}), "
                f"{pace}{_clock(elapsed)} elapsed{left}",
                err=True,
            )

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._display = _display(self._title, self._unit)
            self._display.start()
        return self

    def __exit__(self, *_: object) -> None:
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
