"""`sadih run`: what is current is not done again, what has changed is; readers see whole runs."""

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask import SADIH, CodeStore, FeatureStore
from sadih_dask.runs.directory import RunDirectory
from tests.support.datasets import configuration, drop
from tests.support.processes import PATIENCE, Here, wait_until
from tests.support.stores import segment_folder

COMMAND = Path(sys.executable).with_name("sadih")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    drop(tmp_path / "incoming", "a", 1500, 1)
    configuration(tmp_path)
    return tmp_path


def run(here: Here, place: Path, *words: str, code: int = 0) -> dict[str, Any]:
    out, _ = here("run", place / "pipeline.toml", "--json", *words, code=code)
    found: dict[str, Any] = json.loads(out)
    return found


def done(record: dict[str, Any]) -> list[str]:
    return [stage["name"] for stage in record["stages"] if stage["action"] == "done"]


def stage(record: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in record["stages"] if one["name"] == name)
    return found


def contents(folder: Path) -> dict[str, str]:
    """A hash of every file."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def test_from_files_to_codes_and_metrics(here: Here, place: Path) -> None:
    record = run(here, place, "--set", "export.index=flat", "--set", "evaluation.bits=[8]")
    assert record["outcome"] == "complete"
    assert done(record) == ["ingest", "fit", "encode", "evaluate", "export"]
    latest = place / "runs" / "latest"
    assert latest.readlink() == Path("runs", record["id"])
    assert json.loads((latest / "record.json").read_text())["id"] == record["id"]
    model, codes = SADIH.load(latest / "model.sadih"), CodeStore.open(latest / "codes.zarr")
    database = FeatureStore.open(place / "runs" / "database.zarr")
    queries = FeatureStore.open(place / "runs" / "queries.zarr")
    assert record["rows"] == database.n_rows == codes.n_rows
    assert record["queries"] == queries.n_rows
    assert database.n_rows + queries.n_rows == 1500
    assert 0.05 < queries.n_rows / 1500 < 0.15
    np.testing.assert_array_equal(codes.read("codes"), model.transform(database.read("features")))
    value = model.score(queries.read("features"), queries.read("labels"))
    assert record["metrics"]["lengths"]["16"]["fresh"]["MAP"] == pytest.approx(value)
    assert set(record["metrics"]["lengths"]) == {"8", "16"}
    assert record["fingerprints"]["model"] == model.fingerprint_
    assert record["versions"]["numpy"] == np.__version__
    assert "fit: done" in (latest / "log.txt").read_text()
    assert (latest / "index.faiss").stat().st_size > codes.n_rows * 2


def test_text_ids_lie_beside_the_index_and_rows_go_by_them(here: Here, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    configuration(tmp_path)
    path = drop(tmp_path / "incoming", "a", 200, 0)
    with np.load(path) as arrays:
        np.savez(path, **arrays, ids=np.array([f"row {row}" for row in range(200)]))
    sets = ("export.index=flat", "report.enabled=false", "model.anchors=200")
    words = [word for one in sets for word in ("--set", one)]
    run(here, tmp_path, *words)
    latest = tmp_path / "runs" / "latest"
    ids = np.load(latest / "index.faiss.ids.npy")
    np.testing.assert_array_equal(ids, CodeStore.open(latest / "codes.zarr").read("ids"))
    FeatureStore.open(tmp_path / "runs" / "database.zarr").delete(ids[:3])
    (remark,) = run(here, tmp_path, *words)["remarks"]
    assert "3 of the model's anchors are deleted rows" in remark
    np.testing.assert_array_equal(np.load(latest / "index.faiss.ids.npy"), ids[3:])


def test_another_bit_order_is_another_packing_of_the_same_codes(here: Here, place: Path) -> None:
    first = run(here, place)
    little = CodeStore.open(place / "runs" / "latest" / "codes.zarr").read("codes")
    again = run(here, place, "--set", "store.bitorder=big")
    assert done(again) == ["encode"]
    assert again["metrics"] == first["metrics"]
    codes = CodeStore.open(place / "runs" / "latest" / "codes.zarr")
    assert codes.bitorder == "big"
    bits = np.unpackbits(little, axis=1, bitorder="little")
    np.testing.assert_array_equal(np.unpackbits(codes.read("codes"), axis=1), bits)


def test_some_of_the_queries_tell_how_sure_they_are(here: Here, place: Path) -> None:
    words = place / "pipeline.toml", "--set", "evaluation.max_queries=40"
    out, _ = here("run", *words)
    record = json.loads((place / "runs" / "latest" / "record.json").read_text())
    found = record["metrics"]
    assert found["n_queries"] == 40 < record["queries"]
    values = [one["16"]["fresh"]["MAP"] for one in (found["lengths"], found["standard_errors"])]
    assert f"40 of {record['queries']} queries" in out
    assert "{:.4f} ± {:.4f}".format(*values) in out
    again = run(here, place, "--set", "evaluation.max_queries=0")
    assert done(again) == ["evaluate"]
    assert again["metrics"]["n_queries"] == again["queries"]


def test_a_second_run_does_nothing(here: Here, place: Path) -> None:
    first = run(here, place)
    before = contents(place / "runs")
    second = run(here, place)
    after = contents(place / "runs")
    assert second["outcome"] == "nothing to do"
    assert done(second) == []
    assert second["id"] == first["id"]
    assert after.pop("checked.json")
    assert after == before
    out, _ = here("run", place / "pipeline.toml")
    assert out.startswith("Nothing to do")
    assert here("run", place / "pipeline.toml", "--quiet") == ("", "")


def test_a_second_run_that_cannot_say_so_leaves_the_first_as_it_is(
    here: Here, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(here, place)
    before = contents(place / "runs")
    write_record = RunDirectory.write_record

    def full(directory: RunDirectory, run: str | None, record: Any) -> None:
        if run is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_record(directory, run, record)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write_record", full)
        _, err = here("run", place / "pipeline.toml", code=1)
    assert "No space left on device" in err
    assert contents(place / "runs") == before
    assert run(here, place)["outcome"] == "nothing to do"
    here("verify", place / "runs")


def test_another_length_is_solved_without_reading_the_features(here: Here, place: Path) -> None:
    run(here, place, "--set", "store.chunk_rows=256")
    database = FeatureStore.open(place / "runs" / "database.zarr")
    array, away = segment_folder(database) / "features", place / "away"
    shutil.copytree(array, away)
    for chunk in range(4):
        (array / f"c.{chunk}.0").unlink()
    _, err = here("run", place / "pipeline.toml", "--set", "model.n_bits=8", code=1)
    assert "array 'features', chunk" in err  # encoding needs them; learning did not
    shutil.copytree(away, array, dirs_exist_ok=True)
    record = run(here, place, "--set", "model.n_bits=8")
    assert done(record) == ["encode", "evaluate"]
    known = SADIH.load(place / "runs" / "latest" / "model.sadih")
    store = FeatureStore.open(place / "runs" / "database.zarr")
    fresh = SADIH(n_bits=8, anchors=50, n_init=1, block_rows=512).fit(store)
    assert known.fingerprint_ == fresh.fingerprint_


def test_changing_what_the_scan_depends_on_reads_again(here: Here, place: Path) -> None:
    run(here, place)
    record = run(here, place, "--set", "model.anchors=20")
    assert stage(record, "fit")["rows"] == record["rows"]
    assert stage(record, "fit")["rows_known"] == 0


def test_new_files_are_appended_and_scanned_alone(here: Here, place: Path) -> None:
    first = run(here, place)
    drop(place / "incoming", "b", 700, 2)
    record = run(here, place)
    n_new = record["rows"] - first["rows"]
    assert n_new + record["queries"] - first["queries"] == 700
    assert stage(record, "ingest")["rows"] == n_new
    assert (stage(record, "fit")["rows"], stage(record, "fit")["rows_known"]) == (
        n_new,
        first["rows"],
    )
    assert stage(record, "encode")["rows"] == record["rows"]
    assert run(here, place)["outcome"] == "nothing to do"


def test_files_that_are_gone_are_reported_every_time(here: Here, place: Path) -> None:
    drop(place / "incoming", "b", 700, 2)
    first = run(here, place)
    (place / "incoming" / "b.npz").unlink()
    for _ in range(2):
        record = run(here, place)
        assert record["outcome"] == "nothing to do"
        (remark,) = record["remarks"]
        assert "b.npz" in remark
        assert record["rows"] in (None, first["rows"])
    _, err = here("run", place / "pipeline.toml", "--set", "source.on_removal=refuse", code=1)
    assert "b.npz" in err
    assert "on_change" in err
    assert "rebuild" in err
    record = run(here, place, "--set", "source.on_removal=rebuild")
    assert record["rows"] + record["queries"] == 1500


def test_files_that_have_changed_are_refused_or_read_anew(here: Here, place: Path) -> None:
    first = run(here, place)
    drop(place / "incoming", "a", 1400, 7)
    _, err = here("run", place / "pipeline.toml", code=1)
    assert "a.npz" in err
    assert RunDirectory(place / "runs").latest() == first["id"]
    record = run(here, place, "--set", "source.on_change=rebuild")
    assert record["rows"] + record["queries"] == 1400
    assert stage(record, "fit")["rows"] == record["rows"]


def test_the_gate_keeps_a_worse_model_from_becoming_the_latest(here: Here, place: Path) -> None:
    good = run(here, place, "--set", "gate.map_min=0.5")
    out, err = here(
        "run", place / "pipeline.toml", "--set", "gate.map_drop_max=0.01", "--set",
        "model.n_bits=1", code=3,
    )  # fmt: skip
    assert "fell by" in err
    assert f"latest is still {good['id']}" in err
    directory = RunDirectory(place / "runs")
    assert directory.latest() == good["id"]
    refused = directory.record(directory.runs()[-1])
    assert refused is not None
    assert refused["outcome"] == "refused"
    assert refused["metrics"]["n_bits"] == 1
    assert "is the latest" not in out
    again = ("--set", "gate.map_drop_max=0.01", "--set", "model.n_bits=1")
    assert done(run(here, place, *again, code=3)) == []
    least = ("--set", "gate.map_min=0.999999", "--set", "model.n_bits=1")
    assert run(here, place, *least, code=3)["outcome"] == "refused"


def test_the_plan_does_nothing(here: Here, place: Path) -> None:
    out, _ = here("run", place / "pipeline.toml", "--plan")
    assert not (place / "runs").exists()
    assert re.search(r"ingest +to do, 1,500 rows", out)
    assert re.search(r"fit +to do, after ingest", out)
    assert "export    not asked for" in out
    run(here, place)
    before = contents(place / "runs")
    out, _ = here("run", place / "pipeline.toml", "--plan", "--set", "model.anchors=20")
    assert "ingest    current" in out
    assert re.search(r"fit +to do, 1,\d\d\d rows, .* to read, at most .* of memory", out)
    assert re.search(r"of memory, then about [\d.]+ s of a processor to solve", out)
    plan = json.loads(here("run", place / "pipeline.toml", "--plan", "--json")[0])
    assert {one["action"] for one in plan} == {"current", "not asked for"}
    assert contents(place / "runs") == before


def test_runs_are_listed_compared_and_rolled_back(here: Here, place: Path) -> None:
    first = run(here, place)
    second = run(here, place, "--set", "model.n_bits=8")
    out, _ = here("runs", place / "runs")
    assert re.search(rf"^  {first['id']} +complete", out, re.MULTILINE)
    assert re.search(rf"^\* {second['id']} +complete", out, re.MULTILINE)
    out, _ = here("compare", place / "runs", first["id"])
    assert "model.n_bits  16 -> 8" in out
    assert "versions: the same" in out
    both = json.loads(here("compare", place / "runs", first["id"], second["id"], "--json")[0])
    assert both["settings"] == [{"what": "model.n_bits", "first": 16, "second": 8}]
    out, _ = here("rollback", place / "runs")
    assert f"is {first['id']}" in out
    assert SADIH.load(place / "runs" / "latest" / "model.sadih").n_bits == 16
    record = run(here, place, "--set", "model.n_bits=8")  # a scheduled run does not undo it
    assert record["outcome"] == "nothing to do"
    assert "rolled back" in record["remarks"][0]
    assert RunDirectory(place / "runs").latest() == first["id"]
    drop(place / "incoming", "b", 300, 2)
    assert run(here, place, "--set", "model.n_bits=8")["outcome"] == "complete"
    _, err = here("rollback", place / "runs", "19990101T000000Z", code=1)
    assert "has no run '19990101T000000Z'" in err
    _, err = here("compare", place / "runs", "nothing", code=1)
    assert first["id"] in err


def test_only_so_many_runs_are_kept(here: Here, place: Path) -> None:
    ids = [run(here, place, "--set", f"model.n_bits={bits}")["id"] for bits in (8, 9, 10, 11)]
    directory = RunDirectory(place / "runs")
    assert directory.runs() == ids[1:]
    assert len(directory.artefacts("fit")) == 3
    out, _ = here("runs", place / "runs")
    assert ids[0] not in out.split()


def test_the_report(here: Here, place: Path) -> None:
    words = ("--set", "report.enabled=true", "--set", "report.title=What we found")
    record = run(here, place, *words)
    page = (place / "runs" / "latest" / "report.html").read_text()
    assert "What we found" in page
    assert f"{record['metrics']['lengths']['16']['fresh']['MAP']:.4f}" in page
    assert list((place / "runs" / "latest" / "figures").glob("*.svg"))
    assert done(run(here, place, "--set", "report.enabled=true")) == ["report"]


def test_two_runs_at_once(here: Here, place: Path) -> None:
    with RunDirectory(place / "runs").locked():
        _, err = here("run", place / "pipeline.toml", code=5)
    assert f"process {os.getpid()}" in err
    assert "did nothing" in err
    assert not (place / "runs" / "runs").exists()
    assert run(here, place)["outcome"] == "complete"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_cleanly_and_the_next_run_goes_on(
    here: Here, place: Path, sent: signal.Signals
) -> None:
    drop(place / "incoming", "b", 60_000, 2)
    # So many starts that the fit is not over before the signal comes.
    long = ("--set", "model.anchors=400", "--set", "model.n_init=400")
    process = subprocess.Popen(
        [COMMAND, "run", place / "pipeline.toml", *long],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )

    def has_begun_to_fit() -> bool:
        assert process.poll() is None, process.communicate()
        return any((place / "runs").glob("artefacts/fit-*"))

    wait_until(has_begun_to_fit, "the run gets on")
    process.send_signal(sent)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert "repeat the same command" in err
    assert "Traceback" not in err
    directory = RunDirectory(place / "runs")
    (killed,) = directory.runs()
    record = directory.record(killed)
    assert record is not None
    assert record["outcome"] == "interrupted"
    assert directory.latest() is None
    finished = run(here, place, "--set", "model.anchors=400")
    assert finished["outcome"] == "complete"
    assert "ingest" not in done(finished)


def test_settings_come_from_the_environment(
    here: Here, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SADIH__MODEL__N_BITS", "24")
    assert run(here, place)["metrics"]["n_bits"] == 24
    monkeypatch.setenv("SADIH__MODEL__N_BITZ", "24")
    _, err = here("run", place / "pipeline.toml", code=2)
    assert "environment variable SADIH__MODEL__N_BITZ" in err
    assert "did you mean n_bits?" in err


def test_bad_data_is_named_and_nothing_becomes_the_latest(here: Here, place: Path) -> None:
    np.savez(
        place / "incoming" / "b.npz",
        features=np.full((10, 16), np.nan, np.float32),
        labels=np.zeros(10, np.int64),
    )
    _, err = here("run", place / "pipeline.toml", code=1)
    assert "row" in err
    assert "Traceback" not in err
    assert RunDirectory(place / "runs").latest() is None


def test_an_index_needs_faiss(here: Here, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sadih_dask.errors.find_spec", lambda name: None)
    _, err = here("run", place / "pipeline.toml", "--set", "export.index=flat", code=2)
    assert "pip install 'sadih-dask[faiss]'" in err
    assert not (place / "runs" / "artefacts").exists()
    record = run(here, place, "--set", "report.enabled=true")
    assert record["outcome"] == "complete"
    assert "pip install 'sadih-dask[report]'" in record["remarks"][0]
    assert stage(record, "report")["action"] == "skipped"


def test_all_settings_are_listed(here: Here) -> None:
    out, _ = here("run", "--settings")
    assert "[model.search]" in out
    assert "n_bits" in out


def test_parameters_are_chosen_in_one_scan(here: Here, place: Path) -> None:
    configuration(place, "[model.search]\nalpha = [0.01, 1.0]\nn_bits = [8, 12]\nfolds = 3\n")
    record = run(here, place)
    fit = stage(record, "fit")
    assert fit["rows"] == record["rows"]
    found = json.loads((place / "runs" / "latest" / "tuning" / "tuning.json").read_text())
    assert len(found["results"]) == 4
    assert found["best"]["parameters"]["n_bits"] == record["metrics"]["n_bits"]
    model = SADIH.load(place / "runs" / "latest" / "model.sadih")
    assert fit["parameters"]["alpha"] == model.alpha == found["best"]["parameters"]["alpha"]
    store = FeatureStore.open(place / "runs" / "database.zarr")
    assert SADIH(**model.get_params()).fit(store).fingerprint_ == model.fingerprint_
    assert run(here, place)["outcome"] == "nothing to do"


def test_query_files_share_the_classes_of_the_database(here: Here, tmp_path: Path) -> None:
    """Names, of which the queries have some only, in another order."""
    rng, names = np.random.default_rng(0), np.array(["ant", "bee", "cat", "dog", "eel"])
    centres = 3 * rng.standard_normal((5, 16))
    for name, classes in (("x", [0, 1, 2, 3, 4]), ("q", [4, 2])):
        labels = np.resize(classes, 400)
        features = centres[labels] + rng.standard_normal((400, 16))
        np.save(tmp_path / f"{name}.npy", features.astype(np.float32))
        np.save(tmp_path / f"{name}_labels.npy", names[labels])
    path = tmp_path / "pipeline.toml"
    path.write_text(
        f"""
        [run]
        directory = "{tmp_path}/runs"
        [source]
        features = "{tmp_path}/x.npy"
        labels = "{tmp_path}/x_labels.npy"
        [source.queries]
        features = "{tmp_path}/q.npy"
        labels = "{tmp_path}/q_labels.npy"
        [model]
        n_bits = 16
        anchors = "none"
        [report]
        enabled = false
        """
    )
    record = json.loads(here("run", path, "--json")[0])
    assert record["metrics"]["lengths"]["16"]["learned"]["MAP"] > 0.95
    queries = FeatureStore.open(tmp_path / "runs" / "queries.zarr")
    assert queries.class_names == tuple(names)
    assert set(queries.read("labels").tolist()) == {2, 4}


def test_a_cluster_of_processes_gives_the_same_bits(here: Here, place: Path) -> None:
    threads = run(here, place)
    processes = run(here, place, "--processes", "2", "--set", f"run.directory={place / 'others'}")
    assert processes["fingerprints"] == threads["fingerprints"]
    assert processes["cluster"]["kind"] == "processes"
    assert processes["cluster"]["workers"] == 2
    one, other = (
        SADIH.load(place / name / "latest" / "model.sadih") for name in ("runs", "others")
    )
    np.testing.assert_array_equal(one.statistics_.gram, other.statistics_.gram)


def test_secrets_stay_out_of_records_and_logs(
    here: Here, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SADIH__REPORT__TITLE", "s3://me:hunter2@host/x?signature=hunter2")
    run(here, place)
    for path in (place / "runs").rglob("*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes(), path


def test_a_run_directory_is_verified(here: Here, place: Path) -> None:
    record = run(here, place, "--set", "export.index=flat")
    assert "intact" in here("verify", place / "runs", "--quiet")[0]
    artefacts = place / "runs" / "artefacts"
    targets = [
        *artefacts.glob("evaluate-*/metrics.json"),
        *artefacts.glob("export-*/index.faiss"),
        *artefacts.glob("fit-*/model.sadih"),
        *artefacts.glob("encode-*/codes.zarr/segments/*/codes/c.0.0"),
        *(place / "runs").glob("database.zarr/segments/*/labels/c.0"),
        *(place / "runs").glob("database.zarr/segments/*/manifest"),
        *(place / "runs").glob("database.zarr/sources/*"),
        place / "runs" / "runs" / record["id"] / "record.json",
        place / "runs" / "runs" / record["id"] / "manifest.json",
    ]
    assert len(targets) == 9
    for target in targets:
        before = target.read_bytes()
        middle = len(before) // 2
        target.write_bytes(before[:middle] + bytes([before[middle] ^ 1]) + before[middle + 1 :])
        out, _ = here("verify", place / "runs", "--quiet", code=1)
        assert out.count("\n") == 1, (target, out)
        assert target.parent.name in out or target.name in out
        target.unlink()
        assert here("verify", place / "runs", "--quiet", code=1)[0]
        target.write_bytes(before)
    link = place / "runs" / "runs" / record["id"] / "codes.zarr"
    leads = link.readlink()
    for other in (None, leads.parent.with_name("encode-0123456789") / "codes.zarr"):
        link.unlink(missing_ok=True)
        if other is not None:
            link.symlink_to(other)
        (line,) = here("verify", place / "runs", "--quiet", code=1)[0].splitlines()
        assert "codes.zarr is no link to codes.zarr of this run" in line
    link.unlink()
    link.symlink_to(leads)
    assert "intact" in here("verify", place / "runs", "--quiet")[0]


def test_what_lies_in_a_run_directory_is_not_looked_for_elsewhere(here: Here, place: Path) -> None:
    run(here, place)
    elsewhere = place / "elsewhere"
    for name in ("database.zarr", "queries.zarr", "*/fit-*/model.sadih", "*/encode-*/codes.zarr"):
        (inside,) = (place / "runs").glob(name)
        inside.rename(elsewhere)
        inside.symlink_to(elsewhere)
        before = contents(elsewhere)
        (line,) = here("verify", place / "runs", "--quiet", code=1)[0].splitlines()
        again = "run", place / "pipeline.toml", "--quiet", "--set", "evaluation.bits=[8]"
        assert f"{inside.name}' is a symbolic link" in line
        assert f"{inside.name}' is a symbolic link" in here(*again, code=1)[1]
        assert contents(elsewhere) == before
        inside.unlink()
        elsewhere.rename(inside)
    assert "intact" in here("verify", place / "runs", "--quiet")[0]


def test_an_emptied_drop_folder_is_nothing_to_do(here: Here, place: Path) -> None:
    run(here, place)
    (place / "incoming" / "a.npz").unlink()
    record = run(here, place)
    assert record["outcome"] == "nothing to do"
    assert "a.npz" in record["remarks"][0]
    here("run", place / "pipeline.toml", "--set", "source.on_removal=refuse", code=1)


def test_labels_must_fit_every_file(here: Here, place: Path) -> None:
    for name, n_labels in (("b", 101), ("c", 99)):
        features = np.zeros((100, 16), np.float32)
        np.savez(place / "incoming" / name, features=features, labels=np.arange(n_labels) % 5)
    _, err = here("run", place / "pipeline.toml", code=1)
    assert "b.npz" in err
    assert "101" in err


def test_files_without_labels_are_refused_before_anything_is_written(
    here: Here, place: Path
) -> None:
    (place / "incoming" / "a.npz").unlink()
    np.savez(place / "incoming" / "b.npz", features=np.zeros((10, 16), np.float32))
    _, err = here("run", place / "pipeline.toml", code=1)
    assert "source.labels" in err
    assert not (place / "runs" / "database.zarr").exists()


def test_a_failure_before_the_first_stage_is_in_the_json(here: Here, place: Path) -> None:
    run(here, place)
    drop(place / "incoming", "a", 1400, 7)
    record = run(here, place, code=1)
    assert record["outcome"] == "failed"
    assert "a.npz" in record["error"]


def test_queries_with_nothing_to_find_are_remarked(here: Here, place: Path) -> None:
    np.save(place / "q.npy", np.zeros((7, 16), np.float32))
    np.save(place / "q_labels.npy", np.full(7, 77))
    path = place / "pipeline.toml"
    path.write_text(
        path.read_text().replace(
            "hold_out = 0.1",
            f'[source.queries]\nfeatures = "{place}/q.npy"\nlabels = "{place}/q_labels.npy"',
        )
    )
    (remark,) = run(here, place)["remarks"]
    assert "7 of 7 queries have no relevant row" in remark
    assert remark.endswith("it has no class '77'")


def test_a_file_that_comes_while_others_are_read_is_read_next(
    here: Here, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sadih_dask.jobs import ingest as job

    real = job.ingest_files

    def slow(*words: Any, **options: Any) -> Any:
        found = real(*words, **options)
        if not (place / "incoming" / "b.npz").exists():
            drop(place / "incoming", "b", 600, 2)
        return found

    monkeypatch.setattr(job, "ingest_files", slow)
    run(here, place)
    monkeypatch.setattr(job, "ingest_files", real)
    record = run(here, place)
    assert record["rows"] + record["queries"] == 2100


def test_a_plain_address_elsewhere_is_refused_before_anything(here: Here, place: Path) -> None:
    settings = ("--set", "cluster.kind=scheduler", "--set", "cluster.address=tcp://192.0.2.1:8786")
    for words, remedy in (
        (("--scheduler", "tcp://192.0.2.1:8786"), "--allow-plain-tcp"),
        (settings, "allow_plain_tcp = true"),
    ):
        _, err = here("run", place / "pipeline.toml", *words, code=2)
        assert remedy in err
    _, err = here("run", place / "pipeline.toml", "--set", "cluster.memory_limit=4Gigs", code=2)
    assert "memory_limit" in err or "cluster" in err
    assert not (place / "runs").exists()


def test_a_moved_directory_is_still_up_to_date(here: Here, place: Path) -> None:
    first = run(here, place)
    (place / "runs").rename(place / "moved")
    record = run(here, place, "--set", f"run.directory={place / 'moved'}")
    assert record["outcome"] == "nothing to do"
    assert record["id"] == first["id"]


def break_one(place: Path, how: str) -> None:
    """Drop two more files: a good one, and one that cannot be read."""
    rng = np.random.default_rng(5)
    rows, labels = rng.normal(size=(60, 16)).astype("f4"), np.arange(60) % 5
    np.savez(place / "incoming" / "good.npz", features=rows, labels=labels)
    if how == "truncated":
        data = (place / "incoming" / "good.npz").read_bytes()
        (place / "incoming" / "bad.npz").write_bytes(data[: len(data) // 2])
    elif how == "wide":
        np.savez(place / "incoming" / "bad.npz", features=rows[:, :9], labels=labels)
    else:
        rows[41, 3] = np.nan
        np.savez(place / "incoming" / "bad.npz", features=rows, labels=labels)


@pytest.mark.parametrize("how", ["truncated", "wide", "nan"])
def test_a_bad_file_does_not_stop_the_others(here: Here, place: Path, how: str) -> None:
    before = run(here, place)
    break_one(place, how)
    skip = ("--set", "source.on_error=skip")
    here("run", place / "pipeline.toml", code=1)  # unless that is asked for
    out, err = here("run", place / "pipeline.toml", *skip, "--json", code=6)
    record = json.loads(out)
    assert record["outcome"] == "complete"
    stores = (
        FeatureStore.open(place / "runs" / f"{name}.zarr") for name in ("database", "queries")
    )
    n_rows = sum(store.n_rows for store in stores)
    assert n_rows == before["rows"] + before["queries"] + 60
    (named,) = record["skipped"]
    assert named.endswith("bad.npz")
    assert "bad.npz" in record["skipped"][named]
    assert "bad.npz" in err
    listed, _ = here("runs", place / "runs")
    assert "skipped: " in listed
    assert "failed" in listed  # the refusal has a record, too
    again = json.loads(here("run", place / "pipeline.toml", *skip, "--json", code=6)[0])
    assert again["rows"] == record["rows"]  # said again, until it is mended
    (place / "incoming" / "bad.npz").unlink()
    run(here, place, *skip)


def test_other_methods_beside_the_model(here: Here, place: Path) -> None:
    said = '\n[compare]\nmethods = ["itq", "dsh"]\nbits = [4, 2000]\n'
    configuration(place, said)
    record = run(here, place)
    assert record["outcome"] == "complete"  # 2,000 bits are too many for both
    assert done(record)[-1] == "compare"
    assert any("itq, 2000 bits" in remark for remark in record["remarks"])
    folder = place / "runs" / "latest" / "comparison"
    outcomes = json.loads((folder / "methods.json").read_text())["outcomes"]
    assert [one["n_bits"] for one in outcomes if not one["failure"]] == [4, 4]
    assert stage(run(here, place), "compare")["action"] == "reused"
