"""``sadih ingest``: queries held out, young files, and an append that was interrupted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from sadih_dask.ingest import DataFiles, ingest
from sadih_dask.stores import FeatureStore
from tests.support.processes import Here


def saved(path: Path, first: int, last: int) -> Path:
    numbers = np.arange(first, last)
    np.save(path, np.stack([numbers, -numbers], axis=1).astype(np.float32))
    return path


def test_queries_are_held_out_of_every_file_that_comes(tmp_path: Path, here: Here) -> None:
    words = [tmp_path / "d", "--hold-out", 0.25, "--queries", tmp_path / "q", "--seed", 3, "-q"]
    saved(tmp_path / "x1.npy", 0, 400)
    out, _ = here("ingest", tmp_path / "x*.npy", *words)
    assert "methods that need none learn from them (sadih fit --method itq)" in out
    assert out.count("written now") == 2
    saved(tmp_path / "x2.npy", 400, 500)
    here("ingest", tmp_path / "x*.npy", *words, "--append")
    stores = [FeatureStore.open(tmp_path / name) for name in "dq"]
    numbers = np.concatenate([store.read("features")[:, 0] for store in stores])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(500))
    assert 75 < stores[1].n_rows < 175
    words[words.index(3)] = 4
    _, said = here("ingest", tmp_path / "x*.npy", *words, "--append", code=1)
    assert "fraction 0.25, seed 3" in said
    assert "--overwrite" in said


@pytest.mark.parametrize("words", [("--hold-out", 0.1), ("--queries", "q"), ("--hold-out", 0.6)])
def test_hold_out_and_queries_belong_together(
    tmp_path: Path, here: Here, words: tuple[object, ...]
) -> None:
    here("ingest", saved(tmp_path / "x.npy", 0, 9), tmp_path / "d", *words, code=2)
    assert not (tmp_path / "d").exists()


def test_young_files_are_passed_over(tmp_path: Path, here: Here) -> None:
    long_ago = time.time() - 3600
    os.utime(saved(tmp_path / "x1.npy", 0, 40), (long_ago, long_ago))
    saved(tmp_path / "x2.npy", 40, 50)
    out, _ = here("ingest", tmp_path / "x*.npy", tmp_path / "s", "--min-age", 600, "-q")
    assert "1 files are younger than 600 s: passed over." in out
    assert FeatureStore.open(tmp_path / "s").n_rows == 40
    out, _ = here("ingest", tmp_path / "x2.npy", tmp_path / "s", "--min-age", 600, "--append", "-q")
    assert "written now" not in out
    here("ingest", tmp_path / "x*.npy", tmp_path / "s", "--append", "-q")
    assert FeatureStore.open(tmp_path / "s").n_rows == 50


def test_an_interrupted_append_says_what_was_kept(tmp_path: Path, here: Here) -> None:
    old, new = saved(tmp_path / "x1.npy", 0, 40), saved(tmp_path / "x2.npy", 40, 1000)
    ingest(DataFiles(old), tmp_path / "s", chunk_rows=32)

    def stop(done: int, _: int) -> None:
        if done > 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(DataFiles([old, new]), tmp_path / "s", mode="append", progress=stop)
    out, _ = here("ingest", old, new, tmp_path / "s", "--append", "-q")
    assert "1,000 rows" in out
    assert "of them by a call that was interrupted)" in out
    assert "intact" in here("verify", tmp_path / "s", "-q")[0]
