"""A fit that is killed, again and again, and goes on: real processes, and their reads counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from sadih_dask import FeatureStore
from tests.support.datasets import rows
from tests.support.processes import PATIENCE, ROOT, Here, local_cluster, wait_until

BLOCK = CHUNK = 64
NODE = 8 * BLOCK
N = 24 * NODE
WORDS = ["--bits", 16, "--n-init", 1, "--max-iter", 1, "--block-rows", BLOCK, "--anchors", "none"]

COUNTING = """
import os, time
from sadih_dask.stores import reader

def count_reads(log, pause):
    real = reader.read_chunk

    def read_chunk(snapshot, segment, layout, chunk, *rest):
        if layout.name == "features":
            time.sleep(pause)
            with open(log, "a") as file:
                file.write(f"{chunk}\\n")
        real(snapshot, segment, layout, chunk, *rest)

    reader.read_chunk = read_chunk
"""
FIT = f"""{COUNTING}
import sys
from sadih_dask.cli import main

count_reads(sys.argv[1], 0.02)
sys.argv = ["sadih", *sys.argv[2:]]
main()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return FeatureStore.create(tmp_path_factory.mktemp("s"), *rows(N, 5), chunk_rows=CHUNK)


def begin(log: Path, *words: object) -> subprocess.Popen[str]:
    """`sadih fit` in a process that notes every chunk of features that it reads, slowly."""
    return subprocess.Popen(
        [sys.executable, "-c", FIT, str(log), "fit", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        # A shell that starts jobs in the background makes them deaf to it, and so would be this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def parts(model: Path) -> set[tuple[int, int]]:
    found = Path(f"{model}.scan").glob("scan-*.part")
    return {(int(first), int(last)) for _, _, first, last in (p.stem.split("-") for p in found)}


def chunks(ranges: set[tuple[int, int]]) -> set[int]:
    return {row // CHUNK for part in ranges for row in range(*part)}


def wait_for_parts(process: subprocess.Popen[str], model: Path, n_parts: int) -> None:
    def there() -> bool:
        assert process.poll() is None, process.communicate()
        return len(parts(model)) >= n_parts

    wait_until(there, "the fit gets on")


def kill_in_the_middle(process: subprocess.Popen[str], model: Path, n_parts: int) -> None:
    """Kill a fit when it has finished so many parts."""
    wait_for_parts(process, model, n_parts)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def reads(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().splitlines()]


def test_a_command_that_is_killed_and_repeated(
    tmp_path: Path, store: FeatureStore, here: Here
) -> None:
    model, whole = tmp_path / "model.sadih", tmp_path / "whole.sadih"
    here("fit", store.url, whole, *WORDS, "--threads", 1, "-q")
    before: set[tuple[int, int]] = set()
    for n_parts, threads in ((4, 2), (9, 2), (14, 1)):
        log = tmp_path / f"{n_parts}.log"
        process = begin(log, store.url, model, *WORDS, "--threads", threads, "-q")
        kill_in_the_middle(process, model, n_parts)
        assert not model.exists()
        assert chunks(before).isdisjoint(reads(log))
        after = parts(model)
        assert before < after
        before = after
    process = begin(tmp_path / "end.log", store.url, model, *WORDS, "--threads", 2)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    n_done = sum(last - first for first, last in before)
    assert f"({N - n_done:,} read now, {n_done:,} before the interruption, 0 known before)" in out
    # Just the chunks that were missing, each once.
    assert sorted(reads(tmp_path / "end.log")) == sorted(set(range(N // CHUNK)) - chunks(before))
    assert sha256(model.read_bytes()).digest() == sha256(whole.read_bytes()).digest()
    assert sorted(path.name for path in tmp_path.iterdir() if "scan" in path.name) == []


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, store: FeatureStore) -> None:
    model = tmp_path / "model.sadih"
    process = begin(tmp_path / "log", store.url, model, *WORDS, "-q")
    wait_for_parts(process, model, 3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert err.endswith(
        f"{model} is as it was before. What a long scan has come to stays in {model}.scan: repeat "
        "the same command to go on.\n"
    )
    assert len(parts(model)) >= 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(2) as found:
        yield found


def count_here(log: str, pause: float) -> None:
    """Let this worker note its reads."""
    scope: dict[str, Any] = {}
    exec(COUNTING, scope)
    scope["count_reads"](log, pause)


def n_at_work(dask_worker: Any) -> int:
    return len(dask_worker.active_threads)


def test_on_a_cluster_whose_client_is_killed(
    tmp_path: Path, store: FeatureStore, cluster: LocalCluster, here: Here
) -> None:
    """Workers write the parts, so the next client finds what the cluster has done."""
    model, whole = tmp_path / "model.sadih", tmp_path / "whole.sadih"
    here("fit", store.url, whole, *WORDS, "--threads", 2, "-q")
    address = cluster.scheduler_address
    log = tmp_path / "workers.log"
    with Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
        client.run(count_here, str(log), 0.02)
        words = [store.url, model, *WORDS, "--scheduler", address]
        kill_in_the_middle(begin(tmp_path / "client.log", *words), model, 6)
        wait_until(
            lambda: not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)),
            "the scheduler forgets the tasks of a client that is gone",
        )
        # A task that nobody wants any more is not stopped, it comes to its end.
        wait_until(lambda: not any(client.run(n_at_work).values()), "the workers come to rest")
        before = parts(model)
        assert 6 <= len(before) < N // NODE
        log.unlink()
        out, _ = here("fit", *words, "-q")
    n_done = sum(last - first for first, last in before)
    assert f"{n_done:,} before the interruption" in out
    assert sorted(reads(log)) == sorted(set(range(N // CHUNK)) - chunks(before))
    assert not (tmp_path / "client.log").exists()  # the client reads nothing
    assert model.read_bytes() == whole.read_bytes()
    assert not os.path.lexists(f"{model}.scan")
