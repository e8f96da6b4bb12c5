"""Waiting for other processes, and ending them."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the other process does not get on"
        time.sleep(0.002)


def blocks_written(url: Path) -> int:
    """Blocks of an unfinished store that have a receipt."""
    pending = url / "_commits/pending"
    return len(list(pending.glob("[0-9]*"))) if pending.exists() else 0


def end_groups(processes: Iterable[subprocess.Popen[Any]], patience: float) -> None:
    """Leave no process behind, children of those that are dead already included."""
    leaders = list(processes)
    for process in leaders:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for process in leaders:
        process.wait(timeout=patience)
