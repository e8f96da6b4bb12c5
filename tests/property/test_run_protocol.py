"""Whoever runs a pipeline, rolls back or removes old runs when, and is killed or gets no answer.

The code of `runs.run` and `runs.directory` works on an object store in memory, with stages that
only write a file, and without the lease that keeps two runs apart: each may have slept for longer
than any lease. See `tests.support.interleaving`. After every single change of the run directory is
checked

- that `latest` leads to a complete run, all of which is there;
- that whoever moves it has seen what he moves it from;

and at the end, that what each call said is true, that ``verify`` finds everything intact, and that
the next run completes and leaves nothing behind. `SADIH_INTERLEAVINGS` says how many
interleavings are tried (by default 40); a seed that fails is in the message.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from sadih_dask.errors import SadihError
from sadih_dask.runs import directory as directories
from sadih_dask.runs import run as runs
from sadih_dask.runs.artefact import ARTEFACTS, Artefact
from sadih_dask.runs.directory import LATEST, Latest, RunDirectory
from sadih_dask.runs.settings import Settings
from sadih_dask.runs.stage import Context, Made, Stage
from tests.support.interleaving import URL, Actor, World, without_probe

TRIALS = int(os.environ.get("SADIH_INTERLEAVINGS", "40"))
KEEP = 2


class Writing(Stage):
    """A stage that writes one file, which says what decides it."""

    needs, makes = (), ("file",)

    def decides(self, context: Context) -> Any:
        """Some stages are the same for several configurations."""
        return context.settings.model.n_bits // self.shared

    def work(self, context: Context, artefact: Artefact) -> Made:
        artefact.write("file", f"{self.name} {self.decides(context)}".encode())
        return Made(dict(self.outputs), {})

    shared: ClassVar[int]
    outputs: ClassVar[dict[str, Any]]


class Ingest(Writing):
    name, title, shared = "ingest", "", 1000
    outputs: ClassVar = {
        "n_rows": 1,
        "n_queries": 0,
        "database": "",
        "queries": None,
        "classes": (),
    }


class Fit(Writing):
    name, title, shared = "fit", "", 1
    outputs: ClassVar = {"n_bits": 8, "fingerprint": ""}


class Encode(Writing):
    name, title, shared = "encode", "", 2
    outputs: ClassVar = {"fingerprint": ""}


@pytest.fixture(autouse=True)
def worlds() -> Iterator[list[World]]:
    """What `connect` leads to."""
    found: list[World] = []
    with pytest.MonkeyPatch.context() as patch:
        without_probe(patch)
        patch.setattr(directories, "connect", lambda *_, **__: found[-1].files())
        patch.setattr(runs, "STAGES", (Ingest(), Fit(), Encode()))
        patch.setattr("sadih_dask.runs.record.versions_here", dict)  # which takes its time
        patch.setattr(Context, "plan", SimpleNamespace(remarks=()))
        patch.setattr(Context, "own_stores", [])
        patch.setattr(RunDirectory, "locked", lambda _: contextlib.nullcontext())
        yield found


@dataclass(eq=False)
class Call:
    """A run of a configuration, or a rollback if there is none, and what came of it."""

    n_bits: int | None
    outcome: Any = None
    moves: list[tuple[str | None, str | None]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.n_bits or 'rollback'} -> {self.outcome!r} {self.moves}"

    def run(self) -> None:
        try:
            self.outcome = self._rollback() if self.n_bits is None else self._run(self.n_bits)
        except (SadihError, OSError) as error:
            self.outcome = error

    @staticmethod
    def _run(n_bits: int) -> tuple[str, str | None, str | None]:
        settings = Settings.model_validate(
            {
                "run": {"directory": URL, "keep": KEEP},
                "source": {"kind": "digits"},
                "model": {"n_bits": n_bits},
                "gate": {},
            }
        )
        record = runs.Pipeline(settings, "test", lambda *_, **__: contextlib.nullcontext()).run()
        return str(record.outcome), record.previous, record.id

    @staticmethod
    def _rollback() -> tuple[str, str | None, str]:
        before, chosen = RunDirectory(URL).roll_back(None)
        return "complete", before, chosen


class Watch:
    """Looks at every change."""

    def __init__(self, world: World) -> None:
        self.world, self.problems = world, list[str]()
        self.calls: dict[Actor, Call] = {}

    def __call__(self, key: str, old: bytes | None, new: bytes | None, actor: Actor | None) -> None:
        directory = RunDirectory(URL)
        latest = directory.latest()
        if key == LATEST:
            before, after = (_run_in(data) for data in (old, new))
            if before != after and actor in self.calls:
                self.calls[actor].moves.append((before, after))
        if latest is None:
            return
        try:
            manifest = directory.manifest(latest)
            assert manifest["complete"], f"{latest} is the latest, and not complete"
            for stage, name in manifest["stages"].items():
                for problem in directory.artefact(stage, name).missing():
                    raise AssertionError(problem)
        except (AssertionError, SadihError, LookupError) as error:
            call = None if actor is None else self.calls.get(actor)
            self.problems.append(f"{call} changed {key}: {error!r}")


def _run_in(data: bytes | None) -> str | None:
    return Latest.of(None if data is None else directories.conditional.Version(data)).run


def interleave(worlds: list[World], seed: int) -> None:
    """One interleaving; AssertionError with its requests if anything does not hold."""
    chance = random.Random(seed)
    lost, kills = chance.choice([(0, 0), (60, 0), (0, 25), (40, 15)])
    world = World(chance)
    worlds[:] = [world]
    watch = world.watch = Watch(world)
    for n_bits in chance.sample([2, 3, 4, 5], 3):
        Call(n_bits).run()
    wanted = chance.sample([2, 3, 4, 5, 6, None], chance.choice([2, 2, 3]))
    calls = [Call(n_bits) for n_bits in wanted]
    try:
        actors = [Actor(str(call.n_bits or "rollback"), call.run) for call in calls]
        watch.calls = dict(zip(actors, calls, strict=True))
        world.lost, world.kills = lost, kills
        world.run(actors)
        world.lost = world.kills = 0
        _judge(world, watch, watch.calls)
        watch.calls = {}
        _go_on(watch)
    except (AssertionError, SadihError, OSError, LookupError) as error:
        said = "\n".join([*world.requests[-200:], *map(str, calls)])
        raise AssertionError(f"seed {seed}: {error}\n{said}") from error


def _judge(world: World, watch: Watch, calls: dict[Actor, Call]) -> None:
    assert not watch.problems, watch.problems[0]
    for actor, call in calls.items():
        if actor.error is not None:
            raise AssertionError(f"{call} raised {actor.error!r}") from actor.error
        assert len(call.moves) <= 1, f"{call} has moved it twice"
        if actor.dead or actor in world.given_up:
            continue
        if isinstance(call.outcome, Exception):
            assert not call.moves, f"{call}, and has moved it"
        elif call.outcome[0] == "complete":
            assert call.moves == [call.outcome[1:]], f"{call}"
        else:
            assert not call.moves, f"{call}"
    found = list(RunDirectory(URL).problems())
    assert not found, found


def _go_on(watch: Watch) -> None:
    """The next run completes, and so does one after it; they leave nothing that nobody needs."""
    for n_bits in (20, 30, 40):
        last = Call(n_bits)
        last.run()
        assert not isinstance(last.outcome, Exception), last.outcome
        assert last.outcome[0] == "complete", last
    assert not watch.problems, watch.problems[0]
    directory = RunDirectory(URL)
    assert not list(directory.problems()), list(directory.problems())
    manifests = [directory.manifest_or_nothing(run) for run in directory.runs()]
    kept = [manifest for manifest in manifests if manifest.get("complete")]
    assert len(kept) == KEEP, f"{len(kept)} complete runs are kept"
    named = {f"{stage}-{key}" for found in kept for stage, key in found["stages"].items()}
    assert set(directory.files.names(ARTEFACTS)) == named, "artefacts of nobody are left"


@pytest.mark.parametrize("part", range(4))
def test_latest_is_always_whole_and_every_word_is_true(worlds: list[World], part: int) -> None:
    for seed in range(part, TRIALS, 4):
        interleave(worlds, seed)
