"""Any row ranges in any order read the same rows, whatever the file looks like."""

import gzip
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import io, sparse

from sadih_dask.sources import open_features, open_labels

FORMATS = ("npy", "npz", "deflated", "gz", "mat", "sparse", "shards")
DTYPES = ("<f4", ">f8", "<f2", "u1", ">i2", "?")


def write(folder: Path, kind: str, array: np.ndarray) -> Path:
    path = folder / "x.npz"
    if kind == "npz":
        np.savez(path, x=array)
    elif kind == "deflated":
        np.savez_compressed(path, x=array)
    elif kind == "sparse":
        sparse.save_npz(path, sparse.csr_array(array.astype(array.dtype.newbyteorder("="))))
    elif kind == "mat":
        path = folder / "x.mat"
        io.savemat(path, {"x": array.astype(array.dtype.newbyteorder("="))}, do_compression=True)
    elif kind == "shards":
        cut = len(array) // 2
        np.save(folder / "x1.npy", array[: cut or 1])
        if len(array[cut or 1 :]):
            np.save(folder / "x2.npy", array[cut or 1 :])
        path = folder / "x*.npy"
    else:
        path = folder / "x.npy"
        np.save(path, array)
        if kind == "gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
    return path


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_random_access_equals_slicing(data):
    n_rows, width = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 9))
    kind, dtype = data.draw(st.sampled_from(FORMATS)), data.draw(st.sampled_from(DTYPES))
    if kind == "sparse" and dtype == "<f2":
        dtype = "<f4"  # SciPy has no sparse float16
    if kind == "mat" and dtype == "<f2":
        dtype = "<f4"  # nor has MATLAB
    order = data.draw(st.sampled_from("CF"))
    values = np.random.default_rng(n_rows * width).integers(0, 9, (n_rows, width))
    values[0, 0] = 1  # a sparse matrix without any entry is no data
    array = np.asarray(values.astype(dtype), order=order)
    with tempfile.TemporaryDirectory() as folder:
        source = open_features(write(Path(folder), kind, array))
        for _ in range(5):
            start = data.draw(st.integers(0, n_rows))
            stop = data.draw(st.integers(start, n_rows))
            np.testing.assert_array_equal(source.read(start, stop), array[start:stop])


LABELS = st.one_of(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=50),
    st.lists(st.text("abcé,| ", min_size=1).filter(str.strip), min_size=1, max_size=50),
)


@settings(max_examples=60, deadline=None)
@given(labels=LABELS)
def test_class_numbers_and_names_give_the_labels_back(labels):
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "y.npy"), np.array(labels))
        source = open_labels(Path(folder, "y.npy"))
        names = [source.class_names[number] for number in source.read(0, len(labels))]
        assert names == [str(label).strip() for label in labels]
        again = open_labels(Path(folder, "y.npy"), class_names=source.class_names)
        assert again.read(0, len(labels)).tolist() == source.read(0, len(labels)).tolist()


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.sets(st.sampled_from("abcdef"), min_size=1), min_size=1, max_size=30))
def test_label_lists_and_multi_hot_matrices_agree(rows):
    names = sorted(set().union(*rows))
    hot = np.array([[name in row for name in names] for row in rows])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "y.txt").write_text("\n".join(";".join(sorted(row)) for row in rows))
        listed = open_labels(Path(folder, "y.txt"), separator=";", n_rows=len(rows))
        assert listed.class_names == tuple(names)
        np.testing.assert_array_equal(listed.read(0, len(rows)), hot)
