"""The log of a run: everything that the package has to say, in the run's folder."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from sadih_dask.redaction import RedactingFilter
from sadih_dask.runs.workspace import LOG, RUNS, Workspace
from sadih_dask.storage.files import LocalFiles

logger = logging.getLogger(__name__)


class RunLog(logging.Handler):
    """Collects lines until the run has a folder, then keeps them there.

    On a local disk they are written as they come; behind a URL when the log is closed.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self.addFilter(RedactingFilter())
        self._text: TextIO = io.StringIO()
        self._remote: tuple[Workspace, str] | None = None
        self._logger = logging.getLogger("sadih_dask")
        self._level = self._logger.level

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        if self._logger.getEffectiveLevel() > logging.INFO:
            self._logger.setLevel(logging.INFO)
        return self

    def keep_at(self, workspace: Workspace, run: str) -> None:
        """From now on the lines belong to a run."""
        if not isinstance(workspace.files, LocalFiles):
            self._remote = workspace, run
            return
        path = Path(workspace.files.path(f"{RUNS}/{run}/{LOG}"))
        file = path.open("a", encoding="utf-8", buffering=1)
        file.write(self._lines())
        self._text = file

    def _lines(self) -> str:
        return self._text.getvalue() if isinstance(self._text, io.StringIO) else ""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line."""
        self._text.write(self.format(record) + "\n")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        if self._remote is not None:
            workspace, run = self._remote
            try:
                workspace.write_log(run, self._lines())
            except OSError as failure:  # not worth the run, nor hiding why it failed
                logger.warning("the log of run %s could not be written: %s", run, failure)
        self._text.close()
