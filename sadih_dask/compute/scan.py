"""The one pass over the data: block statistics, and a reduction tree of fixed shape.

Row blocks are canonical (fixed by the row count and ``block_rows`` alone, never by storage chunks)
and partial statistics are folded in the order of `learning.statistics.merge_in_order`. So the
result has the same bits for any chunking, number of workers, and order of events.
"""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import scipy.sparse as sp

from sadih_dask.compute.checkpoint import (
    Checkpoint,
    PartFiles,
    Parts,
    find_parts,
    going_on,
    keep,
    load,
)
from sadih_dask.compute.lazy import joined
from sadih_dask.compute.reduction import Discovering, KeptReduction
from sadih_dask.compute.rows import LazyRows, ReadableRows, Rows, StoreRows
from sadih_dask.compute.run import amid, reporting, total_threads
from sadih_dask.compute.span import Joiner, Span
from sadih_dask.compute.tree import Tasks
from sadih_dask.errors import InputError
from sadih_dask.learning.statistics import MERGE_FAN_IN, merge_in_order
from sadih_dask.stores.ahead import MOST_CHUNKS

TAIL_NODES = 2
"""Nodes of the tree, for every thread, whose blocks are tasks of their own."""
MOST_TAIL_NODES = 256
"""Of all threads together: a scheduler with many workers has enough to do as it is."""

NODES_PER_THREAD = 2
"""Nodes of the tree, at least, in which spans of Dask arrays are joined one after the other."""


def scan(
    rows: Rows,
    reduction: KeptReduction[Any],
    checkpoint: Checkpoint | None = None,
    fetched: int = 1 + MOST_CHUNKS,
) -> tuple[Any, int]:
    """Reduce rows that are read once; return also how many were not read, but loaded.

    Of Dask arrays with one label, or list of tags, a row the result comes as `Discovered`.

    With a checkpoint the parts of a long pass over a store are kept as they are finished, and the
    same call goes on after them: it loads what their rows have come to. ``fetched`` is how many
    stored chunks a task may have in memory, as the memory plan says.
    """
    if rows.n_rows == 0:
        raise InputError("there are no rows to learn from")
    if isinstance(rows, StoreRows):
        rows = replace(rows, ahead=max(0, fetched - 1))
    parts = _parts(rows, reduction, checkpoint)
    tasks = Tasks("scan", rows.local)
    if isinstance(rows, LazyRows):
        top = _ChunkTasks(tasks, rows, reduction).add()
        with reporting(amid(rows.chunks.n_sampled, tasks.n_tasks, 0)):
            return tasks.run(top), 0
    shared = tasks.share(reduction, "reduction")
    leaves, counts = _RangeTasks(tasks, shared, rows, reduction.block_rows, parts).add()
    top = tasks.after("result", _with_sum, tasks.fold(leaves, _merge), counts)
    with reporting(going_on(parts, tasks.n_tasks)):
        result, n_loaded = tasks.run(top)
    return result, n_loaded


def _parts(rows: Rows, reduction: KeptReduction[Any], checkpoint: Checkpoint | None) -> Parts:
    if checkpoint is None:
        return Parts([(0, rows.n_rows)])
    if not isinstance(rows, StoreRows):
        raise InputError(
            f"{checkpoint.url} cannot be the checkpoint of this pass: only a pass over a "
            "FeatureStore can be told from others and resumed. Put the rows into a store, or leave "
            "the checkpoint out"
        )
    return find_parts(checkpoint, rows, reduction, node_rows(rows.chunk_rows, reduction.block_rows))


def node_rows(chunk_rows: int, block_rows: int) -> int:
    """Rows of the smallest subtree that is one task: the blocks of a node of the tree.

    Where chunks are longer than blocks, a node is as large as it must be to hold one.
    """
    node = MERGE_FAN_IN * block_rows
    while node < chunk_rows:
        node *= MERGE_FAN_IN
    return node


class _RangeTasks:
    """Tasks that read their own rows, or load what was kept of them.

    A task takes all blocks of one node of the tree: fewer tasks, and merges in place. The last
    nodes are cut into single blocks, so that all threads come to an end together; but not where
    chunks are fetched ahead inside a task. A chunk on the border of two tasks is read by both.
    """

    def __init__(
        self, tasks: Tasks, shared: str, rows: ReadableRows, block_rows: int, parts: Parts
    ) -> None:
        self._tasks = tasks
        self._shared = shared
        self._block = block_rows
        self._node = node_rows(rows.chunk_rows, block_rows)
        self._parts = parts
        self._source, self._files = tasks.share(rows, "rows"), tasks.share(parts.files, "files")
        starts = [row for part in parts.to_read for row in range(*part, self._node)]
        tail = min(TAIL_NODES * total_threads(rows.local), MOST_TAIL_NODES)
        if rows.chunk_rows > block_rows or rows.remote:  # nothing to read ahead in a single block
            tail = 0
        self._cut = set(starts[max(0, len(starts) - tail) :])

    def add(self) -> tuple[list[Any], list[Any]]:
        """Add all tasks; return the keys of the parts' results, and of counts of loaded rows."""
        leaves, counts = [], []
        for first, last in self._parts.ranges:
            if (first, last) in self._parts.loadable:
                both = self._after("load", _load_range, first, last, self._source)
                leaves.append(self._tasks.after("loaded", itemgetter(0), both))
                counts.append(self._tasks.after("count", itemgetter(1), both))
            else:
                leaves.append(self._read(first, last))
        return leaves, counts

    def _read(self, first: int, last: int) -> Any:
        step = self._node
        kept = None if self._parts.files is None else (first, last)
        nodes = [
            self._read_node(row, min(row + step, last), kept) for row in range(first, last, step)
        ]
        top = self._tasks.fold(nodes, _merge)
        if kept is None:
            return top
        return self._after("kept", _keep_range, first, last, self._source, top)

    def _after(self, purpose: str, function: Any, first: int, last: int, *given: str) -> str:
        """A task with the file of a part."""
        return self._tasks.after(purpose, function, self._files, first, last, self._shared, *given)

    def _read_node(self, start: int, stop: int, kept: tuple[int, int] | None) -> Any:
        step = self._block if start in self._cut else self._node
        blocks = []
        for row in range(start, stop, step):
            read: tuple[Any, ...] = self._source, row, min(row + step, stop), self._shared
            function: Any = _scan_range
            if kept is not None:
                function, read = _scan_unfinished, (self._files, *kept, *read)
            blocks.append(self._tasks.add((row // self._block,), function, *read))
        return self._tasks.chain(blocks, _merge)


class _ChunkTasks:
    """Tasks that reduce the chunks of Dask arrays where they are computed, a range each.

    What a range comes to goes to the one node of the tree, or to the two, that it is in. The spans
    of a node are joined one after the other; there are nodes enough for all threads, and none is
    smaller than a range.
    """

    def __init__(self, tasks: Tasks, rows: LazyRows, reduction: KeptReduction[Any]) -> None:
        n_features, dtype = rows.shape_of_features
        block = reduction.block_rows
        smaller = block * n_features * dtype.itemsize < 8 * reduction.columns(n_features) ** 2
        self._tasks = tasks
        self._chunks = rows.chunks
        numbered = rows.label_columns is not None
        of_blocks = reduction if numbered else Discovering(reduction)
        self._joiner = tasks.share(Joiner(of_blocks, rows.n_rows, smaller), "reduction")
        largest = max(part.last - part.first for part in self._chunks.ranges)
        few = rows.n_rows // (NODES_PER_THREAD * total_threads())
        self._node = block
        while self._node < largest or MERGE_FAN_IN * self._node <= few:
            self._node *= MERGE_FAN_IN

    def add(self) -> Any:
        """Add all tasks; return the key of the result."""
        nodes: dict[int, list[Any]] = {}
        for k, (part, features, labels) in enumerate(self._chunks.arguments(self._tasks)):
            given = part.first, part.last, self._joiner, labels, *features
            key = self._tasks.add((k,), _scan_chunks, *given)
            for node in range(part.first // self._node, -(-part.last // self._node)):
                nodes.setdefault(node, []).append(key)
        spans = [(self._joined(keys, n, n + 1), n, n + 1) for n, keys in nodes.items()]
        while len(spans) > 1:
            starts = range(0, len(spans), MERGE_FAN_IN)
            spans = [self._merged(spans[k : k + MERGE_FAN_IN]) for k in starts]
        return self._tasks.after("whole", Joiner.result, self._joiner, spans[0][0])

    def _merged(self, spans: list[tuple[Any, int, int]]) -> tuple[Any, int, int]:
        held, first, last = spans[0]
        for span, _, last in spans[1:]:
            held = self._joined([held, span], first, last)
        return held, first, last

    def _joined(self, keys: list[Any], first: int, last: int) -> Any:
        """Add joins, from the left, of what is in some nodes."""
        held, rows = keys[0], (first * self._node, last * self._node)
        for key in keys[1:]:
            held = self._tasks.after("join", Joiner.join, self._joiner, held, key, *rows)
        return held


def _scan_chunks(first: int, last: int, joiner: Joiner, labels: Any, *features: Any) -> Span:
    whole = joined(list(features), last - first, first)
    targets = labels if sp.issparse(labels) else np.asarray(labels)
    return joiner.span_of(whole, targets, first)


def _scan_range(rows: ReadableRows, start: int, stop: int, reduction: KeptReduction[Any]) -> Any:
    """The result of consecutive blocks, folded from the left."""
    features = rows.blocks("features", start, stop, reduction.block_rows)
    labels = rows.blocks("labels", start, stop, reduction.block_rows)
    blocks = (
        reduction.of_block(x, y, row, overwrite=rows.owned)
        for (row, x), (_, y) in zip(features, labels, strict=True)
    )
    return merge_in_order(blocks, overwrite=True)


def _scan_unfinished(
    files: PartFiles,
    first: int,
    last: int,
    rows: ReadableRows,
    start: int,
    stop: int,
    reduction: Any,
) -> Any | None:
    """The same, or None if the part that it belongs to is on file: then a worker has died since."""
    return None if files.has(first, last) else _scan_range(rows, start, stop, reduction)


def _keep_range(
    files: PartFiles, first: int, last: int, reduction: Any, rows: ReadableRows, partial: Any | None
) -> Any:
    """Write what a part has come to, or load it if that was done before a worker died."""
    if partial is None:
        return _load_range(files, first, last, reduction, rows)[0]
    return keep(files, first, last, partial, reduction)


def _load_range(
    files: PartFiles, start: int, stop: int, reduction: Any, rows: ReadableRows
) -> tuple[Any, int]:
    """The result of a part that is on file, or of its rows if the file is damaged; rows loaded."""
    found = load(files, start, stop, reduction)
    if found is not None:
        return found, stop - start
    found = _scan_range(rows, start, stop, reduction)
    return keep(files, start, stop, found, reduction), 0


def _with_sum(result: Any, counts: list[int]) -> tuple[Any, int]:
    return result, sum(counts)


def _merge(one: Any | None, other: Any | None) -> Any | None:
    """What two ranges come to; None if a file has it."""
    return None if one is None or other is None else one.merge(other)
