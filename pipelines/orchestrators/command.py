"""``sadih run`` as a child process, and what its exit code means to an orchestrator.

Needs nothing but the standard library, so that an orchestrator's environment, which pins a lot,
does not have to hold sadih-dask: the command may come from anywhere (`SADIH` names it, else it is
looked for on PATH).

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
from typing import Any

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


class SadihError(RuntimeError):
    """``sadih run`` did not succeed; `record` is what it reported, if it came to that."""

    def __init__(self, code: int, record: dict[str, Any], errors: str) -> None:
        super().__init__(f"sadih run ended with {code}, {meaning(code)}: {errors}")
        self.code = code
        self.record = record


class RunFailed(SadihError):
    """The same again would fail again: somebody has to look."""


class Repeatable(SadihError):
    """Repeating the command goes on where this one stopped, or finds the directory free."""


def meaning(code: int) -> str:
    """Say an exit code in words."""
    if _killed(code):
        return f"killed by signal {-code if code < 0 else code - 128}"
    return _MEANINGS.get(code, "an unknown exit code")


def _killed(code: int) -> bool:
    """Whether a signal ended it: negative from here, 128 and more through a shell or a container."""
    return code < 0 or (code > 128 and code not in _MEANINGS)


class SadihRun:
    """One call of ``sadih run CONFIG``.

    settings    as for ``--set``: ``("model.n_bits=32", ...)``
    """

    def __init__(self, config: str | os.PathLike[str], settings: Sequence[str] = ()) -> None:
        self.config = os.fspath(config)
        self.settings = tuple(settings)
        self._child: subprocess.Popen[str] | None = None

    @property
    def arguments(self) -> list[str]:
        """The command line."""
        overrides = [part for setting in self.settings for part in ("--set", setting)]
        return [os.environ.get("SADIH", "sadih"), "run", self.config, "--json", *overrides]

    def run(self, log: Callable[[str], object]) -> dict[str, Any]:
        """Run it, hand every line that it says to ``log``, and return its record.

        Whatever interrupts this call also stops the child, which keeps what it has finished.
        """
        errors: deque[str] = deque(maxlen=_LINES_OF_ERRORS)
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            with self._started(output) as child:
                try:
                    for line in child.stderr or ():
                        errors.append(line.rstrip())
                        log(errors[-1])
                    child.wait()
                except BaseException:
                    self.stop()
                    raise
            output.seek(0)
            record = _record(output.read())
        if child.returncode == 0:
            return record
        kind = Repeatable if _is_repeatable(child.returncode) else RunFailed
        raise kind(child.returncode, record, "\n".join(errors))

    def stop(self) -> None:
        """Ask the child to stop and wait for it; nothing if there is none."""
        child = self._child
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            child.kill()

    def _started(self, output: Any) -> subprocess.Popen[str]:
        arguments = self.arguments
        try:
            # In a session of its own: Ctrl-C in a terminal reaches it once, from `stop`.
            self._child = subprocess.Popen(  # noqa: S603 (the user's own command)
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            remedy = "install sadih-dask, or set SADIH to the path of its command"
            raise RunFailed(2, {}, f"cannot start {arguments[0]} ({error}): {remedy}") from error
        return self._child


def _is_repeatable(code: int) -> bool:
    return code in _REPEATABLE or _killed(code)


def _record(text: str) -> dict[str, Any]:
    """What the command printed; a command that ended early has printed nothing."""
    return dict(json.loads(text)) if text.strip() else {}
