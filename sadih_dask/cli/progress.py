"""Progress on stderr: a bar on a terminal, now and then a line elsewhere, nothing if quiet."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

import click

SECONDS_BETWEEN_LINES = 5.0


class Bar:
    """A context manager that is called with what is done and what there is to do.

    With `goes_on` the first call says what was done before, which does not count for the speed.
    """

    def __init__(
        self, title: str, *, unit: str = "rows", goes_on: bool = False, quiet: bool = False
    ) -> None:
        self._title = title
        self._unit = unit
        self._n_units: int | None = None
        self._quiet = quiet
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
        scale = 1.0 if self._n_units is None else self._n_units / total
        now, all_units = done * scale, total * scale
        if self._first is None:
            self._first, self._began = now, time.monotonic()
        if self._display is not None:
            self._display.update(0, completed=now, total=all_units, speed=self._speed(now))
        elif self._lines_are_due(done == total):
            self._say(now, all_units)

    def _speed(self, now: float) -> float:
        elapsed = time.monotonic() - self._began
        return (now - (self._first or 0.0)) / elapsed if elapsed > 0 else 0.0

    def _lines_are_due(self, over: bool) -> bool:
        moment = time.monotonic()
        if moment - self._said < SECONDS_BETWEEN_LINES and not over:
            return False
        self._said = moment
        return True

    def _say(self, now: float, total: float) -> None:
        speed = self._speed(now)
        left = f", {_clock((total - now) / speed)} left" if speed > 0 and now < total else ""
        elapsed = _clock(time.monotonic() - self._began)
        pace = f"{speed:,.0f} {self._unit}/s, " if speed > 0 else ""  # unknown after one report
        click.echo(
            f"{self._title}: {now:,.0f} of {total:,.0f} {self._unit} ({now / total:.0%}), "
            f"{pace}{elapsed} elapsed{left}",
            err=True,
        )

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._display = _rich_display(self._title, self._unit)
            self._display.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._display is not None:
            self._display.stop()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _rich_display(title: str, unit: str) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    display = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit),
        TextColumn("{task.fields[speed]:,.0f} " + unit + "/s"),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=Console(stderr=True),
    )
    display.add_task(title, total=1, speed=0.0)
    return display
