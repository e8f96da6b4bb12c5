"""Files into a store: which rows are new, tasks that write them block by block, one commit.

Creating a store and adding to one are the same work; what differs is which files are read, and
whose classes, types and chunks hold. What can be wrong with shapes, labels, ids and space is looked
at here; then tasks, wherever they run, read the rows of whole blocks from the files and write them.
Blocks that are written stay: the same call after a kill goes on where it stopped, and never with
files that have changed since.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, compress
from typing import Any, Literal

from dask.utils import format_bytes

from sadih_dask.compute.memory import check_tasks
from sadih_dask.compute.run import Progress, in_rows, reporting, total_threads
from sadih_dask.compute.tree import TASKS_PER_THREAD, fill
from sadih_dask.errors import (
    Advice,
    Argument,
    ConflictError,
    DtypeError,
    FormatError,
    InputError,
    LabelError,
    Remedy,
)
from sadih_dask.files.filesystem import Files, LocalFiles, connect
from sadih_dask.ingest.changes import existing
from sadih_dask.ingest.ids import NewIds
from sadih_dask.ingest.inputs import BESIDE, DataFiles, Inputs, open_inputs
from sadih_dask.ingest.provenance import (
    NOTHING,
    Provenance,
    in_words,
    look,
    place_of,
    provenance_of,
)
from sadih_dask.ingest.selection import LABEL_DTYPE, Feed, stored_dtype
from sadih_dask.sources.chunked import is_zarr
from sadih_dask.sources.features import parts_of, row_numbers
from sadih_dask.stores.features import FeatureStore, FeatureWriter
from sadih_dask.stores.foreign import chunk_rows_for
from sadih_dask.stores.root import short_hash
from sadih_dask.stores.segment import Digests

Mode = Literal["create", "append", "overwrite"]
WRITERS = 2
"""Blocks that a task writes at the same time, beside the one that it reads."""
MOST_BLOCKS = 8
"""Blocks of one task, at most, where files can be read from any row on."""
ANEW = Argument("mode", "overwrite")
_PROBE_BYTES = 1 << 24
_SMALL_FILES = 1 << 20
"""Metadata and manifests."""


@dataclass(frozen=True)
class Ingested:
    """What an ingestion did.

    n_new          rows that this call has written
    n_kept         rows that were there before it
    n_dropped      rows without a label that were left out
    n_files        feature files that were named
    n_passed_over  of them, files whose rows the store had already
    n_resumed      of the kept rows, those that the same call had written before it was interrupted
    advice         what of the files is probably not meant as it is
    """

    store: FeatureStore
    n_new: int
    n_kept: int
    n_dropped: int
    n_files: int
    n_passed_over: int = 0
    n_resumed: int = 0
    advice: tuple[Advice, ...] = ()


def ingest(
    files: DataFiles,
    url: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    chunk_rows: int | None = None,
    compression: str | None = None,
    mode: Mode = "create",
    in_place: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Ingested:
    """Write the rows of files into a store, as tasks on threads or on the Dask cluster of now.

    Features keep their type unless `dtype` says otherwise; integers become float32. Mode "create"
    refuses to touch a finished store (unless it is the result of just this call), "append" adds
    the rows of files that are not in it, or creates it, and "overwrite" replaces it. `in_place`
    leaves the features in the Zarr array that they are in, as `FeatureStore.adopt` does.
    """
    if mode not in ("create", "append", "overwrite"):
        raise InputError(f"mode must be 'create', 'append' or 'overwrite', got {mode!r}")
    place = connect(url, storage_options, follow_links=False)
    root = existing(place)
    check_writable(place)
    store = None
    if root is not None and root.segments:
        store = FeatureStore.open(url, storage_options=storage_options)
    files = files.expanded()
    known = NOTHING if store is None else provenance_of(store) or NOTHING
    seen = look(files, known)
    form = {"dtype": dtype, "chunk_rows": chunk_rows, "compression": compression}
    if in_place and mode == "append":
        raise InputError("an array that stays in place is a store of its own; leave out the append")
    if store is not None and mode == "append":
        for name, has in other_form(store, form).items():
            raise InputError(
                f"{store.url} has {name}={has!r}, and appending cannot change that; got "
                f"{name}={form[name]!r}. Leave it out, or ingest all files anew"
            )
        _check_unchanged(store, known, seen)
        new = [not known.has(mark) for mark in seen.marks]
        if not any(new):
            return Ingested(store, 0, store.n_rows, 0, len(new), len(new))
        inputs, ranges = _open_new(store, files, new)
        seen = _numbered(inputs, files, known, seen, new)
        inputs = _with_ids(inputs, seen, store)
        _check_form(store, inputs)
        own = store.dtype("features").name
        feed = Feed(inputs, own, files.unlabelled, ranges, files.hold_out)
        added = seen.read_as(feed.inputs, feed.dtype)
        if known.columns and added.columns and known.columns != added.columns:
            raise InputError(
                f"{inputs.features.describe()}: its columns are not those of the files that are in "
                f"{store.url}, or in another order. Write it with the same columns in their order"
            )
        added = replace(added, marks=tuple(compress(added.marks, new)))
        check_space(place, feed.n_rows * store.row_bytes, store.compression)
        writer = _extending(store, feed, added, seen)
    else:
        new = [True] * len(seen.marks)
        inputs = open_inputs(files, files.known_classes)
        seen = _numbered(inputs, files, NOTHING, seen, new)
        feed = _of_all_files(_with_ids(inputs, seen), files, dtype)
        record = seen.read_as(feed.inputs, feed.dtype)
        if in_place:
            form["foreign"] = _array_in_place(files, feed, form)
        if store is not None and mode == "create":
            outside = not in_place and any(segment.foreign for segment in store.segments)
            if outside or known.fingerprint != record.fingerprint:
                which = " whose features lie outside of it" if outside else ""
                raise ConflictError(
                    f"{store.url} already holds a finished store of {store.n_rows} rows{which}",
                    remedy=Remedy(
                        "Add the rows to it with {}, or replace it with {}",
                        Argument("mode", "append"),
                        ANEW,
                    ),
                )
            return Ingested(store, 0, store.n_rows, feed.n_dropped, len(new))
        goes_on = root is not None and any(p.key.startswith(seen.key) for p in root.pending)
        if not goes_on and not in_place:
            check_space(place, feed.n_bytes, compression)
        if (ids := new_ids(feed)) is not None:
            ids.check_distinct()
        writer = _allocated(place, feed, form, record, seen, mode, storage_options)
    try:
        n_resumed = _write(writer, feed, progress)
    except (InputError, FormatError, DtypeError):
        if store is not None and mode == "append":  # a file has to change: nobody could go on
            writer.abandon()
        raise
    if look(files, known) != seen:
        writer.abandon()
        raise ConflictError(
            f"{place.url}: a source file was changed while it was being read, so nothing was "
            "committed. Repeat the call when nobody writes to it any more"
        )
    after = writer.finalise()
    n_new = writer.n_rows - n_resumed
    counts = (n_new, after.n_rows - n_new, feed.n_dropped)
    advice = tuple(feed.inputs.advice())
    return Ingested(after, *counts, len(new), new.count(False), n_resumed, advice)


def new_ids(feed: Feed) -> NewIds | None:
    """Return the ids that are to be added, if rows have any."""
    return None if feed.inputs.ids is None else NewIds(feed.inputs.ids, feed.ranges)


def _numbered(
    inputs: Inputs, files: DataFiles, known: Provenance, seen: Provenance, new: Sequence[bool]
) -> Provenance:
    """Number the rows of new files, if their numbers are to be their ids; nothing else changes."""
    there = {**known.row_numbers, **files.numbered_as}
    ours = known is NOTHING or bool(known.row_numbers)
    if inputs.ids is not None or not files.numbers_rows or not ours:
        return seen
    parts = iter(parts_of(inputs.features))
    opened_all = inputs.features.files() == files.names("features")
    lengths = [
        next(parts).n_rows if opened_all or is_new else 0 for is_new in new
    ]  # those that were not opened are known
    return seen.numbered(lengths, there)


def _with_ids(inputs: Inputs, seen: Provenance, store: FeatureStore | None = None) -> Inputs:
    """Return the inputs with row numbers as ids, if the files have some.

    A store that was made without ids does not get any because somebody would find them now.
    """
    if store is not None and "ids" not in store.arrays and not inputs.ids_wanted:
        return replace(inputs, ids=None)
    by_path = {mark.place: mark.rows for mark in seen.marks}
    firsts = [
        rows[0]
        for part in parts_of(inputs.features)
        if (rows := by_path.get(place_of(part.origin.path))) is not None
    ]
    return replace(inputs, ids=row_numbers(inputs.features, firsts)) if firsts else inputs


def read_through(files: DataFiles, store: FeatureStore | None = None) -> None:
    """Read files as an ingestion into the store would, every row of them, and keep nothing."""
    inputs = open_inputs(files, None if store is None else _known_classes(store, files))
    dtype = stored_dtype(inputs.features, None)
    if store is not None:
        if "ids" not in store.arrays and not inputs.ids_wanted:
            inputs = replace(inputs, ids=None)
        if files.numbers_rows and inputs.ids is None and "ids" in store.arrays:
            inputs = replace(inputs, ids=row_numbers(inputs.features, [0]))
        _check_form(store, inputs)
        dtype = store.dtype("features").name
    feed = Feed(inputs, dtype, files.unlabelled)
    if inputs.ids is not None:
        NewIds(inputs.ids, feed.ranges).check_distinct()
    step = max(1, _PROBE_BYTES // (inputs.features.width * inputs.features.dtype.itemsize))
    for first in range(0, feed.n_rows, step):
        feed.rows(first, min(first + step, feed.n_rows))


def _of_all_files(inputs: Inputs, files: DataFiles, dtype: str | None) -> Feed:
    dtype = stored_dtype(inputs.features, dtype)
    feed = Feed(inputs, dtype, files.unlabelled, hold_out=files.hold_out)
    if not feed.n_rows:
        raise InputError(
            f"{inputs.features.describe()}: none of its rows falls into the part "
            f"{files.hold_out and files.hold_out.note()!r}. Hold out a larger fraction, or give "
            "more rows"
        )
    return feed


def _allocated(
    place: Files,
    feed: Feed,
    form: Mapping[str, Any],
    record: Provenance,
    seen: Provenance,
    mode: Mode,
    storage_options: Mapping[str, Any] | None,
) -> FeatureWriter:
    """Begin a new store, or go on with the same ingestion."""
    labels, thumbnails = feed.inputs.labels, feed.inputs.thumbnails
    multi_label = labels is not None and labels.multi_label
    try:
        return FeatureStore.allocate(
            place.url,
            feed.n_rows,
            feed.inputs.features.width,
            dtype=feed.dtype,
            label_dtype=None if labels is None else LABEL_DTYPE,
            n_labels=len(labels.class_names) if labels is not None and multi_label else None,
            id_dtype=feed.id_dtype(),
            thumbnail_shape=None if thumbnails is None else thumbnails.row_shape,
            class_names=() if labels is None else labels.class_names,
            source=feed.inputs.describe(),
            chunk_rows=form["chunk_rows"],
            compression=form["compression"],
            foreign=form.get("foreign"),
            sources=record.to_bytes(),
            key=f"{seen.key}-{short_hash([record.fingerprint, form, record.row_numbers])}",
            overwrite=mode == "overwrite",
            storage_options=storage_options,
        )
    except ConflictError as error:
        raise ConflictError(
            f"{place.url} holds an unfinished ingestion of other files, of files that have changed "
            "since, or with other options",
            remedy=Remedy("Repeat the call that began it, or begin anew with {}", ANEW),
        ) from error


def _array_in_place(files: DataFiles, feed: Feed, form: Mapping[str, Any]) -> str:
    """Return where the Zarr array is whose rows are to stay there; InputError if they cannot."""
    parts = parts_of(feed.inputs.features)
    source, origin = parts[0], parts[0].origin
    asked = files.transpose or files.scale is not None or form["chunk_rows"] is not None
    same = feed.takes_all and feed.dtype == source.dtype.name and not asked
    if len(parts) > 1 or not is_zarr(origin.path) or not same:
        raise InputError(
            f"{feed.inputs.features.describe()}: only all rows of one Zarr array can stay in "
            "place, as they are: none left out, transposed, scaled or converted, in their own "
            "chunks. Leave these options out, or ingest a copy"
        )
    location = origin.path if origin.variable is None else f"{origin.path}/{origin.variable}"
    location = place_of(location)
    chunk_rows_for(location)
    return location


def _extending(
    store: FeatureStore, feed: Feed, added: Provenance, seen: Provenance
) -> FeatureWriter:
    """Begin to add to a store, or go on with the same addition."""

    def record(there: bytes | None) -> bytes:
        known = NOTHING if there is None else Provenance.from_bytes(there, store.url)
        if twice := [mark.place for mark in added.marks if known.has(mark)]:
            raise ConflictError(
                f"{store.url}: somebody else has added {in_words(twice)} in the meantime; nothing "
                "was added twice. Repeat the call for what is left"
            )
        return known.followed_by(added).to_bytes()

    labels, ids = feed.inputs.labels, new_ids(feed)
    if ids is not None:
        ids.check_distinct()
    return store.extend(
        feed.n_rows,
        class_names=None if labels is None else labels.class_names,
        sources=record,
        admit=None if ids is None else ids.check_absent,
        key=f"{seen.key}-{short_hash([added.fingerprint, added.row_numbers, store.uid])}",
    )


def _write(writer: FeatureWriter, feed: Feed, progress: Progress | None) -> int:
    """Write the missing blocks, as tasks; return the rows that were there.

    Nothing but digests passes through this process, but for labels and the like that can only be
    read from the beginning of a file on, which are written from here.
    """
    missing = writer.missing()
    n_kept = writer.n_rows - sum(len(range(*writer.rows_of(block))) for block in missing)
    most = blocks_per_task(len(missing), total_threads())
    units, apart = feed.units(missing, writer.block_rows, most)
    task_bytes = feed.working_bytes(writer.block_rows, WRITERS)
    if feed.fetches():
        task_bytes = (1 + WRITERS) * feed.working_bytes(writer.block_rows, 1)
    check_tasks("the ingestion", task_bytes, len(units))
    with reporting(in_rows(n_kept, writer.n_rows, progress)):
        own = feed.only(apart)
        for first, last in map(writer.rows_of, writer.missing(apart)):
            writer.write_arrays(first, own.rows(first, last))
        fill(writer, _write_unit, feed.only(set(feed.inputs.sources) - set(apart)), units)
    return n_kept


def blocks_per_task(n_blocks: int, threads: int) -> int:
    """Return how many blocks a task writes: the fewer, the more evenly they are spread."""
    return min(max(1, n_blocks // (TASKS_PER_THREAD * threads)), MOST_BLOCKS)


def _write_unit(writer: FeatureWriter, blocks: range, feed: Feed) -> Digests:
    """Read rows of files and write them: what a task does.

    Blocks are written in threads: a writer waits for the disk or the network after every one, and
    the reader need not. From files behind a network that can be entered anywhere, each thread reads
    its own, and waits for neither.
    """
    rows = [writer.rows_of(block) for block in blocks]
    digests = Digests()

    def copy_block(ends: tuple[int, int]) -> Digests:
        return writer.write_arrays(ends[0], feed.reopened(*ends).rows(*ends))

    if feed.fetches(first for first, _ in rows):
        with ThreadPoolExecutor(1 + WRITERS) as pool:
            for found in pool.map(copy_block, rows):
                digests |= found
        return digests
    own = feed.reopened(rows[0][0], rows[-1][1])
    under_way: deque[Future[Digests]] = deque()
    with ThreadPoolExecutor(WRITERS) as pool:
        for first, last in rows:
            read = own.rows(first, last)
            if len(under_way) == WRITERS:
                digests |= under_way.popleft().result()
            under_way.append(pool.submit(writer.write_arrays, first, read))
            del read
        for future in under_way:
            digests |= future.result()
    return digests


def check_writable(place: Files) -> None:
    """Refuse a folder that nothing may be written to, before files are read through."""
    if not isinstance(place, LocalFiles):
        return
    folder = next(each for each in (place.root, *place.root.parents) if each.is_dir())
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"{place.url}: nothing can be written to the folder {folder}. Allow it, or choose "
            "another place"
        )


def check_space(place: Files, n_bytes: int, compression: str | None) -> None:
    """Refuse rows that a local disk has no room for.

    Nobody knows beforehand how far rows compress, so nothing is refused with zstd. What is going to
    be replaced stays until the commit, so it is no room.
    """
    if not isinstance(place, LocalFiles) or compression == "zstd":
        return
    needed = n_bytes + _SMALL_FILES
    folders = (place.root, *place.root.parents)
    free = shutil.disk_usage(next(folder for folder in folders if folder.is_dir())).free
    if needed > free:
        raise InputError(
            f"{place.url}: the rows need {needed} bytes ({format_bytes(needed)}), but its disk has "
            f"{free} free ({format_bytes(free)})",
            remedy=Remedy(
                "Make room, choose another disk, or try {}", Argument("compression", "zstd")
            ),
        )


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


def _check_unchanged(store: FeatureStore, known: Provenance, seen: Provenance) -> None:
    """Refuse files that the store was made of and that are no longer the same."""
    anew = "or ingest all files anew with {}"
    if changed := [mark.place for mark in seen.marks if known.has_changed(mark)]:
        raise ConflictError(
            f"{in_words(changed)} was ingested before and has changed since",
            remedy=Remedy(f"If it holds new rows only, give it another name, {anew}", ANEW),
        )
    covers_rows_of_the_store = any(map(known.has, seen.marks))
    if covers_rows_of_the_store and (beside := known.changed_beside(seen)):
        raise ConflictError(
            f"{in_words(beside)}: is not what rows that are in the store were ingested with",
            remedy=Remedy(f"Give labels or ids of new rows in files of their own, {anew}", ANEW),
        )
    if known is not NOTHING and known.hold_out != seen.hold_out:
        raise ConflictError(
            f"{store.url} has {known.hold_out or 'all rows of its files'!r}, and rows of "
            f"{seen.hold_out or 'all'!r} cannot be added to it: rows would be in both parts, or in "
            "none",
            remedy=Remedy(f"Repeat the fraction, seed and part, {anew}", ANEW),
        )


def other_form(store: FeatureStore, form: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a store has where another form is asked for: dtype, chunk_rows, compression."""
    found = {
        "dtype": store.dtype("features").name,
        "chunk_rows": store.new_chunk_rows,
        "compression": store.compression,
    }
    return {name: found[name] for name, v in form.items() if v not in (None, found[name])}


def _check_form(store: FeatureStore, inputs: Inputs) -> None:
    """Refuse rows that are of another form than those of the store."""
    if set(inputs.sources) != set(store.arrays):
        raise InputError(
            f"{store.url} has {', '.join(store.arrays)}; {', '.join(inputs.sources)} were given. "
            "New rows need the same"
        )
    features, labels, thumbnails = inputs.features, inputs.labels, inputs.thumbnails
    if inputs.ids is not None and inputs.ids.holds_text == (store.dtype("ids").kind == "i"):
        raise DtypeError(
            f"{inputs.ids.describe()}: these are ids, and those of {store.url} are "
            f"{'text' if inputs.ids.dtype.kind == 'i' else 'integers'}. Write them alike"
        )
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
