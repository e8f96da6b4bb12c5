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
from sadih_dask.compute.running import Progress, run, share, total_threads, unique_name
from sadih_dask.errors import InputError
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.statistics import MERGE_FAN_IN, Statistics, merge_in_order

TAIL_NODES = 2
"""Nodes of the tree, for every thread, whose blocks are tasks of their own."""


@dataclass(frozen=True)
class Reduction:
    """What is done to every block of rows."""

    block_rows: int
    n_classes: int | None
    anchor_map: AnchorMap | None

    def of_block(
        self, features: Array, labels: Array, first_row: int, *, overwrite: bool = False
    ) -> Statistics:
        """Statistics of one block."""
        if self.anchor_map is not None:
            # A product of the same numbers in another memory layout has other last bits.
            features, overwrite = self.anchor_map(np.ascontiguousarray(features)), True
        return Statistics.of_block(features, labels, self.n_classes, first_row, overwrite=overwrite)


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
    """Tasks that read their own rows.

    A task takes all blocks of one node of the tree: fewer tasks, and merges in place. The last
    nodes are cut into single blocks, so that all threads come to an end together. A chunk on the
    border of two tasks is read by both; where chunks are longer than blocks, a node is as large as
    it must be to hold one.
    """
    source = unique_name("rows")
    graph[source] = rows
    node = MERGE_FAN_IN * block_rows
    while node < rows.chunk_rows:
        node *= MERGE_FAN_IN
    starts = range(0, rows.n_rows, node)
    tail = 0 if rows.chunk_rows > block_rows else TAIL_NODES * total_threads(rows.local)
    nodes = []
    for k, start in enumerate(starts):
        stop = min(start + node, rows.n_rows)
        step = block_rows if k >= len(starts) - tail else node
        parts = []
        for row in range(start, stop, step):
            key = (name, row // block_rows)
            graph[key] = (_scan_range, source, row, min(row + step, stop), shared)
            parts.append(key)
        nodes.append(_chain(graph, parts))
    return nodes


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


def _scan_range(rows: ReadableRows, start: int, stop: int, reduction: Reduction) -> Statistics:
    """Statistics of consecutive blocks, folded from the left."""
    features = rows.blocks("features", start, stop, reduction.block_rows)
    labels = rows.blocks("labels", start, stop, reduction.block_rows)
    blocks = (
        reduction.of_block(x, y, row, overwrite=rows.owned)
        for (row, x), (_, y) in zip(features, labels, strict=True)
    )
    return merge_in_order(blocks, overwrite=True)


def _scan_block(features: Array, labels: Array, first_row: int, reduction: Reduction) -> Statistics:
    return reduction.of_block(np.asarray(features), np.asarray(labels), first_row)


def _fold(graph: dict[Any, Any], nodes: list[Any]) -> Any:
    """Add the tree of merges above blocks, or above nodes of equal level, and return its root."""
    while len(nodes) > 1:
        starts = range(0, len(nodes), MERGE_FAN_IN)
        nodes = [_chain(graph, nodes[start : start + MERGE_FAN_IN]) for start in starts]
    return nodes[0]


def _chain(graph: dict[Any, Any], parts: list[Any]) -> Any:
    """Add one node of the tree: binary merges from the left.

    So a partial result is merged and let go as soon as it is there.
    """
    held = parts[0]
    for part in parts[1:]:
        key = unique_name("merge")
        graph[key] = (Statistics.merge, held, part)
        held = key
    return held
