"""`sadih tune`: a search from a store to a model file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute.run import reporting
from sadih_dask.jobs.tune import tune
from tests.support.datasets import rows
from tests.support.models import counted_reads, of_features
from tests.support.processes import Here

QUICK = ("--anchors", "none", "--n-init", 2, "--max-iter", 2, "--block-rows", 128)
SEARCH = ("--bits", 4, "--bits", 8, "--alpha", 0.01, "--alpha", 5, "--beta", 0.1, "--beta", 10)


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    return FeatureStore.create(tmp_path / "s.zarr", *rows(1280, 5), chunk_rows=128)


def test_a_table_a_model_and_files(tmp_path: Path, here: Here, store: FeatureStore) -> None:
    model, folder = tmp_path / "m.sadih", tmp_path / "out"
    words = (*SEARCH, "--folds", 3, "--queries", 50, *QUICK, "--seed", 4, "-o", folder)
    with counted_reads() as counts:
        out, err = here("tune", store.url, model, *words)
    assert of_features(counts) == dict.fromkeys(range(len(store.chunks)), 1)
    assert "4 bits" in out
    assert "8 bits" in out
    assert "alpha 5" in out
    assert "best: n_bits=" in out
    assert f"{model}: " in out
    assert "1,280 rows" in out
    assert "Scanning" in err
    assert "Solving: 24 of 24 solves" in err

    found = json.loads((folder / "tuning.json").read_text())
    assert len(found["results"]) == 8
    assert all(len(row["scores"]) == 3 for row in found["results"])
    assert (found["n_folds"], found["n_queries"], found["n_rows"]) == (3, 50, 1280)
    best = max(found["results"], key=lambda row: row["mean"])
    assert found["best"] == {"parameters": best["parameters"], "score": best["mean"]}
    assert best["rank"] == 1
    assert sum(row["best_of_length"] for row in found["results"]) == 2
    assert (folder / "figures" / "surface.svg").stat().st_size > 1000
    assert (folder / "figures" / "surface.pdf").exists()

    written = SADIH.load(model)
    own = {"anchors": None, "n_init": 2, "max_iter": 2, "block_rows": 128, "random_state": 4}
    assert written.fingerprint_ == SADIH(**own, **best["parameters"]).fit(store).fingerprint_
    assert written.fingerprint_ == found["model"]
    assert found["parameters"] == written.get_params()
    assert not (tmp_path / "m.sadih.scan").exists()


def test_a_model_that_is_there_is_only_replaced_if_that_was_said(
    tmp_path: Path, here: Here, store: FeatureStore
) -> None:
    model = tmp_path / "m.sadih"
    model.write_text("mine")
    words = (store.url, model, "--bits", 4, "--alpha", 1, "--beta", 1, "--folds", 2, *QUICK, "-q")
    _, err = here("tune", *words, code=1)
    assert "is there already" in err
    assert "--overwrite" in err
    assert model.read_text() == "mine"
    out, err = here("tune", *words, "--overwrite")
    assert SADIH.load(model).n_bits == 4
    assert err == ""
    assert out.startswith("n_bits  mean")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--folds", 1), "--folds"),
        (("--alpha", -1), "--alpha"),
        (("--bits", 0), "--bits"),
        (("--queries", "many"), "--queries"),
    ],
)
def test_wrong_words(
    tmp_path: Path, here: Here, store: FeatureStore, words: Any, message: str
) -> None:
    _, err = here("tune", store.url, tmp_path / "m", *words, code=2)
    assert message in err


def test_a_place_that_cannot_be_written_is_found_first(
    tmp_path: Path, here: Here, store: FeatureStore
) -> None:
    with counted_reads() as counts:
        _, err = here("tune", store.url, tmp_path / "no" / "m.sadih", code=1)
    assert not of_features(counts)
    assert "make the folder of m.sadih first" in err


def test_the_same_for_pipelines(tmp_path: Path, store: FeatureStore) -> None:
    shown: list[tuple[Any, ...]] = []

    class Shown:
        def begin(self, *words: str, brief: bool = False) -> None:
            shown.append((*words, "brief") if brief else words)

        def __call__(self, done: int, total: int) -> None:
            shown.append((done, total))

    own = {"anchors": None, "n_init": 2, "max_iter": 2, "n_bits": 6}
    grid = {"ridge": [1e-5, 0.1], "loss": ["l21", "l1"]}
    target = tmp_path / "m.sadih"
    with reporting(Shown()):
        tuned = tune(store, target, own, grid, n_folds=2, n_queries=30)
    assert SADIH.load(target).fingerprint_ == tuned.model.fingerprint_
    scanned = shown.index(("Solving", "solves"))
    assert shown[scanned - 1] == (1280, 1280)
    assert {total for _, total in shown[:scanned]} == {1280}
    solved = next(k for k in range(scanned, len(shown)) if "brief" in shown[k])
    assert {total for _, total in shown[scanned + 1 : solved]} == {8}
    assert shown[solved - 1] == (8, 8)
    stages = [words for words in shown[solved:] if "brief" in words]
    assert [words[0] for words in stages] == [
        "Starting codes of 5 label groups",
        "Solving",
        "Choosing a hash function",
    ]
    for stage, after in zip(stages, [*stages[1:], None], strict=True):
        first = shown.index(stage) + 1
        last = len(shown) if after is None else shown.index(after)
        done = [step for step, _ in shown[first:last]]
        assert done == sorted(done)
        assert done[-1] == shown[last - 1][1]  # each ends with all that it has announced
    found = json.loads(json.dumps(tuned.document()))
    assert [row["parameters"]["n_bits"] for row in found["results"]] == [6] * 4
    assert tuned.model.get_params()["ridge"] in grid["ridge"]
    assert found["n_rows"] == 1280
    assert [drawing.name for drawing in tuned.drawings()] == ["surface"]
    assert np.isclose(tuned.search.best_score_, max(row["mean"] for row in found["results"]))
