"""Cards and figures in a real Chromium: with the style sheets of JupyterLab, and on a bare page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nbconvert import HTMLExporter
from nbformat import v4

from sadih_dask import CodeStore, FeatureStore, evaluate_model, search
from sadih_dask.report.notebook import html
from sadih_dask.report.page import drawings
from tests.support.browsers import Visit, luminance
from tests.support.reports import digits

# Style sheets that follow colour themes, and no scripts from elsewhere.
JUPYTERLAB: dict[str, Any] = {
    "template_name": "lab",
    **dict.fromkeys(("require_js_url", "jquery_url", "mathjax_url", "mermaid_js_url"), ""),
}
# Facts and cells stay on one line, rows have no stripes, pictures lie inside, nothing overflows.
CARDS = """
() => [...document.querySelectorAll('.sadih-card')].map(card => {
  const outer = card.getBoundingClientRect();
  const paper = element => {
    const found = getComputedStyle(element).backgroundColor;
    const seen = !found.endsWith(', 0)') && found !== 'transparent';
    return seen || !element.parentElement ? found : paper(element.parentElement);
  };
  const boxes = [...card.querySelectorAll('svg')].map(s => s.getBoundingClientRect());
  return {
    name: card.querySelector('b').textContent,
    ink: getComputedStyle(card.querySelector('b')).color,
    paper: paper(card),
    overflow: card.scrollWidth - card.clientWidth,
    tallest: Math.max(0, ...[...card.querySelectorAll('dt')].map(d => d.clientHeight)),
    stripes: [...card.querySelectorAll('tr')].filter(r => paper(r) !== paper(card)).length,
    right: [...card.querySelectorAll('td')].every(t => getComputedStyle(t).textAlign === 'right'),
    pictures: boxes.length,
    seen: boxes.every(b => b.width > 50 && b.height > 20
      && b.left >= outer.left && b.right <= outer.right),
  };
})
"""
FIGURES = """
() => [...document.querySelectorAll('.sadih-drawing')].map(figure => ({
  width: figure.querySelector('svg').getBoundingClientRect().width,
  ink: getComputedStyle(figure.querySelector('svg g[id*=text] g')).fill,
  unseen: getComputedStyle(figure.querySelector('.unseen')).display,
}))
"""
WITHOUT_STYLE = "() => document.querySelectorAll('style').forEach(s => s.remove())"
LINE = 24


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """One thing of each kind that has a card, and figures of both widths."""
    folder = tmp_path_factory.mktemp("stores")
    run = digits()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 64)), np.arange(90) % 10
    store = FeatureStore.create(
        folder / "x.zarr", x, y, source="random", class_names=list("0123456789")
    )
    packed = rng.integers(0, 256, (90, 8), np.uint8)
    codes = CodeStore.create(folder / "c.zarr", packed, n_bits=64, model="m" * 64)
    things = (
        run.model,
        store,
        codes,
        run.model.statistics_,
        run.model.trace_,
        evaluate_model(run.model, (x, y), (x, y)),
        search(codes, packed[:8], k=12),
        search(codes, packed[:8], radius=20),
    )
    by_name = {drawing.name: drawing for drawing in drawings(run)}
    wide_and_narrow = (by_name["objective"], by_name["map-bits"])
    return [html(thing) for thing in things] + [d._repr_html_() for d in wide_and_narrow]


def notebook_page(shown: list[str], theme: str, folder: Path) -> Path:
    """Write what a notebook shows as JupyterLab would show it."""
    outputs = [v4.new_output("execute_result", {"text/html": text}) for text in shown]
    cells = [v4.new_code_cell("thing", outputs=[output]) for output in outputs]
    found, _ = HTMLExporter(theme=theme, **JUPYTERLAB).from_notebook_node(
        v4.new_notebook(cells=cells)
    )
    path = folder / f"{theme}.html"
    path.write_text(found)
    return path


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_in_jupyterlab(browser: Any, shown: list[str], theme: str, tmp_path: Path) -> None:
    """The notebook's theme decides, also where the system prefers the other."""
    path = notebook_page(shown, theme, tmp_path)
    with Visit(browser, path, "desktop", "dark" if theme == "light" else "light") as visit:
        _check(visit, theme)
        widths = [figure["width"] for figure in visit.page.evaluate(FIGURES)]
        assert widths[0] > 1.5 * widths[1] > 500  # a page and a column, whichever came last


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("screen", ["desktop", "phone"])
def test_on_a_bare_page(
    browser: Any, shown: list[str], theme: str, screen: str, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    head = '<!doctype html><meta charset="utf-8"><style>:root { color-scheme: light dark }</style>'
    path.write_text(head + "".join(shown))
    with Visit(browser, path, screen, theme) as visit:
        # The canvas has the system's colour, which no element reports.
        visit.page.add_style_tag(content="body { background: Canvas }")
        _check(visit, theme)
        assert visit.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_words_are_left_where_style_and_pictures_are_not_trusted(
    browser: Any, shown: list[str], tmp_path: Path
) -> None:
    path = notebook_page(shown, "light", tmp_path)
    with Visit(browser, path, "desktop", "light") as visit:
        visit.page.evaluate(WITHOUT_STYLE)
        assert [figure["unseen"] for figure in visit.page.evaluate(FIGURES)] == ["block"] * 2
        assert visit.page.get_by_text("Trust the notebook or run the cell").count() == 2


def _check(visit: Visit, theme: str) -> None:
    assert not visit.complaints
    assert len([u for u in visit.requests if not u.startswith("data:")]) == 1
    cards = visit.page.evaluate(CARDS)
    assert len(cards) == 8
    assert sum(card["pictures"] for card in cards) == 8
    for card in cards:
        ink, paper = luminance(card["ink"]), luminance(card["paper"])
        assert (ink < paper) == (theme == "light"), card
        assert abs(ink - paper) > 150, card
        assert card["overflow"] <= 0, card
        assert card["tallest"] < LINE, card
        assert card["stripes"] == 0, card
        assert card["right"], card
        assert card["seen"], card
    for figure in visit.page.evaluate(FIGURES):
        assert (luminance(figure["ink"]) < 128) == (theme == "light")
        assert figure["unseen"] == "none"
    if folder := os.environ.get("SADIH_SCREENSHOTS"):
        target = Path(folder) / f"cards-{visit.page.viewport_size['width']}-{theme}.png"
        visit.page.screenshot(path=target, full_page=True)
