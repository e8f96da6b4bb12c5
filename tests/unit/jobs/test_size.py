"""What a case takes: closed forms beside naive ones, the package's own cuts, and the page."""

from __future__ import annotations

import heapq
import itertools
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import dask
import numpy as np
import pytest
from click.testing import CliRunner

from sadih_dask.cli import commands
from sadih_dask.compute.encode import HashRows, write_codes
from sadih_dask.compute.reduction import Reduction
from sadih_dask.compute.rows import StoreRows
from sadih_dask.compute.run import reporting
from sadih_dask.compute.scan import scan
from sadih_dask.errors import FormatError, InputError
from sadih_dask.ingest.synthetic import generate
from sadih_dask.jobs import rates as measured
from sadih_dask.jobs.rates import BLOCK_ROWS, Rates
from sadih_dask.jobs.size import PLACES, Case, Stage, _Work, busy_cores, size
from sadih_dask.learning.encoders import HashFunction
from tests.support.processes import ROOT

PAGE = ROOT / "deploy" / "SIZING.md"
RATES = Rates.load()


def stage(name: str, case: Case) -> Stage:
    return next(one for one in size(case, RATES).stages if one.name == name)


def busy_in_turn(threads: int, cores: int, computing: float, waiting: float, seed: int) -> float:
    """Cores at work on average, thread by thread: each waits, queues for a core, computes."""
    rng, n_turns = np.random.default_rng(seed), 20_000
    count = itertools.count()
    events = [(rng.exponential(waiting), next(count), "asks") for _ in range(threads)]
    heapq.heapify(events)
    free, queue, now, worked = cores, 0, 0.0, 0.0
    for _ in range(n_turns):
        now, _, what = heapq.heappop(events)
        queue += what == "asks"
        if what == "ends":
            free += 1
            heapq.heappush(events, (now + rng.exponential(waiting), next(count), "asks"))
        while free and queue:
            free, queue = free - 1, queue - 1
            took = rng.exponential(computing)
            worked += took
            heapq.heappush(events, (now + took, next(count), "ends"))
    return worked / now


@pytest.mark.parametrize(("threads", "cores"), [(1, 1), (2, 2), (8, 2), (3, 4)])
@pytest.mark.parametrize("waiting", [0.3, 1.0, 4.0])
def test_threads_that_wait_and_compute_in_turn(threads: int, cores: int, waiting: float) -> None:
    found = busy_cores(threads, cores, 1.0, waiting)
    assert found == pytest.approx(busy_in_turn(threads, cores, 1.0, waiting, 0), rel=0.05)
    assert found <= min(threads, cores)


def test_one_thread_takes_the_sum_of_the_work() -> None:
    case = Case(10**7, 512, threads=1, cores=1, bandwidth=1e15)
    found, at = stage("encode", case), (512, 1000, 64)
    row = RATES.of_row("encode", *at)
    expected = 10**7 * row + found.tasks * RATES.tasks["worker"]
    assert found.seconds == pytest.approx(expected, rel=0.01)
    assert (found.limit, found.core_hours) == ("processors", found.seconds / 3600)


def test_twice_the_workers_halve_the_time_and_cost_the_same() -> None:
    few, many = (stage("fit", Case(10**9, 512, workers=n, store="s3")) for n in (8, 16))
    assert few.seconds / many.seconds == pytest.approx(2, rel=0.1)
    assert few.core_hours == pytest.approx(many.core_hours, rel=0.1)


def test_what_holds_a_case_up() -> None:
    assert stage("fit", Case(10**8, 512, anchors=0, workers=64, store="s3")).limit == "processors"
    slow = Case(10**8, 512, anchors=0, workers=64, store="s3", bandwidth=1e9)
    assert stage("fit", slow).limit == "store"
    assert stage("fit", slow).seconds >= 10**8 * 2056 * RATES.reading["compressed"] / 1e9
    few = Case(10**8, 512, anchors=0, workers=16, threads=2, store="s3", chunk_rows=2**16)
    assert stage("encode", few).limit == "connections"  # a chunk a task: nothing to read ahead
    huge = Case(10**9, 16, anchors=0, workers=2000, chunk_rows=2**18, store="s3", bandwidth=1e15)
    assert stage("fit", huge).limit == "scheduler"


def seconds_of_every_task(case: Case, n_tasks: int, n_chunks: int, computing: float) -> float:
    """Naive: threads take tasks; a chunk is asked for when the one so many before it was taken."""
    place, size_of_one = PLACES["s3"], case.chunk_rows * case.row_bytes
    fetch = place.latency + size_of_one / place.connection
    free = [0.0] * case.all_threads
    for _ in range(n_tasks):
        begun = done = heapq.heappop(free)
        taken: list[float] = []
        for chunk in range(n_chunks):
            asked = begun if chunk < case.fetched else taken[chunk - case.fetched]
            taken.append(max(asked + fetch, done))
            done = taken[-1] + computing
        heapq.heappush(free, done)
    return max(free)


@pytest.mark.parametrize("computing", [0.02, 0.06, 0.3])
@pytest.mark.parametrize(("n_tasks", "workers"), [(150, 1), (1500, 16), (1500, 100), (15_000, 400)])
def test_tasks_that_fetch_ahead_wait_for_their_first_chunk_or_their_connections(
    n_tasks: int, workers: int, computing: float
) -> None:
    n_chunks = 8
    case = Case(8192 * n_chunks * n_tasks, 512, workers=workers, store="s3", bandwidth=1e15)
    free = replace(
        RATES, tasks={"worker": 0.0, "scheduler": 0.0}, objects={"request": 0, "byte": 0}
    )
    work = _Work(
        case,
        free,
        "fit",
        row_seconds=computing / case.chunk_rows,
        row_bytes=case.row_bytes,
        tasks=n_tasks,
        requests=n_chunks * n_tasks,
        connections=case.fetched,
        waits=n_tasks,
        wait_bytes=n_tasks * case.chunk_rows * case.row_bytes,
        last_rows=case.n_rows / n_tasks,
        compressed=False,
    )
    found = work.stage()
    if found.limit not in ("network", "requests"):  # of which the naive one knows nothing
        naive = seconds_of_every_task(case, n_tasks, n_chunks, computing)
        assert 0.75 < found.seconds / naive < 1.1


def test_evaluation_grows_as_the_rows_and_no_faster() -> None:
    alone = RATES.of_judging("seconds", 64, 0)
    one, ten = (stage("evaluate", Case(n, 64, anchors=0)).seconds - alone for n in (10**8, 10**9))
    assert ten / one == pytest.approx(10, rel=0.1)


# --- the package's own cuts --------------------------------------------------------------------


def test_tasks_are_those_of_a_real_scan_and_a_real_encoding(tmp_path: Path) -> None:
    n_rows = 40 * BLOCK_ROWS + 5
    store = generate(tmp_path / "s", n_rows, 4, 3, chunk_rows=BLOCK_ROWS)
    case = Case(n_rows, 4, anchors=0, n_bits=8, chunk_rows=store.chunk_rows, threads=2)
    heard: set[int] = set()
    encoder = HashRows(HashFunction(None, np.eye(4, 8), np.zeros(8)))
    with dask.config.set(scheduler="threads", num_workers=2):
        with reporting(lambda _, n: heard.add(n)):
            scan(StoreRows.of(store), Reduction(BLOCK_ROWS, 3, None))
        (leaves,) = heard
        form = {"n_bits": 8, "model": "m", "block_rows": BLOCK_ROWS}
        codes, _ = write_codes(store, encoder, tmp_path / "c", **form)  # type: ignore[arg-type]
    parts = size(case, RATES).storage["checkpoint"] // case.shape.statistics
    assert stage("fit", case).tasks == leaves + (leaves - 1) + parts
    assert stage("encode", case).tasks == -(-n_rows // codes.chunk_rows)


@pytest.mark.parametrize("n_features", [16, 512, 768, 1024, 4096])
def test_chunks_are_those_that_a_store_has(n_features: int, tmp_path: Path) -> None:
    store = generate(tmp_path / "s", 3, n_features, 2)
    assert Case(10**6, n_features).chunk_rows == store.new_chunk_rows


def test_threads_that_would_fit_are_told() -> None:
    tight = Case(10**8, 512, threads=16, memory=2 << 30)
    found = size(tight, RATES)
    assert found.memory["worker"] == tight.plan(16).total > 2 << 30
    assert found.fitting_threads is not None
    assert tight.plan(found.fitting_threads).total <= 2 << 30
    assert tight.plan(found.fitting_threads + 1).total > 2 << 30
    words = ["size", "--rows", "1e8", "--features", "512", "--threads", "16", "--memory", "2GiB"]
    said = CliRunner().invoke(commands, words)
    assert said.exit_code == 2
    assert f"--threads {found.fitting_threads} would fit" in said.output


def test_what_no_case_can_be() -> None:
    with pytest.raises(InputError, match="workers is 0"):
        Case(10, 10, workers=0)
    said = CliRunner().invoke(commands, ["size", "--rows", "1e5"])
    assert said.exit_code == 2
    assert "Missing option '--features'" in said.output
    said = CliRunner().invoke(commands, ["size", "--rows", "1.5", "--features", "8"])
    assert said.exit_code == 2
    assert "such as 2e8" in said.output


# --- rates -------------------------------------------------------------------------------------


def test_what_lies_between_the_measured_rates_is_close_to_them() -> None:
    for one in RATES.rows:
        for step in ("scan", "encode"):
            assert 0.6 < RATES.by_formula(step, one) / one[step] < 1.4, (one, step)
    # Twice the anchors are at least twice the work, and at most four times.
    more = [RATES.of_row("scan", 768, anchors, 64) for anchors in (1000, 2000)]
    assert 2 < more[1] / more[0] < 4


def test_rates_can_be_measured_here_and_read_from_a_file(tmp_path: Path) -> None:
    own = RATES.measured_here(8, 0, 16)
    assert 0 < own.of_row("encode", 8, 0, 16) < 1e-3
    assert own.of_row("scan", 8, 0, 16) == own.rows[0]["scan"]
    file = tmp_path / "rates.json"
    file.write_text(json.dumps(vars(own)))
    assert vars(Rates.load(file)) == vars(own)
    file.write_text("{}")
    with pytest.raises(FormatError, match=r"no file of rates .*bench_sizing"):
        Rates.load(file)


def test_a_fit_of_terms_finds_the_factors() -> None:
    factors = np.array([2.0, 0.0, 3e-6])
    terms = np.random.default_rng(0).uniform(1, 9, (12, 3)) * [1, 10, 1e6]
    found = measured._fitted([(list(row), float(row @ factors)) for row in terms])
    np.testing.assert_allclose(found, factors, atol=1e-12)


# --- the page ----------------------------------------------------------------------------------


def cases_of_the_page() -> list[tuple[str, str]]:
    """Commands of the page, each with what follows it there."""
    return re.findall(r"^    (sadih size --rows .+)\n\n((?:    .*\n|\n)+)", PAGE.read_text(), re.M)


def test_the_tables_of_the_page_are_what_the_command_prints() -> None:
    found = cases_of_the_page()
    assert len(found) >= 3
    for command, shown in found:
        said = CliRunner().invoke(commands, shlex.split(command)[1:], catch_exceptions=False)
        printed = [line for line in said.output.splitlines() if line.startswith("|")]
        assert [line.strip() for line in shown.splitlines() if "|" in line] == printed, command


def test_json_has_the_numbers_of_the_tables() -> None:
    words = ["size", "--rows", "2e8", "--features", "768", "--workers", "16", "--store", "s3"]
    said = json.loads(CliRunner().invoke(commands, [*words, "--json"]).output)
    found = size(Case(2 * 10**8, 768, workers=16, store="s3"), RATES)
    assert [one["seconds"] for one in said["stages"]] == [one.seconds for one in found.stages]
    assert {name: one["bytes"] for name, one in said["memory"].items()} == found.memory
    assert said["memory"]["worker"]["kind"] == "predicted"
    assert said["case"]["chunk_rows"] == 4096
