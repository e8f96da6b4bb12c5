"""Class names with any container of rows and of labels: one model, and the same names in it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from sadih_dask import SADIH, FeatureStore, evaluate
from sadih_dask.errors import LabelError
from sadih_dask.model.evaluation import evaluate_model
from tests.support.datasets import blobs, tagged_blobs
from tests.support.models import QUICK, same_bits

X, Y = blobs(120)
LAZY = da.from_array(X, chunks=(37, -1))
NAMES = np.array(["cat", "dog", "eel"])[Y]
_, MATRIX = tagged_blobs(120)
TAGS = [[("ant", "bee", "cat", "dog")[k] for k in np.flatnonzero(row)] for row in MATRIX]
FRAME = pd.DataFrame(MATRIX, columns=["ant", "bee", "cat", "dog"])


def model(**parameters: Any) -> SADIH:
    return SADIH(**{"n_bits": 16, **QUICK, "anchors": 20, "block_rows": 32, **parameters})


def parted(values: Any) -> Any:
    return dd.from_pandas(pd.Series(values), npartitions=4)


def objects(values: list[Any]) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return da.from_array(array, chunks=50)


# --- one class a row ---------------------------------------------------------------------------

FORMS: dict[str, Callable[[Any], Any]] = {
    "text": np.asarray,
    "objects": lambda y: y.astype(object),
    "series": pd.Series,
    "categories": lambda y: pd.Series(y, dtype="category"),
    "arrow": lambda y: pd.Series(y, dtype="string[pyarrow]"),
    "dask text": lambda y: da.from_array(y, chunks=50),
    "dask objects": lambda y: da.from_array(y.astype(object), chunks=50),
    "dask column": lambda y: da.from_array(y[:, None], chunks=50),
    "dask series": parted,
    "dask categories": lambda y: parted(y).astype("category"),
    "dask arrow": lambda y: parted(y).astype("string[pyarrow]"),
}


@pytest.mark.parametrize("form", FORMS)
def test_names_with_lazy_rows(tmp_path: Path, form: str) -> None:
    expected = model().fit(X, NAMES)
    found = model().fit(LAZY, FORMS[form](NAMES))
    assert found.classes_.tolist() == ["cat", "dog", "eel"]
    same_bits(found, expected, tmp_path)
    more, other = FORMS[form](NAMES), FORMS[form](np.where(Y == 0, "fox", NAMES))
    found.partial_fit(LAZY, other)
    assert found.classes_.tolist() == ["cat", "dog", "eel", "fox"]
    found.forget(LAZY, more)
    assert found.classes_.tolist() == ["dog", "eel", "fox"]
    with pytest.raises(LabelError, match=r"'cat'.* none of the 3 known"):
        found.forget(LAZY, more)


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (Y == 1, [False, True]),
        (2 * (Y % 2) - 1, [-1, 1]),
        (Y * 10.0, [0.0, 10.0, 20.0]),
        (np.array(["b", "c", "a"])[Y], ["a", "b", "c"]),
    ],
    ids=["booleans", "-1 and 1", "floats", "names"],
)
def test_every_container_gives_the_same_classes(
    tmp_path: Path, values: Any, classes: list[Any]
) -> None:
    expected = model().fit(X, values)
    containers = [(LAZY, values), (LAZY, da.from_array(values, chunks=50))]
    if values.dtype.kind in "bU":
        containers.append((FeatureStore.create(tmp_path / "s", X, values), None))
    for rows, labels in containers:
        found = model().fit(rows, labels)
        assert found.classes_.tolist() == expected.classes_.tolist() == classes
        assert found.classes_.dtype == expected.classes_.dtype
        same_bits(found, expected, tmp_path)
        np.testing.assert_array_equal(found.learned_codes(values), expected.learned_codes(values))
        assert found.score(X, values) == expected.score(X, values)


def test_a_store_of_one_class_is_refused_before_it_is_read(tmp_path: Path) -> None:
    alike = FeatureStore.create(tmp_path / "one", X, ["7"] * len(X))
    seen: list[Any] = []
    with pytest.raises(LabelError, match=r"one: all rows carry the same labels.*Add rows"):
        model().fit(alike, progress=lambda *told: seen.append(told))
    assert not seen


def test_numbers_that_are_ingested_stay_numbers(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", X, Y, class_names=["7", "8", "10"])
    found = model().fit(store)
    assert found.classes_.tolist() == [7, 8, 10]
    numbers = np.array([7, 8, 10])[Y]
    assert found.score(X, numbers) == found.score(X, numbers.astype(str))
    found.partial_fit(X, numbers.astype(str)).partial_fit(LAZY, numbers)
    assert found.classes_.tolist() == [7, 8, 10]
    assert found.statistics_.n_samples == 3 * len(X)


def test_unlabelled_rows_are_noticed_wherever_they_are() -> None:
    labels = np.where(np.arange(len(Y)) == 7, -1, Y)
    with pytest.raises(LabelError, match=r"-1 marks rows without a label"):
        model().fit(LAZY, da.from_array(labels, chunks=50))
    missing = da.from_array(np.where(np.arange(len(Y)) == 47, None, NAMES.astype(object)), chunks=9)
    with pytest.raises(LabelError, match=r"neither a class name .*row 47: None"):
        model().fit(LAZY, missing)


def test_classes_are_discovered_in_the_pass_that_learns(tmp_path: Path) -> None:
    expected = model(anchors=None).fit(X, NAMES)
    seen = tmp_path / "seen"
    seen.mkdir()

    def counted(block: Any, block_info: Any = None) -> Any:
        where = block_info[0]["chunk-location"][0]
        (seen / f"{where}-{len(list(seen.iterdir()))}").touch()
        return block

    features = LAZY.map_blocks(counted, dtype=LAZY.dtype)
    found = model(anchors=None).fit(features, da.from_array(NAMES, chunks=50))
    same_bits(found, expected, tmp_path)
    assert len(list(seen.iterdir())) == LAZY.numblocks[0]


# --- several labels a row ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        (X, TAGS),
        (X, pd.Series(TAGS)),
        (X, [set(tags) for tags in TAGS]),
        (X, FRAME),
        (LAZY, TAGS),
        (LAZY, objects(TAGS)),
        (LAZY, FRAME),
        (LAZY, dd.from_pandas(FRAME, npartitions=4)),
    ],
    ids=[
        "lists",
        "series",
        "sets",
        "frame",
        "lazy lists",
        "dask lists",
        "lazy frame",
        "dask frame",
    ],
)
def test_tags_and_named_columns(tmp_path: Path, rows: Any, labels: Any) -> None:
    expected = model().fit(X, MATRIX)
    found = model().fit(rows, labels)
    assert found.multi_label_
    assert found.classes_.tolist() == FRAME.columns.tolist()
    same_statistics_but_names(found, expected)
    back = FRAME[["dog", "cat", "bee", "ant"]]  # by name, not by place
    assert found.score(X, TAGS) == found.score(X, back) == expected.score(X, MATRIX)
    found.partial_fit(rows, labels).forget(X, back)
    np.testing.assert_array_equal(found.statistics_.counts, expected.statistics_.counts)
    found.partial_fit(X[:2], [["ant", "fox"], ["fox"]])
    assert found.classes_.tolist() == [*FRAME.columns, "fox"]
    with pytest.raises(LabelError, match="4 columns but the model knows 5 labels"):
        found.partial_fit(X, MATRIX)


def same_statistics_but_names(found: SADIH, expected: SADIH) -> None:
    assert found.fingerprint_ == expected.fingerprint_
    np.testing.assert_array_equal(found.statistics_.gram, expected.statistics_.gram)


def test_a_sparse_matrix_with_lazy_rows(tmp_path: Path) -> None:
    same_bits(model().fit(LAZY, sp.csc_array(MATRIX)), model().fit(X, MATRIX), tmp_path)


def test_tags_in_one_text_are_warned_of() -> None:
    texts = [";".join(tags) for tags in TAGS]
    with pytest.warns(UserWarning, match=r"several tags with ';'.*tags\.split\(';'\)"):
        model().fit(X, texts)
    model().fit(X, [tags.split(";") for tags in texts])  # warnings are errors


# --- stores ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "objects", "series", "categories", "arrow"])
def test_stores_take_names(tmp_path: Path, form: str) -> None:
    store = FeatureStore.create(tmp_path / "s", X, FORMS[form](NAMES))
    assert store.class_names == ("cat", "dog", "eel")
    np.testing.assert_array_equal(store.read("labels"), Y)
    same_bits(model().fit(store), model().fit(X, NAMES), tmp_path)
    store.append(X[:3], FORMS[form](np.array(["fox", "ant", "dog"])))
    assert store.class_names == ("cat", "dog", "eel", "ant", "fox")
    assert store.read("labels", len(X)).tolist() == [4, 3, 1]


def test_stores_take_tags(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", X, TAGS)
    assert store.class_names == tuple(FRAME.columns)
    np.testing.assert_array_equal(store.read("labels"), MATRIX)
    store.append(X[:1], [["dog", "ant"]])
    assert store.read("labels", len(X)).tolist() == [[1, 0, 0, 1]]
    with pytest.raises(LabelError, match=r"label 'fox' is none of the 4 classes"):
        store.append(X[:1], [["fox"]])


@pytest.mark.filterwarnings("ignore:.*the model has learned from")
def test_columns_without_names_meet_those_of_a_store_by_place(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", X, FRAME)
    nameless, named = model().fit(X, MATRIX), model().fit(store)
    for one in (nameless, named):
        found = evaluate_model(one, store).learned.map
        assert found == evaluate_model(one, (X, MATRIX)).learned.map
        assert found == evaluate_model(named, (X, TAGS)).learned.map
        codes = one.encode(store, tmp_path / f"c-{one is named}", learned=True)
        np.testing.assert_array_equal(codes.read("codes"), one.learned_codes(MATRIX))
        one.partial_fit(store).forget(store)
    assert nameless.classes_.tolist() == [0, 1, 2, 3]
    assert named.classes_.tolist() == FRAME.columns.tolist()
    with pytest.raises(LabelError, match="tags and the other columns without names"):
        evaluate_model(nameless, (X, TAGS))
    with pytest.raises(LabelError, match="tags and the other columns without names"):
        evaluate(named.transform(X), named.transform(X), TAGS, MATRIX)
    with pytest.raises(LabelError, match=r"names or class numbers throughout"):
        nameless.partial_fit(X, TAGS)


@pytest.mark.filterwarnings("ignore:.*the model has learned from")
def test_columns_that_are_called_by_numbers_go_by_these(tmp_path: Path) -> None:
    """As they are where tags are numbers, and queries do not have all of them."""
    store = FeatureStore.create(tmp_path / "s", X, MATRIX, class_names=list("0123"))
    some = np.flatnonzero(~MATRIX[:, 2].astype(bool) & MATRIX.any(axis=1))
    order = [3, 0, 1]
    queries = FeatureStore.create(
        tmp_path / "q", X[some], MATRIX[some][:, order], class_names=[str(k) for k in order]
    )
    found = model().fit(store)
    expected = evaluate_model(found, (X[some], MATRIX[some]), store)
    by_name = evaluate_model(found, queries, store)
    assert by_name.learned.map == expected.learned.map
    assert by_name.encoded.map == expected.encoded.map
    codes = found.encode(queries, tmp_path / "c", learned=True)
    np.testing.assert_array_equal(codes.read("codes"), found.learned_codes(MATRIX[some]))
    added, other = found.partial_fit(queries), model().fit(store)
    other.partial_fit(X[some], MATRIX[some])
    np.testing.assert_array_equal(added.statistics_.counts, other.statistics_.counts)
    np.testing.assert_allclose(added.statistics_.sums, other.statistics_.sums, atol=1e-12)


def test_names_in_the_order_that_is_given(tmp_path: Path) -> None:
    order = ["eel", "cat", "fox", "dog"]
    store = FeatureStore.create(tmp_path / "s", X, NAMES, class_names=order)
    assert store.class_names == tuple(order)
    assert store.read("labels").tolist() == [order.index(name) for name in NAMES]
    found = model().fit(store)
    assert found.classes_.tolist() == ["eel", "cat", "dog"]  # those that rows have
    assert found.score(X, NAMES) == pytest.approx(model().fit(X, NAMES).score(X, NAMES), abs=0.05)
    codes = found.encode(store, tmp_path / "c", learned=True)
    np.testing.assert_array_equal(codes.read("codes"), found.learned_codes(NAMES))
    store.append(X[:2], ["fox", "gnu"])
    found.fit(store)  # which reads the new rows
    anew = model().fit(store)
    assert found.classes_.tolist() == anew.classes_.tolist() == [*order, "gnu"]
    np.testing.assert_array_equal(found.statistics_.counts, anew.statistics_.counts)
    with pytest.raises(LabelError, match=r"'dog' is none of the 2 classes.*class_names"):
        FeatureStore.create(tmp_path / "t", X, NAMES, class_names=["cat", "eel"])


def test_forgetting_rows_of_a_store_goes_by_name(tmp_path: Path) -> None:
    ids = np.arange(len(X))
    order = ["eel", "dog", "cat"]
    store = FeatureStore.create(tmp_path / "s", X, NAMES, class_names=order, ids=ids)
    found = model(anchors=None).fit(store)
    counts = dict(zip(found.classes_.tolist(), found.statistics_.counts.tolist(), strict=True))
    gone = ids[NAMES == "cat"][:3]
    found.forget_ids(store, gone)
    counts["cat"] -= 3
    assert found.statistics_.counts.tolist() == [counts[name] for name in order]
    store.delete(ids[NAMES == "eel"])
    found.fit(store)
    assert found.classes_.tolist() == ["dog", "cat"]


def test_a_store_of_numbers_takes_no_names(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", X, Y)
    assert model().fit(store).classes_.tolist() == [0, 1, 2]
    with pytest.raises(LabelError, match="class numbers without names"):
        store.append(X[:1], ["cat"])
    with pytest.raises(LabelError, match=r"cannot be compared"):
        model().fit(X, NAMES).partial_fit(store)


# --- files -------------------------------------------------------------------------------------
