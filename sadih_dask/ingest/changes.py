"""What has changed since a store was made of its files, and which files nobody writes any more."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Literal

from sadih_dask.errors import Argument, ConflictError, InputError, NoFilesError, Remedy
from sadih_dask.files.filesystem import (
    Files,
    LocalFiles,
    connect,
    is_file,
    look_again,
    reaching,
    status,
)
from sadih_dask.ingest.inputs import BESIDE, DataFiles, labels_variable
from sadih_dask.ingest.provenance import NOTHING, Provenance, in_words, look, provenance_of
from sadih_dask.sources import open_features
from sadih_dask.sources.contract import reading
from sadih_dask.stores import FeatureStore, commit
from sadih_dask.stores.reader import Snapshot
from sadih_dask.stores.root import Root


def pass_over_young(files: DataFiles, min_age: float) -> tuple[DataFiles | None, tuple[str, ...]]:
    """Return the files without those younger than `min_age` seconds, and the names of these.

    Labels (ids, thumbnails) must come in as many files as the features, the first for the first,
    and so on: a pair waits until both are old enough. If all wait there are no files, but None.
    """
    files = files.expanded()
    if min_age <= 0:
        return files, ()
    named = {name: files.names(name) for name in ("features", *BESIDE) if files.names(name)}
    n_features = len(named["features"])
    for name, found in named.items():
        if len(found) != n_features:
            raise InputError(
                f"{len(found)} files of {name} for {n_features} of features: which of them wait "
                "together cannot be said. Give one for each",
                remedy=Remedy("Or leave out {}", Argument("min_age")),
            )
    everything = [file for found in named.values() for file in found]
    look_again(everything)
    young = {file for file in everything if _is_young(file, min_age)}
    ready = [young.isdisjoint(group) for group in zip(*named.values(), strict=True)]
    kept = {name: tuple(compress(found, ready)) for name, found in named.items()}
    too_young = tuple(file for file in everything if file in young)
    return files.of(kept) if any(ready) else None, too_young


def _is_young(file: str, min_age: float) -> bool:
    """Say whether a file changed just now; a clock that runs ahead must not hold it up for ever."""
    with reading(file):
        return abs(time.time() - status(file).modified) < min_age


Store = Literal["absent", "begun", "finished"]
_MOST_OPENED = 32


@dataclass(frozen=True)
class Changes:
    """Sources beside the store that was, or is to be, made of them.

    files          the named files, globs expanded, without too young ones; None if none is left
    store          whether there is a finished store, one that an ingestion has begun, or none
    new            feature files whose rows the store does not have
    changed        feature files that were ingested in another state than they are in now
    gone           feature files of the store that are not among the named ones
    beside         files of labels, ids or thumbnails that were ingested in another state
    options        whether they are to be read in another way than the store was made
    too_young      named files that were passed over, because somebody may still be writing them
    goes_on        whether a store that was begun is that of these files, so that ingestion goes on
    n_new_rows     rows of the new files that would be added; an estimate beyond 32 files
    n_new_bytes    bytes of the new files
    fingerprint    of the files, without the too young ones, and of how they are to be read; the
                   same in every process, and wherever the files lie
    """

    url: str
    store: Store
    files: DataFiles | None
    new: tuple[str, ...]
    changed: tuple[str, ...]
    gone: tuple[str, ...]
    beside: tuple[str, ...]
    options: bool
    too_young: tuple[str, ...]
    goes_on: bool
    n_new_rows: int
    n_new_bytes: int
    fingerprint: str

    @property
    def altered(self) -> bool:
        """Say whether rows of the store are no longer those of the files: rebuild, or refuse.

        Files that are gone do not count: they may have been taken away after their ingestion.
        """
        return bool(self.changed or self.beside or self.options)

    def in_words(self) -> str:
        """Say in one line what is not as it was, and nothing if all is."""
        parts = [
            self.changed and f"changed since their ingestion: {in_words(self.changed)}",
            self.beside and f"labels, ids or thumbnails changed: {in_words(self.beside)}",
            self.gone and f"no longer among the files: {in_words(self.gone)}",
            self.options and "other options of reading, or other class names, than before",
            self.too_young and f"too young to be read yet: {in_words(self.too_young)}",
        ]
        return "; ".join(part for part in parts if part)


def compare(
    files: DataFiles,
    url: str | os.PathLike[str],
    *,
    min_age: float = 0.0,
    storage_options: Mapping[str, Any] | None = None,
) -> Changes:
    """Say what is new, changed or gone; files that the store does not know are read through.

    Files that were written less than `min_age` seconds ago are passed over.
    """
    place = connect(url, storage_options, follow_links=False)
    root = existing(place)
    store = FeatureStore(Snapshot(place, root)) if root is not None and root.segments else None
    try:
        settled, too_young = pass_over_young(files, min_age)
    except NoFilesError:
        if store is None:
            raise
        settled, too_young = None, ()  # all were taken away after their ingestion
    known = NOTHING if store is None else provenance_of(store) or NOTHING
    seen = look(files.of({"features": ()}) if settled is None else settled, known)
    begun = () if root is None else root.pending
    new = tuple(m.place for m in seen.marks if not (known.has(m) or known.has_changed(m)))
    waiting = look(files.expanded(), known).marks if too_young else ()
    n_rows, n_bytes = (0, 0) if settled is None else expected(settled, new)
    return Changes(
        url=place.url,
        store="finished" if store is not None else "begun" if begun else "absent",
        files=settled,
        new=new,
        changed=tuple(mark.place for mark in seen.marks if known.has_changed(mark)),
        gone=known.gone([*seen.marks, *waiting]),
        beside=known.changed_beside(seen),
        options=known is not NOTHING and _reads_otherwise(files, known, seen, store),
        too_young=too_young,
        goes_on=any(entry.key.startswith(seen.key) for entry in begun),
        n_new_rows=n_rows,
        n_new_bytes=n_bytes,
        fingerprint=seen.fingerprint,
    )


def existing(place: Files) -> Root | None:
    """Return the store that is there; ConflictError if the place belongs to something else."""
    if isinstance(place, LocalFiles) and place.root.is_file():
        raise ConflictError(
            f"{place.url} is a file, not a store. Sources come first, the store is named last"
        )
    with reaching(place.url):
        return commit.existing(place, FeatureStore.kind)


def _reads_otherwise(
    files: DataFiles, known: Provenance, seen: Provenance, store: FeatureStore | None
) -> bool:
    if known.options != seen.options:
        return True
    names = [] if store is None else list(store.class_names)
    return files.class_names is not None and list(files.class_names)[: len(names)] != names


def expected(files: DataFiles, new: Sequence[str]) -> tuple[int, int]:
    """Return rows and bytes of some files; of many, some are opened and stand for the others."""
    if not new:
        return 0, 0
    opened = new[:: -(-len(new) // _MOST_OPENED)]
    source = open_features(
        opened,
        files.features_variable,
        transpose=files.transpose,
        memory_limit=files.memory_limit,
        taken=files.taken,
    )
    labels_variable(files, source)
    share = 1.0 if files.hold_out is None else files.hold_out.share
    sizes = {file: status(file).size for file in new if is_file(file)}
    if len(sizes) < len(new):  # folders of Zarr arrays: their chunks are too many to look at
        n_bytes = source.n_rows * source.width * source.dtype.itemsize
        sizes = dict.fromkeys(new, n_bytes // len(opened))
    scale = sum(sizes.values()) / max(1, sum(sizes[file] for file in opened))
    return round(source.n_rows * share * scale), sum(sizes.values())
