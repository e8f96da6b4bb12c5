"""The simulation behind deploy/SIZING.md: rows are conserved, and closed forms come out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import dask
import pytest

from sadih_dask.compute.reduction import Reduction
from sadih_dask.compute.rows import StoreRows
from sadih_dask.compute.run import reporting
from sadih_dask.compute.scan import scan
from sadih_dask.ingest.synthetic import generate
from tests.benchmarks.sizing_cluster import Cluster, Store, Work
from tests.benchmarks.sizing_events import Clock, Queue, Shared
from tests.benchmarks.sizing_graph import BLOCK_ROWS, Task, encode_tasks, scan_tasks
from tests.benchmarks.sizing_model import Job, memory_of, most_groups, work_of
from tests.benchmarks.sizing_simulation import simulate

ROWS = 3_000_000
COMPUTING = Work(row_seconds=1e-6, row_bytes=2000.0, row_requests=2 / BLOCK_ROWS)


# --- graphs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 8, 500])
def test_every_row_is_in_one_leaf_and_every_result_is_taken_once(threads: int) -> None:
    tasks = scan_tasks(ROWS + 1, threads)
    assert sum(task.rows for task in tasks) == ROWS + 1
    taken = [child for task in tasks for child in task.after]
    assert sorted(taken) == list(range(len(tasks) - 1))
    assert all(child < k for k, task in enumerate(tasks) for child in task.after)


def test_the_graph_has_the_leaves_of_a_real_scan(tmp_path: Path) -> None:
    n_rows, heard = 40 * BLOCK_ROWS + 5, set()
    store = generate(tmp_path / "s", n_rows, 4, 3, chunk_rows=BLOCK_ROWS)
    threads = dask.config.set(scheduler="threads", num_workers=2)
    with threads, reporting(lambda _, n: heard.add(n)):
        scan(StoreRows.of(store), Reduction(BLOCK_ROWS, 3, None))
    # 512 features have chunks of as many rows as these.
    leaves = [task for task in scan_tasks(n_rows, 2, 512) if task.kind == "leaf"]
    assert heard == {len(leaves)}


def test_parts_of_a_checkpoint_are_tasks_between_the_tree_and_its_top() -> None:
    tasks = scan_tasks(ROWS, 2, checkpoint_width=512)
    kept = [task for task in tasks if task.kind == "keep"]
    assert len(kept) == math.ceil(ROWS / (8 * BLOCK_ROWS))
    assert not any(task.kind == "keep" for task in scan_tasks(ROWS, 2))


def test_an_encoding_is_flat() -> None:
    *leaves, top = encode_tasks(ROWS)
    assert sum(task.rows for task in leaves) == ROWS
    assert not any(task.after for task in leaves)
    assert len(top.after) == len(leaves)


# --- what is shared ----------------------------------------------------------------------------


def test_jobs_share_a_capacity_equally_and_none_takes_more_than_its_part() -> None:
    ends: dict[str, float] = {}
    clock = Clock()
    shared = Shared(clock, capacity=3.0, each=2.0)
    shared.start(4.0, lambda: ends.update(first=clock.now))
    clock.after(1.0, lambda: shared.start(3.0, lambda: ends.update(second=clock.now)))
    clock.run(lambda: len(ends) == 2)
    # One second alone at 2, then both at 1.5; what the second has left goes at 2 again.
    assert ends["first"] == pytest.approx(1 + 2 / 1.5)
    assert ends["second"] == pytest.approx(ends["first"] + (3 - 2) / 2)


def test_a_queue_serves_one_after_the_other() -> None:
    clock, ends = Clock(), []
    queue = Queue(clock, 0.25)
    for _ in range(8):
        queue.serve(lambda: ends.append(clock.now))
    clock.run(lambda: len(ends) == 8)
    assert ends == pytest.approx([0.25 * k for k in range(1, 9)])
    assert (queue.busy, queue.peak()) == (2.0, 4.0)


# --- closed forms ------------------------------------------------------------------------------


def test_one_thread_takes_the_sum_of_the_work() -> None:
    tasks = scan_tasks(ROWS, 1)
    work = Work(1e-6, 2000.0, merge_seconds=0.01, task_seconds=0.001)
    found = simulate(tasks, Cluster(1), work)
    n_merges = sum(task.kind == "merge" for task in tasks)
    assert found.seconds == pytest.approx(ROWS * 1e-6 + 0.01 * n_merges + 0.001 * len(tasks))
    assert found.rows_read == ROWS
    assert found.processors_busy == pytest.approx(1.0)
    assert found.network_bytes == 0
    assert found.bottleneck == "processors"


def test_a_store_with_a_bandwidth_takes_the_bytes_over_it() -> None:
    store = Store(connection=1e9, total=5e8)
    found = simulate(scan_tasks(ROWS, 32), Cluster(16, 2, 2, store), COMPUTING)
    assert found.seconds == pytest.approx(ROWS * 2000 / 5e8, rel=0.05)
    assert found.seconds >= ROWS * 2000 / 5e8
    assert found.bottleneck == "store"


def test_a_store_with_a_limit_of_requests_takes_the_requests_over_it() -> None:
    store = Store(connection=1e9, total=1e12, requests=50.0)
    found = simulate(scan_tasks(ROWS, 32), Cluster(16, 2, 2, store), COMPUTING)
    assert found.seconds == pytest.approx(found.requests / 50.0, rel=0.05)
    assert found.requests == pytest.approx(ROWS * 2 / BLOCK_ROWS)


def test_threads_wait_for_their_requests_one_by_one() -> None:
    leaves = [Task("leaf", BLOCK_ROWS, (), k) for k in range(64)]
    tasks = [*leaves, Task("top", 0, tuple(range(64)), 64)]
    work = Work(0.0, 0.0, row_requests=2 / BLOCK_ROWS)
    found = simulate(tasks, Cluster(4, 4, 1, Store(latency=0.5)), work)
    assert found.seconds == pytest.approx(64 / 16 * 2 * 0.5)
    assert found.bottleneck == "connections"


def test_a_scheduler_that_is_slower_than_the_work_takes_its_time_for_every_task() -> None:
    tasks = scan_tasks(ROWS, 64)
    found = simulate(tasks, Cluster(64, scheduler=0.1), COMPUTING)
    assert found.seconds == pytest.approx(0.1 * len(tasks), rel=0.05)
    assert found.scheduler_peak == pytest.approx(10, abs=1)
    assert found.bottleneck == "scheduler"


def test_more_threads_than_cores_share_them() -> None:
    tasks = scan_tasks(ROWS, 8)
    few = simulate(tasks, Cluster(2, threads=4, cores=1), COMPUTING)
    assert few.seconds == pytest.approx(ROWS * 1e-6 / 2, rel=0.05)


# --- what must hold anywhere -------------------------------------------------------------------


def test_more_workers_are_never_slower_with_an_ideal_store() -> None:
    runs = [simulate(scan_tasks(ROWS, n), Cluster(n), COMPUTING) for n in (1, 2, 4, 8, 16, 32)]
    seconds = [run.seconds for run in runs]
    assert seconds == sorted(seconds, reverse=True)
    assert all(run.rows_read == ROWS for run in runs)
    assert seconds[3] == pytest.approx(seconds[0] / 8, rel=0.1)


def test_partial_results_travel_at_most_once_a_merge_and_few_are_held() -> None:
    tasks = scan_tasks(10 * ROWS, 64)
    work = Work(1e-6, 2000.0, merge_seconds=0.001, result_bytes=1.0)
    found = simulate(tasks, Cluster(32, 2, 2, network=1e9), work)
    n_merges = sum(task.kind == "merge" for task in tasks)
    assert 0 < found.network_bytes <= n_merges
    assert found.held <= memory_of(Job(10 * ROWS), 2).held


def test_a_worker_that_dies_costs_what_it_held_and_no_row_is_lost() -> None:
    tasks = scan_tasks(10 * ROWS, 16)
    calm = simulate(tasks, Cluster(8, 2, 2), COMPUTING)
    dying = Cluster(8, 2, 2, deaths_per_hour=600, restart=0.5)
    runs = [simulate(tasks, Cluster(**{**vars(dying), "seed": seed}), COMPUTING) for seed in (0, 1)]
    assert runs[0] == simulate(tasks, dying, COMPUTING)  # a seed decides everything
    for run in runs:
        assert run.deaths > 0
        assert run.rows_read > calm.rows_read == 10 * ROWS
        assert run.seconds > calm.seconds


def test_when_the_only_worker_dies_all_that_was_done_is_done_again() -> None:
    tasks = scan_tasks(ROWS, 1)
    # Deaths come on average after 2.4 s; the run takes 3 s.
    for seed in range(20):
        found = simulate(tasks, Cluster(1, deaths_per_hour=1500, restart=1.0, seed=seed), COMPUTING)
        if found.deaths == 1:
            break
    again = (found.rows_read - ROWS) * 1e-6
    lost = found.seconds - 1.0 - ROWS * 1e-6  # when it died
    assert 0 <= lost - again < 8 * BLOCK_ROWS * 1e-6  # but for the leaf that it was at


# --- the model ---------------------------------------------------------------------------------


RATES: dict[str, Any] = {
    "rows": [{"d": 512, "anchors": 0, "scan": 4e-6, "encode": 3e-6}],
    "reading": {"plain": 2e-10, "zstd": 1e-9, "compressed": 0.9},
    "objects": {"object": 0.002, "byte": 1e-9},
    "merges": [{"width": 512, "seconds": 0.001, "bytes": 2_500_000}],
    "scheduling": {"scheduler": 0.001, "worker": 0.002},
}


def test_rows_behind_a_network_are_smaller_and_cost_more_of_a_processor() -> None:
    near, far = (work_of(RATES, Job(10**6), remote=remote) for remote in (False, True))
    assert near.row_seconds == 4e-6
    assert far.row_bytes == pytest.approx(0.9 * near.row_bytes)
    expected = 4e-6 + 2056 * 8e-10 + 2 / 8192 * 0.002 + 0.9 * 2056 * 1e-9
    assert far.row_seconds == pytest.approx(expected)


def test_the_largest_number_of_label_groups_is_where_memory_ends() -> None:
    job, memory = Job(10**9), 6 << 30
    found = most_groups(job, 2, memory)
    assert memory_of(job, 2, found).total <= memory < memory_of(job, 2, found + 1).total
