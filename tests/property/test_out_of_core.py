"""Out of core equals in memory, to the last bit, for whatever shape data and stores have."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sadih_dask import SADIH, FeatureStore
from tests.support.datasets import Array
from tests.support.models import same_bits

sizes = st.integers(1, 130)
pytestmark = pytest.mark.filterwarnings("ignore::sadih_dask.errors.Advice")  # odd rows are meant


@st.composite
def labels(draw: st.DrawFn, n: int) -> Array:
    """Class numbers with gaps, or sets of labels: few or many, shuffled or sorted."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    form = draw(st.sampled_from(["classes", "many classes", "sets", "lonely sets"]))
    if form in ("classes", "many classes"):
        names = np.sort(rng.choice(1000, 3 if form == "classes" else n, replace=False))
        found = names[rng.integers(len(names), size=n)]
        found[:2] = names[:2]
        order = np.argsort(found, kind="stable")
    else:
        found = (rng.random((n, 3 if form == "sets" else 12)) < 0.3).astype(np.uint8)
        found[np.arange(n), rng.integers(found.shape[1], size=n)] = 1
        found[:2] = np.eye(2, found.shape[1], dtype=np.uint8)
        order = np.lexsort(found.T)
    return found[order] if draw(st.booleans()) else found


@st.composite
def collections(draw: st.DrawFn) -> tuple[Array, Array]:
    n, d = draw(st.integers(4, 120)), draw(st.integers(1, 6))
    y = draw(labels(n))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = draw(st.sampled_from([0.0, 3.0, 50.0])) + rng.standard_normal((n, d))
    if draw(st.booleans()):
        X[:, 0] = 0.1
    if draw(st.booleans()):
        X[rng.integers(n)] *= 40  # an outlier, which a sample may or may not see
    return X.astype(draw(st.sampled_from(["float16", "float32", "float64"]))), y


@st.composite
def cuts(draw: st.DrawFn, n: int) -> tuple[int, ...]:
    """Chunks of a Dask array: of one row, a prime number, all rows, or of any sizes."""
    size = draw(st.sampled_from([1, 7, 31, n, None]))
    edges = range(size, n, size) if size else draw(st.sets(st.integers(1, n - 1), max_size=6))
    return tuple(np.diff([0, *sorted(edges), n]).tolist())


@given(collections(), st.data())
@settings(max_examples=40, deadline=None)
def test_store_and_dask_arrays_equal_memory(rows: tuple[Array, Array], data: st.DataObject) -> None:
    X, y = rows
    parameters: dict[str, Any] = {
        "n_bits": data.draw(st.sampled_from([3, 8])),
        "anchors": data.draw(st.sampled_from([None, 5])),
        "block_rows": data.draw(sizes),
        "encoder": data.draw(st.sampled_from(["ridge", "orthogonal"])),
        "n_init": 1,
        "max_iter": 1,
    }
    chunk = data.draw(sizes)
    first = data.draw(st.integers(1, len(X)))
    compression = data.draw(st.sampled_from(["none", "zstd"]))
    lazy_x = da.from_array(X, chunks=(data.draw(cuts(len(X))), data.draw(st.integers(1, 6))))
    lazy_y = da.from_array(y, chunks=(data.draw(cuts(len(X))), *y.shape[1:]))
    if data.draw(st.booleans()):
        lazy_y = y
    with TemporaryDirectory() as folder:
        path = Path(folder)
        store = FeatureStore.create(
            path / "s", X[:first], y[:first], chunk_rows=chunk, compression=compression
        )
        store.append(X[first:], y[first:])
        expected = SADIH(**parameters).fit(X, y)
        with dask.config.set(scheduler="threads", num_workers=data.draw(st.integers(1, 3))):
            same_bits(SADIH(**parameters).fit(store), expected, path)
            lazy = SADIH(**parameters).fit(lazy_x, lazy_y)
        same_bits(lazy, expected, path)
        codes = expected.encode(store, path / "codes")
        np.testing.assert_array_equal(codes.read("codes"), expected.transform(X))
        learned = expected.encode(store, path / "learned", learned=True)
        np.testing.assert_array_equal(learned.read("codes"), expected.learned_codes(y))
        with dask.config.set(scheduler="threads"):
            written = expected.encode(lazy_x, path / "written").read("codes")
            scores = expected.project(lazy_x).compute()
        np.testing.assert_array_equal(written, expected.transform(X))
        # Rows about 50 in float32: products of other shapes differ by some 1e-4.
        np.testing.assert_allclose(scores, expected.project(X), rtol=1e-3, atol=1e-3)
