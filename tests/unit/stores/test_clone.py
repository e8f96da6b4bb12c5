"""A clone has the same rows, shares their bytes, and goes its own way from there."""

from pathlib import Path

import numpy as np
import pytest

from sadih_dask import CodeStore
from sadih_dask.errors import ConflictError, IncompleteError
from sadih_dask.files import filesystem
from sadih_dask.stores import commit


def codes(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=(n, 2), dtype=np.uint8)


@pytest.fixture
def store(tmp_path: Path) -> CodeStore:
    made = CodeStore.create(
        tmp_path / "a.zarr", codes(70), n_bits=16, model="m", ids=np.arange(70), chunk_rows=32
    )
    made.append(codes(40, 1), np.arange(100, 140), model="m")
    return made


def chunk_of(store: CodeStore) -> Path:
    return Path(store.url, store.segments[0].path, "codes", "c.0.0")


def test_a_clone_shares_files_and_is_a_store_of_its_own(store: CodeStore, tmp_path: Path) -> None:
    before = store.read("codes"), store.commit
    clone = store.clone(tmp_path / "b.zarr")
    np.testing.assert_array_equal(clone.read("codes"), before[0])
    np.testing.assert_array_equal(clone.read("ids"), store.read("ids"))
    assert clone.fingerprint() == store.fingerprint()
    assert clone.uid != store.uid
    assert chunk_of(clone).samefile(chunk_of(store))
    assert clone.verify().ok
    clone.append(codes(5, 2), np.arange(200, 205), model="m")
    clone.compact(one_segment=True, purge=True)
    assert clone.refresh().n_rows == 115
    assert (store.refresh().n_rows, store.refresh().commit) == (110, before[1])
    assert store.verify().ok


def test_deleted_rows_stay_deleted(store: CodeStore, tmp_path: Path) -> None:
    left = store.revise({}, np.array([3, 75]))
    clone = left.clone(tmp_path / "b.zarr")
    np.testing.assert_array_equal(clone.read("codes"), left.read("codes"))
    assert clone.n_rows == 108


def test_an_interrupted_clone_is_completed(
    store: CodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "_link", killed)
        with pytest.raises(KeyboardInterrupt):
            store.clone(tmp_path / "b.zarr")
    with pytest.raises(IncompleteError, match="no rows yet"):
        CodeStore.open(tmp_path / "b.zarr")
    assert store.clone(tmp_path / "b.zarr").fingerprint() == store.fingerprint()


def test_nothing_is_cloned_over_a_store(store: CodeStore, tmp_path: Path) -> None:
    other = CodeStore.create(tmp_path / "b.zarr", codes(9), n_bits=16, model="m")
    with pytest.raises(ConflictError, match="already holds a store"):
        store.clone(tmp_path / "b.zarr")
    assert other.refresh().commit == other.commit


def test_without_hard_links_files_are_copied(
    store: CodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(filesystem.os, "link", refuse)
    monkeypatch.setattr(filesystem, "_NO_LINKS", frozenset([18]))
    clone = store.clone(tmp_path / "b.zarr")
    assert not chunk_of(clone).samefile(chunk_of(store))
    assert clone.verify().ok


def test_behind_a_url_the_server_copies(tmp_path: Path) -> None:
    del tmp_path
    made = CodeStore.create("memory://clones/a.zarr", codes(50), n_bits=16, model="m")
    clone = made.clone("memory://clones/b.zarr")
    np.testing.assert_array_equal(clone.read("codes"), codes(50))
    assert commit.collect(clone._snapshot.files, CodeStore.kind) == []
