"""A run and the commands of its stages make the same things, by the same rules of reuse."""

import json
from pathlib import Path
from typing import Any

import pytest

from sadih_dask import CodeStore, FeatureStore
from sadih_dask.runs.directory import RunDirectory
from tests.support.datasets import configuration, drop
from tests.support.processes import Here

MODEL = ("--anchors", 50, "--n-init", 1, "--block-rows", 512)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    drop(tmp_path / "incoming", "a", 1500, 1)
    configuration(tmp_path)
    return tmp_path


def by_run(here: Here, place: Path, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(here("run", place / "pipeline.toml", "--json", *words)[0])
    return found


def by_commands(here: Here, place: Path) -> list[str]:
    """Ingest, fit, encode, evaluate and export; return what each said."""
    store, queries, model, codes = (place / name for name in ("d", "q", "m.sadih", "c"))
    sources = (place / "incoming" / "*.npz", store, "--append", "--hold-out", 0.1)
    words: tuple[tuple[Any, ...], ...] = (
        ("ingest", *sources, "--queries", queries),
        ("fit", store, model, "--bits", 16, *MODEL),
        ("encode", store, model, codes, "--overwrite"),
        ("evaluate", model, queries, store, "--codes", codes, "--bits", 8, "-o", place / "out"),
        ("export", codes, place / "index", "--overwrite"),
    )
    return [here(*one, "-q")[0] for one in words]


def metrics(path: Path) -> dict[str, Any]:
    """Without where the stores are, and how long it took."""
    found: dict[str, Any] = json.loads(path.read_text())
    lengths = [{**length, "seconds": None} for length in found["lengths"]]
    return {**found, "queries": None, "database": None, "lengths": lengths}


def test_the_same_stores_model_codes_metrics_and_index(here: Here, place: Path) -> None:
    latest, stores = place / "runs" / "latest", place / "runs"
    words = ("--set", "evaluation.bits=8", "--set", "export.index=flat")
    for further in ((), ("b",)):
        for name in further:
            drop(place / "incoming", name, 700, 2)
        record = by_run(here, place, *words)
        said = by_commands(here, place)
        for mine, other in (("d", "database.zarr"), ("q", "queries.zarr")):
            own, made = FeatureStore.open(place / mine), FeatureStore.open(stores / other)
            assert own.fingerprint() == made.fingerprint()
            assert own.class_names == made.class_names
        codes = (CodeStore.open(place / "c"), CodeStore.open(latest / "codes.zarr"))
        assert codes[0].fingerprint() == codes[1].fingerprint()
        assert codes[0].model == codes[1].model == record["fingerprints"]["model"]
        assert metrics(place / "out" / "metrics.json") == metrics(latest / "metrics.json")
        assert (place / "index").read_bytes() == (latest / "index.faiss").read_bytes()
        fit = next(stage for stage in record["stages"] if stage["name"] == "fit")
        assert f"({fit['rows']:,} read now, {fit['rows_known']:,} known before)" in said[1]
    assert fit["rows_known"] > 0


def test_the_same_choice_of_parameters(here: Here, place: Path) -> None:
    search = "[model.search]\nalpha = [0.01, 1.0]\nbeta = [0.1]\nn_bits = [8, 12]\nfolds = 3\n"
    configuration(place, search)
    by_run(here, place)
    grid = ("--bits", 8, "--bits", 12, "--alpha", 0.01, "--alpha", 1, "--beta", 0.1, "--folds", 3)
    store, model = place / "runs" / "database.zarr", place / "m.sadih"
    here("tune", store, model, *grid, *MODEL, "-o", place / "out", "-q")
    made = place / "runs" / "latest" / "tuning" / "tuning.json"
    mine, other = (json.loads(path.read_text()) for path in (place / "out" / "tuning.json", made))
    assert {**mine, "seconds": 0} == {**other, "seconds": 0}
    assert model.read_bytes() == (place / "runs" / "latest" / "model.sadih").read_bytes()


def test_verifying_a_run_directory_is_verifying_what_it_names(here: Here, place: Path) -> None:
    record = by_run(here, place, "--set", "export.index=flat")
    runs = RunDirectory(place / "runs")
    assert "intact" in here("verify", runs.url)[0]
    (encoded,) = runs.artefacts("encode")
    chunk = next((place / "runs" / encoded.folder / "codes.zarr").rglob("c*0"))
    chunk.write_bytes(chunk.read_bytes()[:-1])
    said = [here("verify", url, "-q", code=1)[0] for url in (runs.url, encoded.url("codes.zarr"))]
    assert said[0] == said[1]
    runs.files.delete(encoded.folder)
    assert encoded.folder in here("verify", runs.url, "-q", code=1)[0]
    _, err = here("rollback", runs.url, record["id"], code=1)
    assert "cannot become the latest" in err


def test_a_refusal_before_the_first_stage_leaves_a_record(here: Here, place: Path) -> None:
    by_run(here, place)
    drop(place / "incoming", "a", 1400, 7)
    here("run", place / "pipeline.toml", code=1)
    *_, record = json.loads(here("runs", place / "runs", "--json")[0])
    assert record["outcome"] == "failed"
    assert "a.npz" in record["error"]
