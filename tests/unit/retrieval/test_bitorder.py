"""Bits are packed as was asked for, stores remember how, and nobody compares a mix."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner

from sadih_dask import SADIH, CodeStore, FeatureStore, evaluate, search
from sadih_dask.cli import commands
from sadih_dask.errors import ConflictError, FormatError, InputError
from sadih_dask.jobs.export import export_faiss
from sadih_dask.model.evaluation import evaluate_model
from sadih_dask.retrieval.codes import pack, reorder
from tests.support.datasets import blobs
from tests.support.models import QUICK

X, Y = blobs(90)
NAMES = np.array(["cat", "dog", "eel"])[Y]


@pytest.fixture(scope="module")
def model() -> SADIH:
    return SADIH(n_bits=13, **QUICK, anchors=10).fit(X, NAMES)


@pytest.fixture
def stores(model: SADIH, tmp_path: Path) -> dict[str, CodeStore]:
    rows = FeatureStore.create(tmp_path / "rows", X, NAMES, ids=np.arange(500, 590))
    return {
        order: model.encode(rows, tmp_path / order, bitorder=order) for order in ("little", "big")
    }


@pytest.mark.parametrize("n_bits", [1, 7, 8, 13, 64])
def test_a_reordered_code_is_the_one_of_numpy(n_bits: int) -> None:
    signs = np.random.default_rng(n_bits).standard_normal((50, n_bits))
    little, big = pack(signs), np.packbits(signs > 0, axis=1)
    np.testing.assert_array_equal(little, np.packbits(signs > 0, axis=1, bitorder="little"))
    np.testing.assert_array_equal(pack(signs, "big"), big)
    np.testing.assert_array_equal(reorder(little, "little", "big"), big)
    np.testing.assert_array_equal(reorder(big, "big", "little"), little)
    assert reorder(big, "big", "big") is big


def test_transform_packs_as_asked(model: SADIH) -> None:
    expected = np.packbits(model.project(X) > 0, axis=1)
    np.testing.assert_array_equal(model.transform(X, bitorder="big"), expected)
    lazy = model.transform(da.from_array(X, chunks=(40, -1)), bitorder="big")
    np.testing.assert_array_equal(lazy.compute(), expected)
    with pytest.raises(InputError, match=r"bitorder='middle' is unknown.*'little', 'big'"):
        model.transform(X, bitorder="middle")  # type: ignore[arg-type]


def test_stores_remember_their_order(
    model: SADIH, stores: dict[str, CodeStore], tmp_path: Path
) -> None:
    for order, store in stores.items():
        assert store.bitorder == CodeStore.open(store.url).bitorder == order
        np.testing.assert_array_equal(store.read("codes"), model.transform(X, bitorder=order))
    rows = FeatureStore.open(tmp_path / "rows")
    learned = model.encode(rows, tmp_path / "learned", learned=True, bitorder="big")
    np.testing.assert_array_equal(
        reorder(learned.read("codes"), "big", "little"), model.learned_codes(NAMES)
    )
    with pytest.raises(ConflictError, match=r"in big bit order, not in little.*overwrite=True"):
        model.encode(rows, stores["big"].url)
    rows.append(X[:2], NAMES[:2], ids=np.array([1, 2]))
    more = model.encode(rows, stores["big"].url, bitorder="big")
    np.testing.assert_array_equal(more.read("codes", 90), model.transform(X[:2], bitorder="big"))


def test_stores_without_the_word_are_little(model: SADIH, tmp_path: Path) -> None:
    store = CodeStore.create(tmp_path / "c", model.transform(X), n_bits=13, model="m")
    del store._root.properties["bitorder"]
    assert store.bitorder == "little"
    store._root.properties["bitorder"] = "middle"
    with pytest.raises(FormatError, match="'bitorder' is 'middle'"):
        store._check_properties()


def test_search_and_evaluate_compare_bit_by_bit(model: SADIH, stores: dict[str, CodeStore]) -> None:
    little, big = stores["little"], stores["big"]
    scores = model.project(X)
    expected = search(little, little, 5)
    reranked = search(little, little, 5, projections=scores)
    quality = evaluate(little, little, Y, Y).map
    packed = {order: model.transform(X, bitorder=order) for order in ("little", "big")}
    pairs: list[tuple[Any, Any, dict[str, Any]]] = [
        (big, little, {}),
        (little, big, {}),
        (big, big, {}),
        (big, packed["little"], {"bitorder": "little"}),
        (big, packed["big"], {"bitorder": "big"}),
        (little, packed["big"], {"bitorder": "big"}),
        (little, packed["little"], {}),
    ]
    for database, queries, order in pairs:
        found = search(database, queries, 5, **order)
        np.testing.assert_array_equal(found.rows, expected.rows)
        np.testing.assert_array_equal(found.distances, expected.distances)
        again = search(database, queries, 5, projections=scores, **order)
        np.testing.assert_array_equal(again.rows, reranked.rows)
        assert evaluate(database, queries, Y, Y, **order).map == quality
    arrays = [packed[order] for order in ("little", "big")]
    found = search(arrays[1], arrays[1], 5, bitorder="big", projections=scores)
    np.testing.assert_array_equal(
        found.rows, search(arrays[0], arrays[0], 5, projections=scores).rows
    )


def test_a_mix_that_cannot_be_told_is_refused(model: SADIH, stores: dict[str, CodeStore]) -> None:
    codes = model.transform(X)
    for database, queries in ((stores["big"], codes), (codes, stores["big"])):
        with pytest.raises(InputError, match=r"big bit order.*bitorder='little'.*bitorder='big'"):
            search(database, queries)
        with pytest.raises(InputError, match="big has codes in big bit order"):
            evaluate(database, queries, Y, Y)


@pytest.mark.filterwarnings("ignore:90 of 90 queries")
def test_a_model_is_evaluated_with_codes_in_either_order(
    model: SADIH, stores: dict[str, CodeStore], tmp_path: Path
) -> None:
    rows = FeatureStore.open(tmp_path / "rows")
    results = [
        evaluate_model(model, (X, NAMES), rows, codes=codes).encoded
        for codes in (None, *stores.values())
    ]
    assert results[0] is not None
    assert all(one is not None and one.map == results[0].map for one in results)


def test_an_index_is_in_the_order_that_was_asked_for(
    model: SADIH, stores: dict[str, CodeStore], tmp_path: Path
) -> None:
    faiss = pytest.importorskip("faiss")
    codes = {order: model.transform(X, bitorder=order) for order in ("little", "big")}
    expected = np.sort(search(stores["little"], codes["little"], 5).distances)
    for store in stores.values():
        for order in ("little", "big"):
            for kind in ("flat", "ivf"):
                path = export_faiss(store, tmp_path / "i", kind, bitorder=order, n_lists=1)
                found, _ = faiss.read_index_binary(str(path)).search(codes[order], 5)
                np.testing.assert_array_equal(np.sort(found), expected)
    signs = np.where(np.unpackbits(codes["little"], axis=1, bitorder="little"), 1, -1)
    own = np.zeros_like(codes["little"])
    values = np.ascontiguousarray(signs, np.float32)
    faiss.real_to_binary(values.size, faiss.swig_ptr(values), faiss.swig_ptr(own))
    np.testing.assert_array_equal(own, codes["little"])  # the order that FAISS packs in itself


def test_the_command_line(model: SADIH, stores: dict[str, CodeStore], tmp_path: Path) -> None:
    model.save(tmp_path / "m.sadih")
    rows = str(tmp_path / "rows")

    def run(*words: str) -> str:
        result = CliRunner().invoke(commands, [*words, "--quiet"])
        assert result.exit_code == 0, result.output
        return result.output

    run("encode", rows, str(tmp_path / "m.sadih"), str(tmp_path / "c"), "--bitorder", "big")
    assert CodeStore.open(tmp_path / "c").bitorder == "big"
    asked = [rows, "--model", str(tmp_path / "m.sadih"), "--k", "3"]
    found = [run("search", codes, *asked) for codes in (stores["little"].url, str(tmp_path / "c"))]
    assert found[0] == found[1]
