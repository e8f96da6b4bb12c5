"""Public data sets as they are found; skipped unless SADIH_DATA names their folder."""

import os
from pathlib import Path

import numpy as np
import pytest

from sadih_dask.errors import LabelError
from sadih_dask.sources import open_features, open_labels


def real(name):
    folder = os.environ.get("SADIH_DATA")
    if not folder:
        pytest.skip("SADIH_DATA names no folder with data sets")
    path = Path(folder, name)
    if not path.exists():
        pytest.skip(f"{name} is not in the folder that SADIH_DATA names")
    return path


def test_cifar10_gist():
    features = open_features(real("cifar10_gist512.npz"))
    assert features.shape_note() == "60000 x 512 float16"
    labels = open_labels(features)
    counts = np.bincount(labels.read(0, labels.n_rows))
    assert counts.tolist() == [6_000] * 10
    assert features.read(30_000, 34_096).shape == (4_096, 512)


def test_tiny_imagenet_is_scaled():
    features = open_features(real("tiny_imagenet100_effnet1280.npz"), scale="scale")
    assert features.shape_note() == "55000 x 1280 float32"
    assert len(open_labels(features).class_names) == 100
    assert 0 < features.read(0, 1_000).mean() < 10


def test_imdb_is_sparse_and_multi_label():
    features = open_features(real("imdb_multilabel_features.npz"))
    assert features.shape_note() == "120919 x 1001 uint8"
    labels = open_labels(real("imdb_multilabel_labels.npz"), n_rows=features.n_rows)
    per_row = labels.read(0, labels.n_rows).sum(axis=1)
    assert labels.row_shape == (28,)
    assert 1.9 < per_row.mean() < 2.1


def test_delicious_has_its_labels_in_columns():
    features = open_features(real("delicious.mat"))
    assert (features.n_rows, features.width) == (16_105, 500)
    with pytest.raises(LabelError, match=r"delicious\.mat:target row \d+: has no label"):
        open_labels(features)
    labels = open_labels(features, allow_unlabelled=True)
    assert (labels.n_rows, labels.row_shape) == (16_105, (983,))


def test_fashion_mnist():
    folder = Path("/usr/share/datasets/fashion-mnist")
    if not folder.exists():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    features = open_features(folder / "train-images-idx3-ubyte.gz")
    labels = open_labels(folder / "train-labels-idx1-ubyte.gz", n_rows=features.n_rows)
    assert features.width == 784
    assert len(labels.class_names) == 10
