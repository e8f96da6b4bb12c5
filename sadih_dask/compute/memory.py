"""The memory plan: what a fit will need in one process, before it starts.

The scan holds, for every thread, one block of rows and what is computed from it, and for every
level of the reduction tree a few partial statistics. Before it the anchors are drawn from a sample.
A cross-validation keeps partial statistics of every fold beside those of all rows, and solves from
them afterwards. None of it depends on the number of rows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import dask
import numpy as np
import psutil
from dask.utils import format_bytes, parse_bytes
from distributed.system import MEMORY_LIMIT

from sadih_dask.compute.remote import identity_of
from sadih_dask.compute.rows import LazyRows, Rows, StoreRows
from sadih_dask.compute.run import current_client, default_workers
from sadih_dask.errors import Argument, LabelError, MemoryPlanError, Remedy
from sadih_dask.learning.classes import Targets
from sadih_dask.learning.held_out import SCORES
from sadih_dask.learning.labels import group_rows
from sadih_dask.learning.problem import MAX_GROUPS
from sadih_dask.learning.sample import KEPT_ROWS, USED_ROWS
from sadih_dask.learning.statistics import MERGE_FAN_IN, compute_dtype
from sadih_dask.retrieval.histograms import BLOCK_PAIRS
from sadih_dask.retrieval.trial import FRESH_QUERIES
from sadih_dask.types import Ints

logger = logging.getLogger(__name__)

CONFIG_KEY = "sadih.memory-limit"
"""Dask configuration (or DASK_SADIH__MEMORY_LIMIT) for the memory a process may use."""

INTERPRETER = 238 * 2**20
"""Python with NumPy, SciPy, Dask and scikit-learn loaded."""
SMALLEST_BLOCK = 256
ROOM = 0.5
"""Part of the memory that a scan leaves free for chunks that have been computed already."""
SOLVE_COPIES = 11
"""Matrices of the size of the statistics that a solve holds at most."""
PAIR_COPIES, RANKING_COPIES = 6, 12
"""Arrays of pairs of codes, and arrays of queries by distance, that a metric holds at most."""
OPEN_COPIES = 8
"""Arrays of real-valued codes of the rows that are left out."""


@dataclass(frozen=True)
class ScanShape:
    """What decides the memory of a scan.

    n_rows, n_features, dtype   of the features
    n_anchors   columns after the anchor map, or None without one
    n_groups    label groups, an estimate from above
    chunk_rows  rows that are read together
    n_sampled   rows that anchors are drawn from
    n_folds     folds whose statistics are kept apart; 0 without a cross-validation
    n_queries   rows of each fold that are kept as they are
    n_bits      the longest codes that are solved for in the folds
    sample_rows rows that are kept beside statistics
    fetched     chunks as they are stored that a thread has, behind a network; else 0
    """

    n_rows: int
    n_features: int
    dtype: np.dtype[Any]
    n_anchors: int | None
    n_groups: int
    chunk_rows: int
    n_sampled: int
    n_folds: int = 0
    n_queries: int = 0
    n_bits: int = 0
    sample_rows: int = KEPT_ROWS
    fetched: int = 0

    @property
    def width(self) -> int:
        """Columns of the statistics."""
        return self.n_features if self.n_anchors is None else self.n_anchors

    @property
    def statistics(self) -> int:
        """Bytes of the statistics of some rows, all label groups and a full sample among them."""
        sampled = min(self.sample_rows, self.n_rows) * (
            self.width * compute_dtype(self.dtype).itemsize + 16
        )
        return (self.width + self.n_groups) * self.width * 8 + sampled

    @property
    def queries(self) -> int:
        """Bytes of the rows that are kept as they are."""
        kept = min(self.n_folds * self.n_queries, self.n_rows)
        return kept * (self.n_features * self.dtype.itemsize + 64)


@dataclass(frozen=True)
class MemoryPlan:
    """Predicted peak memory of one process, in bytes.

    block, products  of a thread: rows and what is made of them, matrices made of these
    partial, held    a partial result of the scan, and how many there are at a time
    sample           before the scan, to draw anchors
    solving          after the scan, to solve for the folds of a cross-validation; else 0
    queries          rows of the folds that the scan keeps as they are; else 0
    fetched          chunks as they are stored, of the bytes of a block
    """

    block_rows: int
    threads: int
    block: int
    products: int
    partial: int
    held: int
    sample: int
    solving: int = 0
    queries: int = 0
    fetched: int = 0

    @property
    def scan(self) -> int:
        """Bytes of the scan, beside Python."""
        blocks = self.threads * (self.block + self.products)
        return blocks + self.held * self.partial + self.queries

    @property
    def total(self) -> int:
        """Upper bound of the process's peak."""
        return INTERPRETER + max(self.scan, self.sample, self.solving)

    def __str__(self) -> str:
        fetched = f" and {self.fetched} chunks that are fetched" if self.fetched else ""
        after = f", or after it {format_bytes(self.solving)} to solve for the folds"
        return (
            f"predicted peak {format_bytes(self.total)} a process: {self.threads} threads x "
            f"({format_bytes(self.block)} for a block of {self.block_rows} rows{fetched} + "
            f"{format_bytes(self.products)} for its products) + {self.held} partial statistics of "
            f"{format_bytes(self.partial)}, or before that {format_bytes(self.sample)} to draw "
            f"anchors{after if self.solving else ''}, + {format_bytes(INTERPRETER)} for Python"
        )


def plan_scan(shape: ScanShape, block_rows: int, threads: int) -> MemoryPlan:
    """Predict the peak of a scan."""
    rows = min(block_rows, shape.n_rows)
    work = compute_dtype(shape.dtype).itemsize
    width = shape.width
    # The rows as read; a chunk more where blocks and chunks do not share their ends.
    chunk = min(shape.chunk_rows, shape.n_rows)
    block = (rows + (1 + shape.fetched) * chunk) * shape.n_features * shape.dtype.itemsize
    block += rows * 64  # labels, group ids and the membership matrix
    if shape.n_anchors is not None:  # standardised rows, then their distances to the anchors
        block += rows * shape.n_features * work + rows * width * work
    block += rows * width * work  # centred
    # A block sees no more groups than it has rows; a partial result may hold all of them.
    groups = min(shape.n_groups, rows)
    products = width * width * (work + 2 * 8) + groups * width * (work + 3 * 8)
    if shape.n_folds:  # a copy of a fold's rows; results of all folds until the block's is there
        block += -(-rows // shape.n_folds) * width * (shape.dtype.itemsize + work)
        products += shape.n_folds * (width + groups) * width * 8
    partial = (1 + shape.n_folds) * shape.statistics
    levels = 1
    while MERGE_FAN_IN**levels * block_rows < shape.n_rows:
        levels += 1
    # A merge holds two operands, their sum and one product, in every thread.
    held = 3 * threads + 2 * levels
    sample = 0
    if shape.n_anchors is not None:  # rows as read and in float64, and distances to the anchors
        sample = shape.n_features * (shape.dtype.itemsize + 3 * 8) + 2 * 8 * shape.n_anchors
        sample *= shape.n_sampled
    solving = partial + shape.queries + threads * solve_bytes(shape) if shape.n_folds else 0
    # Every query is in one partial result; a merge has it twice.
    queries = 2 * shape.queries
    before_and_after = sample, solving, queries
    return MemoryPlan(
        block_rows, threads, block, products, partial, held, *before_and_after, shape.fetched
    )


def solve_bytes(shape: ScanShape) -> int:
    """Bytes of one solve in a cross-validation, and of the rows that judge it."""
    queries = min(shape.n_queries, shape.n_rows)
    groups = min(shape.n_groups, MAX_GROUPS)  # with more no matrix is made of all pairs
    left_out = min(USED_ROWS, shape.n_rows)
    judged = max(left_out, queries)
    scores = min(left_out * shape.n_groups, SCORES)
    numbers = (
        queries * shape.width  # mapped to anchors
        + 2 * left_out * shape.width  # rows that are left out, standardised
        + 6 * scores
        + 8 * groups * groups  # their scores, and matrices of the groups
        + OPEN_COPIES * left_out * shape.n_bits  # their codes
        + PAIR_COPIES * min(max(judged * groups, FRESH_QUERIES * left_out, queries**2), BLOCK_PAIRS)
        + RANKING_COPIES * judged * (shape.n_bits + 1)
    )
    return SOLVE_COPIES * shape.statistics + 8 * numbers


def check_scan(
    rows: Rows,
    block_rows: int,
    n_anchors: int | None,
    sample: Ints,
    known_groups: int = 0,
    *,
    draw: bool = False,
    **others: int,
) -> MemoryPlan:
    """Plan a scan on the current scheduler and log the plan; refuse it if it cannot fit.

    Of the rows it reads the labels of the sample. ``known_groups`` is how many label groups there
    are in statistics that the result is going to be merged with. ``others`` are numbers of a
    `ScanShape`: sample_rows; and n_folds, n_queries and n_bits of a cross-validation.

    Lazy rows compute all that is wanted of the sample at once: its features, too, if anchors are
    going to be drawn (``draw``). Half of the memory that the scan leaves free is for the chunks
    that are computed for it.
    """
    n_features, dtype = rows.shape_of_features
    read = rows.chunk_rows, len(sample)
    groups = max(known_groups, 1)
    if isinstance(rows, StoreRows):
        others["fetched"] = rows.fetched()
    shape = ScanShape(rows.n_rows, n_features, dtype, n_anchors, groups, *read, **others)
    there = _resources(rows.local)
    if isinstance(rows, LazyRows):
        free = there.allowed - _fit_plan(shape, block_rows, there).total
        room = int(ROOM * there.n_processes * free)
        logger.info("chunks of the sample are kept for the scan, up to %s", format_bytes(room))
        rows.chunks.read_sample(sample, features=draw, room=room)
    shape = replace(shape, n_groups=max(groups, _estimate_groups(rows, sample)))
    plan = _fit_plan(shape, block_rows, there)
    logger.info("%s, %s allowed: %s", plan, format_bytes(there.allowed), there.reason)
    return plan


def check_tasks(purpose: str, task_bytes: int, n_tasks: int) -> int:
    """Predict the peak of a process whose threads run such tasks, and log it; refuse what is more.

    Returns the peak in bytes.
    """
    there = _resources(local=False)
    threads = min(there.threads, n_tasks)
    total = INTERPRETER + threads * task_bytes
    plan = (
        f"predicted peak {format_bytes(total)} a process: {threads} threads x "
        f"{format_bytes(task_bytes)} + {format_bytes(INTERPRETER)} for Python"
    )
    if total > there.allowed:
        raise MemoryPlanError(
            f"{purpose} was not started: {plan}, but {format_bytes(there.allowed)} are allowed: "
            f"{there.reason}",
            remedy=Remedy(
                f"Take fewer threads or a smaller {{}}, or {there.way_out}", Argument("chunk_rows")
            ),
        )
    logger.info("%s: %s, %s allowed: %s", purpose, plan, format_bytes(there.allowed), there.reason)
    return total


class _Resources(NamedTuple):
    """What a process that runs tasks has, and how many there are.

    reason, way_out   where the limit comes from, and how there would be more
    """

    threads: int
    allowed: int
    n_processes: int
    reason: str
    way_out: str


def _fit_plan(shape: ScanShape, block_rows: int, there: _Resources) -> MemoryPlan:
    plan = plan_scan(shape, block_rows, there.threads)
    while plan.total > there.allowed and shape.fetched > 1:  # fetch fewer chunks ahead
        shape = replace(shape, fetched=shape.fetched - 1)
        plan = plan_scan(shape, block_rows, there.threads)
    if plan.total <= there.allowed:
        return plan
    smaller = block_rows
    while smaller > SMALLEST_BLOCK:
        smaller //= 2
        if plan_scan(shape, smaller, there.threads).total <= there.allowed:
            remedy = Remedy(f"{{}} would fit. Or {there.way_out}", Argument("block_rows", smaller))
            break
    else:
        columns = "features" if shape.n_anchors is None else "anchors"
        remedy = Remedy(
            f"No block size fits, because statistics of {shape.width} {columns} and "
            f"{shape.n_groups} label groups take {format_bytes(plan.partial)} each and the sample "
            f"{format_bytes(plan.sample)}; use fewer {columns}, fewer threads"
            f"{', fewer folds or queries' if shape.n_folds else ''} or more memory: {there.way_out}"
        )
    raise MemoryPlanError(
        f"the scan was not started: {plan}, but {format_bytes(there.allowed)} are allowed: "
        f"{there.reason}",
        remedy=remedy,
    )


def _resources(local: bool) -> _Resources:
    """Find out what there is where tasks run now."""
    configured = dask.config.get(CONFIG_KEY, None)
    client = None if local else current_client()
    if client is None:
        threads, n_processes = default_workers(), 1
        free = psutil.virtual_memory().available + psutil.Process().memory_info().rss
        allowed = min(MEMORY_LIMIT, free)
        reason = "the memory of this machine, or what its limits leave of it"
        if free < MEMORY_LIMIT:
            reason = f"what is free of the {format_bytes(MEMORY_LIMIT)} of this machine now"
        way_out = "end other programs, or run where there is more memory"
    else:
        workers = identity_of(client)["workers"]
        n_processes = max(1, len(workers))
        threads = max((worker["nthreads"] for worker in workers.values()), default=1)
        limits = [
            (worker["memory_limit"], address)
            for address, worker in workers.items()
            if worker["memory_limit"]
        ]
        allowed, smallest = min(limits, default=(MEMORY_LIMIT, ""))
        reason = f"the memory limit of the worker {smallest}"
        if not limits:
            reason = "the memory of this machine, as no worker has a limit"
        way_out = "start workers with a higher memory limit"
    if configured:
        allowed = parse_bytes(configured)
        reason = f"memory_limit, or {CONFIG_KEY} in Dask's configuration, says so"
        way_out = "raise that limit"
    return _Resources(threads, int(allowed), n_processes, reason, way_out)


def _estimate_groups(rows: Rows, sample: Ints) -> int:
    """Estimate from above how many label groups there are.

    Distinct sets grow like a power of the number of rows; the exponent follows from the growth
    between half the sample and all of it.
    """
    try:
        _, ids = group_rows(Targets.of(rows.take("labels", sample)).labels)
    except LabelError:  # the scan finds the same row, and knows its number
        return 1
    whole = len(np.unique(ids))
    half = len(np.unique(ids[::2]))
    if len(sample) >= rows.n_rows:
        return whole
    exponent = min(1.0, np.log2(whole / half))
    return int(min(rows.n_rows, np.ceil(whole * (rows.n_rows / len(sample)) ** exponent)))
