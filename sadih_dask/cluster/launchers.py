"""A scheduler in this process, and workers as jobs of SLURM.

A DaskCluster of the Dask operator for Kubernetes: made for the run, or one that is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sadih_dask.cluster.security import check_plain, security_for, wants_tls
from sadih_dask.cluster.settings import ClusterSettings
from sadih_dask.errors import ClusterError, InputError
from sadih_dask.files.redaction import redact


def job_options(settings: ClusterSettings) -> dict[str, Any]:
    """Arguments of `dask_jobqueue.SLURMCluster`; settings that are not safe are refused."""
    slurm = settings.slurm
    security = security_for(settings.tls, generated=True) if wants_tls(settings.tls) else None
    if security is None:
        # Without a network of its own the scheduler listens where other machines reach it.
        check_plain(_host(slurm.interface), settings.allow_plain_tcp)
    elif settings.tls.generate and slurm.shared_directory is None:
        raise InputError(
            "certificates that are made for a SLURM cluster must be seen by all nodes: give "
            "shared_directory, a folder on a shared file system"
        )
    given = {
        "queue": slurm.queue,
        "account": slurm.account,
        "walltime": slurm.walltime,
        "interface": slurm.interface,
        "shared_temp_directory": slurm.shared_directory,
        "log_directory": slurm.log_directory,
        "security": security,
    }
    return {
        "cores": slurm.cores,
        "memory": slurm.memory,
        "processes": 1,
        "protocol": "tls://" if security is not None else "tcp://",
        "scheduler_options": {"port": 0, "dashboard_address": settings.dashboard},
        **{name: value for name, value in given.items() if value is not None},
    }


def _host(interface: str | None) -> str:
    if interface is None:
        return "0.0.0.0"  # noqa: S104 (where it would listen, which is what is refused)
    from distributed.utils import get_ip_interface

    try:
        return str(get_ip_interface(interface))
    except ValueError as error:
        raise InputError(f"cluster option interface: {error}") from error


@contextmanager
def jobs(settings: ClusterSettings) -> Iterator[tuple[Any, Any]]:
    """Submit jobs, and cancel them at the end."""
    try:
        from dask_jobqueue.slurm import SLURMCluster
    except ImportError as error:
        raise InputError(
            "a SLURM cluster needs dask-jobqueue: pip install 'sadih-dask[slurm]'"
        ) from error
    options = job_options(settings)
    with SLURMCluster(**options) as cluster:
        cluster.scale(jobs=settings.n_workers or 1)
        yield cluster, options.get("security")


def cluster_options(settings: ClusterSettings) -> dict[str, Any]:
    """Arguments of `dask_kubernetes.operator.KubeCluster`; ones that are not safe are refused.

    The operator's clusters do not speak TLS.
    """
    pods = settings.kubernetes
    if not settings.allow_plain_tcp:
        raise InputError(
            "a DaskCluster of Kubernetes speaks plain TCP between its pods, and the Dask protocol "
            "runs whatever it is sent. Where the pod network is closed to others (NetworkPolicy) "
            "say allow_plain_tcp = true in [cluster], or --allow-plain-tcp; else run scheduler and "
            "workers with certificates yourself and use kind 'scheduler' with a tls:// address"
        )
    common = {"name": pods.name, "namespace": pods.namespace, "quiet": True}
    if pods.image is None:
        return {**_given(common), "create_mode": "CONNECT_ONLY", "shutdown_on_close": False}
    size = _given({"cpu": pods.cores, "memory": pods.memory})
    resources = {"requests": size, "limits": size} if size else None
    return {
        **_given(common),
        **_given({"resources": resources}),
        "image": pods.image,
        "n_workers": settings.n_workers or 1,
        "create_mode": "CREATE_ONLY",
        "shutdown_on_close": True,
        "worker_command": _worker_command(settings),
        "resource_timeout": round(settings.seconds_without_workers),
    }


def _worker_command(settings: ClusterSettings) -> list[str]:
    words = ["dask", "worker", "--nthreads", str(settings.threads_per_worker or 1)]
    if settings.memory_limit is not None:
        words += ["--memory-limit", str(settings.memory_limit)]
    return words


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def pods(settings: ClusterSettings) -> Iterator[tuple[Any, Any]]:
    """Make or find the cluster; what was made is deleted at the end."""
    options = cluster_options(settings)
    try:
        from dask_kubernetes.operator import KubeCluster
        from dask_kubernetes.operator.kubecluster.kubecluster import CreateMode
    except ImportError as error:
        raise InputError(
            "a cluster on Kubernetes needs dask-kubernetes: pip install 'sadih-dask[kubernetes]'"
        ) from error
    options["create_mode"] = CreateMode[options["create_mode"]]
    try:
        cluster = KubeCluster(**options)
    except Exception as error:  # of many libraries: no API server, no operator, no such cluster
        raise ClusterError(
            f"Kubernetes gave no cluster ({type(error).__name__}: {redact(str(error))[:300]}). "
            "Check kubectl get daskclusters, and that the Dask operator is installed"
        ) from error
    with cluster:
        yield cluster, None
