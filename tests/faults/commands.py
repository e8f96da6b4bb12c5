"""Commands of the package: in this process, or in one of their own that may be killed."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from sadih_dask.cli import main


class CommandFailed(Exception):
    """A command ended with another exit code than 0; the text is all that it said."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code


def run_here(*words: object) -> str:
    """Run a command in this process and return what it said; CommandFailed if it failed."""
    said = io.StringIO()
    with (
        patch.object(sys, "argv", ["sadih", *map(str, words)]),
        redirect_stdout(said),
        redirect_stderr(said),
    ):
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise CommandFailed(int(end.code), said.getvalue()) from None
    return said.getvalue()
