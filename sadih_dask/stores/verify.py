"""Reading a whole store to say whether it is what was written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from sadih_dask.errors import IntegrityError
from sadih_dask.stores.reader import Snapshot, check_padding, read_chunk
from sadih_dask.stores.root import ROOT, stale_array_documents

Progress = Callable[[int, int], None]
_ATTEMPTS = 5
_PAUSE = 0.1


@dataclass(frozen=True)
class Verification:
    """What was checked, and a sentence for each chunk that is not what was written."""

    url: str
    n_rows: int
    n_chunks: int
    n_bytes: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Say whether everything that was checked is intact."""
        return not self.problems

    def raise_if_damaged(self) -> None:
        """Raise IntegrityError with the problems, the first ones in words."""
        if self.problems:
            shown = "\n".join(self.problems[:10])
            raise IntegrityError(
                f"{self.url}: {len(self.problems)} of {self.n_chunks} chunks are damaged:\n{shown}"
            )

    def __str__(self) -> str:
        verdict = "intact" if self.ok else f"{len(self.problems)} damaged"
        checked = f"{self.n_rows} rows, {self.n_chunks} chunks, {self.n_bytes} bytes"
        return f"{self.url}: {checked}: {verdict}"


def verify_snapshot(
    snapshot: Snapshot,
    names: Iterable[str],
    chunks: range,
    workers: int,
    progress: Progress | None,
) -> Verification:
    """Check the given chunks of the given arrays in threads; memory is a piece a thread.

    With the last chunk goes what follows it in its shard, which no reader looks at.
    """
    work = [(snapshot.layout(name), chunk) for name in names for chunk in chunks]
    nothing = np.empty(0, np.uint8)

    def check(number: int) -> str | None:
        layout, chunk = work[number]
        try:
            read_chunk(snapshot, layout, chunk, (0, 0), nothing)
            if chunk == snapshot.manifest.n_chunks - 1:
                check_padding(snapshot, layout)
        except IntegrityError as error:
            return str(error)
        return None

    problems = _stale_documents(snapshot)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        for done, problem in enumerate(pool.map(check, range(len(work))), start=1):
            if problem is not None:
                problems.append(problem)
            if progress is not None:
                progress(done, len(work))
    n_bytes = 0
    for layout, chunk in work:
        first, last = snapshot.manifest.rows_of(chunk)
        n_bytes += (last - first) * layout.row_bytes
    return Verification(
        snapshot.files.url, snapshot.commit.n_rows, len(work), n_bytes, tuple(problems)
    )


def _stale_documents(snapshot: Snapshot) -> list[str]:
    """Name the arrays whose own metadata are behind the commit; nobody of us reads their rows."""
    files, commit = snapshot.files, snapshot.commit
    for _ in range(_ATTEMPTS):
        # An earlier commit than the latest has fewer rows than they say.
        earlier = replace(commit, n_rows=commit.previous_rows)
        behind = set(commit.layouts) - set(stale_array_documents(files, earlier))
        if commit.n_rows <= commit.previous_rows or not behind:
            return []
        time.sleep(_PAUSE)  # a commit that is under way comes to them in a moment
    return [
        f"{files.url}: array {name!r}: its {ROOT} has {commit.previous_rows} rows of "
        f"{commit.n_rows}: it is damaged, or its writer was killed just after the commit. No rows "
        "are lost, but other Zarr tools do not see all. Repeat the command that wrote the store"
        for name in sorted(behind)
    ]
