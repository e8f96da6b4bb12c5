"""Stores, models and source files that somebody made to do harm.

    python -m tests.faults.hostile [--trials 1] [--seed 20]

Every case (see `forged`) is given to every command that would read it, in one process that watches
itself: it notes each unpickling, execution and start of a process, and the peak of its resident
memory during each command. What must hold: exit code 1 and a short message that names the file;
nothing runs; memory stays within `BOUND`, whatever a file declares. ``--trials`` repeats all cases.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.faults.commands import CommandFailed, run_here
from tests.faults.table import Outcome, main

BOUND = 512 << 20
"""Bytes above what the process has before: 16 MiB of JSON, the most that is parsed, unfolds."""
LONGEST_MESSAGE = 2000
SECONDS = 30.0
RUNS = ("pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "exec")
LOOKING_ON = ("inspect", "runs")
"""Commands that may end well: one reads metadata and labels only, one says which run is damaged."""
ROOT = Path(__file__).parents[2]


def run(folder: Path, trials: int, seed: int) -> Outcome:
    """Run all cases in a process of their own and count."""
    del seed  # there is nothing random in it
    outcome = Outcome("hostile stores, models and sources")
    worst: dict[str, Any] = {"bytes": 0, "seconds": 0.0}
    for _ in range(trials):
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.hostile", "--child", str(folder)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=600,
        )
        for line in done.stdout.splitlines():
            found = json.loads(line)
            outcome.trials += 1
            if found["wrong"]:
                outcome.failures.append(f"{found['case']}: {found['wrong']}")
            worst = {name: max(worst[name], found[name]) for name in worst}
        outcome.check(done.returncode == 0, f"the process ended with {done.returncode}")
    outcome.figures = {
        "code that ran": "none" if outcome.ok else "see below",
        "largest peak": f"{worst['bytes'] / 2**20:.0f} MiB above the start",
        "longest": f"{worst['seconds']:.1f} s",
    }
    return outcome


def _child(folder: Path) -> None:
    """Print a line of JSON for every case and command."""
    from tests.faults.forged import cases, intact

    executed: list[str] = []
    watching = [False]

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if watching[0] and event in RUNS:
            executed.append(f"{event} {str(arguments)[:80]}")

    for kind, path in intact(folder).items():
        for words in _commands(kind, path):
            with suppress(CommandFailed):
                run_here(*words)  # modules are imported by that, which executes them
    sys.addaudithook(audit)
    for name, kind, make in cases():
        place = Path(tempfile.mkdtemp(dir=folder))
        path = make(place)
        for words in _commands(kind, path):
            executed.clear()
            watching[0] = True
            found = _measure(words, path)
            watching[0] = False
            if executed or (place / "canary").exists():
                found["wrong"] = f"something ran: {executed[:3]}"
            print(json.dumps({"case": f"{name}, {words[0]}", **found}), flush=True)
        shutil.rmtree(place)


def _commands(kind: str, path: Path) -> list[tuple[Any, ...]]:
    other = path.with_name("other")
    return {
        "store": [("inspect", path), ("verify", path), ("fit", path, other)],
        "documents": [("inspect", path), ("verify", path)],
        "ingested": [("verify", path), ("ingest", path.with_name("x.npy"), path, "--append")],
        "codes": [("inspect", path), ("verify", path), ("export", path, other)],
        "model": [("inspect", path), ("verify", path), ("encode", other, path, "out")],
        "source": [("ingest", path, other)],
        "runs": [("runs", path)],
    }[kind]


def _measure(words: tuple[Any, ...], path: Path) -> dict[str, Any]:
    """Run a command; return its peak of memory, its seconds, and what was wrong, if anything."""
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
    began = time.perf_counter()
    wrong = ""
    try:
        said = run_here(*words)
        if words[0] not in LOOKING_ON:
            wrong = f"not refused: {said[:200]}"
    except CommandFailed as failure:
        text = str(failure)
        named = path.name in text or words[0] == "encode"
        if failure.code != 1 or not named or len(text) > LONGEST_MESSAGE:
            wrong = f"exit code {failure.code}, {len(text)} characters: {text[:300]}"
    except Exception as error:  # a traceback is what must not happen
        wrong = f"{type(error).__name__}: {str(error)[:200]}"
    seconds, peak = time.perf_counter() - began, resident("VmHWM") - before
    if peak > BOUND:
        wrong = wrong or f"{peak / 2**20:.0f} MiB"
    if seconds > SECONDS:
        wrong = wrong or f"{seconds:.0f} s"
    return {"bytes": peak, "seconds": seconds, "wrong": wrong}


def resident(field: str) -> int:
    found = re.search(rf"{field}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(Path(sys.argv[2]))
    else:
        main(run, trials=1)
