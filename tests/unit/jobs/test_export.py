"""Exported indexes, loaded in FAISS itself."""

from __future__ import annotations

import csv
import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from sadih_dask import CodeStore, search
from sadih_dask.errors import InputError
from sadih_dask.jobs import export
from sadih_dask.jobs.export import export_faiss
from sadih_dask.retrieval.codes import pack, unpack
from tests.support.rankings import naive_distances, random_codes

faiss = pytest.importorskip("faiss")


@pytest.fixture(params=[8, 20, 64, 128])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch) -> CodeStore:
    monkeypatch.setattr(export, "BLOCK_ROWS", 256)
    rng = np.random.default_rng(0)
    codes = random_codes(rng, 1500, request.param)
    return CodeStore.create(tmp_path / "c", codes, n_bits=request.param, model="m", chunk_rows=100)


@pytest.fixture
def queries(store: CodeStore) -> np.ndarray:
    return random_codes(np.random.default_rng(1), 25, store.n_bits)


def check_same(index, store: CodeStore, queries: np.ndarray, ids: np.ndarray, k: int = 20) -> None:
    """Distances are ours; rows are ours up to the order, and the choice, within a distance."""
    distances, labels = index.search(queries, k)
    ours = search(store, queries, k)
    np.testing.assert_array_equal(distances, ours.distances)
    pairs = naive_distances(queries, store.read("codes"))
    row_of = {int(name): row for row, name in enumerate(ids)}
    for i in range(len(queries)):
        rows = np.array([row_of[int(name)] for name in labels[i]])
        assert len(set(rows)) == k
        np.testing.assert_array_equal(pairs[i, rows], distances[i])
        certain = distances[i] < distances[i, -1]  # the last distance may be cut anywhere
        assert set(rows[certain]) == set(ours.rows[i][certain])


def test_flat(store: CodeStore, queries: np.ndarray, tmp_path: Path) -> None:
    done = []
    path = export_faiss(store, tmp_path / "flat.index", progress=lambda *a: done.append(a))
    index = faiss.read_index_binary(str(path))
    assert isinstance(index, faiss.IndexBinaryFlat)
    assert index.ntotal == store.n_rows
    check_same(index, store, queries, np.arange(store.n_rows))
    assert done[0] == (200, 1500)
    assert done[-1] == (1500, 1500)


def test_inverted_file_that_looks_everywhere(
    store: CodeStore, queries: np.ndarray, tmp_path: Path
) -> None:
    path = export_faiss(store, tmp_path / "ivf.index", "ivf", n_lists=12, n_probe=12)
    index = faiss.read_index_binary(str(path))
    assert isinstance(index, faiss.IndexBinaryIVF)
    assert (index.ntotal, index.nlist, index.nprobe) == (1500, 12, 12)
    check_same(index, store, queries, np.arange(store.n_rows))


def test_multi_hash_that_flips_every_bit(
    store: CodeStore, queries: np.ndarray, tmp_path: Path
) -> None:
    path = export_faiss(store, tmp_path / "mh.index", "multihash", n_hashes=2, hash_bits=4)
    index = faiss.read_index_binary(str(path))
    assert isinstance(index, faiss.IndexBinaryMultiHash)
    assert (index.ntotal, index.nhash, index.b) == (1500, 2, 4)
    index.nflip = 4
    check_same(index, store, queries, np.arange(store.n_rows))


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_integer_ids_are_the_results(kind: str, tmp_path: Path) -> None:
    codes = random_codes(np.random.default_rng(2), 400, 32)
    ids = np.arange(400) * 3 + 10**12
    store = CodeStore.create(tmp_path / "c", codes, n_bits=32, model="m", ids=ids, chunk_rows=30)
    queries = codes[:5]
    path = export_faiss(store, tmp_path / "i", kind, n_lists=4, n_probe=4)
    index = faiss.read_index_binary(str(path))
    assert isinstance(index, faiss.IndexBinaryIDMap)
    check_same(index, store, queries, ids, k=5)
    plain = faiss.read_index_binary(str(export_faiss(store, tmp_path / "p", kind, ids=False)))
    assert plain.search(queries, 3)[1].max() < 400


def test_text_ids_stay_behind(tmp_path: Path) -> None:
    codes = random_codes(np.random.default_rng(2), 50, 16)
    names = np.array([f"n{i}" for i in range(50)])
    store = CodeStore.create(tmp_path / "c", codes, n_bits=16, model="m", ids=names)
    index = faiss.read_index_binary(str(export_faiss(store, tmp_path / "i")))
    assert isinstance(index, faiss.IndexBinaryFlat)


def test_what_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = random_codes(np.random.default_rng(2), 50, 16)
    store = CodeStore.create(tmp_path / "c", codes, n_bits=16, model="m")
    with pytest.raises(InputError, match="kind must be 'flat', 'ivf' or 'multihash', got 'hnsw'"):
        export_faiss(store, tmp_path / "i", "hnsw")
    with pytest.raises(InputError, match="5 tables of 4 bits take 20 bits, and codes have 16"):
        export_faiss(store, tmp_path / "i", "multihash", n_hashes=5, hash_bits=4)
    with pytest.raises(InputError, match=r"51 inverted lists for 50 codes\. Use fewer \(n_lists\)"):
        export_faiss(store, tmp_path / "i", "ivf", n_lists=51)
    with pytest.raises(InputError, match="is not a folder"):
        export_faiss(store, tmp_path / "no" / "i")
    empty = CodeStore.create(tmp_path / "e", codes[:0], n_bits=16, model="m")
    with pytest.raises(InputError, match="has no codes to export"):
        export_faiss(empty, tmp_path / "i")

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"pip install 'sadih-dask\[faiss\]'"):
        export_faiss(store, tmp_path / "i")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "e"]


@pytest.fixture(params=["integers", "text", "none"])
def named_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch) -> CodeStore:
    monkeypatch.setattr(export, "BLOCK_ROWS", 256)
    codes = random_codes(np.random.default_rng(0), 700, 20)
    names = {
        "integers": 10_000 - np.arange(700),
        "text": np.array([f'dök, "{row}"' for row in range(700)]),
        "none": None,
    }[request.param]
    place = tmp_path / "named"
    return CodeStore.create(place, codes, n_bits=20, model="m", ids=names, chunk_rows=100)


def names_of(store: CodeStore) -> list[object]:
    return store.read("ids").tolist() if "ids" in store.arrays else list(range(store.n_rows))


@pytest.mark.parametrize("bitorder", ["little", "big"])
def test_parquet_has_ids_codes_and_how_they_are_packed(named_store, tmp_path, bitorder):
    parquet = pytest.importorskip("pyarrow.parquet")
    done = export.export(named_store, tmp_path / "c.parquet", bitorder=bitorder)
    table = parquet.read_table(done.path)
    about = json.loads(table.schema.metadata[b"sadih"])
    assert about == {"n_bits": 20, "bitorder": bitorder, "model": "m"}
    assert str(table.schema.field("code").type) == "fixed_size_binary[3]"
    assert table["id"].to_pylist() == names_of(named_store)
    packed = np.frombuffer(b"".join(table["code"].to_pylist()), np.uint8).reshape(-1, 3)
    bits = np.unpackbits(packed, axis=1, count=20, bitorder=bitorder)
    np.testing.assert_array_equal(bits, unpack(named_store.read("codes"), 20))


def test_numpy_has_the_bytes_and_the_ids_beside(named_store, tmp_path):
    done = export.export(named_store, tmp_path / "c.npy")
    np.testing.assert_array_equal(np.load(done.path), named_store.read("codes"))
    if done.ids is None:
        assert "ids" not in named_store.arrays
    else:
        assert np.load(done.ids).tolist() == names_of(named_store)


def test_text_is_what_bit_n_of_postgresql_takes(named_store, tmp_path):
    done = export.export(named_store, tmp_path / "c.csv")
    with done.path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["id", "code"]
    assert [name for name, _ in rows] == [str(name) for name in names_of(named_store)]
    values = [int(text, 2) for _, text in rows]  # as PostgreSQL reads it: the first bit is highest
    assert {len(text) for _, text in rows} == {20}
    found = [(values[0] ^ value).bit_count() for value in values]
    codes = named_store.read("codes")
    np.testing.assert_array_equal(found, naive_distances(codes[:1], codes)[0])


@pytest.mark.parametrize("form", ["faiss", "usearch"])
def test_an_index_finds_ids_or_rows_with_their_names_beside(named_store, tmp_path, form):
    queries = random_codes(np.random.default_rng(1), 5, 20)
    done = export.export(named_store, tmp_path / f"c.{form}")
    if form == "faiss":
        distances, found = faiss.read_index_binary(str(done.path)).search(queries, 7)
    else:
        restored = pytest.importorskip("usearch.index").Index.restore(str(done.path))
        answer = restored.search(queries, 7, exact=True)
        distances, found = answer.distances, answer.keys.astype(np.int64)
    ours = search(named_store, queries, 7)
    np.testing.assert_array_equal(distances, ours.distances)
    names = np.asarray(names_of(named_store))
    text = names.dtype.kind == "U"
    assert (done.ids is not None) == text
    known = {name: row for row, name in enumerate(names.tolist())}
    results = np.load(done.ids)[found] if text else found
    rows = np.vectorize(known.get)(results)
    pairs = naive_distances(queries, named_store.read("codes"))
    np.testing.assert_array_equal(np.take_along_axis(pairs, rows, axis=1), distances)


def test_numpy_in_big_order_is_what_sentence_transformers_makes_and_searches(tmp_path):
    scores = np.random.default_rng(2).normal(size=(300, 64)).astype("f4")
    store = CodeStore.create(tmp_path / "c", pack(scores), n_bits=64, model="m")
    done = export.export(store, tmp_path / "c.npy", bitorder="big")
    ubinary = np.packbits(scores > 0).reshape(len(scores), -1)  # quantize_embeddings, "ubinary"
    np.testing.assert_array_equal(np.load(done.path), ubinary)
    index = faiss.IndexBinaryFlat(64)  # semantic_search_faiss, corpus_precision="ubinary"
    index.add(np.load(done.path))
    assert index.search(ubinary[:9], 1)[1].ravel().tolist() == list(range(9))


def test_options_of_an_index_are_refused_elsewhere(named_store, tmp_path):
    with pytest.raises(InputError, match=r"n_lists: of an index of FAISS, and .*c.npy is none"):
        export.export(named_store, tmp_path / "c.npy", n_lists=4)


@pytest.mark.parametrize("kind", ["flat", "multihash", "ivf"])
@pytest.mark.parametrize("ids", [None, np.arange(1500) * 3])
def test_codes_are_added_to_an_index(tmp_path: Path, kind, ids) -> None:
    codes = random_codes(np.random.default_rng(0), 1500, 32)
    given = {"n_bits": 32, "model": "m", "chunk_rows": 100}
    less = None if ids is None else ids[:1234]
    first = CodeStore.create(tmp_path / "a", codes[:1234], ids=less, **given)
    whole = CodeStore.create(tmp_path / "b", codes, ids=ids, **given)
    former = export_faiss(first, tmp_path / "former", kind).read_bytes()
    grown, built = (
        faiss.read_index_binary(str(export_faiss(whole, tmp_path / name, kind, former=given)))
        for name, given in (("grown", former), ("built", None))
    )
    assert grown.ntotal == 1500
    queries = random_codes(np.random.default_rng(1), 25, 32)
    for one, other in zip(grown.search(queries, 20), built.search(queries, 20), strict=True):
        np.testing.assert_array_equal(one, other)
    if kind == "flat":
        assert (tmp_path / "grown").read_bytes() == (tmp_path / "built").read_bytes()
