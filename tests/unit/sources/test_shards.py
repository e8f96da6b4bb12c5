"""Several files as one data set."""

import doctest
import pickle

import numpy as np
import pytest

from sadih_dask.errors import DtypeError, InputError, NonFiniteError
from sadih_dask.sources import arrays as layout
from sadih_dask.sources import features as shards_module
from sadih_dask.sources import labels as rawlabels
from sadih_dask.sources import open_features, open_labels
from sadih_dask.sources.features import expand

FEATURES = np.arange(120, dtype=np.float32).reshape(30, 4)


@pytest.fixture
def shards(tmp_path):
    for number, (start, stop) in {1: (0, 7), 2: (7, 8), 10: (8, 30)}.items():
        np.save(tmp_path / f"part{number}.npy", FEATURES[start:stop])
    return tmp_path


def test_a_glob_sorts_numbers_as_numbers(shards):
    names = [name.rpartition("/")[2] for name in expand(shards / "part*.npy")]
    assert names == ["part1.npy", "part2.npy", "part10.npy"]


@pytest.mark.parametrize("module", [layout, rawlabels, shards_module])
def test_the_examples_in_the_documentation(module):
    assert doctest.testmod(module).failed == 0


def test_a_relative_glob(shards, monkeypatch):
    monkeypatch.chdir(shards)
    assert expand("part?.npy") == ("part1.npy", "part2.npy")


def test_shards_are_read_as_one(shards):
    source = open_features(shards / "part*.npy")
    assert source.n_rows == 30
    for start in range(31):
        for stop in range(start, 31):
            np.testing.assert_array_equal(source.read(start, stop), FEATURES[start:stop])
    assert pickle.loads(pickle.dumps(source)).read(6, 9).shape == (3, 4)
    assert "part1.npy and 2 more (30 x 4 float32)" in source.describe()


def test_an_error_names_the_shard_and_its_own_row(shards):
    bad = FEATURES[8:30].copy()
    bad[5, 2] = np.nan
    np.save(shards / "part10.npy", bad)
    with pytest.raises(NonFiniteError, match=r"part10\.npy row 5, column 2"):
        open_features(shards / "part*.npy").read(0, 30)


def test_mixed_formats_are_one_data_set(shards):
    np.savez_compressed(shards / "more.npz", features=FEATURES[:3], labels=np.arange(3))
    source = open_features([shards / "part1.npy", shards / "more.npz"])
    np.testing.assert_array_equal(source.read(5, 10), np.vstack([FEATURES[5:7], FEATURES[:3]]))


def test_shards_that_disagree_are_both_named(shards):
    np.save(shards / "wide.npy", np.ones((2, 5), np.float32))
    np.save(shards / "double.npy", np.ones((2, 4)))
    with pytest.raises(InputError, match=r"wide\.npy has row shape \(5,\), but .*part1\.npy has"):
        open_features([shards / "part1.npy", shards / "wide.npy"])
    with pytest.raises(DtypeError, match=r"double\.npy has element type float64, but .*part1\.npy"):
        open_features([shards / "part1.npy", shards / "double.npy"])


def test_labels_in_the_files_of_the_features(tmp_path):
    for number in range(3):
        x, y = np.ones((4, 2)), np.full(4, number)
        np.savez(tmp_path / f"s{number}.npz", features=x, labels=y)
    features = open_features(tmp_path / "s*.npz")
    labels = open_labels(features)
    assert labels.read(2, 10).tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    assert labels.files() == features.files()


def test_label_shards_of_text_may_differ_in_width(tmp_path):
    np.save(tmp_path / "y0.npy", np.array(["cat", "dog"]))
    np.save(tmp_path / "y1.npy", np.array(["elephant"]))
    labels = open_labels(tmp_path / "y*.npy")
    assert labels.class_names == ("cat", "dog", "elephant")
    assert labels.read(0, 3).tolist() == [0, 1, 2]


def test_names_that_do_not_exist(tmp_path):
    with pytest.raises(InputError, match=r"x\*\.npy: no file matches"):
        open_features(tmp_path / "x*.npy")
    with pytest.raises(InputError, match=r"x\.npy: cannot be opened \(No such file"):
        open_features(tmp_path / "x.npy")
    with pytest.raises(InputError, match="No source file was given"):
        open_features([])
    with pytest.raises(InputError, match=r"no file of rows in it. It has: nothing"):
        open_features(tmp_path)


def test_a_file_given_twice_is_refused(shards):
    with pytest.raises(InputError, match=r"part1\.npy: was given twice"):
        open_features([shards / "part1.npy", shards / "part*.npy"])


def test_names_that_tie_as_numbers_have_an_order(tmp_path):
    names = ["x1.npy", "x01.npy", "x001.npy", "x2.npy", "x1\u00b22.npy", "x\u0661.npy"]
    for name in names:
        np.save(tmp_path / name, FEATURES)
    found = [path.rpartition("/")[2] for path in expand(tmp_path / "x*.npy")]
    assert found[:4] == ["x001.npy", "x01.npy", "x1.npy", "x1\u00b22.npy"]
    assert sorted(found) == sorted(names)
