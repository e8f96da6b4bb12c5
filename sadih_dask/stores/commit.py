"""What may be done to a store, and what happens when somebody else was faster.

Every operation prepares its files under names of its own and then replaces the root, on condition
that the root is still the one it looked at (`files.conditional`). Correctness rests on that
alone: on no lock, no lease and no clock. When the root has moved, the operation looks at the new
one:

    operation   before the root     in the root                 if the root has moved
    ---------   -----------------   -------------------------   -------------------------------
    begin       -                   name in `pending`           look again, add again
    create      chunks, manifest    segments = [new]            refused if there are rows now
    append      chunks, manifest    segments += [new]           both are kept, one after the
                                                                other; refused if both bring
                                                                new classes (their numbers
                                                                would clash) or if a source of
                                                                this one is in the store now
      (small)   last small ones     they -> one                 if those have changed: appended
                and new rows                                    alone
    overwrite   chunks, manifest    segments = [new],           refused unless it is the state
                                    `pending` = []              that was to be replaced
    delete      list of dead rows   name it in the segment      look for the ids again
    compact     new segment         old ones -> one             refused if an old one or its
                                                                deletions have changed
    abandon     -                   drop from `pending`         look again
    restore     -                   segments of a former root,  look again
                                    `pending` = []
    clone       links or copies of  segments = those of         refused if there are rows now
                all segments        another store

A segment's name stands in `pending` of the root before its first byte exists, names are never
used again, and a segment is only committed if it is in `pending` of the very root that is
replaced. So what is neither in the root nor in a root of its history belongs to nobody, and
`collect` may delete it: it lists names, then replaces the root by one that is alike (whoever has
prepared small files, such as a list of dead rows, on the former one has to prepare them again,
under other names), then deletes what it has listed and the new root does not reach. To abandon
somebody else's pending segment by mistake costs his work, never rows: his commit is refused.

The root that is about to be replaced is saved first, under its number and commit, so that those
who read that state go on to the end of their job. The last 16 are kept (one, after an overwrite).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from sadih_dask.errors import (
    Argument,
    ConflictError,
    FormatError,
    IncompleteError,
    InputError,
    IntegrityError,
    Remedy,
    SadihError,
)
from sadih_dask.files import conditional
from sadih_dask.files.checksum import TRAILER_BYTES, crc32c, trailer
from sadih_dask.files.filesystem import TEMPORARY_SUFFIX, Files, share
from sadih_dask.stores.deletions import write_deletions
from sadih_dask.stores.reader import Snapshot, read_rows
from sadih_dask.stores.root import (
    DELETIONS,
    FORMER_ROOTS,
    KEPT_GENERATIONS,
    ROOT,
    ROOT_LIMIT,
    SEGMENTS,
    SOURCES,
    Leaf,
    Pending,
    Root,
    Segment,
    former_root_key,
    new_id,
    parse_root,
    read_root,
    read_state,
    short_hash,
)
from sadih_dask.stores.segment import Rows, SegmentWriter, explained
from sadih_dask.types import Ints

logger = logging.getLogger(__name__)

COMPACTION = "compact-"
"""How the key of a segment begins that others are joined to."""
SOURCES_LIMIT = 64 << 20
Mode = Literal["create", "append", "overwrite"]
Leaves = tuple[Leaf, ...]
Amend = Callable[[Root], Mapping[str, Any]]
"""From the root that is going to be replaced to changes of it: `properties`, `sources`, and
`segments` with more deleted rows."""


@dataclass(frozen=True)
class Plan:
    """A segment that is going to be added, as its writers and its committer need it.

    root      arrays and properties; for an append, the state that it was begun on
    key       what the same call will have again
    absorbs   trailing segments whose rows are written again, before the new ones
    foreign   where the features lie, if they are adopted
    """

    mode: Mode
    root: Root
    segment_id: str
    key: str
    n_new: int
    absorbs: tuple[Segment, ...] = ()
    foreign: str | None = None

    @property
    def n_absorbed(self) -> int:
        """Rows that are written again."""
        return sum(segment.n_live for segment in self.absorbs)

    def writer(self, files: Files) -> SegmentWriter:
        """Return what writes the chunks."""
        n_rows = self.n_absorbed + self.n_new
        chunk_rows = max(1, min(self.root.chunk_rows, n_rows))
        layouts = self.root.layouts(chunk_rows, self.root.compression)
        return SegmentWriter(files, self.segment_id, layouts, n_rows, self.foreign)


def update(files: Files, kind: str, change: Callable[[Root], Root | None]) -> Root:
    """Replace the root by what `change` makes of it, again and again until nobody interferes.

    `change` returns None if what it is about is done already, by us or by a call like ours.
    """
    tried: set[str] = set()
    while True:
        root, seen = read_root(files, kind)
        if tried.intersection(root.recent):  # the answer was lost, and others have committed since
            return root
        new = change(root)
        if new is None:
            return root
        tried.update(set(new.recent) - set(root.recent))
        if new.commit != root.commit and root.segments:
            with explained(files, f"commit {root.generation}, for those who read it"):
                files.create(former_root_key(root.generation, root.commit), [seen.data])
                files.sync(FORMER_ROOTS)
        with explained(files, f"commit {new.generation}"):
            if conditional.replace(files, ROOT, new.to_bytes(), seen):
                return new


def existing(files: Files, kind: str) -> Root | None:
    """Return what stands at the place of a new store; ConflictError if that is not ours."""
    # A writer may have been killed at its very first file
    ours = (TEMPORARY_SUFFIX, conditional.SWAP)
    found = [name for name in files.names("") if not name.endswith(ours)]
    if not found:
        return None
    try:
        return read_root(files, kind)[0]
    except FormatError as error:
        raise ConflictError(
            f"{files.url} holds something that is not a store of this kind ({found[0]!r} among "
            f"other names) and is left alone; choose another path ({error})"
        ) from error


def begin(
    files: Files,
    plan_root: Root,
    n_new: int,
    mode: Mode,
    key: str,
    *,
    absorb: bool = True,
) -> Plan:
    """Name a new segment in the root, or find the one that the same call has begun.

    `plan_root` says what the store is going to be; for an append, what it is. An append takes small
    segments at the end of the store up, if it may `absorb` them.
    """
    conditional.check_writable(files)
    if mode != "append" and existing(files, plan_root.kind) is None:
        segment_id = new_id()
        first = replace(plan_root, uid=new_id(), pending=(Pending(segment_id, key),))
        with explained(files, "the empty store"):
            if conditional.replace(files, ROOT, first.to_bytes(), None):
                return Plan(mode, first, segment_id, key, n_new)
    plan = Plan(mode, plan_root, "", key, n_new)

    def change(root: Root) -> Root | None:
        nonlocal plan
        _check_begin(files.url, root, mode, key)
        base = root if mode == "append" and root.segments else replace(root, **plan_root.form)
        absorbs = _absorbed(root, n_new) if absorb and mode == "append" else ()
        name = key + (":" + short_hash([segment.id for segment in absorbs]) if absorbs else "")
        found = root.pending_with(name)
        segment_id = new_id() if found is None else found.id
        plan = Plan(mode if root.segments else "create", base, segment_id, key, n_new, absorbs)
        if found is not None:
            return None
        others = root.pending if mode != "overwrite" else ()
        kept = tuple(entry for entry in others if entry.key.partition(":")[0] != key)
        return replace(root, pending=(*kept, Pending(segment_id, name)))

    update(files, plan_root.kind, change)
    return plan


def _check_begin(url: str, root: Root, mode: Mode, key: str) -> None:
    if mode != "create" or (not root.segments and root.pending_with(key) is not None):
        return
    if not root.segments and not root.pending:
        return  # everything that was begun has been abandoned
    state = "a finished store"
    if not root.segments:
        state = f"an unfinished store of another plan (begun by {root.pending[0].by})"
    raise ConflictError(
        f"{url} already holds {state}; choose another path",
        remedy=Remedy("To replace it say {}", Argument("overwrite", True)),
    )


def _absorbed(root: Root, n_new: int) -> tuple[Segment, ...]:
    """Return the trailing segments that fit one chunk together with the new rows.

    None with deleted rows: who has not seen those yet could not tell any more which they were.
    """
    room, first = root.chunk_rows - n_new, len(root.segments)
    while n_new and first:
        last = root.segments[first - 1]
        if last.n_rows > room or last.deleted is not None:
            break
        first -= 1
        room -= last.n_rows
    return root.segments[first:]


def read_absorbed(files: Files, plan: Plan, name: str) -> Any:
    """Return the rows of an array that are written again."""
    state = replace(plan.root, segments=plan.absorbs)
    return read_rows(Snapshot(files, state), name)


def commit(files: Files, plan: Plan, segment: Segment, amend: Amend | None = None) -> Root | None:
    """Add a sealed segment; None if small segments that it was to replace have changed."""
    overtaken = False

    def change(root: Root) -> Root | None:
        nonlocal overtaken
        overtaken = False
        if segment.id in root.recent:
            return None
        _check_pending(files.url, root, segment.id)
        changes = dict(amend(root)) if amend is not None else {}
        if plan.mode == "append":
            changes["pending"] = root.without_pending(segment.id)
            kept = root.segments[: len(root.segments) - len(plan.absorbs)]
            if (*kept, *plan.absorbs) != root.segments:
                overtaken = True
                return None
            kept = changes.pop("segments", kept)
            added = (segment,) if segment.n_rows else ()
            return root.committed(segment, segments=(*kept, *added), **changes)
        if root.commit != plan.root.commit:
            raise ConflictError(
                f"{files.url} has been written by somebody else in the meantime (commit "
                f"{root.generation}, {root.n_rows} rows); nothing was changed. Look at it, and "
                "repeat the call if it is still wanted"
            )
        # What others were adding was numbered for the rows that are gone
        changes = {**plan.root.form, **changes}
        new = root.committed(segment, segments=(segment,), pending=(), **changes)
        return replace(new, history=new.history[-1:])

    root = update(files, plan.root.kind, change)
    if overtaken:
        return None
    n_kept = 2 * (len(root.segments) + KEPT_GENERATIONS)
    with suppress(OSError, SadihError):  # the rows are there; what is left over can wait
        if plan.mode == "overwrite" or (plan.absorbs and len(files.names(SEGMENTS)) > n_kept):
            collect(files, plan.root.kind)
    return root


def seal(files: Files, kind: str, writer: SegmentWriter, leaves: Leaves) -> Segment:
    """Seal a segment; if it is incomplete because it was given up, say so."""
    try:
        return writer.seal(leaves)
    except IncompleteError:
        root, _ = read_root(files, kind)
        if writer.id not in root.recent:
            _check_pending(files.url, root, writer.id)
        raise


def _check_pending(url: str, root: Root, segment_id: str) -> None:
    """Raise unless a segment is still named: if it is not, its files may be deleted."""
    if all(entry.id != segment_id for entry in root.pending):
        raise ConflictError(
            f"{url}: what was being written has been given up by somebody else (overwritten or "
            "abandoned), so it was not added. Repeat the call if it is still wanted"
        )


def delete_rows(files: Files, kind: str, find: Callable[[Snapshot], Ints]) -> tuple[Root, int]:
    """Mark rows dead: those that `find` names (logical, ascending) in the state it is shown."""
    n_rows = 0

    def change(root: Root) -> Root | None:
        nonlocal n_rows
        snapshot = Snapshot(files, root)
        rows = find(snapshot)
        n_rows = len(rows)
        if not n_rows:
            return None
        return root.committed(segments=segments_without(snapshot, rows))

    return update(files, kind, change), n_rows


def segments_without(snapshot: Snapshot, rows: Ints) -> tuple[Segment, ...]:
    """Write lists of dead rows, and return the segments with these (logical, ascending) dead."""
    changed = {}
    with explained(snapshot.files, "the list of deleted rows"):
        for segment, _, places in snapshot.positions(rows):
            dead = np.union1d(snapshot.dead(segment), places)
            changed[segment.id] = replace(segment, deleted=write_deletions(snapshot.files, dead))
        snapshot.files.sync(DELETIONS)
    return tuple(changed.get(segment.id, segment) for segment in snapshot.root.segments)


def abandon(files: Files, kind: str, which: Callable[[Pending], bool] = lambda _: True) -> int:
    """Give up what was begun and never finished; return how many segments."""
    n_given_up = 0

    def change(root: Root) -> Root | None:
        nonlocal n_given_up
        kept = tuple(entry for entry in root.pending if not which(entry))
        n_given_up = len(root.pending) - len(kept)
        return replace(root, pending=kept) if n_given_up else None

    update(files, kind, change)
    return n_given_up


def restore(files: Files, kind: str, generation: int) -> Root:
    """Make a former state the latest one again."""

    def change(root: Root) -> Root | None:
        if generation == root.generation:
            return None
        known = dict(root.history)
        if generation not in known:
            kept = ", ".join(map(str, known)) or "none"
            raise InputError(
                f"{files.url}: commit {generation} is not kept, so it cannot be restored; the "
                f"latest is {root.generation}, kept are {kept}"
            )
        former = read_state(files, kind, generation, known[generation])
        return root.committed(segments=former.segments, pending=(), **former.form)

    return update(files, kind, change)


def clone(source: Snapshot, files: Files) -> Root:
    """Make a state a store of its own elsewhere: segments never change, so files are shared.

    The same call goes on with one that was interrupted.
    """
    root = source.root
    conditional.check_writable(files)
    if existing(files, root.kind) is None:
        pending = tuple(Pending(segment.id, "clone") for segment in root.segments)
        empty = replace(root, uid=new_id(), commit="", generation=0, segments=(), pending=pending)
        bare = replace(empty, history=(), recent=(), sources=None)
        conditional.replace(files, ROOT, bare.to_bytes(), None)
    with explained(files, "the segments of another store"):
        for key in (f"{SEGMENTS}/{ROOT}", *(segment.path for segment in root.segments)):
            share(source.files, files, key)
        files.sync(SEGMENTS)

    def change(now: Root) -> Root:
        if now.segments or [entry.id for entry in now.pending] != [s.id for s in root.segments]:
            raise ConflictError(f"{files.url} already holds a store; choose another path")
        for key in _reached(root) - {segment.path for segment in root.segments}:
            share(source.files, files, key)
            files.sync(key.rpartition("/")[0])
        return now.committed(segments=root.segments, sources=root.sources, pending=())

    return update(files, root.kind, change)


def compact(
    files: Files,
    kind: str,
    *,
    everything: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Root:
    """Join small segments and those with deleted rows to larger ones; `everything` to one.

    Rows, their order and their leaves stay: no model and no code has to be made anew.
    """
    root, _ = read_root(files, kind)
    runs = _runs(root, everything)
    total = sum(segment.n_live for run in runs for segment in run)
    done = 0

    def told(n_rows: int) -> None:
        nonlocal done
        done += n_rows
        if progress is not None:
            progress(done, total)

    for run in runs:
        root = _join(files, root, run, told)
    return root


def _runs(root: Root, everything: bool) -> list[tuple[Segment, ...]]:
    """Adjacent segments that are worth joining."""
    runs: list[list[Segment]] = [[]]
    for segment in root.segments:
        small = segment.n_live < 4 * root.chunk_rows
        if everything or small or segment.deleted is not None:
            runs[-1].append(segment)
        else:
            runs.append([])
    return [tuple(run) for run in runs if len(run) > 1 or (run and run[0].deleted is not None)]


def _join(
    files: Files,
    root: Root,
    run: tuple[Segment, ...],
    told: Callable[[int], None],
) -> Root:
    parts = [[segment.id, segment.deleted and segment.deleted.id] for segment in run]
    part = Snapshot(files, replace(root, segments=run))
    key = f"{COMPACTION}{short_hash(parts)}"
    plan = begin(files, root, part.n_rows, "append", key, absorb=False)
    writer = replace(plan, root=root).writer(files)
    writer.begin()
    size = writer.chunk_rows
    for chunk in writer.missing():
        first, last = chunk * size, min((chunk + 1) * size, part.n_rows)
        writer.write(first, {name: read_rows(part, name, first, last) for name in root.arrays})
        told(last - first)
    leaves = tuple(leaf for segment in run for leaf in segment.live_leaves())
    sealed = seal(files, root.kind, writer, leaves)

    def change(latest: Root) -> Root | None:
        if sealed.id in latest.recent:
            return None
        start = next((k for k, found in enumerate(latest.segments) if found == run[0]), 0)
        if latest.segments[start : start + len(run)] != run:
            raise ConflictError(
                f"{files.url}: rows were deleted or rewritten while it was being compacted; "
                "nothing was changed. Repeat the call"
            )
        _check_pending(files.url, latest, sealed.id)
        segments = (*latest.segments[:start], sealed, *latest.segments[start + len(run) :])
        return latest.committed(
            sealed, segments=segments, pending=latest.without_pending(sealed.id)
        )

    try:
        return update(files, root.kind, change)
    except ConflictError:
        abandon(files, root.kind, lambda entry: entry.id == sealed.id)
        raise


def collect(files: Files, kind: str, *, keep: int = KEPT_GENERATIONS) -> list[str]:
    """Delete what no state that is kept can reach; return the keys that are gone.

    Nothing goes while the root of a former state is damaged, as what it needs cannot be known.
    """
    folders = (SEGMENTS, DELETIONS, SOURCES, FORMER_ROOTS)
    listed = [
        f"{folder}/{name}"
        for folder in folders
        for name in files.names(folder)
        if not name.endswith(TEMPORARY_SUFFIX)  # somebody is just writing it
    ]
    listed += [f"{folder}/{name}" for folder in folders for name in files.left_behind(folder)]

    def forget(root: Root) -> Root:
        return replace(root, history=root.history[-keep:] if keep else ())

    root = update(files, kind, forget)
    live = {f"{SEGMENTS}/{ROOT}", *(f"{SEGMENTS}/{entry.id}" for entry in root.pending)}
    # Whoever replaces this root has saved it, or is going to
    live |= _reached(root) | {former_root_key(root.generation, root.commit)}
    for generation, name in root.history:
        key = former_root_key(generation, name)
        try:
            former = parse_root(files.url, files.read(key, ROOT_LIMIT), kind, key)
        except FileNotFoundError:
            continue
        except SadihError as error:
            logger.warning("%s. Nothing is deleted while commit %d is kept", error, generation)
            return []
        live |= {key} | _reached(former)
    gone = [key for key in listed if key not in live]
    for key in gone:
        files.delete(key)
    return gone


def _reached(root: Root) -> set[str]:
    """Return the keys that a state needs."""
    keys = {segment.path for segment in root.segments}
    keys |= {f"{DELETIONS}/{s.deleted.id}" for s in root.segments if s.deleted is not None}
    return keys | ({f"{SOURCES}/{root.sources}"} if root.sources else set())


def write_sources(files: Files, data: bytes) -> str:
    """Write a record of the files that rows came from, and return its name for the root."""
    name = new_id()
    with explained(files, "the record of source files"):
        files.create(f"{SOURCES}/{name}", [data, trailer(crc32c(name.encode() + data))])
        files.sync(SOURCES)
    return name


def read_sources(files: Files, root: Root) -> bytes | None:
    """Return the record of the files that rows came from, if there is one."""
    if root.sources is None:
        return None
    where = f"{files.url}: {SOURCES}/{root.sources}, the record of its source files,"
    try:
        stored = files.read(f"{SOURCES}/{root.sources}", SOURCES_LIMIT + TRAILER_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise IntegrityError(f"{where} is missing. Restore that file from a copy") from error
    data = stored[:-TRAILER_BYTES]
    if trailer(crc32c(root.sources.encode() + data)) != stored[-TRAILER_BYTES:]:
        raise IntegrityError(f"{where} is damaged. Restore that file from a copy")
    return data


def rows_alone(files: Files, plan: Plan, segment: Segment) -> Rows:
    """Return the new rows of a small segment that was written together with older ones."""
    part = Snapshot(files, replace(plan.root, segments=(segment,)))
    return {name: read_rows(part, name, plan.n_absorbed) for name in plan.root.arrays}
