"""What goes into a store comes out of it, here and through zarr, in every layout."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec

from sadih_dask.errors import ConflictError, DtypeError, InputError, LabelError
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.chunks import encode_chunk
from sadih_dask.stores.layout import MIB, ArrayLayout, default_chunk_rows
from tests.support.stores import assert_holds, create, ids_of, table

N, D = 100, 6
COMPRESSIONS = ["none", "zstd"]


@pytest.fixture(scope="module")
def rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "features": rng.standard_normal((N, D)).astype(np.float32),
        "labels": rng.integers(-1, 5, N),
        "ids": np.array([f"réf-{i}" for i in range(N)]),
        "thumbnails": rng.integers(0, 256, (N, 4, 5, 3), dtype=np.uint8),
    }


@pytest.mark.parametrize("scheme", ["local", "file", "memory"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_layout_returns_the_rows_and_zarr_agrees(
    tmp_path: Path, rows: dict[str, np.ndarray], scheme: str, compression: str
) -> None:
    url = {"local": f"{tmp_path}/s", "file": f"file://{tmp_path}/s", "memory": "memory://s"}[scheme]
    store = FeatureStore.create(
        url,
        **rows,
        chunk_rows=16,
        compression=compression,
        overwrite=True,
    )
    group = store.to_zarr()[store.segments[0].path]
    for name, expected in rows.items():
        np.testing.assert_array_equal(store.read(name), expected)
        np.testing.assert_array_equal(store.read(name, 7, 55), expected[7:55])
        assert store.read(name).dtype == store.dtype(name)
        if name != "ids":
            np.testing.assert_array_equal(group[name][:], expected)
    assert sorted(name for name, _ in group.members()) == sorted(rows)
    assert store.verify().ok


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8", "int32"])
def test_zarr_writes_the_same_bytes(tmp_path: Path, compression: str, dtype: str) -> None:
    layout = ArrayLayout("a", dtype, (3,), 8, compression)
    rows = (np.arange(33 * 3) % 100).reshape(33, 3).astype(dtype)
    array = zarr.create_array(
        tmp_path / "a",
        shape=rows.shape,
        chunks=(8, 3),
        dtype=dtype,
        filters=[],
        serializer=BytesCodec(endian="little"),
        compressors=[*([ZstdCodec(level=3)] * (compression == "zstd")), Crc32cCodec()],
        chunk_key_encoding={"name": "default", "separator": "."},
        fill_value=0,
        config={"write_empty_chunks": True},
    )
    array[:] = rows
    for chunk in range(5):
        parts, digest = encode_chunk(rows[8 * chunk : 8 * chunk + 8], layout)
        ours = b"".join(bytes(piece) for piece in parts)
        assert ours == (tmp_path / layout.key(chunk)).read_bytes()
        assert digest == int.from_bytes(ours[-4:], "little")


def test_labels_may_be_rows_of_0_and_1_or_absent(tmp_path: Path) -> None:
    features = np.zeros((4, 2), np.float32)
    hot = np.eye(4, 3, dtype=bool)
    store = FeatureStore.create(tmp_path / "hot", features, hot)
    assert store.dtype("labels") == np.uint8
    np.testing.assert_array_equal(store.read("labels"), hot)
    assert FeatureStore.create(tmp_path / "none", features).arrays == ("features",)


@pytest.mark.parametrize(
    ("ids", "dtype"),
    [
        (np.array([3, -1, 2**40]), "int64"),
        (np.array([1, 2, 3], np.uint64), "int64"),
        (np.array([b"a", b"bcd", b""]), "S3"),
        (np.array(["", "ö", "日本"]), "U6"),
    ],
)
def test_ids_are_integers_or_strings(tmp_path: Path, ids: np.ndarray, dtype: str) -> None:
    store = FeatureStore.create(tmp_path / "s", np.zeros((3, 1), "f4"), [0, 1, 2], ids=ids)
    np.testing.assert_array_equal(store.read("ids"), ids)
    assert store.dtype("ids") == dtype


def test_codes_keep_their_model_and_ids(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 256, (50, 2), dtype=np.uint8)
    ids = np.arange(50)
    store = CodeStore.create(tmp_path / "c", codes, n_bits=12, model="m1", ids=ids, chunk_rows=8)
    store.append(codes[:5], ids[:5], model="m1")
    np.testing.assert_array_equal(store.read("codes"), np.concatenate([codes, codes[:5]]))
    assert (store.n_bits, store.model, store.n_rows) == (12, "m1", 55)
    with pytest.raises(InputError, match="codes of two models cannot be compared"):
        store.append(codes, ids, model="m2")
    with pytest.raises(InputError, match="n_bits must be between 1"):
        CodeStore.create(tmp_path / "d", codes, n_bits=0, model="m")
    with pytest.raises(InputError, match=r"codes have shape \(50, 2\), expected \(rows, 8\)"):
        CodeStore.create(tmp_path / "e", codes, n_bits=64, model="m")


def test_reading_into_a_buffer_and_taking_rows(tmp_path: Path, rows: dict[str, np.ndarray]) -> None:
    store = FeatureStore.create(tmp_path / "s", rows["features"], rows["labels"], chunk_rows=16)
    out = np.empty((20, D), np.float32)
    assert store.read("features", 10, 30, out=out) is out
    np.testing.assert_array_equal(out, rows["features"][10:30])
    picked = [99, 0, 17, 17, 3]
    np.testing.assert_array_equal(store.take("features", picked), rows["features"][picked])
    assert store.take("labels", []).shape == (0,)
    with pytest.raises(InputError, match="out must be a C-contiguous float32 array of shape"):
        store.read("features", 0, 5, out=out)
    with pytest.raises(InputError, match="rows 90 to 101 of 'features' were asked for"):
        store.read("features", 90, 101)
    with pytest.raises(InputError, match="rows must be a list of numbers from 0 to 99"):
        store.take("features", [100])
    with pytest.raises(InputError, match="has no array 'thumbnails'; it has features, labels"):
        store.read("thumbnails")


def test_a_copy_carries_no_data_and_stays_at_its_commit(
    tmp_path: Path, rows: dict[str, np.ndarray]
) -> None:
    store = FeatureStore.create(tmp_path / "s", rows["features"], rows["labels"], chunk_rows=16)
    sent = pickle.dumps(store)
    assert len(sent) < 500
    store.append(rows["features"], rows["labels"])
    arrived = pickle.loads(sent)
    assert (arrived.n_rows, arrived.refresh().n_rows) == (N, 2 * N)
    arrived.append(rows["features"][:1], rows["labels"][:1])
    assert pickle.loads(sent).n_rows == N


def test_attributes_and_repr(tmp_path: Path, rows: dict[str, np.ndarray]) -> None:
    store = FeatureStore.create(
        tmp_path / "s", rows["features"], class_names=["cat", "dög"], source="made up"
    )
    assert (store.class_names, store.source, len(store)) == (("cat", "dög"), "made up", N)
    assert "100 rows, features 100x6 float32; 1 segments, compression none" in repr(store)


def test_the_default_chunk_is_a_power_of_two_of_at_most_16_mib() -> None:
    for row_bytes in (1, 100, 2048, 4000, MIB, 40 * MIB):
        chunk_rows = default_chunk_rows(row_bytes)
        assert chunk_rows & (chunk_rows - 1) == 0
        assert 8 * MIB < chunk_rows * row_bytes <= 16 * MIB or chunk_rows == 1


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ({"features": np.zeros((3, 2), object)}, DtypeError, "features cannot be stored as object"),
        ({"features": np.zeros((3, 2), "c8")}, DtypeError, "cannot be stored as complex64"),
        ({"features": np.zeros(3, "f4")}, InputError, "expected 2 dimensions"),
        ({"features": np.zeros((3, 0), "f4")}, InputError, "none of them empty"),
        ({"labels": np.array([0j, 1, 2])}, LabelError, "y has dtype complex"),
        ({"labels": np.array([0, 1])}, InputError, "differ in their number of rows"),
        ({"labels": np.array([[0], [2], [1]])}, LabelError, "row 1, column 0 is 2, expected 0 or"),
        ({"ids": np.array([1, "a", None], object)}, DtypeError, "ids must be one integer, bytes"),
        ({"ids": np.array([0, 2**63, 1], np.uint64)}, InputError, "id of row 1 does not fit"),
        ({"thumbnails": np.zeros((3, 2, 2), "f4")}, DtypeError, "thumbnails must be uint8"),
    ],
)
def test_what_cannot_be_stored_is_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        FeatureStore.create(tmp_path / "s", **{"features": np.zeros((3, 2), "f4"), **arrays})


def test_a_store_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    features = np.ones((3, 2), np.float32)
    FeatureStore.create(tmp_path / "s", features)
    with pytest.raises(ConflictError, match="already holds a finished store"):
        FeatureStore.create(tmp_path / "s", features)
    store = FeatureStore.create(tmp_path / "s", features * 2, overwrite=True)
    np.testing.assert_array_equal(store.read("features"), features * 2)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConflictError, match=r"holds something that is not a store.*thesis.tex"):
        FeatureStore.create(tmp_path, np.ones((3, 2), np.float32), overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("chunking", "message"),
    [
        ({"chunk_rows": 0}, "chunk_rows must be at least 1"),
        ({"compression": "lzma"}, "compression must be one of"),
    ],
)
def test_impossible_chunks_are_refused(
    tmp_path: Path, chunking: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        FeatureStore.create(tmp_path / "s", np.ones((3, 2), np.float32), **chunking)


@pytest.mark.parametrize("n_rows", [0, 1])
@pytest.mark.parametrize("scheme", ["local", "memory"])
def test_no_row_and_one_row(tmp_path: Path, scheme: str, n_rows: int) -> None:
    url = f"{tmp_path}/s" if scheme == "local" else f"memory://few-{n_rows}"
    store = create(url, 0, n_rows, overwrite=True)
    assert_holds(store, range(n_rows))
    assert (store.chunks, store.shape("features")) == ((n_rows,), (n_rows, 2))
    assert sum(len(block) for _, block in store.blocks("features")) == n_rows
    assert store.take("labels", []).shape == (0,)
    assert store.to_dask("labels").compute(scheduler="synchronous").tolist() == list(range(n_rows))
    store.append(**table(n_rows, 6))
    assert_holds(store, range(6))
    assert store.delete(ids_of(range(6))) == 6
    assert_holds(store, [])
    assert (store.chunks, list(store.blocks("ids"))) == ((0,), [])
    store.append(**table(6, 8))
    assert_holds(store.compact(one_segment=True), [6, 7])


def test_rows_of_0_and_1_are_appended_and_deleted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((9, 2)).astype(np.float16)
    hot = rng.integers(0, 2, (9, 3)).astype(np.uint8)
    rows = {"features": features, "labels": hot, "ids": np.arange(9)}
    store = FeatureStore.create(tmp_path / "s", **{k: v[:5] for k, v in rows.items()}, chunk_rows=2)
    store.append(**{k: v[5:] for k, v in rows.items()})
    store.delete([0, 3, 8])
    kept = np.delete(np.arange(9), [0, 3, 8])
    for state in (store, store.compact()):
        for name, array in rows.items():
            np.testing.assert_array_equal(state.read(name), array[kept])
