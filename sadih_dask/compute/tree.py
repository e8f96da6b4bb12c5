"""Graphs of one shape: a map over parts, and a tree of merges above them.

`reduce_pairs` asks something of all pairs of queries and database rows. Every task compares a block
of queries with a range of rows, block by block, and keeps a partial result for its queries. What is
asked decides what they are: the nearest rows, rows within a radius, histograms. All of these can be
merged in any order, so the result is the same for any chunking, any number of workers and any order
of events.

`run_each` is a map alone. `fill` writes an allocated store: one task for every block that is not
written yet, and nothing passes through the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from dask._task_spec import DataNode

from sadih_dask.compute.run import run, run_each_key, total_threads, unique_name
from sadih_dask.learning.statistics import MERGE_FAN_IN
from sadih_dask.stores.segment import Digests
from sadih_dask.stores.store import StoreWriter

TASKS_PER_THREAD = 8
PAIRS_PER_TASK = 2**34
"""Pairs of one task at most: some ten seconds, which is what a lost worker costs."""
ROWS_PER_TASK = 2**18
"""Rows of one task at least: a search passes over most items only once it has found near ones."""
MOST_DELIVERIES = 256
"""Partial results that come here, at most, where the tasks run in other processes.

What is here is not lost when a worker dies: the less is merged over there, the less is done again.
"""
PARTIAL_BYTES = 16 * 2**20
"""Size of a partial result at most, unless that of one query is larger."""

Asked = TypeVar("Asked", contravariant=True)
Result = TypeVar("Result")


class Tasks:
    """A graph in the making, on threads of this process if ``local``.

    What many tasks read (anchors, a hash function, codes of queries) is a task of its own, in the
    graph once, as it is. So the scheduler has the recipe of everything: when the last worker that
    holds a value dies, another gets it again; a cluster without workers knows that it needs some.
    NumPy arrays travel beside the graph uncopied, which takes no longer than to scatter them (0.4 s
    of 32 MB to two workers), and the scheduler keeps them until the result is there. Rows of a
    store are never a part of it: tasks read them.
    """

    def __init__(self, purpose: str, local: bool = False) -> None:
        self.name = unique_name(purpose)
        self.local = local
        self.graph: dict[Any, Any] = {}
        self.n_tasks = 0

    def share(self, value: Any, purpose: str = "shared") -> str:
        """Add a value that many tasks read; its key."""
        key = unique_name(purpose)
        self.graph[key] = DataNode(key, value)
        return key

    def add(self, place: tuple[int, ...], function: Callable[..., Any], *arguments: Any) -> Any:
        """Add a task that counts as progress; its key. Arguments that are keys are results."""
        key = (self.name, *place)
        self.graph[key] = (function, *arguments)
        self.n_tasks += 1
        return key

    def after(self, purpose: str, function: Callable[..., Any], *arguments: Any) -> str:
        """Add a task that does not count; its key."""
        key = unique_name(purpose)
        self.graph[key] = (function, *arguments)
        return key

    def fold(self, nodes: Sequence[Any], merge: Callable[..., Any], *shared: Any) -> Any:
        """Add a tree of ``merge(*shared, one, other)`` above tasks; the key of its root.

        The order is that of `sadih_dask.learning.statistics.merge_in_order`.
        """
        while len(nodes) > 1:
            starts = range(0, len(nodes), MERGE_FAN_IN)
            nodes = [self.chain(nodes[k : k + MERGE_FAN_IN], merge, *shared) for k in starts]
        return nodes[0]

    def chain(self, parts: Sequence[Any], merge: Callable[..., Any], *shared: Any) -> Any:
        """Add one node of the tree: binary merges from the left; its key.

        So a partial result is merged and let go as soon as it is there.
        """
        held = parts[0]
        for part in parts[1:]:
            held = self.after("merge", merge, *shared, held, part)
        return held

    def run(self, key: Any) -> Any:
        """The result of a key."""
        return run(self.graph, key, self.name, self.local)

    def run_each(self, keys: Sequence[Any]) -> list[Any]:
        """The results of keys, each of which comes here as soon as it is there."""
        found: dict[int, Any] = {}
        self.deliver(keys, found.__setitem__)
        return [found[place] for place in range(len(keys))]

    def deliver(self, keys: Sequence[Any], take: Callable[[int, Any], None]) -> None:
        """Call ``take`` with the place and the result of every key, in the order that they come."""
        run_each_key(self.graph, keys, take, self.name, self.local)


class Database(Protocol):
    """What is divided into ranges of rows; a task gets it and reads its own range."""

    @property
    def local(self) -> bool:
        """Whether it is in this process and should not travel."""

    @property
    def n_rows(self) -> int:
        """How many rows there are."""

    @property
    def chunk_rows(self) -> int:
        """Rows that cost as much to read as one."""


class Question(Protocol, Generic[Asked, Result]):
    """What is asked of the pairs."""

    @property
    def bytes_per_query(self) -> int:
        """Size of a partial result."""

    def answer(self, database: Any, queries: Asked, start: int, stop: int) -> Result:
        """Partial result of some queries over rows ``[start, stop)``."""

    def merge(self, one: Result, other: Result) -> Result:
        """One partial result of two ranges, in any order."""


def reduce_pairs(
    question: Question[Any, Result],
    database: Database,
    n_queries: int,
    queries: Callable[[range], Any],
    first_row: int = 0,
) -> list[Result]:
    """Answers for consecutive blocks of queries, each merged over all rows from ``first_row`` on.

    ``queries(block)`` cuts out the queries of a block, as the question takes them.
    """
    tasks = Tasks("compare", database.local)
    most = max(1, PARTIAL_BYTES // question.bytes_per_query)
    threads = total_threads(database.local)
    n_rows = database.n_rows - first_row
    blocks, parts_of_rows = plan_grid(n_queries, n_rows, database.chunk_rows, most, threads)
    ranges = [range(first_row + part.start, first_row + part.stop) for part in parts_of_rows]
    asked, source = tasks.share(question, "question"), tasks.share(database, "database")
    step = len(ranges) if database.local else -(-len(blocks) * len(ranges) // MOST_DELIVERIES)
    tops: list[Any] = []
    block_of: list[int] = []
    for i, block in enumerate(blocks):
        some = tasks.share(queries(block), "queries")
        parts = [
            tasks.add((i, j), _answer, asked, source, some, rows.start, rows.stop)
            for j, rows in enumerate(ranges)
        ]
        for first in range(0, len(parts), step):
            tops.append(tasks.fold(parts[first : first + step], _merge, asked))
            block_of.append(i)
    found: dict[int, Result] = {}

    def take(place: int, result: Result) -> None:
        i = block_of[place]
        found[i] = question.merge(found[i], result) if i in found else result

    tasks.deliver(tops, take)
    return [found[i] for i in range(len(blocks))]


def plan_grid(
    n_queries: int, n_rows: int, chunk_rows: int, max_queries: int, threads: int
) -> tuple[tuple[range, ...], tuple[range, ...]]:
    """Divide queries so that partial results stay small, and rows at chunks of the store.

    >>> queries, rows = plan_grid(1000, 10**6, 2**16, 10**5, threads=2)
    >>> len(queries), len(rows), rows[1]
    (1, 4, range(262144, 524288))
    """
    query_step = max(1, min(n_queries, max_queries))
    query_blocks = -(-max(n_queries, 1) // query_step)
    parts = max(
        -(-TASKS_PER_THREAD * threads // query_blocks),
        -(-query_step * n_rows // PAIRS_PER_TASK),
    )
    row_step = max(-(-n_rows // parts), ROWS_PER_TASK)
    rows = _ranges(n_rows, -(-row_step // chunk_rows) * chunk_rows)
    if len(rows) * query_blocks < 2 * threads:  # few rows: divide the queries
        query_step = max(1, -(-n_queries * len(rows) // (2 * threads)))
    return _ranges(n_queries, query_step), rows


def _ranges(length: int, step: int) -> tuple[range, ...]:
    """Consecutive ranges; one empty range where there is nothing."""
    starts = range(0, max(length, 1), step)
    return tuple(range(start, min(start + step, length)) for start in starts)


def _answer(question: Question[Any, Result], *pairs: Any) -> Result:
    return question.answer(*pairs)


def _merge(question: Question[Any, Result], one: Result, other: Result) -> Result:
    return question.merge(one, other)


Shared = TypeVar("Shared")
Item = TypeVar("Item")


def run_each(
    function: Callable[[Shared, Item], Result],
    shared: Shared,
    items: Sequence[Item],
    purpose: str,
) -> list[Result]:
    """``function(shared, item)`` of every item, in the order of the items.

    Items and results travel; they should be small. Items are numbers, or objects of a class of
    their own: Dask would look for tasks in a tuple or a list.
    """
    tasks = Tasks(purpose)
    common = tasks.share(shared)
    keys = [tasks.add((k,), function, common, item) for k, item in enumerate(items)]
    return tasks.run_each(keys)


Writer = TypeVar("Writer", bound=StoreWriter)


def fill(
    writer: Writer,
    write: Callable[[Writer, Any, Any], Digests],
    job: Any,
    units: Sequence[range] | None = None,
) -> None:
    """Call ``write(writer, block, job)`` as a task for every block that is missing.

    Or for every unit, a range of such blocks, instead of a block. The tasks return the digests of
    what they wrote, which the committing process needs.
    """
    if not (items := writer.missing() if units is None else units):
        return
    tasks = Tasks("write")
    target, shared = tasks.share(writer, "writer"), tasks.share(job, "job")
    keys = [tasks.add((k,), write, target, item, shared) for k, item in enumerate(items)]
    tasks.deliver(keys, lambda _, digests: writer.learn(digests))
