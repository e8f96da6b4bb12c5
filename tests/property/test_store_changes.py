"""Whatever is done to a store: its rows are those of a list, and what has changed is known."""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sadih_dask.stores import FeatureStore
from sadih_dask.stores.coverage import Coverage, Difference, _packed, _unpacked
from sadih_dask.stores.reader import take_places
from tests.support.stores import assert_holds, create, ids_of, table


@dataclass
class Seen:
    """A state that somebody remembers, and whether what follows can be caught up with for sure.

    changed   rows that were seen were deleted since, and not looked at
    """

    coverage: Coverage
    rows: list[int]
    state: bytes
    sure: bool = True
    changed: bool = False


@dataclass
class History:
    """A store, its rows as a list, and the states that were looked at."""

    path: Path
    store: FeatureStore
    rows: list[int]
    n_written: int
    seen: list[Seen] = field(default_factory=list)
    states: dict[int, list[int]] = field(default_factory=dict)

    def look(self) -> None:
        coverage = Coverage.of(self.store, ["features", "labels"])
        coverage = Coverage.from_json(json.loads(json.dumps(coverage.to_json())))
        self.seen.append(Seen(coverage, list(self.rows), pickle.dumps(self.store)))

    def append(self, n_new: int) -> None:
        self.store.append(**table(self.n_written, self.n_written + n_new))
        self.rows += range(self.n_written, self.n_written + n_new)
        self.n_written += n_new

    def delete(self, places: list[int]) -> None:
        gone = {self.rows[place % len(self.rows)] for place in places if self.rows}
        if gone:
            self.store.delete(ids_of(sorted(gone)))
            self.rows = [row for row in self.rows if row not in gone]
            for seen in self.seen:
                seen.changed |= bool(gone & set(seen.rows))

    def compact(self, one_segment: bool) -> None:
        fingerprint = self.store.fingerprint()
        self.store = self.store.compact(one_segment=one_segment)
        assert self.store.fingerprint() == fingerprint
        for seen in self.seen:
            seen.sure &= not seen.changed

    def restore(self, back: int) -> None:
        known = [generation for generation, _ in self.store._root.history]
        if known:
            generation = known[-1 - back % len(known)]
            self.store = self.store.restore(generation)
            self.rows = list(self.states[generation])
            for seen in self.seen:
                seen.sure = False

    def overwrite(self, n_rows: int) -> None:
        first = self.n_written
        self.store = create(self.path, first, first + n_rows, chunk_rows=5, overwrite=True)
        self.rows = list(range(first, first + n_rows))
        self.n_written += n_rows
        for seen in self.seen:
            seen.sure = False


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("look")),
        st.tuples(st.just("append"), st.integers(0, 17)),
        st.tuples(st.just("append"), st.integers(1, 2)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 99), min_size=1, max_size=12)),
        st.tuples(st.just("compact"), st.booleans()),
        st.tuples(st.just("restore"), st.integers(0, 3)),
        st.tuples(st.just("overwrite"), st.integers(0, 9)),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(n_rows=st.integers(0, 12), steps=STEPS, compression=st.sampled_from(["none", "zstd"]))
def test_the_difference_makes_former_rows_the_present_ones(
    n_rows: int, steps: list[tuple], compression: str
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        store = create(folder / "s", 0, n_rows, chunk_rows=5, compression=compression)
        history = History(folder / "s", store, list(range(n_rows)), n_rows)
        history.look()
        for name, *arguments in steps:
            history.states[history.store.generation] = list(history.rows)
            getattr(history, name)(*arguments)
            assert history.store.read("labels").tolist() == history.rows
            for seen in history.seen:
                check(history, seen)
        history.store.collect()
        assert_holds(history.store, history.rows)
        opened = FeatureStore.open(folder / "s")
        assert opened.commit == history.store.commit
    finally:
        shutil.rmtree(folder)


def check(history: History, seen: Seen) -> None:
    assert seen.coverage.n_rows == len(seen.rows)
    difference = seen.coverage.difference(history.store)
    if difference is None:
        assert not seen.sure
        return
    assert_difference(difference, seen.rows, history.rows)
    # Deleted rows can still be read where they lie
    store = history.store
    dead = [
        take_places(store._snapshot, store.segments[number], "labels", where).tolist()
        for number, where in difference.places
    ]
    assert list(chain(*dead)) == [seen.rows[row] for row in difference.deleted]
    # What was forgotten on purpose is still the same rows
    forgotten = np.arange(0, len(seen.rows), 3)
    former = replace(seen.coverage, forgotten=forgotten)
    now = former.renumbered(history.store, difference)
    assert now.n_rows == len(history.rows)
    there = set(history.rows[: difference.first_new])
    expected = [seen.rows[row] for row in forgotten if seen.rows[row] in there]
    assert [history.rows[row] for row in now.forgotten] == expected
    again = now.difference(history.store)
    assert again is not None
    assert again.is_empty


def assert_difference(difference: Difference, before: list[int], now: list[int]) -> None:
    kept = np.delete(np.array(before, np.int64), difference.deleted).tolist()
    assert kept + now[difference.first_new :] == now
    assert difference.first_new + difference.n_new == len(now)
    assert (np.diff(difference.deleted) > 0).all()


@settings(max_examples=40, deadline=None)
@given(
    n_rows=st.integers(1, 12),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 12)),
            st.tuples(st.just("append"), st.integers(1, 2)),
            st.tuples(st.just("delete"), st.lists(st.integers(0, 99), min_size=1, max_size=9)),
        ),
        max_size=8,
    ),
)
def test_appended_and_deleted_rows_can_always_be_caught_up_with(
    n_rows: int, steps: list[tuple]
) -> None:
    """One who looks after each step and one who never does; compacted when all have looked."""
    folder = Path(tempfile.mkdtemp())
    try:
        store = create(folder / "s", 0, n_rows, chunk_rows=5)
        history = History(folder / "s", store, list(range(n_rows)), n_rows)
        history.look()
        for name, *arguments in steps:
            getattr(history, name)(*arguments)
            assert all(seen.sure for seen in history.seen)
            for seen in history.seen:
                check(history, seen)
            history.look()
            if len(history.seen) % 3 == 0:  # then only who has seen all deletions is asked
                history.seen = history.seen[-1:]
                history.compact(len(history.rows) % 2 == 0)
                check(history, history.seen[0])
    finally:
        shutil.rmtree(folder)


def test_equal_rows_that_come_back_are_new(tmp_path: Path) -> None:
    rows = table(0, 6)
    store = FeatureStore.create(tmp_path / "s", **rows, chunk_rows=4)
    store.append(**table(6, 30))
    store.delete(ids_of(range(6)))
    seen = Coverage.of(store, ["features", "labels"])
    store = store.compact()
    store.append(**rows)
    difference = seen.difference(store)
    assert difference is not None
    assert (difference.deleted.tolist(), difference.first_new, difference.n_new) == ([], 24, 6)


def test_other_arrays_do_not_matter(tmp_path: Path) -> None:
    rows = table(0, 6)
    store = FeatureStore.create(tmp_path / "s", **rows)
    seen = Coverage.of(store, ["features", "labels"])
    rows["ids"] = rows["ids"] + 1
    other = FeatureStore.create(tmp_path / "t", **rows)
    difference = seen.difference(other)
    assert difference is not None
    assert difference.is_empty
    assert Coverage.of(store, ["features", "ids"]).difference(other) is None
    without = FeatureStore.create(tmp_path / "u", rows["features"])
    assert seen.difference(without) is None


def test_rows_survive_a_file_and_rubbish_is_refused() -> None:
    rows = np.unique(np.random.default_rng(0).integers(0, 2**40, 30))
    for kept in (rows, rows[:1], rows[:0]):
        text = _packed(kept)
        assert _unpacked(text).tolist() == kept.tolist()
    for rubbish in ("x", "AAAA", _packed(rows)[:-8], _packed(rows)[:40]):
        with pytest.raises(ValueError, match=r".+"):
            _unpacked(rubbish)
