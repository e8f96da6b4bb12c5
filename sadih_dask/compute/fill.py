"""Filling an allocated store: one task for every block that is not written yet.

Tasks write; nothing passes through the driver. Blocks that an interrupted run has written have left
a receipt and are not computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sadih_dask.compute.running import Progress, run, share, unique_name
from sadih_dask.storage.blocks import BlockWriter

Writer = TypeVar("Writer", bound=BlockWriter)


def fill(
    writer: Writer,
    write_block: Callable[[Writer, int, Any], None],
    job: Any,
    progress: Progress | None = None,
) -> None:
    """Call ``write_block(writer, block, job)`` as a task for every block that is missing."""
    missing = writer.missing()
    if not missing:
        return
    name, target, shared = unique_name("write"), unique_name("writer"), unique_name("job")
    graph: dict[Any, Any] = {target: writer, shared: share(job)}
    for block in missing:
        graph[name, block] = (write_block, target, block, shared)
    everything = f"{name}-all"
    graph[everything] = (_done, [(name, block) for block in missing])
    run(graph, everything, name, progress)


def _done(_: list[None]) -> None:
    """Wait for all of them."""
