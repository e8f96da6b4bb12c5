"""The disk is full at any write, or cannot be written at all, in every stage.

    python -m tests.faults.full_disk [--trials 150] [--seed 20] [--stage fit]...

Each trial gives one stage a file system of its own that is too small for what the stage writes, by
any number of pages, or that has too few inodes: so the write that fails is now this one and now
that. Now and then it is mounted read-only. What must hold: exit code 1 and a message that names a
path on that file system, the reason, and what to do; no traceback; what was there before is what it
was, to the byte, and what is new says that it is incomplete; nothing half-written is left; and with
more space the same command finishes, with the very same result.

The check of free space that `ingest` makes before it begins is left out here: it would refuse, and
no write would ever fail. Needs the right to mount a tmpfs.
"""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sadih_dask import CodeStore, FeatureStore
from sadih_dask.errors import FormatError, IncompleteError
from tests.faults.forks import Ended, Forks
from tests.faults.jobs import STAGES, Job, left_behind
from tests.faults.table import Outcome, main

PAGE = 4096
ROOMY = "size=64m,nr_inodes=10000"
FULL_WORDS, READONLY_WORDS = "No space left", "Read-only file system"
TRIED_AGAIN = 0.3
"""Share of trials in which the command is repeated while the disk is still full."""
READ_ONLY = 0.1
FEW_INODES = 0.25
"""Shares of trials in which nothing can be written, and in which files run out before pages."""
UNCHECKED = """
from sadih_dask.ingest import ingestion
ingestion.check_space = lambda *_, **__: None
from sadih_dask.cli import main
main()
"""


@contextmanager
def disk(folder: Path, options: str = ROOMY) -> Iterator[Path]:
    """A file system of its own, gone at the end."""
    folder.mkdir(exist_ok=True)
    _mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _mount(*words: str) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermissionError(f"a small file system cannot be mounted here: {done.stderr}")


def run(folder: Path, trials: int, seed: int, *, stage: str) -> Outcome:
    """Fill the disk in a stage, at random points."""
    with Forks(folder) as forks:
        return fill_disks(forks, folder, trials, seed, stage)


def fill_disks(forks: Forks, folder: Path, trials: int, seed: int, stage: str) -> Outcome:
    """The same with processes that are there."""
    outcome = Outcome(f"disk full at any write, {stage}")
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    whole = Job(folder / "sources", folder / "whole", report=stage == "evaluate")
    whole.make_sources()
    whole.target.mkdir()
    for name in (*whole.needs(stage), stage):
        assert forks.run(*whole.words(name)).code == 0, name
    expected = whole.digest(stage)
    for _ in range(trials):
        with disk(folder / "disk") as small:
            job = _prepared(whole, small, stage)
            limits = _too_small(whole, stage, rng, _used(small))
            _mount("-o", f"remount,{limits}", str(small))
            outcome.trials += 1
            try:
                found[_try(forks, job, stage, expected, rng)] += 1
            except AssertionError as error:
                outcome.failures.append(f"{limits}: {error}")
    outcome.figures = {name: f"{n}" for name, n in sorted(found.items())}
    return outcome


def _try(forks: Forks, job: Job, stage: str, expected: str, rng: random.Random) -> str:
    """Run a stage, check how it fails and that it goes on when it can; what has happened."""
    before = _bytes_of(job)
    ended = _run(forks, job, stage)
    if ended.code == 0:
        assert job.digest(stage) == expected, "another result"
        return "fitted after all"
    _check_failure(ended, job, stage, before)
    if rng.random() < TRIED_AGAIN and stage != "evaluate":
        _check_failure(_run(forks, job, stage), job, stage, before)
    _check_resumed(forks, job, stage, expected)
    return "read-only" if READONLY_WORDS in ended.said else "failed for space"


def _prepared(whole: Job, small: Path, stage: str) -> Job:
    """A job on the small disk: what earlier stages wrote lies elsewhere, with room.

    Something that the stage would replace is there already, where it replaces anything.
    """
    job = Job(whole.sources, small, whole.size, whole.report)
    for name in job.needs(stage):
        job.outputs[name].symlink_to(whole.outputs[name])
    if stage == "export":
        job.outputs[stage].write_bytes(b"the index that was there before")
    if stage == "evaluate":
        job.outputs[stage].mkdir()
        (job.outputs[stage] / "report.html").write_text("the page that was there before </html>")
    if stage == "run":
        (small / "run.toml").write_text(job.run.toml())
    return job


def _bytes_of(job: Job) -> dict[Path, bytes]:
    """What lies on the disk now."""
    files = (path for path in job.target.rglob("*") if path.is_file() and not path.is_symlink())
    return {path: path.read_bytes() for path in files}


def _used(small: Path) -> tuple[int, int]:
    """Pages and inodes in use."""
    words = ["stat", "-f", "-c", "%b %f %c %d", str(small)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    blocks, free, inodes, free_inodes = map(int, done.stdout.split())
    return blocks - free, inodes - free_inodes


def _too_small(whole: Job, stage: str, rng: random.Random, used: tuple[int, int]) -> str:
    """Limits somewhere below what the stage needs."""
    path = whole.outputs[stage]
    files = [path] if path.is_file() else list(path.rglob("*"))
    pages = sum(-(-file.stat().st_size // PAGE) for file in files if file.is_file())
    if rng.random() < READ_ONLY:
        return "ro"
    if rng.random() < FEW_INODES:
        return f"nr_inodes={used[1] + rng.randrange(len(files))},size=64m"
    return f"size={PAGE * max(1, used[0] + rng.randrange(pages))}"


def _run(forks: Forks, job: Job, stage: str) -> Ended:
    if stage in ("ingest", "run"):
        return forks.run(*job.words(stage), script=UNCHECKED)
    return forks.run(*job.words(stage))


def _check_failure(ended: Ended, job: Job, stage: str, before: dict[Path, bytes]) -> None:
    """What must hold after a write has failed."""
    said = ended.said
    assert ended.code == 1, f"exit code {ended.code}: {said[-500:]}"
    assert "Traceback" not in said, said[-500:]
    assert str(job.target) in said, f"no path: {said[-500:]}"
    assert FULL_WORDS in said or READONLY_WORDS in said, f"no reason: {said[-500:]}"
    assert not left_behind(job.target), f"left behind: {left_behind(job.target)}"
    after = _bytes_of(job)
    lost = [str(path) for path, data in before.items() if after.get(path) != data]
    assert not lost, f"no longer what it was: {lost}"
    if stage in ("ingest", "encode"):
        _check_incomplete(job, stage)


def _check_resumed(forks: Forks, job: Job, stage: str, expected: str) -> None:
    """What must hold when there is space again."""
    _mount("-o", f"remount,rw,{ROOMY}", str(job.target))
    again = _run(forks, job, stage)
    assert again.code == 0, f"not resumed: {again.said[-500:]}"
    assert job.digest(stage) == expected, "resumed to another result"


def _check_incomplete(job: Job, stage: str) -> None:
    """It says so; unless the one step that commits was done and what comes after it failed."""
    kind = FeatureStore if stage == "ingest" else CodeStore
    try:
        store = kind.open(job.outputs[stage])
    except (IncompleteError, FormatError) as error:
        said = str(error)
    else:
        assert store.n_rows == job.size.n_rows, "it says that it is complete, and is not"
        return
    assert "is incomplete" in said or "it has no zarr.json" in said, said


if __name__ == "__main__":
    main(run, trials=20, stage=STAGES)
