"""Rows are added all or none, and small additions do not make many small segments."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sadih_dask.errors import ConflictError, DtypeError, InputError, IntegrityError, LabelError
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores import commit as commits
from tests.support.stores import assert_holds, create, files_of, ids_of, segment_folder, table


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("cuts", [(0, 3, 4, 11, 40), (5, 8, 16, 17, 33), (8, 16, 24, 24, 25)])
def test_every_commit_reads_and_verifies_after_all_later_ones(
    tmp_path: Path, cuts: tuple[int, ...], compression: str
) -> None:
    store = create(tmp_path / "s", 0, cuts[0], compression=compression)
    states = [pickle.dumps(store)]
    prints = [store.fingerprint()]
    for first, last in pairwise(cuts):
        store.append(**table(first, last), at=first)
        states.append(pickle.dumps(store))
        prints.append(store.fingerprint())
    for n_rows, state, fingerprint in zip(cuts, states, prints, strict=True):
        earlier = pickle.loads(state)
        assert_holds(earlier, range(n_rows))
        assert earlier.fingerprint() == fingerprint
    assert len(set(prints)) == len(set(cuts))
    group = store.to_zarr()
    merged = [group[f"{segment.path}/labels"][:] for segment in store.segments]
    np.testing.assert_array_equal(np.concatenate(merged), np.arange(cuts[-1]))


def test_an_append_that_fails_before_its_commit_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = create(tmp_path / "s", 0, 6)
    held = pickle.dumps(store)

    def broken(*_: object) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(commits, "commit", broken)
        with pytest.raises(RuntimeError, match="power cut"):
            store.append(**table(100, 120))
    for opened in (FeatureStore.open(tmp_path / "s"), pickle.loads(held)):
        assert_holds(opened, range(6))
        assert opened.verify().unfinished == ()
    store.append(**table(6, 9))
    assert_holds(store, range(9))


def test_bad_rows_in_the_middle_leave_nothing_begun(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", np.zeros((4, 1), "f4"), np.arange(4, dtype="i1"))
    labels = np.arange(20)
    labels[13] = 1000
    with pytest.raises(LabelError, match="label of row 13 is 1000"):
        store.append(np.zeros((20, 1), "f4"), labels)
    assert store.refresh().verify().unfinished == ()


@pytest.mark.parametrize("n_old", [0, 5, 12, 17, 24])
@pytest.mark.parametrize("n_done", [0, 1, 3, 99])
def test_an_append_with_a_key_goes_on(tmp_path: Path, n_old: int, n_done: int) -> None:
    store = create(tmp_path / "s", 0, n_old)
    writer = store.extend(41 - n_old, key="these")
    rows = table(n_old, 41)
    for block in range(min(n_done, writer.n_blocks)):
        first, last = writer.rows_of(block)
        writer.write(first, **{name: array[first:last] for name, array in rows.items()})
    FeatureStore.open(tmp_path / "s").append(**table(100, 110))  # somebody else, meanwhile
    again = FeatureStore.open(tmp_path / "s").extend(41 - n_old, key="these")
    assert len(again.missing()) == max(0, writer.n_blocks - n_done)
    for block in again.missing():
        first, last = again.rows_of(block)
        again.write(first, **{name: array[first:last] for name, array in rows.items()})
    finished = again.finalise()
    assert_holds(finished, [*range(n_old), *range(100, 110), *range(n_old, 41)])
    assert finished.verify().unfinished == ()
    # Whoever had begun it finds that it is done
    assert writer.finalise().n_rows == finished.n_rows


def test_other_keys_are_other_rows(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 6)
    one, other, anonymous = store.extend(8, key="a"), store.extend(8, key="b"), store.extend(8)
    one.write(0, **table(6, 14))
    assert other.missing() == anonymous.missing() == [0, 1]
    assert len(store.refresh().verify().unfinished) == 3
    other.write(0, **table(14, 22))
    other.finalise()
    one.finalise()
    assert_holds(store.refresh(), [*range(6), *range(14, 22), *range(6, 14)])
    assert store.abandon() == 1
    anonymous.write(0, **table(22, 30))
    with pytest.raises(ConflictError, match="has been given up by somebody else"):
        anonymous.finalise()


def test_attributes_alone_can_be_committed(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 6)
    store = store.extend(0, properties={"note": "x"}).finalise()
    assert (store.n_rows, store.generation, store.properties["note"]) == (6, 2, "x")
    assert (len(store.segments), store.properties["class_names"]) == (1, [])
    store.append(**table(6, 9))
    assert_holds(store, range(9))


def test_a_repeated_append_is_refused_by_its_row(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 6)
    late = store.extend(3, at=6)
    store.append(**table(6, 9), at=6)
    with pytest.raises(ConflictError, match="has 9 rows, but rows were to be appended at row 6"):
        store.append(**table(6, 9), at=6)
    late.write(0, **table(6, 9))
    with pytest.raises(ConflictError, match="they are there already, or somebody else has"):
        late.finalise()
    assert_holds(FeatureStore.open(tmp_path / "s"), range(9))


def test_two_objects_append_one_after_the_other(tmp_path: Path) -> None:
    one = create(tmp_path / "s", 0, 6)
    other = FeatureStore.open(tmp_path / "s")
    one.append(**table(6, 9))
    other.append(**table(9, 12))
    assert_holds(other, range(12))
    assert one.n_rows == 9


@pytest.mark.parametrize("change", ["append", "delete", "compact"])
def test_small_rows_are_added_alone_if_those_before_them_have_changed(
    tmp_path: Path, change: str
) -> None:
    store = create(tmp_path / "s", 0, 9, chunk_rows=16)
    store.append(**table(9, 14), at=9)
    small = store.extend(1)
    assert small.block_rows == 1
    small.write(0, **table(20, 21))
    expected = list(range(14))
    if change == "append":
        store.append(**table(14, 15))
        expected += [14]
    elif change == "delete":
        store.delete(ids_of([3]))
        expected.remove(3)
    else:
        store = create(tmp_path / "s", 0, 9, overwrite=True)
        store.append(**table(9, 14))
        small = store.extend(1)
        small.write(0, **table(20, 21))
        assert len(store.compact(one_segment=True).segments) == 1
    finished = small.finalise()
    assert_holds(finished, [*expected, 20])
    assert finished.verify().unfinished == ()
    finished.collect()
    assert_holds(finished.refresh(), [*expected, 20])


def test_class_names_may_only_grow(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 6, class_names=["a", "b"])
    one = store.extend(1, class_names=["a", "b", "c"])
    other = store.extend(1, class_names=["a", "b", "d"])
    same = store.extend(1, class_names=["a", "b", "c"])
    for number, writer in enumerate((one, other, same), 6):
        writer.write(0, **table(number, number + 1))
    assert one.finalise().class_names == ("a", "b", "c")
    with pytest.raises(ConflictError, match=r"Somebody else may have added classes"):
        other.finalise()
    assert same.finalise().class_names == ("a", "b", "c")
    with pytest.raises(ConflictError, match="must begin with those that the store has"):
        store.append(**table(9, 10), class_names=["b"])
    store.append(**table(9, 10), class_names=["a", "b"])
    assert store.class_names == ("a", "b", "c")


def test_sources_are_continued_in_the_very_commit(tmp_path: Path) -> None:
    writer = FeatureStore.allocate(tmp_path / "s", 2, 2, id_dtype="int64", sources=b"one")
    writer.write(0, **table(0, 2))
    store = writer.finalise()
    assert store.sources_record() == b"one"
    writers = [
        store.extend(1, sources=lambda there, name=name: (there or b"") + name)
        for name in (b" two", b" three")
    ]
    for number, added in enumerate(writers, 2):
        added.write(0, **table(number, number + 1))
        added.finalise()
    store = store.refresh()
    assert store.sources_record() == b"one two three"
    store.collect()
    assert (store.sources_record(), store.n_rows) == (b"one two three", 4)


def test_a_record_of_sources_that_is_not_what_was_written(tmp_path: Path) -> None:
    stores = []
    for name in ("s", "t"):
        writer = FeatureStore.allocate(tmp_path / name, 2, 2, id_dtype="int64", sources=b"one")
        writer.write(0, **table(0, 2))
        stores.append(writer.finalise())
    files = [next((tmp_path / name / "sources").iterdir()) for name in ("s", "t")]
    intact = files[0].read_bytes()
    for bad in (b"two" + intact[3:], intact[:-1], b"", files[1].read_bytes()):
        files[0].write_bytes(bad)
        with pytest.raises(IntegrityError, match=f"sources/{files[0].name}, .* is damaged"):
            stores[0].sources_record()
        (problem,) = stores[0].verify().problems
        assert f"sources/{files[0].name}" in problem
    files[0].unlink()
    with pytest.raises(IntegrityError, match=f"sources/{files[0].name}, .* is missing"):
        stores[0].sources_record()
    assert len(stores[0].verify().problems) == 1


def test_rows_that_do_not_fit_the_store_are_refused(tmp_path: Path) -> None:
    features, labels = table(0, 6)["features"], np.arange(6)
    ids = np.array(["a", "b", "c", "d", "e", "f"])
    store = FeatureStore.create(tmp_path / "s", features, labels, ids=ids)
    with pytest.raises(InputError, match="has features, labels, ids; ids not given"):
        store.append(features, labels)
    with pytest.raises(InputError, match="was created without thumbnails"):
        store.append(features, labels, ids, np.zeros((6, 2, 2), np.uint8))
    with pytest.raises(DtypeError, match=r"features are float64, the store keeps float32"):
        store.append(features.astype(np.float64), labels, ids)
    with pytest.raises(InputError, match=r"features have shape \(1, 3\), expected \(rows, 2\)"):
        store.append(np.zeros((6, 3), np.float32), labels, ids)
    with pytest.raises(InputError, match="id of row 1 has 4 bytes, the store keeps 1"):
        store.append(features[:2], labels[:2], np.array(["x", "long"]))
    with pytest.raises(DtypeError, match="the store has utf8 ids, got int64"):
        store.append(features, labels, labels)
    opened = FeatureStore.open(tmp_path / "s")
    assert (opened.n_rows, opened.generation, opened.verify().unfinished) == (6, 1, ())


def test_nothing_to_append_is_no_commit(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 6)
    store.append(**table(6, 6))
    assert (store.n_rows, store.generation) == (6, 1)


def test_120_nights_are_few_segments(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 10, chunk_rows=16)
    for night in range(120):
        store.append(**table(10 + night, 11 + night))
        assert len(store.segments) <= 2 + store.n_rows // 8
    assert_holds(store, range(130))
    assert len(store.segments) <= 10
    # A segment has five documents and a chunk of each of three arrays
    kept = 2 * (len(store.segments) + commits.KEPT_GENERATIONS) + 2
    assert len(files_of(tmp_path / "s")) < 8 * kept + 64
    store.collect()
    folders = [path for path in (tmp_path / "s/segments").iterdir() if path.is_dir()]
    assert len(folders) <= len(store.segments) + commits.KEPT_GENERATIONS
    compacted = store.compact(one_segment=True)
    assert [len(compacted.segments), compacted.chunks] == [1, (16,) * 8 + (2,)]
    assert compacted.fingerprint() == store.fingerprint()


def test_the_rule_of_small_appends(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 8, chunk_rows=8)
    sizes = []
    for first, last in pairwise([8, 9, 11, 16, 17, 30, 31, 32, 33]):
        store.append(**table(first, last))
        sizes.append([segment.n_rows for segment in store.segments])
    assert sizes == [
        [8, 1],
        [8, 3],
        [8, 8],
        [8, 8, 1],
        [8, 8, 1, 13],
        [8, 8, 1, 13, 1],
        [8, 8, 1, 13, 2],
        [8, 8, 1, 13, 3],
    ]
    assert (segment_folder(store, 4) / "labels/c.0").stat().st_size == 3 * 8 + 4
    assert_holds(store, range(33))


def test_codes_are_extended_dropped_and_revised(tmp_path: Path) -> None:
    codes = np.arange(20, dtype=np.uint8).reshape(10, 2)
    store = CodeStore.create(tmp_path / "c", codes, n_bits=16, model="m", chunk_rows=4)
    writer = store.extend(2, model="m", drop=np.array([1, 9]), properties={"of": "x"}, key="k")
    writer.write(0, codes[:2] + 100)
    late = store.extend(1, model="m", drop=np.array([0]))
    late.write(0, codes[:1])
    store = writer.finalise()
    expected = np.concatenate([codes[[0, 2, 3, 4, 5, 6, 7, 8]], codes[:2] + 100])
    np.testing.assert_array_equal(store.read("codes"), expected)
    assert (store.properties["of"], store.model, store.verify().ok) == ("x", "m", True)
    with pytest.raises(ConflictError, match="written by somebody else in the meantime"):
        late.finalise()
    revised = store.revise({"of": "y"}, np.array([0, 9]))
    np.testing.assert_array_equal(revised.read("codes"), expected[1:-1])
    assert (revised.properties["of"], store.n_rows) == ("y", 10)
    with pytest.raises(ConflictError, match=r"somebody else .*\(commit 3\); nothing was changed"):
        store.revise({}, np.array([0]))
    revised.append(codes[:1], model="m")
    assert revised.n_rows == 9
