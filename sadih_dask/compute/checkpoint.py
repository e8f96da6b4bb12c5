"""A pass over a store that goes on where an interrupted one was: finished parts are loaded.

The reduction tree has a fixed shape, so what a subtree of it comes to depends on the rows below it
alone. The subtrees of one level are the *parts* of a pass: the task that completes one writes its
partial result to a file, and the next pass over the same rows begins with those files. So does this
one when the worker that held the partial result dies: tasks that are repeated see that the part is
finished and read nothing. The result has the same bits, whatever was loaded and whatever was read.

Name and contents of a file say which pass it belongs to, by a hash of all that decides its arrays;
nothing in it depends on when or where it was computed. Checksums show a damaged one.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sadih_dask.compute.reduction import KeptReduction
from sadih_dask.compute.rows import StoreRows
from sadih_dask.compute.run import Progress, listener
from sadih_dask.errors import FormatError, SadihError
from sadih_dask.files.archive import read_archive, write_archive
from sadih_dask.files.file import locate
from sadih_dask.files.filesystem import LocalFiles, connect
from sadih_dask.learning.statistics import MERGE_FAN_IN
from sadih_dask.types import Array

KIND = "sadih-scan-part"
VERSION = 2
_NAME = re.compile(r"scan-([0-9a-f]{32})-(\d{1,18})-(\d{1,18})\.part")
_SCRATCH = re.compile(rf"\.{_NAME.pattern}\.[0-9a-f]{{32}}\.tmp")
"""What a writer leaves that was killed at it."""


class Checkpoint:
    """A folder or URL for the parts of one pass, until its result is saved.

    ::

        checkpoint = Checkpoint("model.scan")
        model.fit(store, checkpoint=checkpoint)  # killed: the same call goes on
        model.save("model.sadih")
        checkpoint.discard()
    """

    def __init__(
        self, url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self._files = connect(url, storage_options)
        self.url = self._files.url

    def parts(self, identity: str, columns: int) -> PartFiles:
        """Return the files of one pass, and make the folder that they lie in."""
        if isinstance(self._files, LocalFiles):
            self._files.root.mkdir(parents=True, exist_ok=True)
        return PartFiles(self.url, identity, columns, self._files.options)

    def discard(self) -> None:
        """Remove the files of every pass, and the folder if nothing else is in it."""
        for name in self._files.names(""):
            if _NAME.fullmatch(name) or _SCRATCH.fullmatch(name):
                self._files.delete(name)
        if isinstance(self._files, LocalFiles):
            with contextlib.suppress(OSError):  # it is not there, or not ours alone
                self._files.root.rmdir()


@dataclass(frozen=True)
class PartFiles:
    """The files of one pass; travels to the tasks that write and read them.

    identity   a hash (hexadecimal, 64 digits) of everything that decides the contents
    columns    of the partial results
    """

    url: str
    identity: str
    columns: int
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def ranges(self) -> tuple[set[tuple[int, int]], int]:
        """Return the rows of the parts that are there, and how many files are of other passes."""
        found, others = set(), 0
        for name in connect(self.url, self.options).names(""):
            if (match := _NAME.fullmatch(name)) is None:
                continue
            if match[1] == self.identity[:32]:
                found.add((int(match[2]), int(match[3])))
            else:
                others += 1
        return found, others

    def has(self, first: int, last: int) -> bool:
        """Whether the part of rows ``[first, last)`` is there, as far as can be seen."""
        with contextlib.suppress(OSError):
            return locate(self._place(first, last), self.options).is_file()
        return False

    def write(self, first: int, last: int, arrays: Mapping[str, Array]) -> None:
        """Write the part of rows ``[first, last)``.

        It need not survive a power cut: what is damaged then is computed again.
        """
        place, meta = self._place(first, last), {"identity": self.identity, "rows": [first, last]}
        options: dict[str, Any] = {"durable": False, "storage_options": self.options}
        write_archive(place, KIND, VERSION, meta, arrays, **options)

    def read(self, first: int, last: int) -> dict[str, Array]:
        """Read the part of rows ``[first, last)``; an error unless it is just what was written."""
        files = connect(self.url, self.options, follow_links=False)
        place = files.address(self._name(first, last))
        meta, arrays = read_archive(place, KIND, VERSION, storage_options=self.options)
        if meta.get("identity") != self.identity or meta.get("rows") != [first, last]:
            raise FormatError(f"{place} belongs to other rows or another pass")
        return arrays

    def _place(self, first: int, last: int) -> str:
        return f"{self.url}/{self._name(first, last)}"

    def _name(self, first: int, last: int) -> str:
        return f"scan-{self.identity[:32]}-{first}-{last}.part"


logger = logging.getLogger(__name__)

Range = tuple[int, int]
MOST_PARTS = 128
"""Files of a pass at most."""
FEWEST_PARTS = 3
"""A pass of fewer parts is over so soon that none of them is kept."""
ROWS_PER_STATISTIC = 8
"""Rows that a part has, at least, for every row of its statistics; else its file costs too much."""


@dataclass(frozen=True)
class Parts:
    """Ranges of rows that make up a pass, ascending, and where they are kept, if they are.

    loadable  those whose files are there
    """

    ranges: list[Range]
    loadable: frozenset[Range] = frozenset()
    files: PartFiles | None = None

    @property
    def to_read(self) -> list[Range]:
        """Ranges that have to be read."""
        return [part for part in self.ranges if part not in self.loadable]


def find_parts(
    checkpoint: Checkpoint, rows: StoreRows, reduction: KeptReduction[Any], node_rows: int
) -> Parts:
    """Cut a pass into parts and see which of them are finished.

    ``node_rows`` are the rows of the smallest subtree that is one task.
    """
    columns = reduction.columns(rows.shape_of_features[0])
    ranges = part_ranges(rows.n_rows, node_rows, ROWS_PER_STATISTIC * columns)
    if len(ranges) < FEWEST_PARTS:
        return Parts([(0, rows.n_rows)])
    files = checkpoint.parts(_identity(rows, reduction), columns)
    there, n_others = files.ranges()
    if n_others:
        logger.warning(
            "%s holds %d parts of a pass over other rows or with other parameters; they are "
            "not used",
            files.url,
            n_others,
        )
    loadable = frozenset(there.intersection(ranges))
    logger.info(
        "%d of %d parts of the scan are finished in %s", len(loadable), len(ranges), files.url
    )
    return Parts(ranges, loadable, files)


def part_ranges(n_rows: int, node_rows: int, least_rows: int) -> list[Range]:
    """Subtrees of the lowest level where they are long enough and not too many."""
    size = node_rows
    while size < least_rows or -(-n_rows // size) > MOST_PARTS:
        size *= MERGE_FAN_IN
    return [(first, min(first + size, n_rows)) for first in range(0, n_rows, size)]


def _identity(rows: StoreRows, reduction: KeptReduction[Any]) -> str:
    """A hash of everything that decides what a range of these rows comes to."""
    known = rows.store.fingerprint(rows.store.learned_from)
    text = repr((known, rows.first, rows.last, MERGE_FAN_IN, reduction.identity()))
    return hashlib.sha256(text.encode()).hexdigest()


def keep(
    files: PartFiles, first: int, last: int, partial: Any, reduction: KeptReduction[Any]
) -> Any:
    """Write a finished part, unless its file would cost more than it saves, and pass it on.

    A file that cannot be written is no reason to give up the work that has been done.
    """
    arrays = reduction.to_arrays(partial)
    # Sampled rows are left out: they are few of those that would have to be read again.
    size = sum(a.nbytes for name, a in arrays.items() if "sample" not in name.split("."))
    if ROWS_PER_STATISTIC * size > (last - first) * files.columns * 8:
        return partial
    try:
        files.write(first, last, arrays)
    except OSError as error:
        logger.warning(
            "what rows %d to %d come to could not be kept in %s (%s); a pass that is interrupted "
            "will read them again",
            first,
            last - 1,
            files.url,
            error,
        )
    return partial


def load(files: PartFiles, first: int, last: int, reduction: KeptReduction[Any]) -> Any | None:
    """Read a finished part; None, and a warning, if the file is not what was written."""
    try:
        return reduction.from_arrays(files.read(first, last), last - first)
    except (SadihError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        logger.warning("rows %d to %d are read again: %s", first, last - 1, error)
        return None


def going_on(parts: Parts, n_tasks: int) -> Progress | None:
    """Who hears of it, told as if tasks for the rows that are loaded had been done before."""
    if (progress := listener()) is None or parts.files is None:
        return None
    n_rows = sum(last - first for first, last in parts.ranges)
    left = sum(last - first for first, last in parts.to_read)
    before = round(n_tasks * (n_rows - left) / left) if left else 1
    progress(before, before + n_tasks)
    return lambda done, total: progress(before + done, before + total)
