"""Two processes write one store at the same moment.

    python -m tests.faults.two_writers [--trials 200] [--seed 20]

In each trial two processes wait for the same moment and then create, overwrite or append to one
store, or pour a file into it with ``sadih ingest``, each with rows that tell whose they are. What
must hold: every process either does all of its work or none and says why, naming the store; at
least one succeeds; the store is intact, and its rows are whole pieces of work, one after another.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from sadih_dask import FeatureStore
from sadih_dask.errors import ConflictError
from tests.faults.forks import Forks
from tests.faults.table import Outcome, main

OLD, NEW = 30, 90
CHUNK = 8
WORKS = ("create", "overwrite", "append", "append at", "ingest")
CHILD = "from tests.faults.two_writers import work; work()"


def rows(author: int, n: int = NEW) -> tuple[np.ndarray, np.ndarray]:
    """Rows that say whose they are, and which."""
    numbers = np.arange(n)
    return np.stack([np.full(n, author), numbers], axis=1).astype(np.float32), numbers % 3


def work() -> None:
    """What a child does: wait for the moment, write, and say how that went."""
    kind, url, author, gate = sys.argv[1:]
    x, y = rows(int(author))
    store = FeatureStore.open(url) if kind.startswith("append") else None
    while not Path(gate).exists():
        time.sleep(0.0005)
    try:
        if store is not None:
            store.append(x, y, at=OLD if kind == "append at" else None)
        else:
            FeatureStore.create(url, x, y, chunk_rows=CHUNK, overwrite=kind == "overwrite")
    except ConflictError as error:
        print(f"lost: {error}")
    else:
        print("won")
    sys.stdout.flush()
    os._exit(0)


def run(folder: Path, trials: int, seed: int) -> Outcome:
    """Let two processes write one store, again and again."""
    outcome = Outcome("two writers on one store")
    rng = random.Random(seed)
    won: Counter[int] = Counter()
    for author in (1, 2):
        x, y = rows(author)
        np.save(folder / f"x{author}.npy", x)
        np.save(folder / f"y{author}.npy", y)
    with Forks(folder) as forks:
        for trial in range(trials):
            kinds = (rng.choice(WORKS), rng.choice(WORKS))
            outcome.trials += 1
            try:
                won[_compete(forks, folder / f"s{trial}", kinds)] += 1
            except AssertionError as error:
                outcome.failures.append(f"{kinds}: {error}")
    outcome.figures = {
        "one won": f"{won[1]:,}",
        "both, one after the other": f"{won[2]:,}",
        "interleaved": "0" if outcome.ok else "see below",
    }
    return outcome


def _compete(forks: Forks, url: Path, kinds: tuple[str, str]) -> int:
    """Return how many of two writers have done their work, after checking what they left."""
    if any(kind in ("overwrite", "append", "append at") for kind in kinds):
        FeatureStore.create(url, *rows(0, OLD), chunk_rows=CHUNK)
    gate = url.with_suffix(".gate")
    children = []
    for author, kind in enumerate(kinds, start=1):
        if kind == "ingest":
            files = (
                url.with_name(f"x{author}.npy"),
                url,
                "--labels",
                url.with_name(f"y{author}.npy"),
            )
            children.append(
                forks.start("ingest", *files, "--overwrite", "--quiet", "--chunk-rows", CHUNK)
            )
        else:
            children.append(forks.start(kind, url, author, gate, script=CHILD))
    time.sleep(0.02)
    gate.touch()
    authors = []
    for author, child in enumerate(children, start=1):
        ended = child.wait()
        if ended.code == 0 and "lost" not in ended.said:
            authors.append(author)
            continue
        text = ended.said
        assert str(url) in text, f"the loser was not told where: {text}"
        clear = ("is being written by process", "already holds", "rows were to be appended at")
        clear += ("has been replaced by another", "has been finished by another")
        assert any(words in text for words in clear), f"the loser was not told why: {text}"
        assert "Traceback" not in text, text
    assert authors or "create" in kinds, "nobody won"
    _check_rows(url, authors)
    return len(authors)


def _check_rows(url: Path, authors: list[int]) -> None:
    store = FeatureStore.open(url)
    assert store.verify().ok, f"damaged: {store.verify().problems[:1]}"
    found = store.read("features")
    sizes = {0: OLD, 1: NEW, 2: NEW}
    start, order = 0, []
    while start < len(found):
        author = int(found[start, 0])
        piece = rows(author, sizes[author])[0]
        whole = np.array_equal(found[start : start + len(piece)], piece)
        assert whole, f"rows of several authors from row {start} on"
        order.append(author)
        start += len(piece)
    assert len(set(order)) == len(order), f"somebody's rows are there twice: {order}"
    assert set(order) <= {0, *authors}, f"{order} are there, and only {authors} said they won"


if __name__ == "__main__":
    main(run, trials=200)
