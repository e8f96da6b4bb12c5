"""Options that several commands share, each defined once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import click

from sadih_dask.cli.output import Bar, LogHandler
from sadih_dask.files.redaction import RedactingFilter
from sadih_dask.types import BitOrder

if TYPE_CHECKING:
    from sadih_dask.cluster import Cluster, ClusterSettings

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

COUNT = click.IntRange(min=1)
quiet = click.option("-q", "--quiet", is_flag=True, help="No progress, only results and errors.")
overwrite = click.option("--overwrite", is_flag=True, help="Replace what is there.")
bitorder = click.option(
    "--bitorder",
    type=click.Choice(get_args(BitOrder)),
    default="little",
    help="How bits are packed: as FAISS takes them, or as np.packbits does by default.",
)
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
    """Where tasks run, and what is said meanwhile, as the options of a command say."""

    scheduler: str | None
    processes: int | None
    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    allow_plain_tcp: bool
    threads: int | None
    verbose: bool
    quiet: bool
    memory_limit: int | None = None

    def bar(self, title: str, *, goes_on: bool = False) -> Bar:
        """Return a progress display."""
        return Bar(title, goes_on=goes_on, quiet=self.quiet)

    def over(self, settings: ClusterSettings | None = None) -> ClusterSettings:
        """The settings, with what the command line says in their place; checked."""
        from sadih_dask.cluster.settings import ClusterSettings, checked

        settings = settings or ClusterSettings()
        if self.scheduler is not None and self.processes is not None:
            raise click.UsageError("--processes are started here; give them or --scheduler.")
        said: dict[str, Any] = {
            "workers": self.processes,
            "threads": self.threads,
            "memory_limit": self.memory_limit,
            "allow_plain_tcp": self.allow_plain_tcp or None,
        }
        said = _given(said)
        if self.scheduler is not None:
            said |= {"kind": "scheduler", "address": self.scheduler, "options": {}}
        elif self.processes is not None:
            said |= {"kind": "processes", "address": None, "options": {}}
        files = {name: getattr(self, name) for name in ("ca_file", "cert_file", "key_file")}
        if given := _given(files):
            said["tls"] = settings.tls.model_copy(update={**given, "generate": False})
        return checked(ClusterSettings, {**dict(settings), **said})

    @contextmanager
    def prepared(self, settings: ClusterSettings | None = None) -> Iterator[Cluster]:
        """Connect to the scheduler, or set up processes or threads, while the block lasts."""
        from sadih_dask import cluster

        if self.verbose:
            log_to_stderr()
        with cluster.running(self.over(settings)) as found:
            yield found


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def log_to_stderr() -> None:
    """Show what the package has to say, the memory plan among it."""
    handler = LogHandler()
    handler.addFilter(RedactingFilter())
    logger = logging.getLogger("sadih_dask")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def running(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `Running`, for a command that plans its memory."""
    return _placed(function, memory_limit, *_PLACED)


def placed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where tasks run and what is said meanwhile."""
    return _placed(function, *_PLACED)


_PLACED = (
    quiet,
    click.option("-v", "--verbose", is_flag=True, help="Show the log, plans of memory in it."),
    click.option(
        "--threads",
        type=COUNT,
        help="Threads of this process, or of each of --processes.  "
        f"[default: {os.cpu_count()}, or 1]",
    ),
    click.option("--allow-plain-tcp", is_flag=True, help="Speak to other machines unencrypted."),
    click.option(
        "--tls-key", "key_file", metavar="FILE", help="Its private key (or SADIH_TLS_KEY)."
    ),
    click.option(
        "--tls-cert", "cert_file", metavar="FILE", help="Own certificate (or SADIH_TLS_CERT)."
    ),
    click.option(
        "--tls-ca", "ca_file", metavar="FILE", help="Certificate authority (or SADIH_TLS_CA)."
    ),
    click.option(
        "--processes", type=COUNT, metavar="N", help="Run in N processes of this machine."
    ),
    click.option(
        "--scheduler",
        envvar="DASK_SCHEDULER_ADDRESS",
        metavar="ADDRESS",
        help="Run on this Dask cluster, for example tls://host:8786 (or DASK_SCHEDULER_ADDRESS).",
    ),
)


def _placed(function: Callable[..., Any], *options: Decorator) -> Callable[..., Any]:
    """A command that takes these options as one argument, ``running``."""

    @wraps(function)
    def command(**given: Any) -> Any:
        names = [field.name for field in fields(Running) if field.name in given]
        return function(running=Running(**{name: given.pop(name) for name in names}), **given)

    decorated: Callable[..., Any] = command
    for option in options:
        decorated = option(decorated)
    return decorated


class Interrupted(Exception):
    """Somebody pressed Ctrl-C; the message says how to go on."""


@contextmanager
def resumable(hint: str) -> Iterator[None]:
    """Say after Ctrl-C how to go on."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted(hint) from interrupt
