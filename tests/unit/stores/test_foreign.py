"""Zarr arrays that are adopted where they lie: read as they are, checked, and never touched."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from sadih_dask import SADIH, FeatureStore
from sadih_dask.errors import ConflictError, FormatError, InputError, IntegrityError
from sadih_dask.files.checksum import canonical_json, crc32c
from sadih_dask.ingest import DataFiles, HoldOut, ingest
from sadih_dask.stores import foreign
from sadih_dask.stores.foreign import chunk_rows_for

ROWS = np.random.default_rng(0).standard_normal((1000, 6)).astype(np.float32)
LABELS = np.arange(1000) % 4


def array(path: Path, rows: Any = ROWS, chunks: Any = (64, 6), **options: Any) -> Path:
    stored = zarr.create_array(
        str(path), shape=rows.shape, dtype=rows.dtype, chunks=chunks, **options
    )
    stored[:] = rows
    return path


def state(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a segment are two of the array."""
    monkeypatch.setattr(foreign, "DEFAULT_CHUNK_BYTES", 2 * 64 * 24)


FORMATS = [
    {"zarr_format": 2},
    {"zarr_format": 2, "compressors": None},
    {"zarr_format": 3},
    {"zarr_format": 3, "shards": (256, 6)},
]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("options", FORMATS)
def test_rows_are_those_of_the_array_and_nothing_of_it_is_touched(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    x = array(tmp_path / "x.zarr", **options)
    before = state(x)
    store = FeatureStore.adopt(tmp_path / "s", x, LABELS, ids=np.arange(1000) * 2)
    assert store.chunk_rows == 128
    np.testing.assert_array_equal(store.read("features", 100, 300), ROWS[100:300])
    np.testing.assert_array_equal(store.take("features", [999, 3, 500]), ROWS[[999, 3, 500]])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(store)).read("labels"), LABELS)
    assert store.verify().ok
    assert store.components == (str(x),)
    copied = FeatureStore.create(
        tmp_path / "t", ROWS, LABELS, ids=np.arange(1000) * 2, chunk_rows=128
    )
    assert store.fingerprint() == copied.fingerprint()
    store.delete([0, 2, 4])
    store.append(ROWS[:10], LABELS[:10], ids=np.arange(5000, 5010))
    expected = np.concatenate([ROWS[3:], ROWS[:10]])
    np.testing.assert_array_equal(store.read("features"), expected)
    joined = store.compact(one_segment=True, purge=True)
    np.testing.assert_array_equal(joined.read("features"), expected)
    assert joined.segments[0].foreign is None
    assert joined.verify().ok
    assert state(x) == before


@pytest.mark.usefixtures("small")
def test_what_changes_in_the_array_is_found_by_chunk(tmp_path: Path) -> None:
    x = array(tmp_path / "x.zarr")
    store = FeatureStore.adopt(tmp_path / "s", x, LABELS)
    zarr.open(str(x), mode="r+")[300, 2] = 7.0
    np.testing.assert_array_equal(store.read("features", 0, 256), ROWS[:256])
    message = (
        r"chunk 2 of segment 0 \(rows 256 to 383, rows 256 to 383 of .*x.zarr\): .*not the one"
    )
    with pytest.raises(IntegrityError, match=message):
        store.read("features", 383, 384)
    assert len(store.verify().problems) == 1
    (x / "c" / "0" / "0").unlink()  # which Zarr reads as zeros
    (x / "c" / "15" / "0").write_bytes(b"no chunk")
    problems = store.verify().problems
    assert [text.partition("chunk ")[2][0] for text in problems] == ["0", "2", "7"]
    assert "it cannot be read" in problems[2]


def test_rows_that_come_behind_change_nothing_and_rows_that_go_do(tmp_path: Path) -> None:
    x = array(tmp_path / "x.zarr")
    store = FeatureStore.adopt(tmp_path / "s", x, LABELS)
    zarr.open(str(x), mode="r+").append(ROWS[:70])
    foreign.open_array.cache_clear()
    assert store.verify().ok
    zarr.open(str(x), mode="r+").resize((500, 6))
    foreign.open_array.cache_clear()
    with pytest.raises(IntegrityError, match="the array has 500 rows now"):
        store.read("features")


@pytest.mark.parametrize(
    ("rows", "chunks", "message"),
    [
        (ROWS, (64, 2), r"64 rows of 2 of the 6 columns.*Write it again in chunks of 21 x 6"),
        (ROWS.astype(np.int32), (64, 6), r"holds int32.*Ingest it as a copy"),
        (ROWS[:, 0], (64,), r"has shape \(1000,\)"),
    ],
)
def test_what_cannot_be_adopted_is_refused(
    tmp_path: Path, rows: Any, chunks: Any, message: str
) -> None:
    x = array(tmp_path / "x.zarr", rows, chunks)
    with pytest.raises(InputError, match=message):
        FeatureStore.adopt(tmp_path / "s", x, LABELS)
    assert not (tmp_path / "s").exists()


def test_what_is_no_array_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no Zarr array"):
        FeatureStore.adopt(tmp_path / "s", tmp_path / "none.zarr")
    zarr.create_group(str(tmp_path / "g.zarr"))
    with pytest.raises(InputError, match="is a Zarr group"):
        chunk_rows_for(str(tmp_path / "g.zarr"))
    with pytest.raises(InputError, match="cannot lie at 'http://"):
        FeatureStore.adopt(tmp_path / "s", "http://example.org/x.zarr")


@pytest.mark.parametrize("where", ["x.zarr", "../x.zarr", "http://example.org/x", 7])
def test_a_store_leads_to_no_other_place(tmp_path: Path, where: object) -> None:
    FeatureStore.adopt(tmp_path / "s", array(tmp_path / "x.zarr"), LABELS)
    path = tmp_path / "s" / "zarr.json"
    document = json.loads(path.read_bytes())
    record = document["attributes"]["sadih_dask"]
    record["segments"][0]["foreign"] = where
    del record["checksum"]
    record["checksum"] = crc32c(canonical_json(record))
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match="adopted array"):
        FeatureStore.open(tmp_path / "s")


def test_opening_names_the_array(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = array(tmp_path / "x.zarr")
    with caplog.at_level(logging.WARNING):
        FeatureStore.adopt(tmp_path / "s", x, LABELS)
        FeatureStore.open(tmp_path / "s")
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 's'}: features are read where they lie, outside of it: {x}"
    ]


@pytest.mark.usefixtures("small")
def test_ingestion_in_place_and_what_is_done_with_it(tmp_path: Path) -> None:
    x = tmp_path / "data.zarr"
    group = zarr.create_group(str(x))
    group.create_array("features", shape=ROWS.shape, dtype="float32", chunks=(64, 6))[:] = ROWS
    group.create_array("labels", data=LABELS)
    before = state(x)
    done = ingest(DataFiles(x), tmp_path / "s", in_place=True)
    assert (done.n_new, done.store.components) == (1000, (str(x / "features"),))
    assert ingest(DataFiles(x), tmp_path / "s", in_place=True).n_new == 0
    with pytest.raises(ConflictError, match="whose features lie outside of it"):
        ingest(DataFiles(x), tmp_path / "s")
    copied = ingest(DataFiles(x), tmp_path / "t", chunk_rows=128).store
    assert done.store.fingerprint() == copied.fingerprint()
    codes = []
    for store in (done.store, copied):
        model = SADIH(n_bits=8, anchors=None, n_init=1, max_iter=2).fit(store)
        codes.append(model.encode(store, f"{store.url}-codes").read("codes"))
    np.testing.assert_array_equal(*codes)
    assert state(x) == before


@pytest.mark.parametrize(
    "options", [{"scale": 2.0}, {"transpose": True}, {"hold_out": HoldOut(0.2)}]
)
def test_only_rows_as_they_are_can_stay(tmp_path: Path, options: dict[str, Any]) -> None:
    x = array(tmp_path / "x.zarr")
    with pytest.raises(InputError, match="only all rows of one Zarr array can stay in place"):
        ingest(DataFiles(x, **options), tmp_path / "s", in_place=True)
    np.save(tmp_path / "x.npy", ROWS)
    with pytest.raises(InputError, match="only all rows of one Zarr array can stay in place"):
        ingest(DataFiles(tmp_path / "x.npy"), tmp_path / "s", in_place=True)
