"""Further rows for a finished store, in one commit; files that it has already are passed over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress

import numpy as np

from sadih_dask.errors import ConflictError, InputError, LabelError
from sadih_dask.storage.features import FeatureStore
from sadih_dask.storage.files import Files
from sadih_dask.storage.ingest.feed import Feed, select
from sadih_dask.storage.ingest.inputs import BESIDE, DataFiles, Inputs, open_inputs, parts_of
from sadih_dask.storage.ingest.marks import Sighting, look
from sadih_dask.storage.ingest.provenance import NOTHING, PROPERTY, Provenance, in_words
from sadih_dask.storage.ingest.space import check_space
from sadih_dask.storage.manifest import receipts
from sadih_dask.storage.settle import settle

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Appended:
    """What was written now, and what was there: files in the store, rows of an interrupted call."""

    n_new: int
    n_dropped: int
    n_files: int
    n_passed_over: int
    n_resumed: int = 0


def append_files(
    store: FeatureStore,
    place: Files,
    files: DataFiles,
    fixed: Mapping[str, str | int | None],
    progress: Progress | None,
) -> Appended:
    """Add the rows of files that the store does not have, all or none; `store` looks at them then.

    `fixed` is what the caller wants of things that cannot change any more: it is only compared.
    """
    known = Provenance.from_properties(store.properties, store.url) or NOTHING
    _check_fixed(store, fixed)
    seen = look(files)
    _check_unchanged(store, known, seen, files)
    new = [not known.has(mark) for mark in seen.features]
    if not any(new):
        settle(store)
        return Appended(0, 0, len(new), len(new))
    inputs, ranges = _open_new(store, files, new)
    _check_form(store, inputs)
    selection = select(inputs, files.unlabelled, ranges, files.hold_out)
    dtype = store.dtype("features").name
    added = Provenance.of(seen, inputs, dtype, files)
    record = known.followed_by(replace(added, marks=tuple(compress(added.marks, new))))
    # Blocks that an interrupted append has left are kept, or written over.
    n_left = max(0, selection.n_rows - len(receipts(place)) * store.block_rows)
    check_space(place, n_left * _row_bytes(store), store.compression, replaced=False)
    arrays = Feed(inputs, selection, dtype).arrays()

    def check_sources() -> None:
        if look(files) != seen:
            raise ConflictError(
                f"{store.url}: a source file was changed while it was being read, so nothing was "
                "added. Repeat the call when nobody writes to it any more"
            )

    n_resumed = store.append(
        **arrays,
        at=store.n_rows,
        class_names=None if inputs.labels is None else inputs.labels.class_names,
        properties={PROPERTY: record.to_property()},
        resume_key=record.fingerprint,
        before_commit=check_sources,
        progress=progress,
    )
    counts = (selection.n_rows - n_resumed, selection.n_dropped, len(new), new.count(False))
    return Appended(*counts, n_resumed)


def _open_new(
    store: FeatureStore, files: DataFiles, new: Sequence[bool]
) -> tuple[Inputs, list[tuple[int, int]] | None]:
    """Open the files and return the row ranges of new ones, None for all rows.

    Where everything is in the files of the features, only the new ones are opened: a folder to
    which a file is added now and then may hold thousands. Labels in files of their own need not
    be cut where the features are, so then all are opened.
    """
    known = _known_classes(store, files)
    if not any(map(files.names, BESIDE)):
        names = tuple(compress(files.names("features"), new))
        return open_inputs(replace(files, features=names), known), None
    inputs = open_inputs(files, known)
    lengths = [part.n_rows for part in parts_of(inputs.features)]
    ends = zip(lengths, accumulate(lengths), new, strict=True)
    return inputs, [(end - length, end) for length, end, is_new in ends if is_new]


def _known_classes(store: FeatureStore, files: DataFiles) -> Sequence[str] | None:
    """The classes of the store, or those of another one that it is to agree with."""
    if "labels" not in store.arrays:
        return None
    own, other = store.class_names, files.known_classes
    if other is None:
        return own
    shorter = min(len(own), len(other))
    if tuple(other[:shorter]) != own[:shorter]:
        raise LabelError(
            f"{store.url} numbers its classes {', '.join(own[:3])} ..., and is to agree with "
            f"{', '.join(other[:3])} .... Ingest it anew"
        )
    return own if len(own) > len(other) else other


def _row_bytes(store: FeatureStore) -> int:
    return sum(
        store.dtype(name).itemsize * int(np.prod(store.shape(name)[1:])) for name in store.arrays
    )


def _check_unchanged(
    store: FeatureStore, known: Provenance, seen: Sighting, files: DataFiles
) -> None:
    """Refuse files that the store was made of and that are no longer the same."""
    known.check_appendable(store.url)
    if changed := [mark.place for mark in seen.features if known.has_changed(mark)]:
        raise ConflictError(
            f"{in_words(changed)} was ingested before and has changed since. If it holds new "
            "rows only, give it another name; if its rows have changed, ingest all files anew "
            "with mode='overwrite'"
        )
    covers_rows_of_the_store = any(map(known.has, seen.features))
    if covers_rows_of_the_store and (beside := known.changed_beside(seen.beside)):
        raise ConflictError(
            f"{in_words([mark.place for mark in beside])}: was ingested before and has changed "
            "since, also for rows that are in the store. Give the labels or ids of new rows in "
            "files of their own, or ingest all files anew with mode='overwrite'"
        )
    part = "" if files.hold_out is None else files.hold_out.note()
    if known is not NOTHING and known.hold_out != part:
        raise ConflictError(
            f"{store.url} has {known.hold_out or 'all rows of its files'!r}, and rows of "
            f"{part or 'all'!r} cannot be added to it: rows would be in both parts, or in none. "
            "Repeat the fraction, seed and part, or ingest all files anew with mode='overwrite'"
        )


def _check_fixed(store: FeatureStore, fixed: Mapping[str, str | int | None]) -> None:
    found = {
        "dtype": store.dtype("features").name,
        "chunk_rows": store.chunk_rows,
        "compression": store.compression,
    }
    for name, wanted in fixed.items():
        if wanted is not None and wanted != found[name]:
            raise InputError(
                f"{store.url} has {name}={found[name]!r}, and appending cannot change that; got "
                f"{name}={wanted!r}. Leave it out, or ingest all files anew"
            )


def _check_form(store: FeatureStore, inputs: Inputs) -> None:
    """Refuse rows that are of another form than those of the store."""
    if set(inputs.sources) != set(store.arrays):
        raise InputError(
            f"{store.url} has {', '.join(store.arrays)}; {', '.join(inputs.sources)} were given. "
            "New rows need the same"
        )
    features, labels, thumbnails = inputs.features, inputs.labels, inputs.thumbnails
    if features.width != store.n_features:
        raise InputError(
            f"{features.describe()}: rows have {features.width} features, those of {store.url} "
            f"have {store.n_features}"
        )
    if labels is not None and labels.multi_label != (len(store.shape("labels")) == 2):
        kinds = ("one label a row", "several labels a row")
        raise LabelError(
            f"{labels.describe()}: has {kinds[labels.multi_label]}, {store.url} has "
            f"{kinds[not labels.multi_label]}. Use one form throughout"
        )
    if thumbnails is not None and thumbnails.row_shape != store.shape("thumbnails")[1:]:
        raise InputError(
            f"{thumbnails.describe()}: {store.url} has thumbnails of shape "
            f"{store.shape('thumbnails')[1:]}. Resize them"
        )
