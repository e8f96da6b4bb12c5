"""An ingestion as tasks: how files are cut, that order and threads change nothing, and memory."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from sadih_dask.errors import MemoryPlanError, NonFiniteError
from sadih_dask.ingest import DataFiles, HoldOut, ingest
from sadih_dask.ingest.inputs import open_inputs
from sadih_dask.ingest.selection import Feed
from sadih_dask.stores import FeatureStore
from tests.support.sources import FORMS, npy, numbered, written


def saved(path: Path, array: Any) -> str:
    np.save(path, np.asarray(array))
    return str(path)


def cut(files: DataFiles, block_rows: int = 10, most: int = 2, **options: Any) -> Any:
    feed = Feed(open_inputs(files), "float32", files.unlabelled, hold_out=files.hold_out)
    units, apart = feed.units(range(-(-feed.n_rows // block_rows)), block_rows, most)
    return [(unit.start, unit.stop) for unit in units], apart


def test_arrays_are_cut_anywhere_and_streams_by_the_file(tmp_path: Path) -> None:
    x = saved(tmp_path / "x.npy", np.ones((50, 2)))
    assert cut(DataFiles(x)) == ([(0, 2), (2, 4), (4, 5)], ())
    streams = [tmp_path / f"{k}.npy.gz" for k in range(2)]
    for path in streams:
        path.write_bytes(gzip.compress(npy(np.ones((35, 2)))))
    # Rows 30 to 39 are those of both; the second task begins behind them
    assert cut(DataFiles(streams)) == ([(0, 4), (4, 7)], ())


def test_tables_are_cut_at_row_groups(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(200)), 2)
    table = pa.table({"features": vectors, "labels": np.arange(100) % 3})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=45)
    # Groups begin at rows 0, 45 and 90
    assert cut(DataFiles(tmp_path / "x.parquet"))[0] == [(0, 5), (5, 9), (9, 10)]


def test_labels_in_one_stream_do_not_hold_the_features_together(tmp_path: Path) -> None:
    x, y = saved(tmp_path / "x.npy", np.ones((50, 2))), tmp_path / "y.csv"
    y.write_text("label\n" + "\n".join("abcde"[k % 5] for k in range(50)))
    assert cut(DataFiles(x, y)) == ([(0, 2), (2, 4), (4, 5)], ("labels",))
    files = DataFiles(x, y, hold_out=HoldOut(0.3))
    assert cut(files)[1] == ("labels",)
    store = ingest(DataFiles(x, y), tmp_path / "s", chunk_rows=10).store
    np.testing.assert_array_equal(store.read("labels"), np.arange(50) % 5)
    assert store.verify().ok


def test_labels_that_decide_are_read_by_who_reads_the_rows(tmp_path: Path) -> None:
    x, y = saved(tmp_path / "x.npy", np.ones((50, 2))), tmp_path / "y.csv"
    y.write_text("label\n" + "\n".join("a|b" if k % 3 else "|" for k in range(50)))
    files = DataFiles(x, y, separator="|", unlabelled="drop")
    assert cut(files) == ([(0, 4)], ())
    assert ingest(files, tmp_path / "s", chunk_rows=10).n_dropped == 17


@pytest.mark.parametrize("form", FORMS)
def test_the_store_is_the_same_whatever_the_format_and_the_threads(
    tmp_path: Path, form: str
) -> None:
    path = written(form, tmp_path)
    labels = {} if form in ("npy.gz", "fortran.npy", "sparse.npz", "coo.npz") else {"labels"}
    found = []
    for threads in (1, 4):
        with dask.config.set(num_workers=threads):
            found.append(ingest(DataFiles(path), tmp_path / f"s{threads}", chunk_rows=16).store)
    assert found[0].fingerprint() == found[1].fingerprint()
    values = found[0].read("features")
    np.testing.assert_array_equal(values, numbered(0, 300))
    assert set(found[0].arrays) == {"features", *labels}
    if labels:
        np.testing.assert_array_equal(found[0].read("labels"), np.arange(300) % 3)


@pytest.mark.parametrize("form", ["npz", "parquet", "csv", "h5", "zarr", "mat", "stored.npz"])
def test_a_feed_travels_and_a_task_reads_on_its_own(tmp_path: Path, form: str) -> None:
    whole = Feed(open_inputs(DataFiles(written(form, tmp_path))), "float32")
    feed = pickle.loads(pickle.dumps(whole))
    assert len(pickle.dumps(whole)) < 5_000
    late, early = feed.reopened(200, 300), feed.reopened(0, 100)
    for k in range(0, 100, 25):  # in turns, as threads do
        for own, first in ((late, 200 + k), (early, k)):
            found = own.rows(first, first + 25)
            np.testing.assert_array_equal(found["features"], numbered(first, first + 25))
            np.testing.assert_array_equal(found["labels"], np.arange(first, first + 25) % 3)


def test_a_bad_row_is_named_and_nothing_is_there(tmp_path: Path) -> None:
    rows = numbered(0, 100)
    rows[77, 1] = np.nan
    x = saved(tmp_path / "x.npy", rows)
    with pytest.raises(NonFiniteError, match=r"x\.npy row 77, column 1: is nan"):
        ingest(DataFiles(x), tmp_path / "s", chunk_rows=8)


def test_what_does_not_fit_is_refused_before_it_starts(tmp_path: Path) -> None:
    x = saved(tmp_path / "x.npy", numbered(0, 100))
    with (
        dask.config.set({"sadih.memory-limit": "100MiB"}),
        pytest.raises(MemoryPlanError, match=r"ingestion was not started: .*100.00 MiB are allow"),
    ):
        ingest(DataFiles(x), tmp_path / "s")


SCRIPT = """
import json, re, sys, dask
from sadih_dask.compute import memory
from sadih_dask.ingest import DataFiles, ingest, ingestion
x, target, how = sys.argv[1:]
planned = []
def noted(*task):
    planned.append(memory.check_tasks(*task))
    return planned[0]
ingestion.check_tasks = noted
with dask.config.set(num_workers=2):
    ingest(DataFiles(x), target, compression=how, dtype="float32")
peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
print(json.dumps([planned[0], peak]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the peak of a process")
def test_measured_peak_is_below_the_prediction(tmp_path: Path) -> None:
    x = saved(tmp_path / "x.npy", np.random.default_rng(0).random((150_000, 128)))
    words = [sys.executable, "-c", SCRIPT, x, str(tmp_path / "s"), "zstd"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    predicted, measured = json.loads(done.stdout)
    assert 0.4 * predicted < measured < predicted


def test_arrays_may_be_written_by_several(tmp_path: Path) -> None:
    rows, labels = numbered(0, 20), np.arange(20) % 3
    writer = FeatureStore.allocate(tmp_path / "s", 20, 2, chunk_rows=8)
    for block in writer.missing(["labels"]):
        first, last = writer.rows_of(block)
        writer.write_arrays(first, {"labels": labels[first:last]})
    assert writer.missing(["labels"]) == []
    assert writer.missing() == [0, 1, 2]
    for block in writer.missing():
        first, last = writer.rows_of(block)
        writer.learn(
            pickle.loads(pickle.dumps(writer)).write_arrays(first, {"features": rows[first:last]})
        )
    store = writer.finalise()
    assert store.verify().ok
    expected = FeatureStore.create(tmp_path / "t", rows, labels, chunk_rows=8)
    assert store.fingerprint() == expected.fingerprint()
    assert re.fullmatch("[0-9a-f]+", store.fingerprint())
