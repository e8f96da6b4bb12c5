"""The stages of a small job as commands, and what they leave as one hash.

The stages are those that a user runs: ``ingest``, ``fit``, ``encode``, ``export``, ``evaluate``
with its report, ``search``, ``tune``, and ``run``, which is most of them in one. Every stage reads
what lies in the folder `sources` or was made by stages that it needs, and writes into `target`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sadih_dask import CodeStore, FeatureStore
from sadih_dask.jobs.inspect import open_store
from sadih_dask.model.model_file import read_model, write_model
from tests.support.models import GIVEN

OUTPUTS = {
    "ingest": "s.zarr",
    "fit": "m.sadih",
    "encode": "c.zarr",
    "export": "c.faiss",
    "evaluate": "report",
    "search": "finds.npz",
    "tune": "tuned.sadih",
    "run": "run",
}
STAGES = tuple(OUTPUTS)
_CODES = ("ingest", "fit", "encode")
NEEDS = {"ingest": (), "run": (), "fit": ("ingest",), "tune": ("ingest",), "encode": _CODES[:2]}
"""Stages that must be done before one; all others need codes."""


@dataclass(frozen=True)
class Size:
    """How large a job is."""

    n_rows: int = 1500
    n_features: int = 8
    anchors: int = 20
    chunk_rows: int = 64
    block_rows: int = 64
    n_queries: int = 40
    bits: int = 16


@dataclass(frozen=True)
class Job:
    """Where a job reads and writes; ``report``: with figures and a page, which take seconds."""

    sources: Path
    target: Path
    size: Size = Size()
    report: bool = False

    @property
    def run(self) -> Run:
        """The whole of it as one run, with a page if there is to be a report."""
        return Run(self, self.outputs["run"], self.report)

    def make_sources(self, seed: int = 0) -> None:
        """Write the files that `ingest` reads, and the store of queries."""
        rng = np.random.default_rng(seed)
        size = self.size
        centres = rng.normal(scale=2.0, size=(5, size.n_features))
        self.sources.mkdir(parents=True, exist_ok=True)
        for name, n in (("x", size.n_rows), ("q", size.n_queries)):
            y = rng.integers(5, size=n)
            x = (centres[y] + rng.normal(size=(n, size.n_features))).astype(np.float32)
            np.save(self.sources / f"{name}.npy", x)
            np.save(self.sources / f"{name}-labels.npy", y)
        labels = np.load(self.sources / "q-labels.npy")
        FeatureStore.create(self.sources / "q", np.load(self.sources / "q.npy"), labels)

    @property
    def outputs(self) -> dict[str, Path]:
        """What each stage writes."""
        return {stage: self.target / name for stage, name in OUTPUTS.items()}

    def needs(self, stage: str) -> tuple[str, ...]:
        """What has to be done before a stage."""
        return NEEDS.get(stage, _CODES)

    def remove(self, stage: str) -> None:
        """Undo a stage."""
        path = self.outputs[stage]
        path.unlink(missing_ok=True) if path.is_file() else shutil.rmtree(path, ignore_errors=True)
        for beside in (f"{path}.scan", f"{path}.results"):
            shutil.rmtree(beside, ignore_errors=True)

    def unfinished(self, stage: str) -> list[str]:
        """What a stage has begun in stores and not finished."""
        stores = [path.parent for path in self.outputs[stage].rglob("segments")]
        return [begun for path in stores for begun in open_store(path).verify().unfinished]

    def words(self, stage: str) -> list[Any]:
        """The command of a stage."""
        out, size = self.outputs, self.size
        if stage == "ingest":
            labels = self.sources / "x-labels.npy"
            files = [self.sources / "x.npy", out["ingest"], "--labels", labels]
            return ["ingest", *files, "--chunk-rows", size.chunk_rows, "--quiet"]
        learning = ["--anchors", size.anchors, "--n-init", 1]
        learning += ["--max-iter", 2, "--block-rows", size.block_rows, "--quiet"]
        learning += [word for name, value in GIVEN.items() for word in (f"--{name}", value)]
        if stage == "fit":
            return ["fit", out["ingest"], out["fit"], "--bits", size.bits, *learning]
        if stage == "tune":
            grid = ["--bits", size.bits, "--alpha", 0.01, "--alpha", 1, "--beta", 0.01]
            grid += ["--beta", 1, "--folds", 3, "--queries", size.n_queries]
            places = [out["ingest"], out["tune"], "-o", f"{out['tune']}.results", "--overwrite"]
            return ["tune", *places, *grid, *learning]
        if stage == "encode":
            return ["encode", out["ingest"], out["fit"], out["encode"], "--quiet"]
        if stage == "export":
            return ["export", out["encode"], out["export"], "--overwrite", "--quiet"]
        if stage == "search":
            places = [out["encode"], self.sources / "q", "--model", out["fit"]]
            return ["search", *places, "-o", out["search"], "--overwrite", "--show", 0, "--quiet"]
        if stage == "run":
            return self.run.words
        places = [out["fit"], self.sources / "q", out["ingest"], "--codes", out["encode"]]
        said = ["-o", out["evaluate"]] if self.report else ["--json"]
        return ["evaluate", *places, *said, "--quiet"]

    def digest(self, stage: str, said: str = "") -> str:
        """A hash of what a stage has written, or said; of stores without their identity."""
        path = self.outputs[stage]
        digest = hashlib.sha256()
        if stage in ("ingest", "encode"):
            store = (FeatureStore if stage == "ingest" else CodeStore).open(path)
            assert store.verify().ok, store.verify().problems
            for name in store.arrays:
                digest.update(name.encode() + store.read(name).tobytes())
            return digest.hexdigest()
        if stage == "evaluate" and self.report:
            return _metrics_digest(path / "metrics.json")
        if stage == "evaluate":
            return _numbers_digest(said[said.index("{") : said.rindex("}") + 1])
        if stage in ("fit", "tune"):
            digest.update(_without_url(path))
            if stage == "tune":
                digest.update(_scores(Path(f"{path}.results")))
            return digest.hexdigest()
        if stage == "search":
            with np.load(path) as found:
                for name in found.files:
                    digest.update(name.encode() + found[name].tobytes())
            return digest.hexdigest()
        if stage == "run":
            return repr(self.run.digests())
        return hashlib.sha256(path.read_bytes()).hexdigest()


def _without_url(path: Path) -> bytes:
    """A model file without the name of the store that was learned from."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "m", replace(read_model(path), coverage=None))
        return (Path(folder) / "m").read_bytes()


def _scores(folder: Path) -> bytes:
    """All that a search over parameters has found, but for the seconds that it took."""
    found = json.loads((folder / "tuning.json").read_text())
    del found["seconds"]
    return json.dumps(found, sort_keys=True).encode()


def _metrics_digest(path: Path) -> str:
    """Of the numbers; the page beside them must be whole."""
    page = path.with_name("report.html").read_text()
    assert page.rstrip().endswith("</html>"), "half a report"
    return _numbers_digest(path.read_text())


def _numbers_digest(text: str) -> str:
    """Of every number but the seconds that it took, and not of where the stores lie."""
    found = json.loads(text)
    for length in found["lengths"]:
        del length["seconds"]
    for place in ("queries", "database"):
        del found[place]
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def left_behind(folder: Path) -> list[Path]:
    """Half-written files that nobody will ever finish."""
    return [path for path in folder.rglob(".*") if path.suffix == ".tmp"]


@dataclass(frozen=True)
class Run:
    """The same job as one ``sadih run``, in a directory of its own."""

    job: Job
    directory: Path
    report: bool = False
    cluster: str = ""

    @property
    def words(self) -> list[Any]:
        """The command; its configuration is written on the way."""
        path = self.directory.with_suffix(".toml")
        if not path.exists():
            path.write_text(self.toml())
        return ["run", path, "--quiet"]

    def toml(self) -> str:
        """The configuration."""
        source, size = self.job.sources, self.job.size
        given = "\n".join(f"{name} = {value}" for name, value in GIVEN.items())
        return f"""
[run]
directory = "{self.directory}"
[source]
kind = "files"
features = "{source}/x.npy"
labels = "{source}/x-labels.npy"
[source.queries]
features = "{source}/q.npy"
labels = "{source}/q-labels.npy"
[store]
chunk_rows = {size.chunk_rows}
[model]
n_bits = {size.bits}
anchors = {size.anchors}
n_init = 1
max_iter = 2
{given}
block_rows = {size.block_rows}
[export]
index = "flat"
[report]
enabled = {str(self.report).lower()}
{self.cluster}
"""

    def digests(self) -> dict[str, str]:
        """A hash of everything that the latest run consists of."""
        latest = self.directory / "latest"
        codes = CodeStore.open(latest / "codes.zarr")
        rows = FeatureStore.open(self.directory / "database.zarr")
        for store in (codes, rows):
            assert store.verify().ok, store.verify().problems
        if self.report:
            page = (latest / "report.html").read_text()
            assert page.rstrip().endswith("</html>"), "half a report"
        return {
            "rows": rows.fingerprint(),
            "model": hashlib.sha256(_without_url(latest / "model.sadih")).hexdigest(),
            "codes": hashlib.sha256(codes.read("codes").tobytes()).hexdigest(),
            "index": hashlib.sha256((latest / "index.faiss").read_bytes()).hexdigest(),
            "metrics": _numbers_digest((latest / "metrics.json").read_text()),
        }
