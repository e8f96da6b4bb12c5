"""Small stores of numbered rows, and what is to be known about their files."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask.files.filesystem import LocalFiles
from sadih_dask.stores import FeatureStore
from sadih_dask.stores.root import ATTRIBUTE, _checksum
from sadih_dask.stores.store import Store

Table = dict[str, np.ndarray]


def table(first: int, last: int) -> Table:
    """Rows that say which they are: the label of row i is i, its id 10 i."""
    numbers = np.arange(first, last)
    features = np.stack([numbers, -numbers], axis=1).astype(np.float32)
    return {"features": features, "labels": numbers, "ids": 10 * numbers}


def create(url: Path | str, first: int, last: int, **options: Any) -> FeatureStore:
    """A store of numbered rows, in chunks of four."""
    return FeatureStore.create(url, **table(first, last), **{"chunk_rows": 4, **options})


def ids_of(numbers: Any) -> np.ndarray:
    """The ids of numbered rows."""
    return 10 * np.asarray(numbers, np.int64)


def assert_holds(store: FeatureStore, numbers: Any) -> None:
    """All arrays hold just these rows, and every byte of them is intact."""
    wanted = np.asarray(numbers, np.int64)
    np.testing.assert_array_equal(store.read("labels"), wanted)
    np.testing.assert_array_equal(store.read("features")[:, 0], wanted)
    np.testing.assert_array_equal(store.read("ids"), ids_of(wanted))
    assert store.n_rows == len(wanted)
    assert store.verify().problems == ()


def segment_folder(store: Store, number: int = 0) -> Path:
    """Where a segment of a local store lies."""
    return Path(store.url) / store.segments[number].path


def files_of(folder: Path) -> set[str]:
    """The keys of all files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def pending_blocks(url: Path) -> set[int]:
    """Blocks that are written, of all arrays, and not committed; nothing if there is no store."""
    try:
        record = json.loads((url / "zarr.json").read_bytes())["attributes"][ATTRIBUTE]
    except FileNotFoundError:
        return set()
    found: set[int] = set()
    for entry in record["pending"]:
        folders = [url / "segments" / entry["id"] / name for name in record["arrays"]]
        found |= set.intersection(
            *({int(path.name.split(".")[1]) for path in folder.glob("c.*")} for folder in folders)
        )
    return found


def forge(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Rewrite a root with a checksum that fits, as somebody who means harm would.

    `change` gets the record of the store and the metadata that other Zarr tools read.
    """
    document = json.loads((path / "zarr.json").read_text())
    record = document["attributes"][ATTRIBUTE]
    change(record, document["consolidated_metadata"]["metadata"])
    record["checksum"] = _checksum(record)
    (path / "zarr.json").write_text(json.dumps(document))


class Killed(BaseException):
    """What a process that is killed does not see: nothing may catch it."""


@contextmanager
def killed_at(step: int, *, after: bool = False) -> Iterator[list[str]]:
    """Let the operation on files with this number fail: before it is done, or right after.

    Yields the operations that were reached. Nothing happens if there are fewer.
    """
    reached: list[str] = []

    def failing(name: str) -> Callable[..., Any]:
        method = getattr(LocalFiles, name)

        def call(files: LocalFiles, key: str, *args: Any, **options: Any) -> Any:
            reached.append(f"{name} {key}")
            if len(reached) - 1 == step and not after:
                raise Killed
            result = method(files, key, *args, **options)
            if len(reached) - 1 == step:
                raise Killed
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("write", "create", "delete", "sync"):
            patch.setattr(LocalFiles, name, failing(name))
        yield reached
