"""Exported indexes, loaded in FAISS itself."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from sadih_dask import CodeStore, search
from sadih_dask.errors import InputError
from sadih_dask.jobs import export
from sadih_dask.jobs.export import export_faiss
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
