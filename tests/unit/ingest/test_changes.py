"""What has changed since a store was made of its files, seen without reading them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from sadih_dask.errors import ConflictError, InputError
from sadih_dask.ingest import Changes, DataFiles, HoldOut, compare, ingest, provenance
from sadih_dask.jobs.inspect import inspect
from sadih_dask.stores import FeatureStore


def saved(path: Path, array: Any, *, age: float = 3600) -> Path:
    np.save(path, np.asarray(array))
    moment = time.time() - age
    os.utime(path, (moment, moment))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five pairs of a feature file and a label file."""
    for k in range(5):
        saved(tmp_path / f"x{k}.npy", np.full((10 + k, 3), k, np.float32))
        saved(tmp_path / f"y{k}.npy", np.arange(10 + k) % 3)
    return tmp_path


def all_of(folder: Path) -> DataFiles:
    return DataFiles(str(folder / "x*.npy"), str(folder / "y*.npy"))


def names(paths: tuple[str, ...]) -> list[str]:
    return [Path(path).name for path in paths]


def has_all_rows(found: Changes) -> bool:
    """Say whether the store has all rows of the files as they are."""
    return found.store == "finished" and not (found.altered or found.new or found.gone)


def seen(folder: Path, **options: Any) -> Changes:
    return compare(all_of(folder), folder / "s", **options)


def test_before_the_first_ingestion_everything_is_new(folder: Path) -> None:
    found = seen(folder)
    assert found.store == "absent"
    assert names(found.new) == [f"x{k}.npy" for k in range(5)]
    assert found.n_new_rows == sum(10 + k for k in range(5))
    assert found.n_new_bytes == sum((folder / f"x{k}.npy").stat().st_size for k in range(5))
    assert not found.altered
    assert not has_all_rows(found)
    assert found.in_words() == ""
    assert not (folder / "s").exists()


def test_afterwards_there_is_nothing_to_do_wherever_the_files_lie(folder: Path) -> None:
    before = seen(folder)
    assert before.files is not None
    ingest(before.files, folder / "s")
    after = seen(folder)
    assert has_all_rows(after)
    assert getattr(inspect(folder / "s"), "n_source_files", None) == 5
    assert (after.n_new_rows, after.n_new_bytes) == (0, 0)
    assert after.fingerprint == before.fingerprint
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    for path in folder.glob("[xy]*.npy"):
        path.rename(elsewhere / path.name)
    moved = compare(all_of(elsewhere), folder / "s")
    assert has_all_rows(moved)
    assert moved.fingerprint == before.fingerprint


def test_the_fingerprint_is_the_same_in_another_process(folder: Path) -> None:
    script = (
        "import sys; from sadih_dask.ingest import *; f = sys.argv[1];"
        "print(compare(DataFiles(f + '/x*.npy', f + '/y*.npy'), f + '/s').fingerprint)"
    )
    command = [sys.executable, "-c", script, str(folder)]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert out.stdout.strip() == seen(folder).fingerprint


def test_new_changed_and_gone_files_are_told_apart(folder: Path) -> None:
    ingest(all_of(folder), folder / "s")
    saved(folder / "x1.npy", np.zeros((11, 3), np.float32), age=10)
    (folder / "x3.npy").unlink()
    (folder / "y3.npy").unlink()
    saved(folder / "x9.npy", np.ones((4, 3), np.float32))
    saved(folder / "y9.npy", np.zeros(4, int))
    found = seen(folder)
    assert names(found.new) == ["x9.npy"]
    assert names(found.changed) == ["x1.npy"]
    assert found.gone == (str(folder / "x3.npy"),)
    assert found.n_new_rows == 4
    assert found.altered
    message = r"changed since their ingestion: .*x1\.npy; no longer among the files: .*x3\.npy$"
    assert re.search(message, found.in_words())
    with pytest.raises(ConflictError, match=r"x1\.npy was ingested before and has changed since"):
        ingest(all_of(folder), folder / "s", mode="append")
    assert found.files is not None
    rebuilt = ingest(found.files, folder / "s", mode="overwrite")
    assert rebuilt.store.n_rows == 10 + 11 + 12 + 14 + 4
    assert has_all_rows(seen(folder))


@pytest.mark.parametrize("where", ["size", "first byte", "middle", "last byte"])
def test_other_contents_count_whatever_the_time_says(folder: Path, where: str) -> None:
    path = saved(folder / "x2.npy", np.zeros((12, 3000), np.float32))
    files = DataFiles(path)
    ingest(files, folder / "s")
    before, data = path.stat(), bytearray(path.read_bytes())
    if where == "size":
        data += b"\0"
    else:
        data[{"first byte": 200, "middle": len(data) // 2, "last byte": -1}[where]] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert names(compare(files, folder / "s").changed) == ["x2.npy"]
    with pytest.raises(ConflictError, match=r"x2\.npy was ingested before and has changed since"):
        ingest(files, folder / "s", mode="append")


def test_another_file_of_equal_name_size_and_time_is_not_passed_over(folder: Path) -> None:
    """Nor if only bytes in the middle of it differ."""
    rows = np.zeros((12, 3000), np.float32)
    first = saved(folder / "x.npy", rows)
    ingest(DataFiles(first), folder / "s")
    rows[6, 1500] = 1
    (folder / "other").mkdir()
    second = saved(folder / "other" / "x.npy", rows)
    times = first.stat()
    os.utime(second, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert compare(DataFiles(second), folder / "s").new == (str(second),)
    done = ingest(DataFiles([first, second]), folder / "s", mode="append")
    assert (done.n_new, done.n_passed_over) == (12, 1)
    np.testing.assert_array_equal(done.store.read("features")[12:], rows)


def test_a_file_that_is_written_again_with_its_bytes_has_not_changed(folder: Path) -> None:
    ingest(all_of(folder), folder / "s")
    for path in folder.glob("[xy]*.npy"):
        held = path.read_bytes()
        path.unlink()
        path.write_bytes(held)
    assert has_all_rows(seen(folder))
    assert ingest(all_of(folder), folder / "s", mode="append").n_passed_over == 5
    assert ingest(all_of(folder), folder / "s").n_new == 0


def test_known_files_are_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest(all_of(folder), folder / "s")
    saved(folder / "x9.npy", np.ones((4, 3), np.float32))
    saved(folder / "y9.npy", np.zeros(4, int))
    read: list[str] = []
    opened = provenance.open_binary
    monkeypatch.setattr(
        provenance, "open_binary", lambda name: (read.append(name), opened(name))[1]
    )
    monkeypatch.setattr(provenance, "_checked", {})  # as in another process
    assert names(seen(folder).new) == ["x9.npy"]
    assert names(tuple(read)) == ["x9.npy", "y9.npy"]
    assert names(seen(folder).new) == ["x9.npy"]
    assert len(read) == 2


def test_a_file_has_the_same_checksums_however_it_is_cut(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = all_of(folder).expanded()
    whole = provenance.look(files)
    monkeypatch.setattr(provenance, "_PIECE", 16)
    monkeypatch.setattr(provenance, "_checked", {})
    small = provenance.look(files)
    assert [mark.content for mark in small.marks] != [mark.content for mark in whole.marks]
    for stretch in (16, 48):  # as tasks
        monkeypatch.setattr(provenance, "_STRETCH", stretch)
        monkeypatch.setattr(provenance, "_checked", {})
        assert provenance.look(files) == small


def test_of_many_files_a_few_are_named(folder: Path) -> None:
    for k in range(10, 20):
        saved(folder / f"x{k}.npy", np.ones((1, 3), np.float32))
        saved(folder / f"y{k}.npy", [0])
    ingest(all_of(folder), folder / "s")
    for k in range(10, 20):
        saved(folder / f"x{k}.npy", np.zeros((1, 3), np.float32))
    assert re.search(r"x10\.npy, .*x14\.npy and 5 more$", seen(folder).in_words())
    with pytest.raises(ConflictError, match=r"x10\.npy, .*x14\.npy and 5 more was ingested"):
        ingest(all_of(folder), folder / "s", mode="append")


def test_changed_labels_matter_where_rows_of_the_store_depend_on_them(folder: Path) -> None:
    ingest(all_of(folder), folder / "s")
    saved(folder / "y2.npy", np.zeros(12, int), age=10)
    found = seen(folder)
    assert names(found.beside) == ["y2.npy"]
    assert found.altered
    assert re.search(r"labels, ids or thumbnails changed: .*y2\.npy$", found.in_words())
    saved(folder / "x9.npy", np.ones((4, 3), np.float32))
    saved(folder / "y9.npy", np.zeros(4, int))
    with pytest.raises(ConflictError, match=r"y2\.npy: is not what rows that are in the store"):
        ingest(all_of(folder), folder / "s", mode="append")
    # Alone, the new files have nothing to do with it.
    new = DataFiles(folder / "x9.npy", folder / "y9.npy")
    assert ingest(new, folder / "s", mode="append").n_new == 4


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 2.0},
        {"unlabelled": "drop"},
        {"separator": ";"},
        {"class_names": ["2", "1", "0"]},
        {"hold_out": HoldOut(0.25)},
    ],
)
def test_other_options_of_reading_are_noticed(folder: Path, options: dict[str, Any]) -> None:
    ingest(all_of(folder), folder / "s")
    found = compare(replace(all_of(folder), **options), folder / "s")
    assert found.options
    assert "other options" in found.in_words()


def test_class_names_may_go_on(folder: Path) -> None:
    ingest(all_of(folder), folder / "s")
    given = replace(all_of(folder), class_names=["0", "1", "2", "3"])
    assert not compare(given, folder / "s").options


def test_files_that_may_still_be_written_wait(folder: Path) -> None:
    saved(folder / "x3.npy", np.ones((13, 3), np.float32), age=5)
    saved(folder / "y4.npy", np.arange(14), age=5)
    found = seen(folder, min_age=60)
    assert names(found.too_young) == ["x3.npy", "y4.npy"]
    assert names(found.new) == ["x0.npy", "x1.npy", "x2.npy"]
    assert "too young to be read yet" in found.in_words()
    assert found.files is not None
    assert ingest(found.files, folder / "s").store.n_rows == 10 + 11 + 12
    assert has_all_rows(seen(folder, min_age=60))
    later = seen(folder, min_age=1)
    assert names(later.new) == ["x3.npy", "x4.npy"]
    assert later.fingerprint != found.fingerprint


def test_a_file_that_is_being_written_again_is_not_gone(folder: Path) -> None:
    ingest(all_of(folder), folder / "s")
    saved(folder / "x3.npy", np.ones((13, 3), np.float32), age=5)
    found = seen(folder, min_age=60)
    assert names(found.too_young) == ["x3.npy"]
    assert found.gone == ()
    assert names(seen(folder, min_age=1).changed) == ["x3.npy"]


@pytest.mark.parametrize("what", ["labels", "ids", "thumbnails"])
def test_files_that_cannot_be_paired_cannot_wait(folder: Path, what: str) -> None:
    one = saved(folder / "all.npy", np.zeros(60, int))
    files = replace(DataFiles(str(folder / "x*.npy")), **{what: one})
    with pytest.raises(InputError, match=f"1 files of {what} for 5 of features.*min_age"):
        compare(files, folder / "s", min_age=1)
    assert compare(files, folder / "s").n_new_rows == 60


def test_files_go_together_by_their_numbers(folder: Path) -> None:
    """All have as many rows of labels, so that counting would not tell."""
    for k in range(5):
        saved(folder / f"x{k}.npy", np.full((10, 3), k, np.float32))
        saved(folder / f"y{k}.npy", np.full(10, k))
    (folder / "y1.npy").rename(folder / "y7.npy")
    with pytest.raises(InputError, match=r"y2.npy would with .*x1.npy, while numbers"):
        ingest(all_of(folder), folder / "s")
    as_a_shell_sorts = [str(folder / f"x{k}.npy") for k in (0, 10, 2)]
    saved(folder / "x10.npy", np.zeros((10, 3), np.float32))
    labels = DataFiles(as_a_shell_sorts, str(folder / "y[023].npy"))
    with pytest.raises(InputError, match=r"y2.npy would with .*x10.npy"):
        ingest(labels, folder / "s")
    said = [str(folder / f"y{k}.npy") for k in (0, 7, 2, 3, 4)]
    both = DataFiles([str(folder / f"x{k}.npy") for k in range(5)], said)
    store = ingest(both, folder / "s").store
    assert [store.class_names[k] for k in store.read("labels")[::10]] == ["0", "1", "2", "3", "4"]
    other = folder / "other"
    other.mkdir()
    for k in range(5):
        saved(other / f"{'abcde'[k]}.npy", np.full(10, k))
    ingest(DataFiles(str(folder / "x[0-4].npy"), str(other)), folder / "t")


def test_a_date_in_the_future_does_not_wait_for_ever(folder: Path) -> None:
    saved(folder / "x3.npy", np.ones((13, 3), np.float32), age=-10_000)
    assert seen(folder, min_age=60).too_young == ()


def test_an_ingestion_that_was_begun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(all_of(folder), folder / "s", progress=stop)
    found = seen(folder)
    assert (found.store, found.goes_on) == ("begun", True)
    assert len(found.new) == 5
    saved(folder / "y1.npy", np.zeros(11, int))
    assert not seen(folder).goes_on
    with pytest.raises(ConflictError, match="files that have changed since"):
        ingest(all_of(folder), folder / "s", mode="append")


def test_a_store_that_was_not_made_of_files(folder: Path) -> None:
    FeatureStore.create(
        folder / "s", np.ones((4, 3), np.float32), np.zeros(4, np.int32), class_names=["0"]
    )
    found = seen(folder)
    assert len(found.new) == 5
    assert not found.altered
    assert ingest(all_of(folder), folder / "s", mode="append").n_new == 60
    assert has_all_rows(seen(folder))


def test_a_missing_file_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.npy: cannot be opened"):
        compare(DataFiles(folder / "nowhere.npy"), folder / "s")


def test_rows_of_many_files_are_estimated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sadih_dask.ingest.changes._MOST_OPENED", 2)
    found = seen(folder)
    assert abs(found.n_new_rows - 60) <= 6


def test_zarr_folders_are_known_by_their_metadata(tmp_path: Path) -> None:
    rows = np.ones((6, 2), np.float32)
    group = zarr.create_group(tmp_path / "source")
    group.create_array("features", data=rows, chunks=(4, 2))
    group.create_array("labels", data=np.zeros(6, int))
    files = DataFiles(tmp_path / "source", features_variable="features")
    ingest(files, tmp_path / "s")
    assert has_all_rows(compare(files, tmp_path / "s"))
    group.create_array("features", data=np.ones((12, 2), np.float32), overwrite=True)
    assert names(compare(files, tmp_path / "s").changed) == ["source"]


def test_other_labels_of_rows_that_are_there_are_not_passed_over(tmp_path: Path) -> None:
    for k, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", np.arange(12.0).reshape(6, 2))
        np.save(tmp_path / name / "y.npy", np.full(6, k))
    first, other = (
        DataFiles(str(tmp_path / name / "x.npy"), labels=str(tmp_path / name / "y.npy"))
        for name in "ab"
    )
    ingest(first, tmp_path / "s.zarr", mode="append")
    assert names(compare(other, tmp_path / "s.zarr").beside) == ["y.npy"]
    with pytest.raises(ConflictError, match=r"y\.npy: is not what rows that are in the store"):
        ingest(other, tmp_path / "s.zarr", mode="append")
    assert ingest(first, tmp_path / "s.zarr", mode="append").n_new == 0
