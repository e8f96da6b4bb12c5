"""Options that several commands share, each defined once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from sadih_dask.cli.progress import Bar

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

quiet = click.option("-q", "--quiet", is_flag=True, help="No progress, only results and errors.")
overwrite = click.option("--overwrite", is_flag=True, help="Replace what is there.")
store = click.argument("store")


def parse_size(
    ctx: click.Context,  # noqa: ARG001 (click's signature)
    parameter: click.Parameter,  # noqa: ARG001
    value: str | None,
) -> int | None:
    """Read a number of bytes with or without a unit, such as 1.5GiB."""
    from dask.utils import parse_bytes

    if value is None:
        return None
    try:
        size = int(parse_bytes(value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a number of bytes, such as 2GiB") from error
    if size < 1:
        raise click.BadParameter(f"{value!r} is not a positive number of bytes")
    return size


memory_limit = click.option(
    "--memory-limit",
    callback=parse_size,
    metavar="BYTES",
    help="What a process may use, for example 2GiB; more is refused before the start.",
)


@dataclass(frozen=True)
class Running:
    """Where tasks run, and what is said meanwhile."""

    scheduler: str | None
    threads: int | None
    memory_limit: int | None = None
    verbose: bool = False
    quiet: bool = False

    def bar(self, title: str) -> Bar:
        """Return a progress display."""
        return Bar(title, quiet=self.quiet)

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Connect to the scheduler, or set up threads, for as long as the block lasts."""
        import dask

        if self.verbose:
            log_to_stderr()
        settings: dict[str, Any] = {}
        if self.threads is not None:
            settings["num_workers"] = self.threads
        if self.memory_limit is not None:
            settings["sadih.memory-limit"] = self.memory_limit
        with ExitStack() as stack:
            stack.enter_context(dask.config.set(settings))
            if self.scheduler is not None:
                stack.enter_context(connected(self.scheduler))
            yield


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Use a running Dask scheduler."""
    from distributed import Client

    try:
        client = Client(address, timeout=10, set_as_default=True)
    except (OSError, ValueError) as error:
        raise ConnectionError(
            f"no Dask scheduler answers at {address} ({str(error)[:200]}). Check --scheduler and "
            "that it runs: dask scheduler"
        ) from error
    with client:
        if not client.scheduler_info(n_workers=-1)["workers"]:
            logging.getLogger(__name__).warning("the scheduler has no workers yet; waiting")
        yield


def log_to_stderr() -> None:
    """Show what the package has to say, the memory plan among it."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("sadih: %(message)s"))
    logger = logging.getLogger("sadih_dask")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def running(function: Decorated) -> Decorated:
    """Add the options of `Running`, for a command that plans its memory."""
    return placed(memory_limit(function))


def placed(function: Decorated) -> Decorated:
    """Add the options that say where tasks run and what is said meanwhile."""
    for option in (
        quiet,
        click.option("-v", "--verbose", is_flag=True, help="Show the log, plans of memory in it."),
        click.option(
            "--threads",
            type=click.IntRange(min=1),
            default=None,
            help=f"Threads of this process, without --scheduler.  [default: {os.cpu_count()}]",
        ),
        click.option(
            "--scheduler",
            envvar="DASK_SCHEDULER_ADDRESS",
            metavar="ADDRESS",
            help="Run on this Dask cluster, for example tcp://host:8786 "
            "(or DASK_SCHEDULER_ADDRESS).",
        ),
    ):
        function = option(function)
    return function


class Interrupted(Exception):
    """Somebody pressed Ctrl-C; the message says how to go on."""


@contextmanager
def resumable(hint: str) -> Iterator[None]:
    """Say after Ctrl-C how to go on."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted(hint) from interrupt
