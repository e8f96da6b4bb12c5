"""Stores, models, run directories and configurations that were changed at random, to do harm.

    python -m tests.faults.fuzz [--trials 3000] [--seed 20]

Every case takes something intact and changes it in one to three places: any value of any document
(the root, other metadata, source records, models, coverage, manifests, records, settings), the
numbers of a chunk, a list of deleted rows, an array of a model, a link for a file or folder. Then
all checksums are made to fit, as somebody who means harm would, and the commands that read such a
thing run in one process that watches itself. What must hold, whatever the case: nothing is opened,
listed, written or deleted outside of the folders that were given; nothing is unpickled or started;
the command ends, and soon; memory stays bounded; if it fails, then by an error of this package, in
a short message that names the place.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from sadih_dask.cli.runs import GATE_REFUSED
from tests.faults.commands import CommandFailed, run_here
from tests.faults.hostile import BOUND, LONGEST_MESSAGE, ROOT, SECONDS, resident
from tests.faults.table import Outcome, main

CODES = (0, 1, 2, 3)
"""Exit codes that a case may end with: it is refused, or what was changed does not matter."""
SECRET = "secret"
TOUCHING = {
    "open": ((0, None),),
    "os.listdir": ((0, None),),
    "os.scandir": ((0, None),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.truncate": ((0, None),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((0, 2), (1, 3)),
    "os.symlink": ((1, 2),),
}
"""Events of the interpreter: which arguments are paths, and which the folders that they are in."""
STARTING = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")
READING = ("os.listdir", "os.scandir")
STORE, CODE_STORE, MODEL, DIRECTORY, TOML = "s", "c", "m.sadih", "runs", "config.toml"


# --- changing ------------------------------------------------------------------------------------


class Changer:
    """Draws values that somebody might not have expected."""

    def __init__(self, chance: random.Random, outside: Path) -> None:
        self.chance, self.outside = chance, outside

    def value(self, old: Any = None) -> Any:
        """One to put in the place of another."""
        up = "../" * self.chance.randrange(1, 9)
        pool: list[Any] = [
            None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308,
            float("nan"), float("inf"), "", "x", "x" * 5000, "\x00", "\x1b[2J\x07", "ä\ud800",
            "..", ".", "/", "none", "[]", str(self.outside), str(self.outside / SECRET),
            f"{up}outside", f"{up}outside/{SECRET}", f"a/{up}outside/{SECRET}",
            f"file://{self.outside}/{SECRET}", f"s3://nobody-{'x' * 20}/x",
            [], {}, [[]], [None], {"a": 1}, [1, 2, 3], ["x"], [[1, "0" * 32]], self._deep(),
        ]  # fmt: skip
        if isinstance(old, int | float) and not isinstance(old, bool):
            pool += [old + 1, old - 1, -old, old * 1000, float(old), str(old)] * 3
        if isinstance(old, str) and old:
            pool += [old[:-1], old + "x", old.upper(), old[::-1], [old], f"{up}{old}"] * 3
        if isinstance(old, list):
            pool += [old + old, old[:-1], old[::-1], {"0": old}] * 3
        return self.chance.choice(pool)

    def _deep(self) -> Any:
        found: Any = 1
        for _ in range(self.chance.choice([50, 500])):
            found = [found] if self.chance.random() < 0.5 else {"a": found}
        return found

    def document(self, document: Any) -> None:
        """Change a tree of dictionaries and lists in some places."""
        for _ in range(self.chance.choice([1, 1, 1, 2, 3])):
            places = list(_places(document))
            if not places:
                return
            parent, key = self.chance.choice(places)
            how = self.chance.random()
            if how < 0.12:
                del parent[key]
            elif how < 0.2 and isinstance(parent, dict):
                parent[self.chance.choice(["x", "..", f"../{SECRET}", ""])] = parent[key]
            elif how < 0.35:
                other, name = self.chance.choice(places)
                parent[key] = json.loads(json.dumps(other[name]))
            else:
                parent[key] = self.value(parent[key])

    def array(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Other numbers, another shape or another type."""
        how = self.chance.randrange(7)
        raw = np.frombuffer(self.chance.randbytes(max(1, array.nbytes)), np.uint8)
        if how == 0:
            return np.array([self.chance.choice([np.nan, np.inf, -1.0, 0.0])]).astype(array.dtype)
        if how == 1:
            return np.atleast_1d(array)[:0]
        if how == 2:
            return np.concatenate([np.atleast_1d(array)] * 2)
        if how == 3:
            return array.reshape(-1, *array.shape, 1) if array.size else array
        if how == 4:
            kind = self.chance.choice(["U4", "f4", "i8", "c16", "u1", "f8"])
            return array.astype("U4" if array.dtype.kind == "U" else kind)
        changed = raw[: array.nbytes].copy().view(array.dtype).reshape(array.shape)
        if how == 5 or not array.size:
            return changed
        if array.dtype.kind == "U":
            return changed
        mixed = array.copy()
        mixed.flat[self.chance.randrange(array.size)] = changed.flat[0]
        return mixed


def _places(tree: Any) -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(items):
        yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)


# --- stores --------------------------------------------------------------------------------------


def _root(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "zarr.json").read_text())
    return found


def _save_root(path: Path, document: dict[str, Any]) -> None:
    """With a checksum that fits, and the metadata that fit the record, as far as there are any."""
    from sadih_dask.errors import SadihError
    from sadih_dask.stores.root import ATTRIBUTE, _checksum, _parse

    record = document["attributes"][ATTRIBUTE]
    with suppress(SadihError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        (path / "zarr.json").write_bytes(_parse("", record).to_bytes())
        return
    with suppress(TypeError, ValueError, RecursionError):
        record["checksum"] = _checksum(record)
    (path / "zarr.json").write_text(json.dumps(document))


def _change_record(path: Path, changer: Changer) -> None:
    from sadih_dask.stores.root import ATTRIBUTE

    document = _root(path)
    changer.document(document["attributes"][ATTRIBUTE])
    _save_root(path, document)


def _change_frame(path: Path, changer: Changer) -> None:
    """What other tools read of the root, or one of the other documents."""
    file = changer.chance.choice([path / "zarr.json", *sorted(path.rglob("segments/**/zarr.json"))])
    document = json.loads(file.read_text())
    changer.document(document)
    file.write_text(json.dumps(document))


def _change_chunk(path: Path, changer: Changer) -> None:
    """Other numbers in a chunk, with digests, manifest and root that fit."""
    from sadih_dask.jobs.inspect import open_store
    from sadih_dask.stores.chunks import encode_chunk
    from sadih_dask.stores.root import ATTRIBUTE
    from sadih_dask.stores.segment import Manifest, read_manifest

    store = open_store(path)
    files, root = store._snapshot.files, store._root
    number = changer.chance.randrange(len(root.segments))
    segment = root.segments[number]
    layout = changer.chance.choice(list(root.layouts_of(segment).values()))
    chunk = changer.chance.randrange(segment.n_chunks)
    size = layout.chunk_rows * layout.row_bytes
    rows = np.frombuffer(changer.chance.randbytes(size), np.uint8).copy()
    if changer.chance.random() < 0.3:
        rows[:] = changer.chance.choice([0, 255, 127])
    rows = rows.view(layout.numpy_dtype).reshape(layout.chunk_rows, *layout.row_shape)
    parts, digest = encode_chunk(rows, layout)
    manifest = read_manifest(files, segment, root.arrays)
    digests = {name: values.copy() for name, values in manifest.digests.items()}
    digests[layout.name][chunk] = digest
    files.write(f"{segment.path}/{layout.key(chunk)}", parts)
    data = Manifest(digests).to_bytes(segment.id, segment.n_rows, segment.chunk_rows)
    files.write(f"{segment.path}/manifest", [data])
    document = _root(path)
    record = document["attributes"][ATTRIBUTE]["segments"][number]
    record["manifest_crc32c"] = int.from_bytes(data[-4:], "little")
    _save_root(path, document)


def _change_deletions(path: Path, changer: Changer) -> None:
    from sadih_dask.files.filesystem import LocalFiles
    from sadih_dask.stores.deletions import write_deletions
    from sadih_dask.stores.root import ATTRIBUTE

    chance = changer.chance
    dead = [chance.choice([0, 1, 2, 7, 8, 2**40, 2**63]) for _ in range(chance.randrange(1, 6))]
    rows = np.array(sorted(dead) if chance.random() < 0.7 else dead, np.uint64)
    document = _root(path)
    segment = chance.choice(document["attributes"][ATTRIBUTE]["segments"])
    segment["deleted"] = vars(write_deletions(LocalFiles(path), rows))  # type: ignore[arg-type]
    _save_root(path, document)


def _change_sources(path: Path, changer: Changer) -> None:
    from sadih_dask.files.filesystem import LocalFiles
    from sadih_dask.stores.commit import write_sources
    from sadih_dask.stores.root import ATTRIBUTE

    document = _root(path)
    record = document["attributes"][ATTRIBUTE]
    if not record["sources"]:
        return _change_record(path, changer)
    data = (path / "sources" / record["sources"]).read_bytes()[:-4]
    with suppress(ValueError):
        tree = {"top": json.loads(data)}
        changer.document(tree)
        data = json.dumps(tree.get("top")).encode()
    record["sources"] = write_sources(LocalFiles(path), data)
    return _save_root(path, document)


def _change_link(path: Path, changer: Changer) -> None:
    """A link that leads out, in the place of a file or folder."""
    found = changer.chance.choice(sorted(path.rglob("*")))
    target = changer.outside / found.name
    if not target.exists():
        if found.is_dir():
            shutil.copytree(found, target, symlinks=True)
        else:
            shutil.copy(found, target)
    if found.is_dir() and not found.is_symlink():
        shutil.rmtree(found)
    else:
        found.unlink()
    found.symlink_to(changer.chance.choice([target, changer.outside, changer.outside / SECRET]))


def _change_bytes(path: Path, changer: Changer) -> None:
    """Any file, without a checksum that fits."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and not file.is_symlink()]
    file = changer.chance.choice(files) if path.is_dir() else path
    data = bytearray(file.read_bytes())
    for _ in range(changer.chance.choice([1, 3, 20])):
        if data:
            data[changer.chance.randrange(len(data))] = changer.chance.randrange(256)
    file.write_bytes(data[: changer.chance.choice([len(data), len(data) // 2, 0])])


# --- models --------------------------------------------------------------------------------------


def _change_model(path: Path, changer: Changer) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if changer.chance.random() < 0.5:
        meta = json.loads(members["meta.json"])
        changer.document(meta)
        members["meta.json"] = json.dumps(meta).encode()
    else:
        name = changer.chance.choice([name for name in members if name.endswith(".npy")])
        array = np.load(io.BytesIO(members[name]))
        file = io.BytesIO()
        with np.errstate(all="ignore"):
            np.lib.format.write_array(file, changer.array(array))
        members[name] = file.getvalue()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


# --- run directories and configurations ----------------------------------------------------------


def _change_run(path: Path, changer: Changer) -> None:
    """A document of it, with a checksum that fits; `latest`; or what lies in the place of one."""
    from sadih_dask.runs.artefact import checked_json

    chance = changer.chance
    if chance.random() < 0.15:
        link = path / "latest"
        link.unlink()
        text = str(changer.value()).replace("\0", "") or "x"
        with suppress(UnicodeError, OSError):
            link.symlink_to(text[:200])
        return
    names = ("manifest.json", "record.json", "done.json", "rejected.json", "checked.json")
    file = chance.choice([file for file in sorted(path.rglob("*.json")) if file.name in names])
    document = json.loads(file.read_text())
    document.pop("crc32c")
    changer.document(document)
    try:
        file.write_bytes(checked_json(document))
    except (ValueError, TypeError, RecursionError):  # no number, or too deep
        file.write_text(json.dumps(document))


def _change_toml(path: Path, changer: Changer) -> None:
    import tomllib

    text = path.read_text()
    tree = tomllib.loads(text)
    changer.document(tree)
    with suppress(RecursionError):
        text = _toml(tree)
    if changer.chance.random() < 0.1:
        data = bytearray(text.encode("utf-8", "surrogatepass"))
        data[changer.chance.randrange(len(data))] = changer.chance.randrange(256)
        path.write_bytes(data)
    else:
        path.write_bytes(text.encode("utf-8", "surrogatepass"))


def _toml(tree: dict[str, Any], at: str = "") -> str:
    plain = {name: value for name, value in tree.items() if not isinstance(value, dict)}
    lines = [f"{json.dumps(name)} = {_toml_value(value)}" for name, value in plain.items()]
    for name, value in tree.items():
        if isinstance(value, dict):
            place = f"{at}.{json.dumps(name)}" if at else json.dumps(name)
            lines += [f"[{place}]", _toml(value, place)]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        inside = (f"{json.dumps(name)} = {_toml_value(found)}" for name, found in value.items())
        return "{" + ", ".join(inside) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return '""' if value is None else json.dumps(value)


# --- cases ---------------------------------------------------------------------------------------

Change = Callable[[Path, Changer], None]
_OF_STORES: tuple[Change, ...] = (
    _change_record, _change_record, _change_record, _change_frame, _change_chunk,
    _change_deletions, _change_sources, _change_link, _change_bytes,
)  # fmt: skip
CHANGES: dict[str, tuple[Change, ...]] = {
    STORE: _OF_STORES,
    CODE_STORE: (_change_record, _change_record, _change_chunk, _change_link, _change_bytes),
    MODEL: (_change_model, _change_model, _change_model, _change_bytes),
    DIRECTORY: (_change_run, _change_run, _change_run, _change_link, _change_bytes),
    TOML: (_change_toml,),
}


def _commands(kind: str, folder: Path) -> list[tuple[Any, ...]]:
    s, c, m, runs, toml = (folder / name for name in (STORE, CODE_STORE, MODEL, DIRECTORY, TOML))
    x, out = folder / "x.npy", folder / "out"
    learn = ("--bits", 4, "--anchors", "none", "--n-init", 1, "--max-iter", 1)
    beside = ("--labels", folder / "y.npy", "--ids", folder / "ids.npy")
    return {
        STORE: [
            ("inspect", s), ("verify", s), ("fit", s, out, *learn), ("fit", s, m, *learn),
            ("encode", s, m, out), ("encode", s, m, c), ("evaluate", m, s, s, "--json"),
            ("ingest", x, s, *beside, "--append"), ("ingest", x, s, *beside, "--overwrite"),
            ("delete", s, "--ids", folder / "gone.npy"), ("compact", s, "--purge"),
            ("restore", s, 1), ("search", c, s, "--model", m),
        ],
        CODE_STORE: [
            ("inspect", c), ("verify", c), ("search", c, c, "--k", 2), ("export", c, out),
            ("encode", s, m, c), ("compact", c, "--purge"), ("search", c, s, "--model", m),
        ],
        MODEL: [
            ("inspect", m), ("verify", m), ("encode", s, m, out), ("fit", s, m, *learn),
            ("evaluate", m, s, s, "--json"), ("search", c, s, "--model", m), ("encode", s, m, c),
        ],
        DIRECTORY: [
            ("runs", runs), ("verify", runs), ("rollback", runs), ("run", toml, "--quiet"),
            ("runs", runs, "--json"), ("run", toml, "--plan"), ("compare", runs, FIRST_RUN),
            ("run", toml, "--quiet", "--set", "model.n_bits=5"),
        ],
        TOML: [("run", toml, "--plan")],
    }[kind]  # fmt: skip


FIRST_RUN = "20260101T000000Z-1"


def _make(folder: Path) -> None:
    """One of each, intact."""
    rng = np.random.default_rng(0)
    x, y, ids = rng.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 3, np.arange(20)
    np.save(folder / "x.npy", x[:15])
    np.save(folder / "y.npy", np.array(["a", "b", "c"])[y[:15]])
    np.save(folder / "ids.npy", ids[:15])
    np.save(folder / "gone.npy", ids[[2, 5]])
    np.save(folder / "more.npy", x[15:])
    np.save(folder / "gone-first.npy", ids[[9]])
    s, c, m = (folder / name for name in (STORE, CODE_STORE, MODEL))
    beside = ("--labels", folder / "y.npy", "--ids", folder / "ids.npy", "--chunk-rows", 8)
    learn = ("--bits", 4, "--anchors", "none", "--n-init", 1, "--max-iter", 1)
    run_here("ingest", folder / "x.npy", s, *beside, "--quiet")
    run_here("delete", s, "--ids", folder / "gone-first.npy")
    run_here("fit", s, m, *learn, "--quiet")
    run_here("encode", s, m, c, "--quiet")
    (folder / TOML).write_text(
        f"""
[run]
directory = "{folder / DIRECTORY}"
keep = 2
[source]
kind = "files"
features = "{folder}/x.npy"
labels = "{folder}/y.npy"
hold_out = 0.2
[store]
chunk_rows = 8
[model]
n_bits = 4
anchors = 3
n_init = 1
max_iter = 1
[gate]
map_min = 0.0
protocol = "encoded"
[evaluation]
bits = [3]
[report]
enabled = false
"""
    )
    for n_bits in (3, 6, 4):
        run_here("run", folder / TOML, "--quiet", "--set", f"model.n_bits={n_bits}")
    run_here("rollback", folder / DIRECTORY)
    run_here("run", folder / TOML, "--quiet", "--set", "model.n_bits=7")
    run_here("run", folder / TOML, "--quiet", "--set", "model.n_bits=7")


# --- running -------------------------------------------------------------------------------------


class Guard:
    """Notes what a command touches that it should not."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder.resolve())
        self.outside = f"{self.folder}/outside"
        self.found: list[str] = []
        self.watching = False
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event in STARTING:
            self.found.append(f"{event} {str(arguments)[:80]}")
            return
        writes, no_follow = event not in READING, False
        if event == "open":
            flags = arguments[2] if len(arguments) > 2 else 0
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            no_follow = bool(flags & os.O_NOFOLLOW)
        for place, folder in TOUCHING.get(event, ()):
            path, at = arguments[place], -1 if folder is None else arguments[folder]
            if isinstance(path, str | bytes | os.PathLike):
                self._check(event, os.fsdecode(path), at, writes, no_follow)

    def _check(self, event: str, path: str, at: int, writes: bool, no_follow: bool) -> None:
        self.watching = False  # what follows is our own
        place = Path(path) if at < 0 else Path(f"/proc/self/fd/{at}").readlink() / path
        # The last part may be a link that is removed, replaced or made, and not followed
        followed = event in ("open", *READING) and not no_follow
        with suppress(RuntimeError, ValueError):  # links in a circle lead nowhere; no path at all
            real = str(place.resolve() if followed else place.parent.resolve() / place.name)
            self._judge(event, real, writes)
        self.watching = True

    def _judge(self, event: str, real: str, writes: bool) -> None:
        inside = real.startswith(self.folder + "/") and not real.startswith(self.outside)
        if real.startswith(self.outside) or (writes and not inside and not _ours(real)):
            self.found.append(f"{event} of {real}")


def _ours(path: str) -> bool:
    """Where every process writes."""
    return path.startswith(("/dev/", "/proc/")) or "__pycache__" in path or "/.cache/" in path


def run(folder: Path, trials: int, seed: int) -> Outcome:
    """Run all cases in a process of their own and count."""
    outcome = Outcome("stores, models, run directories and settings changed at random")
    worst: dict[str, Any] = {"bytes": 0, "seconds": 0.0}
    codes: Counter[int] = Counter()
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.fuzz", "--child", str(folder), str(trials), str(seed)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        found = json.loads(line)
        outcome.trials += 1
        codes[found["code"]] += 1
        if found["wrong"]:
            outcome.failures.append(f"{found['case']}: {found['wrong']}")
        worst = {name: max(worst[name], found[name]) for name in worst}
    outcome.check(done.returncode == 0, f"the process ended with {done.returncode}")
    outcome.figures = {
        **{f"exit code {code}": f"{n:,}" for code, n in sorted(codes.items())},
        "largest peak": f"{worst['bytes'] / 2**20:.0f} MiB above the start",
        "longest": f"{worst['seconds']:.1f} s of the processor",
    }
    return outcome


def _child(folder: Path, trials: int, seed: int) -> None:
    """Print a line of JSON for every case."""
    intact, outside = folder / "intact", folder / "case" / "outside"
    intact.mkdir()
    with patch("os.fsync"):
        _make(intact)
        guard = Guard(folder / "case")
        for number in range(-len(CHANGES), trials):
            chance = random.Random(f"{seed} {number}")
            kind = list(CHANGES)[number % len(CHANGES)]
            case = folder / "case" / "given"
            shutil.rmtree(folder / "case", ignore_errors=True)
            unneeded = () if kind == DIRECTORY else (DIRECTORY,)
            shutil.copytree(intact, case, True, shutil.ignore_patterns(*unneeded))
            outside.mkdir()
            (outside / SECRET).write_text("secret")
            _at(case / TOML, intact, case)
            words = chance.choice(_commands(kind, case))
            if number < 0:  # once each as they are: modules are imported by that
                for words in _commands(kind, case):
                    with suppress(CommandFailed):
                        run_here(*words)
                continue
            changer = Changer(chance, outside)
            change = chance.choice(CHANGES[kind])
            change(case / kind, changer)
            found = _measure(words, case, guard, kind)
            said = " ".join(map(str, words)).replace(f"{case}/", "")
            what = f"{number}, {change.__name__.strip('_')} of {kind}, {said}"
            print(json.dumps({"case": what, **found}), flush=True)


def _at(toml: Path, before: Path, after: Path) -> None:
    toml.write_text(toml.read_text().replace(str(before), str(after)))


def _measure(words: tuple[Any, ...], case: Path, guard: Guard, kind: str) -> dict[str, Any]:
    """Run a command; return its exit code, peak, seconds, and what was wrong, if anything."""
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
    began, code, wrong = time.process_time(), 0, ""
    guard.found.clear()
    guard.watching = True
    try:
        run_here(*words)
    except CommandFailed as failure:
        code, text = failure.code, str(failure)
        named = str(case) in text or kind in text or kind == TOML or code == GATE_REFUSED
        if code not in CODES or not named or len(text) > 4 * LONGEST_MESSAGE:
            wrong = f"exit code {code}, {len(text)} characters: {text[-300:]}"
    except Exception as error:  # a traceback is what must not happen
        code = -1
        place = traceback.extract_tb(error.__traceback__)
        own = [f"{Path(f.filename).name}:{f.lineno}" for f in place if "sadih_dask" in f.filename]
        wrong = f"{type(error).__name__}: {str(error)[:200]} at {' '.join(own[-3:])}"
    guard.watching = False
    seconds, peak = time.process_time() - began, resident("VmHWM") - before
    if guard.found and kind != TOML:  # settings name what is read
        wrong = f"touched {guard.found[:3]}; {wrong}"
    if peak > BOUND:
        wrong = wrong or f"{peak / 2**20:.0f} MiB"
    if seconds > SECONDS:
        wrong = wrong or f"{seconds:.0f} s"
    return {"code": code, "bytes": peak, "seconds": seconds, "wrong": wrong}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        main(run, trials=3000)
