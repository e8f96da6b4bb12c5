"""The driver: what is there already, what is to be written, and writing it block by block."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sadih_dask.errors import ConflictError, InputError
from sadih_dask.storage.commit import Commit
from sadih_dask.storage.features import FeatureStore, FeatureWriter
from sadih_dask.storage.files import Files, connect
from sadih_dask.storage.ids import fitting
from sadih_dask.storage.ingest.append import append_files
from sadih_dask.storage.ingest.changes import existing
from sadih_dask.storage.ingest.feed import Feed, Selection, select, stored_dtype
from sadih_dask.storage.ingest.inputs import DataFiles, Inputs, open_inputs
from sadih_dask.storage.ingest.marks import look
from sadih_dask.storage.ingest.provenance import PROPERTY, Provenance, in_words
from sadih_dask.storage.ingest.space import check_space, row_bytes
from sadih_dask.storage.manifest import receipts
from sadih_dask.storage.pouring import pour
from sadih_dask.storage.settle import settle

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
    seen = look(files)
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
        if look(files) != seen:
            raise ConflictError(
                f"{place.url}: a source file was changed while it was being read, so nothing was "
                "committed. When nobody writes to it any more, begin anew with mode='overwrite'"
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
            f"{place.url} already holds a finished store of {found.n_rows} rows. Add the rows to "
            "it with mode='append', or replace it with mode='overwrite'"
        )
    known = Provenance.from_properties(found.properties, place.url)
    if known is None or known.fingerprint == record.fingerprint:
        return  # another plan than this one is refused by `allocate`
    changed = [mark.place for mark in record.marks if known.has_changed(mark)]
    changed += [mark.place for mark in known.changed_beside(record.beside)]
    if changed:
        raise ConflictError(
            f"{place.url} holds an unfinished ingestion of files that have changed since: "
            f"{in_words(changed)}. Begin anew with mode='overwrite'"
        )
    raise ConflictError(
        f"{place.url} holds an unfinished ingestion of other files or with other options. Repeat "
        "the call that began it, or begin anew with mode='overwrite'"
    )
