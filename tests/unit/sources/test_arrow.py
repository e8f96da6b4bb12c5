"""Parquet, Feather and Arrow streams with embeddings and labels in columns."""

import pickle

import numpy as np
import pytest

from sadih_dask.errors import DtypeError, InputError, LabelError
from sadih_dask.sources import list_variables, open_features, open_ids, open_labels

pa = pytest.importorskip("pyarrow", reason="pyarrow is in the optional extra 'ingest'")
parquet = pytest.importorskip("pyarrow.parquet")
feather = pytest.importorskip("pyarrow.feather")

ROWS, WIDTH = 5_000, 3
VECTORS = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
NUMBERS = np.arange(ROWS) % 7


def write(path, table):
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=3_000)
    elif path.suffix == ".feather":
        feather.write_feather(table, path, chunksize=700)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=700)


def table_of(**columns):
    fixed = pa.FixedSizeListArray.from_arrays(VECTORS.ravel(), WIDTH)
    return pa.table({"embedding": fixed, "label": NUMBERS} | columns)


KINDS = pytest.mark.parametrize("name", ["x.parquet", "x.feather", "x.arrow"])


@KINDS
@pytest.mark.parametrize("element", ["fixed", "list", "large", "half", "double"])
def test_embedding_columns(tmp_path, name, element):
    flat, dtype = VECTORS.ravel(), np.float32
    offsets = np.arange(ROWS + 1) * WIDTH
    if element == "fixed":
        column = pa.FixedSizeListArray.from_arrays(flat, WIDTH)
    elif element == "list":
        column = pa.ListArray.from_arrays(offsets.astype(np.int32), flat)
    elif element == "large":
        column = pa.LargeListArray.from_arrays(offsets, flat)
    else:
        dtype = np.float16 if element == "half" else np.float64
        column = pa.FixedSizeListArray.from_arrays(flat.astype(dtype), WIDTH)
    write(tmp_path / name, table_of(embedding=column))
    source = open_features(tmp_path / name)
    assert (source.n_rows, source.width, source.dtype) == (ROWS, WIDTH, dtype)
    for start, stop in ((0, 10), (10, 900), (2_990, 3_010), (690, 710), (4_999, ROWS), (0, ROWS)):
        np.testing.assert_array_equal(source.read(start, stop), VECTORS[start:stop].astype(dtype))
    copy = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(copy.read(3_500, 3_600), VECTORS[3_500:3_600].astype(dtype))


@KINDS
def test_label_columns(tmp_path, name):
    texts = [("cat", "dog")[i % 2] for i in range(ROWS)]
    lists = [[i % 3, 10] for i in range(ROWS)]
    table = table_of(
        animal=texts,
        category=pa.array(texts).dictionary_encode(),
        tags=lists,
        words=[["red"] if i % 2 else ["red", "blue"] for i in range(ROWS)],
        key=[f"k{i}" for i in range(ROWS)],
    )
    write(tmp_path / name, table)
    path = tmp_path / name
    np.testing.assert_array_equal(open_labels(path, "label").read(5, 4_000), NUMBERS[5:4_000])
    for text in ("animal", "category"):
        labels = open_labels(path, text, n_rows=ROWS)
        assert labels.class_names == ("cat", "dog")
        assert labels.read(4_000, 4_003).tolist() == [0, 1, 0]
    tags = open_labels(path, "tags")
    assert tags.class_names == ("0", "1", "2", "10")
    assert tags.read(0, 2).tolist() == [[1, 0, 0, 1], [0, 1, 0, 1]]
    assert open_labels(path, "words").read(0, 2).tolist() == [[1, 1], [0, 1]]
    assert open_ids(path, "key").read(3_000, 3_002).tolist() == ["k3000", "k3001"]


def test_fixed_lists_of_zero_and_one_are_multi_hot(tmp_path):
    hot = (VECTORS > 0).astype(np.int8)
    hot[:, 0] = 1
    write(tmp_path / "x.parquet", table_of(hot=pa.FixedSizeListArray.from_arrays(hot.ravel(), 3)))
    np.testing.assert_array_equal(open_labels(tmp_path / "x.parquet", "hot").read(7, 99), hot[7:99])


def test_tensor_columns(tmp_path):
    kind = pa.fixed_shape_tensor(pa.float32(), [WIDTH])
    storage = pa.FixedSizeListArray.from_arrays(VECTORS.ravel(), WIDTH)
    write(tmp_path / "x.parquet", table_of(embedding=pa.ExtensionArray.from_storage(kind, storage)))
    np.testing.assert_array_equal(open_features(tmp_path / "x.parquet").read(0, ROWS), VECTORS)


@KINDS
def test_missing_values_name_the_row(tmp_path, name):
    labels = [None if i == 4_321 else i % 3 for i in range(ROWS)]
    lists = [[] if i == 33 else None if i == 77 else ["a"] for i in range(ROWS)]
    write(tmp_path / name, table_of(label=labels, tags=lists))
    with pytest.raises(LabelError, match=r"x\.\w+:label row 4321: is missing \(null\)"):
        open_labels(tmp_path / name, "label")
    with pytest.raises(LabelError, match=r"x\.\w+:tags row 77: its label list is missing"):
        open_labels(tmp_path / name, "tags", allow_unlabelled=True)
    write(tmp_path / name, table_of(tags=[row or [] for row in lists]))
    with pytest.raises(LabelError, match=r"x\.\w+:tags row 33: has no label"):
        open_labels(tmp_path / name, "tags")


def test_vectors_that_disagree_or_miss_numbers(tmp_path):
    rows = VECTORS.tolist()
    rows[3_456] = [1.0, 2.0]
    write(tmp_path / "x.parquet", table_of(embedding=rows))
    with pytest.raises(InputError, match=r"embedding row 3456: has 2 numbers, .* have 3"):
        open_features(tmp_path / "x.parquet").read(3_400, 3_500)
    rows[3_456] = [1.0, None, 2.0]
    write(tmp_path / "x.parquet", table_of(embedding=rows))
    with pytest.raises(InputError, match=r"embedding row 3456, column 1: is missing"):
        open_features(tmp_path / "x.parquet").read(3_400, 3_500)


def test_columns_of_other_types(tmp_path):
    days = pa.array([0] * ROWS, pa.date32())
    write(tmp_path / "x.parquet", table_of(day=days))
    with pytest.raises(DtypeError, match=r"x\.parquet:day: a column of type date32"):
        open_labels(tmp_path / "x.parquet", "day")
    with pytest.raises(InputError, match="a column cannot be transposed"):
        open_features(tmp_path / "x.parquet", transpose=True)
    listed = [str(v) for v in list_variables(str(tmp_path / "x.parquet"))]
    assert listed[1] == "'label' (5000 int64)"
