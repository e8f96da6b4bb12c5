"""A process killed at any operation on a file leaves a whole store, and the same call goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from sadih_dask.errors import ConflictError, FormatError, IncompleteError, InputError
from sadih_dask.files.filesystem import TEMPORARY_SUFFIX
from sadih_dask.stores import FeatureStore
from tests.support.stores import Killed, assert_holds, create, files_of, ids_of, killed_at, table


def extended(path: Path, first: int, last: int) -> None:
    """Append blocks that are missing, as a call does that can be repeated."""
    store = FeatureStore.open(path)
    writer = store.extend(last - first, at=first, key="these")
    rows = table(first, last)
    for block in writer.missing():
        low, high = writer.rows_of(block)
        writer.write(low, **{name: array[low:high] for name, array in rows.items()})
    writer.finalise()


@dataclass(frozen=True)
class Call:
    """A call, the rows before and after it, and what it says if it is done already."""

    before: list[int] | None
    act: Callable[[Path], object]
    after: list[int]
    done: type[Exception] | tuple[()] = ()


def opened(path: Path) -> FeatureStore:
    return FeatureStore.open(path)


LONG, DEAD = list(range(18)), [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
CALLS = {
    "create": Call(None, lambda path: create(path, 0, 9), list(range(9)), ConflictError),
    "create zstd": Call(
        None, lambda path: create(path, 0, 9, compression="zstd"), list(range(9)), ConflictError
    ),
    "extend": Call(LONG, lambda path: extended(path, 18, 31), list(range(31)), ConflictError),
    "small": Call(LONG, lambda path: extended(path, 18, 19), list(range(19)), ConflictError),
    "delete": Call(
        LONG,
        lambda path: opened(path).delete(ids_of([2, 17])),
        [*LONG[:2], *LONG[3:17]],
        InputError,
    ),
    "overwrite": Call(LONG, lambda path: create(path, 50, 59, overwrite=True), [*range(50, 59)]),
    "compact": Call(DEAD, lambda path: opened(path).compact(), DEAD),
    "purge": Call(DEAD, lambda path: opened(path).compact(one_segment=True, purge=True), DEAD),
    "restore": Call(DEAD, lambda path: opened(path).restore(2), LONG),
    "collect": Call(DEAD, lambda path: opened(path).collect(), DEAD),
}


def prepared(path: Path, rows: list[int] | None) -> None:
    """A store of three segments with a history, garbage, and deleted rows if some are missing."""
    if rows is None:
        return
    store = create(path, 0, 9)
    store.extend(3).write(0, **table(90, 93))
    store.append(**table(9, 18))
    store.extend(3, key="other").write(0, **table(80, 83))
    if gone := set(LONG) - set(rows):
        store.delete(ids_of(sorted(gone)))
    opened(path).abandon()


def written(path: Path) -> dict[str, int]:
    """The chunks that are there, and which file each is."""
    return {
        name: (path / name).stat().st_ino
        for name in files_of(path)
        if "/c." in name and not name.endswith(TEMPORARY_SUFFIX)
    }


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", CALLS)
def test_killed_at_every_operation(tmp_path: Path, name: str, after: bool) -> None:
    call = CALLS[name]
    prepared(tmp_path / "template", call.before)
    old, steps = written(tmp_path / "template"), None
    for step in range(1000):
        path = tmp_path / f"s{step}"
        if call.before is not None:
            shutil.copytree(tmp_path / "template", path)
        with killed_at(step, after=after) as reached, suppress(Killed):
            call.act(path)
            steps = len(reached)
        if steps is not None:
            break
        # What is there now is what was there before, or all of what was to come
        labels = None
        with suppress(*([FormatError, IncompleteError] if call.before is None else [])):
            labels = opened(path).read("labels").tolist()
            assert_holds(opened(path), labels)
        assert labels in (call.before, call.after)
        there = written(path)
        with suppress(*([call.done] if call.done else [])):
            call.act(path)
        assert_holds(opened(path), call.after)
        now = written(path)
        assert all(now[chunk] == number for chunk, number in there.items() if chunk in now)
        # All that the first try has written is used: nothing was begun anew
        used = {segment.id for segment in opened(path).segments}
        if name != "overwrite" or labels == call.before:  # the same again is another overwrite
            assert {chunk.split("/")[1] for chunk in there.keys() - old.keys()} <= used
        assert opened(path).verify().unfinished == ()
        opened(path).collect()
        assert_holds(opened(path), call.after)
        shutil.rmtree(path)
    assert steps is not None
    assert steps >= {"delete": 4, "restore": 3, "collect": 2}.get(name, 9)
    assert_holds(opened(path), call.after)


def test_what_a_kill_leaves_behind_is_tidied_up(tmp_path: Path) -> None:
    writer = FeatureStore.allocate(tmp_path / "s", 6, 2, id_dtype="int64", chunk_rows=4)
    (folder,) = (tmp_path / "s/segments").glob("*/")
    (folder / "features" / f".c.0.0.x{TEMPORARY_SUFFIX}").write_bytes(b"half a chunk")
    writer.write(0, **table(0, 6))
    store = writer.finalise()
    assert not any(name.endswith(TEMPORARY_SUFFIX) for name in files_of(tmp_path / "s"))
    assert_holds(store, range(6))


def test_a_kill_at_the_very_first_file_leaves_the_place_free(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / f"s/.zarr.json.x{TEMPORARY_SUFFIX}").write_bytes(b"half a root")
    (tmp_path / "s/.swap").write_bytes(b"")
    assert_holds(create(tmp_path / "s", 0, 5), range(5))
