"""Rows are added in place, all or none, and earlier commits stay readable."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask.errors import ConflictError, DtypeError, InputError
from sadih_dask.stores import FeatureStore
from sadih_dask.stores import commit as appending
from sadih_dask.stores import segment as writer
from sadih_dask.stores.manifest import KEPT_GENERATIONS


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the disk: that bytes survive a power cut cannot be observed here."""
    monkeypatch.setattr("os.fsync", lambda _: None)


def table(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(first, last)
    return np.stack([numbers, -numbers], axis=1).astype(np.float32), numbers


@pytest.mark.parametrize(
    ("shard_rows", "compression"), [(None, "none"), (None, "zstd"), (8, "zstd")]
)
@pytest.mark.parametrize("cuts", [(0, 3, 4, 11, 40), (5, 8, 16, 17, 33), (8, 16, 24, 24, 25)])
def test_every_commit_reads_and_verifies_after_all_later_ones(
    tmp_path: Path, cuts: tuple[int, ...], shard_rows: int | None, compression: str
) -> None:
    store = FeatureStore.create(
        tmp_path / "s",
        *table(0, cuts[0]),
        chunk_rows=4,
        shard_rows=shard_rows,
        compression=compression,
    )
    commits = [pickle.dumps(store)]
    prints = [store.fingerprint()]
    for first, last in pairwise(cuts):
        store.append(*table(first, last), at=first)
        commits.append(pickle.dumps(store))
        prints.append(store.fingerprint())
    for n_rows, commit, fingerprint in zip(cuts, commits, prints, strict=True):
        earlier = pickle.loads(commit)
        assert earlier.n_rows == n_rows
        assert earlier.verify().ok
        np.testing.assert_array_equal(earlier.read("features"), table(0, n_rows)[0])
        assert store.fingerprint(n_rows) == fingerprint
    np.testing.assert_array_equal(store.to_zarr()["labels"][:], np.arange(cuts[-1]))


def test_an_append_that_fails_before_its_commit_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FeatureStore.create(tmp_path / "s", *table(0, 6), chunk_rows=4)
    held = pickle.dumps(store)

    def broken(*_: object) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr(appending, "publish", broken)
    with pytest.raises(RuntimeError, match="power cut"):
        store.append(*table(100, 120))
    monkeypatch.undo()
    for opened in (FeatureStore.open(tmp_path / "s"), pickle.loads(held)):
        assert opened.n_rows == 6
        assert opened.verify().ok
        np.testing.assert_array_equal(opened.read("labels"), np.arange(6))
    store.append(*table(6, 9))
    np.testing.assert_array_equal(store.read("labels"), np.arange(9))
    assert store.verify().ok


@pytest.mark.parametrize("shard_rows", [None, 12])
@pytest.mark.parametrize("n_old", [0, 5, 12, 17, 24])
@pytest.mark.parametrize("fails_after", [0, 1, 2, 99])
def test_an_append_with_a_name_goes_on(
    tmp_path: Path,
    n_old: int,
    shard_rows: int | None,
    fails_after: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = FeatureStore.create(
        tmp_path / "s", *table(0, n_old), chunk_rows=4, shard_rows=shard_rows
    )
    write_block, calls = appending.write_block, iter(range(1000))

    def failing(*block: Any) -> Any:
        if next(calls) >= fails_after:
            raise RuntimeError("power cut")
        return write_block(*block)

    def power_cut() -> None:
        raise RuntimeError("power cut")

    rows = table(n_old, 41)
    with monkeypatch.context() as patch:
        patch.setattr(appending, "write_block", failing)
        with pytest.raises(RuntimeError, match="power cut"):
            store.append(*rows, resume_key="these", before_commit=power_cut)
    assert FeatureStore.open(tmp_path / "s").verify().ok
    seen: list[int] = []
    n_resumed = store.append(*rows, resume_key="these", progress=lambda n, _: seen.append(n))
    assert (n_resumed > 0) == (fails_after > 0)
    assert n_resumed == 41 - n_old or fails_after < 99
    assert (seen[0], seen[-1]) == (n_resumed, 41 - n_old)
    assert store.verify().ok
    np.testing.assert_array_equal(store.read("features"), table(0, 41)[0])
    np.testing.assert_array_equal(store.to_zarr()["labels"][:], np.arange(41))
    assert not (tmp_path / "s/_commits/pending").exists()


def test_other_names_other_rows_and_no_name_begin_anew(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", *table(0, 6), chunk_rows=4)

    def stop() -> None:
        raise KeyboardInterrupt

    seen: list[int] = []
    for key, n_rows in (("other", 30), ("these", 29), (None, 30)):
        with pytest.raises(KeyboardInterrupt):
            store.append(*table(106, 136), resume_key="these", before_commit=stop)
        with pytest.raises(KeyboardInterrupt):
            store.append(*table(6, 6 + n_rows), resume_key=key, before_commit=stop)
        # So the first one has lost its blocks too
        seen.clear()
        with pytest.raises(KeyboardInterrupt):
            store.append(
                *table(106, 136),
                resume_key="these",
                before_commit=stop,
                progress=lambda n, _: seen.append(n),
            )
        assert seen[0] == 0
    store.append(*table(6, 9))
    np.testing.assert_array_equal(store.read("labels"), np.arange(9))
    assert sorted(path.name for path in (tmp_path / "s/labels").glob("c.*")) == [
        "c.0",
        "c.1",
        "c.2",
    ]


def test_attributes_alone_can_be_committed(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", *table(0, 6), chunk_rows=4)
    store.append(*table(6, 6), properties={"note": "x"})
    assert (store.n_rows, store.generation, store.properties["note"]) == (6, 2, "x")
    assert store.verify().ok
    store.append(*table(6, 9))
    np.testing.assert_array_equal(store.read("labels"), np.arange(9))


def test_a_writer_killed_right_after_the_commit_leaves_a_good_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FeatureStore.create(tmp_path / "s", *table(0, 6), chunk_rows=4)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_array_documents", lambda *_: (_ for _ in ()).throw(OSError))
        with pytest.raises(OSError, match="commit 2 could not be written"):
            store.append(*table(6, 9))
    reopened = FeatureStore.open(tmp_path / "s")
    assert reopened.n_rows == 9
    reopened.append(*table(9, 30))
    assert FeatureStore.open(tmp_path / "s").to_zarr()["features"].shape == (30, 2)


def test_a_repeated_append_is_refused_by_its_row(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", *table(0, 6))
    store.append(*table(6, 9), at=6)
    with pytest.raises(ConflictError, match="has 9 rows, but rows were to be appended at row 6"):
        store.append(*table(6, 9), at=6)


def test_two_objects_append_one_after_the_other(tmp_path: Path) -> None:
    one = FeatureStore.create(tmp_path / "s", *table(0, 6), chunk_rows=4)
    other = FeatureStore.open(tmp_path / "s")
    one.append(*table(6, 9))
    other.append(*table(9, 12))
    np.testing.assert_array_equal(other.read("labels"), np.arange(12))
    assert one.n_rows == 9


def test_old_commits_are_dropped_in_the_end(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", *table(0, 1), chunk_rows=4)
    held = pickle.dumps(store)
    for row in range(1, KEPT_GENERATIONS + 3):
        store.append(*table(row, row + 1))
    assert len(list((tmp_path / "s/_commits").glob("manifest-*"))) == KEPT_GENERATIONS
    with pytest.raises(ConflictError, match="commit 1 is no longer kept"):
        pickle.loads(held)


def test_class_names_may_only_grow(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", *table(0, 6), class_names=["a", "b"])
    store.append(*table(6, 9), class_names=["a", "b", "c"])
    assert store.class_names == ("a", "b", "c")
    with pytest.raises(InputError, match="must begin with those that the store has already"):
        store.append(*table(9, 10), class_names=["b"])


def test_rows_that_do_not_fit_the_store_are_refused(tmp_path: Path) -> None:
    features, labels = table(0, 6)
    ids = np.array(["a", "b", "c", "d", "e", "f"])
    store = FeatureStore.create(tmp_path / "s", features, labels, ids=ids)
    with pytest.raises(InputError, match="has features, labels, ids; ids not given"):
        store.append(features, labels)
    with pytest.raises(InputError, match="was created without thumbnails"):
        store.append(features, labels, ids, np.zeros((6, 2, 2), np.uint8))
    with pytest.raises(DtypeError, match=r"features are float64, the store keeps float32"):
        store.append(features.astype(np.float64), labels, ids)
    with pytest.raises(InputError, match=r"features have shape \(6, 3\), expected \(rows, 2\)"):
        store.append(np.zeros((6, 3), np.float32), labels, ids)
    with pytest.raises(InputError, match="id of row 1 has 4 bytes, the store keeps 1"):
        store.append(features[:2], labels[:2], np.array(["x", "long"]))
    with pytest.raises(DtypeError, match="the store has utf8 ids, got int64"):
        store.append(features, labels, labels)
    assert FeatureStore.open(tmp_path / "s").n_rows == 6


def test_nothing_to_append_is_no_commit(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", *table(0, 6))
    store.append(*table(6, 6))
    assert (store.n_rows, store.generation) == (6, 1)
