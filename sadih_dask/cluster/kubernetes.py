"""A DaskCluster of the Dask operator for Kubernetes: made for the run, or one that is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sadih_dask.cluster.settings import ClusterSettings
from sadih_dask.errors import ClusterError, InputError
from sadih_dask.redaction import redact


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
