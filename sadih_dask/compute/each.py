"""One function over many small items, each a task; what they all read is sent once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sadih_dask.compute.running import Progress, run, share, unique_name

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


def run_each(
    function: Callable[[Shared, Item], Result],
    shared: Shared,
    items: Sequence[Item],
    purpose: str,
    progress: Progress | None = None,
) -> list[Result]:
    """``function(shared, item)`` of every item, in the order of the items.

    Items and results travel; they should be small. Items are objects of a class of their own: Dask
    would look for tasks in a tuple or a list.
    """
    name, common = unique_name(purpose), unique_name("shared")
    graph: dict[Any, Any] = {common: share(shared)}
    for k, item in enumerate(items):
        graph[name, k] = (function, common, item)
    whole = f"{name}-all"
    graph[whole] = (list, [(name, k) for k in range(len(items))])
    results: list[Result] = run(graph, whole, name, progress)
    return results
