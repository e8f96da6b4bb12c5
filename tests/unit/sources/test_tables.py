"""Tables as people write them: a column for each feature, ids and class names beside; folders."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sadih_dask import SADIH
from sadih_dask.errors import FormatError, InputError, LabelError, NoFilesError
from sadih_dask.ingest import DataFiles, compare, ingest
from sadih_dask.ingest.inputs import open_inputs
from sadih_dask.jobs.evaluate import Collection
from sadih_dask.jobs.search import open_queries
from sadih_dask.sources import open_features, open_ids, open_labels
from sadih_dask.stores import FeatureStore

ROWS = np.random.default_rng(0).normal(size=(50, 6)).astype("f4")
KINDS = np.random.default_rng(1).integers(0, 3, 50)
NAMES = [f"doc-{row}" for row in range(50)]


def frame(**more):
    columns = {f"e{k}": ROWS[:, k] for k in range(6)}
    return pd.DataFrame(columns | {"label": KINDS, "id": NAMES} | more)


def write(frame, path):
    if path.suffix == ".parquet":
        frame.to_parquet(path, row_group_size=20)
    elif path.suffix == ".feather":
        frame.to_feather(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in path.suffixes else ",")


def everything(source):
    return source.read(0, source.n_rows)


TABLES = pytest.mark.parametrize("ending", [".parquet", ".feather", ".csv", ".tsv", ".csv.gz"])


@TABLES
def test_a_column_for_each_feature_is_found_beside_labels_and_ids(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    write(frame(), path)
    found = open_inputs(DataFiles(path))
    np.testing.assert_allclose(everything(found.features), ROWS, rtol=1e-6)
    np.testing.assert_array_equal(everything(found.labels), KINDS)
    assert everything(found.ids).tolist() == NAMES
    np.testing.assert_allclose(found.features.read(33, 41), ROWS[33:41], rtol=1e-6)
    np.testing.assert_allclose(found.features.read(3, 4), ROWS[3:4], rtol=1e-6)  # back again


@TABLES
def test_columns_are_named_by_a_pattern(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    write(frame(title="a, b", weight=1.5), path)
    found = open_features(path, "e[135]")
    np.testing.assert_allclose(everything(found), ROWS[:, [1, 3, 5]], rtol=1e-6)


def test_a_column_that_is_neither_is_named(tmp_path):
    write(frame(title="some"), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"not clear what 'title' .* is, beside 6 columns of num"):
        open_features(tmp_path / "x.parquet")


def test_columns_that_hold_something_else_are_no_features(tmp_path):
    write(frame(kind=KINDS, code=np.arange(50)).drop(columns=["label", "id"]), tmp_path / "x.csv")
    found = open_inputs(DataFiles(tmp_path / "x.csv", labels_variable="kind", ids_variable="code"))
    assert found.features.width == 6
    assert everything(found.ids).tolist() == [str(row) for row in range(50)]  # cells are text


def test_an_index_of_pandas_is_the_ids(tmp_path):
    frame().drop(columns="id").set_index(np.array(NAMES)).to_parquet(tmp_path / "x.parquet")
    found = open_inputs(DataFiles(tmp_path / "x.parquet"))
    assert found.features.width == 6
    assert everything(found.ids).tolist() == NAMES


def other_names(tmp_path):
    path = tmp_path / "x.parquet"
    write(frame().rename(columns={"label": "topic", "id": "url"}), path)
    return path


def test_columns_that_nobody_found_are_named(tmp_path):
    vectors = pd.DataFrame({"emb": list(ROWS), "topic": KINDS, "url": NAMES})
    write(vectors, tmp_path / "x.parquet")
    files = DataFiles(str(tmp_path / "x.parquet"))
    (said,) = map(str, open_inputs(files).advice())
    assert "Not read: 'topic' (50 int64), 'url' (50 " in said
    assert "labels_variable" in said
    with pytest.raises(LabelError, match=r"beside the features there is 'topic' .*'url'"):
        compare(replace(files, labelled=True), tmp_path / "s.zarr")
    assert not [*open_inputs(replace(files, labels_variable="topic")).advice()]


def test_a_plan_takes_named_columns_for_what_they_are(tmp_path):
    named = {"labels_variable": "topic", "ids_variable": "url", "labelled": True}
    files = DataFiles(str(other_names(tmp_path)), **named)
    assert compare(files, tmp_path / "s.zarr").n_new_rows == 50
    assert open_inputs(files).features.width == 6


def test_no_ids_if_none_are_wanted(tmp_path):
    write(frame(), tmp_path / "x.parquet")
    assert open_inputs(DataFiles(tmp_path / "x.parquet")).ids is not None
    wanted = DataFiles(tmp_path / "x.parquet", features_variable="e*", ids_variable="")
    assert open_inputs(wanted).ids is None


def test_a_csv_without_a_header(tmp_path):
    np.savetxt(tmp_path / "x.csv", ROWS, delimiter=",")
    np.testing.assert_allclose(everything(open_features(tmp_path / "x.csv")), ROWS, rtol=1e-6)


@pytest.mark.parametrize(
    ("cell", "says"),
    [("", "row 7, column 'e2': is missing"), ("cat", "In column 'e2': .*invalid value 'cat'")],
)
def test_a_bad_cell_of_a_csv_is_named(tmp_path, cell, says):
    table = frame().astype({"e2": object})
    table.loc[7, "e2"] = cell
    write(table, tmp_path / "x.csv")
    with pytest.raises(InputError, match=says):
        everything(open_features(tmp_path / "x.csv"))


def test_a_null_of_a_wide_table_is_named(tmp_path):
    table = pa.Table.from_pandas(frame(), preserve_index=False)
    holes = pa.array(ROWS[:, 4], mask=np.arange(50) == 31)
    pa.parquet.write_table(table.set_column(4, "e4", holes), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="row 31, column 'e4': is missing"):
        everything(open_features(tmp_path / "x.parquet"))


def test_numbers_in_a_txt_file_are_one_a_line(tmp_path):
    np.savetxt(tmp_path / "x.txt", ROWS)
    with pytest.raises(InputError, match=r"one value a line.*np.loadtxt"):
        open_features(tmp_path / "x.txt")


def test_an_empty_file_of_ids(tmp_path):
    (tmp_path / "gone.txt").write_text("")
    with pytest.raises(FormatError, match=r"gone\.txt: is empty, there are no ids in it"):
        open_ids(tmp_path / "gone.txt")


def test_long_listings_say_how_many_more(tmp_path):
    wide = pd.DataFrame({f"name{k}": ["a"] for k in range(257)})
    write(wide, tmp_path / "x.parquet")
    with pytest.raises(InputError, match="and 217 more"):
        open_features(tmp_path / "x.parquet")


def hugging_face(path, labels, feature, names=("2", "1", "0")):
    label = {"names": list(names), "_type": "ClassLabel"}
    said = {"info": {"features": {"label": label if feature is None else feature(label)}}}
    vectors = pa.FixedSizeListArray.from_arrays(ROWS.ravel(), 6)
    table = pa.table({"embedding": vectors, "label": labels})
    table = table.replace_schema_metadata({"huggingface": json.dumps(said)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)


def test_class_labels_are_the_names_in_their_schema_by_place(tmp_path):
    hugging_face(tmp_path / "data.arrow", pa.array(KINDS), None)
    found = open_labels(open_features(tmp_path / "data.arrow"), "label")
    assert found.class_names == ("2", "1", "0")  # a number as a name is a name
    np.testing.assert_array_equal(everything(found), KINDS)


@pytest.mark.parametrize(
    "feature", [lambda one: [one], lambda one: {"feature": one, "_type": "Sequence"}]
)
def test_lists_of_class_labels_too(tmp_path, feature):
    lists = pa.array([[int(kind), 2] for kind in KINDS])
    hugging_face(tmp_path / "data.arrow", lists, feature, ["cat", "ant", "bee"])
    found = open_labels(open_features(tmp_path / "data.arrow"), "label")
    assert found.class_names == ("cat", "ant", "bee")
    assert everything(found)[KINDS == 0].tolist() == [[1, 0, 1]] * int((KINDS == 0).sum())


def test_a_number_without_a_class_label_is_refused(tmp_path):
    hugging_face(tmp_path / "data.arrow", pa.array(np.where(KINDS == 1, -1, KINDS)), None)
    row = int(np.flatnonzero(KINDS == 1)[0])
    with pytest.raises(LabelError, match=f"row {row}: the label is -1, and the file names 3"):
        open_labels(open_features(tmp_path / "data.arrow"), "label")


def test_shards_that_name_other_classes_are_refused(tmp_path):
    hugging_face(tmp_path / "a.arrow", pa.array(KINDS), None)
    hugging_face(tmp_path / "b.arrow", pa.array(KINDS), None, ["x", "y", "z"])
    with pytest.raises(LabelError, match="do not name the same classes"):
        open_labels(open_features(tmp_path), "label")


@pytest.mark.parametrize(("ending", "dtype"), [("fbin", "f4"), ("u8bin", "u1"), ("i8bin", "i1")])
def test_bin_files(tmp_path, ending, dtype):
    rows = (ROWS * 20).astype(dtype) if dtype != "u1" else (abs(ROWS) * 20).astype(dtype)
    path = tmp_path / f"x.{ending}"
    path.write_bytes(np.array(rows.shape, "<u4").tobytes() + rows.tobytes())
    np.testing.assert_array_equal(everything(open_features(path)), rows)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match="claims 50 rows of 6 numbers"):
        open_features(path)


def test_the_rows_of_ann_benchmarks(tmp_path):
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["train"], file["test"] = ROWS, ROWS[:3]
        file["neighbors"], file["distances"] = np.zeros((3, 9), "i4"), np.zeros((3, 9), "f4")
    assert open_features(tmp_path / "x.hdf5").n_rows == 50
    assert open_features(tmp_path / "x.hdf5", "test").n_rows == 3


def test_a_folder_is_the_files_in_it(tmp_path):
    for part in (10, 9, 2):
        write(frame().iloc[:part], tmp_path / f"part-{part}.parquet")
    for name in ("_SUCCESS", ".crc", "state.json", "README.md"):
        (tmp_path / name).write_text("")
    found = open_features(tmp_path)
    assert [name.rpartition("-")[2] for name in found.files()] == [
        "2.parquet",
        "9.parquet",
        "10.parquet",
    ]


def test_a_folder_of_several_kinds_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", ROWS)
    write(frame(), tmp_path / "y.csv")
    with pytest.raises(InputError, match=r"several kinds \(1 .npy, 1 .csv\). .*/\*.npy"):
        open_features(tmp_path)


def test_a_folder_without_rows_says_what_it_has(tmp_path):
    (tmp_path / "notes.md").write_text("")
    with pytest.raises(NoFilesError, match=r"no file of rows in it. It has: notes.md"):
        open_features(tmp_path)


def test_shards_and_their_labels_are_compared_pair_by_pair(tmp_path):
    for name, first, last in (("a", 0, 20), ("b", 20, 50)):
        np.save(tmp_path / f"x_{name}.npy", ROWS[first:last])
        np.save(tmp_path / f"y_{name}.npy", KINDS[first:last])
    features = [tmp_path / "x_a.npy", tmp_path / "x_b.npy"]
    with pytest.raises(LabelError, match=r"y_b.npy: has labels for 30 rows, but .*x_a.npy.* 20"):
        open_inputs(DataFiles(features, labels=[tmp_path / "y_b.npy", tmp_path / "y_a.npy"]))


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_columns_of_shards_meet_by_name(tmp_path, form):
    """Whatever their order in each file; rows that are added have to keep it."""
    rows = pd.DataFrame({"e0": [1.0, 2.0], "e1": [3.0, 4.0], "label": ["cat", "dog"]})
    turned, other = rows[["e1", "label", "e0"]], rows.rename(columns={"e1": "e7"})
    for name, table in (("a", rows), ("b", turned), ("c", other), ("d", 2 * turned)):
        write(table, tmp_path / f"{name}.{form}")
    store = ingest(DataFiles(str(tmp_path / f"[ab].{form}")), tmp_path / "s").store
    np.testing.assert_array_equal(store.read("features"), [[1, 3], [2, 4], [1, 3], [2, 4]])
    with pytest.raises(InputError, match=r"c\..* has columns that .*a\..* does not have.* e7"):
        ingest(DataFiles(str(tmp_path / f"[ac].{form}")), tmp_path / "t")
    for name in ("c", "d"):
        with pytest.raises(InputError, match="its columns are not those of the files"):
            ingest(DataFiles(tmp_path / f"{name}.{form}"), tmp_path / "s", mode="append")
    assert FeatureStore.open(tmp_path / "s").n_rows == 4


def test_tables_have_the_columns_of_those_that_a_model_has_learned_from(tmp_path):
    names = [*frame().columns]
    stores = {}
    for name, columns in (("a", names), ("b", names), ("c", names[::-1])):
        write(frame()[columns], tmp_path / f"{name}.parquet")
        stores[name] = ingest(DataFiles(tmp_path / f"{name}.parquet"), tmp_path / name).store
    np.save(tmp_path / "x.npy", ROWS)
    np.save(tmp_path / "y.npy", KINDS)
    np.save(tmp_path / "ids.npy", np.arange(1000, 1050).astype(str))
    more = DataFiles(tmp_path / "x.npy", tmp_path / "y.npy", ids=tmp_path / "ids.npy")
    model = SADIH(n_bits=4, anchors=None, n_init=1).fit(stores["a"])
    model.save(tmp_path / "m.sadih")
    model = SADIH.load(tmp_path / "m.sadih")
    codes = model.encode(stores["b"], tmp_path / "codes")
    Collection(stores["b"], stores["a"]).check(model)
    open_queries(str(tmp_path / "b.parquet"), codes, model)
    for use in (
        lambda: Collection(stores["c"], stores["a"]).check(model),
        lambda: model.encode(stores["c"], tmp_path / "other"),
        lambda: model.transform(stores["c"]),
        lambda: model.partial_fit(stores["c"]),
        lambda: open_queries(str(tmp_path / "c"), codes, model),
        lambda: open_queries(str(tmp_path / "c.parquet"), codes, model),
    ):
        with pytest.raises(InputError, match=r"with other columns of features.*in another order"):
            use()
    ingest(more, tmp_path / "c", mode="append")
    with pytest.raises(InputError, match="other columns of features"):
        model.transform(FeatureStore.open(tmp_path / "c"))
    assert SADIH(n_bits=4, anchors=None, n_init=1).fit(ROWS, KINDS).transform(stores["c"]).size
