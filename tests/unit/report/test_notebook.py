from __future__ import annotations

import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from importlib import import_module

import numpy as np
import pytest

import sadih_dask
from sadih_dask import SADIH, CodeStore, FeatureStore, evaluate, evaluate_model, search
from sadih_dask.errors import InputError
from sadih_dask.ingest import Ingested
from sadih_dask.learning.objective import Objective, Record, Trace
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model.methods import method_class
from sadih_dask.report import figures
from sadih_dask.report.figures import Curve
from sadih_dask.report.notebook import bars, code_grid, html, plot, sparkline
from sadih_dask.retrieval.evaluation import Protocols
from sadih_dask.retrieval.failures import NONE_FAILS
from sadih_dask.retrieval.nearest import Neighbours, WithinRadius
from tests.support.reports import digits

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
    for expected in ("SADIH", "1,437", "anchors=300", "label groups", "posterior"):
        assert expected in found.text
    assert found.names.count("svg") == 1
    assert found.names.count("text") == 10  # the class beside each code


def test_a_model_says_which_hash_function_was_chosen() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)), rng.integers(0, 3, 60)
    for encoder in ("ridge", "posterior", "lemma"):
        model = SADIH(n_bits=8, anchors=None, encoder=encoder, n_init=1).fit(x, y)
        assert f"hash function{encoder}" in card(html(model)).text.replace("\n", "")
    model.set_params(encoder="auto")
    model.hash_function_ = (
        SADIH(n_bits=8, anchors=None, encoder="posterior").fit(x, y).hash_function_
    )
    assert "posterior" in card(html(model)).text


@pytest.mark.parametrize(
    ("name", "said"),
    [("itq", "affine"), ("class-codes", "vote of classes"), ("fasth", "decision trees")],
)
def test_models_of_other_methods_have_cards(name: str, said: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 8)), rng.integers(0, 3, 60)
    model = method_class(name)(n_bits=4).fit(x, y)
    found = card(html(model)).text.replace("\n", "")
    assert type(model).__name__ in found
    assert f"hash function{said}" in found


def test_a_model_that_is_not_fitted() -> None:
    assert "not fitted" in card(html(SADIH())).text
    assert "n_bits=8" in card(html(SADIH(n_bits=8))).text
    assert EVIL in card(html(SADIH(loss=EVIL))).text  # type: ignore[arg-type]


def test_a_model_without_statistics(tmp_path) -> None:
    digits().model.save(tmp_path / "m.sadih", statistics=False)
    assert "rows" not in card(html(SADIH.load(tmp_path / "m.sadih"))).text


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


@cache
def all_protocols() -> Protocols:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 5)), np.arange(80) % 4
    model = SADIH(n_bits=12, anchors=None, n_init=1).fit(x[:60], y[:60])
    return evaluate_model(model, (x[60:], y[60:]), (x[:60], y[:60]))


def test_an_evaluation_shows_every_number_and_every_protocol() -> None:
    protocols = all_protocols()
    found = card(html(protocols))
    for metric, value in protocols.fresh.numbers.items():
        assert metric in found.text
        assert f"{value:.4f}" in found.text
    for name, baseline in protocols.baselines["unseen"].items():
        assert name in found.text or name == "these codes"
        assert f"{baseline.numbers['MAP']:.4f}" in found.text
    assert found.names.count("svg") == 5  # precision and recall, and distances under each protocol
    alone = card(html(protocols.learned))
    assert alone.names.count("svg") == 2
    assert "encoded" not in alone.text
    assert "encoded" not in card(html(Protocols(protocols.learned, None))).text


def test_a_card_says_which_classes_find_least_or_that_none_does() -> None:
    protocols = all_protocols()
    assert protocols.worst_classes
    assert "Classes that find least" in card(html(protocols)).text
    none = Protocols.from_dict({**protocols.to_dict(), "worst_classes": []})
    assert NONE_FAILS in card(html(none)).text
    assert NONE_FAILS in repr(none)
    unknown = Protocols.from_dict({**protocols.to_dict(), "worst_classes": None})
    assert NONE_FAILS not in repr(unknown) + card(html(unknown)).text


def test_an_evaluation_without_anything_relevant() -> None:
    codes = np.zeros((3, 1), np.uint8)
    nothing = evaluate(codes, codes, np.zeros(3, int), np.ones(3, int))
    found = card(html(nothing))
    assert "queries without a relevant item" in found.text
    assert "\N{EN DASH}" in found.text
    assert "nan" not in html(nothing)


def test_what_a_search_has_found(tmp_path) -> None:
    codes = np.random.default_rng(0).integers(0, 256, (40, 2), np.uint8)
    ids = np.array([f"<{k}>" for k in range(40)])
    store = CodeStore.create(tmp_path / "c.zarr", codes, n_bits=16, model="m", ids=ids)
    nearest = search(store, codes[:9], k=10)
    found = card(html(nearest))
    assert "<0> (0)" in found.text
    assert "4 more" in found.text
    assert "3 queries more" in found.text
    within = search(store, codes[:2], radius=3)
    assert f"{len(within.rows)}" in card(html(within)).text
    empty = np.zeros((0, 4), np.int64)
    card(html(Neighbours(empty, empty, empty)))
    none = np.zeros(0, np.int64)
    found = card(html(WithinRadius(2, np.array([0, 0]), none, none, none)))
    assert "queries without any1" in found.text.replace("\n", "")


def test_what_was_ingested(tmp_path) -> None:
    store = FeatureStore.create(tmp_path / "s.zarr", np.eye(4, 3, dtype=np.float32))
    found = card(html(Ingested(store, 3, 1, 2, 5, 4)))
    assert "s.zarr" in found.text
    assert "rows without a label, dropped2" in found.text.replace("\n", "")


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


def test_drawings_of_different_widths_keep_them_on_one_page() -> None:
    """Their style sheets hold for the whole page, so the width must not be in them."""
    narrow = figures.map_against_bits([Curve("a", np.array([8.0]), np.array([0.5]))])
    wide = figures.objective_trace(digits().model.trace_)
    assert 'style="margin: 0; max-width: 26rem"' in narrow._repr_html_()
    assert 'style="margin: 0; max-width: 52rem"' in wide._repr_html_()
    for drawing in (narrow, wide):
        sheet = drawing._repr_html_().split("<style>")[1].split("</style>")[0]
        assert "max-width" not in sheet


def test_small_pictures_of_nothing_and_of_much() -> None:
    assert "points" in sparkline([], "none")
    assert "points" in sparkline([1.0], EVIL)
    grid = code_grid(np.full((1000, 512), 255, np.uint8), 4096, "many", [EVIL] * 1000)
    assert len(grid) < 100_000
    none = np.zeros(0)
    for picture in (
        sparkline([1.0], EVIL),
        grid,
        bars([], EVIL),
        bars([0, 0], EVIL),
        plot({}, (EVIL, EVIL), EVIL),
        plot({EVIL: (none, none)}, ("x", "y"), EVIL),
        plot({"": (np.arange(3.0), np.array([np.nan, 0.0, 0.0]))}, ("x", "y"), "zero"),
    ):
        assert not {"img", "script"} & set(Tags(picture).names)
        assert "nan" not in picture


def test_no_plain_repr_shows_arrays() -> None:
    model = digits().model
    for thing, expected in {
        model.statistics_: "<Statistics of 1437 rows: 300 features, 10 label groups of 10 classes>",
        model.statistics_.sample: "<Sample of 1437 rows of 300 features>",
        model.trace_: "<Trace of 8 starts, number ",
        Trace((), 0, 0): "<Trace without records>",
        model.hash_function_: "<HashFunction: 300 anchor features to 64 bits, mixing",
        model.hash_function_.anchor_map: "<AnchorMap: 300 anchors of 64 features, sigma ",
    }.items():
        assert repr(thing).startswith(expected)
        assert len(repr(thing)) < 120
    assert repr(model.groups_) == "<LabelGroups: 10 of 10 classes>"
    drawing = figures.map_against_bits([Curve("a", np.array([8.0]), np.array([0.5]))])
    assert repr(drawing).startswith("<Drawing map-bits: Quality against code length: ")


def test_every_card_is_announced_to_notebooks_and_no_other() -> None:
    announced = {
        getattr(import_module(home), name)
        for home, names in sadih_dask._CARDS.items()
        for name in names
    }
    assert announced == set(html.registry) - {object}
    for shown in announced:
        assert shown.__module__ in sadih_dask._CARDS  # IPython looks it up under this name


IN_IPYTHON = """
import sys
from IPython.core.interactiveshell import InteractiveShell
show = InteractiveShell.instance().display_formatter.format
{first}
from sadih_dask.learning.objective import Trace
from sadih_dask import SADIH
class Mine(SADIH):
    pass
assert "sadih_dask.report" not in sys.modules  # until something is shown
for thing in (Trace((), 0, 0), SADIH(n_bits=8), Mine()):
    data, _ = show(thing)
    assert 'class="sadih-card"' in data["text/html"], data
    assert data["text/plain"] == repr(thing)
"""


@pytest.mark.parametrize("first", ["", "from sadih_dask.stores import FeatureStore"])
def test_notebooks_show_cards_whatever_is_imported_first(first, tmp_path, monkeypatch) -> None:
    """Also of an estimator, which has a representation from scikit-learn."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    program = IN_IPYTHON.format(first=first)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_itself_imports_nothing_but_the_standard_library() -> None:
    program = (
        "import sys; before = set(sys.modules); import sadih_dask\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "assert new - sys.stdlib_module_names == {'sadih_dask'}, new"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
