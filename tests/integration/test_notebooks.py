"""The notebooks: committed without outputs, and run from a clean kernel as a newcomer would.

One test for each notebook, however much there is to check: tests that run in several processes
would run it in each.
"""

from __future__ import annotations

import base64
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from matplotlib.image import imread

from tests.support.reports import SVG, groups, n_points, parse

ROOT = Path(__file__).parents[2]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "pipelines" / "notebooks").glob("*.ipynb"))}
LONGEST = 25
"""Lines of a cell."""
LATE = re.compile(
    r"^$|distributed\.nanny - WARNING - Worker process still alive after .*, killing$"
)
"""What Dask says where workers take long to end, since the machine is busy."""


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_committed_without_outputs(name: str) -> None:
    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.language_info == {"name": "python"}
    for cell in notebook.cells:
        assert not cell.metadata, cell.id
        assert not cell.get("outputs"), f"{cell.id}: jupyter nbconvert --clear-output --inplace"
        assert cell.get("execution_count") is None, cell.id


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_have_short_cells_and_tell_a_story(name: str) -> None:
    cells = nbformat.read(NOTEBOOKS[name], as_version=4).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert sum(cell.cell_type == "markdown" for cell in cells) >= len(cells) / 3
    assert max(len(cell.source.splitlines()) for cell in cells) <= LONGEST


class Ran:
    """What the cells of a notebook have shown, by the ids of the cells."""

    def __init__(self, notebook: Any) -> None:
        self.cells = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}

    def text(self, cell: str) -> str:
        """What a cell has printed."""
        outputs = self.cells[cell].outputs
        return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout")

    def shown(self, cell: str, kind: str = "text/html") -> str:
        """The value of a cell's last line."""
        (result,) = (o for o in self.cells[cell].outputs if o.output_type == "execute_result")
        found: str = result.data[kind]
        return found

    def card(self, cell: str) -> str:
        """The name on a card."""
        html = self.shown(cell)
        assert 'class="sadih-card"' in html, html[:200]
        return re.findall(r'<p class="head"><b>(\w+)</b>', html)[0]

    def table(self, cell: str) -> dict[str, list[float]]:
        """Rows of numbers on a card."""
        rows = re.findall(r"<tr><th scope=\"row\">([^<]*)</th>(.*?)</tr>", self.shown(cell))
        return {
            name: [float(v) for v in re.findall(r"<td>([\d.]+)(?: ±[^<]*)?</td>", r)]
            for name, r in rows
        }

    def figure(self, cell: str) -> str:
        """The picture of a drawing, as an SVG document with ids of its own."""
        html = self.shown(cell)
        assert "sadih-drawing" in html
        found = re.search(r"<svg.*</svg>", html, re.DOTALL)
        assert found is not None
        return found[0]


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Run a notebook without the settings of whoever runs the tests; nothing may complain."""
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    copy = Path(shutil.copy(NOTEBOOKS[name], folder))
    # `jupyter execute`, in a process of its own: the client leaves sockets open.
    command = [sys.executable, "-c", "from nbclient.cli import main; main()"]
    options = ["--inplace", "--allow-errors", "--timeout=600", "--kernel_name=python3"]
    done = subprocess.run([*command, *options, copy], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    notebook = nbformat.read(copy, as_version=4)
    found = Ran(notebook)
    for ident, cell in found.cells.items():
        assert cell.execution_count is not None, ident
        for output in cell.outputs:
            assert output.output_type != "error", f"{ident}: {output.ename}: {output.evalue}"
            if output.get("name") == "stderr":
                complaints = [line for line in output.text.splitlines() if not LATE.search(line)]
                assert not complaints, f"{ident}: {complaints}"
    return found


def test_explore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run("explore", tmp_path, monkeypatch)
    _explore_shows_cards(found)
    _explore_measures_what_is_known_of_the_digits(found)
    _explore_draws_what_was_measured(found)
    _explore_shows_pictures_of_neighbours(found.figure("neighbours"))
    _explore_learns_and_forgets(found)


def _explore_shows_cards(found: Ran) -> None:
    cards = {
        "store": "FeatureStore",
        "fit": "SADIH",
        "statistics": "Statistics",
        "lengths": "Comparison",
        "one": "Protocols",
        "codes": "CodeStore",
        "search": "Neighbours",
        "encoders": "Comparison",
        "save": "SADIH",
    }
    assert {cell: found.card(cell) for cell in cards} == cards
    assert "1,000 x 8 x 8" in found.shown("store")
    assert found.shown("statistics", "text/plain").startswith("<Statistics of 1000 rows")


def _explore_measures_what_is_known_of_the_digits(found: Ran) -> None:
    lengths = found.table("lengths")
    assert list(lengths) == ["4 bits", "8 bits", "16 bits", "32 bits", "64 bits"]
    maps = {name: row[0] for name, row in lengths.items()}
    known = [row[0:5:2] for row in lengths.values()]  # MAP learned, encoded and fresh
    assert all(0.6 < value < 0.995 for row in known for value in row)
    assert all(0.4 < row[6] < 0.9 for row in lengths.values())  # of classes never seen
    assert maps["4 bits"] < max(maps.values())
    assert min(maps["16 bits"], maps["32 bits"], maps["64 bits"]) > 0.93
    encoders = {name: row[4] for name, row in found.table("encoders").items()}
    assert encoders["ridge"] > encoders["orthogonal"] > encoders["lemma"] > 0.5
    assert found.table("one")["MAP"] == lengths["16 bits"][0::2]


def _explore_draws_what_was_measured(found: Ran) -> None:
    for cell, lines, points in (
        ("map", 4, 5),
        ("precision-recall", 20, 20),
        ("encoders-curves", 16, 20),
    ):
        drawn = groups(found.figure(cell), r".*curve-\d-\d")
        assert len(drawn) == lines
        assert all(n_points(line) >= points for line in drawn)
        assert all(_height(line) > 1 for line in drawn), cell
    starts = groups(found.figure("objective"), r".*total-start-\d")
    kept = max(starts, key=n_points)  # the others are single points
    assert n_points(kept) > 10
    assert _height(kept) > 50
    surface = found.figure("parameters")
    assert len(groups(surface, r".*score-[01]-[012]-[012]")) == 18
    scores = re.findall(r"from (0\.\d+) to (0\.\d+), the best", parse(surface).get("aria-label"))
    assert all(0.9 < float(low) <= float(high) < 1 for low, high in scores)
    assert len(scores) == 2


def _height(group: Any) -> float:
    """How far apart the highest and the lowest place of a line are."""
    paths = [e.get("d", "") for e in group.iter(f"{SVG}path")]
    places = [re.findall(r"[ML] ([\d.]+) ([\d.]+)", path) for path in paths]
    heights = [float(y) for _, y in max(places, key=len)]
    return max(heights) - min(heights)


def _explore_shows_pictures_of_neighbours(figure: str) -> None:
    images = list(parse(figure).iter(f"{SVG}image"))
    assert len(images) == 6 * (1 + 10)  # each query and its neighbours
    pixels = [_pixels(image) for image in images]
    assert all(p.std() > 0.1 for p in pixels)  # digits, not blank squares
    assert len({p.tobytes() for p in pixels}) > 30
    assert len(groups(figure, r".*wrong-0-\d")) > 5  # the query that retrieves worst
    assert len(groups(figure, r".*right-5-\d")) == 10  # the one that retrieves best


def _pixels(image: Any) -> np.ndarray[Any, Any]:
    data = next(value for name, value in image.attrib.items() if name.endswith("href"))
    return imread(io.BytesIO(base64.b64decode(data.partition(",")[2])))[..., :3]


def _explore_learns_and_forgets(found: Ran) -> None:
    before = found.table("lengths")["64 bits"][4]
    (more, after), (fewer, then) = (
        re.findall(r"(\d+) rows, MAP (0\.\d+)", found.text(cell))[0] for cell in ("late", "forget")
    )
    assert (more, fewer) == ("1497", "1477")
    assert float(after) > before  # more people's hands
    assert abs(float(then) - float(after)) < 0.02
    assert found.shown("encode-again", "text/plain") == "True"
    assert "1497 codes in the index; distances as ours: True" in found.text("faiss")


def test_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run("cluster", tmp_path, monkeypatch)
    assert re.search(r"2 workers; watch them at http://127\.0\.0\.1:\d+/", found.text("connect"))
    assert "13 blocks scanned" in found.text("fit")
    assert "the same to the last bit: True" in found.text("same")
    cards = {
        "store": "FeatureStore",
        "fit": "SADIH",
        "encode": "CodeStore",
        "evaluate": "Protocols",
        "search": "Neighbours",
    }
    assert {cell: found.card(cell) for cell in cards} == cards
    assert all(0.5 < value <= 1 for value in found.table("evaluate")["MAP"][:3])
