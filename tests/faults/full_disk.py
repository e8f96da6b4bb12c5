"""The disk is full at any write, in every stage.

    python -m tests.faults.full_disk [--trials 150] [--seed 20]

Each trial gives one stage a file system of its own that is too small for what the stage writes, by
any number of pages, or that has too few inodes: so the write that fails is now this one and now
that. What must hold: exit code 1 and a message that names a path on that file system; no traceback;
what is there says that it is incomplete, or is what was there before; nothing half-written is left;
and with more space the same command finishes, with the very same result.

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
WEIGHTS = {"ingest": 6, "fit": 4, "encode": 6, "export": 3, "evaluate": 1}
"""How often a stage is tried: a report takes seconds to draw."""
TRIED_AGAIN = 0.3
"""Share of trials in which the command is repeated while the disk is still full."""
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


def run(folder: Path, trials: int, seed: int) -> Outcome:
    """Fill the disk in every stage, at random points."""
    return fill_disks(folder, trials, seed, WEIGHTS)


def fill_disks(folder: Path, trials: int, seed: int, weights: dict[str, int]) -> Outcome:
    """The same with other weights of the stages."""
    outcome = Outcome("disk full at any write")
    rng = random.Random(seed)
    failed: Counter[str] = Counter()
    fitted = 0
    whole = Job(folder / "sources", folder / "whole")
    whole.make_sources()
    whole.target.mkdir()
    stages = [stage for stage in STAGES for _ in range(weights[stage])]
    with Forks(folder) as forks:
        for stage in dict.fromkeys(stages):
            assert forks.run(*whole.words(stage)).code == 0, stage
        expected = {stage: whole.digest(stage) for stage in dict.fromkeys(stages)}
        for trial in range(trials):
            stage = stages[trial % len(stages)]
            with disk(folder / "disk") as small:
                job = _prepared(whole, small, stage)
                limits = _too_small(whole, stage, rng, _used(small))
                _mount("-o", f"remount,{limits}", str(small))
                outcome.trials += 1
                try:
                    ended = _run(forks, job, stage)
                    if ended.code == 0:
                        fitted += 1
                        assert job.digest(stage) == expected[stage], "another result"
                        continue
                    failed[stage] += 1
                    _check_failure(ended, job, stage)
                    if rng.random() < TRIED_AGAIN and stage != "evaluate":
                        _check_failure(_run(forks, job, stage), job, stage)
                    _check_resumed(forks, job, stage, expected[stage])
                except AssertionError as error:
                    outcome.failures.append(f"{stage}, {limits}: {error}")
    outcome.figures = {
        "writes that failed": ", ".join(f"{stage} {failed[stage]}" for stage in STAGES),
        "fitted after all": f"{fitted}",
        "identical after more space": f"{sum(failed.values()) - len(outcome.failures)}",
    }
    return outcome


def _prepared(whole: Job, small: Path, stage: str) -> Job:
    """A job on the small disk: what earlier stages wrote lies elsewhere, with room."""
    job = Job(whole.sources, small, whole.size)
    for name in STAGES:
        if name == stage:
            break
        job.outputs[name].symlink_to(whole.outputs[name])
    if stage == "export":
        job.outputs[stage].write_bytes(b"the index that was there before")
    return job


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
    if rng.random() < 0.25:
        return f"nr_inodes={used[1] + rng.randrange(len(files))},size=64m"
    return f"size={PAGE * (used[0] + rng.randrange(1, pages + 1))}"


def _run(forks: Forks, job: Job, stage: str) -> Ended:
    if stage == "ingest":
        return forks.run(*job.words(stage), script=UNCHECKED)
    return forks.run(*job.words(stage))


def _check_failure(ended: Ended, job: Job, stage: str) -> None:
    """What must hold after a write has failed."""
    assert ended.code == 1, f"exit code {ended.code}: {ended.said[-500:]}"
    assert "Traceback" not in ended.said, ended.said[-500:]
    assert str(job.target) in ended.said, f"no path: {ended.said[-500:]}"
    assert "No space left" in ended.said, f"no reason: {ended.said[-500:]}"
    assert not left_behind(job.target), f"left behind: {left_behind(job.target)}"
    if stage in ("ingest", "encode"):
        _check_incomplete(job, stage)
    if stage == "export":
        assert job.outputs[stage].read_bytes() == b"the index that was there before"


def _check_resumed(forks: Forks, job: Job, stage: str, expected: str) -> None:
    """What must hold when there is space again."""
    _mount("-o", f"remount,{ROOMY}", str(job.target))
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
    main(run, trials=150)
