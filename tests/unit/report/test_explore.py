"""Results side by side, and pictures of what queries find."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from sadih_dask import SADIH, FeatureStore, evaluate_model, search
from sadih_dask.errors import InputError
from sadih_dask.report.explore import Comparison, show_neighbours
from sadih_dask.retrieval.evaluation import Protocols
from sadih_dask.retrieval.nearest import Neighbours
from tests.support.reports import groups, n_points, texts

LENGTHS = (4, 12)


@cache
def results() -> dict[str, Protocols]:
    rng = np.random.default_rng(0)
    y = np.arange(120) % 4
    x = rng.normal(size=(120, 6)) + 3 * np.eye(4, 6)[y]
    found = {}
    model = SADIH(n_bits=LENGTHS[0], anchors=None, n_init=1).fit(x[:90], y[:90])
    for n_bits in reversed(LENGTHS):
        model.set_params(n_bits=n_bits).refit()
        found[f"{n_bits} bits"] = evaluate_model(model, (x[90:], y[90:]), (x[:90], y[:90]))
    return found


def test_the_table_has_a_row_for_each_name_and_its_numbers() -> None:
    shown = repr(Comparison(results())).splitlines()
    assert len(shown) == 3
    assert shown[0].split("  ")[-1] == "unseen precision@100"
    for line, (name, found) in zip(shown[1:], results().items(), strict=True):
        assert line.startswith(name)
        assert line.split()[2:] == [
            f"{value:.4f}" for e in found.known.values() for value in (e.map, e.precision_at[100])
        ]
    html = Comparison(results())._repr_html_()
    assert 'class="sadih-card"' in html
    assert f"{results()['4 bits'].learned.map:.4f}" in html


def test_some_results_have_no_database() -> None:
    mixed = results() | {"learned only": Protocols(results()["4 bits"].learned, None)}
    assert repr(Comparison(mixed)).splitlines()[-1].endswith("\N{EN DASH}")
    assert len(groups(Comparison(mixed).precision_recall().svg(), r"curve-0-\d")) == 3


def test_figures_have_a_line_for_each_name_and_a_panel_for_each_protocol() -> None:
    compared = Comparison(results())
    for drawing in (compared.precision_recall(), compared.precision_retrieved()):
        lines = groups(drawing.svg(), r"curve-\d-\d")
        assert len(lines) == 2 * 4
        assert min(map(n_points, lines)) > 10
        assert {"learned", "encoded", "fresh", "unseen", "4 bits", "12 bits"} <= set(
            texts(drawing.svg())
        )
    pairs = compared.distances().svg()
    assert len(groups(pairs, r"similar-\d")) == 2 * 4
    assert "12 bits, encoded" in texts(pairs)


def test_lengths_are_in_order_and_each_comes_once() -> None:
    drawing = Comparison(results()).map_against_bits()
    first, last = (results()[f"{n} bits"].learned.map for n in LENGTHS)
    assert f"learned: from {first:.3f} at 4 to {last:.3f} at 12" in drawing.alt
    alone = Comparison({name: found.encoded for name, found in results().items()})
    assert "MAP: from " in alone.map_against_bits().alt
    twice = Comparison({"a": results()["4 bits"], "b": results()["4 bits"]})
    with pytest.raises(InputError, match="two results have 4 bits"):
        twice.map_against_bits()


def test_nothing_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="nothing to compare"):
        Comparison({})


def store(path: Path, labels: list[int], **more: object) -> FeatureStore:
    n = len(labels)
    pictures = np.arange(n * 16, dtype=np.uint8).reshape(n, 4, 4)
    given = {"thumbnails": pictures, "class_names": ["cat", "dog"]} | more
    return FeatureStore.create(path, np.eye(n, 3, dtype=np.float32), np.array(labels), **given)


def test_pictures_of_what_was_found(tmp_path) -> None:
    database = store(tmp_path / "d.zarr", [0, 1, 1, 0])
    queries = store(tmp_path / "q.zarr", [1, 0, 1])
    codes = np.array([[0], [1], [3], [7]], np.uint8)
    drawing = show_neighbours(search(codes, codes[[0, 3]], k=3), queries, [2, 1], database)
    assert "dog: 2 of 3 right; cat: 1 of 3 right" in drawing.alt
    found = drawing.svg("column")
    assert len(groups(found, r"(right|wrong)-\d-\d")) == 6
    assert len(groups(found, "wrong-0-0")) == 1
    assert "✗ 0 (cat)" in texts(found)


def test_pictures_in_arrays() -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 255, (12, 8, 8), dtype=np.uint8)
    names = np.array(["cat", "dog", "eel"])[np.arange(12) % 3]
    rows = np.array([[0, 1], [4, 6]])
    found = Neighbours(rows, np.array([[0.0, 1.25], [0.5, 2.0]]), rows)
    drawing = show_neighbours(found, (pictures[:2], names[:2]), None, (pictures, names))
    assert "cat: 1 of 2 right; dog: 1 of 2 right" in drawing.alt
    assert drawing.svg()
    with pytest.raises(InputError, match="2 queries were searched for, and 1 rows"):
        show_neighbours(found, (pictures, names), [3], (pictures, names))


def test_what_cannot_be_pictured_is_refused(tmp_path) -> None:
    database = store(tmp_path / "d.zarr", [0, 1])
    bare = store(tmp_path / "b.zarr", [0, 1], thumbnails=None)
    codes = np.zeros((2, 1), np.uint8)
    found = search(codes, codes, k=1)
    with pytest.raises(InputError, match=r"b\.zarr has no thumbnails.*thumbnails="):
        show_neighbours(found, bare, [0, 1], database)
    with pytest.raises(InputError, match="2 queries were searched for, and 1 rows are given"):
        show_neighbours(found, database, [0], database)
