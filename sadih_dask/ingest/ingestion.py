"""Whether the disk can take what is about to be written.

The driver: what is there already, what is to be written, and writing it block by block.

Further rows for a finished store, in one commit; files that it has already are passed over.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from dask.utils import format_bytes

from sadih_dask.errors import Argument, ConflictError, InputError, LabelError, Remedy
from sadih_dask.files.filesystem import Files, LocalFiles, connect
from sadih_dask.ingest.changes import existing
from sadih_dask.ingest.inputs import BESIDE, DataFiles, Inputs, open_inputs, parts_of
from sadih_dask.ingest.provenance import NOTHING, PROPERTY, Provenance, Sighting, in_words, look
from sadih_dask.ingest.selection import Feed, Selection, select, stored_dtype
from sadih_dask.stores.columns import declared, fitting
from sadih_dask.stores.features import FeatureStore, FeatureWriter
from sadih_dask.stores.manifest import receipts
from sadih_dask.stores.root import Commit
from sadih_dask.stores.segment import pour
from sadih_dask.stores.settle import settle

_SMALL_FILES = 1 << 20
"""Metadata and manifests."""


def row_bytes(inputs: Inputs, dtype: str, label_dtype: str, id_dtype: str | None) -> int:
    """Return the stored bytes of one row of all arrays."""
    size = inputs.features.width * np.dtype(dtype).itemsize
    if (labels := inputs.labels) is not None:
        size += len(labels.class_names) if labels.multi_label else np.dtype(label_dtype).itemsize
    if id_dtype is not None:
        _, stored, row_shape = declared(id_dtype)
        size += np.dtype(stored).itemsize * math.prod(row_shape)
    if inputs.thumbnails is not None:
        size += inputs.thumbnails.width
    return size


def check_space(place: Files, n_bytes: int, compression: str | None, replaced: bool) -> None:
    """Refuse rows that a local disk has no room for; what is going to be replaced counts as room.

    Nobody knows beforehand how far rows compress, so nothing is refused with zstd.
    """
    if not isinstance(place, LocalFiles) or compression == "zstd":
        return
    needed = n_bytes + _SMALL_FILES
    free = shutil.disk_usage(_nearest_folder(place.root)).free
    if replaced:
        free += _bytes_below(place.root)
    if needed > free:
        raise InputError(
            f"{place.url}: the rows need {needed} bytes ({format_bytes(needed)}), but its disk has "
            f"{free} free ({format_bytes(free)})",
            remedy=Remedy(
                "Make room, choose another disk, or try {}", Argument("compression", "zstd")
            ),
        )


def _nearest_folder(path: Path) -> Path:
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def _bytes_below(folder: Path) -> int:
    total = 0
    for entry in os.scandir(folder) if folder.is_dir() else ():
        if entry.is_dir(follow_symlinks=False):
            total += _bytes_below(Path(entry.path))
        else:
            total += entry.stat(follow_symlinks=False).st_size
    return total


Mode = Literal["create", "append", "overwrite"]
Progress = Callable[[int, int], None]
"""Called with the rows that are written and all rows that are to be written."""
LABEL_DTYPE = "int32"
_ID_STEP = 8
_ID_BLOCK = 65_536


@dataclass(frozen=True)
class Ingested:
    """What an ingestion did.

    n_new          rows that this call has written
    n_kept         rows that were there before it
    n_dropped      rows without a label that were left out
    n_files        feature files that were named
    n_passed_over  of them, files whose rows the store had already
    n_resumed      of the kept rows, those that an append had written before it was interrupted
    """

    store: FeatureStore
    n_new: int
    n_kept: int
    n_dropped: int
    n_files: int
    n_passed_over: int = 0
    n_resumed: int = 0


@dataclass(frozen=True)
class _Form:
    """How rows are to be stored; None leaves the choice to the data and the defaults."""

    dtype: str | None
    chunk_rows: int | None
    compression: str | None
    storage_options: Mapping[str, Any] | None


def ingest(
    files: DataFiles,
    url: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    chunk_rows: int | None = None,
    compression: str | None = None,
    mode: Mode = "create",
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Ingested:
    """Write the rows of files into a store; memory is five blocks of up to 16 MiB.

    Features keep their type unless `dtype` says otherwise; integers become float32. Mode "create"
    refuses to touch a finished store (unless it is the result of just this call), "append" adds
    the rows of files that are not in it, or creates it, and "overwrite" replaces it.
    """
    if mode not in ("create", "append", "overwrite"):
        raise InputError(f"mode must be 'create', 'append' or 'overwrite', got {mode!r}")
    place = connect(url, storage_options)
    found = existing(place)
    files = files.expanded()
    if mode == "append" and found is not None and found.complete:
        store = FeatureStore.open(url, storage_options=storage_options)
        fixed = {"dtype": dtype, "chunk_rows": chunk_rows, "compression": compression}
        added = append_files(store, place, files, fixed, progress)
        counts = (added.n_new, store.n_rows - added.n_new, added.n_dropped)
        return Ingested(store, *counts, added.n_files, added.n_passed_over, added.n_resumed)
    form = _Form(dtype, chunk_rows, compression, storage_options)
    return _create(place, found, files, form, mode, progress)


def _create(
    place: Files,
    found: Commit | None,
    files: DataFiles,
    form: _Form,
    mode: Mode,
    progress: Progress | None,
) -> Ingested:
    known = None if found is None else Provenance.from_properties(found.properties, place.url)
    seen = look(files, known)
    inputs = open_inputs(files, files.known_classes)
    selection = select(inputs, files.unlabelled, hold_out=files.hold_out)
    if not selection.n_rows:
        raise InputError(
            f"{inputs.features.describe()}: none of its rows falls into the part "
            f"{files.hold_out and files.hold_out.note()!r}. Hold out a larger fraction, or give "
            "more rows"
        )
    dtype = stored_dtype(inputs.features, form.dtype)
    record = Provenance.of(seen, inputs, dtype, files)
    n_files = len(record.marks)
    if found is not None and mode != "overwrite":
        if found.complete and _fingerprint(found) == record.fingerprint:
            store = FeatureStore.open(place.url, storage_options=form.storage_options)
            settle(store)
            return Ingested(store, 0, store.n_rows, selection.n_dropped, n_files)
        _refuse_other(place, found, record)
    plan = _plan(inputs, selection, form, dtype, record)
    done = _rows_done(place, found, record)
    n_bytes = (selection.n_rows - done) * row_bytes(inputs, dtype, LABEL_DTYPE, plan["id_dtype"])
    check_space(place, n_bytes, form.compression, replaced=mode == "overwrite" and not done)
    with FeatureStore.allocate(place.url, **plan, overwrite=mode == "overwrite") as writer:
        n_kept = _pour(writer, Feed(inputs, selection, dtype), progress)
        if look(files, known) != seen:
            raise ConflictError(
                f"{place.url}: a source file was changed while it was being read, so nothing was "
                "committed",
                remedy=Remedy(
                    "When nobody writes to it any more, begin anew with {}",
                    Argument("mode", "overwrite"),
                ),
            )
        store = writer.finalise()
    return Ingested(store, store.n_rows - n_kept, n_kept, selection.n_dropped, n_files)


def _plan(
    inputs: Inputs, selection: Selection, form: _Form, dtype: str, record: Provenance
) -> dict[str, Any]:
    """Return the arguments of `FeatureStore.allocate`."""
    labels, thumbnails = inputs.labels, inputs.thumbnails
    multi_label = labels is not None and labels.multi_label
    return {
        "n_rows": selection.n_rows,
        "n_features": inputs.features.width,
        "dtype": dtype,
        "label_dtype": None if labels is None else LABEL_DTYPE,
        "n_labels": len(labels.class_names) if labels is not None and multi_label else None,
        "id_dtype": None if inputs.ids is None else _id_dtype(inputs.ids),
        "thumbnail_shape": None if thumbnails is None else thumbnails.row_shape,
        "class_names": () if labels is None else labels.class_names,
        "source": inputs.describe(),
        "chunk_rows": form.chunk_rows,
        "compression": form.compression,
        "properties": {PROPERTY: record.to_property()},
        "storage_options": form.storage_options,
    }


def _id_dtype(ids: Any) -> str:
    """Return the type of the ids; text of the longest in bytes, rounded up for rows to come."""
    if ids.dtype.kind == "i":
        return "int64"
    longest = 1
    for start in range(0, ids.n_rows, _ID_BLOCK):
        block = ids.read(start, min(start + _ID_BLOCK, ids.n_rows))
        longest = max(longest, int(fitting(block)[1:]))
    return f"U{-(-longest // _ID_STEP) * _ID_STEP}"


def _pour(writer: FeatureWriter, feed: Feed, progress: Progress | None) -> int:
    """Write the missing blocks; return the rows that were there."""
    spans = [writer.rows_of(block) for block in writer.missing()]
    n_kept = done = writer.n_rows - sum(last - first for first, last in spans)

    def written(n_rows: int) -> None:
        nonlocal done
        done += n_rows
        if progress is not None:
            progress(done, writer.n_rows)

    written(0)
    pour(spans, feed.rows, lambda first, _, rows: writer.write(first, **rows), written)
    return n_kept


def _fingerprint(found: Commit) -> str | None:
    known = Provenance.from_properties(found.properties, "the store")
    return None if known is None else known.fingerprint


def _rows_done(place: Files, found: Commit | None, record: Provenance) -> int:
    if found is None or found.complete or _fingerprint(found) != record.fingerprint:
        return 0
    return min(found.planned_rows, len(receipts(place)) * found.layout.block_rows)


def _refuse_other(place: Files, found: Commit, record: Provenance) -> None:
    """Raise unless what is there is an unfinished ingestion of just these sources."""
    if found.complete:
        raise ConflictError(
            f"{place.url} already holds a finished store of {found.n_rows} rows",
            remedy=Remedy(
                "Add the rows to it with {}, or replace it with {}",
                Argument("mode", "append"),
                Argument("mode", "overwrite"),
            ),
        )
    known = Provenance.from_properties(found.properties, place.url)
    if known is None or known.resume_key == record.resume_key:
        return  # another plan than this one is refused by `allocate`
    if changed := known.written_since((*record.marks, *record.beside)):
        raise ConflictError(
            f"{place.url} holds an unfinished ingestion of files that have changed since: "
            f"{in_words(changed)}",
            remedy=Remedy("Begin anew with {}", Argument("mode", "overwrite")),
        )
    raise ConflictError(
        f"{place.url} holds an unfinished ingestion of other files or with other options",
        remedy=Remedy(
            "Repeat the call that began it, or begin anew with {}", Argument("mode", "overwrite")
        ),
    )


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
    seen = look(files, known)
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
        if look(files, known) != seen:
            raise ConflictError(
                f"{store.url}: a source file was changed while it was being read, so nothing was "
                "added. Repeat the call when nobody writes to it any more"
            )

    n_resumed = store.append(
        **arrays,
        at=store.n_rows,
        class_names=None if inputs.labels is None else inputs.labels.class_names,
        properties={PROPERTY: record.to_property()},
        resume_key=record.resume_key,
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
    if changed := [mark.place for mark in seen.features if known.has_changed(mark)]:
        raise ConflictError(
            f"{in_words(changed)} was ingested before and has changed since",
            remedy=Remedy(
                "If it holds new rows only, give it another name; if its rows have changed, ingest "
                "all files anew with {}",
                Argument("mode", "overwrite"),
            ),
        )
    covers_rows_of_the_store = any(map(known.has, seen.features))
    if covers_rows_of_the_store and (beside := known.changed_beside(seen.beside)):
        raise ConflictError(
            f"{in_words([mark.place for mark in beside])}: was ingested before and has changed "
            "since, also for rows that are in the store",
            remedy=Remedy(
                "Give the labels or ids of new rows in files of their own, or ingest all files "
                "anew with {}",
                Argument("mode", "overwrite"),
            ),
        )
    part = "" if files.hold_out is None else files.hold_out.note()
    if known is not NOTHING and known.hold_out != part:
        raise ConflictError(
            f"{store.url} has {known.hold_out or 'all rows of its files'!r}, and rows of "
            f"{part or 'all'!r} cannot be added to it: rows would be in both parts, or in none",
            remedy=Remedy(
                "Repeat the fraction, seed and part, or ingest all files anew with {}",
                Argument("mode", "overwrite"),
            ),
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
