"""One of every kind of file that is written, small, with the two ways in which it is looked at.

A specimen can be *read*, as any caller would, and *verified*, as ``sadih verify`` does. It says of
each file what an error about it has to name.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sadih_dask import SADIH, CodeStore, FeatureStore
from sadih_dask.compute.checkpoint import Checkpoint
from sadih_dask.errors import IntegrityError
from sadih_dask.ingest.provenance import provenance_of
from sadih_dask.stores.features import FeatureWriter
from tests.faults.commands import CommandFailed, run_here
from tests.faults.jobs import Job, Run, Size

N, CHUNK = 50, 8
Digest = str


@dataclass(frozen=True)
class Specimen:
    """Files of one kind.

    read      everything that comes out, as one hash
    verify    raise, or do nothing if all is well; None where nothing but reading looks at them
    named     words of an error about a file
    slack     whether it has bits that carry nothing, such as the dates in a zip file
    """

    name: str
    files: tuple[Path, ...]
    read: Callable[[], Digest]
    verify: Callable[[], None] | None
    named: Callable[[Path], tuple[str, ...]]
    slack: bool = False


def all_specimens(folder: Path) -> list[Specimen]:
    """Make one of every kind."""
    found = []
    for compression in ("none", "zstd"):
        kind = f"features, {compression}"
        found += _store(kind, _features(folder / kind, compression))
        kind = f"codes, {compression}"
        found += _store(kind, _codes(folder / kind, compression))
    found += [_one_digit(folder / "digit"), *_former_state(folder / "former")]
    found += _ingested(folder)
    found += _unfinished(folder / "unfinished")
    found += [_model(folder / "model.sadih"), _scan_parts(folder / "parts")]
    found += _run_directory(folder / "runs")
    return found


def _table(first: int, last: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((N, 3)).astype(np.float32)
    pictures = rng.integers(256, size=(N, 4, 4), dtype=np.uint8)
    numbers = np.arange(N)
    return {
        "features": features[first:last],
        "labels": numbers[first:last] % 5,
        "ids": np.array([f"ä{n}" for n in numbers[first:last]]),
        "thumbnails": pictures[first:last],
    }


def _features(url: Path, compression: str) -> FeatureStore:
    """Two segments, both with deleted rows."""
    names = list("abcde")
    store = FeatureStore.create(
        url, **_table(0, 30), class_names=names, chunk_rows=CHUNK, compression=compression
    )
    store.append(**_table(30, N))
    store.delete(["ä3", "ä4", "ä40"])
    return store


def _codes(url: Path, compression: str) -> CodeStore:
    codes = np.random.default_rng(1).integers(256, size=(N, 4), dtype=np.uint8)
    form: dict[str, Any] = {"chunk_rows": CHUNK, "compression": compression}
    return CodeStore.create(url, codes, n_bits=32, model="m", ids=np.arange(N), **form)


def _contents(store: FeatureStore | CodeStore) -> Digest:
    digest = hashlib.sha256(repr((store.n_rows, sorted(store.properties.items()))).encode())
    for name in store.arrays:
        values = store.read(name)
        digest.update(repr((name, values.shape, values.dtype)).encode() + values.tobytes())
    return digest.hexdigest()


def _store(name: str, store: FeatureStore | CodeStore) -> Iterator[Specimen]:
    """The root of a store, and of its segments the chunks, documents, manifests and deletions."""
    url, kind = Path(store.url), type(store)

    def read() -> Digest:
        return _contents(kind.open(url))

    def verify() -> None:
        run_here("verify", url, "--quiet")

    segments = [url / segment.path for segment in store.segments]
    groups = {
        "chunks": [path for folder in segments for path in folder.glob("*/c.*")],
        "zarr.json of the root": [url / "zarr.json"],
        "zarr.json of a group": [folder / "zarr.json" for folder in (url / "segments", *segments)],
        "zarr.json of an array": [
            path for folder in segments for path in folder.glob("*/zarr.json")
        ],
        "manifest": [folder / "manifest" for folder in segments],
        "deletions": [
            url / "deletions" / part.deleted.id
            for part in store.segments
            if part.deleted is not None
        ],
    }
    for what, files in groups.items():
        if files:
            ordered = tuple(sorted(files))
            yield Specimen(f"{name}: {what}", ordered, read, verify, _named_in_store(url))


def _named_in_store(url: Path) -> Callable[[Path], tuple[str, ...]]:
    def named(file: Path) -> tuple[str, ...]:
        key = str(file.relative_to(url))
        if file.name.startswith("c."):
            return (str(url), f"array {file.parent.name!r}, chunk ", key)
        return (str(url), key)

    return named


def _one_digit(url: Path) -> Specimen:
    """One flip away from the row count of the commit before, which a killed writer leaves."""
    store = CodeStore.create(url, np.zeros((8, 1), np.uint8), n_bits=8, model="m")
    return next(found for found in _store("8 rows", store) if "of an array" in found.name)


def _former_state(url: Path) -> Iterator[Specimen]:
    """Readers that were sent to another process before an append still look at it."""
    store = FeatureStore.create(url, **_table(0, 30), chunk_rows=CHUNK)
    held = pickle.dumps(store)
    manifest = url / store.segments[0].path / "manifest"
    store.append(**_table(30, N))

    def read() -> Digest:
        from sadih_dask.stores import store as group

        group._OPENED.clear()  # as in a process that has not opened the store before
        return _contents(pickle.loads(held))

    (root,) = (url / "roots").iterdir()
    for name, file in (("root", root), ("manifest", manifest)):
        named = _named_in_store(url)
        yield Specimen(f"{name} of a former commit", (file,), read, None, named)


def _ingested(folder: Path) -> Iterator[Specimen]:
    """The record of the files that rows came from: without it they would be added twice."""
    source, url = folder / "x.npy", folder / "ingested"
    np.save(source, _table(0, N)["features"])
    run_here("ingest", source, url, "--quiet")

    def read() -> Digest:
        store = FeatureStore.open(url)
        return hashlib.sha256(repr(provenance_of(store)).encode()).hexdigest()

    def verify() -> None:
        run_here("verify", url, "--quiet")

    files = tuple((url / "sources").iterdir())
    yield Specimen("record of source files", files, read, verify, _named_in_store(url))


def _unfinished(url: Path) -> Iterator[Specimen]:
    """A store whose writer was killed: chunks that a later call goes on from."""

    def begin(place: Path) -> FeatureWriter:
        form: dict[str, Any] = {"label_dtype": "int64", "id_dtype": "U8"}
        return FeatureStore.allocate(
            place, N, 3, chunk_rows=CHUNK, thumbnail_shape=(4, 4), key="this", **form
        )

    writer = begin(url)
    for block in range(writer.n_blocks - 1):
        writer.write(writer.rows_of(block)[0], **_table(*writer.rows_of(block)))

    def completed() -> Digest:
        """Go on as ingestion does: write what is missing, commit."""
        with tempfile.TemporaryDirectory(dir=url.parent) as scratch:
            copy = Path(scratch) / "copy"
            shutil.copytree(url, copy)
            going_on = begin(copy)
            for block in going_on.missing():
                going_on.write(going_on.rows_of(block)[0], **_table(*going_on.rows_of(block)))
            return _contents(going_on.finalise())

    yield Specimen(
        "chunks of an unfinished store",
        tuple(sorted(url.glob("segments/*/*/c.*"))),
        completed,
        None,
        lambda file: (f"array {file.parent.name!r}, chunk ", f"{file.parent.name}/{file.name}"),
    )
    root = (url / "zarr.json",)
    yield Specimen("root of an unfinished store", root, completed, None, lambda _: ("zarr.json",))


def _model(path: Path) -> Specimen:
    values = _table(0, N)
    learner = SADIH(12, anchors=4, n_init=1, max_iter=1, encoder="posterior")
    learner.fit(values["features"], values["labels"]).save(path)

    def read() -> Digest:
        again = path.with_suffix(".again")
        SADIH.load(path).save(again)
        return hashlib.sha256(again.read_bytes()).hexdigest()

    def verify() -> None:
        run_here("verify", path)

    return Specimen("model file", (path,), read, verify, lambda file: (str(file),), slack=True)


def _scan_parts(folder: Path) -> Specimen:
    """What the finished parts of a pass have come to; a damaged one is computed again."""
    folder.mkdir()
    rng = np.random.default_rng(2)
    values = rng.standard_normal((2000, 3)).astype(np.float32), np.arange(2000) % 5
    store = FeatureStore.create(folder / "s", *values, chunk_rows=100)
    learner = SADIH(8, anchors=None, n_init=1, max_iter=1, block_rows=20)

    def read() -> Digest:
        model = learner.fit(store, checkpoint=Checkpoint(folder / "scan"))
        model.save(folder / "m")
        return hashlib.sha256((folder / "m").read_bytes()).hexdigest()

    read()
    parts = tuple(sorted((folder / "scan").iterdir()))
    assert len(parts) > 2, parts
    return Specimen("parts of an unfinished scan", parts, read, None, lambda _: ())


def _run_directory(folder: Path) -> Iterator[Specimen]:
    """Records of runs: a stage whose record is damaged is done again, any other is named."""
    size = Size(n_rows=60, chunk_rows=30, block_rows=20, n_features=3, anchors=4, n_queries=5)
    folder.mkdir()
    job = Job(folder / "sources", folder, size)
    job.make_sources()
    run = Run(job, folder / "run")
    run_here(*run.words)
    shutil.copytree(run.directory, folder / "copy", symlinks=True)

    def read() -> Digest:
        """Look at the runs, and bring the directory up to date."""
        try:
            for record in json.loads(run_here("runs", run.directory, "--json")):
                if record["outcome"] != "complete":
                    raise IntegrityError(f"{record}")
            run_here(*run.words)
            return repr(run.digests())
        except CommandFailed as failure:
            raise IntegrityError(str(failure)) from failure
        finally:
            shutil.rmtree(run.directory)
            shutil.copytree(folder / "copy", run.directory, symlinks=True)

    for name in ("done.json", "manifest.json", "record.json"):
        files = tuple(sorted(run.directory.glob(f"*/*/{name}")))
        named = (lambda _: ()) if name == "done.json" else (lambda file: (file.parent.name,))
        yield Specimen(f"run directory: {name}", files, read, None, named)
