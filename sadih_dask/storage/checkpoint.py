"""Files of an unfinished pass over a store: what its finished parts have come to.

A file holds the arrays of one part, a range of rows. Its name and its contents say which pass it
belongs to, by a hash of all that decides the arrays; nothing in it depends on when or where it was
computed. It is an archive with checksums, so a damaged one is noticed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sadih_dask.arrays import Array
from sadih_dask.errors import FormatError
from sadih_dask.storage.archive import read_archive, write_archive
from sadih_dask.storage.files import Files, LocalFiles, connect

KIND = "sadih-scan-part"
VERSION = 1
_NAME = re.compile(r"scan-([0-9a-f]{32})-(\d{1,18})-(\d{1,18})\.part")
_SCRATCH = re.compile(rf"\.{_NAME.pattern}\.[0-9a-f]{{32}}\.tmp")
"""What a writer leaves that was killed at it."""


class Checkpoint:
    """A folder or URL for the parts of one pass, until its result is saved.

    n_rows_loaded   rows that the last pass did not read, because their statistics were here

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
        self.n_rows_loaded = 0

    def parts(self, identity: str) -> PartFiles:
        """Return the files of one pass, and make the folder that they lie in."""
        if isinstance(self._files, LocalFiles):
            self._files.root.mkdir(parents=True, exist_ok=True)
        return PartFiles(self.url, identity, self._files.options)

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
    """

    url: str
    identity: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def ranges(self) -> tuple[set[tuple[int, int]], int]:
        """Return the rows of the parts that are there, and how many files are of other passes."""
        found, others = set(), 0
        for name in self._files().names(""):
            if (match := _NAME.fullmatch(name)) is None:
                continue
            if match[1] == self.identity[:32]:
                found.add((int(match[2]), int(match[3])))
            else:
                others += 1
        return found, others

    def write(self, first: int, last: int, arrays: Mapping[str, Array]) -> None:
        """Write the part of rows ``[first, last)``.

        It need not survive a power cut: what is damaged then is computed again.
        """
        meta = {"identity": self.identity, "rows": [first, last]}
        write_archive(
            self._place(first, last),
            KIND,
            VERSION,
            meta,
            arrays,
            durable=False,
            storage_options=self.options,
        )

    def read(self, first: int, last: int) -> dict[str, Array]:
        """Read the part of rows ``[first, last)``; an error unless it is just what was written."""
        place = self._place(first, last)
        meta, arrays = read_archive(place, KIND, VERSION, storage_options=self.options)
        if meta.get("identity") != self.identity or meta.get("rows") != [first, last]:
            raise FormatError(f"{place} belongs to other rows or another pass")
        return arrays

    def _files(self) -> Files:
        return connect(self.url, self.options)

    def _place(self, first: int, last: int) -> str:
        return f"{self.url}/scan-{self.identity[:32]}-{first}-{last}.part"
