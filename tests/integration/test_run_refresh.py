"""`[model] refresh`: a model that is kept costs what is new, and everything of it is exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask import SADIH, CodeStore, FeatureStore, evaluate_model
from sadih_dask.jobs.export import export_faiss
from sadih_dask.runs.directory import RunDirectory
from tests.support.datasets import configuration, drop
from tests.support.processes import Here

KEPT = ("--set", "model.refresh=when-better", "--set", "model.min_gain=0.5")
PLAIN = ("--set", "model.anchors=none", "--set", "evaluation.class_folds=2")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    drop(tmp_path / "incoming", "a", 1500, 1, spread=0.5)
    configuration(tmp_path)
    return tmp_path


def run(here: Here, place: Path, *words: str, code: int = 0) -> dict[str, Any]:
    out, _ = here("run", place / "pipeline.toml", "--json", *PLAIN, *words, code=code)
    found: dict[str, Any] = json.loads(out)
    return found


def stage(record: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in record["stages"] if one["name"] == name)
    return found


def decided(record: dict[str, Any]) -> str:
    return str(record["refresh"]["decision"])


def test_a_kept_model_costs_what_is_new(here: Here, place: Path) -> None:
    pytest.importorskip("faiss")
    words = (*KEPT, "--set", "export.index=flat", "--set", "evaluation.max_queries=100")
    first = run(here, place, *words)
    latest = place / "runs" / "latest"
    before = CodeStore.open((latest / "codes.zarr").resolve())
    codes, name = before.read("codes"), SADIH.load(latest / "model.sadih").fingerprint_
    assert decided(first) == "refreshed"
    for night in range(2):
        drop(place / "incoming", f"b{night}", 300, 2 + night, spread=0.5)
        record = run(here, place, *words)
        assert record["outcome"] == "complete"
        assert decided(record) == "kept"
        assert stage(record, "fit")["rows"] == stage(record, "encode")["rows"] < 300
        assert stage(record, "encode")["rows"] == stage(record, "export")["rows"]
    said = record["refresh"]
    assert "for 100 held-out rows; min_gain is 0.5" in said["reason"]
    assert 0 < said["codes_changed"] <= record["rows"]
    assert 0 < said["bits_changed"] <= 1
    # Codes of a kept model never change, and nothing else tells that they were added to.
    model, now = SADIH.load(latest / "model.sadih"), CodeStore.open(latest / "codes.zarr")
    database = FeatureStore.open(place / "runs" / "database.zarr")
    queries = FeatureStore.open(place / "runs" / "queries.zarr")
    assert model.fingerprint_ == name == record["fingerprints"]["model"]
    np.testing.assert_array_equal(now.read("codes")[: len(codes)], codes)
    np.testing.assert_array_equal(now.read("codes"), model.transform(database.read("features")))
    assert before.refresh().n_rows == len(codes)
    built = export_faiss(now, place / "built.faiss")
    assert (latest / "index.faiss").read_bytes() == built.read_bytes()
    found = evaluate_model(model, queries, database, max_queries=100, class_folds=0).known
    told = json.loads((latest / "metrics.json").read_text())["lengths"][0]
    for protocol in ("learned", "encoded", "fresh"):
        assert told[protocol] == found[protocol].to_dict()
    unseen = record["metrics"]["lengths"]["16"]["unseen"]  # is not of this model's codes
    assert unseen == first["metrics"]["lengths"]["16"]["unseen"]
    assert stage(record, "evaluate")["measured_at"] == first["rows"]
    # Whoever repeats it has nothing to do; and the statistics are those of all rows.
    assert run(here, place, *words)["outcome"] == "nothing to do"
    here("verify", place / "runs")
    again = run(here, place, *words, "--set", "model.refresh=always")
    assert stage(again, "fit")["rows"] == 0
    refreshed = SADIH.load(latest / "model.sadih")
    whole = SADIH(16, anchors=None, n_init=1, block_rows=512).fit(database)
    assert refreshed.fingerprint_ != name
    assert refreshed.statistics_ is not None
    assert whole.statistics_ is not None
    np.testing.assert_array_equal(refreshed.statistics_.counts, whole.statistics_.counts)
    gram = whole.statistics_.gram  # products of blocks are formed in float32
    np.testing.assert_allclose(refreshed.statistics_.gram, gram, rtol=1e-5, atol=1e-3)
    assert stage(again, "encode")["rows"] == again["rows"]


def test_a_better_model_takes_its_place(here: Here, place: Path) -> None:
    words = ("--set", "model.refresh=when-better", "--set", "model.n_bits=8")
    drop(place / "incoming", "a", 60, 1, spread=0.5)  # too few to learn from
    run(here, place, *words)
    drop(place / "incoming", "b", 1500, 2, spread=0.5)
    record = run(here, place, *words)
    said = record["refresh"]
    assert said["decision"] == "refreshed", said
    assert said["gain"]["held-out rows"]["gain"] >= 0.01
    assert stage(record, "encode")["rows"] == record["rows"]
    assert not list((place / "runs" / "artefacts").glob("fit-*/candidate.sadih"))
    assert run(here, place, *words)["outcome"] == "nothing to do"


def test_never_reads_no_row_and_other_parameters_are_another_model(here: Here, place: Path) -> None:
    never = ("--set", "model.refresh=never")
    first = run(here, place, *never)
    drop(place / "incoming", "b", 300, 2, spread=0.5)
    second = run(here, place, *never)
    assert (decided(second), stage(second, "fit")["rows"]) == ("kept", 0)
    assert second["fingerprints"]["model"] == first["fingerprints"]["model"]
    assert stage(second, "encode")["rows"] == second["rows"] - first["rows"]
    out, _ = here("run", place / "pipeline.toml", "--plan", *PLAIN, *never)
    assert "to do" not in out
    shorter = run(here, place, *never, "--set", "model.n_bits=8")
    assert decided(shorter) == "refreshed"
    assert stage(shorter, "fit")["rows"] == second["rows"] - first["rows"]  # caught up with


def test_what_was_refused_or_rolled_back_is_not_what_is_kept(here: Here, place: Path) -> None:
    first = run(here, place, *KEPT)
    drop(place / "incoming", "b", 300, 2, spread=0.5)
    gate = ("--set", "gate.map_min=0.9999999")
    assert run(here, place, *KEPT, *gate, code=3)["outcome"] == "refused"
    codes = CodeStore.open(place / "runs" / "latest" / "codes.zarr")
    assert codes.n_rows == first["rows"]  # what is the latest stays as it is
    second = run(here, place, *KEPT)
    assert (second["outcome"], decided(second)) == ("complete", "kept")
    directory = RunDirectory(place / "runs")
    here("rollback", place / "runs")
    assert directory.latest() == first["id"]
    assert "rolled back" in run(here, place, *KEPT)["remarks"][0]


def test_ids_and_class_names_that_change_reach_codes_and_index(here: Here, place: Path) -> None:
    faiss = pytest.importorskip("faiss")
    names, file = place / "names.txt", place / "incoming" / "a.npz"
    words = ("--set", f"source.class_names={names}", "--set", "source.on_change=rebuild")
    words += ("--set", "export.index=flat", "--set", "model.refresh=never")
    with np.load(file) as held:
        rows = dict(held)
    n_classes = int(rows["labels"].max()) + 1
    for first_id, step in ((0, 1), (10**6, -1)):
        names.write_text("\n".join([f"class {k}" for k in range(n_classes)][::step]))
        np.savez(file, **rows, ids=np.arange(1500) + first_id)
        run(here, place, *words)
        latest, database = place / "runs" / "latest", place / "runs" / "database.zarr"
        codes, held_rows = CodeStore.open(latest / "codes.zarr"), FeatureStore.open(database)
        index = faiss.read_index_binary(str(latest / "index.faiss"))
        ids = held_rows.read("ids")
        assert ids.min() >= first_id
        np.testing.assert_array_equal(codes.read("ids"), ids)
        np.testing.assert_array_equal(faiss.vector_to_array(index.id_map), ids)
        assert codes.class_names == held_rows.class_names
