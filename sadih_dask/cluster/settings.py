"""What can be said about where tasks run: plain data that needs no Dask to be made or checked.

A configuration's ``[cluster]`` section is `ClusterSettings` as it is; every description is shown to
users.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from sadih_dask.cluster.security import check_address
from sadih_dask.errors import ConfigError, SadihError

Kind: TypeAlias = Literal["threads", "processes", "scheduler", "slurm", "kubernetes"]
Count: TypeAlias = Annotated[int, Field(ge=1, strict=True)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]

WORKER_TIMEOUT, QUEUE_TIMEOUT = 600.0, 3600.0
"""Seconds to wait for a worker: nodes may have to start and pull an image, jobs of SLURM queue."""


class Section(BaseModel):
    """A table of a configuration: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Tls(Section):
    """Certificates (PEM files); secrets themselves never stand in a configuration.

    Files that are not given come from SADIH_TLS_CA, SADIH_TLS_CERT and SADIH_TLS_KEY, then from
    Dask's own configuration (``distributed.comm.tls``, DASK_DISTRIBUTED__COMM__TLS__...).
    """

    ca_file: str | None = Field(None, description="certificate of the authority")
    cert_file: str | None = Field(None, description="certificate of this process")
    key_file: str | None = Field(None, description="its private key")
    generate: bool = Field(
        False, description="make certificates for a cluster of SLURM, for as long as it runs"
    )


class Slurm(Section):
    """Jobs of a worker each; ``cores`` and ``memory`` are a job's.

    ``interface`` is the network (such as ib0) on which scheduler and workers meet.
    ``shared_directory`` is a folder that all nodes see; certificates that are made for the run are
    there while it lasts.
    """

    queue: str | None = None
    account: str | None = None
    walltime: str | None = None
    cores: Count = 1
    memory: str = "4GiB"
    interface: str | None = None
    shared_directory: str | None = None
    log_directory: str | None = None

    @field_validator("*")
    @classmethod
    def _is_one_word(cls, value: Any) -> Any:
        if isinstance(value, str) and not re.fullmatch(r"[\w.,:/@%+=~-]+", value):
            raise ValueError(
                f"{value!r} is written into a job script and may hold letters, digits and "
                ". , : / @ % + = ~ - _ only"
            )
        return value


class Kubernetes(Section):
    """A DaskCluster of the Dask operator; ``cores`` and ``memory`` are a pod's.

    With an ``image`` one is made, called ``name`` if that is given, and deleted at the end; without
    one, the cluster of that ``name`` is used and left.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)

    name: str | None = None
    namespace: str | None = None
    image: str | None = None
    cores: str | None = None
    memory: str | None = None

    @field_validator("name", "namespace")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", value):
            raise ValueError(
                f"{value!r}; Kubernetes takes small letters, digits and -, beginning with a letter"
            )
        return value

    @model_validator(mode="after")
    def _is_some_cluster(self) -> Self:
        if not (self.name or self.image):
            raise ValueError(
                "a cluster on Kubernetes needs the name of a DaskCluster that runs, or the image "
                "of one to make"
            )
        return self


def _bytes(size: Any) -> Any:
    """A number of bytes, also from words."""
    if not isinstance(size, str):
        return size
    from dask.utils import parse_bytes

    try:
        return int(parse_bytes(size))
    except ValueError:
        raise ValueError(f"{size!r} is no number of bytes, such as 4GiB") from None


class ClusterSettings(Section):
    """Where tasks run."""

    kind: Kind = Field("threads", description="threads or processes of this machine, or a cluster")
    address: str | None = Field(None, description="of a running scheduler, such as tls://host:8786")
    workers: Count | None = Field(None, description="to start; of a running scheduler, to wait for")
    threads: Count | None = Field(None, description="threads of each worker")
    memory_limit: Annotated[
        Count | None,
        BeforeValidator(_bytes),
        Field(description='what a worker may use, bytes or words such as "4GiB"'),
    ] = None
    allow_plain_tcp: bool = Field(
        False, description="whether to speak to other machines without encryption"
    )
    tls: Tls = Field(Tls(), description="certificates")
    connect_timeout: Seconds = Field(10.0, description="seconds to be let in")
    scheduler_timeout: Seconds = Field(
        30.0, description="seconds without an answer of the scheduler"
    )
    worker_timeout: Seconds | None = Field(
        None, description="seconds without any worker; by default 600, and 3600 where jobs queue"
    )
    options: dict[str, str | int | float | bool] = Field(
        {},
        description="further options of SLURM (queue, account, walltime, cores, memory, "
        "interface, shared_directory, log_directory) or Kubernetes (namespace, image, name, "
        "cores, memory)",
    )

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        """Refuse what no cluster can be, before anything starts."""
        if (self.kind == "scheduler") != (self.address is not None):
            raise ValueError(
                f"kind {self.kind!r} {'without' if self.address is None else 'with'} an address; a "
                "running scheduler has kind 'scheduler' and one such as tls://host:8786"
            )
        if self.address is not None:
            check_address(self.address, self.allow_plain_tcp)
            if self.tls.generate:
                raise ValueError(
                    "certificates can only be made for a cluster that is started here; a running "
                    "scheduler has its own: give ca_file, cert_file and key_file"
                )
        if self.kind in ("slurm", "kubernetes"):
            _ = self.slurm if self.kind == "slurm" else self.kubernetes
        elif self.options:
            raise ValueError(f"kind {self.kind!r} has no further options: {list(self.options)}")
        return self

    @property
    def slurm(self) -> Slurm:
        """The options as SLURM has them."""
        return checked(Slurm, self.options)

    @property
    def kubernetes(self) -> Kubernetes:
        """The options as Kubernetes has them."""
        return checked(Kubernetes, self.options)

    @property
    def seconds_without_workers(self) -> float:
        """How long to wait for a worker."""
        return self.worker_timeout or (QUEUE_TIMEOUT if self.kind == "slurm" else WORKER_TIMEOUT)


Checked = TypeVar("Checked", bound=Section)


def checked(section: type[Checked], values: Mapping[str, Any]) -> Checked:
    """A section of these values; ConfigError says in our words which of them cannot be."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    if isinstance(own := problems[0].get("ctx", {}).get("error"), SadihError):
        raise own
    named = ((".".join(map(str, found["loc"])), found) for found in problems)
    raise ConfigError(
        "; ".join(
            f"{name!r} is not among {', '.join(section.model_fields)}"
            if found["type"] == "extra_forbidden"
            else ": ".join(filter(None, (name, reason(found))))
            for name, found in named
        )
    )


def reason(found: Mapping[str, Any]) -> str:
    """Why pydantic refused a value, in our words; a remedy as a configuration says it."""
    if isinstance(own := found.get("ctx", {}).get("error"), SadihError):
        return own.worded(lambda a: a.name if a.value is None else f"{a.name} = {_toml(a.value)}")
    return str(found["msg"]).removeprefix("Value error, ").replace("Input should", "it should")


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
