"""Reading a whole store to say whether it is what was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sadih_dask.errors import FormatError, IntegrityError
from sadih_dask.stores.commit import read_sources
from sadih_dask.stores.reader import Snapshot, read_chunk
from sadih_dask.stores.root import Segment, load_json
from sadih_dask.stores.segment import SegmentWriter

Progress = Callable[[int, int], None]
_DOCUMENT_LIMIT = 1 << 20


@dataclass(frozen=True)
class Verification:
    """What was checked, and a sentence for each thing that is not what was written.

    unfinished  what was begun and not committed: nothing is lost, the same call goes on
    """

    url: str
    n_rows: int
    n_chunks: int
    n_bytes: int
    problems: tuple[str, ...]
    unfinished: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Say whether everything that was checked is intact."""
        return not self.problems

    def __str__(self) -> str:
        verdict = "intact" if self.ok else f"{len(self.problems)} damaged"
        checked = f"{self.n_rows} rows, {self.n_chunks} chunks, {self.n_bytes} bytes"
        return f"{self.url}: {checked}: {verdict}"


def verify_snapshot(
    snapshot: Snapshot, names: Iterable[str], workers: int, progress: Progress | None
) -> Verification:
    """Check every chunk of the given arrays in threads; memory is a piece a thread."""
    names = tuple(names)
    for name in names:
        snapshot.check_array(name)
    problems: list[str] = []
    try:
        read_sources(snapshot.files, snapshot.root)
    except (IntegrityError, FormatError) as error:
        problems.append(str(error))
    work = []
    for segment in snapshot.root.segments:
        problems += _metadata_problems(snapshot, segment)
        layouts = snapshot.root.layouts_of(segment)
        work += [(segment, layouts[name], k) for name in names for k in range(segment.n_chunks)]

    def check(number: int) -> str | None:
        segment, layout, chunk = work[number]
        try:
            read_chunk(snapshot, segment, layout, chunk, (0, 0), np.empty(0, np.uint8))
        except (IntegrityError, FormatError) as error:
            return str(error)
        return None

    with ThreadPoolExecutor(max_workers=workers) as pool:
        for done, problem in enumerate(pool.map(check, range(len(work))), start=1):
            if problem is not None and problem not in problems:
                problems.append(problem)
            if progress is not None:
                progress(done, len(work))
    n_bytes = sum(
        segment.n_rows * layout.row_bytes
        for segment in snapshot.root.segments
        for name, layout in snapshot.root.layouts_of(segment).items()
        if name in names
    )
    begun = tuple(f"segment {entry.id}, by {entry.by}" for entry in snapshot.root.pending)
    return Verification(
        snapshot.files.url, snapshot.n_rows, len(work), n_bytes, tuple(problems), begun
    )


def _metadata_problems(snapshot: Snapshot, segment: Segment) -> list[str]:
    """Look at the manifest, the deletions, and the documents that other Zarr tools read."""
    found = []
    for look in (snapshot.manifest, snapshot.dead):
        try:
            look(segment)
        except (IntegrityError, FormatError) as error:
            found.append(str(error))
    files = snapshot.files
    layouts = snapshot.root.layouts_of(segment)
    writer = SegmentWriter(files, segment.id, layouts, segment.n_rows, segment.foreign)
    for key, expected in writer.documents().items():
        where = f"{files.url}: {key}"
        try:
            document = load_json(files.read(key, _DOCUMENT_LIMIT), where)
        except FileNotFoundError:
            found.append(f"{where} is missing; other Zarr tools cannot read the rows")
        except (IntegrityError, FormatError) as error:
            found.append(str(error))
        else:
            if document != expected:
                found.append(f"{where} is damaged: it is not as it was written")
    return found
