"""Setting Dask up where the settings say, for as long as a block lasts."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from sadih_dask.cluster import launchers
from sadih_dask.cluster.security import check_address, given_credentials
from sadih_dask.cluster.settings import ClusterSettings
from sadih_dask.errors import ClusterError, ConfigError
from sadih_dask.files.redaction import redact

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Cluster:
    """Where tasks run now; without a client, threads of this process."""

    kind: str
    memory_limit: int | None
    client: Any = None
    _known: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """What logs and records say of it, without secrets; of a lost cluster, what it was."""
        if self.client is None:
            from sadih_dask.compute.run import default_workers

            threads = {"workers": 1, "threads": default_workers()}
            return {"kind": self.kind, **threads, "memory_limit": self.memory_limit}
        if self.client.status == "running":
            with suppress(ClusterError):
                self._known = _description(self.client)
                if self.kind not in ("processes", "slurm") and self.client.dashboard_link:
                    self._known["dashboard"] = redact(self.client.dashboard_link)
        return {"kind": self.kind, **self._known}


def _description(client: Any) -> dict[str, Any]:
    from sadih_dask.compute.remote import identity_of

    identity = identity_of(client)
    limits = [worker["memory_limit"] for worker in identity["workers"].values()]
    return {
        "workers": identity["n_workers"],
        "threads": identity["total_threads"],
        "memory_limit": min(filter(None, limits), default=None),
        "address": redact(identity["address"]),
        "encrypted": identity["address"].startswith("tls://"),
    }


@contextmanager
def running(settings: ClusterSettings) -> Iterator[Cluster]:
    """Run tasks where the settings say.

    Threads are Dask's own choice: a client that is current already stays so. Raises ConfigError for
    settings that cannot be, before anything is started, and ClusterError for a cluster that cannot
    be reached or has no workers.
    """
    import dask

    from sadih_dask.compute.memory import CONFIG_KEY
    from sadih_dask.compute.remote import (
        SCHEDULER_TIMEOUT,
        WORKER_SILENCE,
        WORKER_TIMEOUT,
        configured,
    )
    from sadih_dask.compute.run import current_client

    config: dict[str, Any] = {
        SCHEDULER_TIMEOUT[0]: settings.scheduler_timeout,
        WORKER_TIMEOUT[0]: settings.seconds_without_workers,
    }
    if settings.memory_limit is not None:
        config[CONFIG_KEY] = settings.memory_limit
    if settings.kind == "processes":
        # A process that is stopped keeps its tasks for so long; Dask would leave them five minutes,
        # which a node that imports from a cold file system may need, but no process here.
        config["distributed.scheduler.worker-ttl"] = configured(WORKER_SILENCE)
        # Who is gone on this machine is gone at once; Dask would go on trying for half a minute.
        config["distributed.comm.timeouts.connect"] = "5s"
    if settings.kind == "threads" and settings.threads is not None:
        config["num_workers"] = settings.threads
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(config))
        if settings.kind == "threads":
            yield Cluster(settings.kind, settings.memory_limit, current_client())
            return
        where, security = stack.enter_context(_LAUNCHERS[settings.kind](settings))
        client = stack.enter_context(_connected(where, security, settings))
        cluster = Cluster(settings.kind, settings.memory_limit, client)
        logger.info("tasks run on %s", cluster.describe())
        yield cluster


def _at_an_address(settings: ClusterSettings) -> AbstractContextManager[tuple[Any, Any]]:
    """A scheduler that runs already, and certificates for it."""
    address = check_address(settings.address or "", settings.allow_plain_tcp)
    if address.startswith("tls://"):
        return nullcontext((address, given_credentials(settings.tls)))
    if settings.tls.ca_file or settings.tls.cert_file or settings.tls.key_file:
        raise ConfigError(f"{address} is not encrypted, but certificates are given: use tls://")
    return nullcontext((address, None))


_LAUNCHERS: dict[str, Callable[[ClusterSettings], AbstractContextManager[tuple[Any, Any]]]] = {
    "scheduler": _at_an_address,
    "processes": launchers.processes,
    "slurm": launchers.slurm_jobs,
    "kubernetes": launchers.kubernetes_pods,
}


@contextmanager
def _connected(where: Any, security: Any, settings: ClusterSettings) -> Iterator[Any]:
    """A client that Dask uses by default, once there are workers."""
    from distributed import Client
    from distributed.comm.core import FatalCommClosedError
    from distributed.versions import VersionMismatchWarning

    from sadih_dask.cluster.versions import check_versions
    from sadih_dask.compute.remote import conversation, settle

    try:
        with warnings.catch_warnings():  # versions are compared below, with ours among them
            warnings.simplefilter("ignore", VersionMismatchWarning)
            client = Client(where, security=security, timeout=settings.connect_timeout)
    except (OSError, ValueError, TypeError) as error:
        # Who refuses a certificate may also just close the connection, after the handshake
        if isinstance(error, FatalCommClosedError) or "SSL" in str(error):
            raise ConfigError(
                f"the scheduler at {settings.address or where} and this process do not accept each "
                f"other's certificates ({redact(str(error.__cause__ or error))[:200]}). Both need "
                "ones that the same authority has signed, and a scheduler without TLS a tcp:// "
                "address"
            ) from error
        raise ClusterError(
            f"no Dask scheduler answers at {settings.address or where} "
            f"({redact(str(error))[:200]}). Check the address, and that it runs: dask scheduler. "
            "One with TLS answers tls:// only"
        ) from error
    try:
        wanted = settings.workers if settings.kind == "scheduler" else None
        with conversation(client):
            settle(client, _staffed(client, wanted or 1))
            check_versions(client)
        yield client
    finally:
        with _without_last_words(client):
            client.close()


@contextmanager
def _without_last_words(client: Any) -> Iterator[None]:
    """A client that lost its scheduler logs a traceback when it is closed; the error said it."""

    def silent(_: logging.LogRecord) -> bool:
        return False

    noisy = logging.getLogger("distributed.client")
    if client.status == "running":
        yield
        return
    noisy.addFilter(silent)
    try:
        yield
    finally:
        noisy.removeFilter(silent)


async def _staffed(client: Any, n_workers: int) -> None:
    """Wait for workers; `settle` knows for how long."""
    import asyncio  # not at the top: every command imports this module, few wait

    said = False
    while True:
        there = (await client.scheduler.identity(n_workers=0))["n_workers"]
        if there >= n_workers:
            return
        if not said:
            logger.warning("the scheduler has %d workers yet; waiting for %d", there, n_workers)
            said = True
        await asyncio.sleep(0.2)
