"""A scheduler in this process, and workers as jobs of SLURM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sadih_dask.cluster.security import check_plain, security_for, wants_tls
from sadih_dask.cluster.settings import ClusterSettings
from sadih_dask.errors import InputError


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
