"""Reductions over pairs of queries and database rows.

Every task compares a block of queries with a range of rows, block by block, and keeps a partial
result for its queries; partial results are merged in a tree. What is asked decides what they are:
the nearest rows, rows within a radius, histograms. All of these can be merged in any order, so the
result is the same for any chunking, any number of workers and any order of events.

One function over many small items, each a task; what they all read is sent once.

Filling an allocated store: one task for every block that is not written yet.

Tasks write; nothing passes through the driver. Blocks that an interrupted run has written have left
a receipt and are not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sadih_dask.compute.run import Progress, run, share, total_threads, unique_name
from sadih_dask.stores.store import StoreWriter

FAN_IN = 4
TASKS_PER_THREAD = 8
PAIRS_PER_TASK = 2**34
"""Pairs of one task at most: some ten seconds, which is what a lost worker costs."""
ROWS_PER_TASK = 2**18
"""Rows of one task at least: a search passes over most items only once it has found near ones."""
PARTIAL_BYTES = 16 * 2**20
"""Size of a partial result at most, unless that of one query is larger."""

Asked = TypeVar("Asked", contravariant=True)
Result = TypeVar("Result")


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

    def merge(self, parts: list[Result]) -> Result:
        """One partial result of several ranges."""


def reduce_pairs(
    question: Question[Any, Result],
    database: Database,
    n_queries: int,
    queries: Callable[[range], Any],
    progress: Progress | None = None,
) -> list[Result]:
    """Answers for consecutive blocks of queries, each merged over all rows.

    ``queries(block)`` cuts out the queries of a block, as the question takes them.
    """
    local = database.local
    most = max(1, PARTIAL_BYTES // question.bytes_per_query)
    threads = total_threads(local)
    grid = Grid.plan(n_queries, database.n_rows, database.chunk_rows, most, threads)
    name, asked, source = unique_name("compare"), unique_name("question"), unique_name("database")
    graph: dict[Any, Any] = {asked: share(question, local), source: share(database, local)}
    tops = []
    for i, block in enumerate(grid.queries):
        block_name = unique_name("queries")
        graph[block_name] = share(queries(block), local)
        for j, rows in enumerate(grid.rows):
            graph[name, i, j] = (_answer, asked, source, block_name, rows.start, rows.stop)
        tops.append(_fold(graph, [(name, i, j) for j in range(len(grid.rows))], asked))
    everything = f"{name}-all"
    graph[everything] = (list, tops)
    found: list[Result] = run(graph, everything, name, progress, local)
    return found


@dataclass(frozen=True)
class Grid:
    """How pairs of queries and rows are divided into tasks."""

    queries: tuple[range, ...]
    rows: tuple[range, ...]

    @classmethod
    def plan(
        cls, n_queries: int, n_rows: int, chunk_rows: int, max_queries: int, threads: int
    ) -> Grid:
        """Divide rows at chunks of the store, and queries so that partial results stay small.

        >>> grid = Grid.plan(1000, 10**6, 2**16, 10**5, threads=2)
        >>> len(grid.queries), len(grid.rows), grid.rows[1]
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
        return cls(_ranges(n_queries, query_step), rows)


def _ranges(length: int, step: int) -> tuple[range, ...]:
    """Consecutive ranges; one empty range where there is nothing."""
    starts = range(0, max(length, 1), step)
    return tuple(range(start, min(start + step, length)) for start in starts)


def _fold(graph: dict[Any, Any], nodes: list[Any], asked: str) -> Any:
    """Add a tree of merges and return its root."""
    while len(nodes) > 1:
        above = []
        for start in range(0, len(nodes), FAN_IN):
            key = unique_name("merge")
            graph[key] = (_merge, asked, nodes[start : start + FAN_IN])
            above.append(key)
        nodes = above
    return nodes[0]


def _answer(
    question: Question[Any, Result], database: Any, queries: Any, start: int, stop: int
) -> Result:
    return question.answer(database, queries, start, stop)


def _merge(question: Question[Any, Result], parts: list[Result]) -> Result:
    return question.merge(parts)


Shared = TypeVar("Shared")
Item = TypeVar("Item")


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


Writer = TypeVar("Writer", bound=StoreWriter)


def fill(
    writer: Writer,
    write_block: Callable[[Writer, int, Any], dict[int, dict[str, int]]],
    job: Any,
    progress: Progress | None = None,
) -> None:
    """Call ``write_block(writer, block, job)`` as a task for every block that is missing.

    The tasks return the digests of what they wrote, which the committing process needs.
    """
    missing = writer.missing()
    if not missing:
        return
    name, target, shared = unique_name("write"), unique_name("writer"), unique_name("job")
    graph: dict[Any, Any] = {target: writer, shared: share(job)}
    for block in missing:
        graph[name, block] = (write_block, target, block, shared)
    everything = f"{name}-all"
    graph[everything] = (_together, [(name, block) for block in missing])
    writer.learn(run(graph, everything, name, progress))


def _together(parts: list[dict[int, dict[str, int]]]) -> dict[int, dict[str, int]]:
    return {chunk: digests for part in parts for chunk, digests in part.items()}
