"""The command line from stores to neighbours, metrics, figures and an index, on real digits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from sklearn.datasets import load_digits

from sadih_dask import SADIH, CodeStore, FeatureStore, evaluate_model, search
from sadih_dask.jobs.evaluate import Collection, look_closer, measure
from sadih_dask.report.code_statistics import BitCounts
from sadih_dask.retrieval.evaluation import sample_queries
from tests.support.processes import Here

ENVIRONMENT = {
    **os.environ,
    "DASK_SCHEDULER_ADDRESS": "",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONWARNINGS": "error",
    "COLUMNS": "100",
}
COMMAND = """
import sys
sys.modules.update(dict.fromkeys({hidden}))  # None: not to be found
from sadih_dask.cli import main
main()
"""
N_DATABASE, N_QUERIES = 1000, 150


def sadih(*words: object, code: int = 0, hidden: tuple[str, ...] = ()) -> tuple[str, str]:
    """Run a command in a process of its own, from which some packages are missing."""
    program = COMMAND.format(hidden=list(hidden))
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
        timeout=300,
    )
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits with thumbnails: db.zarr has integer ids, q.zarr has text, plain.zarr has features."""
    place = tmp_path_factory.mktemp("retrieval")
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    parts = {"db": order[:N_DATABASE], "q": order[N_DATABASE : N_DATABASE + N_QUERIES]}
    ids = {"db": 7 * np.arange(N_DATABASE) + 5000, "q": [f"q{k:03}" for k in range(N_QUERIES)]}
    for name, rows in parts.items():
        arrays = {
            "x": digits.data[rows],
            "y": digits.target[rows],
            "t": (digits.images[rows] * 15).astype(np.uint8),
            "i": np.asarray(ids[name]),
        }
        for letter, array in arrays.items():
            np.save(place / f"{name}-{letter}.npy", array)
        sadih(
            *("ingest", place / f"{name}-x.npy", place / f"{name}.zarr", "--quiet"),
            *("--labels", place / f"{name}-y.npy", "--ids", place / f"{name}-i.npy"),
            *("--thumbnails", place / f"{name}-t.npy", "--chunk-rows", 300),
        )
    FeatureStore.create(place / "plain.zarr", digits.data[parts["q"]])
    quick = ("--anchors", "none", "--n-init", 2, "--max-iter", 3, "--encoder", "ridge")
    sadih("fit", place / "db.zarr", place / "m.sadih", "--bits", 12, *quick, "-q")
    model = SADIH.load(place / "m.sadih")
    for name in parts:
        model.encode(FeatureStore.open(place / f"{name}.zarr"), place / f"{name}-codes.zarr")
    return place


@pytest.fixture(scope="module")
def model(folder: Path) -> SADIH:
    return SADIH.load(folder / "m.sadih")


@pytest.fixture(scope="module")
def evaluated(folder: Path) -> tuple[Path, str]:
    """An evaluation with everything, as a process: its folder and what it printed."""
    target = folder / "not" / "yet" / "there"
    out, err = sadih(
        *("evaluate", folder / "m.sadih", folder / "q.zarr", folder / "db.zarr", "-o", target),
        *("--codes", folder / "db-codes.zarr", "--bits", 8, "--bits", 24),
    )
    assert err.count("(100%)") == 2  # one display for all lengths, another for the page
    assert "Evaluating: 3,000 of 3,000 rows (100%)" in err
    return target, out


# -- search ---------------------------------------------------------------------------------------


def test_search_shows_and_writes_what_python_finds(folder: Path) -> None:
    target = folder / "finds.parquet"
    codes, queries = folder / "db-codes.zarr", folder / "q-codes.zarr"
    out, err = sadih("search", codes, queries, "--k", 20, "-o", target, "--show", 2, "--threads", 2)
    expected = search(CodeStore.open(codes), CodeStore.open(queries), 20)
    first, second = (line for line in out.splitlines() if line.lstrip().startswith("q0"))
    shown = re.findall(r"(\d+) \((\d+)\)", first)
    assert first.lstrip().startswith("q000  ")
    assert second.lstrip().startswith("q001  ")
    assert 3 <= len(shown) < 20
    assert [(int(i), int(d)) for i, d in shown] == list(
        zip(expected.ids[0][: len(shown)], expected.distances[0], strict=False)
    )
    assert f"... {20 - len(shown)} more" in first
    assert all(len(line) <= 100 for line in out.splitlines()[:4])
    assert f"{N_QUERIES - 2} queries more" in out
    assert "150 queries, 3,000 finds in 1,000 codes." in out
    assert "Searching: 1,000 of 1,000 rows (100%)" in err
    table = pq.read_table(target).to_pydict()
    assert table["id"] == expected.ids.reshape(-1).tolist()
    assert table["distance"] == expected.distances.reshape(-1).tolist()
    assert table["query"][:21] == ["q000"] * 20 + ["q001"]


def test_queries_may_be_features(folder: Path, here: Here, tmp_path: Path) -> None:
    """Hashed with the model, a store and a file of features find what their codes find."""
    codes = CodeStore.open(folder / "db-codes.zarr")
    expected = search(codes, CodeStore.open(folder / "q-codes.zarr"), 7)
    for queries in ("q.zarr", "plain.zarr", "q-x.npy"):
        target = tmp_path / f"{queries}.npz"
        out, _ = here(
            *("search", codes.url, folder / queries, "--model", folder / "m.sadih"),
            *("-k", 7, "-o", target, "--show", 1, "-q", "--symmetric"),
        )
        with np.load(target) as found:
            np.testing.assert_array_equal(found["ids"], expected.ids)
            np.testing.assert_array_equal(found["distances"], expected.distances)
        name = "q000" if queries == "q.zarr" else "0"
        assert re.search(rf"^ *{name}  {expected.ids[0][0]} \(", out, re.MULTILINE)


def test_queries_may_be_any_file_of_rows(folder: Path, here: Here, tmp_path: Path) -> None:
    """A table with its own ids, and one vector."""
    rows, codes = np.load(folder / "q-x.npy")[:3], folder / "db-codes.zarr"
    names = ["first", "second", "third"]
    pq.write_table(pa.table({"id": names, "emb": list(rows)}), tmp_path / "q.parquet")
    np.save(tmp_path / "one.npy", rows[0])
    expected = SADIH.load(folder / "m.sadih").search(CodeStore.open(codes), rows, 4).ids
    for queries, n in (("q.parquet", 3), ("one.npy", 1)):
        target = tmp_path / f"{queries}.finds.npz"
        here(
            *("search", codes, tmp_path / queries, "--model", folder / "m.sadih"),
            *("-k", 4, "-o", target, "-q"),
        )
        with np.load(target) as found:
            np.testing.assert_array_equal(found["ids"], expected[:n])
            assert queries == "one.npy" or found["query_ids"].tolist() == names


def test_search_within_a_radius(folder: Path, here: Here, tmp_path: Path) -> None:
    codes, queries = folder / "db-codes.zarr", tmp_path / "queries.zarr"
    anywhere = np.arange(0, 4096, 100, dtype="<u2")[:, None].view(np.uint8)
    CodeStore.create(queries, anywhere, n_bits=12, model=CodeStore.open(codes).model)
    words = ("--radius", 1, "-o", tmp_path / "near.zarr", "--show", 50, "-q")
    out, _ = here("search", codes, queries, *words)
    expected = search(CodeStore.open(codes), CodeStore.open(queries), radius=1)
    group = zarr.open_group(tmp_path / "near.zarr", mode="r")
    np.testing.assert_array_equal(group["ids"][:], expected.ids)
    np.testing.assert_array_equal(group["lims"][:], expected.lims)
    empty = int(np.sum(expected.counts == 0))
    assert 0 < empty < len(anywhere)
    assert out.count(" none\n") == empty
    limited = ("--radius", 12, "--max-results", 50, "-q")
    _, err = here("search", codes, folder / "q-codes.zarr", *limited, code=1)
    assert "more than 50 items lie within radius 12" in err
    assert "a larger --max-results" in err


def test_scores_of_features_weight_the_bits(
    folder: Path, model: SADIH, here: Here, tmp_path: Path
) -> None:
    codes = CodeStore.open(folder / "db-codes.zarr")
    features = np.load(folder / "q-x.npy")
    expected = search(codes, model.transform(features), 5, projections=model.project(features))
    plain = search(codes, model.transform(features), 5)
    assert (expected.ids != plain.ids).any()
    for queries in ("q.zarr", "q-x.npy"):
        target = tmp_path / f"{queries}.npz"
        words = ("--model", folder / "m.sadih", "-k", 5, "-q", "-o", target)
        out, _ = here("search", codes.url, folder / queries, *words)
        assert "id (weighted Hamming distance)" in out
        with np.load(target) as found:
            np.testing.assert_array_equal(found["ids"], expected.ids)
            np.testing.assert_array_equal(found["distances"], expected.distances)
        here("search", codes.url, folder / queries, *words, "--symmetric", "--overwrite")
        with np.load(target) as found:
            np.testing.assert_array_equal(found["ids"], plain.ids)


def test_results_are_replaced_on_demand_only(folder: Path, here: Here, tmp_path: Path) -> None:
    words = ("search", folder / "db-codes.zarr", folder / "q-codes.zarr", "-q", "-k", 3)
    target = tmp_path / "finds.npz"
    here(*words, "-o", target)
    before = target.read_bytes()
    _, err = here(*words, "-o", target, code=1)
    assert "is there already. Choose another name, or replace it with --overwrite" in err
    assert target.read_bytes() == before
    here(*words, "-o", target, "--overwrite", "--show", 0)


# -- evaluate -------------------------------------------------------------------------------------


def test_the_json_metrics_are_those_of_python(
    evaluated: tuple[Path, str], folder: Path, model: SADIH
) -> None:
    target, printed = evaluated
    found = json.loads((target / "metrics.json").read_text())
    assert [length["n_bits"] for length in found["lengths"]] == [8, 12, 24]
    assert found["model"] == model.fingerprint_
    stores = FeatureStore.open(folder / "q.zarr"), FeatureStore.open(folder / "db.zarr")
    for length in found["lengths"]:
        sister = SADIH.load(folder / "m.sadih").set_params(n_bits=length["n_bits"]).refit()
        expected = evaluate_model(sister, *stores)
        measured = {k: v for k, v in length.items() if k not in ("n_bits", "seconds")}
        assert measured == json.loads(json.dumps(expected.to_dict()))
        values = "".join(
            f"{e.map:9.4f} ± {e.standard_errors['MAP']:.4f}" for e in expected.known.values()
        )
        assert f"{length['n_bits']:>6}{values}" in printed
        assert (length["seconds"] is None) == (length["n_bits"] == 12)
    own = evaluate_model(model, *stores)
    assert repr(own) in printed
    assert "mean over all orders of ties" in printed


def test_the_report_stands_alone(evaluated: tuple[Path, str]) -> None:
    target, printed = evaluated
    page = (target / "report.html").read_text()
    for heading in (
        "Quality against code length",
        "Precision and recall",
        "Precision of the first results",
        "Distances of similar and dissimilar pairs",
        "Queries and what they find",
        "Course of the objective",
        "Balance and correlation of bits",
    ):
        assert heading in page
    without = page.replace("http://www.w3.org/", "")  # names of XML vocabularies
    assert not re.search(
        r"https?://|<script|<link(?! rel=\"icon\" href=\"data:)|@import|src=\"(?!data:)", without
    )
    listed = {path.name for path in (target / "figures").iterdir()}
    drawn = "map-bits precision-recall precision-retrieved pair-distances neighbours objective bits"
    names = [*drawn.split(), "openness"]
    assert listed == {f"{name}.{kind}" for name in names for kind in ("svg", "pdf")}
    for path in ("metrics.json", "report.html", "figures"):
        assert str(target / path) in printed


def test_evaluation_without_pictures_or_a_database(
    folder: Path, model: SADIH, here: Here, tmp_path: Path
) -> None:
    """Learned codes alone need no database; rows without thumbnails are just not shown."""
    x, y = np.load(folder / "q-x.npy"), np.load(folder / "q-y.npy")
    queries = FeatureStore.create(tmp_path / "q.zarr", x, y)
    out, _ = here("evaluate", folder / "m.sadih", queries.url, "-o", tmp_path / "out", "-q")
    assert out.startswith(repr(evaluate_model(model, (x, y))))
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Balance and correlation" in page
    assert "Queries and what they find" not in page
    assert "Quality against code length" not in page
    # A database that was not learned from.
    rows = Collection(queries, FeatureStore.create(tmp_path / "db.zarr", x[:100], y[:100]))
    seen = look_closer(model, rows, measure(model, rows).lengths)
    assert seen.neighbours is None
    assert seen.bits is not None
    same = BitCounts.of_block(model.transform(x[:100]), 12)
    np.testing.assert_array_equal(seen.bits.both, same.both)


def test_some_of_the_queries(folder: Path, model: SADIH, here: Here, tmp_path: Path) -> None:
    out, _ = here(
        *("evaluate", folder / "m.sadih", folder / "q.zarr", folder / "db.zarr"),
        *("--max-queries", 20, "-o", tmp_path / "out", "-q"),
    )
    stores = FeatureStore.open(folder / "q.zarr"), FeatureStore.open(folder / "db.zarr")
    assert out.startswith(repr(evaluate_model(model, *stores, max_queries=20)))
    (length,) = json.loads((tmp_path / "out" / "metrics.json").read_text())["lengths"]
    sizes = length["encoded"]["n_queries"], length["encoded"]["n_drawn_from"]
    assert sizes == (20, stores[0].n_rows)
    # What is drawn are the queries that were looked up.
    rows = Collection(*stores)
    lengths = measure(model, rows, max_queries=20).lengths
    seen = look_closer(model, rows, lengths)
    drawn = stores[0].take("thumbnails", sample_queries(stores[0].n_rows, 20)).tolist()
    assert seen.neighbours is not None
    assert all(picture in drawn for picture in seen.neighbours.queries.tolist())


def test_json_is_all_that_is_on_stdout(folder: Path, model: SADIH, here: Here) -> None:
    out, err = here("evaluate", folder / "m.sadih", folder / "q.zarr", "--json", "-q")
    found = json.loads(out)
    expected = evaluate_model(model, FeatureStore.open(folder / "q.zarr"))
    assert found["lengths"][0]["learned"] == expected.learned.to_dict()
    assert found["lengths"][0]["encoded"] is None
    assert err == ""


def test_several_labels_a_row(here: Here, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    y = (rng.random((400, 5)) < 0.3).astype(np.uint8)
    y[np.arange(400), rng.integers(0, 5, 400)] = 1
    x = y @ rng.normal(size=(5, 12)) + rng.normal(scale=0.3, size=(400, 12))
    pictures = rng.integers(0, 255, (400, 6, 6, 3), dtype=np.uint8)
    names = ["sea", "sand", "sun", "sky", "ship"]
    for name, part in (("db", slice(0, 300)), ("q", slice(300, 400))):
        FeatureStore.create(
            tmp_path / f"{name}.zarr",
            *(x[part], y[part]),
            thumbnails=pictures[part],
            class_names=names,
            chunk_rows=64,
        )
    SADIH(n_bits=16, anchors=None, n_init=1, max_iter=2).fit(x[:300], y[:300]).save(
        tmp_path / "m.sadih"
    )
    here(
        *("evaluate", tmp_path / "m.sadih", tmp_path / "q.zarr", tmp_path / "db.zarr"),
        *("-o", tmp_path / "out", "-q"),
    )
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Queries and what they find" in page
    assert "sand" in page


# -- export ---------------------------------------------------------------------------------------


def test_faiss_reads_the_index_and_agrees(folder: Path, tmp_path: Path) -> None:
    codes = CodeStore.open(folder / "db-codes.zarr")
    out, _ = sadih("export", codes.url, tmp_path / "codes.faiss")
    assert "faiss, 1,000 codes of 12 bits, packed in little bit order." in out
    index = faiss.read_index_binary(str(tmp_path / "codes.faiss"))
    queries = CodeStore.open(folder / "q-codes.zarr")
    distances, ids = index.search(queries.read("codes"), 10)
    expected = search(codes, queries, 10)
    np.testing.assert_array_equal(distances, expected.distances)
    every = search(codes, queries, N_DATABASE)  # FAISS orders ties as it likes
    for q in range(N_QUERIES):
        place = {int(i): int(d) for i, d in zip(every.ids[q], every.distances[q], strict=True)}
        assert [place[int(i)] for i in ids[q]] == distances[q].tolist()


def test_other_kinds_of_index(folder: Path, here: Here, tmp_path: Path) -> None:
    codes = folder / "db-codes.zarr"
    for kind, form in (("ivf", ("--lists", 8, "--probe", 8)), ("multihash", ("--hashes", 2))):
        target = tmp_path / f"{kind}.faiss"
        here("export", codes, target, "--kind", kind, *form, "-q")
        assert faiss.read_index_binary(str(target)).ntotal == N_DATABASE
    _, err = here("export", codes, tmp_path / "ivf.faiss", "-q", code=1)
    assert "replace it with --overwrite" in err
    shape = ("--kind", "multihash", "--hashes", 3, "--hash-bits", 6)
    _, err = here("export", codes, tmp_path / "no.faiss", *shape, code=1)
    assert "Use fewer tables (--hashes) or shorter keys (--hash-bits)" in err
    assert not (tmp_path / "no.faiss").exists()


# -- what goes wrong ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strange(folder: Path) -> Path:
    """Another model, its codes, and things that are nothing of ours."""
    other = SADIH.load(folder / "m.sadih").set_params(encoder="orthogonal").refit()
    other.save(folder / "other.sadih")
    model, database = SADIH.load(folder / "m.sadih"), FeatureStore.open(folder / "db.zarr")
    assert other.fingerprint_ != model.fingerprint_
    other.encode(database, folder / "other-codes.zarr")
    model.encode(database, folder / "learned.zarr", learned=True)
    (folder / "text.npy").write_text("this is not an array")
    model.save(folder / "light.sadih", statistics=False)
    return folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("search db-codes.zarr other-codes.zarr", "codes of two models cannot be compared"),
        ("search other-codes.zarr q.zarr --model m.sadih", "two models cannot be compared"),
        ("search db-codes.zarr q.zarr", "is a feature store. Give the model that hashes them"),
        ("search db-codes.zarr q-x.npy", "holds features. Give the model"),
        ("search db-codes.zarr q-codes.zarr --model m.sadih", "needs no hashing"),
        ("search db-codes.zarr text.npy --model m.sadih", "is no .npy file of numbers"),
        ("search db-codes.zarr none.npy --model m.sadih", "No such file"),
        ("search db-codes.zarr none.zarr", "none.zarr does not exist"),
        ("search db-codes.zarr none.parquet --model m.sadih", "none.parquet does not exist"),
        ("fit q-x.npy x.sadih", "q-x.npy is not a store.*be ingested"),
        ("search db-codes.zarr q-codes.zarr -o finds.csv", "must end in one of .parquet"),
        ("search db-codes.zarr q-codes.zarr -o no/finds.npz", "is not a folder; create it first"),
        ("search db.zarr q-codes.zarr", "holds 'sadih-features', expected 'sadih-codes'"),
        ("evaluate m.sadih plain.zarr db.zarr", "plain.zarr has no labels"),
        ("evaluate m.sadih q.zarr plain.zarr", "plain.zarr has no labels"),
        ("evaluate m.sadih q-codes.zarr", "holds 'sadih-codes', expected 'sadih-features'"),
        (
            "evaluate m.sadih q.zarr db.zarr --codes other-codes.zarr",
            "Encode the rows with this one",
        ),
        (
            "evaluate m.sadih q.zarr db.zarr --codes q-codes.zarr",
            "does not hold codes of the rows of",
        ),
        ("evaluate m.sadih q.zarr db.zarr --codes learned.zarr", "holds learned codes"),
        ("evaluate light.sadih q.zarr", "saved without statistics"),
        ("evaluate none.sadih q.zarr -o made", "none.sadih does not exist"),
        ("export q.zarr x.faiss", "holds 'sadih-features', expected 'sadih-codes'"),
        ("export q-codes.zarr no/x.faiss", "is not a folder; create it first"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    words: str, said: str, strange: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(strange)
    out, err = here(*words.split(), "-q", code=1)
    assert out == ""
    assert err.startswith("sadih: ")
    assert err.count("\n") == 1
    assert re.search(said, err), err
    assert not Path("made").exists()
    assert not Path("x.faiss").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("search a b --k 0", "0 is not in the range"),
        ("search a b --k 5 --radius 2", "leave out --k"),
        ("evaluate m.sadih q.zarr --codes c.zarr", "give both"),
        ("evaluate m.sadih", "Missing argument 'QUERIES'"),
        ("evaluate m.sadih q.zarr -b 4096", "4096 is not in the range 1<=x<=2048"),
        ("export c.zarr i.faiss --kind tree", "'tree' is not one of"),
    ],
)
def test_wrong_usage(words: str, said: str, here: Here) -> None:
    _, err = here(*words.split(), code=2)
    assert said in err


def test_a_missing_extra_is_named(folder: Path, tmp_path: Path) -> None:
    words: tuple[Any, ...] = ("evaluate", folder / "m.sadih", folder / "q.zarr", "-q")
    out, err = sadih(*words, "-o", tmp_path / "out", hidden=("matplotlib",))
    assert "MAP" in out
    assert "No figures and no report" in err
    assert "pip install 'sadih-dask[report]'" in err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["metrics.json"]
    words = ("export", folder / "q-codes.zarr", tmp_path / "x.faiss", "-q")
    _, err = sadih(*words, code=1, hidden=("faiss",))
    assert "pip install 'sadih-dask[faiss]'" in err
    assert not (tmp_path / "x.faiss").exists()
