"""The figure of a search's scores."""

import re
from typing import Any

import numpy as np
import pytest

from sadih_dask.errors import InputError
from sadih_dask.model.results import Surface
from sadih_dask.report.figures.learning import LEAST_SPAN, score_surface
from tests.support.reports import groups, texts


def surface(scores: Any = ((0.5, 0.7), (0.9, 0.8)), n_bits: int = 16, **changes: Any) -> Surface:
    values = np.asarray(scores, np.float64)
    given: dict[str, Any] = {
        "row": "alpha",
        "row_values": tuple(10.0**k for k in range(values.shape[0])),
        "column": "beta",
        "column_values": tuple(10.0**-k for k in range(values.shape[1])),
    }
    return Surface(n_bits, scores=values, **{**given, **changes})


def opacities(document: str) -> dict[str, float]:
    """How dark every cell is, by its place."""
    found = {}
    for group in groups(document, r"score-\d+-\d+-\d+"):
        style = next(e.get("style", "") for e in group.iter() if e.get("style"))
        match = re.search(r"opacity: ([\d.]+)", style)
        found[group.get("id", "")] = float(match[1]) if match else 1.0
    return found


def test_a_panel_for_each_length_with_numbers_and_a_frame() -> None:
    drawing = score_surface([surface(), surface(((0.6, 0.95), (0.9, 0.8)), 32)])
    for width in ("page", "column"):
        document = drawing.svg(width)
        said = texts(document)
        assert {"16 bits: 0.9000 at best", "32 bits: 0.9500 at best", "alpha", "beta"} <= set(said)
        assert {".500", ".700", ".900", ".950", "10", "0.1"} <= set(said)
        assert len(groups(document, r"score-\d+-\d+-\d+")) == 8
        assert len(groups(document, r"best-\d+")) == 2
    assert "16 bits: from 0.5000 to 0.9000, the best at alpha 10 and beta 1" in drawing.alt
    assert drawing.wide


def test_the_better_the_darker() -> None:
    shades = opacities(score_surface([surface()]).svg())
    assert (
        shades["score-0-0-0"]
        < shades["score-0-0-1"]
        < shades["score-0-1-1"]
        < shades["score-0-1-0"]
    )


def test_scores_that_hardly_differ_look_alike() -> None:
    shades = opacities(score_surface([surface(((0.9, 0.9), (0.9, 0.9 - LEAST_SPAN / 50)))]).svg())
    assert max(shades.values()) - min(shades.values()) < 0.05


def test_many_values_have_no_room_for_numbers() -> None:
    drawing = score_surface([surface(np.linspace(0.5, 0.9, 120).reshape(3, 40))])
    assert ".500" not in texts(drawing.svg())
    assert len(groups(drawing.svg(), r"score-0-\d+-\d+")) == 120


def test_one_parameter_and_words() -> None:
    one = surface([[0.4, 0.6]], row="", row_values=("",), column="loss", column_values=("l1", "l2"))
    drawing = score_surface([one])
    assert drawing.alt.startswith("Mean scores over loss. 16 bits: from 0.4000 to 0.6000, the best")
    assert {"l1", "l2", "loss"} <= set(texts(drawing.svg()))
    assert not drawing.wide


def test_the_same_bytes_every_time() -> None:
    drawings = [score_surface([surface(), surface(n_bits=32)]) for _ in range(2)]
    for kind in ("svg", "pdf"):
        assert drawings[0].to_bytes(kind) == drawings[1].to_bytes(kind)


def test_on_a_page_its_colours_follow_the_page() -> None:
    drawing = score_surface([surface(column="<script>")])
    page = drawing._repr_html_()
    assert "var(--sadih-blue" in page
    assert "var(--sadih-vermilion" in page
    assert "<script>" not in page


def test_nothing_to_draw() -> None:
    with pytest.raises(InputError, match="needs a surface"):
        score_surface([])
