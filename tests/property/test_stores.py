"""Whatever the rows, the chunks and the order of writing: the store is the array."""

from __future__ import annotations

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sadih_dask.stores import FeatureStore

CHUNKINGS = st.fixed_dictionaries(
    {"chunk_rows": st.integers(1, 9), "compression": st.sampled_from(["none", "zstd"])}
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    n_rows, n_features = draw(st.integers(0, 40)), draw(st.integers(1, 4))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    features = draw(hnp.arrays(dtype, (n_rows, n_features)))
    label_type = draw(st.sampled_from([np.int8, np.uint16, np.int64, np.uint64]))
    return features, draw(hnp.arrays(label_type, (n_rows,)))


@settings(max_examples=60, deadline=None)
@given(table=tables(), chunking=CHUNKINGS, data=st.data())
def test_any_pieces_in_any_chunks_give_the_same_bits(
    table: tuple[np.ndarray, np.ndarray], chunking: dict[str, object], data: st.DataObject
) -> None:
    features, labels = table
    n_rows = len(features)
    cuts = sorted(data.draw(st.lists(st.integers(0, n_rows), max_size=4)))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, n_rows)] * 2)))
    picked = data.draw(st.lists(st.integers(0, n_rows - 1), max_size=9)) if n_rows else []
    folder = Path(tempfile.mkdtemp())
    try:
        bounds = [0, *cuts, n_rows]
        store = FeatureStore.create(
            folder / "s", features[: bounds[1]], labels[: bounds[1]], **chunking
        )
        for low, high in pairwise(bounds[1:]):
            store.append(features[low:high], labels[low:high], at=low)
        for opened in (store, FeatureStore.open(folder / "s")):
            assert opened.read("features").tobytes() == features.tobytes()
            assert opened.read("labels").dtype == labels.dtype
            assert opened.read("features", start, stop).tobytes() == features[start:stop].tobytes()
            assert opened.take("labels", picked).tolist() == labels[picked].tolist()
        parts = [store.to_zarr()[path][:] for path in store.components]
        assert np.concatenate(parts).tobytes() == features.tobytes()
        compacted = store.compact(one_segment=True)
        assert compacted.read("features").tobytes() == features.tobytes()
        assert compacted.fingerprint() == store.fingerprint()
        assert store.verify().ok
        lazy = store.to_dask()[start:stop].compute(scheduler="synchronous")
        assert lazy.tobytes() == features[start:stop].tobytes()
    finally:
        shutil.rmtree(folder)


@settings(max_examples=60, deadline=None)
@given(
    ids=st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9),
        min_size=1,
        max_size=9,
    )
)
def test_any_text_is_an_id(ids: list[str]) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        rows = np.zeros((len(ids), 1), np.float32)
        store = FeatureStore.create(folder / "s", rows, ids=np.array(ids, "U"), chunk_rows=4)
        assert store.read("ids").tolist() == ids
        assert store.to_dask("ids").compute(scheduler="synchronous").tolist() == ids
    finally:
        shutil.rmtree(folder)
