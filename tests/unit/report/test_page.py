from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

from sadih_dask.report import figures
from sadih_dask.report import html as palette
from sadih_dask.report.html import duration, inline_svg, score, size, value
from sadih_dask.report.page import render
from sadih_dask.retrieval.evaluation import Protocols
from tests.support.reports import HOSTILE, STARTED, digits, digits_report, hostile_report

URL = re.compile(r"url\(\s*['\"]?([^)'\"]*)")
DASH = "\N{EN DASH}"


class Page(HTMLParser):
    """Everything in a page that could point elsewhere, and its structure."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self.inside = tag
        for name, given in attrs:
            if name != "aria-label":  # which is only ever read out
                self.references += URL.findall(given or "")
        for name in (
            "href",
            "src",
            "xlink:href",
            "srcset",
            "action",
            "data",
            "poster",
            "background",
        ):
            if name in found:
                self.references.append(found[name] or "")

    def handle_data(self, data) -> None:
        self.text.append(data)
        if self.inside == "style":
            self.references += URL.findall(data) + re.findall(r"@import\s*(\S*)", data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Page:
    folder = tmp_path_factory.mktemp("written") / "digits"
    (folder / "inner").mkdir(parents=True)
    (folder / "model.sadih").write_bytes(bytes(123_456))
    (folder / "inner" / "b").write_bytes(b"45")
    files = {folder / "model.sadih": "the model", folder: "everything"}
    return Page(digits_report(files))


@pytest.mark.parametrize("make", [hostile_report, digits_report])
def test_nothing_points_outside_of_the_page(make) -> None:
    for reference in Page(make()).references:
        assert reference.startswith(("#", "data:image/png;base64,")) or reference == "data:,"


def test_every_reference_inside_of_the_page_is_there_once(page) -> None:
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {r[1:] for r in page.references if r.startswith("#")} <= set(ids)


def test_hostile_names_are_text() -> None:
    found = Page(hostile_report())
    assert not found.of("script")
    assert not found.of("img")
    assert not found.of("b")
    assert not [a for _, a in found.tags if any(name.startswith("on") for name in a)]
    shown = "".join(found.text)
    assert all(name in shown for name in HOSTILE)
    assert len(found.of("style")) == 1


def test_names_that_are_no_text_can_be_written() -> None:
    assert hostile_report().encode().startswith(b"<!doctype html>")


def test_the_page_says_what_was_run(page) -> None:
    shown = " ".join(" ".join(page.text).split())
    for expected in (
        "Handwritten digits",
        "1,437",
        "360",
        "load_digits",
        "precision@100",
        "learned",
        "encoded",
        "Items at equal Hamming distance have no order",
        "anchors",
        "digits/model.sadih",
        "120.6 KiB",
        "everything",
        "numpy",
        "2026-01-02 03:04 UTC",
    ):
        assert expected in shown
    for length in digits().lengths:
        for found in length.known.values():
            for number in (found.map, found.precision_at[100]):
                assert f"{number:.4f}" in shown


def test_the_page_is_accessible(page) -> None:
    assert page.of("html")[0]["lang"] == "en"
    assert len(page.of("h1")) == 1
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert all(b <= a + 1 for a, b in pairwise(levels))
    figures_ = page.of("figure")
    assert len(figures_) == len(page.of("figcaption")) == 8
    for svg in page.of("svg"):
        assert svg["role"] == "img"
        assert len(svg["aria-label"] or "") > 40
    assert all("scope" in th for th in page.of("th"))
    assert page.of("caption")


def report_of(maps: list[float]) -> str:
    """The page of code lengths with these values of MAP."""
    lengths = [
        replace(length, protocols=Protocols(replace(length.known["learned"], map=value), None))
        for length, value in zip(digits().lengths, maps, strict=True)
    ]
    found = replace(digits(), lengths=lengths)
    return render("t", found, data={}, files={}, started=STARTED, seconds=1.0)


def test_without_figures_or_files_the_page_is_still_whole() -> None:
    text = report_of([0.5] * 4)
    assert "<figure" not in text
    assert "Table of files" not in text
    assert "What was run" in text


def test_no_number_is_a_dash_and_the_best_is_marked() -> None:
    text = report_of([0.25, float("nan"), 0.5, 0.5])
    assert len(re.findall(r'class="mark first best">0\.5000<', text)) == 2
    assert re.search(r'class="mark first">0\.2500<', text)
    assert text.count(f">{DASH}</td>") == 2  # one value, and the time of what was there before
    assert "nan" not in text.split("</style>")[1]


def test_equal_values_have_no_best() -> None:
    assert 'mark first best">' not in report_of([0.5] * 4)


def test_the_same_report_gives_the_same_text() -> None:
    assert hostile_report() == hostile_report()


# -- figures in a page ------------------------------------------------------------------------


def test_inline_figures_follow_the_colours_of_the_page_and_leak_nothing() -> None:
    drawing = figures.map_against_bits([figures.Curve("a", np.array([8.0]), np.array([0.5]))])
    text = inline_svg(drawing.svg(), "p-", 'a "label" & more')
    assert "<style" not in text
    assert "<metadata" not in text
    assert "<?xml" not in text
    assert 'aria-label="a &quot;label&quot; &amp; more"' in text
    colours = set(re.findall(r"(?<!, )#[0-9a-f]{6}", text))
    assert not colours  # every colour has a name that a dark page can change
    assert palette.INK.variable in text
    assert set(re.findall(r'id="([^"]*)"', text)) == {
        i for i in re.findall(r'id="([^"]*)"', text) if i.startswith("p-")
    }
    assert not re.findall(r'href="#(?!p-)', text)
    assert not re.findall(r"url\(#(?!p-)", text)


# -- colours ----------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes (2009), severity 1.
VISION = [
    [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    # protanopia, deuteranopia, tritanopia
    [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
]


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    t = to_xyz @ rgb / [0.9505, 1.0, 1.089]
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("shade", ["light", "dark"])
def test_colours_can_be_seen_and_told_apart(shade) -> None:
    background = getattr(palette.PAPER, shade)
    assert contrast(getattr(palette.INK, shade), background) > 7
    assert contrast(getattr(palette.MUTED, shade), background) > 4.5
    assert contrast(palette.BLUE.light if shade == "light" else palette.BLUE.dark, background) > 4.5
    colours = [getattr(s, shade) for s in palette.SERIES]
    assert all(contrast(c, background) >= 3 for c in colours)
    for matrix in VISION:
        seen = [lab(np.clip(np.asarray(matrix) @ linear(c), 0, 1)) for c in colours]
        apart = [np.linalg.norm(a - b) for k, a in enumerate(seen) for b in seen[:k]]
        assert min(apart) > 12


# -- words and the optional dependency ---------------------------------------------------------


def test_words() -> None:
    assert [duration(s) for s in (0.0123, 2.34, 59.99, 245, 11520)] == [
        "12 ms", "2.3 s", "1 min 00 s", "4 min 05 s", "3 h 12 min"
    ]  # fmt: skip
    assert [size(n) for n in (0, 1023, 1024, 1536, 1024**2, 1024**3 * 5, 2**50)] == [
        "0 bytes", "1023 bytes", "1.0 KiB", "1.5 KiB", "1.0 MiB", "5.0 GiB", "1024.0 TiB"
    ]  # fmt: skip
    assert [score(x) for x in (0.5, None, float("inf"))] == ["0.5000", DASH, DASH]
    assert [value(x) for x in (True, None, 12345, 1e-5, "a")] == [
        "True",
        "None",
        "12,345",
        "1e-05",
        "a",
    ]


def test_without_matplotlib_cards_work_and_figures_say_what_to_install() -> None:
    code = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Without())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "matplotlib" else find(name, *a)
from sadih_dask.report import notebook, page
try:
    from sadih_dask.report import figures
except Exception as error:
    print(type(error).__name__, error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("InputError a figure needs matplotlib")
    assert "pip install 'sadih-dask[report]'" in run.stdout
