"""Real processes on a file system: stopped, killed, out of disk, or at work at the same time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import zarr

from sadih_dask.errors import IncompleteError
from sadih_dask.stores import FeatureStore
from sadih_dask.stores.features import FeatureWriter
from tests.support.processes import blocks_written, other_host, wait_until

PRELUDE = """
import fcntl, os, sys, time
import numpy as np
from pathlib import Path
from sadih_dask.errors import ConflictError
from sadih_dask.stores import FeatureStore
url = sys.argv[1]
def table(first, last):
    numbers = np.arange(first, last)
    return np.stack([numbers, -numbers], axis=1).astype(np.float32), numbers
def rows(first, last):
    return (*table(first, last), np.arange(first, last))
def meet(name):  # wait until as many are here as there are going to be
    Path(f"{url}.{name}.{os.getpid()}").touch()
    while len(list(Path(url).parent.glob(f"*.{name}.*"))) < 2:
        time.sleep(0.001)
"""
CREATE = "FeatureStore.create(url, *table(0, 2400), chunk_rows=8)\n"
APPEND = """
store = FeatureStore.open(url)
while True:
    store.append(*table(store.n_rows, store.n_rows + 7))
    print(store.n_rows, flush=True)
"""


def table(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(first, last)
    return np.stack([numbers, -numbers], axis=1).astype(np.float32), numbers


def rows(first: int, last: int) -> tuple[np.ndarray, ...]:
    return *table(first, last), np.arange(first, last)


def start(script: str, url: Path, *before: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-c", PRELUDE + textwrap.dedent(script), str(url)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_creation_killed_again_and_again_is_completed_by_the_same_call(tmp_path: Path) -> None:
    url = tmp_path / "s"
    for least in (1, 60):
        process = start(CREATE, url)
        wait_until(lambda least=least: blocks_written(url) > least)  # type: ignore[misc]
        kill(process)
        with pytest.raises(IncompleteError, match=r"incomplete: it has no rows yet"):
            FeatureStore.open(url)
        assert not dict(zarr.open_group(url, mode="r")["segments"].groups())  # type: ignore[union-attr]
    before = blocks_written(url)
    store = FeatureStore.create(url, *table(0, 2400), chunk_rows=8)
    assert before > 60
    assert len(store.segments) == 1
    np.testing.assert_array_equal(store.read("labels"), np.arange(2400))
    assert store.verify().ok
    assert not list(url.glob("segments/*/*/.*.tmp"))


def test_appends_killed_at_any_moment_leave_whole_appends(tmp_path: Path) -> None:
    url = tmp_path / "s"
    FeatureStore.create(url, *table(0, 3), chunk_rows=8)
    chance = random.Random(0)
    for _ in range(4):
        process = start(APPEND, url)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.random() * 0.1)
        kill(process)
        store = FeatureStore.open(url)
        assert store.n_rows % 7 == 3
        assert store.verify().ok
        np.testing.assert_array_equal(store.read("labels"), np.arange(store.n_rows))
        np.testing.assert_array_equal(store.read("features"), table(0, store.n_rows)[0])


KEYED = """
store = FeatureStore.open(url)
writer = store.extend(2000, key="these rows")
for block in writer.missing():
    first, last = writer.rows_of(block)
    writer.write(first, *rows(100 + first, 100 + last))
writer.finalise()
"""
WORKS = {
    "append": KEYED,
    "delete": "FeatureStore.open(url).delete(np.arange(0, 100, 2))\n",
    "compact": "FeatureStore.open(url).compact(one_segment=True)\n",
    "overwrite": "FeatureStore.create(url, *rows(0, 2000)[:2], ids=np.arange(2000), chunk_rows=8, "
    "overwrite=True)\n",
}


def held(url: Path) -> list[int]:
    store = FeatureStore.open(url)
    assert store.verify().ok
    ids = store.read("ids")
    np.testing.assert_array_equal(store.read("features"), table(0, 3000)[0][ids])
    return ids.tolist()


@pytest.mark.parametrize("work", WORKS)
def test_killed_at_any_moment_it_is_all_or_nothing_and_the_same_call_completes_it(
    tmp_path: Path, work: str
) -> None:
    url, chance = tmp_path / "s", random.Random(work)
    x, y, ids = rows(0, 100)
    old = list(range(100))
    new = {
        "append": list(range(2100)),
        "delete": old[1::2],
        "compact": old,
        "overwrite": list(range(2000)),
    }[work]
    store = FeatureStore.create(url, x[:90], y[:90], ids=ids[:90], chunk_rows=8)
    store.append(x[90:], y[90:], ids[90:])
    seen = []
    for _ in range(5):
        process = start("print('here', flush=True)\n" + WORKS[work], url)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.random() * 0.3)
        kill(process)
        seen.append(held(url))
        assert seen[-1] in (old, new)
        if work != "compact" and seen[-1] == new:
            break
    else:
        last = start(WORKS[work], url)
        last.communicate()
        assert last.returncode == 0
    assert held(url) == new
    opened = FeatureStore.open(url)
    opened.abandon()
    opened.collect()
    assert held(url) == new


TWO = {
    "two appends": ("store.append(*rows(100, 107))", "store.append(*rows(200, 240))"),
    "append and compact": ("store.append(*rows(100, 107))", "store.compact(one_segment=True)"),
    "append and overwrite": (
        "store.append(*rows(100, 107))",
        "FeatureStore.create(url, *rows(200, 240)[:2], ids=np.arange(200, 240), chunk_rows=8, "
        "overwrite=True)",
    ),
    "append and delete": ("store.append(*rows(100, 107))", "store.delete([3, 12])"),
    "two collectors": ("store.collect()", "store.compact(purge=True)"),
}


def together(url: Path, works: tuple[str, str], *before: list[str]) -> list[str]:
    """Let two begin at the same moment; what they say."""
    script = """
    store = FeatureStore.open(url)
    meet("{name}")
    try:
        {work}
    except ConflictError as error:
        print("ConflictError", error)
    else:
        print("done")
    """
    name = random.Random(str(url)).getrandbits(32)
    prefixes = before or ([], [])
    processes = [
        start(script.format(name=name, work=work), url, *prefix)
        for work, prefix in zip(works, prefixes, strict=True)
    ]
    said = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return said


@pytest.mark.parametrize("works", TWO)
def test_two_at_once_do_all_or_nothing_and_say_which(tmp_path: Path, works: str) -> None:
    for trial in range(3):
        url = tmp_path / f"s{trial}"
        store = FeatureStore.create(url, *rows(0, 20)[:2], ids=np.arange(20), chunk_rows=8)
        store.delete([19])
        old, first = list(range(19)), list(range(100, 107))
        said = together(url, TWO[works])
        found = held(url)
        second = list(range(200, 240))
        if works == "two appends":
            assert said == ["done", "done"]
            assert found in (old + first + second, old + second + first)
        elif works == "append and overwrite":
            expected = {
                ("done", "done"): [second, second + first],
                ("done", "ConflictError"): [old + first],
                ("ConflictError", "done"): [second],
            }
            assert found in expected[tuple(text.split()[0] for text in said)]  # type: ignore[index]
        elif works == "append and delete":
            assert said == ["done", "done"]
            assert found == [row for row in old if row not in (3, 12)] + first
        elif works == "append and compact":
            assert said[0] == "done"
            assert found == old + first
        else:
            assert said == ["done", "done"]
            assert found == old


SAME = """
meet("same")
writer = FeatureStore.open(url).extend(400, key="these rows")
meet("begun")
for block in writer.missing():
    first, last = writer.rows_of(block)
    writer.write(first, *rows(20 + first, 20 + last))
print(writer.finalise().n_rows)
"""
SAME_CREATION = """
meet("same")
try:
    print(FeatureStore.create(url, *table(0, 2400), chunk_rows=8).n_rows)
except ConflictError as error:
    assert "already holds a finished store" in str(error), error
    print(2400)
"""


def test_two_with_one_key_agree(tmp_path: Path) -> None:
    url = tmp_path / "s"
    FeatureStore.create(url, *rows(0, 20)[:2], ids=np.arange(20), chunk_rows=8)
    processes = [start(SAME, url) for _ in range(2)]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["420\n", "420\n"]
    assert held(url) == list(range(420))
    assert not FeatureStore.open(url).verify().unfinished


def test_two_who_create_the_same_store_agree(tmp_path: Path) -> None:
    url = tmp_path / "s"
    processes = [start(SAME_CREATION, url) for _ in range(2)]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["2400\n", "2400\n"]
    np.testing.assert_array_equal(FeatureStore.open(url).read("labels"), np.arange(2400))


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_stopped_holder_of_the_swap_makes_others_wait_and_nobody_loses(tmp_path: Path) -> None:
    url = tmp_path / "s"
    FeatureStore.create(url, *rows(0, 20)[:2], ids=np.arange(20), chunk_rows=8)
    holder = start(
        """
        from sadih_dask.files.filesystem import LocalFiles
        written = LocalFiles.write
        roots = iter(["names its segment", "commits"])
        def write(self, key, parts, **options):
            if key == "zarr.json" and next(roots) == "commits":
                os.kill(os.getpid(), 19)
            written(self, key, parts, **options)
        LocalFiles.write = write
        FeatureStore.open(url).append(*rows(100, 107))
        """,
        url,
    )
    wait_until(lambda: is_stopped(holder.pid), "the holder to stop")
    other = start("FeatureStore.open(url).append(*rows(200, 207))\nprint('done')", url)
    with pytest.raises(subprocess.TimeoutExpired, match="timed out"):
        other.communicate(timeout=3)
    assert held(url) == list(range(20))  # who reads does not wait
    holder.send_signal(signal.SIGCONT)
    assert other.communicate(timeout=120)[0] == "done\n"
    holder.communicate(timeout=120)
    assert holder.returncode == 0
    first, second = list(range(100, 107)), list(range(200, 207))
    assert held(url) in (list(range(20)) + first + second, list(range(20)) + second + first)


def test_a_killed_holder_of_the_swap_is_no_obstacle(tmp_path: Path) -> None:
    url = tmp_path / "s"
    FeatureStore.create(url, *rows(0, 20)[:2], ids=np.arange(20), chunk_rows=8)
    process = start(
        """
        descriptor = os.open(f"{url}/.swap", os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        print("held", flush=True)
        time.sleep(600)
        """,
        url,
    )
    assert process.stdout is not None
    process.stdout.readline()
    kill(process)
    FeatureStore.open(url).append(*rows(100, 107))
    assert held(url) == [*range(20), *range(100, 107)]


@pytest.mark.parametrize("names", [("one", "two"), ("same", "same")], ids=" ".join)
def test_two_hosts_with_equal_process_numbers(tmp_path: Path, names: tuple[str, str]) -> None:
    url = tmp_path / "s"
    FeatureStore.create(url, *rows(0, 20)[:2], ids=np.arange(20), chunk_rows=8)
    script = """
    Path(f"{{url}}.{author}").touch()
    while len(list(Path(url).parent.glob("s.[12]"))) < 2:
        time.sleep(0.001)
    assert os.getpid() < 10
    for k in range(5):
        FeatureStore.open(url).append(*rows({author} * 100 + 7 * k, {author} * 100 + 7 * k + 7))
    """
    processes = [
        start(textwrap.dedent(script).format(author=author), url, *other_host(name))
        for author, name in enumerate(names, start=1)
    ]
    for process in processes:
        process.communicate(timeout=120)
    assert [process.returncode for process in processes] == [0, 0]
    found = held(url)
    assert found[:20] == list(range(20))
    assert [row for row in found[20:] if row < 200] == list(range(100, 135))
    assert [row for row in found[20:] if row >= 200] == list(range(200, 235))


def test_a_reader_never_sees_half_of_an_append(tmp_path: Path) -> None:
    url = tmp_path / "s"
    FeatureStore.create(url, *table(0, 3), chunk_rows=8)
    process = start(APPEND, url)
    try:
        seen = set()
        end = time.monotonic() + 2
        while time.monotonic() < end or len(seen) < 5:
            store = FeatureStore.open(url)
            assert store.n_rows % 7 == 3
            np.testing.assert_array_equal(store.read("features"), table(0, store.n_rows)[0])
            seen.add(store.n_rows)
    finally:
        kill(process)


def write_block(writer: FeatureWriter, block: int, die_at: int) -> int:
    if block == die_at:
        os.kill(os.getpid(), signal.SIGKILL)
    writer.write(writer.rows_of(block)[0], *table(*writer.rows_of(block)))
    return block


def test_many_processes_make_one_store_though_some_die(tmp_path: Path) -> None:
    context = get_context("fork")
    writer = FeatureStore.allocate(tmp_path / "s", 1001, 2, chunk_rows=10)
    with (
        pytest.raises(BrokenProcessPool, match="terminated abruptly"),
        ProcessPoolExecutor(3, mp_context=context) as pool,
    ):
        list(pool.map(write_block, [writer] * 101, range(101), [50] * 101))
    left = writer.missing()
    assert 50 in left
    assert len(left) < 101
    with ProcessPoolExecutor(3, mp_context=context) as pool:
        list(pool.map(write_block, [writer] * len(left), left, [-1] * len(left)))
    store = writer.finalise()
    np.testing.assert_array_equal(store.read("labels"), np.arange(1001))
    assert store.verify().ok


LIMITED = """
import errno, resource
from sadih_dask.errors import IncompleteError
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    FeatureStore.create(url, np.ones((5000, 4), np.float32), chunk_rows=1000)
except IncompleteError as error:
    assert error.errno == errno.EFBIG
    print(error)
"""


def test_a_write_that_the_system_refuses_leaves_an_incomplete_store(tmp_path: Path) -> None:
    url = tmp_path / "s"
    output, _ = start(LIMITED, url).communicate()
    assert "array 'features', block 0 (from row 0) could not be written: File too large" in output
    with pytest.raises(IncompleteError, match="it has no rows yet"):
        FeatureStore.open(url)
    assert not list(url.glob("segments/*/*/.*.tmp"))
    store = FeatureStore.create(url, np.ones((5000, 4), np.float32), chunk_rows=1000)
    assert store.verify().ok


@pytest.mark.parametrize("small_disk", ["1m"], indirect=True)
def test_a_full_disk_leaves_an_incomplete_store_and_a_whole_old_one(small_disk: Path) -> None:
    url = small_disk / "s"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(700_000))
    features, labels = np.ones((40_000, 2), np.float32), np.arange(40_000)
    with pytest.raises(IncompleteError, match="could not be written: No space left on device"):
        FeatureStore.create(url, features, labels, chunk_rows=2000)
    with pytest.raises(IncompleteError, match="it has no rows yet"):
        FeatureStore.open(url)
    ballast.unlink()
    store = FeatureStore.create(url, features, labels, chunk_rows=2000)
    assert store.verify().ok
    ballast.write_bytes(bytes(250_000))
    with pytest.raises(IncompleteError, match="Nothing that was committed before is affected"):
        store.append(features, labels)
    reopened = FeatureStore.open(url)
    assert reopened.verify().ok
    assert reopened.n_rows == 40_000
    ballast.unlink()
    reopened.abandon()
    reopened.collect()
    reopened.append(features[:3000], labels[:3000])
    assert reopened.verify().ok
