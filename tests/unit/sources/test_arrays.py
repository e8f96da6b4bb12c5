"""Plain and compressed arrays: .npy, .npz, SciPy sparse .npz, IDX."""

import gzip
import multiprocessing
import pickle
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from sadih_dask.errors import DtypeError, InputError, MemoryPlanError, NonFiniteError
from sadih_dask.sources import RowSource, list_variables, open_features, open_ids, open_thumbnails

FEATURES = np.random.default_rng(0).normal(size=(103, 7)).astype(np.float32)


def by_blocks(source: RowSource, step: int = 10) -> np.ndarray:
    starts = range(0, source.n_rows, step)
    return np.concatenate([source.read(s, min(s + step, source.n_rows)) for s in starts])


def write_idx(path: Path, array: np.ndarray, code: int) -> None:
    head = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    data = head + array.astype(array.dtype.newbyteorder(">")).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write(path: Path, name: str, array: np.ndarray) -> Path:
    target = path / name
    if name.endswith(".npy"):
        np.save(target, array)
    elif name.endswith(".npy.gz"):
        np.save(path / "plain.npy", array)
        target.write_bytes(gzip.compress((path / "plain.npy").read_bytes()))
    elif name == "stored.npz":
        np.savez(target, features=array, labels=np.arange(len(array)))
    else:
        np.savez_compressed(target, features=array, labels=np.arange(len(array)))
    return target


@pytest.mark.parametrize("name", ["x.npy", "x.npy.gz", "stored.npz", "deflated.npz"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("transpose", [False, True])
def test_every_layout_reads_the_same_rows(tmp_path, name, order, transpose):
    array = np.asarray(FEATURES.T if transpose else FEATURES, order=order)
    source = open_features(write(tmp_path, name, array), transpose=transpose)
    assert (source.n_rows, source.width, source.dtype) == (103, 7, np.float32)
    np.testing.assert_array_equal(by_blocks(source), FEATURES)
    np.testing.assert_array_equal(source.read(90, 103), FEATURES[90:])
    np.testing.assert_array_equal(source.read(3, 5), FEATURES[3:5])
    assert source.read(5, 5).shape == (0, 7)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("name", ["x.npy", "deflated.npz"])
def test_images_are_flattened_in_row_order(tmp_path, order, transpose, name):
    images = np.arange(11 * 3 * 4 * 2).reshape(11, 3, 4, 2)
    stored = np.moveaxis(images, 0, -1) if transpose else images
    path = write(tmp_path, name, np.asarray(stored, order=order))
    source = open_features(path, transpose=transpose)
    np.testing.assert_array_equal(by_blocks(source, 3), images.reshape(11, -1))


@pytest.mark.parametrize("name", ["x.npy", "deflated.npz"])
def test_big_endian_numbers_come_out_native(tmp_path, name):
    source = open_features(write(tmp_path, name, FEATURES.astype(">f4")))
    block = source.read(0, 103)
    assert block.dtype.isnative
    np.testing.assert_array_equal(block, FEATURES)


def test_booleans_are_numbers(tmp_path):
    source = open_features(write(tmp_path, "x.npy", FEATURES > 0))
    assert source.dtype == np.uint8
    np.testing.assert_array_equal(source.read(0, 103), FEATURES > 0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", ["x.npy", "stored.npz", "deflated.npz"])
def test_a_source_survives_pickle_threads_and_fork(tmp_path, name):
    source = open_features(write(tmp_path, name, FEATURES))
    source.read(0, 50)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(40, 60), FEATURES[40:60])
    with ThreadPoolExecutor(4) as pool:
        blocks = list(pool.map(lambda i: source.read(i, i + 3), range(100)))
    for i, block in enumerate(blocks):
        np.testing.assert_array_equal(block, FEATURES[i : i + 3])
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for i, block in zip((60, 10), pool.starmap(source.read, [(60, 70), (10, 20)]), strict=True):
            np.testing.assert_array_equal(block, FEATURES[i : i + 10])
    np.testing.assert_array_equal(source.read(50, 60), FEATURES[50:60])


def test_describe(tmp_path):
    path = write(tmp_path, "stored.npz", FEATURES)
    source = open_features(path)
    assert source.describe() == f"{path}:features (103 x 7 float32)"
    assert source.locate(4) == f"{path}:features row 4"


def test_rows_outside_are_refused(tmp_path):
    source = open_features(write(tmp_path, "x.npy", FEATURES))
    for start, stop in ((-1, 2), (0, 104), (5, 4)):
        with pytest.raises(InputError, match=r"x\.npy: rows .* it has rows 0 to 103"):
            source.read(start, stop)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_non_finite_features_name_file_row_and_column(tmp_path, bad, dtype):
    array = FEATURES.astype(dtype)
    array[42, 5] = bad
    source = open_features(write(tmp_path, "x.npy", array))
    source.read(0, 42)
    with pytest.raises(NonFiniteError, match=r"x\.npy row 42, column 5: is (nan|inf)"):
        source.read(40, 50)


def test_large_finite_numbers_are_no_infinity(tmp_path):
    array = np.full((20, 3), np.finfo(np.float64).max)
    source = open_features(write(tmp_path, "x.npy", array))
    np.testing.assert_array_equal(source.read(0, 20), array)


def test_scale_is_a_variable_or_a_number(tmp_path):
    coded = np.arange(60, dtype=np.uint8).reshape(12, 5)
    scale = np.linspace(0.1, 0.5, 5, dtype=np.float32)
    np.savez(tmp_path / "x.npz", features=coded, scale=scale, other=np.ones(3))
    source = open_features(tmp_path / "x.npz", scale="scale")
    assert source.dtype == np.float32
    np.testing.assert_allclose(source.read(0, 12), coded * scale, rtol=1e-6)
    np.testing.assert_allclose(
        open_features(tmp_path / "x.npz", scale=0.5).read(2, 4), coded[2:4] / 2
    )
    with pytest.raises(InputError, match=r"x\.npz:other: is 3 float64, but a scale has one number"):
        open_features(tmp_path / "x.npz", scale="other")


def test_the_variable_is_found_by_shape_then_by_name(tmp_path):
    np.savez(tmp_path / "a.npz", codes=FEATURES, y=np.zeros(103))
    assert open_features(tmp_path / "a.npz").origin.variable == "codes"
    np.savez(tmp_path / "b.npz", X=FEATURES, Y=FEATURES)
    assert open_features(tmp_path / "b.npz").origin.variable == "X"
    np.savez(tmp_path / "c.npz", left=FEATURES, right=FEATURES)
    with pytest.raises(InputError, match=r"several .*'left' \(103 x 7 float32\), 'right' \(103"):
        open_features(tmp_path / "c.npz")
    assert open_features(tmp_path / "c.npz", "right").n_rows == 103
    with pytest.raises(InputError, match=r"c\.npz: has no variable 'up'\. It has: 'left'"):
        open_features(tmp_path / "c.npz", "up")


def test_list_variables(tmp_path):
    np.savez(tmp_path / "a.npz", x=FEATURES, n=np.float64(3), s=np.array(["a", "b"]))
    listed = [str(variable) for variable in list_variables(str(tmp_path / "a.npz"))]
    assert listed == ["'x' (103 x 7 float32)", "'n' (scalar float64)", "'s' (2 <U1)"]


def test_objects_complex_numbers_and_text_are_no_features(tmp_path):
    np.save(tmp_path / "o.npy", np.array([[1, "a"], [2, "b"]], dtype=object), allow_pickle=True)
    np.save(tmp_path / "c.npy", np.ones((3, 2), complex))
    np.save(tmp_path / "t.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "v.npy", np.ones(3))
    with pytest.raises(DtypeError, match=r"o\.npy: holds Python objects, .* refused"):
        open_features(tmp_path / "o.npy")
    with pytest.raises(DtypeError, match=r"c\.npy: elements of type complex128"):
        open_features(tmp_path / "c.npy")
    with pytest.raises(DtypeError, match=r"t\.npy: features must be numbers, found 1 x 2 text"):
        open_features(tmp_path / "t.npy")
    with pytest.raises(InputError, match=r"v\.npy: has one number per row .* expected vectors"):
        open_features(tmp_path / "v.npy")


def test_an_empty_array_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.empty((0, 4)))
    with pytest.raises(InputError, match=r"x\.npy: shape \(0, 4\) holds no rows"):
        open_features(tmp_path / "x.npy")


def test_what_cannot_be_streamed_is_refused_above_the_limit(tmp_path):
    path = write(tmp_path, "deflated.npz", np.asfortranarray(FEATURES))
    with pytest.raises(MemoryPlanError, match=r"deflated\.npz:features: .*Save it uncompressed"):
        open_features(path, memory_limit=1000)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
def test_sparse_matrices_are_densified_by_block(tmp_path, layout, compressed, transpose):
    dense = np.where(FEATURES > 0.8, FEATURES, 0)
    stored = sparse.csr_array(dense.T if transpose else dense).asformat(layout)
    sparse.save_npz(tmp_path / "x.npz", stored, compressed=compressed)
    source = open_features(tmp_path / "x.npz", transpose=transpose)
    assert (source.n_rows, source.width, source.dtype) == (103, 7, np.float32)
    np.testing.assert_array_equal(by_blocks(source), dense)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(7, 60), dense[7:60])


def test_sparse_that_cannot_be_streamed_is_refused_above_the_limit(tmp_path):
    sparse.save_npz(tmp_path / "x.npz", sparse.csc_array(FEATURES))
    with pytest.raises(MemoryPlanError, match=r"Save it as CSR: scipy\.sparse\.save_npz"):
        open_features(tmp_path / "x.npz", memory_limit=1000)


@pytest.mark.parametrize("name", ["t10k-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz"])
def test_idx_images_are_features_and_thumbnails(tmp_path, name):
    images = np.random.default_rng(1).integers(0, 256, (30, 4, 5), dtype=np.uint8)
    write_idx(tmp_path / name, images, 0x08)
    features = open_features(tmp_path / name)
    np.testing.assert_array_equal(by_blocks(features, 7), images.reshape(30, 20))
    thumbnails = open_thumbnails(tmp_path / name, n_rows=30)
    assert thumbnails.row_shape == (4, 5)
    np.testing.assert_array_equal(by_blocks(thumbnails, 7), images)


def test_idx_of_other_types(tmp_path):
    for code, dtype in ((0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")):
        values = FEATURES.astype(dtype)
        write_idx(tmp_path / "x.idx", values, code)
        np.testing.assert_array_equal(open_features(tmp_path / "x.idx").read(0, 103), values)


def test_thumbnails_must_be_small_pictures(tmp_path):
    np.save(tmp_path / "colour.npy", np.zeros((5, 4, 4, 3), np.uint8))
    assert open_thumbnails(tmp_path / "colour.npy").row_shape == (4, 4, 3)
    np.save(tmp_path / "float.npy", np.zeros((5, 4, 4)))
    with pytest.raises(InputError, match=r"float\.npy: thumbnails must be uint8"):
        open_thumbnails(tmp_path / "float.npy")
    with pytest.raises(InputError, match=r"has 5 thumbnails for 6 rows of features"):
        open_thumbnails(tmp_path / "colour.npy", n_rows=6)


def test_ids_are_integers_or_text(tmp_path):
    np.save(tmp_path / "i.npy", np.arange(5, dtype=np.uint32))
    np.save(tmp_path / "t.npy", np.array(["a", "b", ""]))
    np.save(tmp_path / "b.npy", np.array([b"a", "é".encode()]))
    np.save(tmp_path / "big.npy", np.array([1, 2**63], dtype=np.uint64))
    assert open_ids(tmp_path / "i.npy").read(1, 3).tolist() == [1, 2]
    assert open_ids(tmp_path / "i.npy").dtype == np.int64
    assert open_ids(tmp_path / "b.npy").read(0, 2).tolist() == ["a", "é"]
    assert open_ids(tmp_path / "t.npy").read(0, 2).tolist() == ["a", "b"]
    with pytest.raises(InputError, match=r"t\.npy row 2: has no id"):
        open_ids(tmp_path / "t.npy").read(1, 3)
    with pytest.raises(InputError, match=r"big\.npy row 1: the id does not fit"):
        open_ids(tmp_path / "big.npy").read(0, 2)
    with pytest.raises(InputError, match=r"i\.npy: has 5 ids for 4 rows"):
        open_ids(tmp_path / "i.npy", n_rows=4)
