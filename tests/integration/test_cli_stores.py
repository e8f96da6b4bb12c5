"""The command line from files to codes: real files, real processes, killed and damaged ones too."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask import SADIH
from sadih_dask.errors import ConflictError
from sadih_dask.stores import CodeStore, FeatureStore
from tests.support.models import counted_reads, of_features
from tests.support.processes import PATIENCE, Here, wait_until
from tests.support.stores import files_of, pending_blocks, segment_folder

SADIH_COMMAND = [sys.executable, "-m", "sadih_dask.cli"]
ENVIRONMENT = {
    **os.environ,
    "DASK_SCHEDULER_ADDRESS": "",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONWARNINGS": "default",
}
QUICK = ["--bits", "16", "--anchors", "none", "--n-init", "2", "--max-iter", "2"]


def begin(*words: object, limit: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SADIH_COMMAND, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=limit,
    )


def sadih(
    *words: object, code: int = 0, limit: Callable[[], None] | None = None
) -> tuple[str, str]:
    """Run a command to its end; return what it printed on stdout and stderr."""
    process = begin(*words, limit=limit)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, f"{words}: {process.returncode}\n{out}\n{err}"
    assert "Traceback" not in err
    return out, err


def clouds(n: int, seed: int, d: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Labelled rows about four centres that do not depend on the seed."""
    centres = np.random.default_rng(99).normal(scale=3, size=(4, d))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    return (rng.normal(size=(n, d)) + centres[labels]).astype(np.float32), labels


def save(folder: Path, name: str, n: int, seed: int) -> tuple[Path, Path]:
    x, y = clouds(n, seed)
    paths = folder / f"{name}.npy", folder / f"{name}-labels.npy"
    np.save(paths[0], x)
    np.save(paths[1], y)
    return paths


def wait_for_blocks(process: subprocess.Popen[str], url: Path, least: int) -> None:
    wait_until(lambda: len(pending_blocks(url)) >= least or process.poll() is not None)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def same_files(found: Path, expected: Path) -> None:
    """Equal chunks, byte for byte."""
    stores = [FeatureStore.open(url) for url in (found, expected)]
    here, there = map(segment_folder, stores)
    assert [len(store.segments) for store in stores] == [1, 1]
    assert files_of(here) == files_of(there)
    for name in files_of(there) - {"manifest"}:  # that one says of which segment it is
        assert (here / name).read_bytes() == (there / name).read_bytes(), name
    assert stores[0].fingerprint() == stores[1].fingerprint()


def test_from_files_to_codes_and_on_with_new_rows(tmp_path: Path, here: Here) -> None:
    store, model = tmp_path / "s.zarr", tmp_path / "m.sadih"
    x, y = save(tmp_path, "monday", 3000, seed=1)
    out, err = sadih("ingest", x, store, "--labels", y, "--chunk-rows", 512)
    assert "3,000 rows of 8 features, 3,000 written now" in out
    assert "Ingesting: 3,000 of 3,000 rows (100%)" in err

    shown = json.loads(sadih("inspect", store, "--json")[0])
    assert shown["n_rows"] == 3000
    assert sum(shown["labels"]["class_counts"]) == 3000
    assert "label groups  4, the largest has" in here("inspect", store)[0]
    assert "intact" in here("verify", store, "--workers", 2)[0]
    out, err = sadih("verify", store, "--quiet")
    assert "intact. 3,000 rows, 12 chunks" in out
    assert err == ""

    out, err = sadih("fit", store, model, *QUICK, "--verbose", "--threads", 1)
    assert "16 bits from 3,000 rows (3,000 read now, 0 known before), 4 label groups" in out
    assert "predicted peak" in err

    x2, y2 = save(tmp_path, "tuesday", 700, seed=2)
    sadih("ingest", x, x2, store, "--labels", y, "--labels", y2, "--append")
    out, _ = sadih("fit", store, model, *QUICK)
    assert "from 3,700 rows (700 read now, 3,000 known before)" in out
    out, _ = here("fit", store, model, *QUICK)
    assert "has learned from all 3,700 rows already" in out
    assert "model file, intact" in here("verify", model)[0]
    assert "3,700 rows of" in here("inspect", model)[0]
    fresh = SADIH(n_bits=16, anchors=None, n_init=2, max_iter=2).fit(FeatureStore.open(store))

    sadih("encode", store, model, tmp_path / "c.zarr")
    sadih("encode", store, model, tmp_path / "l.zarr", "--learned")
    rows, labels = (
        np.concatenate(both) for both in zip(clouds(3000, 1), clouds(700, 2), strict=True)
    )
    learner = SADIH.load(model)
    hashed, learned = CodeStore.open(tmp_path / "c.zarr"), CodeStore.open(tmp_path / "l.zarr")
    np.testing.assert_array_equal(hashed.read("codes"), learner.transform(rows))
    np.testing.assert_array_equal(learned.read("codes"), learner.learned_codes(labels))
    np.testing.assert_array_equal(learner.label_codes_, fresh.label_codes_)
    assert learner.score(rows, labels) > 0.9


def test_an_existing_model_is_only_replaced_on_request(tmp_path: Path, here: Here) -> None:
    store, model = tmp_path / "s.zarr", tmp_path / "m.sadih"
    x, y = save(tmp_path, "x", 500, seed=1)
    here("ingest", x, store, "--labels", y, "-q")
    here("fit", store, model, *QUICK, "-q")
    before = model.read_bytes()
    _, err = here("fit", store, model, *QUICK, "--loss", "l1", code=1)
    assert err.startswith("sadih: ")
    assert "loss='l21' (not 'l1')" in err
    assert "--overwrite" in err
    x2, y2 = save(tmp_path, "other", 500, seed=5)
    here("ingest", x2, tmp_path / "other.zarr", "--labels", y2, "-q")
    _, err = here("fit", tmp_path / "other.zarr", model, *QUICK, code=1)
    assert "not the first rows of" in err
    assert model.read_bytes() == before
    here("fit", tmp_path / "other.zarr", model, *QUICK, "--overwrite", "-q")
    assert model.read_bytes() != before


def test_a_model_of_a_store_that_is_written_anew_learns_from_all_rows(
    tmp_path: Path, here: Here
) -> None:
    store, model = tmp_path / "s.zarr", tmp_path / "m.sadih"
    for seed, words in ((1, ()), (5, ("--overwrite",))):
        x, y = save(tmp_path, f"x{seed}", 500, seed=seed)
        here("ingest", x, store, "--labels", y, *words, "-q")
        assert "(500 read now, 0 known before)" in here("fit", store, model, *QUICK)[0]
    here("fit", store, tmp_path / "fresh", *QUICK, "-q")
    assert model.read_bytes() == (tmp_path / "fresh").read_bytes()


def ingest_with_ids(here: Here, folder: Path, store: Path, days: int) -> None:
    """One file of 600 rows a day, whose ids count from 0 over all days."""
    words: list[object] = []
    for day in range(days):
        x, y = save(folder, f"day{day}", 600, seed=day)
        np.save(folder / f"day{day}-ids.npy", np.arange(600 * day, 600 * (day + 1)))
        words += [x, "--labels", y, "--ids", folder / f"day{day}-ids.npy"]
    here("ingest", *words, store, "--chunk-rows", 100, "--append", "-q")


def only(*chunks: int) -> dict[int, int]:
    return dict.fromkeys(chunks, 1)


def test_deleted_and_added_rows_are_all_that_is_read_and_encoded(
    tmp_path: Path, here: Here
) -> None:
    store, model, codes = tmp_path / "s.zarr", tmp_path / "m.sadih", tmp_path / "c.zarr"
    ingest_with_ids(here, tmp_path, store, 1)
    here("fit", store, model, *QUICK, "-q")
    here("encode", store, model, codes, "-q")
    old = CodeStore.open(codes)

    (tmp_path / "gone.txt").write_text("".join(f"{n}\n" for n in (3, 5, 250)))
    out, _ = here("delete", store, "--ids", tmp_path / "gone.txt")
    assert out == f"{store}: 3 rows deleted, 597 are left.\n"
    assert (
        "has no row with id 3" in here("delete", store, "--ids", tmp_path / "gone.txt", code=1)[1]
    )
    # The codes of the same model: nothing is encoded, three of them go
    assert "597 codes of 16 bits, 0 encoded now" in here("encode", store, model, codes)[0]
    kept = np.delete(np.arange(600), [3, 5, 250])
    np.testing.assert_array_equal(CodeStore.open(codes).read("codes"), old.take("codes", kept))
    np.testing.assert_array_equal(CodeStore.open(codes).read("ids"), kept)
    # The model: chunks with deleted rows are read, no other
    with counted_reads() as counts:
        out, _ = here("fit", store, model, *QUICK)
    assert of_features(counts) == only(0, 2)
    assert "597 rows (0 read now, 597 known before, 3 deleted ones taken out), 4" in out
    check_as_from_scratch(tmp_path, here)

    np.save(tmp_path / "more.npy", clouds(600, 7)[0])
    np.save(tmp_path / "more-labels.npy", clouds(600, 7)[1])
    np.save(tmp_path / "more-ids.npy", np.arange(600, 1200))
    beside = ["--labels", tmp_path / "more-labels.npy", "--ids", tmp_path / "more-ids.npy"]
    here("ingest", tmp_path / "more.npy", *beside, store, "--append", "-q")
    out, _ = here("fit", store, model, *QUICK)
    assert "16 bits from 1,197 rows (600 read now, 597 known before)" in out
    check_as_from_scratch(tmp_path, here)


def check_as_from_scratch(folder: Path, here: Here) -> None:
    """The model of a store that came and went is that of the rows that are there."""
    store = FeatureStore.open(folder / "s.zarr")
    rows, labels = store.read("features"), store.read("labels")
    FeatureStore.create(folder / "clean", rows, labels, chunk_rows=100, overwrite=True)
    here("fit", folder / "clean", folder / "clean.sadih", *QUICK, "--overwrite", "-q")
    found, expected = SADIH.load(folder / "m.sadih"), SADIH.load(folder / "clean.sadih")
    np.testing.assert_array_equal(found.label_codes_, expected.label_codes_)
    np.testing.assert_array_equal(found.transform(rows), expected.transform(rows))


def test_compacting_joins_segments_and_purging_leaves_nothing_of_deleted_rows(
    tmp_path: Path, here: Here
) -> None:
    store, model, codes = tmp_path / "s.zarr", tmp_path / "m.sadih", tmp_path / "c.zarr"
    for days in (1, 2, 3):
        ingest_with_ids(here, tmp_path, store, days)
    np.save(tmp_path / "gone.npy", np.arange(100, 250))
    here("delete", store, "--ids", tmp_path / "gone.npy")
    here("fit", store, model, *QUICK, "-q")
    here("encode", store, model, codes, "-q")
    before = FeatureStore.open(store)
    secret = before.take_deleted("features", 0, np.array([100]))[0].tobytes()
    assert any(secret in path.read_bytes() for path in store.rglob("c.*"))

    out, _ = here("compact", store, "-q")
    assert out == f"{store}: 1,650 rows in 3 segments, 3 before.\n"  # only the first had dead rows
    out, _ = here("compact", store, "--one-segment", "-q")
    assert out == f"{store}: 1,650 rows in 1 segments, 3 before.\n"
    assert any(secret in path.read_bytes() for path in store.rglob("c.*"))  # in a former commit
    assert before.verify().ok
    here("compact", store, "--purge", "-q")
    assert not any(secret in path.read_bytes() for path in store.rglob("*") if path.is_file())
    after = FeatureStore.open(store)
    for name in after.arrays:
        np.testing.assert_array_equal(
            after.read(name), np.delete(before_rows(name), gone(), axis=0)
        )
    assert after.fingerprint() == before.fingerprint()
    assert "has learned from all 1,650 rows already" in here("fit", store, model, *QUICK)[0]
    assert "1,650 codes of 16 bits, 0 encoded now" in here("encode", store, model, codes)[0]
    assert "intact" in here("verify", store, "-q")[0]


def gone() -> np.ndarray:
    return np.arange(100, 250)


def before_rows(name: str) -> np.ndarray:
    """An array of three days as it was ingested."""
    if name == "ids":
        return np.arange(1800)
    return np.concatenate([clouds(600, day)[name == "labels"] for day in range(3)])


def test_what_was_begun_can_be_given_up(tmp_path: Path, here: Here) -> None:
    store = tmp_path / "s.zarr"
    ingest_with_ids(here, tmp_path, store, 1)
    before = files_of(store)
    writer = FeatureStore.open(store).extend(600)
    writer.write(0, *clouds(100, 1), np.arange(600, 700))
    assert "unfinished    begun by " in here("inspect", store)[0]
    here("compact", store, "-q")  # leaves it alone
    assert writer.missing() == [1, 2, 3, 4, 5]
    out, _ = here("compact", store, "--abandon", "-q")
    assert "600 rows in 1 segments, 1 before. 1 unfinished ones given up." in out
    assert files_of(store) == before
    assert "unfinished" not in here("inspect", store)[0]
    with pytest.raises(ConflictError, match="has been given up by somebody else"):
        writer.finalise()


def test_a_former_commit_is_restored(tmp_path: Path, here: Here) -> None:
    store, model, codes = tmp_path / "s.zarr", tmp_path / "m.sadih", tmp_path / "c.zarr"
    ingest_with_ids(here, tmp_path, store, 1)
    here("fit", store, model, *QUICK, "-q")
    here("encode", store, model, codes, "-q")
    np.save(tmp_path / "gone.npy", np.arange(10))
    here("delete", store, "--ids", tmp_path / "gone.npy")
    assert "commit        2; 1 to 1 are kept" in here("inspect", store)[0]
    _, err = here("restore", store, 7, code=1)
    assert "commit 7 is not kept, so it cannot be restored; the latest is 2, kept are 1" in err
    assert here("restore", store, 1)[0] == f"{store}: 600 rows as of commit 1.\n"
    np.testing.assert_array_equal(FeatureStore.open(store).read("features"), clouds(600, 0)[0])
    assert "intact. 600 rows" in here("verify", store, "-q")[0]
    assert "has learned from all 600 rows already" in here("fit", store, model, *QUICK)[0]
    assert "600 codes of 16 bits, 0 encoded now" in here("encode", store, model, codes)[0]


def test_an_ingestion_killed_at_any_moment_is_completed_by_the_same_command(
    tmp_path: Path,
) -> None:
    x, y = save(tmp_path, "x", 20_000, seed=1)
    words = ["--labels", y, "--chunk-rows", 64, "-q"]
    sadih("ingest", x, tmp_path / "undisturbed", *words)
    chance, url = random.Random(0), tmp_path / "s.zarr"
    for least in (1, 60, 150):
        process = begin("ingest", x, url, *words)
        wait_for_blocks(process, url, least)
        time.sleep(chance.random() * 0.02)
        kill(process)
    out, _ = sadih("ingest", x, url, *words)
    assert ", 0 kept" not in out
    same_files(url, tmp_path / "undisturbed")
    assert FeatureStore.open(url).verify().ok


def test_an_append_killed_at_any_moment_adds_all_or_nothing(tmp_path: Path) -> None:
    url = tmp_path / "s.zarr"
    x, y = save(tmp_path, "x", 100, seed=1)
    more, more_y = save(tmp_path, "more", 10_000, seed=2)
    sadih("ingest", x, url, "--labels", y, "--chunk-rows", 64, "-q")
    words = ["ingest", more, url, "--labels", more_y, "--append", "-q"]
    process = begin(*words)
    wait_for_blocks(process, url, 9)
    kill(process)
    assert FeatureStore.open(url).n_rows in (100, 10_100)
    sadih(*words)
    assert "1 of 1 files were in the store already" in sadih(*words)[0]
    store = FeatureStore.open(url)
    assert store.verify().ok
    np.testing.assert_array_equal(store.read("features")[100:], np.load(more))


def test_an_encoding_killed_at_any_moment_is_completed_by_the_same_command(
    tmp_path: Path, here: Here
) -> None:
    store, model, codes = tmp_path / "s.zarr", tmp_path / "m.sadih", tmp_path / "c.zarr"
    x, y = save(tmp_path, "x", 300_000, seed=1)
    here("ingest", x, store, "--labels", y, "-q")
    small = SADIH(n_bits=16, anchors=128, n_init=1, max_iter=1)
    small.fit(*clouds(2000, 1)).save(model)
    process = begin("encode", store, model, codes, "--threads", 1, "-q")
    wait_for_blocks(process, codes, 1)
    kill(process)
    out, _ = sadih("encode", store, model, codes, "-q")
    assert "300,000 codes of 16 bits" in out
    assert "300,000 codes of 16 bits, 0 encoded now" in here("encode", store, model, codes)[0]
    found = CodeStore.open(codes)
    np.testing.assert_array_equal(found.read("codes"), small.transform(np.load(x)))
    _, err = here("encode", store, model, codes, "--learned", code=1)
    assert "holds codes that are encoded, not learned" in err


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    x, y = save(tmp_path, "x", 40_000, seed=1)
    url = tmp_path / "s.zarr"
    words = ["ingest", x, url, "--labels", y, "--chunk-rows", 32, "-q"]
    # A shell that starts jobs in the background makes them deaf to it, and so would be this one.
    process = begin(*words, limit=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    wait_for_blocks(process, url, 5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    # A signal between a file's opening and its `with` makes Python warn of the file before that.
    said = "sadih: interrupted. Blocks that are written stay: repeat the same command to go on.\n"
    assert err.endswith(said)
    assert "Traceback" not in err
    assert "INCOMPLETE: " in sadih("inspect", url)[0]
    sadih(*words)
    assert FeatureStore.open(url).verify().ok


def test_damage_is_named_by_array_and_chunk(tmp_path: Path, here: Here) -> None:
    url = tmp_path / "s.zarr"
    x, y = save(tmp_path, "x", 1000, seed=1)
    here("ingest", x, url, "--labels", y, "--chunk-rows", 100, "-q")
    folder = segment_folder(FeatureStore.open(url))
    chunk = folder / "features" / "c.7.0"
    data = bytearray(chunk.read_bytes())
    data[1234] ^= 16
    chunk.write_bytes(data)
    (folder / "labels" / "c.3").unlink()
    out, err = here("verify", url, "-q", code=1)
    place = folder.relative_to(url)
    assert "array 'features', chunk 7 of segment 0 (rows 700 to 799, file " in out
    assert f"file {place}/features/c.7.0): its checksum" in out
    assert "array 'labels', chunk 3 of segment 0 (rows 300 to 399, file " in out
    assert f"file {place}/labels/c.3): its file is missing" in out
    assert err == f"sadih: {url}: 2 of 20 chunks are damaged\n"
    _, err = here("fit", url, tmp_path / "m", *QUICK, "-q", code=1)
    assert "chunk" in err


def test_other_forms_of_labels(tmp_path: Path, here: Here) -> None:
    x, y = clouds(200, 1)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "tags.csv").write_text(
        "tags\n"
        + "".join("\n" if k % 10 == 0 else f"c{c};c{(c + 1) % 4}\n" for k, c in enumerate(y))
    )
    words = [
        "ingest",
        tmp_path / "x.npy",
        tmp_path / "tags.zarr",
        "--labels",
        tmp_path / "tags.csv",
    ]
    _, err = here(*words, "--separator", ";", code=1)
    assert "has no label" in err
    assert "--unlabelled drop" in err
    out, _ = here(*words, "--separator", ";", "--unlabelled", "drop")
    assert "20 rows without a label were left out" in out
    tagged = FeatureStore.open(tmp_path / "tags.zarr")
    assert tagged.class_names == ("c0", "c1", "c2", "c3")
    assert tagged.read("labels").sum() == 2 * 180
    here("fit", tagged.url, tmp_path / "m", *QUICK, "-q")

    names = np.array(["ant", "bee", "cat", "dog"])[y]
    np.savez(tmp_path / "all.npz", features=x, labels=names)
    here("ingest", tmp_path / "all.npz", tmp_path / "named.zarr", "--dtype", "float16", "-q")
    named = FeatureStore.open(tmp_path / "named.zarr")
    assert named.class_names == ("ant", "bee", "cat", "dog")
    assert named.dtype("features") == np.float16
    np.testing.assert_array_equal(named.read("labels"), y)


def test_a_write_that_the_system_refuses_is_one_line_and_can_be_repeated(tmp_path: Path) -> None:
    x, y = save(tmp_path, "x", 1000, seed=1)
    words = ["ingest", x, tmp_path / "s", "--labels", y, "--chunk-rows", 500, "-q"]

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    _, err = sadih(*words, code=1, limit=small_files)
    assert err.count("\n") == 1
    assert "could not be written: File too large" in err
    sadih(*words)
    assert FeatureStore.open(tmp_path / "s").verify().ok


@pytest.mark.parametrize("small_disk", ["2m"], indirect=True)
def test_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    x, y = save(tmp_path, "x", 40_000, seed=1)
    url = small_disk / "s"
    _, err = sadih("ingest", x, url, "--labels", y, "-q", code=1)
    assert "the rows need" in err
    assert not url.exists()
    # How far rows compress is not known before: these do not.
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_400_000))
    words = ["ingest", x, url, "--labels", y, "--chunk-rows", 1000, "--compression", "zstd", "-q"]
    _, err = sadih(*words, code=1)
    assert "could not be written: No space left on device" in err
    ballast.unlink()
    sadih(*words)
    assert FeatureStore.open(url).verify().ok


def free_start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "dask", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
        **options,
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A scheduler and a worker on loopback, on ports that happen to be free."""
    file = tmp_path / "scheduler.json"
    here = ["--host", "127.0.0.1", "--no-dashboard"]
    processes = [
        free_start(["scheduler", *here, "--port", "0", "--scheduler-file", str(file)]),
    ]
    try:
        wait_until(lambda: file.exists() and file.read_text().strip(), "the scheduler starts")
        address = json.loads(file.read_text())["address"]
        worker = ["worker", address, *here, "--nthreads", "2", "--no-nanny"]
        processes.append(free_start([*worker, "--local-directory", str(tmp_path)]))
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_cluster_gives_the_same_model_and_codes(tmp_path: Path, cluster: str, here: Here) -> None:
    store = tmp_path / "s.zarr"
    x, y = save(tmp_path, "x", 30_000, seed=1)
    here("ingest", x, store, "--labels", y, "--chunk-rows", 4096, "-q")
    here("fit", store, tmp_path / "here", *QUICK, "-q")
    sadih("fit", store, tmp_path / "there", *QUICK, "--scheduler", cluster)
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()
    sadih("encode", store, tmp_path / "there", tmp_path / "c", "--scheduler", cluster)
    np.testing.assert_array_equal(
        CodeStore.open(tmp_path / "c").read("codes"),
        SADIH.load(tmp_path / "here").transform(np.load(x)),
    )


def test_usage_and_unusable_paths(tmp_path: Path, here: Here) -> None:
    assert "Missing argument" in here("fit", code=2)[1]
    assert "exclude each other" in here("ingest", "x", "s", "--append", "--overwrite", code=2)[1]
    assert "is not a number of bytes" in here("fit", "s", "m", "--memory-limit", "x", code=2)[1]
    _, err = here("ingest", tmp_path / "nothing.npy", tmp_path / "s", code=1)
    assert err.startswith(f"sadih: {tmp_path}/nothing.npy: cannot be opened")
    assert err.count("\n") == 1


def test_names_of_classes_do_not_steer_the_terminal(here: Here, tmp_path: Path) -> None:
    names = ["\x1b[2Jred", "blue\nrows          9"]
    X = np.zeros((4, 2), np.float32)
    store = FeatureStore.create(tmp_path / "s", X, np.array([0, 0, 0, 1]), class_names=names)
    out, _ = here("inspect", store.url)
    assert "\x1b" not in out
    assert "\\x1b[2Jred" in out
    assert "blue\\nrows" in out


def test_forget_takes_rows_out_of_a_model_and_counts_its_anchors(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 4
    features = (rng.normal(size=(4, 8))[labels] + rng.normal(size=(300, 8))).astype("f4")
    names = np.array([f"row {number}" for number in range(300)])
    gone = np.arange(0, 300, 7)
    monkeypatch.chdir(tmp_path)
    FeatureStore.create("s.zarr", features, labels, ids=names)
    FeatureStore.create(
        "less.zarr",
        np.delete(features, gone, 0),
        np.delete(labels, gone),
        ids=np.delete(names, gone),
    )
    (tmp_path / "gone.txt").write_text("\n".join(names[gone]) + "\n")
    options = ("--bits", "8", "--anchors", "none", "--ridge", "0.001", "--sharpness", "2", "-q")
    here("fit", "s.zarr", "m.sadih", *options)
    here("fit", "less.zarr", "less.sadih", *options)
    out, err = here("forget", "s.zarr", "m.sadih", "--ids", tmp_path / "gone.txt")
    assert f"{len(gone)} rows forgotten" in out
    assert "anchors" not in err
    out, _ = here("fit", "s.zarr", "m.sadih", *options)
    assert f"all 300 rows already, but for {len(gone)} that it was made to forget" in out
    found, expected = (SADIH.load(name).transform(features) for name in ("m.sadih", "less.sadih"))
    np.testing.assert_array_equal(found, expected)
    here("fit", "s.zarr", "a.sadih", "--bits", "8", "--anchors", "300", "-q")  # every row is one
    _, err = here("forget", "s.zarr", "a.sadih", "--ids", tmp_path / "gone.txt")
    assert f"{len(gone)} of its anchors are forgotten rows" in err
    _, err = here("forget", "s.zarr", "a.sadih", "--ids", tmp_path / "gone.txt", code=1)
    assert "has been forgotten already" in err
