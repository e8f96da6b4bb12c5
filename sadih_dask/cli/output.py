"""What commands print: lines, progress, and errors in words of the command line."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Self

import click

from sadih_dask.errors import Advice, Argument

SECONDS_BETWEEN_LINES = 5.0
_CONTROLS = (
    *range(0x20),
    *range(0x7F, 0xA0),
    *range(0x2028, 0x202F),  # ends of lines, and letters that turn the direction of writing
    *range(0x2066, 0x206A),
)
_VISIBLE = {code: chr(code).encode("unicode_escape").decode() for code in _CONTROLS}


def echo(*lines: str, err: bool = False) -> None:
    """Print lines; what a file, an id or a class is called must not steer the terminal."""
    for line in lines:
        text = line.translate(_VISIBLE).encode("utf-8", "backslashreplace").decode()
        click.echo(text, err=err)


def echo_json(value: Any) -> None:
    """Print JSON, which has escapes of its own."""
    echo(*json.dumps(value, indent=1).splitlines())


def complain(message: str) -> None:
    """Say on stderr who says it."""
    first, *others = message.splitlines() or [""]
    echo(f"sadih: {first}", *others, err=True)


def warn(remarks: Iterable[Advice]) -> None:
    """Say on stderr, once each, what is allowed and probably not meant, in words of the command."""
    command = click.get_current_context().command
    for text in dict.fromkeys(one.worded(lambda a: in_options(a, command)) for one in remarks):
        complain(f"warning: {text}.")


class LogHandler(logging.Handler):
    """The log on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        complain(self.format(record))


class Bar:
    """Progress on stderr: a bar on a terminal, else now and then a line, nothing if quiet.

    Hears, while its block lasts, what is done and what there is to do.

    With `goes_on` the first call says what was done before, which does not count for the speed.
    """

    def __init__(
        self, title: str, *, unit: str = "rows", goes_on: bool = False, quiet: bool = False
    ) -> None:
        self._title, self._unit, self._quiet = title, unit, quiet
        self._first: float | None = None if goes_on else 0.0
        self._began = self._said = time.monotonic()
        self._display: Any = None
        self._brief = False
        self._listening = ExitStack()

    def begin(self, title: str, unit: str, *, brief: bool = False) -> None:
        """Show something else from now on; of a ``brief`` stage nothing, if it is soon over."""
        self._stop()
        self._title, self._unit, self._first = title, unit, 0.0
        self._began = self._said = time.monotonic()
        self._brief = brief
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
        elif moment - self._said >= SECONDS_BETWEEN_LINES or (done == total and not self._brief):
            self._said, self._brief = moment, False
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


def in_options(argument: Argument, command: click.Command) -> str:
    """An argument as an option of the command; one that it does not have stays Python's.

    >>> append = click.Option(["--append"], is_flag=True)
    >>> rows = click.Option(["--chunk-rows"], type=int)
    >>> ingest = click.Command("ingest", params=[append, rows])
    >>> in_options(Argument("chunk_rows", 4096), ingest), in_options(Argument("k", 1), ingest)
    ('--chunk-rows 4096', 'k=1')
    >>> in_options(Argument("mode", "append"), ingest)
    '--append'
    """
    name, value = argument.name, argument.value
    options = {each.name: each for each in command.params if isinstance(each, click.Option)}
    option = options.get(name) or (options.get(value) if isinstance(value, str) else None)
    if option is None:
        return _in_settings(argument) if "overrides" in options else str(argument)
    words = [max(option.opts, key=len)]
    if not option.is_flag:
        words += [option.metavar] if value is None and option.metavar else []
        words += [] if value is None else [shlex.quote(str(value))]
    return " ".join(words)


def _in_settings(argument: Argument) -> str:
    """An argument as a setting of a configuration."""
    from sadih_dask.runs.loading import key_of

    key = key_of(argument.name)
    if key is None or argument.value is None:
        return key or str(argument)
    return f"--set {key}={argument.value}"
