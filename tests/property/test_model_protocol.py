"""Whoever writes a model file when, and is killed or gets no answer: no model is lost unseen.

`jobs.fit.fit` and `jobs.tune.tune` work on an object store in memory, beside each other and beside
somebody who appends to the store; see `tests.support.interleaving`. After every change is checked
that the model file is whole, and that whoever replaces it has seen what he replaces; at the end,
that what each call said is true, and that the next fit knows all rows. `SADIH_INTERLEAVINGS`
says how many interleavings are tried (by default 40); a seed that fails is in the message.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import dask
import numpy as np
import pytest

from sadih_dask.errors import ConflictError, SadihError
from sadih_dask.files import file
from sadih_dask.jobs.fit import fit
from sadih_dask.jobs.tune import tune
from sadih_dask.model.model_file import read_model
from sadih_dask.stores import FeatureStore, features, store
from tests.support.interleaving import URL, Actor, World, without_probe

TRIALS = int(os.environ.get("SADIH_INTERLEAVINGS", "40"))
KEY = "m.sadih"
STORE, MODEL = f"{URL}/s", f"{URL}/{KEY}"
VERSION = file.RemoteFile.version
PARAMETERS = {"n_bits": 4, "anchors": None, "n_init": 1, "max_iter": 1}
KINDS = ("fit", "fit", "refit", "tune", "append")


@pytest.fixture(autouse=True)
def worlds() -> Iterator[list[World]]:
    """What `connect` leads to."""
    found: list[World] = []
    with pytest.MonkeyPatch.context() as patch, dask.config.set(scheduler="synchronous"):
        without_probe(patch)
        for module in (features, store, file):
            patch.setattr(module, "connect", lambda url, *_, **__: found[-1].files(str(url)))
        patch.setattr(file.RemoteFile, "version", lambda place: found[-1].watch.look(place))
        yield found


def table(first: int, n: int) -> dict[str, Any]:
    rng = np.random.default_rng(first)
    return {"features": rng.normal(size=(n, 2)).astype(np.float32), "labels": np.arange(n) % 2}


@dataclass(eq=False)
class Call:
    """A call, and what came of it.

    seen      the version of the model file when it began
    written   the versions that it has replaced
    """

    kind: str
    author: int
    outcome: Any = None
    seen: str | None = None
    written: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.author} {self.kind} -> {self.outcome!r}"

    def run(self) -> None:
        try:
            getattr(self, f"_{self.kind}")()
            self.outcome = "done"
        except (SadihError, OSError) as error:
            self.outcome = error

    def _append(self) -> None:
        FeatureStore.open(STORE).append(**table(100 + self.author, 3))

    def _fit(self) -> None:
        fit(FeatureStore.open(STORE), MODEL, PARAMETERS)

    def _refit(self) -> None:
        fit(FeatureStore.open(STORE), MODEL, {**PARAMETERS, "n_bits": 8}, overwrite=True)

    def _tune(self) -> None:
        grid = {"alpha": [1.0]}
        given = {name: value for name, value in PARAMETERS.items() if name != "n_bits"}
        tune(FeatureStore.open(STORE), MODEL, given, grid, [4], 2, 6, overwrite=True)


class Watch:
    """Looks at every change of the model file."""

    def __init__(self, world: World) -> None:
        self.world, self.problems = world, list[str]()
        self.calls: dict[Actor, Call] = {}
        self.version = file.ABSENT

    def __call__(self, key: str, _: bytes | None, new: bytes | None, actor: Actor | None) -> None:
        if key != KEY:
            return
        call = self.calls.get(actor) if actor is not None else None
        try:
            assert new is not None, "the model is gone"
            read_model(MODEL)
        except (AssertionError, SadihError) as error:
            self.problems.append(f"{call}: {error!r}")
        if call is not None:
            call.written.append(self.version)
        self.version = self.world.objects[key][1]

    def look(self, place: file.RemoteFile) -> str:
        """Stands for `RemoteFile.version`: what somebody has seen first."""
        found = VERSION(place)
        call = self.calls.get(self.world.actor())  # type: ignore[arg-type]
        if call is not None and call.seen is None and place.key == KEY:
            call.seen = found
        return found


def interleave(worlds: list[World], seed: int) -> None:
    """One interleaving; AssertionError with its requests if anything does not hold."""
    chance = random.Random(seed)
    lost, kills = chance.choice([(0, 0), (60, 0), (0, 25), (40, 15)])
    world = World(chance)
    worlds[:] = [world]
    FeatureStore.create(STORE, **table(0, 12), chunk_rows=4)
    watch = world.watch = Watch(world)
    if chance.random() < 0.5:
        Call("fit", 0).run()
        Call("append", 0).run()
    calls = [Call(chance.choice(KINDS), n) for n in range(1, chance.choice([3, 3, 4]))]
    try:
        actors = [Actor(str(call), call.run) for call in calls]
        watch.calls = dict(zip(actors, calls, strict=True))
        world.lost, world.kills = lost, kills
        world.run(actors)
        world.lost = world.kills = 0
        _judge(world, watch, watch.calls)
        watch.calls = {}
        last = fit(FeatureStore.open(STORE), MODEL, PARAMETERS, overwrite=True)
        assert last.n_rows == FeatureStore.open(STORE).n_rows
        assert read_model(MODEL).coverage is not None
        left = [key for key in world.objects if key.startswith(".") and KEY in key]
        assert len(left) <= sum(actor.dead or actor in world.given_up for actor in actors), left
    except (AssertionError, SadihError, OSError, LookupError) as error:
        said = "\n".join([*world.requests[-120:], *map(str, calls)])
        raise AssertionError(f"seed {seed}: {error}\n{said}") from error


def _judge(world: World, watch: Watch, calls: dict[Actor, Call]) -> None:
    assert not watch.problems, watch.problems[0]
    for actor, call in calls.items():
        if actor.error is not None:
            raise AssertionError(f"{call} raised {actor.error!r}") from actor.error
        for version in call.written:
            assert version == call.seen, f"{call} has replaced {version} and seen {call.seen}"
        if call.kind == "append" or actor.dead or actor in world.given_up:
            continue
        assert len(call.written) <= 1, f"{call} has written it {len(call.written)} times"
        if isinstance(call.outcome, Exception):
            assert isinstance(call.outcome, ConflictError), f"{call}"
            assert not call.written, f"{call}, and has written it"


@pytest.mark.parametrize("part", range(4))
def test_no_model_is_replaced_unseen(worlds: list[World], part: int) -> None:
    for seed in range(part, TRIALS, 4):
        interleave(worlds, seed)
