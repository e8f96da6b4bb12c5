"""Readers keep the state that they have opened; what no kept state needs can be deleted."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sadih_dask.errors import ConflictError, InputError, IntegrityError
from sadih_dask.stores import FeatureStore
from sadih_dask.stores import store as stores
from sadih_dask.stores.root import KEPT_GENERATIONS
from tests.support.stores import assert_holds, create, files_of, ids_of, table


@pytest.fixture
def another_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forget the states that this process has opened."""
    return stores._OPENED.clear


def mutate(store: FeatureStore) -> None:
    """Everything that can happen to a store while somebody reads it."""
    store.append(**table(100, 130))
    store.append(**table(130, 131))
    store.delete(ids_of([0, 3, 105]))
    store = store.compact()
    store.append(**table(131, 140))
    store.restore(store.generation - 1)
    store = store.compact(one_segment=True)
    store.collect()


def test_a_damaged_former_root_is_named(
    tmp_path: Path, another_process: Callable[[], None]
) -> None:
    store = create(tmp_path / "s", 0, 30)
    sent = pickle.dumps(store)
    store.append(**table(30, 40))
    (file,) = (tmp_path / "s/roots").iterdir()
    intact = file.read_bytes()
    for bad in (intact[:-1], intact.replace(b'"generation": 1', b'"generation": 3')):
        file.write_bytes(bad)
        another_process()
        with pytest.raises(IntegrityError, match=f"roots/{file.name} is damaged"):
            pickle.loads(sent)
    file.unlink()
    with pytest.raises(ConflictError, match=f"roots/{file.name} is gone"):
        pickle.loads(sent)


def test_nothing_is_deleted_that_a_damaged_former_root_may_need(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = create(tmp_path / "s", 0, 30)
    store.append(**table(30, 60))
    store.delete(ids_of([3]))
    (first, *_) = sorted((tmp_path / "s/roots").iterdir())
    first.write_bytes(b"{}")
    before = files_of(tmp_path / "s")
    store = store.compact(one_segment=True)
    assert before <= files_of(tmp_path / "s")
    assert f"{first.name}" in caplog.text
    assert "Nothing is deleted while commit 1 is kept" in caplog.text
    store.compact(purge=True)
    assert len(files_of(tmp_path / "s")) < len(before)
    assert store.verify().ok


def test_what_a_writer_has_named_and_not_tidied_up_is_garbage(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 30)
    store.delete(ids_of([3]))
    (named,) = (tmp_path / "s/deletions").iterdir()
    (tmp_path / "s/deletions/.named.tmp").hardlink_to(named)
    (tmp_path / "s/deletions/.begun.tmp").write_bytes(b"somebody is writing it")
    assert store.collect() == ["deletions/.named.tmp"]
    assert sorted((tmp_path / "s/deletions").iterdir()) == sorted(
        [named, tmp_path / "s/deletions/.begun.tmp"]
    )
    assert store.verify().ok


def test_a_reader_reads_its_state_to_the_end(
    tmp_path: Path, another_process: Callable[[], None]
) -> None:
    store = create(tmp_path / "s", 0, 30)
    sent, lazy = pickle.dumps(store), store.to_dask("labels")
    reading = store.blocks("labels", 3)
    begun = [next(reading)[1] for _ in range(3)]
    graph = pickle.dumps(lazy)
    other = FeatureStore.open(tmp_path / "s")
    mutate(other)
    assert other.refresh().n_rows != 30
    create(tmp_path / "s", 200, 205, overwrite=True)
    another_process()
    # An overwrite keeps one state for its readers; this one is older
    with pytest.raises(ConflictError, match=r"commit 1 is no longer kept, the latest is \d+"):
        pickle.loads(sent)

    store = create(tmp_path / "t", 0, 30)
    sent, graph = pickle.dumps(store), pickle.dumps(store.to_dask("labels"))
    reading = store.blocks("labels", 3)
    begun = [next(reading)[1] for _ in range(3)]
    mutate(FeatureStore.open(tmp_path / "t"))
    another_process()
    assert_holds(pickle.loads(sent), range(30))
    assert_holds(store, range(30))
    rest = [rows for _, rows in reading]
    np.testing.assert_array_equal(np.concatenate(begun + rest), np.arange(30))
    lazy = pickle.loads(graph)
    np.testing.assert_array_equal(lazy.compute(scheduler="synchronous"), np.arange(30))


def test_a_reader_survives_one_overwrite(
    tmp_path: Path, another_process: Callable[[], None]
) -> None:
    store = create(tmp_path / "s", 0, 30)
    sent = pickle.dumps(store)
    new = create(tmp_path / "s", 200, 205, overwrite=True, chunk_rows=2)
    another_process()
    assert_holds(pickle.loads(sent), range(30))
    assert (new.uid, new.generation) == (store.uid, 2)
    assert_holds(FeatureStore.open(tmp_path / "s"), range(200, 205))


def test_a_state_that_is_gone_is_named(tmp_path: Path, another_process: Callable[[], None]) -> None:
    store = create(tmp_path / "s", 0, 30, chunk_rows=16)
    held, sent = FeatureStore.open(tmp_path / "s"), pickle.dumps(store)
    deleted = FeatureStore.open(tmp_path / "s")
    deleted.delete(ids_of([1]))
    unread = FeatureStore.open(tmp_path / "s")
    held.read("labels")
    for name in "ab":
        create(tmp_path / "s", 0, 3, overwrite=True, source=name)
    another_process()
    with pytest.raises(ConflictError, match="commit 1 is no longer kept, the latest is 4"):
        pickle.loads(sent)
    for state, generation in ((held, 1), (unread, 2)):
        with pytest.raises(ConflictError, match=f"commit {generation} is no longer kept; open"):
            state.read("labels", 0, 3)
        with pytest.raises(ConflictError, match=f"commit {generation} is no longer kept"):
            state.verify()


def test_the_last_states_are_kept(tmp_path: Path, another_process: Callable[[], None]) -> None:
    store = create(tmp_path / "s", 0, 1)
    sent = [pickle.dumps(store)]
    for row in range(1, KEPT_GENERATIONS + 6):
        store.append(**table(row, row + 1))
        sent.append(pickle.dumps(store))
    store.collect()
    assert len(list((tmp_path / "s/roots").iterdir())) == KEPT_GENERATIONS
    another_process()
    for n_rows, state in enumerate(sent, 1):
        if n_rows < len(sent) - KEPT_GENERATIONS:
            with pytest.raises(ConflictError, match=f"commit {n_rows} is no longer kept"):
                pickle.loads(state)
        else:
            assert_holds(pickle.loads(state), range(n_rows))


def test_garbage_is_what_no_state_needs(
    tmp_path: Path, another_process: Callable[[], None]
) -> None:
    store = create(tmp_path / "s", 0, 30)
    writer = store.extend(9, key="begun")
    writer.write(0, **{name: array[:4] for name, array in table(30, 39).items()})
    abandoned = store.extend(9)
    abandoned.write(0, **table(50, 59))
    states = {}
    for change in (
        lambda s: s.append(**table(40, 50)),
        lambda s: s.delete(ids_of([0, 7])),
        lambda s: s.compact(),
        lambda s: s.delete(ids_of([45])),
        lambda s: s.append(**table(60, 61)),
        lambda s: s.compact(one_segment=True),
        lambda s: s.delete(ids_of([48])),
    ):
        current = FeatureStore.open(tmp_path / "s")
        states[current.generation] = (pickle.dumps(current), current.read("labels").tolist())
        change(current)
    abandoned.abandon()
    gone = FeatureStore.open(tmp_path / "s").collect()
    assert f"segments/{abandoned._plan.segment_id}" in gone
    assert store.collect() == []
    another_process()
    assert sorted(states) == list(range(1, 8))
    for state, labels in states.values():
        assert_holds(pickle.loads(state), labels)
    # What somebody is still writing is nobody's garbage
    rest = {name: array[4:] for name, array in table(30, 39).items()}
    assert writer.missing() == [1, 2]
    writer.write(4, **rest)
    live = set(range(30)) - {0, 7} | set(range(40, 50)) - {45, 48}
    assert_holds(writer.finalise(), [*sorted(live), 60, *range(30, 39)])


def test_a_former_state_is_restored_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 9, class_names=["a"])
    store.append(**table(9, 12), class_names=["a", "b"])
    store.delete(ids_of([1]))
    before = store.fingerprint()
    new = create(tmp_path / "s", 0, 3, overwrite=True, chunk_rows=2, compression="zstd")
    begun = new.extend(1)
    restored = new.restore(3)
    assert_holds(restored, [0, *range(2, 12)])
    assert (restored.class_names, restored.generation) == (("a", "b"), 5)
    assert (restored.compression, restored.fingerprint()) == ("none", before)
    begun.write(0, **table(3, 4))
    with pytest.raises(ConflictError, match="has been given up by somebody else"):
        begun.finalise()
    with pytest.raises(InputError, match=r"commit 2 is not kept, .* latest is 5, kept are 3, 4"):
        restored.restore(2)
    assert restored.restore(5).generation == 5
    restored.append(**table(12, 13))
    assert_holds(restored, [0, *range(2, 13)])


def test_what_was_being_added_to_overwritten_rows_is_refused(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 9)
    overwriting = FeatureStore.allocate(
        tmp_path / "s", 2, 5, label_dtype=None, overwrite=True, dtype="float64"
    )
    added, small = store.extend(9), store.extend(1)
    added.write(0, **table(9, 18))
    small.write(0, **table(9, 10))
    overwriting.write(0, np.zeros((2, 5)))
    store = overwriting.finalise()
    for writer in (added, small):
        with pytest.raises(ConflictError, match="has been given up by somebody else"):
            writer.finalise()
    assert (store.refresh().commit, store.arrays, store.verify().ok) == (
        store.commit,
        ("features",),
        True,
    )


def test_an_overwrite_replaces_only_the_state_that_it_saw(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 9)
    overwriting = FeatureStore.allocate(tmp_path / "s", 1, 2, id_dtype="int64", overwrite=True)
    overwriting.write(0, **table(0, 1))
    store.append(**table(9, 12))
    with pytest.raises(ConflictError, match=r"written by somebody else .*\(commit 2, 12 rows\)"):
        overwriting.finalise()
    assert_holds(store.refresh(), range(12))
    # The same call, now that one knows, goes on and replaces it
    again = FeatureStore.allocate(tmp_path / "s", 1, 2, id_dtype="int64", overwrite=True)
    assert again.missing() == []
    assert_holds(again.finalise(), [0])


def test_a_compaction_changes_no_row_and_no_fingerprint(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 3, compression="zstd")
    for first, last in ((3, 20), (20, 21), (21, 50), (50, 52)):
        store.append(**table(first, last))
    store.delete(ids_of([0, 19, 20, 33, 51]))
    live = np.delete(np.arange(52), [0, 19, 20, 33, 51])
    prints = [store.fingerprint(), store.fingerprint(["labels"])]
    folds = [fold(store, 7)]
    seen: list[tuple[int, int]] = []
    compacted = store.compact(progress=lambda done, total: seen.append((done, total)))
    assert_holds(compacted, live)
    assert len(compacted.segments) < len(store.segments)
    assert seen[-1] == (seen[-1][1],) * 2
    assert all(segment.deleted is None for segment in compacted.segments)
    one = compacted.compact(one_segment=True)
    assert (len(one.segments), one.generation) == (1, one.compact(one_segment=True).generation)
    for state in (compacted, one):
        assert [state.fingerprint(), state.fingerprint(["labels"])] == prints
        folds.append(fold(state, 7))
    assert len(set(folds)) == 1
    at_once = FeatureStore.create(
        tmp_path / "t", **{name: array[live] for name, array in table(0, 52).items()}, chunk_rows=16
    )
    assert fold(at_once, 7) == folds[0]


def fold(store: FeatureStore, block_rows: int) -> float:
    """A sum whose bits depend on which rows are added up together."""
    total = np.float32(0)
    for _, block in store.blocks("features", block_rows):
        total = total * np.float32(1.1) + np.sin(block).sum(dtype=np.float32)
    return float(total)


def test_a_compaction_is_refused_if_its_rows_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sadih_dask.stores.segment import SegmentWriter

    plain = SegmentWriter.seal

    def during(change: Callable[[], object]) -> None:
        def seal(writer: SegmentWriter, *args: object) -> object:
            monkeypatch.setattr(SegmentWriter, "seal", plain)
            change()
            return plain(writer, *args)

        monkeypatch.setattr(SegmentWriter, "seal", seal)

    store = create(tmp_path / "s", 0, 9)
    store.append(**table(9, 18))
    during(lambda: FeatureStore.open(tmp_path / "s").delete(ids_of([3])))
    with pytest.raises(ConflictError, match="rows were deleted or rewritten while"):
        store.compact()
    assert store.refresh().verify().unfinished == ()
    during(lambda: FeatureStore.open(tmp_path / "s").append(**table(18, 27)))
    compacted = store.compact()
    live = [row for row in range(27) if row != 3]
    assert_holds(compacted, live)
    assert len(compacted.segments) == 2

    # Abandoned, and its files deleted, by somebody who thought it dead
    def abandon() -> None:
        other = FeatureStore.open(tmp_path / "s")
        assert other.abandon() == 1
        other.collect()

    during(abandon)
    with pytest.raises(ConflictError, match="has been given up by somebody else"):
        compacted.compact(one_segment=True)
    assert_holds(FeatureStore.open(tmp_path / "s"), live)


def test_files_are_few(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 8)
    # The root, its lock, two groups, and for each array a document and two chunks, a manifest
    assert len(files_of(tmp_path / "s")) == 4 + 3 * 3 + 1
    store.append(**table(8, 16))
    # A former root, and another segment
    assert len(files_of(tmp_path / "s")) == 14 + 1 + 1 + 3 * 3 + 1
