"""MATLAB files, v5 written by SciPy and v7.3 as MATLAB lays it out in HDF5."""

import pickle
import struct
from contextlib import suppress

import numpy as np
import pytest
from scipy import io, sparse

from sadih_dask.errors import DtypeError, InputError, LabelError, MemoryPlanError, SadihError
from sadih_dask.sources import list_variables, open_features, open_labels, read_class_names

DATA = np.random.default_rng(0).normal(size=(40, 5))
TARGET = np.where(np.random.default_rng(1).random((3, 40)) < 0.5, 1, -1)
TARGET[0] = 1


def cells(*texts):
    out = np.empty((len(texts), 1), dtype=object)
    out[:, 0] = texts
    return out


def write_v73(path, **variables):
    """Write what MATLAB's ``save -v7.3`` writes: axes reversed, a text header, class attributes."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in variables.items():
            if isinstance(value, list):
                references = np.empty((1, len(value)), dtype=h5py.ref_dtype)
                for i, text in enumerate(value):
                    units = np.frombuffer(text.encode("utf-16-le"), "<u2").reshape(-1, 1)
                    item = file.create_dataset(f"#refs#/{name}{i}", data=units)
                    item.attrs["MATLAB_class"] = np.bytes_("char")
                    references[0, i] = item.ref
                file[name] = references
                file[name].attrs["MATLAB_class"] = np.bytes_("cell")
            elif sparse.issparse(value):
                columns = value.tocsc()
                group = file.create_group(name)
                group.attrs["MATLAB_sparse"] = np.uint64(columns.shape[0])
                group["data"] = columns.data.astype(float)
                group["ir"] = columns.indices.astype(np.uint64)
                group["jc"] = columns.indptr.astype(np.uint64)
            else:
                file[name] = np.asarray(value).T
    text = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM"
    with path.open("r+b") as stream:
        stream.write(text)


def write(path, version, **variables):
    if version == "v7.3":
        write_v73(path, **variables)
        return
    converted = {k: cells(*v) if isinstance(v, list) else v for k, v in variables.items()}
    io.savemat(path, converted, do_compression=version == "v7")


VERSIONS = pytest.mark.parametrize("version", ["v6", "v7", "v7.3"])


@VERSIONS
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8, np.int16, bool])
def test_features_and_transposed_labels_are_told_apart(tmp_path, version, dtype):
    data = DATA if np.dtype(dtype).kind == "f" else DATA > 0
    write(tmp_path / "x.mat", version, data=data.astype(dtype), target=TARGET)
    features = open_features(tmp_path / "x.mat")
    assert (features.n_rows, features.width) == (40, 5)
    assert features.origin.variable == "data"
    np.testing.assert_array_equal(features.read(7, 31), data.astype(dtype)[7:31])
    labels = open_labels(features)
    assert labels.row_shape == (3,)
    np.testing.assert_array_equal(labels.read(3, 40), TARGET.T[3:] > 0)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(labels)).read(0, 5), TARGET.T[:5] > 0)


@VERSIONS
def test_transposed_features(tmp_path, version):
    write(tmp_path / "x.mat", version, data=DATA.T)
    features = open_features(tmp_path / "x.mat", transpose=True)
    for start in (0, 13, 39):
        np.testing.assert_array_equal(features.read(start, 40), DATA[start:])


@VERSIONS
def test_images_with_rows_last_keep_their_axes(tmp_path, version):
    images = np.random.default_rng(0).integers(0, 255, (4, 5, 3, 20), dtype=np.uint8)
    write(tmp_path / "x.mat", version, X=images, y=np.arange(20).reshape(20, 1) % 4)
    features = open_features(tmp_path / "x.mat", transpose=True)
    np.testing.assert_array_equal(
        features.read(2, 9), np.moveaxis(images, -1, 0).reshape(20, -1)[2:9]
    )
    assert open_labels(features).read(0, 6).tolist() == [0, 1, 2, 3, 0, 1]


@VERSIONS
def test_sparse_variables(tmp_path, version):
    dense = np.where(DATA > 0.5, DATA, 0)
    write(tmp_path / "x.mat", version, data=sparse.csc_matrix(dense))
    np.testing.assert_array_equal(open_features(tmp_path / "x.mat").read(3, 33), dense[3:33])
    transposed = open_features(tmp_path / "x.mat", "data", transpose=True)
    np.testing.assert_array_equal(transposed.read(0, 5), dense.T)


@VERSIONS
def test_cells_of_names(tmp_path, version):
    write(tmp_path / "x.mat", version, names=["dog", "catfish", "é"], data=DATA)
    assert read_class_names(tmp_path / "x.mat", "names") == ("dog", "catfish", "é")
    labels = open_labels(tmp_path / "x.mat", "names")
    assert labels.read(0, 3).tolist() == [1, 0, 2]


def test_char_matrices_are_names(tmp_path):
    io.savemat(tmp_path / "x.mat", {"names": np.array(["dog", "catfish"])})
    assert read_class_names(tmp_path / "x.mat") == ("dog", "catfish")


def test_big_endian_files(tmp_path):
    name, shape = b"data", (3, 2)
    values = np.arange(6, dtype=">f8")
    body = struct.pack(">4I", 6, 8, 6, 0) + struct.pack(">2I2i", 5, 8, *shape)
    body += struct.pack(">I", (len(name) << 16) | 1) + name
    body += struct.pack(">2I", 9, values.nbytes) + values.tobytes()
    head = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x01\x00MI"
    (tmp_path / "x.mat").write_bytes(head + struct.pack(">2I", 14, len(body)) + body)
    expected = np.arange(6.0).reshape(shape, order="F")
    np.testing.assert_array_equal(open_features(tmp_path / "x.mat").read(0, 3), expected)


@VERSIONS
def test_an_ambiguous_file_lists_its_variables(tmp_path, version):
    write(tmp_path / "x.mat", version, train=DATA, test=DATA[:9], names=["a", "b"])
    with pytest.raises(
        InputError, match=r"several variables could be the features.*'train' \(40 x 5"
    ):
        open_features(tmp_path / "x.mat")
    assert {v.name: v.shape for v in list_variables(str(tmp_path / "x.mat"))} == {
        "train": (40, 5),
        "test": (9, 5),
        "names": (2,),
    }


def test_what_cannot_be_read(tmp_path):
    variables = {"s": {"a": 1}, "z": DATA + 1j, "c": cells("a", DATA), "data": DATA}
    io.savemat(tmp_path / "x.mat", variables)
    for name in ("s", "z"):
        with pytest.raises(DtypeError, match=rf"x\.mat:{name}: a MATLAB \w+ variable has no rows"):
            open_features(tmp_path / "x.mat", name)
    with pytest.raises(DtypeError, match=r"x\.mat:c cell 1: does not hold one line of text"):
        open_labels(tmp_path / "x.mat", "c")


def test_nested_cells_are_refused_without_recursion(tmp_path):
    """So many levels overflow the stack of a reader that follows them."""
    element = struct.pack("<2I", 14, 0)
    heads, length = [], len(element)
    for name in [b""] * 20_000 + [b"vehicles"]:
        head = struct.pack("<4I", 6, 8, 1, 0) + struct.pack("<2I2i", 5, 8, 1, 1)
        head += struct.pack("<2I", 1, len(name)) + name
        heads.append(struct.pack("<2I", 14, length + len(head)) + head)
        length += len(heads[-1])
    header = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    (tmp_path / "x.mat").write_bytes(header + b"".join(reversed(heads)) + element)
    with pytest.raises(DtypeError, match=r"x\.mat:vehicles cell 0: does not hold one line of text"):
        open_labels(tmp_path / "x.mat")


@pytest.mark.parametrize("value", [DATA, sparse.csc_matrix(DATA > 1), cells("a", "b")])
def test_any_wrong_byte_in_the_headers_is_survived(tmp_path, value):
    """Wrong element types and sizes are what other readers crash on."""
    io.savemat(tmp_path / "x.mat", {"data": value})
    whole = (tmp_path / "x.mat").read_bytes()
    for at in range(128, 208):
        for byte in (0, 5, 232):
            (tmp_path / "x.mat").write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
            with suppress(SadihError):
                open_labels(tmp_path / "x.mat", "data")


@pytest.mark.parametrize("transpose", [False, True])
def test_a_compressed_variable_must_fit_into_memory(tmp_path, transpose):
    io.savemat(tmp_path / "x.mat", {"data": DATA}, do_compression=True)
    with pytest.raises(MemoryPlanError, match=r"x\.mat:data: .*Save it with -v7\.3 or as \.npy"):
        open_features(tmp_path / "x.mat", transpose=transpose, memory_limit=1000)
    # read in place, so no limit applies
    io.savemat(tmp_path / "x.mat", {"data": DATA})
    assert open_features(tmp_path / "x.mat", memory_limit=1000).n_rows == 40


def test_label_counts_are_checked(tmp_path):
    io.savemat(tmp_path / "x.mat", {"data": DATA, "target": TARGET[:, :39]})
    with pytest.raises(LabelError, match=r"x\.mat:target .* has labels for 3 rows, .* have 40"):
        open_labels(open_features(tmp_path / "x.mat"))
