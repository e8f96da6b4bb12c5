"""Stores made to do harm are refused, with little memory and without running anything."""

from __future__ import annotations

import json
import os
import random
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numcodecs.zstd
import numpy as np
import pytest

from sadih_dask.errors import (
    ConflictError,
    FormatError,
    IncompleteError,
    IntegrityError,
    SadihError,
)
from sadih_dask.files.checksum import canonical_json, crc32c, trailer
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.chunks import zstd_content_size
from sadih_dask.stores.deletions import positions_hash
from sadih_dask.stores.root import _checksum
from tests.support.stores import (
    assert_holds,
    create,
    files_of,
    forge,
    ids_of,
    segment_folder,
    table,
)

Change = dict[str, Any]


def make(path: Path, **options: Any) -> FeatureStore:
    return FeatureStore.create(
        path, np.ones((8, 3), np.float32), np.arange(8), chunk_rows=4, **options
    )


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
GRID = {"name": "regular", "configuration": {"chunk_shape": [2**40, 3]}}
PICKLE = {"name": "numcodecs.pickle", "configuration": {}}


@pytest.mark.parametrize(
    "change",
    [
        {"codecs": [PICKLE]},
        {"codecs": [BYTES, {"name": "delta"}]},
        {"codecs": []},
        {"data_type": "object"},
        {"data_type": {"name": "object"}},
        {"data_type": "variable_length_bytes"},
        {"chunk_grid": GRID},
        {"shape": [10**30, 3]},
        {"shape": [8, -3]},
        {"shape": [8.5, 3]},
        {"chunk_key_encoding": {"name": "v2"}},
        {"fill_value": 7},
        {"storage_transformers": [{"name": "x"}]},
        {"x" * 1000: 1},
        {"node_type": "group"},
    ],
)
def test_metadata_that_declare_something_else(tmp_path: Path, change: Change) -> None:
    store = make(tmp_path / "s")
    forge(tmp_path / "s", lambda _, metadata: metadata[store.components[0]].update(change))
    with pytest.raises(IntegrityError, match="field 'consolidated_metadata' is not as it") as found:
        FeatureStore.open(tmp_path / "s")
    assert len(str(found.value)) < 1000


def test_the_same_in_the_metadata_of_the_arrays(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    file = segment_folder(store) / "labels/zarr.json"
    document = json.loads(file.read_text())
    for change in ({"codecs": [PICKLE]}, {"shape": [7]}):
        file.write_text(json.dumps({**document, **change}))
        opened = FeatureStore.open(tmp_path / "s")
        (problem,) = opened.verify().problems
        assert "labels/zarr.json is damaged: it is not as it was written" in problem
        # We do not look at it
        np.testing.assert_array_equal(opened.read("labels"), np.arange(8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 4}, "has format version 4, this release reads 2: upgrade"),
        ({"version": "2"}, "has format version '2', this release reads 2"),
        ({"format": "sadih-codes"}, "holds 'sadih-codes', expected 'sadih-features'"),
        ({"uid": "../../etc"}, "'../../etc' is not an id"),
        ({"commit": "x" * 32}, "is not an id"),
        ({"generation": -1}, "'-1' is not a size"),
        ({"generation": True}, "'True' is not a size"),
        ({"generation": 10**30}, "is not a size"),
        ({"chunk_rows": 0}, "'0' is not a size"),
        ({"compression": "lzma"}, "'lzma' is not one of none, zstd"),
        ({"arrays": {}}, "has no arrays"),
        ({"arrays": {"features": ["object", [3]]}}, "'object' is not one of"),
        ({"arrays": {"features": ["float32", [3, 3]]}}, r"rows of shape \(3, 3\), expected"),
        ({"arrays": {"features": ["int8", [3]]}}, "has type int8"),
        ({"arrays": 7}, "is not that of a store"),
        ({"segments": 7}, "is not that of a store"),
        ({"segments": [7]}, "is not that of a store"),
        ({"pending": [{"id": "../x", "key": "", "by": ""}]}, "'../x' is not an id"),
        ({"history": [[1, "../x"]]}, "'../x' is not an id"),
        ({"recent": ["/etc/passwd"]}, "'/etc/passwd' is not an id"),
        ({"sources": "../../../etc/passwd"}, "is not an id"),
        ({"properties": 7}, "is not that of a store"),
        ({"properties": {"class_names": "abc", "source": ""}}, "'class_names' is not a list"),
        ({"properties": {"class_names": [], "source": ["x"]}}, "'source' is not a text"),
    ],
)
def test_a_root_that_makes_no_sense(tmp_path: Path, change: Change, message: str) -> None:
    make(tmp_path / "s")
    forge(tmp_path / "s", lambda record, _: record.update(change))
    with pytest.raises(FormatError, match=message) as found:
        FeatureStore.open(tmp_path / "s")
    assert len(str(found.value)) < 1000


HASH = "0" * 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "../../../etc"}, "'../../../etc' is not an id"),
        ({"id": ""}, "'' is not an id"),
        ({"id": "A" * 32}, "is not an id"),
        ({"n_rows": -1}, "'-1' is not a size"),
        ({"n_rows": 9}, "rows of a segment and of its leaves differ"),
        ({"chunk_rows": 0}, "'0' is not a size"),
        ({"chunk_rows": 2**40}, "exceed the limit of 268435456 bytes"),
        ({"compression": "pickle"}, "'pickle' is not one of"),
        ({"manifest_crc32c": None}, "'None' is not a size"),
        ({"leaves": []}, "is not that of a store"),
        ({"leaves": [[8, {"features": HASH}]]}, "leaves of other arrays"),
        ({"leaves": [[8, {"features": HASH, "labels": "../x"}]]}, "'../x' is not an id"),
        ({"deleted": {}}, "is not that of a store"),
        ({"deleted": {"id": "../x", "n_rows": 1, "hash": HASH}}, "'../x' is not an id"),
        ({"deleted": {"id": HASH, "n_rows": 0, "hash": HASH}}, "'0' is not a size"),
        ({"deleted": {"id": HASH, "n_rows": 9, "hash": HASH}}, "leaves differ"),
    ],
)
def test_a_segment_that_makes_no_sense(tmp_path: Path, change: Change, message: str) -> None:
    make(tmp_path / "s")
    forge(tmp_path / "s", lambda record, _: record["segments"][0].update(change))
    with pytest.raises(FormatError, match=message):
        FeatureStore.open(tmp_path / "s")


def test_a_segment_that_is_named_twice(tmp_path: Path) -> None:
    make(tmp_path / "s")
    forge(tmp_path / "s", lambda record, _: record["segments"].append(record["segments"][0]))
    with pytest.raises(FormatError, match="names a segment twice"):
        FeatureStore.open(tmp_path / "s")


@pytest.mark.parametrize(
    "name", ["../../etc", "features/../..", "/etc", "", "zarr.json", "x" * 999]
)
def test_names_that_lead_out_of_the_store(tmp_path: Path, name: str) -> None:
    make(tmp_path / "s")
    forge(tmp_path / "s", lambda record, _: record["arrays"].update({name: ["float32", [3]]}))
    with pytest.raises(FormatError, match="is unknown; a store may have features, labels"):
        FeatureStore.open(tmp_path / "s")


def resized(record: Change, metadata: Change, n_rows: int) -> None:
    """Claim other rows in a way that only the manifest can refute."""
    segment = record["segments"][0]
    segment["n_rows"] = n_rows
    segment["leaves"][0][0] = n_rows
    for name in ("features", "labels"):
        document = metadata[f"segments/{segment['id']}/{name}"]
        document["shape"][0] = n_rows
        document["chunk_grid"]["configuration"]["chunk_shape"][0] = segment["chunk_rows"]


@pytest.mark.parametrize("n_rows", [2**20, 2**47])
def test_more_rows_than_there_are(tmp_path: Path, n_rows: int) -> None:
    make(tmp_path / "s")
    forge(tmp_path / "s", lambda *found: resized(*found, n_rows))
    if n_rows == 2**47:
        with little_memory(), pytest.raises(FormatError, match="more rows or chunks than a store"):
            FeatureStore.open(tmp_path / "s")
        return
    opened = FeatureStore.open(tmp_path / "s")
    with little_memory(), pytest.raises(IntegrityError, match="manifest is not the one that was"):
        opened.read("features", 0, 4)


def test_many_segments_cannot_overflow_the_count(tmp_path: Path) -> None:
    make(tmp_path / "s")

    def many(record: Change, _: Change) -> None:
        one = record["segments"][0]
        one |= {"n_rows": 2**47, "chunk_rows": 2**20, "leaves": [[2**47, one["leaves"][0][1]]]}
        record["arrays"] = {"features": ["float16", [1]]}
        one["leaves"][0][1] = {"features": HASH}
        record["segments"] = [one | {"id": f"{k:032x}"} for k in range(100)]

    forge(tmp_path / "s", many)
    with pytest.raises(FormatError, match="more rows or chunks than a store may have"):
        FeatureStore.open(tmp_path / "s")


@pytest.mark.parametrize("pattern", ["zarr.json", "segments/*/manifest", "deletions/*"])
def test_huge_metadata_are_not_loaded(tmp_path: Path, pattern: str) -> None:
    store = create(tmp_path / "s", 0, 8)
    store.delete(ids_of([3]))
    (file,) = (tmp_path / "s").glob(pattern)
    os.truncate(file, 40 << 30)  # sparse: takes no disk
    with (
        little_memory(),
        pytest.raises(FormatError, match=r"is longer than the \d+ bytes that it may have"),
    ):
        FeatureStore.open(tmp_path / "s").read("labels", 0, 1)
    if pattern != "zarr.json":
        with little_memory():
            problems = FeatureStore.open(tmp_path / "s").verify(["labels"], workers=1).problems
        assert any("is longer than" in problem for problem in problems)


def test_a_list_of_deleted_rows_that_could_not_be_held(tmp_path: Path) -> None:
    create(tmp_path / "s", 0, 8).delete(ids_of([3]))

    def huge(record: Change, metadata: Change) -> None:
        (segment,) = record["segments"]
        segment |= {"n_rows": 2**40, "chunk_rows": 2**24, "leaves": [[2**40, {}]]}
        segment["deleted"]["n_rows"] = 2**39

    forge(tmp_path / "s", huge)
    with little_memory(), pytest.raises(FormatError, match="more deleted rows than can be listed"):
        FeatureStore.open(tmp_path / "s")


@pytest.mark.parametrize("rows", [[3, 3], [5, 3], [3, 8], [3, 2**63], [3, 2**64 - 1]])
def test_deletions_that_make_no_sense(tmp_path: Path, rows: list[int]) -> None:
    store = create(tmp_path / "s", 0, 8)
    store.delete(ids_of([3, 4]))
    (file,) = (tmp_path / "s/deletions").iterdir()
    data = np.array(rows, "<u8").tobytes()
    file.write_bytes(data + trailer(crc32c(data)))
    digest = positions_hash(np.array(rows, "<u8"))
    forge(tmp_path / "s", lambda r, _: r["segments"][0]["deleted"].update({"hash": digest}))
    with pytest.raises(IntegrityError, match="lists rows that the segment does not have"):
        FeatureStore.open(tmp_path / "s").read("labels")


def test_a_manifest_with_a_huge_header(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    file = segment_folder(store) / "manifest"
    data = canonical_json({"x": "y" * 4000}) + b"\n"
    file.write_bytes(data + trailer(crc32c(data)))
    crc = crc32c(data)
    forge(tmp_path / "s", lambda r, _: r["segments"][0].update({"manifest_crc32c": crc}))
    with pytest.raises(IntegrityError, match="manifest is not the one that was committed"):
        FeatureStore.open(tmp_path / "s").read("labels")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_huge_chunk_is_not_loaded(tmp_path: Path, compression: str) -> None:
    store = make(tmp_path / "s", compression=compression)
    os.truncate(segment_folder(store) / "features/c.0.0", 40 << 30)
    with little_memory(), pytest.raises(IntegrityError, match="array 'features', chunk 0"):
        store.read("features")


@pytest.mark.parametrize("size", [1 << 28, 1 << 16])
def test_a_zstd_bomb_is_not_unpacked(tmp_path: Path, size: int) -> None:
    store = make(tmp_path / "s", compression="zstd")
    bomb = numcodecs.zstd.compress(bytes(size), 3)
    assert zstd_content_size(bomb[:18]) == size
    stored = bomb + trailer(crc32c(bomb))
    (segment_folder(store) / "features/c.0.0").write_bytes(stored)
    # With a manifest that fits, as whoever made it could write one
    manifest = segment_folder(store) / "manifest"
    data = bytearray(manifest.read_bytes())
    start = data.index(b"\n") + 1
    data[start : start + 4] = trailer(crc32c(bomb))
    crc = crc32c(bytes(data[:-4]))
    manifest.write_bytes(bytes(data[:-4]) + trailer(crc))
    forge(tmp_path / "s", lambda r, _: r["segments"][0].update({"manifest_crc32c": crc}))
    opened = FeatureStore.open(tmp_path / "s")
    with (
        little_memory(),
        pytest.raises(IntegrityError, match=r"chunk 0 .*(declares \d+ bytes instead|is longer)"),
    ):
        opened.read("features")


def test_a_pipe_in_the_place_of_a_chunk_does_not_hang(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    folder = segment_folder(store) / "features"
    (folder / "c.0.0").unlink()
    os.mkfifo(folder / "c.0.0")
    with pytest.raises(IntegrityError, match="is not a regular file"):
        store.read("features")
    (folder / "c.1.0").unlink()
    (folder / "c.1.0").mkdir()
    with pytest.raises(IntegrityError, match="is not a regular file"):
        store.read("features", 4, 8)


def test_codes_that_contradict_their_length(tmp_path: Path) -> None:
    CodeStore.create(tmp_path / "c", np.zeros((4, 2), np.uint8), n_bits=16, model="m")
    forge(tmp_path / "c", lambda record, _: record["properties"].update({"n_bits": 64}))
    with pytest.raises(FormatError, match=r"codes of 64 bits have rows of shape \(2,\)"):
        CodeStore.open(tmp_path / "c")


def moved(path: Path, outside: Path) -> None:
    """Leave a link in the place of a file or folder."""
    path.rename(outside)
    path.symlink_to(outside)


def outside_is_untouched(outside: Path) -> Any:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in outside.rglob("*")}


@pytest.mark.parametrize(
    "pattern",
    [
        "segments",
        "segments/*/",
        "segments/*/labels",
        "segments/*/labels/c.0",
        "segments/*/manifest",
    ],
)
def test_no_link_is_read_through(tmp_path: Path, pattern: str) -> None:
    create(tmp_path / "s", 0, 6)
    (outside := tmp_path / "outside").mkdir()
    place = next(p for p in (tmp_path / "s").glob(pattern) if p.name != "zarr.json")
    moved(place, outside / "x")
    with pytest.raises((IntegrityError, FormatError), match="is a symbolic link, and links inside"):
        FeatureStore.open(tmp_path / "s").read("labels")
    assert FeatureStore.open(tmp_path / "s").verify(["labels"]).problems


def test_a_root_and_deletions_that_are_links(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 6)
    store.delete(ids_of([1]))
    moved(tmp_path / "s/deletions", tmp_path / "deletions")
    with pytest.raises(FormatError, match="'deletions' is a symbolic link"):
        FeatureStore.open(tmp_path / "s").read("labels")
    moved(tmp_path / "s/zarr.json", tmp_path / "root")
    with pytest.raises(FormatError, match=r"'zarr.json' is a symbolic link"):
        FeatureStore.open(tmp_path / "s")
    before = (tmp_path / "root").read_bytes()
    with pytest.raises(ConflictError, match="holds something that is not a store"):
        create(tmp_path / "s", 0, 6, overwrite=True)
    assert (tmp_path / "root").read_bytes() == before


@pytest.mark.parametrize("folder", ["segments", "roots", "deletions", "sources"])
def test_nothing_is_written_or_deleted_through_a_link(tmp_path: Path, folder: str) -> None:
    store = create(tmp_path / "s", 0, 6)
    store.delete(ids_of([1]))
    (outside := tmp_path / "outside").mkdir()
    (outside / HASH).mkdir()
    (outside / HASH / "thesis.tex").write_text("years of work")
    place = tmp_path / "s" / folder
    if place.exists():
        place.rename(tmp_path / "away")
    place.symlink_to(outside)
    before = outside_is_untouched(outside)
    store = FeatureStore.open(tmp_path / "s")
    calls = {
        "append": lambda: store.append(**table(6, 9)),
        "delete": lambda: store.delete(ids_of([2])),
        "compact": lambda: store.compact(one_segment=True, purge=True),
        "collect": store.collect,
        "sources": lambda: store.extend(0, sources=lambda _: b"x").finalise(),
    }
    refused = set()
    for name, call in calls.items():
        try:
            call()
        except (FormatError, IntegrityError) as error:
            assert "is a symbolic link, and links" in str(error)  # noqa: PT017
            refused.add(name)
    expected = {"segments": set(calls), "roots": set(calls), "sources": {"sources"}}
    assert refused == expected.get(folder, {"delete"}) | {"compact", "collect"}
    assert outside_is_untouched(outside) == before


def test_a_lock_that_is_a_link_makes_no_file_elsewhere(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 6)
    (tmp_path / "s/.swap").unlink()
    (tmp_path / "s/.swap").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IncompleteError, match="Too many levels of symbolic links"):
        store.delete(ids_of([1]))
    assert not (tmp_path / "elsewhere").exists()


def test_links_that_are_garbage_are_deleted_themselves(tmp_path: Path) -> None:
    store = create(tmp_path / "s", 0, 6)
    (outside := tmp_path / "outside").mkdir()
    (outside / "thesis.tex").write_text("years of work")
    (tmp_path / "s/segments" / HASH).symlink_to(outside)
    assert store.collect() == [f"segments/{HASH}"]
    assert files_of(outside) == {"thesis.tex"}
    assert not (tmp_path / "s/segments" / HASH).is_symlink()


def test_a_store_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    store = create(tmp_path / "data/s", 0, 6)
    (tmp_path / "s").symlink_to(tmp_path / "data/s")
    linked = FeatureStore.open(tmp_path / "s")
    linked.append(**table(6, 9))
    assert_holds(store.refresh(), range(9))


def test_a_zstd_frame_header_is_read_as_the_standard_says() -> None:
    for size in (1, 255, 256, 65_791, 65_792, 1 << 20):
        assert zstd_content_size(numcodecs.zstd.compress(bytes(size), 3)[:18]) == size
    assert zstd_content_size(b"") is None
    assert zstd_content_size(b"\x28\xb5\x2f\xfd\x00\x58\x00\x00") is None


NASTY: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 7, 2**31, 2**47, 10**30, 1.5, "", "\0", "..", "x" * 5000, "0" * 32),
    *("../../../outside/secret", "/etc/passwd", "file:///etc/passwd", [], {}, [[]], {"a": 1}),
)
_FILE_EVENTS = ("open", "os.listdir", "os.scandir", "os.remove", "os.rmdir", "os.rename", "os.link")


def mutate(node: Any, rng: random.Random) -> None:
    """Replace, drop or repeat something at a random place of a JSON document."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = rng.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.8:
            node = node[key]
            continue
        how = rng.random()
        if how < 0.8:
            node[key] = rng.choice(NASTY)
        elif how < 0.9 or isinstance(node, dict):
            del node[key]
        else:
            node.append(node[key])
        return


def test_thousands_of_forged_roots_lead_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(bytes(64))
    home = tmp_path / "s"
    store = create(home, 0, 12)
    store.append(**table(12, 24))
    store.delete(ids_of([1, 14]))
    store.extend(8).write(0, **table(24, 32))
    intact, rng = (home / "zarr.json").read_text(), random.Random(11)
    touched: list[str] = []
    watching = [False]

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if watching[0] and event in _FILE_EVENTS:
            touched.extend(os.fsdecode(a) for a in arguments[:2] if isinstance(a, str | bytes))

    def look() -> None:
        opened = FeatureStore.open(home)
        opened.verify(workers=1)
        opened.read("labels")

    look()  # what it imports is not what is watched
    sys.addaudithook(audit)
    said: list[str] = []
    for _ in range(2000):
        document = json.loads(intact)
        record = document["attributes"]["sadih_dask"]
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            mutate(record, rng)
        with suppress(TypeError, ValueError, AttributeError):
            record["checksum"] = _checksum(record)
        (home / "zarr.json").write_text(json.dumps(document))
        watching[0] = True
        try:
            with little_memory():
                look()
        except SadihError as error:
            said.append(str(error))
        finally:
            watching[0] = False
    assert len(said) > 1500
    assert all(str(home) in text and len(text) < 1000 for text in said)
    strangers = {path for path in touched if not Path(path).is_relative_to(home) and "/" in path}
    assert not strangers
    assert (outside / "secret").read_bytes() == bytes(64)
