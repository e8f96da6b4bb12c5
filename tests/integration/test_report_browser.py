"""The report in a real Chromium: from a file, on a desktop and on a phone, light and dark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.browsers import SCREENS, Visit
from tests.support.reports import HOSTILE, digits, digits_report, hostile_report

# An element is seen if it has a size and lies inside the page.
FIGURES = """
() => [...document.querySelectorAll('figure')].map(figure => {
  const shown = [...figure.querySelectorAll('svg')].map(s => s.getBoundingClientRect())
    .filter(box => box.width > 0 && box.height > 0);
  const outer = figure.getBoundingClientRect();
  return {
    n: shown.length,
    width: shown.length ? shown[0].width : 0,
    height: shown.length ? shown[0].height : 0,
    inside: shown.every(b => b.left >= outer.left && b.right <= outer.right + 0.5),
  };
})
"""
# The colour of text in a figure, and the background that it lies on.
COLOURS = """
() => {
  const outline = document.querySelector('figure svg g[id*=text] g');
  return [getComputedStyle(outline).fill, getComputedStyle(document.body).backgroundColor];
}
"""
OVERFLOW = "() => [document.documentElement.scrollWidth, window.innerWidth]"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    digits().model.save(folder / "model.sadih")
    page = digits_report({folder / "model.sadih": "the model, 64 bits"})
    (folder / "report.html").write_text(page)
    return folder / "report.html"


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_of_the_digits(browser, report, screen, scheme) -> None:
    with Visit(browser, report, screen, scheme) as visit:
        assert not visit.complaints
        others = [u for u in visit.requests if not u.startswith("data:")]
        assert others == [report.as_uri()]
        figures = visit.page.evaluate(FIGURES)
        assert len(figures) == 8
        for figure in figures:
            assert figure["n"] == 1  # the one for this width
            assert figure["width"] > 250
            assert figure["height"] > 150
            assert figure["inside"]
        scrolled, inner = visit.page.evaluate(OVERFLOW)
        assert scrolled <= inner
        ink, paper = (_luminance(c) for c in visit.page.evaluate(COLOURS))
        assert (ink < paper) == (scheme == "light")
        assert abs(ink - paper) > 150
        if folder := os.environ.get("SADIH_SCREENSHOTS"):
            target = Path(folder) / f"digits-{screen}-{scheme}.png"
            visit.page.screenshot(path=target, full_page=True)


def test_the_report_reads_without_script_and_prints_light(browser, report) -> None:
    with Visit(browser, report, "desktop", "dark", java_script_enabled=False) as visit:
        assert visit.page.get_by_role("heading", name="Handwritten digits").is_visible()
        assert visit.page.get_by_role("img").count() == 8
        assert visit.page.get_by_role("figure").count() == 8
    with Visit(browser, report, "desktop", "dark") as visit:
        visit.page.emulate_media(media="print")
        ink, paper = (_luminance(c) for c in visit.page.evaluate(COLOURS))
        assert ink < 60
        assert paper > 240
        assert visit.page.pdf()[:5] == b"%PDF-"


@pytest.mark.parametrize("screen", SCREENS)
def test_hostile_names_do_nothing_and_fit(browser, tmp_path, screen) -> None:
    path = tmp_path / "report.html"
    path.write_text(hostile_report())
    with Visit(browser, path, screen, "light") as visit:
        assert not visit.complaints
        assert {u for u in visit.requests if not u.startswith("data:")} == {path.as_uri()}
        scrolled, inner = visit.page.evaluate(OVERFLOW)
        assert scrolled <= inner
        assert visit.page.locator("h1").text_content() == HOSTILE[0]


def _luminance(colour: str) -> float:
    red, green, blue = (float(c) for c in colour[colour.index("(") + 1 : -1].split(",")[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
