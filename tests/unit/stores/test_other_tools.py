"""What zarr, Dask and xarray see of a store: its segments, committed ones only."""

from __future__ import annotations

import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

from sadih_dask.errors import InputError
from sadih_dask.stores import CodeStore, FeatureStore
from tests.support.stores import create, ids_of, table


@pytest.fixture(params=["none", "zstd"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> FeatureStore:
    """Two segments, deleted rows, garbage, and one that is being written."""
    store = create(tmp_path / "s", 0, 10, compression=request.param)
    gone = store.extend(7)
    gone.write(0, **table(90, 97))
    gone.abandon()
    store.append(**table(10, 17))
    store.extend(5, key="begun").write(0, **table(80, 85))
    store.delete(ids_of([3, 11]))
    return store


def test_zarr_opens_every_segment(store: FeatureStore) -> None:
    parts = [zarr.open(store.url, mode="r")[path][:] for path in store.components]
    assert [len(part) for part in parts] == [10, 7]  # dead rows too
    np.testing.assert_array_equal(np.concatenate(parts), table(0, 17)["features"])
    for segment, (first, last) in zip(store.segments, [(0, 10), (10, 17)], strict=True):
        group = zarr.open_group(f"{store.url}/{segment.path}", mode="r")
        assert sorted(group.array_keys()) == ["features", "ids", "labels"]
        np.testing.assert_array_equal(group["labels"][:], np.arange(first, last))
        array = zarr.open_array(f"{store.url}/{segment.path}/ids", mode="r")
        np.testing.assert_array_equal(array[:], ids_of(range(first, last)))
        assert array.metadata.dimension_names == ("row",)


def test_zarr_lists_what_is_committed_and_nothing_else(store: FeatureStore) -> None:
    assert len(list((Path(store.url) / "segments").glob("*/"))) == 4
    group = zarr.open_group(store.url, mode="r")
    expected = {f"{segment.path}/{name}" for segment in store.segments for name in store.arrays}
    assert {path for path, member in group.members(None) if isinstance(member, zarr.Array)} == (
        expected
    )
    assert sorted(group["segments"].group_keys()) == sorted(part.id for part in store.segments)
    again = zarr.open_consolidated(store.url, mode="r")
    np.testing.assert_array_equal(again[store.components[1]][:, 0], np.arange(10, 17))
    compacted = store.compact(one_segment=True)
    (only,) = compacted.to_zarr()["segments"].group_keys()
    assert only == compacted.segments[0].id


def test_dask_opens_every_segment(store: FeatureStore) -> None:
    parts = [da.from_zarr(store.url, component=path) for path in store.components]
    whole = da.concatenate(parts)
    np.testing.assert_array_equal(whole.compute(scheduler="synchronous"), table(0, 17)["features"])
    (only,) = store.compact(one_segment=True).components
    one = da.from_zarr(store.url, component=only).compute(scheduler="synchronous")
    np.testing.assert_array_equal(one, store.to_dask().compute(scheduler="synchronous"))


def test_xarray_opens_every_segment(store: FeatureStore, tmp_path: Path) -> None:
    for segment, (first, last) in zip(store.segments, [(0, 10), (10, 17)], strict=True):
        data = xr.open_zarr(f"{store.url}/{segment.path}")
        assert data.sizes == {"row": last - first, "feature": 2}
        np.testing.assert_array_equal(data["labels"].values, np.arange(first, last))
        np.testing.assert_array_equal(data["features"].values, table(first, last)["features"])


def test_xarray_opens_arrays_of_every_kind(tmp_path: Path) -> None:
    rows = {
        "features": np.ones((5, 3), np.float64),
        "labels": np.eye(5, 4, dtype=np.uint8),
        "ids": np.array(["a", "bb", "ccc", "", "ö"]),
        "thumbnails": np.zeros((5, 6, 7, 3), np.uint8),
    }
    store = FeatureStore.create(tmp_path / "s", **rows)
    data = xr.open_zarr(f"{store.url}/{store.segments[0].path}")
    sizes = {"row": 5, "feature": 3, "class": 4, "id_byte": 3, "y": 6, "x": 7, "channel": 3}
    assert data.sizes == sizes
    codes = CodeStore.create(
        tmp_path / "c", np.ones((5, 2), np.uint8), n_bits=16, model="m", ids=rows["ids"]
    )
    data = xr.open_zarr(f"{codes.url}/{codes.segments[0].path}")
    assert data.sizes == {"row": 5, "byte": 2, "id_byte": 3}
    np.testing.assert_array_equal(data["codes"].values, np.ones((5, 2)))


def test_a_store_is_a_data_set_of_live_rows(store: FeatureStore) -> None:
    data = store.to_xarray()
    assert data.sizes == {"row": 15, "feature": 2}
    assert all(dask.is_dask_collection(array) for array in data.variables.values())
    for name in store.arrays:
        np.testing.assert_array_equal(data[name].compute(scheduler="synchronous"), store.read(name))
    kept = ids_of([5])[0]
    found = data.load(scheduler="synchronous").set_index(row="ids").sel(row=kept)
    np.testing.assert_array_equal(found["features"], table(5, 6)["features"][0])


def test_text_ids_and_class_names_are_text_in_a_data_set(tmp_path: Path) -> None:
    ids = np.array(["a", "bb", "ccc", "", "ö"])
    names = ["ant", "bee", "cat"]
    rows = {"features": np.ones((5, 2)), "ids": ids, "thumbnails": np.zeros((5, 6, 7, 3), np.uint8)}
    one = FeatureStore.create(tmp_path / "s", **rows, labels=[names[k % 3] for k in range(5)])
    data = one.to_xarray()
    assert data["ids"].values.tolist() == ids.tolist()
    assert data["thumbnails"].dims == ("row", "y", "x", "channel")
    assert (data["labels"].dims, data.attrs["class_names"]) == (("row",), names)
    many = FeatureStore.create(
        tmp_path / "m", **rows, labels=[names[: k % 3 + 1] for k in range(5)]
    )
    labels = many.to_xarray()["labels"]
    assert labels.dims == ("row", "class")
    assert labels.sel({"class": "cat"}).values.tolist() == [0, 0, 1, 0, 0]
    packed = np.arange(10, dtype=np.uint8).reshape(5, 2)
    codes = CodeStore.create(tmp_path / "c", packed, n_bits=16, model="m", ids=ids, bitorder="big")
    data = codes.to_xarray()
    np.testing.assert_array_equal(data["codes"], packed)
    assert data["ids"].values.tolist() == ids.tolist()
    assert data.attrs == {"n_bits": 16, "model": "m", "bitorder": "big"}


def test_without_xarray_the_extra_is_named(
    store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(InputError, match=r"needs xarray.*pip install 'sadih-dask\[xarray\]'"):
        store.to_xarray()
