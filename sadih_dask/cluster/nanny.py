"""What Dask's nannies do for the workers of this package; a preload of theirs.

    dask worker ... --preload-nanny=sadih_dask.cluster.nanny

A worker that died is replaced at once. By default the new one imports everything again, which is a
second and a half of a core. Here it is forked from a process that has imported what tasks need and
does nothing else: a tenth of a second.

A worker that is told to end hands over what it holds. Dask does so when a worker's lifetime is
over, but at SIGTERM (a drained node, a spot instance that is taken away) it only ends: results that
nobody else has are made again, and the tasks under way count as failures that the worker may have
brought about.

A worker waits for its scheduler for as long as ``--death-timeout`` says. Dask's nanny ends after
half a minute, in which no node has pulled an image.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Nanny

SECONDS = 30.0
"""For results to move; deployments give a worker a minute to end."""
CONNECT_SECONDS = 3.0
"""For the scheduler to answer; often it ends at the same time."""
METHOD = {"distributed.worker.multiprocessing-method": "forkserver"}
IMPORTED = ["distributed.nanny", "distributed.worker", "scipy.linalg"]
IMPORTED += [f"sadih_dask.compute.{name}" for name in ("encode", "evaluate", "scan", "search")]
"""What a worker needs for any task; it imports itself what else there is to import."""
logger = logging.getLogger(__name__)


def forked_workers() -> dict[str, str]:
    """Settings of Dask with which nannies of this process fork their workers, after this call.

    Not where the system's own libraries do not outlive a fork, as on macOS.
    """
    import dask
    from distributed.utils import get_mp_context

    if sys.platform != "linux":
        return {}
    with dask.config.set(METHOD):
        context = get_mp_context()  # names what Dask would import; from now on it does so no more
    context.set_forkserver_preload(IMPORTED)
    return METHOD


async def dask_setup(nanny: Nanny) -> None:
    """Have the nannies of this process fork their workers, once there is a scheduler."""
    import dask
    from distributed.comm.core import FatalCommClosedError

    dask.config.set(forked_workers())
    while nanny.death_timeout:  # who called this ends it then
        try:
            found = await nanny.rpc.connect(nanny.scheduler_addr)
        except FatalCommClosedError:  # certificates that do not become right
            raise
        except OSError as error:
            logger.warning("waiting for the scheduler: %s", error)
        else:
            nanny.rpc.reuse(nanny.scheduler_addr, found)
            break


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
        logger.warning("nothing could be handed over: %s", error)
    finally:
        await scheduler.close_rpc()
