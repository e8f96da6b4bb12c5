"""Damaged and malicious files: an error that names the file, and bounded memory."""

import gzip
import io
import json
import pickle
import struct
import subprocess
import sys
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zarr
from scipy import io as scipy_io
from scipy import sparse

from sadih_dask.errors import DtypeError, FormatError, InputError, SadihError
from sadih_dask.sources import open_features, open_labels

FEATURES = np.random.default_rng(0).normal(size=(500, 16)).astype(np.float32)


def npy_bytes(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npy_header(shape, descr="<f4"):
    stream = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def zip_of(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)


@pytest.mark.parametrize("shape", [(10**15, 4), (10**9, 10**9), (2**62, 2**62)])
def test_a_giant_declared_shape_costs_nothing(tmp_path, shape):
    (tmp_path / "x.npy").write_bytes(npy_header(shape) + b"\0" * 100)
    with pytest.raises(FormatError, match=r"x\.npy: its header claims .* bytes .* can hold only"):
        open_features(tmp_path / "x.npy")
    (tmp_path / "x.npy.gz").write_bytes(gzip.compress(npy_header(shape) + b"\0" * 100))
    with pytest.raises(FormatError, match=r"x\.npy\.gz: its header claims"):
        open_features(tmp_path / "x.npy.gz")
    zip_of(tmp_path / "x.npz", features=npy_header(shape) + b"\0" * 100)
    with pytest.raises(FormatError, match=r"x\.npz:features: its header claims"):
        open_features(tmp_path / "x.npz")


def test_a_forged_member_size_is_refused(tmp_path):
    header = npy_header((10**8, 16))
    zip_of(tmp_path / "x.npz", features=header + b"\0" * 100)
    data = (tmp_path / "x.npz").read_bytes()
    claimed = struct.pack("<I", len(header) + 100)
    forged = struct.pack("<I", (len(header) + 64 * 10**8) % 2**32)
    (tmp_path / "x.npz").write_bytes(data.replace(claimed, forged))
    with pytest.raises(FormatError, match=r"x\.npz"):
        open_features(tmp_path / "x.npz")


def test_a_row_of_a_gigabyte_is_refused(tmp_path):
    with (tmp_path / "x.npy").open("wb") as stream:
        stream.write(npy_header((2, 2**28)))
        stream.truncate(2**31 + 4096)
    with pytest.raises(FormatError, match=r"x\.npy: a row of shape .* Pass transpose=True"):
        open_features(tmp_path / "x.npy")


def test_a_zip_bomb_is_read_in_bounded_memory(tmp_path):
    rows = 200_000
    zip_of(tmp_path / "bomb.npz", features=npy_header((rows, 64)) + bytes(rows * 256))
    assert (tmp_path / "bomb.npz").stat().st_size < 10**6
    script = (
        "import resource, sys\n"
        "from sadih_dask.sources import open_features\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "source = open_features(sys.argv[1])\n"
        "assert source.read(199_000, 200_000).shape == (1000, 64)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "bomb.npz")]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
    assert int(done.stdout) < 20_000  # KiB, of 50,000 in the bomb


@pytest.mark.parametrize("keep", [0, 3, 40, 120, 200, 5_000, 31_000])
@pytest.mark.parametrize("kind", ["x.npy", "x.npy.gz", "x.npz", "stored.npz", "x.mat"])
def test_truncated_files(tmp_path, kind, keep):
    path = tmp_path / kind
    if kind == "x.npz":
        np.savez_compressed(path, features=FEATURES)
    elif kind == "stored.npz":
        np.savez(path, features=FEATURES)
    elif kind == "x.mat":
        scipy_io.savemat(path, {"features": FEATURES}, do_compression=True)
    else:
        data = npy_bytes(FEATURES)
        path.write_bytes(gzip.compress(data) if kind.endswith(".gz") else data)
    whole = path.read_bytes()
    path.write_bytes(whole[: min(keep, len(whole) - 10)])
    with pytest.raises(FormatError, match=kind.replace(".", r"\.")):
        open_features(path).read(0, 500)


@pytest.mark.parametrize("position", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("kind", ["x.npy.gz", "x.npz", "x.mat"])
def test_a_flipped_bit_in_compressed_data_is_noticed(tmp_path, kind, position):
    path = tmp_path / kind
    if kind == "x.npz":
        np.savez_compressed(path, features=FEATURES)
    elif kind == "x.mat":
        scipy_io.savemat(path, {"features": FEATURES}, do_compression=True)
    else:
        path.write_bytes(gzip.compress(npy_bytes(FEATURES)))
    data = bytearray(path.read_bytes())
    data[int(len(data) * position)] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(FormatError, match=kind.replace(".", r"\.")):
        open_features(path).read(0, 500)


def test_a_file_that_shrinks_after_opening(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, FEATURES)
    source = open_features(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(FormatError, match=r"x\.npy: damaged.* bytes too early"):
        source.read(0, 500)


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.mat", "x.h5", "x.parquet", "x", "x.arrow"])
def test_the_wrong_magic(tmp_path, name):
    (tmp_path / name).write_bytes(b"these are not the numbers you are looking for" * 30)
    with pytest.raises(FormatError, match=r"is not in a format that can be read; it starts with"):
        open_features(tmp_path / name)


@pytest.mark.parametrize("magic", [b"PK\x03\x04", b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"])
@pytest.mark.parametrize("rest", [b"", b"\0" * 400, b"\xff" * 400, b"PAR1"])
def test_magic_and_then_nonsense(tmp_path, magic, rest):
    (tmp_path / "x").write_bytes(magic + rest)
    with pytest.raises(FormatError, match="/x: "):
        open_features(tmp_path / "x")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "kind", ["npy", "npz", "idx", "mat", "h5", "parquet", "feather", "arrow", "sparse"]
)
def test_random_damage_never_escapes_the_error_types(tmp_path, kind, seed):
    path = tmp_path / f"x.{kind}"
    write_kind(path, kind)
    rng = np.random.default_rng(seed)
    data = bytearray(path.read_bytes())
    for at in rng.integers(0, min(len(data), 600), 6):
        data[at] = rng.integers(0, 256)
    path.write_bytes(data)
    # Damage in the numbers themselves may pass; everything else must be one of our errors
    with suppress(SadihError):
        assert len(open_features(path).read(0, 20)) == 20


def write_kind(path, kind):
    if kind == "arrow":
        pa = pytest.importorskip("pyarrow")
        column = pa.FixedSizeListArray.from_arrays(FEATURES.ravel(), 16)
        table = pa.table({"features": column})
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    elif kind == "npy":
        path.write_bytes(npy_bytes(FEATURES))
    elif kind == "npz":
        np.savez_compressed(path.with_suffix(".npz"), features=FEATURES[:40])
    elif kind == "sparse":
        sparse.save_npz(path.with_suffix(".npz"), sparse.csr_array(FEATURES[:40] > 1))
        path.with_suffix(".npz").rename(path)
    elif kind == "idx":
        path.write_bytes(struct.pack(">HBBII", 0, 8, 2, 500, 64) + FEATURES.tobytes())
    elif kind == "mat":
        scipy_io.savemat(path, {"features": FEATURES}, appendmat=False)
    elif kind == "h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["features"] = FEATURES
    else:
        pa = pytest.importorskip("pyarrow")
        column = pa.FixedSizeListArray.from_arrays(FEATURES.ravel(), 16)
        table = pa.table({"features": column})
        if kind == "parquet":
            pytest.importorskip("pyarrow.parquet").write_table(table, path)
        else:
            pytest.importorskip("pyarrow.feather").write_feather(table, path)


def test_structured_arrays_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3, dtype=[("a", "f4"), ("b", "i4")]))
    with pytest.raises(DtypeError, match=r"x\.npy: elements of type"):
        open_features(tmp_path / "x.npy")


def test_a_sparse_matrix_with_forged_indices(tmp_path):
    matrix = sparse.csr_array(np.eye(6, dtype=np.float32))
    for layout in ("csr", "csc", "coo"):
        forged = matrix.asformat(layout).copy()
        if layout == "coo":
            forged.coords[0][3] = 10**6
        else:
            forged.indices[3] = 10**6
        sparse.save_npz(tmp_path / "x.npz", forged)
        with pytest.raises(FormatError, match=r"x\.npz"):
            open_features(tmp_path / "x.npz").read(0, 6)
    matrix.indptr[2] = 10**6
    sparse.save_npz(tmp_path / "x.npz", matrix)
    with pytest.raises(FormatError, match=r"row pointers of rows 0 to 6 point outside"):
        open_features(tmp_path / "x.npz").read(0, 6)


def test_a_gzip_that_holds_more_than_it_declares(tmp_path):
    data = struct.pack(">HBBII", 0, 8, 2, 3, 4) + bytes(20)
    (tmp_path / "x.gz").write_bytes(gzip.compress(data))
    with pytest.raises(FormatError, match="holds more data than its header says"):
        open_features(tmp_path / "x.gz").read(0, 3)


def test_a_matlab_bomb_is_measured_before_it_is_loaded(tmp_path):
    name = b"features"
    body = struct.pack("<4I", 6, 8, 6, 0) + struct.pack("<2I2i", 5, 8, 2**17, 64)
    body += struct.pack("<2I", 1, len(name)) + name + struct.pack("<2I", 9, 2**26)
    packed = zlib.compress(struct.pack("<2I", 14, len(body) + 2**26) + body + bytes(2**26), 1)
    head = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    (tmp_path / "x.mat").write_bytes(head + struct.pack("<2I", 15, len(packed)) + packed)
    with pytest.raises(SadihError, match=r"x\.mat:features: reading it takes about .* MiB"):
        open_features(tmp_path / "x.mat", memory_limit=2**24)


def test_a_zarr_array_cannot_bring_pickle(tmp_path):
    array = zarr.create_array(
        tmp_path / "x.zarr",
        shape=(4, 2),
        dtype="f4",
        zarr_format=2,
        chunks=(4, 2),
        compressors=None,
    )
    array[:] = 1
    document = json.loads((tmp_path / "x.zarr/.zarray").read_text())
    document["filters"] = [{"id": "pickle", "protocol": 5}]
    (tmp_path / "x.zarr/.zarray").write_text(json.dumps(document))
    (tmp_path / "x.zarr/0.0").write_bytes(pickle.dumps(FEATURES[:4, :2]))
    with pytest.raises(FormatError, match=r"x\.zarr: .*pickle"):
        open_features(tmp_path / "x.zarr")


def test_a_line_without_end_is_not_loaded(tmp_path):
    (tmp_path / "y.csv").write_text("a" * 2_000_000)
    with pytest.raises(FormatError, match=r"y\.csv line 0: is longer than 1,048,576"):
        open_labels(tmp_path / "y.csv")


def test_unreadable_files(tmp_path):
    with pytest.raises(InputError, match=r"missing\.npz: cannot be opened"):
        open_features(tmp_path / "missing.npz")
