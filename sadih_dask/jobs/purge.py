"""Erase deleted rows from a store for good, and leave a record of what is gone and what is not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from sadih_dask.compute.encode import coverage_of
from sadih_dask.errors import ConflictError
from sadih_dask.files.file import locate, write_text
from sadih_dask.files.redaction import redact
from sadih_dask.jobs.inspect import open_store
from sadih_dask.model.methods import load_model
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.coverage import Coverage
from sadih_dask.stores.store import Store
from sadih_dask.stores.verify import Progress
from sadih_dask.types import Array

READ_ROWS = 1 << 14
"""Deleted rows that are read at once."""
FORMER_CODES = "without the rows; their former codes are on disk until it is purged, too"
NOT_REACHED = (
    "models, codes, indexes and other exports, reports and search results that are not named here",
    "copies and backups of the store",
    "the files that it was ingested from",
)


@dataclass(frozen=True)
class Examined:
    """Something that was made of the store, and what of the rows is in it.

    n_anchors   anchors of a model that are among the rows
    """

    path: str
    kind: str
    n_anchors: int = 0
    remark: str = "without the rows"


@dataclass(frozen=True)
class Erased:
    """What a purge has erased.

    ids        SHA-256 of each id: tells whether a row is among them, and not which there are
    finished   False if it was interrupted: the record of a later one says when the rows were gone
    """

    store: str
    commit: int
    when: str
    n_rows: int
    ids: tuple[str, ...]
    examined: tuple[Examined, ...]
    not_reached: tuple[str, ...] = NOT_REACHED
    finished: bool = True


def purge(
    store: Store,
    made: Sequence[str | os.PathLike[str]] = (),
    *,
    record: str | os.PathLike[str],
    one_segment: bool = False,
    progress: Progress | None = None,
) -> Erased:
    """Leave nothing of deleted rows in a store, and write a record of that.

    ``made`` are models, code stores and other files that were made of the store. A model or a code
    store that still has the rows is named before anything is erased: without the rows they could
    not be taken out of it any more.
    """
    found = tuple(_examined(os.fspath(path), store) for path in made)
    locate(record).check()
    ids = tuple(
        sha256(str(one).encode()).hexdigest()
        for part in (_deleted(store, "ids") if "ids" in store.arrays else ())
        for one in part.tolist()
    )
    n_rows = sum(segment.n_rows - segment.n_live for segment in store.segments)
    begun = Erased(redact(store.url), store.generation, _now(), n_rows, ids, found, finished=False)
    write_text(
        record, json.dumps(asdict(begun), indent=1)
    )  # afterwards nothing tells any more which rows they were
    after = store.compact(one_segment=one_segment, purge=True, progress=progress)
    erased = replace(begun, commit=after.generation, when=_now(), finished=True)
    write_text(record, json.dumps(asdict(erased), indent=1))
    return erased


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _deleted(store: Store, name: str) -> Iterator[Array]:
    """Deleted rows that are still on disk."""
    for number, covered in enumerate(Coverage.of(store, ()).segments):
        for first in range(0, len(covered.dead), READ_ROWS):
            yield store.take_deleted(name, number, covered.dead[first : first + READ_ROWS])


def _examined(path: str, store: Store) -> Examined:
    if isinstance(store, FeatureStore) and Path(path).is_dir():
        codes = open_store(path)
        if isinstance(codes, CodeStore):
            _check(path, coverage_of(codes), store, "encode")
            left = any(segment.deleted for segment in codes.segments) or codes.keeps_former
            return Examined(path, "codes", remark=FORMER_CODES) if left else Examined(path, "codes")
    elif isinstance(store, FeatureStore) and path.endswith(".sadih"):
        model = load_model(path)
        _check(path, model.coverage_, store, "fit")
        if (anchors := model.anchor_map_) is None:
            return Examined(path, "model")
        n_anchors = sum(anchors.count_among(rows) for rows in _deleted(store, "features"))
        if not n_anchors:
            return Examined(path, "model")
        remark = "its anchors have some of the rows; a fit with overwrite draws others"
        return Examined(path, "model", n_anchors, remark)
    return Examined(path, "other", remark="not looked into; make it anew")


def _check(path: str, known: Coverage | None, store: FeatureStore, verb: str) -> None:
    """Refuse what has learned from the deleted rows, or was made of them."""
    change = None if known is None else known.difference(store)
    if change is None or len(change.deleted):
        has = f"{path} cannot be compared with {store.url}, so it may have its deleted rows"
        if change is not None:
            has = f"{path} has {len(change.deleted)} rows of {store.url} that are deleted there"
        raise ConflictError(f"{has}. Bring it up to date first (sadih {verb}); nothing was erased")
