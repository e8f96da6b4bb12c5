"""Codes of whole stores: complete, resumable, with their ids, and of one model."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute import encode as encoding
from sadih_dask.errors import ConflictError, InputError, LabelError, NonFiniteError, SadihError
from sadih_dask.stores import CodeStore
from tests.support.datasets import rows
from tests.support.models import FAST, counted_reads, of_features
from tests.support.processes import local_cluster

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture(scope="module", params=[False, True], ids=["classes", "multi-hot"])
def trained(request: pytest.FixtureRequest) -> tuple[SADIH, Any, Any]:
    X, y = rows(multi_label=request.param)
    return SADIH(**FAST, anchors=30).fit(X, y), X, y


@pytest.fixture
def short_code_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code chunks of one block of the scan, so that small stores have several."""
    monkeypatch.setattr(encoding, "code_chunk_rows", lambda chunk_rows, block_rows: block_rows)


@pytest.mark.parametrize("chunk_rows", [300, 512, 5000])
@pytest.mark.parametrize("text_ids", [False, True])
@pytest.mark.usefixtures("short_code_chunks")
def test_codes_of_a_store(
    tmp_path: Path, trained: tuple[SADIH, Any, Any], chunk_rows: int, text_ids: bool
) -> None:
    model, X, y = trained
    ids = np.array([f"ä{i}" for i in range(len(X))]) if text_ids else np.arange(len(X)) * 3 - 100
    store = FeatureStore.create(tmp_path / "s", X, y, ids=ids, chunk_rows=chunk_rows)
    seen: list[tuple[int, int]] = []
    with counted_reads() as counts:
        hashed = model.encode(store, tmp_path / "h", progress=lambda *step: seen.append(step))
    assert seen == [(k, 10) for k in range(1, 11)]
    if chunk_rows == 512:
        times = [counts["features", chunk] for chunk in range(len(store.chunks))]
        assert set(times[:-1]) == {1}  # the last one is short, and read for a fingerprint too
    np.testing.assert_array_equal(hashed.read("codes"), model.transform(X))
    np.testing.assert_array_equal(hashed.read("ids"), ids)
    assert (hashed.model, hashed.n_bits, hashed.source) == (model.fingerprint_, 16, store.url)
    assert hashed.verify().ok
    learned = model.encode(store, tmp_path / "l", learned=True)
    np.testing.assert_array_equal(learned.read("codes"), model.learned_codes(y))
    np.testing.assert_array_equal(learned.read("ids"), ids)


def test_a_store_without_ids_and_class_numbers_with_gaps(tmp_path: Path) -> None:
    X, y = rows()
    y = y * 7 + 3
    store = FeatureStore.create(tmp_path / "s", X, y)
    model = SADIH(**FAST, anchors=None).fit(store)
    codes = model.encode(store, tmp_path / "c", learned=True)
    assert codes.arrays == ("codes", "labels")
    np.testing.assert_array_equal(codes.read("codes"), model.learned_codes(y))
    strange = FeatureStore.create(tmp_path / "t", X, np.where(np.arange(len(y)) == 4321, 5, y))
    with pytest.raises(LabelError, match="row 4321 has a label set that no learned row had"):
        model.encode(strange, tmp_path / "d", learned=True)


def test_codes_of_another_model_are_not_overwritten(
    tmp_path: Path, trained: tuple[SADIH, Any, Any]
) -> None:
    model, X, y = trained
    store = FeatureStore.create(tmp_path / "s", X, y)
    model.encode(store, tmp_path / "c")
    other = SADIH(**FAST, anchors=None).fit(X, y)
    with pytest.raises(SadihError, match="overwrite"):
        other.encode(store, tmp_path / "c")
    np.testing.assert_array_equal(CodeStore.open(tmp_path / "c").read("codes"), model.transform(X))
    replaced = other.encode(store, tmp_path / "c", overwrite=True)
    np.testing.assert_array_equal(replaced.read("codes"), other.transform(X))
    narrow = FeatureStore.create(tmp_path / "n", X[:, 1:], y)
    with pytest.raises(InputError, match="X has 11 features, but SADIH is expecting 12"):
        model.encode(narrow, tmp_path / "e")


def test_a_row_that_cannot_be_hashed_is_named(
    tmp_path: Path, trained: tuple[SADIH, Any, Any]
) -> None:
    model, X, y = trained
    X = X.copy()
    X[3210, 4] = np.inf
    store = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=700)
    with pytest.raises(NonFiniteError, match="inf at row 3210, column 4"):
        model.encode(store, tmp_path / "c")


# --- interrupted -------------------------------------------------------------------------------

SLOW = """
import sys, time
import dask
from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute import encode
encode.code_chunk_rows = lambda chunk_rows, block_rows: block_rows
real = encode._encode_block
turns = iter(range(10))
def slow(writer, block, job):
    if next(turns) >= 4:
        time.sleep(600)
    digests = real(writer, block, job)
    sys.stdout.write(f"{block}\\n"); sys.stdout.flush()
    return digests
encode._encode_block = slow
with dask.config.set(scheduler="threads", num_workers=2):
    SADIH.load(sys.argv[1]).encode(FeatureStore.open(sys.argv[2]), sys.argv[3])
"""


@pytest.mark.usefixtures("short_code_chunks")
def test_killed_and_repeated(
    tmp_path: Path, trained: tuple[SADIH, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, X, y = trained
    store = FeatureStore.create(tmp_path / "s", X, y, ids=np.arange(len(X)), chunk_rows=512)
    model.save(tmp_path / "m")
    arguments = [str(tmp_path / "m"), store.url, str(tmp_path / "c")]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    done = {int(process.stdout.readline()) for _ in range(4)}  # the rest sleeps
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=120) == -signal.SIGKILL
    process.stdout.close()
    with pytest.raises(SadihError, match="incomplete"):
        CodeStore.open(tmp_path / "c")
    computed = []
    real = encoding._encode_block

    def counted(writer: Any, block: int, job: Any) -> Any:
        computed.append(block)
        return real(writer, block, job)

    monkeypatch.setattr(encoding, "_encode_block", counted)
    finished = model.encode(store, tmp_path / "c")
    assert len(done) == 4
    assert sorted(computed) == sorted(set(range(10)) - done)
    np.testing.assert_array_equal(finished.read("codes"), model.transform(X))
    np.testing.assert_array_equal(finished.read("ids"), np.arange(len(X)))


def test_a_finished_store_is_not_written_again(
    tmp_path: Path, trained: tuple[SADIH, Any, Any]
) -> None:
    model, X, y = trained
    store = FeatureStore.create(tmp_path / "s", X, y)
    codes = model.encode(store, tmp_path / "c")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*")}
    with counted_reads() as counts:
        assert model.encode(store, tmp_path / "c").commit == codes.commit
    assert not counts
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*")} == before
    other = FeatureStore.create(tmp_path / "t", X[1:], y[1:])
    with pytest.raises(ConflictError, match="overwrite"):
        model.encode(other, tmp_path / "c")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*")} == before


def test_only_what_changed_is_encoded(tmp_path: Path, trained: tuple[SADIH, Any, Any]) -> None:
    model, X, y = trained
    ids = np.arange(5000)
    store = FeatureStore.create(tmp_path / "s", X[:4000], y[:4000], ids=ids[:4000], chunk_rows=500)
    model.encode(store, tmp_path / "c")
    store.delete([17, 3999])
    store.append(X[4000:], y[4000:], ids=ids[4000:])
    with counted_reads() as counts:
        codes = model.encode(store, tmp_path / "c")
    assert of_features(counts) == {8: 1, 9: 1}
    kept = np.delete(ids, [17, 3999])
    np.testing.assert_array_equal(codes.read("codes"), model.transform(X[kept]))
    np.testing.assert_array_equal(codes.read("ids"), kept)
    assert codes.verify().ok


# --- lazily, and on processes ------------------------------------------------------------------


def test_lazy_in_lazy_out(tmp_path: Path, trained: tuple[SADIH, Any, Any]) -> None:
    model, X, y = trained
    lazy = da.from_array(X, chunks=((1, 1999, 3000), 5))
    codes = model.transform(lazy)
    assert isinstance(codes, da.Array)
    assert (codes.shape, codes.dtype, codes.chunks[0]) == ((5000, 2), np.uint8, (1, 1999, 3000))
    np.testing.assert_array_equal(codes.compute(), model.transform(X))
    np.testing.assert_array_equal(codes[1998:2003].compute(), model.transform(X[1998:2003]))
    store = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=900)
    with counted_reads() as counts:
        codes = model.transform(store)
        assert not counts
    np.testing.assert_array_equal(codes.compute(), model.transform(X))
    assert model.transform(lazy[:0]).compute().shape == (0, 2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(2) as found:
        yield found


@pytest.mark.usefixtures("short_code_chunks")
def test_on_worker_processes(
    tmp_path: Path, trained: tuple[SADIH, Any, Any], cluster: LocalCluster
) -> None:
    model, X, y = trained
    store = FeatureStore.create(tmp_path / "s", X, y, ids=np.arange(len(X)), chunk_rows=600)
    with Client(cluster) as client:
        hashed = model.encode(store, tmp_path / "h")
        learned = model.encode(store, tmp_path / "l", learned=True)
        lazy = model.transform(store).compute()
        # The model is sent to the workers, not in the graph.
        client.wait_for_workers(2, timeout=120)
    np.testing.assert_array_equal(hashed.read("codes"), model.transform(X))
    np.testing.assert_array_equal(learned.read("codes"), model.learned_codes(y))
    np.testing.assert_array_equal(lazy, model.transform(X))
    np.testing.assert_array_equal(hashed.read("ids"), np.arange(len(X)))
