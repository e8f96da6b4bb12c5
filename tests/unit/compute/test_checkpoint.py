"""A pass that was interrupted goes on: counted reads, the same bits, nothing damaged believed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute import checkpoint as resume
from sadih_dask.compute.checkpoint import Checkpoint
from sadih_dask.compute.reduction import Reduction
from sadih_dask.compute.rows import StoreRows
from sadih_dask.compute.scan import scan
from sadih_dask.errors import InputError
from sadih_dask.jobs.fit import fit
from tests.support.datasets import rows
from tests.support.models import FAST, counted_reads, of_features, same_bits
from tests.support.statistics import same_statistics

BLOCK = CHUNK = 64
NODE = 8 * BLOCK
N = 19 * NODE + 5 * CHUNK // 2  # the last part is short, and so is the last chunk
FEW = {**FAST, "block_rows": BLOCK, "anchors": None}


class Stop(Exception):
    """Raised in the middle of a pass."""


def stop_after(place: Checkpoint, n_parts: int = 4) -> Callable[[int, int], None]:
    """A progress that ends the pass when so many more parts are kept."""
    wanted = len(files(place)) + n_parts

    def progress(done: int, total: int) -> None:
        if len(files(place)) >= wanted:
            raise Stop

    return progress


@contextmanager
def stopped() -> Iterator[None]:
    """Expect that a pass is stopped, and wait for tasks that still run."""
    threads = dask.config.get("num_workers")
    with ThreadPoolExecutor(threads) as pool, dask.config.set(pool=pool), pytest.raises(Stop):
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    """Rows that no test changes."""
    return FeatureStore.create(tmp_path_factory.mktemp("s"), *rows(N, 5), chunk_rows=CHUNK)


@pytest.fixture
def place(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "kept")


pytestmark = pytest.mark.usefixtures("two_threads")


def files(place: Checkpoint) -> list[Path]:
    """The parts that are kept, in the order of their rows."""
    return sorted(Path(place.url).glob("scan-*.part"), key=lambda path: rows_of(path)[0])


def rows_of(path: Path) -> tuple[int, int]:
    first, last = path.stem.split("-")[-2:]
    return int(first), int(last)


def interrupted(store: FeatureStore, place: Checkpoint, **other: Any) -> int:
    """Interrupt a fit and return how many rows are finished."""
    with stopped():
        SADIH(**{**FEW, **other}).fit(store, checkpoint=place, progress=stop_after(place))
    return sum(last - first for first, last in map(rows_of, files(place)))


def scanned(
    store: FeatureStore, place: Checkpoint | None = None, block_rows: int = BLOCK
) -> tuple[Any, int]:
    """Statistics of a store, and how many of its rows were loaded."""
    return scan(StoreRows.of(store), Reduction(block_rows, None, None), place)


# --- going on --------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(("anchors", "multi_label"), [(None, False), (None, True), (6, False)])
def test_completed_parts_are_not_read_again(
    tmp_path: Path, place: Checkpoint, threads: int, anchors: int | None, multi_label: bool
) -> None:
    data = rows(12 * NODE, 5, multi_label=multi_label)
    store = FeatureStore.create(tmp_path / "s", *data, chunk_rows=CHUNK)
    expected = SADIH(**{**FEW, "anchors": anchors}).fit(store)
    with dask.config.set(num_workers=threads):
        done = [interrupted(store, place, anchors=anchors) for _ in range(2)]
        assert 0 < done[0] < done[1] < store.n_rows
        finished = [rows_of(path) for path in files(place)]
        with counted_reads() as counts:
            found = SADIH(**{**FEW, "anchors": anchors}).fit(store, checkpoint=place)
    assert found.n_rows_loaded_ == done[-1]
    chunks = {row // CHUNK for part in finished for row in range(*part)}
    again = {chunk: n for chunk, n in of_features(counts).items() if chunk in chunks}
    if anchors is None:
        assert not again
        assert sum(of_features(counts).values()) == len(store.chunks) - len(chunks)
    else:  # the anchors are drawn again, from a sample that is read beside the pass
        assert set(again.values()) == {1}
    same_bits(found, expected, tmp_path)


def test_parts_that_are_finished_during_the_pass_are_not_read_again(
    store: FeatureStore, place: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a worker dies: its tasks are repeated, and find what it has left on file."""
    expected, _ = scanned(store, place)
    lost = files(place)[2]
    first, last = rows_of(lost)
    lost.unlink()
    damaged = files(place)[5]
    damaged.write_bytes(damaged.read_bytes()[:-9])
    monkeypatch.setattr(resume.PartFiles, "ranges", lambda _: (set(), 0))  # none when it began
    with counted_reads() as counts:
        found, n_loaded = scanned(store, place)
    same_statistics(found, expected)
    read = [row for part in ((first, last), rows_of(damaged)) for row in range(*part)]
    assert sorted(of_features(counts)) == sorted({row // CHUNK for row in read})
    assert n_loaded == 0


def test_parts_are_subtrees_of_a_higher_level_where_nodes_are_many(
    store: FeatureStore, place: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "MOST_PARTS", 4)
    expected, _ = scanned(store)
    same_statistics(scanned(store, place)[0], expected)
    assert [rows_of(path) for path in files(place)] == [
        (0, 8 * NODE),
        (8 * NODE, 16 * NODE),
        (16 * NODE, N),
    ]
    files(place)[1].unlink()
    with counted_reads() as counts:
        found, n_loaded = scanned(store, place)
    same_statistics(found, expected)
    assert list(of_features(counts)) == list(range(8 * NODE // CHUNK, 16 * NODE // CHUNK))
    assert n_loaded == N - 8 * NODE


def test_a_finished_pass_reads_no_features(store: FeatureStore, place: Checkpoint) -> None:
    model = SADIH(**FEW).fit(store, checkpoint=place)
    assert model.n_rows_loaded_ == 0
    steps: list[tuple[int, int]] = []
    with counted_reads() as counts:
        again = SADIH(**FEW).fit(
            store, checkpoint=place.url, progress=lambda *step: steps.append(step)
        )
    assert not of_features(counts)
    assert again.fingerprint_ == model.fingerprint_
    assert steps[-1] == (1, 1)


def test_new_rows_of_a_store_that_was_learned_before(tmp_path: Path, place: Checkpoint) -> None:
    store = FeatureStore.create(tmp_path / "s", *rows(1000, 5), chunk_rows=CHUNK)
    model = SADIH(**FEW).fit(store)
    model.save(tmp_path / "model")
    store.append(*rows(10 * NODE, 5, seed=1))
    expected = SADIH.load(tmp_path / "model").fit(store)
    with stopped():
        model.fit(store, checkpoint=place, progress=stop_after(place))
    with counted_reads() as counts:
        model.fit(store, checkpoint=place)
    assert 4 * NODE <= model.n_rows_loaded_ < 10 * NODE
    # Chunks of the new rows lie across the borders of parts and of tasks.
    n_left = (10 * NODE - model.n_rows_loaded_) // BLOCK
    assert n_left <= sum(of_features(counts).values()) <= 2 * n_left + 2
    same_bits(model, expected, tmp_path)


def test_progress_goes_on_from_the_rows_that_are_loaded(
    store: FeatureStore, place: Checkpoint
) -> None:
    done = interrupted(store, place)
    steps: list[tuple[int, int]] = []
    SADIH(**FEW).fit(store, checkpoint=place, progress=lambda *step: steps.append(step))
    before, total = steps[0]
    assert before / total == pytest.approx(done / N, abs=1 / total)
    assert steps[-1] == (total, total)
    assert steps == sorted(steps)


def test_parameters_that_the_pass_does_not_depend_on(
    tmp_path: Path, store: FeatureStore, place: Checkpoint
) -> None:
    done = interrupted(store, place)
    found = SADIH(**{**FEW, "n_bits": 5, "alpha": 0.5}).fit(store, checkpoint=place)
    assert found.n_rows_loaded_ == done
    same_bits(found, SADIH(**{**FEW, "n_bits": 5, "alpha": 0.5}).fit(store), tmp_path)


# --- what is kept ----------------------------------------------------------------------------


def test_files_do_not_depend_on_scheduling(tmp_path: Path, store: FeatureStore) -> None:
    kept = []
    for threads in (1, 4):
        place = Checkpoint(tmp_path / f"{threads}")
        with dask.config.set(num_workers=threads):
            if threads == 4:
                interrupted(store, place)
            SADIH(**FEW).fit(store, checkpoint=place)
        kept.append({path.name: path.read_bytes() for path in files(place)})
    assert len(kept[0]) == 20
    assert kept[0] == kept[1]


def test_a_short_pass_keeps_nothing(tmp_path: Path, place: Checkpoint) -> None:
    store = FeatureStore.create(tmp_path / "s", *rows(2 * NODE, 5), chunk_rows=CHUNK)
    SADIH(**FEW).fit(store, checkpoint=place)
    assert not Path(place.url).exists()
    store.append(*rows(NODE, 5))
    SADIH(**FEW).fit(store, checkpoint=place)
    assert len(files(place)) == 3


def test_parts_whose_statistics_are_as_long_as_their_rows_are_not_kept(
    tmp_path: Path, place: Checkpoint
) -> None:
    X, _ = rows(N, 5)
    groups = FeatureStore.create(tmp_path / "g", X, np.arange(N), chunk_rows=CHUNK)
    same_statistics(scanned(groups, place)[0], scanned(groups)[0])
    assert not files(place)
    columns = NODE // resume.ROWS_PER_STATISTIC + 1
    wide = FeatureStore.create(tmp_path / "w", *rows(N, columns), chunk_rows=CHUNK)
    scanned(wide, place)  # a level higher there are enough rows
    assert [rows_of(path)[0] for path in files(place)] == [0, 8 * NODE, 16 * NODE]


def test_discard_removes_its_own_files_only(store: FeatureStore, place: Checkpoint) -> None:
    interrupted(store, place)
    part = files(place)[0]
    part.with_name(f".{part.name}.{'0' * 32}.tmp").write_bytes(b"a writer was killed at it")
    notes = part.with_name("notes.txt")
    notes.write_text("not a part")
    place.discard()
    assert list(Path(place.url).iterdir()) == [notes]
    notes.unlink()
    place.discard()
    assert not Path(place.url).exists()
    place.discard()


# --- never trusted ---------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "a flipped bit": lambda part, _: flip(part),
    "truncated": lambda part, _: part.write_bytes(part.read_bytes()[:-100]),
    "empty": lambda part, _: part.write_bytes(b""),
    "no archive": lambda part, _: part.write_bytes(b"statistics, honestly" * 100),
    "another part": lambda part, other: part.write_bytes(other.read_bytes()),
    "a folder": lambda part, _: (part.unlink(), part.mkdir()),
    "a link": lambda part, _: part.symlink_to(part.rename(part.with_name("elsewhere"))),
}


def flip(part: Path) -> None:
    data = bytearray(part.read_bytes())
    data[data.index(b"NUMPY") + 500] ^= 8
    part.write_bytes(data)


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_part_is_read_again(
    store: FeatureStore, place: Checkpoint, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected, _ = scanned(store, place)
    part, other = files(place)[3], files(place)[8]
    whole = part.read_bytes()
    DAMAGE[case](part, other)
    with caplog.at_level(logging.WARNING), counted_reads() as counts:
        found, n_loaded = scanned(store, place)
    same_statistics(found, expected)
    assert list(of_features(counts)) == list(range(3 * NODE // CHUNK, 4 * NODE // CHUNK))
    assert n_loaded == N - NODE
    assert f"rows {3 * NODE} to {4 * NODE - 1} are read again: " in caplog.text
    if case != "a folder":
        assert part.read_bytes() == whole  # kept again


def test_a_part_of_other_numbers_under_the_right_name(
    tmp_path: Path, store: FeatureStore, place: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    expected, _ = scanned(store, place)
    X, y = rows(N, 5)
    foreign = Checkpoint(tmp_path / "foreign")
    scanned(FeatureStore.create(tmp_path / "f", X + 1, y, chunk_rows=CHUNK), foreign)
    for mine, theirs in zip(files(place), files(foreign), strict=True):
        assert mine.name != theirs.name
        theirs.rename(mine)
    with caplog.at_level(logging.WARNING):
        found, n_loaded = scanned(store, place)
    same_statistics(found, expected)
    assert n_loaded == 0
    assert "belongs to other rows or another pass" in caplog.text


@pytest.mark.parametrize("change", ["rows", "labels", "block_rows", "anchors", "seed", "appended"])
def test_another_pass_is_not_mixed_in(
    tmp_path: Path,
    store: FeatureStore,
    place: Checkpoint,
    change: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    X, y = rows(N, 5)
    parameters = {**FEW, "anchors": 6}
    interrupted(store, place, anchors=6)
    if change == "appended":
        shutil.copytree(store.url, tmp_path / "t")
        store = FeatureStore.open(tmp_path / "t")
        store.append(X[:100], y[:100])
    elif change in ("rows", "labels"):
        X[5] += change == "rows"
        y[5] = y[5] + (change == "labels")
        store = FeatureStore.create(tmp_path / "t", X, y, chunk_rows=CHUNK)
    else:
        other = {"block_rows": 128, "anchors": 7, "seed": 1}[change]
        parameters["random_state" if change == "seed" else change] = other
    with caplog.at_level(logging.WARNING):
        found = SADIH(**parameters).fit(store, checkpoint=place)
    assert found.n_rows_loaded_ == 0
    assert "of a pass over other rows or with other parameters; they are not used" in caplog.text
    same_bits(found, SADIH(**parameters).fit(store), tmp_path)


def test_a_place_that_is_lost_during_the_pass(
    store: FeatureStore, place: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """Work that was done is not given up for a file that cannot be written."""

    def lose(done: int, total: int) -> None:
        if done == total // 2:
            place.discard()

    with caplog.at_level(logging.WARNING):
        found = SADIH(**FEW).fit(store, checkpoint=place, progress=lose)
    assert f"could not be kept in {place.url}" in caplog.text
    assert found.fingerprint_ == SADIH(**FEW).fit(store).fingerprint_


def test_a_place_that_cannot_be(tmp_path: Path, store: FeatureStore) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="file"):
        SADIH(**FEW).fit(store, checkpoint=tmp_path / "file")


def test_only_rows_of_a_store(tmp_path: Path, place: Checkpoint) -> None:
    X, y = rows(N, 5)
    for features in (X, da.from_array(X, chunks=(CHUNK, -1))):
        with pytest.raises(InputError, match=r"kept cannot be the checkpoint .* FeatureStore"):
            SADIH(**FEW).fit(features, y, checkpoint=place)
    assert not Path(place.url).exists()


# --- fit -------------------------------------------------------------------------------------


def test_fit_counts_and_removes_its_checkpoint(
    tmp_path: Path, store: FeatureStore, place: Checkpoint
) -> None:
    target, kept = tmp_path / "model.sadih", tmp_path / "kept"
    whole = fit(store, tmp_path / "whole", FEW)
    assert (whole.n_rows_read, whole.n_rows_loaded, whole.n_rows_known) == (N, 0, 0)
    done = interrupted(store, place)
    fitted = fit(store, str(target), FEW, checkpoint=kept)
    assert (fitted.n_rows_read, fitted.n_rows_loaded) == (N - done, done)
    assert target.read_bytes() == (tmp_path / "whole").read_bytes()
    assert not kept.exists()
    # Killed between the model and the end of its checkpoint.
    SADIH(**FEW).fit(store, checkpoint=kept)
    fitted = fit(store, target, FEW, checkpoint=kept)
    assert (fitted.n_rows_read, fitted.n_rows_loaded, fitted.n_rows_known) == (0, 0, N)
    assert not kept.exists()


def test_a_folder_is_no_place_for_a_model(tmp_path: Path, store: FeatureStore) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder"):
        fit(store, tmp_path, FEW)
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist; make the folder"):
        fit(store, tmp_path / "nowhere" / "model", FEW)


def test_a_store_that_was_moved_is_the_same_rows(
    tmp_path: Path, store: FeatureStore, place: Checkpoint
) -> None:
    done = interrupted(store, place)
    moved = FeatureStore.open(shutil.copytree(store.url, tmp_path / "t"))
    assert SADIH(**FEW).fit(moved, checkpoint=place).n_rows_loaded_ == done
