"""A purge erases rows for good, refuses while something still has them, and leaves a record."""

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from sadih_dask import SADIH, CodeStore, FeatureStore
from sadih_dask.errors import ConflictError
from sadih_dask.jobs.purge import FORMER_CODES, purge
from tests.support.datasets import blobs
from tests.support.models import QUICK


def test_what_is_erased_is_on_record(tmp_path: Path) -> None:
    X, y = blobs(90, 6, 3)
    ids = np.array([f"row-{k}" for k in range(90)])
    store = FeatureStore.create(tmp_path / "s.zarr", X, y, ids=ids)
    model = SADIH(n_bits=8, **{**QUICK, "anchors": 60}).fit(store)
    known = model.hash_function_.anchor_map
    assert known is not None
    path, codes, record = tmp_path / "m.sadih", tmp_path / "c.zarr", tmp_path / "erased.json"
    model.save(path)
    model.encode(store, codes)
    gone = np.arange(0, 90, 4)
    store.delete(ids[gone])
    for stale, verb in ((path, "fit"), (codes, "encode")):
        with pytest.raises(ConflictError, match=rf"has 23 rows of .*sadih {verb}\); nothing was"):
            purge(store, [stale], record=record)
    assert not record.exists()
    model.fit(store).save(path)
    model.encode(store, codes, overwrite=True)
    (tmp_path / "codes.npy").write_bytes(b"")
    purge(store, [path, codes, tmp_path / "codes.npy"], record=record)
    said = json.loads(record.read_text())
    assert said["n_rows"] == 23
    assert said["ids"] == [sha256(name.encode()).hexdigest() for name in ids[gone]]
    found = {Path(one["path"]).name: one for one in said["examined"]}
    assert found["m.sadih"]["n_anchors"] == known.count_among(X[gone]) > 0
    assert found["c.zarr"]["remark"] == FORMER_CODES
    CodeStore.open(codes).compact(purge=True)
    assert purge(store.refresh(), [codes], record=record).examined[0].remark == "without the rows"
    assert found["codes.npy"]["remark"] == "not looked into; make it anew"
    assert any("backups" in place for place in said["not_reached"])
    after = FeatureStore.open(tmp_path / "s.zarr")
    assert all(segment.deleted is None for segment in after.segments)
    SADIH(n_bits=8, **{**QUICK, "anchors": 60}).fit(after).save(path)  # anchors drawn anew
    after.delete(ids[1:3])
    with pytest.raises(ConflictError, match="has 2 rows of"):
        purge(after, [path], record=record)


def test_copies_of_deleted_rows_that_an_unfinished_addition_has(tmp_path: Path) -> None:
    X, y = blobs(40, 6, 3)
    store = FeatureStore.create(tmp_path / "s.zarr", X, y, ids=np.arange(40), chunk_rows=64)

    def on_disk() -> bool:
        files = (path for path in tmp_path.rglob("*") if path.is_file())
        return any(store.dtype("features").type(X[7]).tobytes() in f.read_bytes() for f in files)

    store.extend(5, key="k").write(0, X[:5], y[:5], ids=np.arange(100, 105))  # and was killed
    store.delete([7])
    with pytest.raises(ConflictError, match=r"1 additions were begun .*--abandon"):
        purge(store, record=tmp_path / "r.json")
    assert on_disk()
    store.abandon()
    assert purge(store, record=tmp_path / "r.json").n_rows == 1
    assert not on_disk()


def test_what_is_being_erased_is_on_record_before_it_is_gone(tmp_path: Path) -> None:
    X, y = blobs(40, 6, 3)
    store = FeatureStore.create(tmp_path / "s.zarr", X, y, ids=np.arange(40))
    store.delete([7, 9])

    def killed(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        purge(store, record=tmp_path / "r.json", progress=killed)
    said = json.loads((tmp_path / "r.json").read_text())
    assert (said["finished"], said["n_rows"], len(said["ids"])) == (False, 2, 2)
    assert purge(store, record=tmp_path / "r.json").finished
    assert json.loads((tmp_path / "r.json").read_text())["n_rows"] == 2
