"""Several writers on one store behind S3, one of them held at every request.

    python -m tests.faults.two_writers [--trials 10000] [--seed 20]

The first writer is held before its k-th request, the second does all of its work, then the first
goes on; for every pair of works and every k, or as many of these as there are trials. In the same
way the answer of every write of the root is lost, and the client's repetition is held. What must
hold: each writer either does all of its work or none and says why; the rows are what those who
said that they were done have made, one after the other; nothing is replaced that its writer has
not seen; the store is intact.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np

from sadih_dask.errors import ConflictError, FormatError, IncompleteError, InputError, SadihError
from sadih_dask.stores import FeatureStore
from tests.faults.table import Outcome, main
from tests.support.proxy import Proxy, Request, proxy_to

CHUNK = 4
OLD = tuple(range(6))
Content = tuple[int, ...]
FIRST = ("append", "append many", "overwrite", "delete", "create", "compact")
SECOND = ("append", "overwrite", "delete", "compact")
PATIENCE = 60.0


@dataclass(frozen=True)
class Trial:
    """Who is held before which request of his; `lost` is the answer before that."""

    first: str
    second: str
    k: int
    lost: bool = False


def table(numbers: Content) -> dict[str, Any]:
    """Rows that say which they are."""
    column = np.array(numbers, np.int64)
    return {"features": column.reshape(-1, 1).astype(np.float32), "ids": column}


def rows_of(work: str, author: int) -> Content:
    """The rows that somebody brings, or takes away."""
    if work == "delete":
        return (author,)
    return tuple(range(100 * author, 100 * author + (2 if work == "append" else 6)))


def do(work: str, url: str, author: int, options: dict[str, Any]) -> str:
    """Do it, and say how that went."""
    rows = rows_of(work, author)
    try:
        if work in ("create", "overwrite"):
            overwrite = work == "overwrite"
            FeatureStore.create(
                url, **table(rows), chunk_rows=CHUNK, overwrite=overwrite, storage_options=options
            )
            return "done"
        store = FeatureStore.open(url, storage_options=options)
        if work == "delete":
            store.delete(np.array(rows))
        elif work == "compact":
            store.compact(one_segment=True)
        else:
            store.append(**table(rows))
    except (ConflictError, FormatError, InputError, IncompleteError) as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def after(content: Content, work: str, author: int) -> Content:
    """What a work makes of the rows before it."""
    rows = rows_of(work, author)
    if work == "delete":
        return tuple(row for row in content if row not in rows)
    if work in ("create", "overwrite"):
        return rows
    return content if work == "compact" else content + rows


class Stage:
    """A server, a proxy before it, and a new store for every trial."""

    def __init__(self, proxy: Proxy, bucket: str) -> None:
        self.proxy, self.bucket = proxy, bucket

    def fresh(self, *, empty: bool = False) -> str:
        """The URL of a new store, or of none."""
        self.proxy.rule = lambda _: None
        url = f"s3://{self.bucket}/{uuid.uuid4().hex[:12]}"
        if not empty:
            options = self.proxy.options("nobody")
            store = FeatureStore.create(
                url, **table(OLD[:4]), chunk_rows=CHUNK, storage_options=options
            )
            store.append(**table(OLD[4:]))
        self.proxy.seen.clear()
        return url

    def requests(self, work: str) -> list[Request]:
        """What somebody asks for who is alone."""
        url = self.fresh(empty=work == "create")
        assert do(work, url, 1, self.proxy.options("1")) == "done"
        return [request for request in self.proxy.seen if request.author == "1"]

    def try_one(self, trial: Trial) -> tuple[str, ...]:
        """Let two meet; AssertionError if what must hold does not."""
        return self._meet([(trial.first, trial.k), (trial.second, None)], lost=trial.lost)

    def try_three(self, works: list[tuple[str, int | None]]) -> tuple[str, ...]:
        """Each but the last is held at a request of his until all after him have ended."""
        return self._meet(works)

    def _meet(self, works: list[tuple[str, int | None]], *, lost: bool = False) -> tuple[str, ...]:
        url = self.fresh(empty=works[0][0] == "create")
        gates = {str(n): (threading.Event(), threading.Event()) for n in range(1, len(works) + 1)}
        held_at = {str(n): k for n, (_, k) in enumerate(works, start=1)}

        def rule(request: Request) -> str | None:
            k = held_at.get(request.author)
            if k is None:
                return None
            if lost and request.number == k:
                return "drop"
            if request.number == k + lost:
                reached, release = gates[request.author]
                reached.set()
                release.wait(PATIENCE)
            return None

        self.proxy.rule = rule
        said: dict[int, str] = {}
        threads = []
        for author, (work, k) in enumerate(works, start=1):

            def live(author: int = author, work: str = work) -> None:
                try:
                    said[author] = do(work, url, author, self.proxy.options(str(author)))
                except Exception as error:
                    said[author] = f"RAISED {error!r}"
                gates[str(author)][0].set()

            thread = threading.Thread(target=live, daemon=True)
            thread.start()
            threads.append(thread)
            if k is None:
                thread.join(PATIENCE)
            else:
                assert gates[str(author)][0].wait(PATIENCE), "nobody gets on"
        begun = {
            author: any(
                request.author == str(author) and request.writes_root and request.number < k
                for request in self.proxy.seen
            )
            for author, (_, k) in enumerate(works, start=1)
            if k is not None
        }
        for author in reversed(range(1, len(works))):
            gates[str(author)][1].set()
            threads[author - 1].join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads), "somebody hangs"
        self._judge(url, [work for work, _ in works], said, begun)
        return tuple(said[author] for author in sorted(said))

    def _judge(
        self, url: str, works: list[str], said: dict[int, str], begun: dict[int, bool]
    ) -> None:
        self.proxy.rule = lambda _: None
        for text in said.values():
            assert not text.startswith("RAISED"), text
        done = [author for author, text in said.items() if text == "done"]
        empty = works[0] == "create"
        assert done, f"nobody has done anything: {said}"
        store = FeatureStore.open(url, storage_options=self.proxy.options("nobody"))
        found = store.verify(workers=1)
        assert found.ok, found.problems[0]
        held = tuple(store.read("features")[:, 0].astype(int).tolist())
        assert held == tuple(store.read("ids").tolist()), "ids of other rows"
        possible = {}
        for order in permutations(done):
            content: Content = () if empty else OLD
            for place, author in enumerate(order):
                work = works[author - 1]
                if place and work in ("overwrite", "create") and begun.get(author):
                    break  # it would have replaced what it has not seen
                content = after(content, work, author)
            else:
                possible[order] = content
        assert held in possible.values(), f"{held} of {possible}; {said}"


@contextmanager
def stage(server: str) -> Iterator[Stage]:
    """Set it up before a server that speaks S3."""
    import s3fs

    with proxy_to(server) as proxy:
        bucket = f"bucket-{uuid.uuid4().hex[:12]}"
        s3fs.S3FileSystem(**proxy.options("nobody")).mkdir(bucket)
        found = Stage(proxy, bucket)
        found.fresh()  # the trial of the server is made once
        yield found


def all_trials(found: Stage) -> list[Trial]:
    """Every pair of works and every request; lost answers at every write of the root."""
    trials = []
    for first in FIRST:
        requests = found.requests(first)
        for second, k in product(SECOND, range(len(requests))):
            trials.append(Trial(first, second, k))
        for request in requests:
            if request.writes_root:
                trials += [Trial(first, second, request.number, True) for second in SECOND[:2]]
    return trials


def run(folder: Path, trials: int, seed: int) -> Outcome:
    """Hold the first at every request, or at as many as there are trials."""
    del folder
    import moto.server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    outcome = Outcome("several writers on one store, one held at each request")
    server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    tally = {"done": 0, "refused": 0}
    try:
        with stage(f"http://{host}:{port}") as found:
            everything = all_trials(found)
            step = max(1, len(everything) // trials)
            for trial in everything[seed % step :: step]:
                outcome.trials += 1
                try:
                    for said in found.try_one(trial):
                        tally["done" if said == "done" else "refused"] += 1
                except (AssertionError, SadihError) as error:
                    outcome.failures.append(f"{trial}: {error}")
    finally:
        server.stop()
    outcome.figures = {name: f"{n:,}" for name, n in tally.items()}
    return outcome


if __name__ == "__main__":
    main(run, trials=10_000)
