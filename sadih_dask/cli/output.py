"""What commands print, and errors in words of the command line."""

from __future__ import annotations

import json
import logging
import shlex
from typing import Any

import click

from sadih_dask.errors import Argument

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


class LogHandler(logging.Handler):
    """The log on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        complain(self.format(record))


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
