"""HDF5 and Zarr arrays."""

import importlib
import pickle

import numpy as np
import pytest
import zarr

from sadih_dask.errors import DtypeError, FormatError, InputError
from sadih_dask.sources import chunked, list_variables, open_features, open_ids, open_labels

h5py = pytest.importorskip("h5py", reason="h5py is in the optional extra 'ingest'")

DATA = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)


@pytest.mark.parametrize(
    "options", [{}, {"chunks": (7, 6)}, {"chunks": (7, 3), "compression": "gzip"}]
)
@pytest.mark.parametrize("transpose", [False, True])
def test_datasets_in_groups(tmp_path, options, transpose):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset(
            "train/features",
            data=DATA.T if transpose else DATA,
            **(options if not transpose else {}),
        )
        file["train/labels"] = np.arange(50) % 3
    source = open_features(tmp_path / "x.h5", transpose=transpose)
    assert source.origin.variable == "train/features"
    np.testing.assert_array_equal(source.read(11, 47), DATA[11:47])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(0, 3), DATA[:3])
    assert open_labels(source).read(0, 4).tolist() == [0, 1, 2, 0]


def test_text_and_lists(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["names"] = ["dog", "cat", "é"]
        file["fixed"] = np.array([b"b", b"a", b"b"])
        lists = file.create_dataset("tags", 3, dtype=h5py.vlen_dtype(np.int32))
        lists[0], lists[1], lists[2] = [4, 7], [7], [2, 4]
    assert open_labels(tmp_path / "x.h5", "names").class_names == ("cat", "dog", "é")
    assert open_labels(tmp_path / "x.h5", "fixed").read(0, 3).tolist() == [1, 0, 1]
    assert open_ids(tmp_path / "x.h5", "names").read(0, 2).tolist() == ["dog", "cat"]
    tags = open_labels(tmp_path / "x.h5", "tags")
    assert tags.class_names == ("2", "4", "7")
    assert tags.read(0, 3).tolist() == [[0, 1, 1], [0, 0, 1], [1, 1, 0]]
    assert [v.kind for v in list_variables(str(tmp_path / "x.h5"))] == ["text", "text", "lists"]


def test_data_outside_the_file_are_refused(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["secret"] = DATA
    layout = h5py.VirtualLayout((50, 6), "f4")
    layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "secret", (50, 6))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["own"] = DATA
        file["link"] = h5py.ExternalLink(tmp_path / "other.h5", "secret")
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("raw", (50, 6), "f4", external=str(tmp_path / "bytes"))
    assert "link" not in [v.name for v in list_variables(str(tmp_path / "x.h5"))]
    with pytest.raises(InputError, match="has no variable 'link'"):
        open_features(tmp_path / "x.h5", "link")
    for name in ("virtual", "raw"):
        with pytest.raises(FormatError, match=rf"x\.h5:{name}: its data lie in other files"):
            open_features(tmp_path / "x.h5", name)


def test_claims_without_data_are_refused(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("huge", (10**12, 64), "f4", chunks=(1024, 64))
        file.create_dataset("coarse", data=DATA, chunks=DATA.shape)
        file["single"] = 3.0
        file["complex"] = DATA + 1j
    with pytest.raises(FormatError, match=r"x\.h5:huge: was declared .* but never written"):
        open_features(tmp_path / "x.h5", "huge")
    monkeypatch.setattr(chunked, "_MAX_CHUNK", 1000)
    with pytest.raises(FormatError, match=r"x\.h5:coarse: one chunk \(50, 6\) is"):
        open_features(tmp_path / "x.h5", "coarse")
    with pytest.raises(InputError, match=r"x\.h5:single: is a single value"):
        open_features(tmp_path / "x.h5", "single")
    with pytest.raises(DtypeError, match=r"x\.h5:complex: elements of type complex"):
        open_features(tmp_path / "x.h5", "complex")


def test_a_missing_library_names_the_command(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["features"] = DATA

    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(InputError, match=r"needs h5py.*pip install 'sadih-dask\[ingest\]'"):
        open_features(tmp_path / "x.h5")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("transpose", [False, True])
def test_zarr_arrays(tmp_path, zarr_format, transpose):
    stored = DATA.T if transpose else DATA
    array = zarr.create_array(
        tmp_path / "x.zarr", shape=stored.shape, dtype="f4", chunks=(6, 6), zarr_format=zarr_format
    )
    array[:] = stored
    source = open_features(tmp_path / "x.zarr", transpose=transpose)
    np.testing.assert_array_equal(source.read(11, 47), DATA[11:47])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(0, 3), DATA[:3])


def test_zarr_groups_and_shards(tmp_path):
    group = zarr.create_group(tmp_path / "x.zarr")
    features = group.create_array(
        "features", shape=(50, 6), dtype="f4", chunks=(5, 6), shards=(10, 6)
    )
    features[:] = DATA
    group.create_array("labels", shape=(50,), dtype="i8", chunks=(50,))[:] = np.arange(50) % 4
    source = open_features(tmp_path / "x.zarr")
    np.testing.assert_array_equal(source.read(3, 33), DATA[3:33])
    assert open_labels(source).class_names == ("0", "1", "2", "3")


def test_zarr_of_a_row_too_large(tmp_path):
    zarr.create_array(tmp_path / "x.zarr", shape=(3, 2**25), dtype="f4", chunks=(1, 2**20))
    with pytest.raises(FormatError, match=r"x\.zarr: a row of shape \(33554432,\)"):
        open_features(tmp_path / "x.zarr")
