"""The task graphs of a scan and of an encoding, for any number of rows, to be simulated.

The package's own functions build them, for rows that are said to be there, and the order in which a
scheduler prefers tasks is Dask's own: nothing about the shape of a graph is written down twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import dask
from dask.order import order

from sadih_dask.compute import checkpoint as resume
from sadih_dask.compute import encode, scan, tree
from sadih_dask.compute.reduction import Reduction
from sadih_dask.stores.layout import default_chunk_rows
from tests.benchmarks.bench_graph import graph_of, not_run

BLOCK_ROWS = 8192


@dataclass(frozen=True)
class ClaimedRows:
    """Rows of a store that need not exist to be planned for."""

    n_rows: int
    chunk_rows: int

    local = False

    def missing(self) -> list[int]:
        """Blocks of a code store for these rows, as its writer names them."""
        size = encode._code_chunk_rows(self, BLOCK_ROWS)  # type: ignore[arg-type]
        return list(range(-(-self.n_rows // size)))


@dataclass(frozen=True)
class Task:
    """One task of a graph; what it waits for comes before it in the list.

    kind      "leaf" (reads rows), "merge", "keep" (writes a part of a checkpoint) or "top"
    rows      that it reads
    after     places of the tasks whose results it takes
    priority  the least goes first
    """

    kind: str
    rows: int
    after: tuple[int, ...]
    priority: int


def scan_tasks(
    n_rows: int, threads: int, n_features: int = 512, *, checkpoint_width: int | None = None
) -> list[Task]:
    """The scan of that many rows on that many threads, parts of a checkpoint being kept or not.

    ``checkpoint_width`` is the number of columns of the statistics that are kept.
    """
    chunk_rows = default_chunk_rows(4 * n_features)
    rows = ClaimedRows(n_rows, chunk_rows)
    parts = resume.Parts([(0, n_rows)])
    if checkpoint_width is not None:
        node = scan._node_rows(rows, BLOCK_ROWS)  # type: ignore[arg-type]
        ranges = resume._cut(n_rows, node, resume.ROWS_PER_STATISTIC * checkpoint_width)
        if len(ranges) >= resume.FEWEST_PARTS:
            parts = resume.Parts(ranges, files="files")  # type: ignore[arg-type]
    reduction = Reduction(BLOCK_ROWS, None, None)
    with (
        not_run(),
        dask.config.set(num_workers=threads),
        patch.object(scan, "_parts", lambda *_: parts),
    ):
        graph = graph_of(lambda _: scan.scan(rows, reduction), n_rows)  # type: ignore[arg-type]
    kinds = {scan._scan_range: "leaf", scan._scan_unfinished: "leaf"}
    kinds |= {scan._merge: "merge", scan._keep_range: "keep"}
    return _listed(graph, kinds, lambda task: task[-2] - task[-3])


def encode_tasks(n_rows: int, n_features: int = 512) -> list[Task]:
    """The encoding of that many rows: tasks that depend on nothing."""
    rows = ClaimedRows(n_rows, default_chunk_rows(4 * n_features))
    size = encode._code_chunk_rows(rows, BLOCK_ROWS)  # type: ignore[arg-type]
    writer: Any = rows
    with not_run():
        graph = graph_of(lambda _: tree.fill(writer, encode._encode_block, None), n_rows)
    kinds = {encode._encode_block: "leaf"}
    leaves = _listed(graph, kinds, lambda task: min(size, n_rows - task[2] * size))
    # The driver takes them, each when it is there; it is done with the last.
    return [*leaves, Task("top", 0, tuple(range(len(leaves))), len(leaves))]


def _listed(graph: Mapping[Any, Any], kinds: Mapping[Any, str], rows_of: Any) -> list[Task]:
    """Tasks in an order in which they can be done; values that all of them read are left out."""
    tasks = {key: task for key, task in graph.items() if isinstance(task, tuple)}
    after = {key: [found for found in _keys(task) if found in tasks] for key, task in tasks.items()}
    ranks = order({key: (_nothing, *after[key]) for key in tasks})
    place = {key: k for k, key in enumerate(sorted(tasks, key=ranks.__getitem__))}
    found = []
    for key in place:
        kind = kinds.get(tasks[key][0], "top")
        n_rows = rows_of(tasks[key]) if kind == "leaf" else 0
        found.append(Task(kind, n_rows, tuple(place[one] for one in after[key]), place[key]))
    return found


def _keys(task: tuple[Any, ...]) -> list[Any]:
    """Whatever in a task can be the key of another: names and pairs, also in lists."""
    flat = [part for one in task[1:] for part in (one if isinstance(one, list) else [one])]
    return [part for part in flat if isinstance(part, str | tuple)]


def _nothing(*_: Any) -> None:
    """Stand for any function."""
