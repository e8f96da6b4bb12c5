"""An object store in memory at which a seed decides who goes on, one request at a time.

`World` holds the objects; `Objects` is the real `RemoteFiles` on them, so that everything above
(conditions, lost answers, commits) is the code of the package. Each actor is a thread that stops
before every request until the scheduler lets it make one. It may be killed there, for good; the
answer of a request may be lost, so that the client repeats it and is refused by its own result; or
the client may give up, whether the request was carried out or not.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sadih_dask.files import conditional
from sadih_dask.files.filesystem import RemoteFiles

PREFIX = "bucket/s"
URL = f"s3://{PREFIX}"
_LIMIT = 5000
"""Requests of one interleaving: more is a livelock."""


class Killed(BaseException):
    """The actor ends here, whatever it was doing."""


@dataclass(eq=False)
class Actor:
    """Somebody at work: `work` is called in a thread, and stops before every request."""

    name: str
    work: Callable[[], Any]
    dead: bool = False
    done: bool = False
    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    error: BaseException | None = None


class World:
    """Named bytes with tags, a scheduler, and faults.

    watch   is told of every change: key, old bytes, new bytes (None: absent), and who made it
    faults  how often a write loses its answer, and how often an actor is killed, of 1000 requests
    """

    def __init__(self, chance: random.Random, *, lost: int = 0, kills: int = 0) -> None:
        self.chance, self.lost, self.kills = chance, lost, kills
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.watch: Callable[[str, bytes | None, bytes | None, Actor | None], None] | None = None
        self.requests: list[str] = []
        self.given_up: set[Actor] = set()
        self._tags = 0
        self._actors: dict[int, Actor] = {}
        self._back = threading.Semaphore(0)
        self._watching = False

    def files(self, url: str = URL) -> Objects:
        """Connect to a place at or below `URL`."""
        return Objects(self, url)

    def data(self, key: str) -> bytes | None:
        found = self.objects.get(key)
        return None if found is None else found[0]

    def actor(self) -> Actor | None:
        return self._actors.get(threading.get_ident())

    def put(self, key: str, data: bytes | None) -> str:
        """Change an object; not a request."""
        old = self.data(key)
        self._tags += 1
        tag = f'"{self._tags}"'
        if data is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = data, tag
        if self.watch is not None:
            self._watching = True
            self.watch(key, old, data, self.actor())
            self._watching = False
        return tag

    def request(self, what: str) -> None:
        """Wait until the scheduler lets this actor make a request."""
        actor = self.actor()
        if self._watching:
            return
        assert len(self.requests) < _LIMIT, "they go on for ever"
        if actor is None:
            self.requests.append(what)
            return
        self._back.release()
        actor.gate.acquire()
        if actor.dead:
            raise Killed
        self.requests.append(f"{actor.name}: {what}")

    def loses_the_answer(self) -> bool:
        return self.actor() is not None and self.chance.random() * 1000 < self.lost

    def gives_up(self) -> bool:
        """The client has no answer and asks no more."""
        actor = self.actor()
        if actor is None or self.chance.random() * 1500 >= self.lost:
            return False
        self.given_up.add(actor)
        return True

    def run(self, actors: list[Actor]) -> None:
        """Let them all work until each has ended or was killed."""
        threads = [threading.Thread(target=self._live, args=(a,), daemon=True) for a in actors]
        for thread in threads:
            thread.start()
            self._back.acquire()
        waiting = list(actors)
        order = self._order(waiting)
        while waiting:
            actor = next(order)
            if self.chance.random() * 1000 < self.kills:
                actor.dead = True
            actor.gate.release()
            self._back.acquire()
            if actor.done:
                waiting.remove(actor)
        for thread in threads:
            thread.join()

    def _order(self, waiting: list[Actor]) -> Iterator[Actor]:
        """Who is next: anybody; or one for long, with few changes at moments of chance."""
        hold = self.chance.choice([0.0, 0.0, 0.7, 0.95])
        stopped: set[Actor] = set()
        if self.chance.random() < 0.5:  # some are stopped at a moment of their own until the end
            stopped = set(self.chance.sample(waiting, len(waiting) // 2))
        limit = {actor: self.chance.randrange(40) for actor in stopped}
        actor = waiting[0]
        while True:
            going = [a for a in waiting if limit.get(a, 1) > 0] or waiting
            if actor not in going or self.chance.random() >= hold:
                actor = self.chance.choice(going)
            if actor in limit:
                limit[actor] -= 1
            yield actor

    def _live(self, actor: Actor) -> None:
        self._actors[threading.get_ident()] = actor
        self._back.release()
        actor.gate.acquire()
        try:
            if not actor.dead:
                actor.work()
        except Killed:
            actor.dead = True
        except BaseException as error:  # handed to the test
            actor.error = error
        finally:
            actor.done = True
            del self._actors[threading.get_ident()]
            self._back.release()


class Refusal(Exception):
    """What botocore raises when a condition does not hold."""

    response = {"Error": {"Code": "PreconditionFailed"}}  # noqa: RUF012 - as botocore has it


class _Requests:
    """What s3fs offers of an object store, as far as `RemoteFiles` and `conditional` use it."""

    def __init__(self, world: World) -> None:
        self.world = world
        members = {"IfMatch": None, "IfNoneMatch": None}
        model = SimpleNamespace(input_shape=SimpleNamespace(members=members))
        service = SimpleNamespace(operation_model=lambda _: model)
        meta = SimpleNamespace(service_model=service, endpoint_url=f"memory:{id(world)}")
        self.s3 = SimpleNamespace(meta=meta)

    def invalidate_cache(self) -> None:
        pass

    def info(self, path: str, refresh: bool) -> dict[str, Any]:
        assert refresh
        self.world.request(f"HEAD {path}")
        return {"ETag": self._found(path)[1]}

    def cat_file(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        self.world.request(f"GET {path}")
        return self._found(path)[0][start:end]

    def _found(self, path: str) -> tuple[bytes, str]:
        try:
            return self.world.objects[path.removeprefix(PREFIX + "/")]
        except KeyError:
            raise FileNotFoundError(path) from None

    def pipe_file(
        self,
        path: str,
        data: bytes,
        mode: str = "overwrite",
        IfMatch: str = "",
        chunksize: int = 0,
    ) -> None:
        del chunksize  # an upload in one piece is all that there is here
        key = path.removeprefix(PREFIX + "/")
        self.world.request(f"PUT {path}")
        if self.world.gives_up():
            if self.world.chance.random() < 0.5:
                raise ConnectionError("no answer")  # and nothing was done
            self._put(key, data, mode, IfMatch)
            self.world.request("(no answer)")
            raise ConnectionError("no answer")
        if self.world.loses_the_answer():
            self._put(key, data, mode, IfMatch)
            self.world.request(f"PUT {path} again")
        self._put(key, data, mode, IfMatch)

    def _put(self, key: str, data: bytes, mode: str, tag: str) -> None:
        found = self.world.objects.get(key)
        if mode == "create" and found is not None:
            raise FileExistsError(key)
        if tag and found is None:
            raise FileNotFoundError(key)
        if tag and found is not None and found[1] != tag:
            raise OSError(errno.EINVAL, "At least one condition did not hold") from Refusal()
        self.world.put(key, data)

    def ls(self, path: str, detail: bool) -> list[Any]:
        self.world.request(f"LIST {path}")
        folder = (path + "/").removeprefix(PREFIX + "/").lstrip("/")
        files, folders = {}, set()
        for key, (data, _) in self.world.objects.items():
            if key.startswith(folder):
                name, deeper, _ = key[len(folder) :].partition("/")
                if deeper:
                    folders.add(name)
                else:
                    files[name] = len(data)
        if not files and not folders:
            raise FileNotFoundError(path)
        assert detail
        found = [{"name": f"{path}/{n}", "size": size, "type": "file"} for n, size in files.items()]
        return found + [{"name": f"{path}/{n}", "size": 0, "type": "directory"} for n in folders]

    def rm(self, path: str, recursive: bool) -> None:
        assert recursive
        self.world.request(f"LIST {path}")
        key = path.removeprefix(PREFIX + "/")
        for name in [n for n in self.world.objects if n == key or n.startswith(key + "/")]:
            self.world.request(f"DELETE {name}")
            if name in self.world.objects:
                self.world.put(name, None)


class Objects(RemoteFiles):
    """The real files of a store behind a URL, on a `World`."""

    def __init__(self, world: World, url: str = URL) -> None:
        assert url.startswith(URL)
        self.url, self.options, self._prefix, self.protocol = url, {}, url[len("s3://") :], "s3"
        self.filesystem = _Requests(world)


def without_probe(patch: Any) -> None:
    """Spare the trial requests: that the server keeps conditions is known here."""
    patch.setattr(conditional, "check_writable", lambda files: None)
