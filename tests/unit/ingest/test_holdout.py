"""Held-out queries: disjoint, complete, in proportion, and the same whatever happens later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask.errors import ConflictError, InputError
from sadih_dask.ingest import DataFiles, HoldOut, compare, ingest
from sadih_dask.ingest.selection import Chooser
from sadih_dask.sources import open_features


def rows_of(start: int, n: int) -> dict[str, np.ndarray]:
    """Rows that know their number, with one of three labels each."""
    numbers = np.arange(start, start + n)
    return {
        "features": np.stack([numbers, -numbers], axis=1).astype(np.float32),
        "labels": numbers % 3,
        "ids": numbers,
    }


def saved(folder: Path, name: str, start: int, n: int) -> Path:
    for what, array in rows_of(start, n).items():
        np.save(folder / f"{what}-{name}.npy", array)
    return folder


def named(folder: Path, *order: str) -> DataFiles:
    def of(what: str) -> list[str]:
        return [str(folder / f"{what}-{name}.npy") for name in order]

    return DataFiles(of("features"), of("labels"), of("ids"))


def both(files: DataFiles, place: Path, fraction: float = 0.2, **options: Any) -> list[Any]:
    """Ingest the database and the queries; return their ids."""
    found = []
    for part in ("database", "queries"):
        hold_out = HoldOut(fraction, 5, part)  # type: ignore[arg-type]
        done = ingest(replace(files, hold_out=hold_out), place / part, **options)
        ids = done.store.read("ids")
        np.testing.assert_array_equal(done.store.read("features")[:, 0], ids)
        np.testing.assert_array_equal(done.store.read("labels"), ids % 3)
        found.append(ids)
    return found


def test_both_parts_are_disjoint_and_complete_and_in_proportion(tmp_path: Path) -> None:
    saved(tmp_path, "a", 0, 3000)
    database, queries = both(named(tmp_path, "a"), tmp_path, chunk_rows=64)
    np.testing.assert_array_equal(np.sort(np.concatenate([database, queries])), np.arange(3000))
    # Six standard deviations of a binomial distribution
    assert abs(len(queries) - 600) < 6 * np.sqrt(3000 * 0.2 * 0.8)


@pytest.mark.parametrize("chunk_rows", [7, 1000])
@pytest.mark.parametrize("segment", [5, 64])
def test_chunks_and_segments_do_not_matter(
    tmp_path: Path, chunk_rows: int, segment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, "a", 0, 150)
    saved(tmp_path, "b", 150, 33)
    files = named(tmp_path, "a", "b")
    expected = both(files, tmp_path / "expected", chunk_rows=50)
    monkeypatch.setattr("sadih_dask.ingest.selection._SEGMENT_ROWS", segment)
    found = both(files, tmp_path / "found", chunk_rows=chunk_rows)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_files_that_come_later_and_their_order_change_nothing(tmp_path: Path) -> None:
    saved(tmp_path, "a", 0, 200)
    saved(tmp_path, "b", 200, 100)
    saved(tmp_path, "c", 300, 50)
    first = both(named(tmp_path, "b"), tmp_path / "grown", mode="append")
    more = both(named(tmp_path, "b", "a"), tmp_path / "grown", mode="append")
    last = both(named(tmp_path, "a", "b", "c"), tmp_path / "grown", mode="append")
    at_once = both(named(tmp_path, "a", "b", "c"), tmp_path / "at_once")
    for k in range(2):
        np.testing.assert_array_equal(more[k][: len(first[k])], first[k])
        np.testing.assert_array_equal(last[k][: len(more[k])], more[k])
        np.testing.assert_array_equal(np.sort(last[k]), np.sort(at_once[k]))


def test_folders_do_not_matter_but_names_and_seeds_do(tmp_path: Path) -> None:
    def chosen(path: Path, seed: int = 0) -> Any:
        np.save(path, np.ones((4000, 1), np.float32))
        return Chooser(HoldOut(0.5, seed), [open_features(path)]).taken(0, 4000)

    (tmp_path / "other").mkdir()
    here = chosen(tmp_path / "x.npy")
    np.testing.assert_array_equal(here, chosen(tmp_path / "other/x.npy"))
    for other in (chosen(tmp_path / "y.npy"), chosen(tmp_path / "x.npy", seed=1)):
        # Independent halves agree in half of the rows
        assert 0.45 < (here == other).mean() < 0.55


def test_rows_are_hashed_as_splitmix64_does(tmp_path: Path) -> None:
    """Written out with Python's integers, which do not overflow."""
    from hashlib import sha256

    np.save(tmp_path / "x.npy", np.ones((50, 1), np.float32))
    found = Chooser(HoldOut(0.3, 9, "queries"), [open_features(tmp_path / "x.npy")]).taken(0, 50)
    key = int.from_bytes(sha256(b'[9, "x.npy"]').digest()[:8], "little")
    for row in range(50):
        z = (key + (row + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        assert found[row] == ((z ^ (z >> 31)) < 0.3 * 2**64)


@pytest.mark.parametrize("form", ["npz", "parquet", "hdf5", "npy.gz", "zarr"])
def test_every_format(tmp_path: Path, form: str) -> None:
    rows = rows_of(0, 300)
    path = tmp_path / f"x.{form}"
    if form == "npz":
        np.savez_compressed(path, features=rows["features"], labels=rows["labels"])
    elif form == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows["features"].ravel()), 2)
        pq.write_table(pa.table({"features": vectors, "labels": rows["labels"]}), path)
    elif form == "hdf5":
        import h5py

        with h5py.File(path, "w") as file:
            file["features"], file["labels"] = rows["features"], rows["labels"]
    elif form == "npy.gz":
        import gzip

        with gzip.open(path, "wb") as stream:
            np.save(stream, rows["features"])
    else:
        import zarr

        zarr.save_group(path, features=rows["features"], labels=rows["labels"])
    numbers = []
    for part in ("database", "queries"):
        files = DataFiles(path, hold_out=HoldOut(0.4, part=part))  # type: ignore[arg-type]
        store = ingest(files, tmp_path / part, chunk_rows=16).store
        numbers.append(store.read("features")[:, 0].astype(int))
        if "labels" in store.arrays:
            np.testing.assert_array_equal(store.read("labels"), numbers[-1] % 3)
    np.testing.assert_array_equal(np.sort(np.concatenate(numbers)), np.arange(300))
    assert 60 < len(numbers[1]) < 180


def test_with_unlabelled_rows_dropped(tmp_path: Path) -> None:
    rows = rows_of(0, 400)
    labels = np.random.default_rng(0).random((400, 3)) < 0.3
    np.save(tmp_path / "x.npy", rows["features"])
    np.save(tmp_path / "y.npy", labels.astype(np.uint8))
    files = DataFiles(tmp_path / "x.npy", tmp_path / "y.npy", unlabelled="drop")
    numbers, dropped = [], 0
    for part in ("database", "queries"):
        hold_out = HoldOut(0.3, part=part)  # type: ignore[arg-type]
        done = ingest(replace(files, hold_out=hold_out), tmp_path / part, chunk_rows=16)
        numbers.append(done.store.read("features")[:, 0].astype(int))
        np.testing.assert_array_equal(done.store.read("labels"), labels[numbers[-1]])
        dropped += done.n_dropped
    kept = np.flatnonzero(labels.any(axis=1))
    np.testing.assert_array_equal(np.sort(np.concatenate(numbers)), kept)
    assert dropped == 400 - len(kept)


def test_a_new_file_without_queries_is_remembered_all_the_same(tmp_path: Path) -> None:
    saved(tmp_path, "a", 0, 200)
    both(named(tmp_path, "a"), tmp_path, 0.01)
    for k in range(3):
        saved(tmp_path, f"tiny{k}", 200 + k, 1)
        everything = named(tmp_path, "a", *(f"tiny{i}" for i in range(k + 1)))
        both(everything, tmp_path, 0.01, mode="append")
    for part in ("database", "queries"):
        hold_out = HoldOut(0.01, 5, part)  # type: ignore[arg-type]
        found = compare(replace(everything, hold_out=hold_out), tmp_path / part)
        assert (found.store, found.new, found.in_words()) == ("finished", (), "")


def test_another_split_is_never_mixed_with_the_first(tmp_path: Path) -> None:
    saved(tmp_path, "a", 0, 200)
    saved(tmp_path, "b", 200, 100)
    ingest(replace(named(tmp_path, "a"), hold_out=HoldOut(0.2)), tmp_path / "s")
    for other in (HoldOut(0.3), HoldOut(0.2, seed=1), HoldOut(0.2, part="queries"), None):
        files = replace(named(tmp_path, "a", "b"), hold_out=other)
        assert compare(files, tmp_path / "s").options
        with pytest.raises(ConflictError, match=r"has 'database: fraction 0\.2, seed 0'"):
            ingest(files, tmp_path / "s", mode="append")
    ingest(named(tmp_path, "a"), tmp_path / "t")
    files = replace(named(tmp_path, "b"), hold_out=HoldOut(0.2))
    with pytest.raises(ConflictError, match=r"has 'all rows of its files'"):
        ingest(files, tmp_path / "t", mode="append")


def test_fractions_and_parts_that_make_no_sense(tmp_path: Path) -> None:
    for fraction in (0.0, -0.1, 0.51, float("nan")):
        with pytest.raises(InputError, match=r"it must be above 0 and at most 0\.5"):
            HoldOut(fraction)
    with pytest.raises(InputError, match="part must be 'database' or 'queries'"):
        HoldOut(0.1, part="rest")  # type: ignore[arg-type]
    saved(tmp_path, "a", 0, 2)
    with pytest.raises(InputError, match="none of its rows falls into the part"):
        both(named(tmp_path, "a"), tmp_path, 1e-6)
