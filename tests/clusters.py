"""A real cluster of processes on the loopback interface, for one test module."""

from collections.abc import Iterator
from contextlib import contextmanager

import dask
from distributed import LocalCluster


@contextmanager
def processes(n_workers: int) -> Iterator[LocalCluster]:
    """Workers of one thread each; one that dies is replaced by its nanny.

    Port 0 is any free one, so that modules can run side by side.
    """
    with (
        dask.config.set({"distributed.scheduler.no-workers-timeout": "60s"}),
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit="2GiB",
        ) as found,
    ):
        yield found
