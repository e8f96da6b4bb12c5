"""Files into feature stores: every form of labels, resuming, appending, and what is refused."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from sadih_dask.errors import ConflictError, IncompleteError, InputError, LabelError
from sadih_dask.ingest import DataFiles, ingest
from sadih_dask.ingest.inputs import open_inputs
from sadih_dask.ingest.selection import Feed
from sadih_dask.stores import FeatureStore
from sadih_dask.stores.features import FeatureWriter

Usage = namedtuple("Usage", "total used free")


def saved(path: Path, array: Any) -> Path:
    np.save(path, np.asarray(array))
    return path


@pytest.fixture
def x(tmp_path: Path) -> Path:
    return saved(tmp_path / "x.npy", np.arange(300, dtype=np.float32).reshape(100, 3))


@pytest.fixture
def y(tmp_path: Path) -> Path:
    return saved(tmp_path / "y.npy", np.arange(100) % 4)


def at(tmp_path: Path) -> Path:
    return tmp_path / "s.zarr"


# -- what goes in ----------------------------------------------------------------------------------


def test_rows_labels_ids_and_thumbnails_arrive_as_they_are(
    tmp_path: Path, x: Path, y: Path
) -> None:
    ids = saved(tmp_path / "ids.npy", [f"row-{k}-ä" for k in range(100)])
    pictures = saved(tmp_path / "t.npy", np.arange(400).astype(np.uint8).reshape(100, 2, 2))
    done = ingest(DataFiles(x, y, ids, pictures), at(tmp_path), chunk_rows=16)
    assert (done.n_new, done.n_kept, done.n_dropped) == (100, 0, 0)
    store = FeatureStore.open(at(tmp_path))
    np.testing.assert_array_equal(store.read("features"), np.load(x))
    np.testing.assert_array_equal(store.read("labels"), np.load(y))
    np.testing.assert_array_equal(store.read("ids"), np.load(ids))
    np.testing.assert_array_equal(store.read("thumbnails"), np.load(pictures))
    assert store.class_names == ("0", "1", "2", "3")
    assert store.verify().ok


def test_class_names_are_discovered_or_given(tmp_path: Path, x: Path) -> None:
    y = saved(tmp_path / "y.npy", ["cat", "ant"] * 50)
    assert ingest(DataFiles(x, y), at(tmp_path)).store.class_names == ("ant", "cat")
    named = ingest(DataFiles(x, y, class_names=["cat", "dog", "ant"]), tmp_path / "t").store
    np.testing.assert_array_equal(named.read("labels"), [0, 2] * 50)


def test_shards_are_one_data_set(tmp_path: Path) -> None:
    for k in (1, 2, 10):
        saved(tmp_path / f"x{k}.npy", np.full((7, 2), k, np.float32))
    store = ingest(DataFiles(str(tmp_path / "x*.npy")), at(tmp_path), chunk_rows=4).store
    np.testing.assert_array_equal(store.read("features")[:, 0], np.repeat([1, 2, 10], 7))
    assert "labels" not in store.arrays


def test_labels_beside_the_features_are_found_by_their_name(tmp_path: Path) -> None:
    rows, labels = np.ones((6, 2), np.float32), np.arange(6) % 2
    np.savez(tmp_path / "a.npz", features=rows, labels=labels, ids=np.arange(6))
    np.savez(tmp_path / "b.npz", features=rows, ids=np.arange(6))
    np.savez(tmp_path / "c.npz", features=rows, labels=labels, y=labels)
    found = ingest(DataFiles(tmp_path / "a.npz"), at(tmp_path)).store
    np.testing.assert_array_equal(found.read("labels"), labels)
    assert "labels" not in ingest(DataFiles(tmp_path / "b.npz"), tmp_path / "b").store.arrays
    with pytest.raises(InputError, match="'labels' and 'y' could both be the labels"):
        ingest(DataFiles(tmp_path / "c.npz"), tmp_path / "c")
    chosen = DataFiles(tmp_path / "c.npz", labels_variable="y")
    assert "labels" in ingest(chosen, tmp_path / "c").store.arrays


@pytest.mark.parametrize(
    ("source", "wish", "stored"),
    [
        ("uint8", None, "float32"),
        ("int64", None, "float32"),
        ("float64", None, "float64"),
        ("float64", "float32", "float32"),
        ("float32", "float16", "float16"),
        ("int32", "float64", "float64"),
    ],
)
def test_types(tmp_path: Path, source: str, wish: str | None, stored: str) -> None:
    rows = np.arange(20).reshape(10, 2).astype(source)
    store = ingest(DataFiles(saved(tmp_path / "x.npy", rows)), at(tmp_path), dtype=wish).store
    assert store.dtype("features") == stored
    np.testing.assert_array_equal(store.read("features"), rows)


@pytest.mark.parametrize(
    ("value", "source", "dtype", "message"),
    [
        (70_000.0, "float32", "float16", r"row 7, column 1: 70000.0 is too large as float16"),
        (1e300, "float64", "float32", r"row 7, column 1: 1e\+300 is too large as float32"),
        (2**24 + 1, "int64", None, r"16777217 cannot be kept exactly as float32.*'float64'"),
        (2**20, "int32", "float16", r"1048576 cannot be kept exactly as float16"),
    ],
)
def test_a_number_that_the_type_cannot_hold_is_refused_by_row(
    tmp_path: Path, value: float, source: str, dtype: str | None, message: str
) -> None:
    rows = np.zeros((10, 2), source)
    rows[7, 1] = value
    path = saved(tmp_path / "x.npy", rows)
    with pytest.raises(InputError, match=message):
        ingest(DataFiles(path), at(tmp_path), dtype=dtype)


@pytest.mark.parametrize("chunk_rows", [3, 64])
@pytest.mark.parametrize("segment", [5, 65_536])
def test_unlabelled_rows_are_refused_or_dropped_in_every_array(
    tmp_path: Path, x: Path, chunk_rows: int, segment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sadih_dask.ingest.selection._SEGMENT_ROWS", segment)
    labels = np.random.default_rng(0).random((100, 3)) < 0.3
    labels[10:25] = False
    kept = labels.any(axis=1)
    y = saved(tmp_path / "y.npy", labels.astype(np.uint8))
    ids = saved(tmp_path / "ids.npy", np.arange(100))
    with pytest.raises(LabelError, match=r"y.npy row \d+: has no label"):
        ingest(DataFiles(x, y, ids), at(tmp_path))
    done = ingest(DataFiles(x, y, ids, unlabelled="drop"), at(tmp_path), chunk_rows=chunk_rows)
    assert done.n_dropped == 100 - kept.sum()
    np.testing.assert_array_equal(done.store.read("ids"), np.flatnonzero(kept))
    np.testing.assert_array_equal(done.store.read("features"), np.load(x)[kept])
    np.testing.assert_array_equal(done.store.read("labels"), labels[kept])


# -- what is refused before anything is written ----------------------------------------------------


def test_row_counts_are_compared_first(tmp_path: Path, x: Path, y: Path) -> None:
    short = saved(tmp_path / "short.npy", np.arange(99))
    for files in (DataFiles(x, short), DataFiles(x, y, short)):
        with pytest.raises(InputError, match=r"short\.npy.*99"):
            ingest(files, at(tmp_path))
    assert not at(tmp_path).exists()


def test_a_disk_without_room_is_refused_with_both_numbers(
    tmp_path: Path, x: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 1000))
    with pytest.raises(InputError, match=r"need 1049776 bytes .* has 1000 free"):
        ingest(DataFiles(x), at(tmp_path))
    assert not at(tmp_path).exists()


def test_strangers_are_left_alone(tmp_path: Path, x: Path) -> None:
    with pytest.raises(ConflictError, match=r"x\.npy is a file, not a store"):
        ingest(DataFiles(x), x)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "letter.txt").write_text("dear")
    with pytest.raises(ConflictError, match=r"letter\.txt.* left alone"):
        ingest(DataFiles(x), tmp_path / "folder")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["letter.txt"]


def test_a_finished_store_is_only_replaced_on_request(tmp_path: Path, x: Path, y: Path) -> None:
    ingest(DataFiles(x, y), at(tmp_path))
    assert ingest(DataFiles(x, y), at(tmp_path)).n_new == 0
    other = saved(tmp_path / "other.npy", np.ones((5, 3), np.float32))
    with pytest.raises(ConflictError, match=r"finished store of 100 rows.*append.*overwrite"):
        ingest(DataFiles(other), at(tmp_path))
    assert FeatureStore.open(at(tmp_path)).n_rows == 100
    assert ingest(DataFiles(other), at(tmp_path), mode="overwrite").store.n_rows == 5


# -- interrupted -----------------------------------------------------------------------------------


def interrupt(monkeypatch: pytest.MonkeyPatch, files: DataFiles, url: Path, *, after: int) -> None:
    """Ingest in blocks of 10 rows, but let only the first few be written."""
    write, calls = FeatureWriter.write_arrays, iter(range(1000))

    def failing(self: FeatureWriter, start: int, rows: Any) -> Any:
        if next(calls) >= after:
            raise KeyboardInterrupt
        return write(self, start, rows)

    with monkeypatch.context() as patch, dask.config.set(scheduler="synchronous"):
        patch.setattr(FeatureWriter, "write_arrays", failing)
        with pytest.raises(KeyboardInterrupt):
            ingest(files, url, chunk_rows=10)


def test_an_interrupted_ingestion_goes_on(
    tmp_path: Path, x: Path, y: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, DataFiles(x, y), at(tmp_path), after=4)
    with pytest.raises(IncompleteError, match="no rows yet"):
        FeatureStore.open(at(tmp_path))
    seen: list[tuple[int, int]] = []
    done = ingest(DataFiles(x, y), at(tmp_path), chunk_rows=10, progress=lambda *n: seen.append(n))
    assert (done.n_kept, done.n_new) == (40, 60)
    assert seen[0] == (40, 100)
    assert seen[-1] == (100, 100)
    assert [n for n, _ in seen] == sorted(n for n, _ in seen)
    np.testing.assert_array_equal(done.store.read("features"), np.load(x))
    np.testing.assert_array_equal(done.store.read("labels"), np.load(y))


def test_rows_of_bytes_that_were_put_back_are_not_gone_on_with(
    tmp_path: Path, x: Path, y: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks that are there may be of what the file held in between."""
    interrupt(monkeypatch, DataFiles(x, y), at(tmp_path), after=4)
    x.write_bytes(x.read_bytes())
    with pytest.raises(ConflictError, match=r"changed since.*mode='overwrite'"):
        ingest(DataFiles(x, y), at(tmp_path), chunk_rows=10)
    done = ingest(DataFiles(x, y), at(tmp_path), chunk_rows=10, mode="overwrite")
    np.testing.assert_array_equal(done.store.read("features"), np.load(x))


@pytest.mark.parametrize("changed", ["x.npy", "y.npy"])
def test_a_source_that_changed_meanwhile_is_refused(
    tmp_path: Path, x: Path, y: Path, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, DataFiles(x, y), at(tmp_path), after=4)
    saved(tmp_path / changed, np.load(tmp_path / changed)[::-1])
    with pytest.raises(ConflictError, match=r"changed since.*mode='overwrite'"):
        ingest(DataFiles(x, y), at(tmp_path), chunk_rows=10)
    done = ingest(DataFiles(x, y), at(tmp_path), chunk_rows=10, mode="overwrite")
    assert done.n_new == 100


def test_a_source_that_changes_while_it_is_read_is_not_committed(
    tmp_path: Path, x: Path, y: Path
) -> None:
    with pytest.raises(ConflictError, match="changed while it was being read"):
        ingest(DataFiles(x, y), at(tmp_path), progress=lambda *_: os.utime(y, ns=(1, 1)))
    with pytest.raises(IncompleteError, match="incomplete"):
        FeatureStore.open(at(tmp_path))


def test_other_options_do_not_go_on_with_what_is_there(
    tmp_path: Path, x: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, DataFiles(x), at(tmp_path), after=4)
    for files, form in (
        (DataFiles(x, scale=2.0), {"chunk_rows": 10}),
        (DataFiles(x), {"chunk_rows": 10, "dtype": "float64"}),
        (DataFiles(x), {"chunk_rows": 20}),
    ):
        with pytest.raises(ConflictError, match=r"other options|another plan"):
            ingest(files, at(tmp_path), **form)  # type: ignore[arg-type]


# -- appended --------------------------------------------------------------------------------------


def test_files_are_added_once(tmp_path: Path, x: Path, y: Path) -> None:
    more_x = saved(tmp_path / "x2.npy", np.full((7, 3), 9, np.float32))
    more_y = saved(tmp_path / "y2.npy", [0, 7, 7, 1, 8, 0, 0])
    first = ingest(DataFiles(x, y), at(tmp_path), chunk_rows=10, mode="append")
    assert first.n_new == 100  # there was no store yet
    both = DataFiles([x, more_x], [y, more_y])
    seen: list[tuple[int, int]] = []
    done = ingest(both, at(tmp_path), mode="append", progress=lambda *n: seen.append(n))
    assert (done.n_new, done.n_kept, done.n_passed_over) == (7, 100, 1)
    assert seen[-1] == (7, 7)
    assert done.store.class_names == ("0", "1", "2", "3", "7", "8")
    np.testing.assert_array_equal(done.store.read("labels")[100:], [0, 4, 4, 1, 5, 0, 0])
    np.testing.assert_array_equal(done.store.read("features")[100:], np.load(more_x))
    again = ingest(both, at(tmp_path), mode="append")
    assert (again.n_new, again.n_passed_over) == (0, 2)
    assert again.store.n_rows == 107
    assert again.store.verify().ok


@pytest.mark.parametrize(
    ("names", "added", "classes", "numbers"),
    [
        (["1", "2", "unknown"], [1, 2], ("1", "2", "unknown"), [0, 1]),
        (["1", "2", "unknown"], [2, 7], ("1", "2", "unknown", "7"), [1, 3]),
        (["01", "02", "10"], [1, 10, 3], ("01", "02", "10", "3"), [0, 2, 3]),
        (["ant", "bee", "cat"], [2, 0], ("ant", "bee", "cat"), [2, 0]),
        (["ant", "bee", "cat"], ["bee", "1"], ("ant", "bee", "cat", "1"), [1, 3]),
    ],
)
def test_added_labels_mean_the_classes_of_the_store(
    tmp_path: Path, names: list[str], added: list[Any], classes: tuple[str, ...], numbers: list[int]
) -> None:
    y = saved(tmp_path / "y.npy", names)
    ingest(DataFiles(saved(tmp_path / "x.npy", np.eye(3)), y), at(tmp_path))
    more = saved(tmp_path / "x2.npy", np.eye(3)[: len(added)])
    done = ingest(DataFiles(more, saved(tmp_path / "y2.npy", added)), at(tmp_path), mode="append")
    assert done.store.class_names == classes
    assert done.store.read("labels")[3:].tolist() == numbers


def test_a_moved_file_is_known_and_a_changed_one_refused(tmp_path: Path, x: Path, y: Path) -> None:
    ingest(DataFiles(x, y), at(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    moved = Path(shutil.move(x, tmp_path / "elsewhere"))
    assert ingest(DataFiles(moved, y), at(tmp_path), mode="append").n_new == 0
    saved(x, np.zeros((100, 3), np.float32))
    with pytest.raises(ConflictError, match=r"x\.npy was ingested before and has changed since"):
        ingest(DataFiles(x, y), at(tmp_path), mode="append")


def test_equal_names_in_other_folders_are_other_files(tmp_path: Path) -> None:
    for day in ("monday", "tuesday"):
        (tmp_path / day).mkdir()
        path = saved(tmp_path / day / "part.npy", np.full((5, 2), len(day), np.float32))
        os.utime(path, ns=(1, 1))  # as archives with fixed dates have it
        ingest(DataFiles(path), at(tmp_path), mode="append")
    assert FeatureStore.open(at(tmp_path)).n_rows == 10


def test_numbers_are_class_numbers_where_the_store_has_names(tmp_path: Path, x: Path) -> None:
    y = saved(tmp_path / "y.npy", np.arange(100) % 2)
    ingest(DataFiles(x, y, class_names=["ant", "cat"]), at(tmp_path))
    more = saved(tmp_path / "x2.npy", np.ones((2, 3), np.float32))
    good, bad = saved(tmp_path / "g.npy", [1, 0]), saved(tmp_path / "b.npy", [1, 2])
    with pytest.raises(LabelError, match="label 2 is none of the 2 classes"):
        ingest(DataFiles(more, bad), at(tmp_path), mode="append")
    store = ingest(DataFiles(more, good), at(tmp_path), mode="append").store
    np.testing.assert_array_equal(store.read("labels")[100:], [1, 0])
    assert store.class_names == ("ant", "cat")


def test_label_columns_of_a_store_are_fixed(tmp_path: Path, x: Path) -> None:
    text = tmp_path / "y.csv"
    text.write_text("tags\n" + "a;b\n" * 50 + "b\n" * 50)
    ingest(DataFiles(x, text, separator=";"), at(tmp_path))
    more = saved(tmp_path / "x2.npy", np.ones((2, 3), np.float32))
    other = tmp_path / "other.csv"
    other.write_text("tags\nb\nb;a\n")
    done = ingest(DataFiles(more, other, separator=";"), at(tmp_path), mode="append")
    np.testing.assert_array_equal(done.store.read("labels")[100:], [[0, 1], [1, 1]])
    last = saved(tmp_path / "x3.npy", np.zeros((2, 3), np.float32))
    other.write_text("tags\nb\nz;a\n")
    with pytest.raises(LabelError, match="'z' is none of the 2 labels of the store"):
        ingest(DataFiles(last, other, separator=";"), at(tmp_path), mode="append")
    matrix = saved(tmp_path / "m.npy", np.ones((2, 3), np.uint8))
    with pytest.raises(LabelError, match="has 3 label columns, the store has 2"):
        ingest(DataFiles(last, matrix), at(tmp_path), mode="append")


@pytest.mark.parametrize(
    ("change", "form", "message"),
    [
        ({"labels": None}, {}, "has features, labels; features were given"),
        ({"features": "wide.npy"}, {}, "rows have 4 features, those of .* have 3"),
        ({}, {"dtype": "float64"}, "has dtype='float32', and appending cannot change that"),
        ({}, {"chunk_rows": 7}, "has chunk_rows=10, and appending cannot change that"),
        ({"labels": "m.npy"}, {}, "several labels a row.* one label a row"),
    ],
)
def test_rows_of_another_form_are_not_added(
    tmp_path: Path,
    x: Path,
    y: Path,
    change: dict[str, Any],
    form: dict[str, Any],
    message: str,
) -> None:
    ingest(DataFiles(x, y), at(tmp_path), chunk_rows=10)
    saved(tmp_path / "new.npy", np.ones((2, 3), np.float32))
    saved(tmp_path / "wide.npy", np.ones((2, 4), np.float32))
    saved(tmp_path / "l.npy", [0, 1])
    saved(tmp_path / "m.npy", np.ones((2, 4), np.uint8))
    names = {"features": "new.npy", "labels": "l.npy", **change}
    files = DataFiles(**{key: name and tmp_path / name for key, name in names.items()})
    with pytest.raises(InputError, match=message):
        ingest(files, at(tmp_path), mode="append", **form)
    assert FeatureStore.open(at(tmp_path)).n_rows == 100


def test_unlabelled_rows_of_new_files_are_dropped_too(tmp_path: Path, x: Path) -> None:
    y = saved(tmp_path / "y.npy", np.tile([[1, 0], [0, 1]], (50, 1)))
    ingest(DataFiles(x, y, unlabelled="drop"), at(tmp_path), chunk_rows=16)
    more = saved(tmp_path / "x2.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    more_y = saved(tmp_path / "y2.npy", [[0, 0], [1, 1], [0, 0], [0, 1]])
    both = DataFiles([x, more], [y, more_y], unlabelled="drop")
    done = ingest(both, at(tmp_path), mode="append")
    assert (done.n_new, done.n_dropped) == (2, 2)
    np.testing.assert_array_equal(done.store.read("features")[100:], np.load(more)[[1, 3]])


def test_of_files_with_everything_in_them_only_new_ones_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, labels = np.ones((6, 2), np.float32), np.array(["b", "c"] * 3)
    for k in range(3):
        np.savez(tmp_path / f"x{k}.npz", features=rows + k, labels=labels)
    ingest(DataFiles(str(tmp_path / "x*.npz")), at(tmp_path))
    np.savez(tmp_path / "x1b.npz", features=rows, labels=np.array(["c", "a", "d"] * 2))
    opened: list[Any] = []
    monkeypatch.setattr(
        "sadih_dask.ingest.ingestion.open_inputs",
        lambda files, known: opened.append(files.features) or open_inputs(files, known),
    )
    done = ingest(DataFiles(str(tmp_path / "x*.npz")), at(tmp_path), mode="append")
    assert opened == [(str(tmp_path / "x1b.npz"),)]
    assert (done.n_new, done.n_files, done.n_passed_over) == (6, 4, 3)
    assert done.store.class_names == ("b", "c", "a", "d")
    np.testing.assert_array_equal(done.store.read("labels")[18:], [1, 2, 3] * 2)
    assert ingest(DataFiles(str(tmp_path / "x*.npz")), at(tmp_path), mode="append").n_new == 0
    assert len(opened) == 1


def test_memory_is_a_few_blocks(tmp_path: Path, x: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No task asks a source for more than a block, and each row is read once."""
    asked: list[tuple[int, int]] = []
    rows = Feed.rows
    monkeypatch.setattr(
        Feed, "rows", lambda self, i, j: (asked.append((i, j)), rows(self, i, j))[1]
    )
    ingest(DataFiles(x), at(tmp_path), chunk_rows=16)
    assert sorted(asked) == [(k, min(k + 16, 100)) for k in range(0, 100, 16)]


def test_a_feed_reads_any_range(tmp_path: Path, x: Path) -> None:
    labels = np.zeros((100, 2), np.uint8)
    labels[::3, 0] = 1
    y = saved(tmp_path / "y.npy", labels)
    inputs = open_inputs(DataFiles(x, y, unlabelled="drop"))
    feed = Feed(inputs, "float32", "drop", [(5, 40), (50, 95)])
    expected = [row for row in (*range(5, 40), *range(50, 95)) if row % 3 == 0]
    assert feed.n_rows == len(expected)
    for first, last in ((0, feed.n_rows), (3, 3), (4, 19), (feed.n_rows - 1, feed.n_rows)):
        found = feed.read("features", first, last)
        np.testing.assert_array_equal(found, np.load(x)[expected[first:last]])
