"""Reading a whole store to say whether it is what was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sadih_dask.errors import IntegrityError
from sadih_dask.storage.reader import Snapshot, read_chunk

Progress = Callable[[int, int], None]


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
    """Check the given chunks of the given arrays in threads; memory is a piece a thread."""
    work = [(snapshot.layout(name), chunk) for name in names for chunk in chunks]
    nothing = np.empty(0, np.uint8)

    def check(number: int) -> str | None:
        layout, chunk = work[number]
        try:
            read_chunk(snapshot, layout, chunk, (0, 0), nothing)
        except IntegrityError as error:
            return str(error)
        return None

    problems = []
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
