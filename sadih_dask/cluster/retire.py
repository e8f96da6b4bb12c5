"""A worker that is told to end hands over what it holds: a preload of Dask's nannies.

    dask worker ... --preload-nanny=sadih_dask.cluster.retire

Dask does so when a worker's lifetime is over, but at SIGTERM (a drained node, a spot instance that
is taken away) it only ends: results that nobody else has are made again, and the tasks under way
count as failures that the worker may have brought about.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Nanny

SECONDS = 30.0
"""For results to move; deployments give a worker a minute to end."""
CONNECT_SECONDS = 3.0
"""For the scheduler to answer; often it ends at the same time."""
logger = logging.getLogger(__name__)


async def dask_teardown(nanny: Nanny) -> None:
    """Have the scheduler move the worker's results and give its tasks to others, as it closes."""
    from distributed.core import rpc

    if nanny.worker_address is None:
        return
    security = nanny.security.get_connection_args("worker")
    scheduler = rpc(nanny.scheduler_addr, timeout=CONNECT_SECONDS, connection_args=security)
    try:
        async with asyncio.timeout(SECONDS):
            await scheduler.retire_workers(
                workers=[nanny.worker_address], close_workers=False, remove=True
            )
    except (OSError, TimeoutError) as error:
        logger.info("nothing could be handed over: %s", error)
    finally:
        await scheduler.close_rpc()
