"""The one pass over the data: block statistics, and a reduction tree of fixed shape.

Row blocks are canonical (fixed by the row count and ``block_rows`` alone, never by storage chunks)
and partial statistics are folded in the order of `learning.statistics.merge_in_order`. So the
result has the same bits for any chunking, number of workers, and order of events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.highlevelgraph import HighLevelGraph

from sadih_dask.arrays import Array
from sadih_dask.compute.rows import LazyRows, ReadableRows, Rows
from sadih_dask.compute.running import Progress, run, share, unique_name
from sadih_dask.errors import InputError
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.statistics import MERGE_FAN_IN, Statistics, merge_in_order

MANY_BLOCKS = 512
"""From this number of blocks on, a task takes as many as one node of the tree folds."""


@dataclass(frozen=True)
class Reduction:
    """What is done to every block of rows."""

    block_rows: int
    n_classes: int | None
    anchor_map: AnchorMap | None

    def of_block(self, features: Array, labels: Array, first_row: int) -> Statistics:
        """Statistics of one block."""
        mapped = features if self.anchor_map is None else self.anchor_map(features)
        return Statistics.of_block(mapped, labels, self.n_classes, first_row)


def scan(rows: Rows, reduction: Reduction, progress: Progress | None = None) -> Statistics:
    """Statistics of rows that are read once."""
    if rows.n_rows == 0:
        raise InputError("there are no rows to learn from")
    name, shared = unique_name("scan"), unique_name("reduction")
    graph: dict[Any, Any] = {shared: share(reduction, rows.local)}
    if isinstance(rows, LazyRows):
        leaves = _array_leaves(graph, name, shared, rows, reduction.block_rows)
    else:
        leaves = _range_leaves(graph, name, shared, rows, reduction.block_rows)
    top = _fold(graph, leaves)
    result: Statistics = run(graph, top, name, progress, rows.local)
    return result


def _range_leaves(
    graph: dict[Any, Any], name: str, shared: str, rows: ReadableRows, block_rows: int
) -> list[Any]:
    """Tasks that read their own rows."""
    source = unique_name("rows")
    graph[source] = rows
    step = _blocks_per_task(rows, block_rows) * block_rows
    for k, start in enumerate(range(0, rows.n_rows, step)):
        stop = min(start + step, rows.n_rows)
        graph[name, k] = (_scan_range, source, start, stop, shared)
    return [(name, k) for k in range(-(-rows.n_rows // step))]


def _array_leaves(
    graph: dict[Any, Any], name: str, shared: str, rows: LazyRows, block_rows: int
) -> list[Any]:
    """Tasks on blocks that are cut from the chunks of Dask arrays; each chunk is computed once."""
    features = rows.features.rechunk((block_rows, -1))
    labels = rows.labels.rechunk((block_rows, *(-1 for _ in rows.labels.shape[1:])))
    zeros = (0,) * (labels.ndim - 1)
    leaves = [(name, k) for k in range(features.numblocks[0])]
    for _, k in leaves:
        blocks = (features.name, k, 0), (labels.name, k, *zeros)
        graph[name, k] = (_scan_block, *blocks, k * block_rows, shared)
    graph |= HighLevelGraph.merge(features.__dask_graph__(), labels.__dask_graph__()).to_dict()
    return leaves


def _blocks_per_task(rows: ReadableRows, block_rows: int) -> int:
    """One block a task, or a whole node of the tree: fewer tasks, and no chunk read twice."""
    many = rows.n_rows > MANY_BLOCKS * block_rows
    return MERGE_FAN_IN if many or rows.chunk_rows > block_rows else 1


def _scan_range(rows: ReadableRows, start: int, stop: int, reduction: Reduction) -> Statistics:
    """Statistics of consecutive blocks, folded from the left."""
    features = rows.blocks("features", start, stop, reduction.block_rows)
    labels = rows.blocks("labels", start, stop, reduction.block_rows)
    return merge_in_order(
        reduction.of_block(x, y, row) for (row, x), (_, y) in zip(features, labels, strict=True)
    )


def _scan_block(features: Array, labels: Array, first_row: int, reduction: Reduction) -> Statistics:
    return reduction.of_block(np.asarray(features), np.asarray(labels), first_row)


def _fold(graph: dict[Any, Any], leaves: list[Any]) -> Any:
    """Add the tree of merges and return its root.

    A leaf is one block, or all blocks of one node. Each node is a chain of binary merges, so that
    a partial result is merged and let go as soon as it is there.
    """
    name = unique_name("merge")
    nodes = leaves
    level = 0
    while len(nodes) > 1:
        above = []
        for start in range(0, len(nodes), MERGE_FAN_IN):
            held = nodes[start]
            for k, part in enumerate(nodes[start + 1 : start + MERGE_FAN_IN], start + 1):
                key = (name, level, k)
                graph[key] = (Statistics.merge, held, part)
                held = key
            above.append(held)
        nodes = above
        level += 1
    return nodes[0]
