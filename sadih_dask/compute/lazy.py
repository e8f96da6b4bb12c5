"""The chunks of Dask arrays of features and labels, as their owner made them.

A chunk is computed in the task that reduces it, and what it comes to is joined with its neighbours
(`sadih_dask.compute.span`): rows are not cut anew. Small chunks are reduced together. The chunks
that a sample comes from are computed before that; as many as there is room for are kept where they
are, and only the others are computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import scipy.sparse as sp
from dask._task_spec import Alias, DataNode, GraphNode, Task
from dask.array.optimization import optimize
from dask.core import flatten, get_dependencies
from dask.highlevelgraph import HighLevelGraph
from distributed import Future

from sadih_dask.compute.run import amid, held_on_cluster, reporting, total_threads
from sadih_dask.compute.tree import Tasks
from sadih_dask.errors import DtypeError, InputError
from sadih_dask.types import Array, Ints

RANGE_BYTES = 16 * 2**20
"""Features that are reduced together, about, where chunks are smaller."""
RANGES_PER_THREAD = 4
"""Tasks that reduce them, at least, unless these are of a block."""


class Range(NamedTuple):
    """Consecutive chunks, and their rows."""

    chunks: range
    first: int
    last: int


class Chunks:
    """Chunks of features (n, d) and labels as one graph of tasks.

    ranges     chunks that are reduced together: one, or a block of rows and more
    n_sampled  tasks that have taken the sample
    """

    def __init__(self, features: da.Array, labels: Any, block_rows: int) -> None:
        sizes = [int(size) for size in features.chunks[0]]
        row_bytes = max(1, features.shape[1] * features.dtype.itemsize)
        enough = min(RANGE_BYTES // row_bytes, sum(sizes) // (RANGES_PER_THREAD * total_threads()))
        self.ranges = _ranges(sizes, max(block_rows, enough))
        self.n_sampled = 0
        arrays = {"features": features.rechunk({1: -1})}
        ends = {"features": np.cumsum(sizes)}
        if isinstance(labels, da.Array):
            rows = tuple(part.last - part.first for part in self.ranges)
            arrays["labels"] = labels.rechunk((rows, *(-1 for _ in labels.shape[1:])))
            ends["labels"] = np.cumsum(rows)
        elif labels.dtype.kind in "iu" and labels.shape[0] and labels.min() >= 0:
            labels = labels.astype(np.min_scalar_type(labels.max()))  # they travel in the graph
        self._labels = labels
        self._arrays = {name: _Keys(array, ends[name]) for name, array in arrays.items()}
        self._graph = _optimised(list(arrays.values()))
        reached = [set(_reached(self._graph, keys.keys)) for keys in self._arrays.values()]
        # Labels that are made of the features, or of the same tasks.
        self._shares = len(reached) > 1 and not reached[0].isdisjoint(reached[1])
        self._users = Counter(
            key for task in self._graph.values() for key in _dependencies(self._graph, task)
        )
        self._held: dict[Any, Any] = {}
        self._sample: tuple[Ints, dict[str, Array]] | None = None

    def take(self, name: str, rows: Ints) -> Any:
        """Single rows, ascending: those of the sample, if they are it, or computed."""
        if name not in self._arrays:
            return self._labels[rows]
        if self._sample is not None and self._sample[0] is rows and name in self._sample[1]:
            return self._sample[1][name]
        return self._read((name,), rows)[name]

    def read_sample(self, rows: Ints, *, features: bool, room: int) -> None:
        """Compute labels of some rows and, if they are wanted, features, both in one pass.

        Chunks that have been computed for it are kept, up to ``room`` bytes.
        """
        names = tuple(name for name in self._arrays if features or name != "features")
        if names:
            self._sample = rows, self._read(names, rows, room)

    def _read(self, names: tuple[str, ...], rows: Ints, room: int = 0) -> dict[str, Array]:
        tasks = Tasks("sample")
        tasks.graph |= self._graph
        places = {name: list(self._arrays[name].places(rows)) for name in names}
        kept = self._choose(places, rows, room)
        client_holds = held_on_cluster(tasks.graph, kept)
        if client_holds is not None:
            self._held |= dict(zip(kept, client_holds, strict=True))
        tops = []
        for number, (name, found) in enumerate(places.items()):
            parts = [
                tasks.add((number, k), _take, self._chunk(tasks, key, kept), key[1], where)
                for k, (key, where) in enumerate(found)
            ]
            tops.append(tasks.after(f"sample-of-{name}", np.concatenate, parts))
        self.n_sampled = tasks.n_tasks
        with reporting(amid(0, self.n_sampled, len(self.ranges))):
            values = tasks.run_each([*tops, *(kept if client_holds is None else ())])
        if client_holds is None:
            self._held |= dict(zip(kept, values[len(tops) :], strict=True))
        return dict(zip(names, values, strict=False))

    def _choose(self, places: dict[str, Any], rows: Ints, room: int) -> list[Any]:
        """Keys of the chunks to keep."""
        if self._shares and "features" not in places:
            places = {**places, "features": self._arrays["features"].places(rows)}
        kept = []
        for name in sorted(places, reverse=True):  # labels first: they are small
            for key, _ in places[name]:
                room -= self._arrays[name].n_bytes(key)
                if room >= 0:
                    kept.append(key)
        return kept

    def _chunk(self, tasks: Tasks, key: Any, kept: Any) -> Any:
        """A chunk as an argument of the one task that uses it.

        It is computed in that task, unless it is kept or something else is made of it, too.
        """
        names, task = [key], tasks.graph.get(key)
        while isinstance(task, Alias) and self._users[task.target] == 1:
            names.append(task.target)
            task = tasks.graph.get(task.target)
        if not isinstance(task, Task) or key in kept or self._users[key]:
            return key
        for name in names:
            del tasks.graph[name]
        return task

    def arguments(self, tasks: Tasks) -> Iterator[tuple[Range, list[Any], Any]]:
        """Ranges with their chunks of features, and their labels, as arguments of tasks."""
        tasks.graph |= self._graph
        for key, value in self._held.items():
            # A scheduler that holds it needs its recipe all the same, should its worker die.
            if not isinstance(value, Future):
                tasks.graph[key] = DataNode(key, value)
        features = self._arrays["features"].keys
        for k, part in enumerate(self.ranges):
            chunks = [self._chunk(tasks, features[i], self._held) for i in part.chunks]
            if "labels" in self._arrays:
                labels = self._chunk(tasks, self._arrays["labels"].keys[k], self._held)
            else:
                labels = self._labels[part.first : part.last]
            yield part, chunks, labels


class _Keys:
    """Keys of the chunks of an array, and the rows that each should have."""

    def __init__(self, array: da.Array, ends: Ints) -> None:
        zeros = (0,) * (array.ndim - 1)
        self.keys = [(array.name, k, *zeros) for k in range(len(ends))]
        self.starts = np.concatenate([np.zeros(1, np.int64), ends])
        self._row_bytes = int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize

    def places(self, rows: Ints) -> Iterator[tuple[Any, Ints]]:
        """Chunks that hold any of the rows, and where in it they are."""
        chunk_of = np.searchsorted(self.starts, rows, side="right") - 1
        for k in np.unique(chunk_of):
            yield self.keys[k], rows[chunk_of == k] - self.starts[k]

    def n_bytes(self, key: Any) -> int:
        """Size of a chunk."""
        k = key[1]
        return int(self.starts[k + 1] - self.starts[k]) * self._row_bytes


def _ranges(sizes: list[int], least: int) -> list[Range]:
    """Consecutive chunks in ranges of so many rows or more; the last may be shorter.

    >>> _ranges([3, 3, 8, 1], 6)
    [Range(chunks=range(0, 2), first=0, last=6), Range(chunks=range(2, 3), first=6, last=14), \
Range(chunks=range(3, 4), first=14, last=15)]
    """
    found, chunk, first, row = [], 0, 0, 0
    for k, size in enumerate(sizes, 1):
        row += size
        if row - first >= least or (k == len(sizes) and row > first):
            found.append(Range(range(chunk, k), first, row))
            chunk, first = k, row
    return found


def joined(chunks: list[Any], n_rows: int, first_row: int) -> Array:
    """Chunks as one array of as many rows as were announced; one of them is not copied."""
    arrays = [as_array(chunk) for chunk in chunks]
    whole: Array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    if len(whole) != n_rows:
        raise InputError(
            f"chunks of rows {first_row} to {first_row + n_rows - 1} have {len(whole)} rows, where "
            f"their Dask array says {n_rows}; call compute_chunk_sizes() on it first"
        )
    return whole


def as_array(chunk: Any) -> Array:
    """A chunk as NumPy knows it; DtypeError if that would be something else than its rows."""
    refuse_sparse(chunk)
    if isinstance(chunk, np.ma.MaskedArray):
        return chunk
    return np.asarray(chunk)


def refuse_sparse(block: Any) -> None:
    """Refuse a block, or one that stands for all, of SciPy or of the library `sparse`."""
    if sp.issparse(block) or type(block).__module__.partition(".")[0] == "sparse":
        way = "toarray" if sp.issparse(block) else "todense"
        raise DtypeError(
            "X has sparse blocks, but dense data is required; densify them first: "
            f"X.map_blocks(lambda block: block.{way}(), dtype=X.dtype)"
        )


def _take(chunk: Any, number: int, rows: Ints) -> Array:
    whole = as_array(chunk)
    if len(whole) <= rows.max(initial=-1):
        raise InputError(
            f"chunk {number} has {len(whole)} rows, fewer than its Dask array says; call "
            "compute_chunk_sizes() on it first"
        )
    return whole[rows]


def _optimised(arrays: list[da.Array]) -> dict[Any, Any]:
    """The tasks of all arrays; what several are made of is there once, under its own name."""
    graph = HighLevelGraph.merge(*(array.__dask_graph__() for array in arrays))
    keys = [key for array in arrays for key in flatten(array.__dask_keys__())]
    found = dict(optimize(graph, keys))
    # Chunks that a client has persisted, which are no tasks.
    return found | {key: task for key, task in graph.items() if isinstance(task, Future)}


def _reached(graph: dict[Any, Any], keys: list[Any]) -> Iterator[Any]:
    """Keys of all tasks that some need."""
    open_, seen = list(keys), set(keys)
    while open_:
        yield (key := open_.pop())
        new = set(_dependencies(graph, graph.get(key))) - seen
        seen |= new
        open_ += new


def _dependencies(graph: dict[Any, Any], task: Any) -> Iterable[Any]:
    if isinstance(task, GraphNode):
        return task.dependencies
    found: set[Any] = get_dependencies(graph, task=task)
    return found
