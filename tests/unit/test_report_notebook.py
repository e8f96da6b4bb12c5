from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

from sadih_dask import SADIH, CodeStore, FeatureStore
from sadih_dask.errors import InputError
from sadih_dask.learning.objective import Objective
from sadih_dask.learning.statistics import Statistics
from sadih_dask.learning.trace import Record, Trace
from sadih_dask.report import figures
from sadih_dask.report.measurements import Curve, Quality
from sadih_dask.report.notebook import html, install, quality_html
from sadih_dask.report.sparks import code_grid, sparkline
from tests.reports import digits

EVIL = "<img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.names.append(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.names.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text += data


def card(text: str) -> Tags:
    found = Tags(text)
    assert not found.open
    assert not {"script", "img", "link", "iframe"} & set(found.names)
    assert "http" not in text
    return found


def test_a_fitted_model_shows_its_codes_and_what_was_changed() -> None:
    found = card(html(digits().model))
    for expected in ("SADIH", "1,437", "anchors=300", "label groups", "hash function"):
        assert expected in found.text
    assert "svg" in found.names


def test_a_model_that_is_not_fitted() -> None:
    assert "not fitted" in card(html(SADIH())).text
    assert "n_bits=8" in card(html(SADIH(n_bits=8))).text
    assert EVIL in card(html(SADIH(loss=EVIL))).text  # type: ignore[arg-type]


def test_a_model_without_statistics(tmp_path) -> None:
    digits().model.save(tmp_path / "m.sadih", statistics=False)
    assert "rows" not in card(html(SADIH.load(tmp_path / "m.sadih"))).text.split("default")[0][-40:]


def test_stores(tmp_path) -> None:
    features = FeatureStore.create(
        tmp_path / "f.zarr", np.eye(4, 3, dtype=np.float32), np.arange(4),
        class_names=[EVIL, "b", "c", "d"], source="<b>made up</b>",
    )  # fmt: skip
    found = card(html(features))
    for expected in ("FeatureStore", "4 x 3", "float32", EVIL, "<b>made up</b>", "f.zarr"):
        assert expected in found.text
    codes = CodeStore.create(tmp_path / "c.zarr", np.zeros((5, 2), np.uint8), n_bits=12, model=EVIL)
    found = card(html(codes))
    assert "CodeStore" in found.text
    assert "12" in found.text
    assert EVIL[:16] in found.text


def test_statistics_and_traces() -> None:
    statistics = Statistics.of_block(np.eye(4), np.array([0, 0, 1, 2]))
    assert "1 to 2" in card(html(statistics)).text
    found = card(html(digits().model.trace_))
    assert "kept start" in found.text
    assert "svg" in found.names
    assert "empty" in card(html(Trace((), 0, 0))).text
    bad = Objective(float("nan"), 0.0, 0.0, 0.0)
    card(html(Trace((Record(0, 0, "start", bad),), 0, 0)))


def test_results() -> None:
    rows = [Quality(8, {"learned": {"MAP": 0.5}, EVIL: {"MAP": float("nan")}}, method=EVIL)]
    assert EVIL in card(html(rows[0])).text
    found = card(quality_html([*rows, Quality(16, {"learned": {"MAP": 0.75}})], about=EVIL))
    for expected in ("0.5000", "0.7500", "\N{EN DASH}", "SADIH, 16 bits", "Ties"):
        assert expected in found.text


def test_other_things_have_no_card() -> None:
    with pytest.raises(InputError, match="no card for int"):
        html(3)


def test_a_drawing_shows_itself_in_the_colours_of_the_notebook() -> None:
    drawing = figures.map_against_bits([Curve(EVIL, np.array([8.0]), np.array([0.5]))])
    found = drawing._repr_html_()
    assert "<img" not in found.replace("&lt;img", "")
    assert 'role="img"' in found
    assert "prefers-color-scheme: dark" in found
    assert "data-jp-theme-light=false" in found


def test_small_pictures_of_nothing_and_of_much() -> None:
    assert "points" in sparkline([], "none")
    assert "points" in sparkline([1.0], EVIL)
    assert EVIL not in sparkline([1.0], EVIL)
    grid = code_grid(np.full((1000, 512), 255, np.uint8), 4096, "many")
    assert len(grid) < 100_000


def test_notebooks_show_cards(monkeypatch) -> None:
    for shown in (FeatureStore, CodeStore, Statistics, Trace, Quality, SADIH):
        monkeypatch.setattr(shown, "_repr_html_", None, raising=False)
    monkeypatch.setattr(SADIH, "_repr_mimebundle_", None)
    install()
    model = digits().model
    assert model._repr_mimebundle_()["text/html"] == model._repr_html_() == html(model)
    assert model._repr_mimebundle_()["text/plain"] == repr(model)
    assert model.trace_._repr_html_() == html(model.trace_)
