"""Every label form becomes class numbers or multi-hot rows."""

import gzip
import pickle

import numpy as np
import pytest
from scipy import sparse

from sadih_dask.errors import DtypeError, FormatError, InputError, LabelError
from sadih_dask.sources import open_ids, open_labels, read_class_names


def saved(path, array):
    np.save(path / "y.npy", array)
    return path / "y.npy"


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, np.float64, ">i4"])
def test_integers_become_class_numbers_in_order_of_value(tmp_path, dtype):
    labels = open_labels(saved(tmp_path, np.array([10, 2, 2, 7], dtype)))
    assert labels.class_names == ("2", "7", "10")
    assert labels.read(0, 4).tolist() == [2, 0, 0, 1]
    assert labels.read(0, 4).dtype == np.int64
    assert not labels.multi_label


@pytest.mark.parametrize("shape", [(4,), (4, 1), (1, 4)])
def test_vectors_of_any_orientation(tmp_path, shape):
    path = saved(tmp_path, np.array([3, 1, 1, 2]).reshape(shape))
    for n_rows in (None, 4):
        assert open_labels(path, n_rows=n_rows).read(0, 4).tolist() == [2, 0, 0, 1]


@pytest.mark.parametrize("dtype", ["U5", "S5"])
def test_class_names_are_numbered_alphabetically(tmp_path, dtype):
    labels = open_labels(saved(tmp_path, np.array(["dog", "cat", "dog"], dtype)))
    assert labels.class_names == ("cat", "dog")
    assert labels.read(0, 3).tolist() == [1, 0, 1]
    assert pickle.loads(pickle.dumps(labels)).read(1, 3).tolist() == [0, 1]


def test_given_names_fix_the_order(tmp_path):
    path = saved(tmp_path, np.array(["dog", "cat"]))
    assert open_labels(path, class_names=["fox", "dog", "cat"]).read(0, 2).tolist() == [1, 2]
    with pytest.raises(LabelError, match=r"y\.npy row 1: the label cat is none of the 2 classes"):
        open_labels(path, class_names=["fox", "dog"])


def test_integers_with_given_names(tmp_path):
    path = saved(tmp_path, np.array([1, 0, 2]))
    assert open_labels(path, class_names=["a", "b", "c"]).read(0, 3).tolist() == [1, 0, 2]
    assert open_labels(path, class_names=["2", "1", "0"]).read(0, 3).tolist() == [1, 2, 0]
    with pytest.raises(LabelError, match=r"y\.npy row 2: the label 2 is none of the 2 classes"):
        open_labels(path, class_names=["a", "b"])
    with pytest.raises(InputError, match="'a' is empty or given twice"):
        open_labels(path, class_names=["a", "a"])


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["1", "2", "unknown"], [0, 1, 1]),
        (["01", "02", "10"], [0, 1, 1]),
        (["2", "01", "x", "1"], [3, 0, 0]),
        (["ant", "bee", "cat"], [1, 2, 2]),
    ],
)
def test_integers_beside_names(tmp_path, names, numbers):
    """A number among the names decides that integers are names, however it is written."""
    path = saved(tmp_path, np.array([1, 2, 2]))
    assert open_labels(path, class_names=names).read(0, 3).tolist() == numbers


def test_integers_that_fit_no_name_or_two(tmp_path):
    with pytest.raises(LabelError, match=r"y\.npy row 1: the label 3 is none of the 3 classes"):
        open_labels(saved(tmp_path, np.array([1, 3])), class_names=["01", "02", "unknown"])
    with pytest.raises(LabelError, match="classes '01' and '001' are the same number"):
        open_labels(saved(tmp_path, np.array([1])), class_names=["01", "001"])


def test_labels_of_nineteen_digits(tmp_path):
    large = 9_223_372_036_854_775_807
    labels = open_labels(saved(tmp_path, np.array([large, 7, large - 1])))
    assert labels.class_names == ("7", str(large - 1), str(large))
    assert labels.read(0, 3).tolist() == [2, 0, 1]
    assert open_labels(saved(tmp_path, np.array([large, 7], np.uint64))).n_rows == 2
    with pytest.raises(LabelError, match=rf"row 0: the label {large + 1} does not fit into 63"):
        open_labels(saved(tmp_path, np.array([large + 1, 7], np.uint64)))
    with pytest.raises(LabelError, match=r"row 1: the label 1e\+18 is not a class number"):
        open_labels(saved(tmp_path, np.array([1, 1e18])))


def test_missing_labels_name_file_and_row(tmp_path):
    with pytest.raises(LabelError, match=r"y\.npy row 1: the label nan is missing"):
        open_labels(saved(tmp_path, np.array([1.0, np.nan])))
    with pytest.raises(LabelError, match=r"y\.npy row 2: the label is missing \(empty text\)"):
        open_labels(saved(tmp_path, np.array(["a", "b", " "])))
    with pytest.raises(LabelError, match=r"y\.npy row 1: the label 0\.5 is not a class number"):
        open_labels(saved(tmp_path, np.array([1.0, 0.5])))
    with pytest.raises(LabelError, match=r"y\.npy row 0: the label inf is not a class number"):
        open_labels(saved(tmp_path, np.array([np.inf, 0.5])))


def test_negative_labels_are_refused_except_in_a_pair(tmp_path):
    path = saved(tmp_path, np.array([0, 3, -1, 3]))
    with pytest.raises(LabelError, match=r"y\.npy row 2: the label is -1\. Negative labels"):
        open_labels(path)
    named = open_labels(path, class_names=["-1", "0", "3"])
    assert named.read(0, 4).tolist() == [1, 2, 0, 2]
    assert open_labels(saved(tmp_path, np.array([1, -1]))).read(0, 2).tolist() == [1, 0]


@pytest.mark.parametrize("low", [0, -1])
@pytest.mark.parametrize("dtype", [np.int8, np.float64])
def test_multi_hot_matrices(tmp_path, low, dtype):
    hot = np.array([[1, 0, 1], [0, 1, 0]])
    labels = open_labels(saved(tmp_path, np.where(hot, 1, low).astype(dtype)))
    assert labels.multi_label
    assert labels.class_names == ("0", "1", "2")
    assert labels.read(0, 2).dtype == np.uint8
    np.testing.assert_array_equal(labels.read(0, 2), hot)


def test_a_transposed_matrix_is_recognised_by_the_row_count(tmp_path):
    hot = np.array([[1, 0, 1, 0, 1], [0, 1, 0, 1, 1]])
    path = saved(tmp_path, hot)
    np.testing.assert_array_equal(open_labels(path, n_rows=5).read(1, 4), hot.T[1:4])
    np.testing.assert_array_equal(open_labels(path, n_rows=2).read(0, 2), hot)
    with pytest.raises(LabelError, match=r"\(2 x 5 int64\): has labels for 2 rows, .* have 7"):
        open_labels(path, n_rows=7)


@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_sparse_multi_hot(tmp_path, layout):
    hot = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 1]])
    sparse.save_npz(tmp_path / "y.npz", sparse.csr_array(hot).asformat(layout))
    labels = open_labels(tmp_path / "y.npz", class_names=["a", "b", "c"])
    np.testing.assert_array_equal(labels.read(0, 3), hot)
    assert labels.class_names == ("a", "b", "c")


def test_matrices_that_are_no_labels(tmp_path):
    with pytest.raises(LabelError, match=r"y\.npy row 1, column 0: is 7, but a label matrix"):
        open_labels(saved(tmp_path, np.array([[1, 0], [7, 1]])))
    with pytest.raises(LabelError, match=r"mixes 0 and -1"):
        open_labels(saved(tmp_path, np.array([[1, 0], [-1, 1]])))
    with pytest.raises(LabelError, match=r"has 2 label columns, but 3 names"):
        open_labels(saved(tmp_path, np.eye(2)), class_names=["a", "b", "c"])
    with pytest.raises(LabelError, match=r"2 x 2 text\): cannot be labels"):
        open_labels(saved(tmp_path, np.array([["a", "b"], ["a", "b"]])))


def test_rows_without_labels_are_refused_or_kept(tmp_path):
    path = saved(tmp_path, np.array([[1, 0], [0, 0]]))
    with pytest.raises(LabelError, match=r"y\.npy row 1: has no label"):
        open_labels(path)
    kept = open_labels(path, allow_unlabelled=True)
    assert kept.read(0, 2).tolist() == [[1, 0], [0, 0]]


def test_pickled_labels_are_never_unpickled(tmp_path):
    np.save(tmp_path / "y.npy", np.array([["a"], ["b", "c"]], dtype=object), allow_pickle=True)
    with pytest.raises(DtypeError, match=r"y\.npy: holds Python objects"):
        open_labels(tmp_path / "y.npy")


def test_too_many_classes_look_like_ids(tmp_path):
    with pytest.raises(LabelError, match=r"more than 65,536 different labels .* looks like an id"):
        open_labels(saved(tmp_path, np.arange(70_000)))


@pytest.mark.parametrize(
    ("name", "text", "variable"),
    [
        ("y.csv", "id,label\n7,cat\n8,dog\n9,cat\n", None),
        ("y.csv", "id,kind\n7,cat\n8,dog\n9,cat\n", "kind"),
        ("y.csv", "id;kind\n7;cat\n8;dog\n9;cat\n", "kind"),
        ("y.tsv", "id\tkind\n7\tcat\n8\tdog\n9\tcat\n", "kind"),
        ("y.csv", "7,cat\n8,dog\n9,cat\n", "1"),
        ("y.csv", "cat\ndog\ncat\n", None),
        ("y.csv", "label\ncat\ndog\ncat\n\n\n", None),
        ("y.txt", "cat\r\ndog\r\ncat", None),
        ("y.csv", '\ufeffid,label\n1,"cat"\n2,"dog"\n3,cat\n', None),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_text_files(tmp_path, name, text, variable, zipped):
    path = tmp_path / (name + ".gz" if zipped else name)
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    labels = open_labels(path, variable, n_rows=3)
    assert labels.class_names == ("cat", "dog")
    assert labels.read(0, 3).tolist() == [0, 1, 0]
    assert open_labels(path, variable).read(1, 3).tolist() == [1, 0]


def test_the_row_count_tells_a_header_from_a_label(tmp_path):
    (tmp_path / "y.csv").write_text("animal\ncat\ndog\n")
    assert open_labels(tmp_path / "y.csv", n_rows=3).class_names == ("animal", "cat", "dog")
    assert open_labels(tmp_path / "y.csv", n_rows=2).class_names == ("cat", "dog")


def test_numbers_in_text_are_the_same_classes_as_numbers(tmp_path):
    (tmp_path / "y.txt").write_text("10\n9\n2\n")
    labels = open_labels(tmp_path / "y.txt")
    assert labels.class_names == ("2", "9", "10")


def test_label_lists_in_text(tmp_path):
    (tmp_path / "y.csv").write_text("id,tags\n1,red|round\n2,red\n3,blue| round |\n")
    labels = open_labels(tmp_path / "y.csv", "tags", separator="|")
    assert labels.class_names == ("blue", "red", "round")
    assert labels.read(0, 3).tolist() == [[0, 1, 1], [0, 1, 0], [1, 0, 1]]


def test_text_errors_name_the_row(tmp_path):
    path = tmp_path / "y.csv"
    path.write_text("id,tags\n1,red\n2,\n")
    with pytest.raises(LabelError, match=r"y\.csv:tags row 1: the label is missing"):
        open_labels(path, "tags")
    with pytest.raises(LabelError, match=r"y\.csv:tags row 1: has no label"):
        open_labels(path, "tags", separator="|")
    path.write_text("id,tags\n1,red\n2,red,round\n")
    with pytest.raises(LabelError, match=r"y\.csv row 1: has 3 cells, expected 2 \(id, tags\)"):
        open_labels(path, "tags")
    path.write_text("a\n\nb\n")
    with pytest.raises(LabelError, match=r"y\.csv row 1: the label is missing"):
        open_labels(path)
    path.write_bytes(b"a\n\xff\xfe\n")
    with pytest.raises(FormatError, match=r"y\.csv: damaged.*utf-8"):
        open_labels(path)
    path.write_text('a\n"b\n')
    with pytest.raises(FormatError, match=r"y\.csv: is not a CSV file"):
        open_labels(path)
    path.write_text("")
    with pytest.raises(FormatError, match=r"y\.csv: is empty, there are no labels in it"):
        open_labels(path)


def test_long_text_is_read_in_batches(tmp_path):
    names = [f"c{i % 7}" for i in range(10_000)]
    (tmp_path / "y.txt").write_text("\n".join(names))
    labels = open_labels(tmp_path / "y.txt")
    assert labels.read(4090, 4100).tolist() == [i % 7 for i in range(4090, 4100)]
    assert labels.read(9_999, 10_000).tolist() == [9_999 % 7]
    assert labels.read(0, 1).tolist() == [0]


def test_ids_from_a_column(tmp_path):
    (tmp_path / "y.csv").write_text("id,label\nx1,a\nx2,b\n")
    assert open_ids(tmp_path / "y.csv", n_rows=2).read(0, 2).tolist() == ["x1", "x2"]


def test_class_names_from_a_file(tmp_path):
    (tmp_path / "names.txt").write_text("zebra\nant, red\n")
    assert read_class_names(tmp_path / "names.txt") == ("zebra", "ant, red")
    np.save(tmp_path / "names.npy", np.array(["b", "a"]))
    assert read_class_names(tmp_path / "names.npy") == ("b", "a")
    np.save(tmp_path / "numbers.npy", np.arange(3))
    with pytest.raises(InputError, match="class names must be text"):
        read_class_names(tmp_path / "numbers.npy")
