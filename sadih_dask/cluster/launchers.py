"""Clusters that are started for a run: processes of this machine, SLURM's jobs, Kubernetes' pods.

Each is a context manager of a cluster and of the credentials that a client of it needs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Any

from sadih_dask.cluster import nanny
from sadih_dask.cluster.security import credentials, plain_tcp_refused, tls_files
from sadih_dask.cluster.settings import ClusterSettings
from sadih_dask.errors import Argument, ClusterError, ConfigError, Remedy, require
from sadih_dask.files.redaction import redact

_PAGES = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
_ROUTES = {
    f"distributed.{role}.http.routes": ["distributed.http.health"]
    for role in ("scheduler", "worker")
}
"""Dashboards show tasks, paths and logs to every user of the machine, and ask for no password: what
is started here answers whether it lives, and nothing else. Dask cannot do without the port."""


def scratch() -> dict[str, str]:
    """Settings of Dask with which all that it puts on disk is where no other user can write.

    By default that is a folder of a known name among everybody's temporary files. Who makes it
    first can have files truncated, by links, and replace what workers spill: pickles.
    """
    import dask

    parent = Path(dask.config.get("temporary-directory") or gettempdir())
    folder = parent / f"sadih-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        folder = Path(mkdtemp(prefix="sadih-", dir=parent))
    return {"temporary-directory": str(folder)}


PRIVATE = "export TMPDIR=$(mktemp -d) && trap 'rm -rf \"$TMPDIR\"' EXIT"
"""The same on the node of a job."""


@contextmanager
def processes(settings: ClusterSettings) -> Iterator[tuple[Any, Any]]:
    """Workers of this machine, which only this machine can reach, and only with credentials."""
    import dask
    from distributed import LocalCluster

    security = credentials(settings.tls)
    with (
        dask.config.set({**_ROUTES, **nanny.forked_workers(), **scratch()}),
        LocalCluster(
            n_workers=settings.workers,
            threads_per_worker=settings.threads or 1,
            memory_limit=settings.memory_limit or "auto",
            processes=True,
            host="127.0.0.1",
            protocol="tls://",
            security=security,
            scheduler_kwargs=_PAGES,
            env=dict(os.environ),  # the process that workers are forked from may be an older one
        ) as cluster,
    ):
        yield cluster, security


@contextmanager
def slurm_jobs(settings: ClusterSettings) -> Iterator[tuple[Any, Any]]:
    """A scheduler in this process, and workers as jobs, which are cancelled at the end."""
    import dask

    jobqueue = require("dask_jobqueue.slurm", "a SLURM cluster")
    options = slurm_options(settings)
    with dask.config.set({**_ROUTES, **scratch()}), jobqueue.SLURMCluster(**options) as cluster:
        cluster.scale(jobs=settings.workers or 1)
        yield cluster, options.get("security")


def slurm_options(settings: ClusterSettings) -> dict[str, Any]:
    """Arguments of `dask_jobqueue.SLURMCluster`; settings that are not safe are refused."""
    import dask

    slurm = settings.slurm
    _check_interface(slurm.interface)
    security = _slurm_credentials(settings)
    return {
        "cores": slurm.cores,
        "memory": slurm.memory,
        "processes": 1,
        "worker_extra_args": [f"--preload-nanny={nanny.__name__}"],
        "protocol": "tls://" if security is not None else "tcp://",
        "scheduler_options": {"port": 0, **_PAGES},
        "job_script_prologue": [
            *(dask.config.get("jobqueue.slurm.job-script-prologue", None) or ()),
            PRIVATE,
        ],
        **_given(
            queue=slurm.queue,
            account=slurm.account,
            walltime=slurm.walltime,
            interface=slurm.interface,
            shared_temp_directory=slurm.shared_directory,
            log_directory=slurm.log_directory,
            security=security,
        ),
    }


def _slurm_credentials(settings: ClusterSettings) -> Any:
    """Certificates that are given, or made where all nodes see them."""
    if any(tls_files(settings.tls).values()):
        return credentials(settings.tls)
    if settings.allow_plain_tcp and not settings.tls.generate:
        return None
    if settings.slurm.shared_directory is not None:
        return credentials(settings.tls)
    if settings.tls.generate:
        raise ConfigError(
            "certificates that are made for a SLURM cluster must be seen by all nodes: give "
            "shared_directory, a folder on a shared file system"
        )
    raise plain_tcp_refused("between the jobs of a SLURM cluster")


def _check_interface(interface: str | None) -> None:
    if interface is None:
        return
    from distributed.utils import get_ip_interface

    try:
        get_ip_interface(interface)
    except ValueError as error:
        raise ConfigError(f"cluster option interface: {error}") from error


@contextmanager
def kubernetes_pods(settings: ClusterSettings) -> Iterator[tuple[Any, Any]]:
    """A DaskCluster of the Dask operator: one that is there, or one that is deleted at the end."""
    options = kubernetes_options(settings)
    what = "a cluster on Kubernetes"
    operator = require("dask_kubernetes.operator", what)
    modes = require("dask_kubernetes.operator.kubecluster.kubecluster", what)
    options["create_mode"] = modes.CreateMode[options["create_mode"]]
    try:
        cluster = operator.KubeCluster(**options)
    except Exception as error:  # of many libraries: no API server, no operator, no such cluster
        raise ClusterError(
            f"Kubernetes gave no cluster ({type(error).__name__}: {redact(str(error))[:300]}). "
            "Check kubectl get daskclusters, and that the Dask operator is installed"
        ) from error
    with cluster:
        yield cluster, None


def kubernetes_options(settings: ClusterSettings) -> dict[str, Any]:
    """Arguments of `dask_kubernetes.operator.KubeCluster`; ones that are not safe are refused.

    The operator's clusters do not speak TLS.
    """
    pods = settings.kubernetes
    if not settings.allow_plain_tcp:
        raise ConfigError(
            "a DaskCluster of Kubernetes speaks plain TCP between its pods, and the Dask protocol "
            "runs whatever it is sent",
            remedy=Remedy(
                "Where the pod network is closed to others (NetworkPolicy) say {}; else run "
                "scheduler and workers with certificates yourself and use kind 'scheduler' with a "
                "tls:// address",
                Argument("allow_plain_tcp", True),
            ),
        )
    common = _given(name=pods.name, namespace=pods.namespace, quiet=True)
    if pods.image is None:
        return {**common, "create_mode": "CONNECT_ONLY", "shutdown_on_close": False}
    size = _given(cpu=pods.cores, memory=pods.memory)
    worker = ["dask", "worker", "--nthreads", str(settings.threads or 1)]
    if settings.memory_limit is not None:
        worker += ["--memory-limit", str(settings.memory_limit)]
    return {
        **common,
        **({"resources": {"requests": size, "limits": size}} if size else {}),
        "image": pods.image,
        "n_workers": settings.workers or 1,
        "create_mode": "CREATE_ONLY",
        "shutdown_on_close": True,
        "worker_command": worker,
        "resource_timeout": round(settings.seconds_without_workers),
    }


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
