from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from sadih_dask.errors import InputError
from sadih_dask.learning.objective import STEPS, Objective, Record, Trace
from sadih_dask.report import figures
from sadih_dask.report.code_statistics import BitCounts, NeighbourPictures
from sadih_dask.report.figures import Curve
from sadih_dask.report.figures.codes import pooled, strongest
from sadih_dask.report.figures.style import readable, short_number
from sadih_dask.retrieval.codes import pack
from tests.support.reports import groups, n_points, texts

HOSTILE = (
    "<script>alert(1)</script>",
    r"$\frac{",
    "--> ]]> &amp;",
    "\x00\x1b[31m",
    "名前🙂",
    "x" * 300,
)
X = np.linspace(0.0, 1.0, 50)
ROOT = Path(__file__).parents[3]


def curves(names=("SDH", "SADIH"), panels=("16 bits", "64 bits")) -> list[Curve]:
    return [Curve(n, X, (1 - X) * (0.5 + 0.1 * k), p) for k, n in enumerate(names) for p in panels]


def trace(n_restarts: int = 3, n_iter: int = 4) -> Trace:
    records = []
    for restart in range(n_restarts):
        records.append(Record(restart, 0, "start", Objective(1000.0 + restart, 5.0, 3.0, 1.0)))
        for iteration in range(1, n_iter + 1):
            for k, step in enumerate(STEPS[1:]):
                level = 900.0 / (iteration + k / 4) + restart
                records.append(Record(restart, iteration, step, Objective(level, 5.0, 3.0, 1.0)))
    return Trace(tuple(records), best=1, kept_iteration=2)


def neighbours(q: int = 3, k: int = 12, colours: bool = False) -> NeighbourPictures:
    rng = np.random.default_rng(0)
    shape = (8, 6, 3) if colours else (8, 6)
    return NeighbourPictures(
        rng.integers(0, 256, (q, *shape), np.uint8),
        rng.integers(0, 256, (q, k, *shape), np.uint8),
        np.arange(q * k).reshape(q, k) % 3 > 0,
        np.sort(rng.integers(0, 9, (q, k)), axis=1),
        tuple(f"class {i}" for i in range(q)),
        tuple(tuple(f"found {j}" for j in range(k)) for _ in range(q)),
    )


def bits(n_bits: int = 16, rows: int = 200) -> BitCounts:
    codes = np.random.default_rng(1).choice([-1.0, 1.0], (rows, n_bits))
    return BitCounts.of_block(pack(codes), n_bits)


# -- lines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "labels"),
    [
        (figures.precision_recall, ("recall", "precision")),
        (figures.precision_retrieved, ("items retrieved", "precision")),
        (figures.map_against_bits, ("bits", "mean average precision")),
    ],
)
@pytest.mark.parametrize("width", ["page", "column"])
def test_curves_are_all_there(draw, labels, width) -> None:
    scale = 1 if labels[0] == "recall" else 500
    shown = [Curve(c.name, c.x[1:] * scale, c.y[1:], c.panel) for c in curves()]
    svg = draw(shown).svg(width)
    lines = groups(svg, r"curve-\d-\d")
    assert [e.get("id") for e in lines] == ["curve-0-0", "curve-0-1", "curve-1-0", "curve-1-1"]
    assert all(n_points(line) >= 2 for line in lines)
    said = texts(svg)
    assert labels[0] in said
    assert labels[1] in said
    assert [t for t in said if t in ("SDH", "SADIH")] == ["SDH", "SADIH"]  # one legend, not two
    assert {"16 bits", "64 bits"} <= set(said)


def test_lines_differ_by_more_than_colour() -> None:
    svg = figures.precision_recall(curves([f"m{k}" for k in range(7)], [""])).svg()
    looks = set()
    for line in groups(svg, r"curve-0-\d"):
        path = next(e for e in line.iter() if e.tag.endswith("path"))
        style = dict(p.split(": ") for p in path.get("style", "").split("; ") if ": " in p)
        marker = next(
            e.get("{http://www.w3.org/1999/xlink}href")
            for e in line.iter()
            if e.tag.endswith("use")
        )
        looks.add((style.get("stroke-dasharray"), marker))
    assert len(looks) == 7


def test_code_lengths_up_to_thousands_of_bits_stay_readable() -> None:
    lengths = 2.0 ** np.arange(3, 17)
    svg = figures.map_against_bits([Curve("a", lengths, np.linspace(0.2, 0.9, 14))]).svg()
    assert "65536" in texts(svg)
    assert len([t for t in texts(svg) if t.isdigit()]) <= 8


@pytest.mark.parametrize(
    "y", [np.full(50, np.nan), np.where(X > 0.5, np.nan, X), np.full(50, np.inf), np.zeros(50)]
)
@pytest.mark.parametrize("draw", [figures.precision_recall, figures.map_against_bits])
def test_values_that_are_no_numbers_are_left_out(draw, y) -> None:
    drawing = draw([Curve("a", X + 1, y), Curve("b", X + 1, X)])
    assert "nan" not in drawing.svg().lower().replace("nanosecond", "")
    assert "no data" in drawing.alt or np.isfinite(y).any()


def test_points_outside_of_the_axes_do_not_spill_over_the_figure() -> None:
    svg = figures.precision_recall([Curve("a", X * 100, X)]).svg()
    (line,) = groups(svg, "curve-0-0")
    path = next(e for e in line.iter() if e.tag.endswith("path"))
    assert "clip-path" in path.attrib


def test_a_curve_of_one_point_and_of_none() -> None:
    one = Curve("one", np.array([0.5]), np.array([0.5]))
    none = Curve("none", np.zeros(0), np.zeros(0))
    for draw in (figures.precision_recall, figures.precision_retrieved, figures.map_against_bits):
        assert "one" in texts(draw([one]).svg())
        assert "none" in texts(draw([none]).svg())


def test_a_trace_without_records_is_refused() -> None:
    with pytest.raises(InputError, match="no records"):
        figures.objective_trace(Trace((), 0, 0))


# -- objective, bits, distances, pictures ------------------------------------------------------


@pytest.mark.parametrize("width", ["page", "column"])
def test_trace_shows_every_term_of_every_start(width) -> None:
    svg = figures.objective_trace(trace()).svg(width)
    terms = ("total", "similarity", "reconstruction", "encoding", "regularisation")
    for term in terms:
        lines = groups(svg, rf"{term}-start-\d")
        assert {line.get("id") for line in lines} == {f"{term}-start-{k}" for k in range(3)}
        assert lines[-1].get("id") == f"{term}-start-1"  # the kept one lies on top
    assert {"objective", "iteration", "kept start", "kept codes", "other starts (2)"} <= set(
        texts(svg)
    )


def test_trace_of_one_start_and_of_starts_that_were_not_followed_up() -> None:
    assert "kept start" in texts(figures.objective_trace(trace(2, 1)).svg())
    first = trace().records[0]
    alone = figures.objective_trace(Trace((first,), 0, 0)).svg()
    assert not [t for t in texts(alone) if t.startswith("other")]
    rest = tuple(Record(k, 0, "start", first.objective) for k in range(1, 4))
    svg = figures.objective_trace(Trace((*trace().records, *rest), 1, 4)).svg()
    assert "kept start" in texts(svg)


def test_trace_with_values_that_are_no_numbers() -> None:
    bad = Record(0, 1, "B", Objective(float("nan"), float("inf"), 0.0, 0.0))
    drawing = figures.objective_trace(Trace((trace().records[0], bad), 0, 1))
    assert "objective" in texts(drawing.svg())


def test_bits_are_counted_as_numpy_counts_them() -> None:
    codes = np.random.default_rng(3).choice([-1.0, 1.0], (500, 11), p=[0.3, 0.7])
    codes[:, 4] = codes[:, 2]
    whole = BitCounts.of_block(pack(codes), 11)
    parts = BitCounts.of_block(pack(codes[:123]), 11).merge(
        BitCounts.of_block(pack(codes[123:]), 11)
    )
    np.testing.assert_array_equal(whole.both, parts.both)
    np.testing.assert_allclose(parts.balance, (codes > 0).mean(axis=0))
    np.testing.assert_allclose(parts.correlation, np.corrcoef(codes.T), atol=1e-12)
    assert strongest(parts.correlation) == pytest.approx(1.0)


def test_a_bit_that_never_changes_has_no_correlation() -> None:
    codes = np.ones((10, 3))
    codes[:5, 1] = -1
    counted = BitCounts.of_block(pack(codes), 3)
    assert np.isnan(counted.correlation[0]).all()
    assert strongest(counted.correlation) == 0.0
    assert "2 of them never change" in figures.bit_figure(counted).alt


@pytest.mark.parametrize("n_bits", [1, 2, 16, 2048])
@pytest.mark.parametrize("width", ["page", "column"])
def test_bit_figure_at_any_length(n_bits, width) -> None:
    svg = figures.bit_figure(bits(n_bits)).svg(width)
    assert {"bit", "share of rows with the bit set", "absolute correlation"} <= set(texts(svg))
    (points,) = groups(svg, "balance")
    assert len([e for e in points.iter() if e.tag.endswith("use")]) == n_bits
    assert len(svg) < 1_000_000


def test_blocks_of_bits_keep_the_strongest() -> None:
    values = np.zeros((10, 10))
    values[7, 8] = 0.9
    values[:2, :2] = np.nan
    found = pooled(values, 5)
    assert found.shape == (5, 5)
    assert found[3, 4] == 0.9
    assert np.isnan(found[0, 0])
    assert pooled(values, 3).shape == (3, 3)


@pytest.mark.parametrize("n_bits", [1, 8, 64, 4096])
def test_distances_of_pairs(n_bits) -> None:
    similar, dissimilar = np.zeros(n_bits + 1), np.zeros(n_bits + 1)
    similar[0], dissimilar[n_bits] = 30, 10
    drawing = figures.pair_distances(
        {"learned": (similar, dissimilar), "encoded": (similar, similar)}
    )
    said = texts(drawing.svg())
    expected = {"learned", "encoded", "Hamming distance", "share of pairs", "share a label"}
    assert expected | {"share none", "overlap 0.0%", "overlap 100.0%"} <= set(said)
    assert len(groups(drawing.svg(), r"(dis)?similar-[01]")) == 4


def test_one_class_has_no_dissimilar_pair() -> None:
    drawing = figures.pair_distances({"": (np.array([5, 3, 1]), np.zeros(3))})
    assert "dissimilar ones at no" in drawing.alt
    assert "overlap 0.0%" in texts(drawing.svg())


@pytest.mark.parametrize("colours", [False, True])
def test_right_and_wrong_neighbours_are_marked_by_sign_and_frame(colours) -> None:
    shown = neighbours(colours=colours)
    svg = figures.neighbour_pictures(shown).svg("page")
    right, wrong = groups(svg, r"right-\d+-\d+"), groups(svg, r"wrong-\d+-\d+")
    first = shown.relevant[:, :10]  # ten fit on a page
    assert (len(right), len(wrong)) == (int(first.sum()), int((~first).sum()))
    assert all("stroke-dasharray" in _style(e) for e in wrong)
    assert not any("stroke-dasharray" in _style(e) for e in right)
    said = texts(svg)
    assert len([t for t in said if t.startswith("✓")]) == len(right)
    assert len([t for t in said if t.startswith("✗")]) == len(wrong)
    images = svg.count("<image ")
    assert images == 3 + first.size
    assert len(groups(figures.neighbour_pictures(shown).svg("column"), r"(right|wrong)-.*")) == 15


def test_pictures_that_do_not_fit_are_refused() -> None:
    good = neighbours()
    with pytest.raises(InputError, match=r"expected \(q, h, w\) and \(q, k, h, w\)"):
        replace(good, queries=good.queries[:, :4])
    with pytest.raises(InputError, match="a query and a neighbour or more"):
        figures.neighbour_pictures(neighbours(q=0))


def _style(group) -> str:
    return " ".join(e.get("style", "") for e in group.iter())


# -- files ------------------------------------------------------------------------------------

DRAW = """
import hashlib, sys
sys.path.insert(0, ".")
from tests.unit.report import test_figures as t
for drawing in t.every_drawing():
    for kind in ("svg", "pdf"):
        print(drawing.name, kind, hashlib.sha256(drawing.to_bytes(kind)).hexdigest())
"""


def every_drawing() -> list[figures.Drawing]:
    counts = np.arange(17)
    return [
        figures.precision_recall(curves()),
        figures.map_against_bits([Curve("a", np.array([8.0, 16]), np.array([0.5, 0.6]))]),
        figures.objective_trace(trace()),
        figures.bit_figure(bits()),
        figures.pair_distances({"": (counts[::-1], counts)}),
        figures.neighbour_pictures(neighbours()),
    ]


def test_the_same_input_gives_the_same_bytes_in_any_process(tmp_path) -> None:
    (tmp_path / "matplotlibrc").write_text("font.size: 20\naxes.facecolor: black\n")
    runs = []
    for seed, settings in (("1", {}), ("2", {"MATPLOTLIBRC": str(tmp_path), "TZ": "Asia/Tokyo"})):
        env = os.environ | {"PYTHONHASHSEED": seed} | settings
        words = [sys.executable, "-c", DRAW]
        runs.append(subprocess.Popen(words, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True))
    outputs = [run.communicate()[0] for run in runs]
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 12


def test_drawing_leaves_the_users_settings_alone() -> None:
    with mpl.rc_context({"font.size": 21.0}):
        figures.bit_figure(bits()).svg()
        assert mpl.rcParams["font.size"] == 21.0


def test_files_hold_vectors_outlines_and_no_date(tmp_path) -> None:
    svg, pdf = figures.precision_recall(curves()).save(tmp_path / "new")
    assert (svg.name, pdf.name) == ("precision-recall.svg", "precision-recall.pdf")
    document = svg.read_text()
    assert "<text" not in document
    assert "font-family" not in document
    assert "<dc:date>" not in document
    assert b"FontFile2" in pdf.read_bytes()
    assert b"CreationDate" not in pdf.read_bytes()


def test_names_cannot_break_a_figure() -> None:
    panels = [Curve(name, X, X, name) for name in HOSTILE]
    svg = figures.precision_recall(panels).svg()
    said = texts(svg)
    assert "<script>alert(1)</script>" in said
    assert r"$\frac{" in said
    assert "<script" not in svg.replace("&lt;script", "")
    assert all(len(t) <= 40 for t in said)
    hostile = replace(neighbours(q=len(HOSTILE)), names=HOSTILE)
    assert "✓" in " ".join(texts(figures.neighbour_pictures(hostile).svg()))


def test_readable_text() -> None:
    assert readable("a\x00b\n c") == "a\N{REPLACEMENT CHARACTER}b c"
    assert readable("é") == "é"
    assert readable("abcdef", 4) == "abc…"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (36000, "36k"), (2.4e6, "2.4M"), (-1500, "-1.5k"), (0.25, "0.25"), (1e-7, "1e-07")],
)
def test_short_numbers(value, text) -> None:
    assert short_number(value) == text
