"""What `inspect` says of stores and models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sadih_dask import SADIH
from sadih_dask.errors import FormatError, InputError, IntegrityError
from sadih_dask.jobs import inspect as inspection
from sadih_dask.jobs.inspect import ModelDescription, StoreDescription, inspect, open_store
from sadih_dask.stores import CodeStore, FeatureStore
from tests.support.datasets import blobs
from tests.support.models import QUICK


def described(url: Path) -> StoreDescription:
    found = inspect(url)
    assert isinstance(found, StoreDescription)
    return found


def test_a_feature_store_of_classes(tmp_path: Path) -> None:
    labels = np.array([0] * 6 + [2] * 3 + [3])
    FeatureStore.create(
        tmp_path / "s",
        np.ones((10, 2), np.float32),
        labels,
        ids=[f"r{k}" for k in range(10)],
        class_names=["ant", "bee", "cat", "dog"],
        chunk_rows=4,
        source="here",
    )
    found = described(tmp_path / "s")
    assert found.complete
    assert (found.n_rows, found.chunk_rows, found.generation, found.kept) == (10, 4, 1, ())
    assert [(n_rows, deleted) for n_rows, deleted, _ in found.segments] == [(10, 0)]
    assert [(a.name, a.shape, a.dtype) for a in found.arrays] == [
        ("features", (10, 2), "float32"),
        ("labels", (10,), "int64"),
        ("ids", (10, 2), "uint8"),
    ]
    assert found.stored_bytes is not None
    assert found.stored_bytes > sum(array.n_bytes for array in found.arrays)
    assert found.verified == ("labels",)
    assert found.attributes["source"] == "here"
    labelled = found.labels
    assert labelled is not None
    assert dict(zip(labelled.class_names, labelled.class_counts, strict=True)) == {
        "ant": 6,
        "bee": 0,
        "cat": 3,
        "dog": 1,
    }
    assert (labelled.n_groups, labelled.largest_group, labelled.largest_group_rows) == (
        3,
        ("ant",),
        6,
    )


def test_label_groups_of_many_labels_are_counted_over_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random((200, 11)) < 0.15).astype(np.uint8)
    FeatureStore.create(tmp_path / "s", np.ones((200, 2), np.float32), labels, chunk_rows=16)
    found = described(tmp_path / "s").labels
    assert found is not None
    sets, counts = np.unique(labels, axis=0, return_counts=True)
    assert found.n_groups == len(sets)
    assert found.largest_group_rows == counts.max()
    assert found.n_unlabelled == int((~labels.any(axis=1)).sum())
    assert found.class_counts == tuple(labels.sum(axis=0))
    assert found.labels_per_row == pytest.approx(labels.sum() / 200)
    members = [int(name) for name in found.largest_group]
    wanted = np.isin(np.arange(11), members)
    assert np.sum(np.all(labels == wanted, axis=1)) == counts.max()
    monkeypatch.setattr(inspection, "MAX_GROUPS", 10)
    few = described(tmp_path / "s").labels
    assert few is not None
    assert few.more_groups
    assert few.class_counts == found.class_counts


def test_an_unfinished_store_says_who_writes_it(tmp_path: Path) -> None:
    writer = FeatureStore.allocate(tmp_path / "s", 10, 2, chunk_rows=4)
    writer.write(4, np.ones((4, 2), np.float32), np.zeros(4, np.int64))
    found = described(tmp_path / "s")
    assert not found.complete
    assert (found.n_rows, len(found.unfinished)) == (0, 1)
    assert found.labels is None


def test_codes_and_models(tmp_path: Path) -> None:
    rows, labels = blobs()
    store = FeatureStore.create(tmp_path / "s", rows, labels)
    model = SADIH(n_bits=12, anchors=8, **QUICK).fit(store)
    model.save(tmp_path / "m")
    model.encode(store, tmp_path / "c")
    found = inspect(tmp_path / "m")
    assert isinstance(found, ModelDescription)
    assert (found.n_bits, found.n_features, found.n_classes, found.n_groups) == (12, 5, 3, 3)
    assert (found.n_rows_learned, found.learned_from) == (60, store.url)
    codes = described(tmp_path / "c")
    assert codes.kind == "sadih-codes"
    assert codes.attributes["model"] == model.fingerprint_ == found.fingerprint
    assert isinstance(open_store(tmp_path / "c"), CodeStore)


def test_damage_is_an_error_and_not_a_description(tmp_path: Path) -> None:
    rows = np.ones((9, 2), np.float32)
    store = FeatureStore.create(tmp_path / "s", rows, np.arange(9), chunk_rows=4)
    chunk = tmp_path / "s" / store.segments[0].path / "labels" / "c.1"
    data = bytearray(chunk.read_bytes())
    data[3] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(IntegrityError, match="array 'labels', chunk 1"):
        inspect(tmp_path / "s")


def test_what_is_not_ours(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        inspect(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FormatError, match="neither a store"):
        inspect(tmp_path / "folder")
    (tmp_path / "folder" / "zarr.json").write_text('{"attributes": {}}')
    with pytest.raises(FormatError, match="no store of this package"):
        inspect(tmp_path / "folder")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(
        IntegrityError, match=r"damaged or not a sadih-model\. Files of rows have to be ingested"
    ):
        inspect(tmp_path / "text")
