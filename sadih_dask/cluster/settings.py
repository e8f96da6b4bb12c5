"""What can be said about where tasks run: plain data that needs no Dask to be made or checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, TypeAlias, TypeVar, get_args

from sadih_dask.errors import InputError

Kind: TypeAlias = Literal["threads", "processes", "scheduler", "slurm", "kubernetes"]
_Options = TypeVar("_Options", "Slurm", "Kubernetes")

WORKER_TIMEOUTS: dict[str, float] = {"slurm": 3600.0, "kubernetes": 600.0}
"""Seconds to wait for a worker where jobs queue or images are pulled; elsewhere a minute."""


@dataclass(frozen=True)
class Tls:
    """Certificates, as paths of PEM files, or the wish to have them made for a while.

    Fields that are not given come from SADIH_TLS_CA, SADIH_TLS_CERT and SADIH_TLS_KEY, then from
    Dask's own configuration (``distributed.comm.tls``, DASK_DISTRIBUTED__COMM__TLS__...).
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    generate: bool = False


@dataclass(frozen=True)
class Slurm:
    """Jobs of a worker each.

    ``cores`` and ``memory`` are a job's. ``interface`` is the network (such as ib0) on which
    scheduler and workers meet. ``shared_directory`` is a folder that all nodes see; certificates
    that are made for the run are there while it lasts.
    """

    queue: str | None = None
    account: str | None = None
    walltime: str | None = None
    cores: int = 1
    memory: str = "4GiB"
    interface: str | None = None
    shared_directory: str | None = None
    log_directory: str | None = None

    def __post_init__(self) -> None:
        for name in _strings(self):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(r"[\w.,:/@%+=~-]+", value):
                raise InputError(
                    f"cluster option {name} is {value!r}; it is written into a job script and may "
                    "hold letters, digits and . , : / @ % + = ~ - _ only"
                )


@dataclass(frozen=True)
class Kubernetes:
    """A DaskCluster of the Dask operator.

    With an ``image`` one is made, called ``name`` if that is given, and deleted at the end; without
    one, the cluster of that ``name`` is used and left. ``cores`` and ``memory`` are a pod's.
    """

    name: str | None = None
    namespace: str | None = None
    image: str | None = None
    cores: str | None = None
    memory: str | None = None

    def __post_init__(self) -> None:
        for name in ("name", "namespace"):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", value):
                raise InputError(
                    f"cluster option {name} is {value!r}; Kubernetes takes small letters, digits "
                    "and -, beginning with a letter"
                )


@dataclass(frozen=True)
class ClusterSettings:
    """Where tasks run.

    kind    threads or processes of this machine; a running scheduler; jobs of SLURM; Kubernetes
    address of the running scheduler, tls://host:port
    n_workers, threads_per_worker   to start; of a running scheduler, how many to wait for
    memory_limit    what a worker may use, bytes or a word such as 4GiB
    allow_plain_tcp whether to speak to other machines without encryption
    dashboard   where the dashboard of a scheduler that is started here listens
    connect_timeout, scheduler_timeout, worker_timeout  seconds: to be let in, without an answer,
            without any worker (by default longer where jobs queue)
    """

    kind: Kind = "threads"
    address: str | None = None
    n_workers: int | None = None
    threads_per_worker: int | None = None
    memory_limit: str | int | None = None
    tls: Tls = field(default_factory=Tls)
    allow_plain_tcp: bool = False
    dashboard: str = "127.0.0.1:0"
    connect_timeout: float = 10.0
    scheduler_timeout: float = 30.0
    worker_timeout: float | None = None
    slurm: Slurm = field(default_factory=Slurm)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"cluster kind is {self.kind!r}; expected one of {get_args(Kind)}")
        if (self.kind == "scheduler") != (self.address is not None):
            raise InputError(
                f"cluster kind {self.kind!r} {'without' if self.address is None else 'with'} an "
                "address; a running scheduler has kind 'scheduler' and one such as tls://host:8786"
            )
        for name in ("n_workers", "threads_per_worker"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"cluster {name} is {value}; expected 1 or more")
        if self.kind == "kubernetes" and not (self.kubernetes.name or self.kubernetes.image):
            raise InputError(
                "a cluster on Kubernetes needs the name of a DaskCluster that runs, or the image "
                "of one to make"
            )

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """The same with further options of its kind; one that the kind does not have is refused."""
        if self.kind == "slurm":
            return replace(self, slurm=_set(self.slurm, options))
        if self.kind == "kubernetes":
            return replace(self, kubernetes=_set(self.kubernetes, options))
        if options:
            raise InputError(f"cluster kind {self.kind!r} has no further options: {list(options)}")
        return self

    @property
    def seconds_without_workers(self) -> float:
        """How long to wait for a worker."""
        return self.worker_timeout or WORKER_TIMEOUTS.get(self.kind, 60.0)


def _set(known: _Options, options: Mapping[str, Any]) -> _Options:
    names = [one.name for one in fields(known)]
    if unknown := sorted(set(options) - set(names)):
        raise InputError(f"unknown cluster options {unknown}; there are {names}")
    return replace(known, **options)


def _strings(settings: Slurm) -> list[str]:
    return [one.name for one in fields(settings) if one.name != "cores"]
