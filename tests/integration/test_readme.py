"""What README and the guide say: Python runs as it stands, commands have these options."""

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from distributed import Client
from sklearn.datasets import load_digits

import sadih_dask
from sadih_dask import FeatureStore
from sadih_dask.cli import commands

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "pipelines" / "docs" / "guide"
PAGES = [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))]
KNOWN_FROM_PYTHON = ("stores.md", "methods.md", "dask.md")
"""Pages whose examples go on with the names of those on `python.md`."""


def blocks(page: Path) -> list[tuple[int, str]]:
    """First line and text of each block of Python."""
    text = page.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)
    return [(text[: block.start(1)].count("\n"), block[1]) for block in found]


def run(page: Path, known: dict[str, Any]) -> dict[str, Any]:
    for first_line, block in blocks(page):
        exec(compile("\n" * first_line + block, str(page), "exec"), known)
    return known


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place with the store that pages have made with commands before."""
    monkeypatch.chdir(tmp_path)
    FeatureStore.create("s.zarr", *load_digits(return_X_y=True), chunk_rows=999)
    yield tmp_path
    with suppress(ValueError):  # nobody has left a client, and its cluster, open
        Client.current().close()


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if blocks(p) and p.name not in KNOWN_FROM_PYTHON],
    ids=lambda p: p.stem,
)
def test_every_block_of_python(page: Path, folder: Path) -> None:
    known = run(page, {})
    if page.name == "python.md":
        assert known["model"].score(known["queries"], known["y_queries"]) > 0.9
        known["store"] = FeatureStore.open("s.zarr")
        for name in KNOWN_FROM_PYTHON:
            known = run(GUIDE / name, known)
        assert known["model"].classes_.tolist() == [str(digit) for digit in range(10)]
        stored = sadih_dask.CodeStore.open("codes.zarr").read("codes")
        np.testing.assert_array_equal(stored, known["codes"].compute())


def command_lines(page: Path) -> Iterator[str]:
    """Commands that stand indented, or between backquotes."""
    text = page.read_text().replace("\\\n", " ")
    yield from re.findall(r"^ {4}(sadih .*)$", text, re.M)
    yield from re.findall(r"`(sadih [^`]*)`", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_has_these_options(page: Path) -> None:
    for line in command_lines(page):
        _, name, *given = shlex.split(line.replace("...", ""), comments=True)
        if name.startswith("-") or name == "COMMAND":
            continue
        command = commands.get_command(click.Context(commands), name)
        assert command is not None, line
        known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        for word in given:
            if word.startswith("-"):
                assert word.partition("=")[0] in known, f"{page.name}: {line}"


def test_there_is_something_to_check() -> None:
    assert sum(len(blocks(page)) for page in PAGES) >= 8
    assert sum(len(list(command_lines(page))) for page in PAGES) >= 30


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
    listed = (GUIDE.parent / "mkdocs.yml").read_text()
    assert all(f": {page.name}\n" in listed for page in GUIDE.glob("*.md"))


def test_every_public_name_is_in_the_reference() -> None:
    named = (GUIDE / "api.md").read_text()
    for name in sadih_dask.__all__:
        assert re.search(rf"^::: sadih_dask\.[\w.]*\b{name}$", named, re.M), name
