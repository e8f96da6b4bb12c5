"""``sadih run`` as a child process, and what its exit code means to an orchestrator.

Needs nothing but the standard library, so that an orchestrator's environment, which pins a lot,
does not have to hold sadih-dask: the environment variable SADIH_COMMAND says where the command is,
else it is looked for on PATH.

Repeating the command is always safe, so there are only two ways to fail: `Repeatable`, where
repeating it may help, and `RunFailed`, where it would fail again.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, Any

SECONDS_TO_STOP = 30.0
_LINES_OF_ERRORS = 20

_MEANINGS = {
    1: "bad data or damage",
    2: "wrong usage or configuration",
    3: "the quality gate refused the model",
    4: "the cluster failed",
    5: "another run holds the run directory",
    130: "interrupted",
}
_REPEATABLE = {4, 5, 130}
_DONE = {0, 6}
"""6: files that cannot be read were skipped; the record names them, and all else is done."""


class RunError(RuntimeError):
    """``sadih run`` did not succeed; `record` is what it reported, empty if it had not begun."""

    def __init__(self, code: int, record: dict[str, Any], errors: str) -> None:
        super().__init__(f"sadih run ended with {code}, {_meaning(code)}: {errors}")
        self.code = code
        self.record = record


class RunFailed(RunError):
    """The same again would fail again: somebody has to look."""


class Repeatable(RunError):
    """Repeating the command goes on where this one stopped, or finds the directory free."""


class SadihRun:
    """One call of ``sadih run CONFIG``.

    settings    as for ``--set``: ``("model.n_bits=32", ...)``
    """

    def __init__(self, config: str | os.PathLike[str], settings: Sequence[str] = ()) -> None:
        command = os.environ.get("SADIH_COMMAND", "sadih")
        overrides = [part for setting in settings for part in ("--set", setting)]
        self._arguments = [command, "run", os.fspath(config), "--json", *overrides]
        self._child: subprocess.Popen[str] | None = None

    def run(self, log: Callable[[str], object]) -> dict[str, Any]:
        """Run it, hand every line that it says to ``log``, and return its record.

        A run that skipped files is done: `record.warnings` says which.
        Whatever interrupts this call also stops the child, which keeps what it has finished.
        """
        last_lines: deque[str] = deque(maxlen=_LINES_OF_ERRORS)
        # The record goes to a file: two pipes would need a thread, or block when one is full.
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            with self._started(output) as child:
                assert child.stderr is not None  # noqa: S101 (a pipe, see _started)
                try:
                    for line in child.stderr:
                        last_lines.append(line.rstrip())
                        log(last_lines[-1])
                    child.wait()
                except BaseException:
                    _end(child)
                    raise
            output.seek(0)
            record = _record(output.read())
        if child.returncode not in _DONE:
            raise _error(child.returncode)(child.returncode, record, _complaint(list(last_lines)))
        return record

    def stop(self) -> None:
        """Ask the child to stop; it keeps what it has finished, and `run` raises Repeatable.

        Does not wait, so that a signal handler may call it.
        """
        if self._child is not None:
            self._child.terminate()

    def _started(self, output: IO[str]) -> subprocess.Popen[str]:
        try:
            # In a session of its own: Ctrl-C in a terminal reaches it once, from `_end`.
            self._child = subprocess.Popen(  # noqa: S603 (the user's own command)
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            remedy = "install sadih-dask, or set SADIH_COMMAND to the path of its command"
            raise RunFailed(2, {}, f"it cannot be started ({error}); {remedy}") from error
        return self._child


def _end(child: subprocess.Popen[str]) -> None:
    """Stop the child and wait for it, but not for ever."""
    child.terminate()
    try:
        child.wait(SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        child.kill()


def _record(text: str) -> dict[str, Any]:
    """What the command printed; one that ended early has printed nothing."""
    return dict(json.loads(text)) if text.strip() else {}


def _complaint(lines: Sequence[str]) -> str:
    """What the command said when it gave up, without the progress before; or a whole traceback."""
    first = next((k for k, line in enumerate(lines) if line.startswith("sadih: ")), 0)
    return "\n".join(lines[first:])


def _error(code: int) -> type[RunError]:
    return Repeatable if code in _REPEATABLE or _is_signal(code) else RunFailed


def _meaning(code: int) -> str:
    if _is_signal(code):
        return f"killed by signal {-code if code < 0 else code - 128}"
    return _MEANINGS.get(code, "an unknown exit code")


def _is_signal(code: int) -> bool:
    """Whether a signal ended it: a negative code, or 128 and more through a shell or container."""
    return code < 0 or (code > 128 and code not in _MEANINGS)
