"""Options that several commands share, each defined once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import click

from sadih_dask import cluster
from sadih_dask.cli.progress import Bar
from sadih_dask.cluster import ClusterSettings, Place
from sadih_dask.cluster.security import check_address
from sadih_dask.errors import InputError
from sadih_dask.files.redaction import RedactingFilter

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
class Connection:
    """How to speak to a cluster, and processes to use without one."""

    processes: int | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    allow_plain_tcp: bool = False

    @classmethod
    def of_command(cls) -> Connection:
        """What the command line said: kept by click, so that commands need not pass it on."""
        context = click.get_current_context(silent=True)
        return cls(**({} if context is None else context.meta.get(_CONNECTION, {})))


_CONNECTION = "sadih_dask.connection"


@dataclass(frozen=True)
class Running:
    """Where tasks run, and what is said meanwhile."""

    scheduler: str | None
    threads: int | None
    memory_limit: int | None = None
    verbose: bool = False
    quiet: bool = False
    connection: Connection = field(default_factory=Connection.of_command)

    def bar(self, title: str) -> Bar:
        """Return a progress display."""
        return Bar(title, quiet=self.quiet)

    def over(self, settings: ClusterSettings) -> ClusterSettings:
        """The settings, with what the command line says in their place."""
        if self.scheduler is not None and self.connection.processes is not None:
            raise click.UsageError("--processes are started here; give them or --scheduler.")
        said: dict[str, Any] = {}
        if self.scheduler is not None:
            said |= {"kind": "scheduler", "address": self.scheduler}
        elif self.connection.processes is not None:
            said |= {"kind": "processes", "address": None, "n_workers": self.connection.processes}
        if self.threads is not None:
            said["threads_per_worker"] = self.threads
        if self.memory_limit is not None:
            said["memory_limit"] = self.memory_limit
        if self.connection.allow_plain_tcp:
            said["allow_plain_tcp"] = True
        files = {
            "ca_file": self.connection.tls_ca,
            "cert_file": self.connection.tls_cert,
            "key_file": self.connection.tls_key,
        }
        given = {name: path for name, path in files.items() if path is not None}
        if given:
            said["tls"] = replace(settings.tls, generate=False, **given)
        return replace(settings, **said)

    def check(self, settings: ClusterSettings) -> None:
        """Refuse what cannot be connected to, before anything is begun."""
        chosen = self.over(settings)
        if chosen.kind == "scheduler":
            try:
                check_address(chosen.address or "", chosen.allow_plain_tcp)
            except InputError as error:
                raise click.UsageError(str(error)) from error

    @contextmanager
    def prepared(self, settings: ClusterSettings | None = None) -> Iterator[Place]:
        """Connect to the scheduler, or set up processes or threads, while the block lasts."""
        if self.verbose:
            log_to_stderr()
        with ExitStack() as stack:
            try:
                chosen = self.over(settings or ClusterSettings())
                place = stack.enter_context(cluster.running(chosen))
            except InputError as error:
                raise click.UsageError(str(error)) from error
            yield place


def log_to_stderr() -> None:
    """Show what the package has to say, the memory plan among it."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("sadih: %(message)s"))
    handler.addFilter(RedactingFilter())
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
            help="Threads of this process, or of each of --processes.  "
            f"[default: {os.cpu_count()}, or 1]",
        ),
        _connection("--allow-plain-tcp", is_flag=True, help="Speak to other machines unencrypted."),
        _connection("--tls-key", metavar="FILE", help="Its private key (or SADIH_TLS_KEY)."),
        _connection("--tls-cert", metavar="FILE", help="Own certificate (or SADIH_TLS_CERT)."),
        _connection("--tls-ca", metavar="FILE", help="Certificate authority (or SADIH_TLS_CA)."),
        _connection(
            "--processes",
            type=click.IntRange(min=1),
            metavar="N",
            help="Run in N processes of this machine.",
        ),
        click.option(
            "--scheduler",
            envvar="DASK_SCHEDULER_ADDRESS",
            metavar="ADDRESS",
            help="Run on this Dask cluster, for example tls://host:8786 "
            "(or DASK_SCHEDULER_ADDRESS).",
        ),
    ):
        function = option(function)
    return function


def _connection(flag: str, **options: Any) -> Callable[[Decorated], Decorated]:
    """Return an option of `Connection`."""

    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            ctx.meta.setdefault(_CONNECTION, {})[parameter.name] = value

    return click.option(flag, expose_value=False, callback=keep, **options)


class Interrupted(Exception):
    """Somebody pressed Ctrl-C; the message says how to go on."""


@contextmanager
def resumable(hint: str) -> Iterator[None]:
    """Say after Ctrl-C how to go on."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted(hint) from interrupt
