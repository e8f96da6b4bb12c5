"""Whoever writes when, is killed or gets no answer: the commits of a store are a history.

The code that commits (`stores.commit` and all that is above and below it) runs on an object store
in memory, whose every request is a moment at which anybody else may go on instead; see
`tests.support.interleaving`. After every single change of the store is checked

- that a new root is what its author was to make of the root before: his rows added, the ids that
  he names deleted, the same rows in other segments; so no committed row is lost;
- that every state that the root keeps is whole: nothing that it needs is deleted or replaced;

and at the end, that what each call said is true, that readers have seen one commit from their
first row to their last, that a repetition of what was interrupted completes, and that nothing is
left behind. `SADIH_INTERLEAVINGS` says how many interleavings of each scenario are tried (by
default 60); a seed that fails is in the message.
"""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from sadih_dask.errors import ConflictError, IncompleteError, InputError, SadihError
from sadih_dask.files import conditional
from sadih_dask.stores import FeatureStore, features, root, store
from sadih_dask.stores import commit as commits
from sadih_dask.stores.reader import Snapshot, read_rows
from sadih_dask.stores.root import ROOT, Root, former_root_key, parse_root
from tests.support.interleaving import URL, Actor, World, without_probe

TRIALS = int(os.environ.get("SADIH_INTERLEAVINGS", "60"))
CHUNK = 4
Content = tuple[int, ...]


@pytest.fixture(autouse=True)
def place() -> Iterator[list[World]]:
    """What `connect` leads to; few generations, so that much is garbage."""
    worlds: list[World] = []
    with pytest.MonkeyPatch.context() as patch:
        without_probe(patch)
        for module in (features, store):
            patch.setattr(module, "connect", lambda *_, **__: worlds[-1].files())
        patch.setattr(root, "KEPT_GENERATIONS", 2)
        patch.setattr(commits, "KEPT_GENERATIONS", 2)
        yield worlds


def table(numbers: Content | range) -> dict[str, Any]:
    column = np.array(numbers, np.int64)
    return {"features": column.reshape(-1, 1).astype(np.float32), "ids": column}


@dataclass(eq=False)
class Call:
    """One call, what it is allowed to do to the store, and what came of it.

    rows    that it adds, or deletes
    commits that it has made
    looked  the commit of the root in which it has named its segment
    """

    kind: str
    rows: Content = ()
    options: dict[str, Any] = field(default_factory=dict)
    commits: int = 0
    looked: str = ""
    began: int = -1
    ended: int = -1
    outcome: Any = None
    seen: list[Content] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kind} {self.rows} {self.options} -> {self.outcome!r} ({self.commits})"

    def run(self) -> Any:
        return getattr(self, f"_{self.kind}")()

    def _append(self) -> None:
        opened = FeatureStore.open(URL)
        key = self.options.get("key")
        if key is None:
            opened.append(**table(self.rows), **self.options)
            return
        writer = opened.extend(len(self.rows), key=key)
        for block in writer.missing():
            first, last = writer.rows_of(block)
            writer.write(first, **table(self.rows[first:last]))
        writer.finalise()

    def _create(self) -> None:
        FeatureStore.create(URL, **table(self.rows), chunk_rows=CHUNK, **self.options)

    def _overwrite(self) -> None:
        given = table(self.rows)
        if self.options.get("other"):  # rows of another form
            given = {"features": np.repeat(given["features"], 2, axis=1)}
        FeatureStore.create(URL, **given, chunk_rows=CHUNK, overwrite=True)

    def _delete(self) -> int:
        return FeatureStore.open(URL).delete(np.array(self.rows))

    def _compact(self) -> None:
        FeatureStore.open(URL).compact(**self.options)

    def _collect(self) -> None:
        FeatureStore.open(URL).collect()

    def _abandon(self) -> None:
        FeatureStore.open(URL).abandon()

    def _restore(self) -> None:
        FeatureStore.open(URL).restore(**self.options)

    def _read(self) -> str:
        opened = FeatureStore.open(URL)
        self.looked = opened.commit
        for _ in range(3):
            held = tuple(opened.read("features")[:, 0].astype(int).tolist())
            self.seen.append(held)
            opened = FeatureStore(Snapshot(opened._snapshot.files, opened._root))  # no cache
        return "read"


class Watch:
    """Looks at every change of the store, and remembers what its states hold."""

    def __init__(self, world: World) -> None:
        self.world, self.calls, self.problems = world, dict[Actor, Call](), list[str]()
        self.contents: dict[str, Content] = {}
        self.generations: dict[int, str] = {}
        self.needed: dict[str, set[str]] = {}
        self.log: list[tuple[Call | None, str]] = []
        self.kept: set[str] = set()
        self.ever_kept: list[set[str]] = []
        self.latest: Root | None = None

    def parse(self, data: bytes) -> Root:
        return parse_root(URL, data, FeatureStore.kind)

    def __call__(self, key: str, old: bytes | None, new: bytes | None, actor: Actor | None) -> None:
        call = self.calls.get(actor) if actor is not None else None
        try:
            if key == ROOT:
                assert new is not None, "the root was deleted"
                self._root(None if old is None else self.parse(old), self.parse(new), call)
            elif old is not None and old != new:
                for commit in self.kept:
                    assert key not in self.needed[commit], f"{key} is needed by a kept state"
        except (AssertionError, SadihError, LookupError) as error:
            self.problems.append(f"{call}: {error!r}")

    def _root(self, old: Root | None, new: Root, call: Call | None) -> None:
        self.latest = new
        if old is None or new.commit == old.commit:
            if old is not None:
                same = old.segments == new.segments and old.arrays == new.arrays
                assert same, "rows have changed without a commit"
            if call is not None:
                call.began = len(self.log)
                if not call.looked or self.world.lost:  # without an answer it looks again
                    call.looked = new.commit
        else:
            self.contents[new.commit] = content = self.read(new)
            self.generations[new.generation] = new.commit
            self.needed[new.commit] = self.keys(new)
            before = self.contents[old.commit] if old.segments else ()
            self.log.append((call, new.commit))
            if call is not None:
                call.commits += 1
                self._check(call, old, before, content)
        self.kept = {commit for _, commit in new.history}
        if new.segments:
            self.kept.add(new.commit)
        self.ever_kept.append(self.kept)
        for generation, commit in new.history:
            there = self.world.data(former_root_key(generation, commit))
            assert there is not None, f"{generation} is in the history and was not saved"
            assert self.parse(there).segments is not None
            for needed in self.needed[commit]:
                assert needed in self.world.objects, f"{needed} is gone, {generation} needs it"

    def _check(self, call: Call, old: Root, before: Content, after: Content) -> None:
        """Whether a commit is what its author was to make of the state before."""
        rows = call.rows
        if call.kind == "append":
            assert after == before + rows, f"{before} + {rows} became {after}"
            assert call.options.get("at", len(before)) == len(before), "appended elsewhere"
        elif call.kind in ("overwrite", "create"):
            assert after == rows, f"{rows} became {after}"
            assert call.looked in ("", old.commit), "a state was replaced that it has not looked at"
        elif call.kind == "delete":
            assert set(rows) <= set(before), "rows were deleted that were not there"
            assert after == tuple(row for row in before if row not in rows), f"{after}"
        elif call.kind == "compact":
            assert after == before, f"{before} became {after} in compaction"
        elif call.kind == "restore":
            wanted = self.contents[self.generations[call.options["generation"]]]
            assert after == wanted, f"{wanted} restored became {after}"
        else:
            raise AssertionError(f"{call.kind} has committed")

    def read(self, state: Root) -> Content:
        """All rows of a state, with every check that a read makes."""
        snapshot = Snapshot(self.world.files(), state)
        held = tuple(read_rows(snapshot, "features")[:, 0].astype(int).tolist())
        if "ids" in state.arrays:
            assert tuple(read_rows(snapshot, "ids").tolist()) == held, "ids of other rows"
        return held

    def keys(self, state: Root) -> set[str]:
        """The objects that a state needs."""
        found = {f"deletions/{s.deleted.id}" for s in state.segments if s.deleted is not None}
        for segment in state.segments:
            found |= {key for key in self.world.objects if key.startswith(segment.path + "/")}
        return found


def prepared(worlds: list[World], world: World, *, empty: bool) -> Watch:
    """Nothing, or a store of two segments, one with a deleted row, and former states."""
    watch = Watch(world)
    worlds[:] = [world]
    world.watch = watch
    if empty:
        return watch
    opened = FeatureStore.create(URL, **table(range(6)), chunk_rows=CHUNK)
    opened.append(**table((6, 7)))
    opened.delete([1])
    return watch


OPERATIONS = (
    ["append"] * 6 + ["delete"] * 3 + ["overwrite", "compact", "collect", "abandon", "restore"] * 2
)


def calls_by(chance: random.Random, author: int) -> Call:
    kind = chance.choice([*OPERATIONS, "read"])
    first = 100 * author
    if kind == "append":
        rows = tuple(range(first, first + chance.choice([1, 2, 3, 6])))
        options = chance.choice([{}, {}, {"at": 7}, {"key": f"k{author}"}, {"key": "shared"}])
        if options.get("key") == "shared":
            rows = (900, 901, 902)
        return Call(kind, rows, dict(options))
    if kind == "overwrite":
        other = {"other": True} if chance.random() < 0.3 else {}
        return Call(kind, tuple(range(first, first + 5)), other)
    if kind == "delete":
        return Call(kind, tuple(sorted(chance.sample([0, 2, 3, 4, 5, 6, 7], 2))))
    if kind == "compact":
        return Call(kind, (), dict(chance.choice([{}, {"one_segment": True}, {"purge": True}])))
    return Call(kind, (), {"generation": chance.choice([1, 2, 3, 4])} if kind == "restore" else {})


Make = Callable[[random.Random], list[Call]]


def interleave(worlds: list[World], seed: int, make: Make, *, empty: bool = False) -> None:
    """One interleaving; AssertionError with its requests if anything does not hold."""
    chance = random.Random(seed)
    lost, kills = chance.choice([(0, 0), (60, 0), (0, 25), (40, 15)])
    world = World(chance)
    watch = prepared(worlds, world, empty=empty)
    calls = make(chance)
    world.lost, world.kills = lost, kills
    try:
        actors = _work(world, watch, calls)
        world.lost = world.kills = 0
        assert not watch.problems, watch.problems[0]
        _judge(world, watch, calls, actors)
        _repeat(calls, actors)
        if watch.latest is None or not watch.latest.segments:  # nobody has come to the end
            Call("overwrite", (1, 2, 3)).run()
        assert not watch.problems, watch.problems[0]
        _tidy(world, watch)
    except (AssertionError, SadihError, OSError, LookupError) as error:
        said = "\n".join([*world.requests[-120:], *map(str, calls)])
        raise AssertionError(f"seed {seed}: {error}\n{said}") from error


def _work(world: World, watch: Watch, calls: list[Call]) -> list[Actor]:
    def work(call: Call) -> Callable[[], None]:
        def run() -> None:
            call.began = len(watch.log)
            try:
                call.outcome = call.run()
            except SadihError as error:
                call.outcome = error
            else:
                call.outcome = call.outcome or "done"
            call.ended = len(watch.log)

        return run

    actors = [Actor(f"{n} {call.kind}", work(call)) for n, call in enumerate(calls)]
    watch.calls = dict(zip(actors, calls, strict=True))
    world.run(actors)
    watch.calls = {}
    return actors


def _judge(world: World, watch: Watch, calls: list[Call], actors: list[Actor]) -> None:
    """Whether what each call said is true."""
    for call, actor in zip(calls, actors, strict=True):
        if actor.error is not None:
            raise AssertionError(f"{call} raised {actor.error!r}") from actor.error
        assert call.commits <= (2 if call.kind == "compact" else 1), f"{call} committed twice"
        if actor.dead or actor in world.given_up:
            continue
        if not isinstance(call.outcome, SadihError):
            done = sum(c.commits for c in calls if c.rows == call.rows)
            if call.kind in ("append", "overwrite", "create", "delete"):
                assert done >= 1, f"{call} said that it was done"
            if call.kind == "read":
                held = watch.contents[call.looked]
                assert all(seen == held for seen in call.seen), f"{call} saw {call.seen}"
            continue
        assert call.kind == "compact" or not call.commits, f"{call} committed and said no"
        expected: tuple[type[SadihError], ...] = (ConflictError,)
        if call.kind in ("delete", "restore", "append"):
            expected = (ConflictError, InputError)  # such ids, generation, form are not there
        if call.kind in ("append", "overwrite", "create", "compact"):
            expected = (*expected, IncompleteError)  # given up by others, and collected
        assert isinstance(call.outcome, expected), f"{call}"
        if call.kind == "read":
            lives = watch.ever_kept[-1]
            assert call.looked not in lives, f"{call}, though the state is kept"
    shared = [c for c in calls if c.options.get("key") == "shared" and c.commits]
    for one, other in pairwise(shared):
        begun = sorted([one, other], key=lambda c: c.began)
        when = [n for n, (call, _) in enumerate(watch.log) if call is begun[0]]
        assert begun[1].began > when[0], "two calls with one key have added their rows twice"


def _repeat(calls: list[Call], actors: list[Actor]) -> None:
    """What was interrupted completes when it is called again, and nobody else is at work."""
    for call, actor in zip(calls, actors, strict=True):
        if not actor.dead or call.commits or call.kind in ("read", "restore", "delete"):
            continue
        again = replace(call, commits=0, outcome=None)
        try:
            again.run()
        except ConflictError as error:
            known = "at" in call.options or call.kind == "create"  # others were faster
            if not known:
                raise AssertionError(f"repeated, {call}: {error}") from error
        except InputError:
            if call.kind != "append":  # its rows have another form now
                raise


def _tidy(world: World, watch: Watch) -> None:
    """Nothing that was committed is damaged, and nothing is left that nobody needs."""
    opened = FeatureStore.open(URL)
    found = opened.verify(workers=1)
    assert found.ok, found.problems
    opened.abandon()
    opened.collect()
    assert not watch.problems, watch.problems[0]
    assert watch.latest is not None
    former = {former_root_key(*entry) for entry in watch.latest.history}
    live = {ROOT, "segments/zarr.json", former_root_key(opened.generation, opened.commit), *former}
    for commit in watch.kept:
        live |= watch.needed[commit]
    left = sorted(key for key in world.objects if key not in live)
    assert not left, f"left behind: {left}"
    for commit in watch.kept:
        assert watch.needed[commit] <= set(world.objects), f"{commit} has lost objects"


def anybody(chance: random.Random) -> list[Call]:
    return [calls_by(chance, author) for author in range(1, chance.choice([3, 4, 5]))]


def creators(chance: random.Random) -> list[Call]:
    """Two or three who make the store, of whom some are alike, and one who wants it whole."""
    rows = tuple(range(100, 107))
    kinds = [chance.choice(["create", "create", "overwrite"]) for _ in range(chance.choice([2, 3]))]
    others = [Call(kind, chance.choice([rows, rows, rows[:3]])) for kind in kinds]
    return [Call("create", rows), *others]


def few_who_commit(chance: random.Random) -> list[Call]:
    """Small appends, which take each other's segments up, deletions, compaction and restoration."""
    last = chance.choice(["compact", "restore", "collect", "abandon", "overwrite"])
    options: dict[str, Any] = {"generation": 2} if last == "restore" else {}
    if last == "overwrite":
        options = {"other": True}
    key = chance.choice([{}, {"key": "shared"}])
    return [
        Call("append", (900, 901, 902), dict(key)),
        Call("append", (900, 901, 902), dict(key)),
        Call("delete", (6,)),
        Call(last, tuple(range(300, 305)) if last == "overwrite" else (), options),
    ]


def around_a_collection(chance: random.Random) -> list[Call]:
    """Those who write, and who collects what nobody needs, or delete what is on its way."""
    return [
        Call("collect"),
        Call("append", (100, 101, 102, 103, 104)),
        Call("delete", (chance.choice([2, 3]),)),
        Call("delete", (6,)),
    ]


def overwriters(chance: random.Random) -> list[Call]:
    """Some who replace the store by rows of one form, so that they find each other's beginnings."""
    others = [Call("append", (900,))] if chance.random() < 0.3 else []
    return [Call("overwrite", tuple(range(n, n + 5))) for n in (100, 200)] + others


MAKES = [anybody, few_who_commit, around_a_collection, overwriters]


@pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)
def test_any_calls_at_once_leave_a_history(place: list[World], make: Make) -> None:
    for seed in range(TRIALS):
        interleave(place, seed, make)


def test_any_creators_at_once_make_one_store(place: list[World]) -> None:
    for seed in range(TRIALS):
        interleave(place, seed, creators, empty=True)


BROKEN = {
    "the root is read before the listing": (
        commits.collect,
        """    root = update(files, kind, forget)
""",
        "",
        """    listed = [""",
        """    root = update(files, kind, lambda r: replace(r, history=r.history[-keep:]))
    listed = [""",
    ),
    "collecting leaves the root alone": (
        commits.collect,
        "root = update(files, kind, forget)",
        "root = forget(read_root(files, kind)[0])",
    ),
    "what is pending is collected": (
        commits.collect,
        """*(f"{SEGMENTS}/{entry.id}" for entry in root.pending)""",
        "",
    ),
    "what was given up is committed": (
        commits._check_pending,
        "all(entry.id != segment_id for entry in root.pending)",
        "False",
    ),
    "small segments are replaced though they have changed": (
        commits.commit,
        "(*kept, *plan.absorbs) != root.segments",
        "False",
    ),
    "whatever is there is overwritten": (
        commits.commit,
        "root.commit != plan.root.commit",
        "False",
    ),
    "rows of another form stay on their way": (
        commits.commit,
        "pending=(),",
        "pending=root.without_pending(segment.id),",
    ),
    "a compaction undoes deletions": (
        commits._join,
        "if found == run[0]",
        "if found.id == run[0].id",
        "latest.segments[start : start + len(run)] != run",
        "[s.id for s in latest.segments[start : start + len(run)]] != [s.id for s in run]",
    ),
    "the root is replaced unconditionally": (
        conditional._put,
        """{"IfMatch": seen.tag}""",
        "{}",
    ),
    "only the latest root is looked at for a lost answer": (
        commits.update,
        "if tried.intersection(root.recent):",
        "if False:",
    ),
    "the bytes are read before the tag": (
        conditional.read,
        """        tag = files.tag(key)
        return Version(files.read(key, limit), tag)
""",
        """        data = files.read(key, limit)
        return Version(data, files.tag(key))
""",
    ),
    "former roots are not saved": (
        commits.update,
        "new.commit != root.commit and root.segments",
        "False",
    ),
}

SHOWN_BY = {
    "the root is read before the listing": 70,
    "collecting leaves the root alone": 160,
    "what is pending is collected": 98,
    "what was given up is committed": 85,
    "rows of another form stay on their way": 101,
    "a compaction undoes deletions": 165,
    "only the latest root is looked at for a lost answer": 1253,
}
"""The first seeds that do, which are tried first: others take up to half a minute to find."""


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_protocol_is_found_out(
    place: list[World], broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, *changes = BROKEN[broken]
    source = inspect.getsource(function)
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert source.count(old) == 1, f"{function.__name__} has changed: say anew what breaks it"
        source = source.replace(old, new)
    namespace: dict[str, Any] = {}
    exec(source, function.__globals__, namespace)
    monkeypatch.setattr(
        inspect.getmodule(function), function.__name__, namespace[function.__name__]
    )

    def try_all() -> None:
        for seed in range(SHOWN_BY.get(broken, 0), 3000):
            interleave(place, seed, MAKES[seed % len(MAKES)])

    with pytest.raises(AssertionError, match=r"seed \d+: "):
        try_all()
