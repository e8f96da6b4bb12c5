"""Rows added and taken out again leave the model of a fit on the rest."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sadih_dask import SADIH
from tests.support.datasets import blobs, tagged_blobs
from tests.support.models import CHOSEN, QUICK, same_model

few = settings(max_examples=8, deadline=None)
encoders = st.sampled_from(["auto", "ridge", "posterior"])


@st.composite
def shuffled(draw: st.DrawFn) -> tuple[Any, Any]:
    """Sixty rows in random order, with one class or several labels each."""
    make = draw(st.sampled_from([blobs, tagged_blobs]))
    seed = draw(st.integers(0, 2**32 - 1))
    features, labels = make(60, 4, draw(st.integers(2, 6)), seed=seed)
    order = np.random.default_rng(seed).permutation(60)
    return features[order], labels[order]


def model(**parameters: Any) -> SADIH:
    return SADIH(n_bits=8, **{**QUICK, "anchors": None, **parameters})


def learn(first: SADIH, X: Any, y: Any, cuts: list[int]) -> SADIH:
    """Add rows in the parts that the cuts leave."""
    edges = [0, *sorted(cuts), len(X)]
    for start, stop in pairwise(edges):
        if stop > start:
            first.partial_fit(X[start:stop], y[start:stop])
    return first


@few
@given(shuffled(), encoders, st.lists(st.integers(20, 60), max_size=4))
def test_partial_fit_is_a_fit_on_everything(rows: Any, encoder: str, cuts: list[int]) -> None:
    X, y = rows
    found = learn(model(encoder=encoder, **CHOSEN), X, y, cuts)
    same_model(found, model(encoder=encoder, **CHOSEN).fit(X, y), X)


@few
@given(shuffled(), encoders, st.integers(20, 35), st.integers(35, 60))
def test_forget_is_a_fit_without(rows: Any, encoder: str, start: int, stop: int) -> None:
    X, y = rows
    kept = np.r_[0:start, stop:60]
    found = model(encoder=encoder, **CHOSEN).fit(X, y)
    if stop > start:
        found.forget(X[start:stop], y[start:stop])
    same_model(found, model(encoder=encoder, **CHOSEN).fit(X[kept], y[kept]), X)


@pytest.mark.parametrize("encoder", ["orthogonal", "lemma"])
@pytest.mark.parametrize("make", [blobs, tagged_blobs])
def test_the_encoders_of_the_paper(encoder: str, make: Any) -> None:
    """With larger weights than the default: else W fits a small S exactly, and few digits stay."""
    X, y = make(60, 4, 4)
    parameters = {"encoder": encoder, "alpha": 1.0, "beta": 1.0}
    found = learn(model(**parameters), X, y, [25, 40])
    same_model(found, model(**parameters).fit(X, y), X)
    found.forget(X[40:], y[40:])
    same_model(found, model(**parameters).fit(X[:40], y[:40]), X)


@few
@given(shuffled(), encoders, st.lists(st.integers(0, 30), min_size=1, max_size=3))
def test_anchors_of_the_first_fit_serve_every_split(rows: Any, encoder: str, cuts: Any) -> None:
    (X, y), first = rows, slice(0, 30)
    parameters = {"encoder": encoder, "anchors": 12}
    whole = model(**parameters).fit(X[first], y[first]).partial_fit(X[30:], y[30:])
    parts = learn(model(**parameters).fit(X[first], y[first]), X[30:], y[30:], cuts)
    same_model(parts, whole, X)
    parts.forget(X[45:], y[45:])
    expected = model(**parameters).fit(X[first], y[first]).partial_fit(X[30:45], y[30:45])
    same_model(parts, expected, X)


@few
@given(shuffled(), st.integers(0, 2**32 - 1))
def test_added_and_taken_out_in_any_order(rows: Any, seed: int) -> None:
    X, y = rows
    rng = np.random.default_rng(seed)
    blocks = np.split(np.arange(60), [20, 30, 40, 50])
    found = model().fit(X[blocks[0]], y[blocks[0]])
    present = {0}
    for k in rng.integers(1, 5, size=5):
        step = found.forget if k in present else found.partial_fit
        step(X[blocks[k]], y[blocks[k]])
        present ^= {int(k)}
    kept = np.concatenate([blocks[k] for k in sorted(present)])
    same_model(found, model().fit(X[kept], y[kept]), X)


@few
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_classes_that_come_late_and_classes_that_go(seed: int, named: bool) -> None:
    X, numbers = blobs(60, 4, 5, seed=seed)
    y = np.array(["a", "bb", "c", "dddd", "e"])[numbers] if named else numbers * 10
    late = np.isin(numbers, np.random.default_rng(seed).choice(5, 2, replace=False))
    found = model().fit(X[~late], y[~late])
    few_classes = found.classes_
    assert len(few_classes) == 3
    found.partial_fit(X[late], y[late])
    assert found.classes_.tolist() == np.unique(y).tolist()
    same_model(found, model().fit(X, y), X)
    found.forget(X[late], y[late])
    assert found.classes_.tolist() == few_classes.tolist()
    same_model(found, model().fit(X[~late], y[~late]), X)


@few
@given(st.integers(0, 2**32 - 1))
def test_label_sets_that_come_late_and_label_sets_that_go(seed: int) -> None:
    X, Y = tagged_blobs(60, 4, 4, seed=seed)
    late = Y[:, 2] == 1  # every set with this label: the column stays
    found = model().fit(X[~late], Y[~late])
    groups = found.label_groups_.toarray()
    assert not groups[:, 2].any()
    same_model(found.partial_fit(X[late], Y[late]), model().fit(X, Y), X)
    found.forget(X[late], Y[late])
    assert found.classes_.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(found.label_groups_.toarray(), groups)
    same_model(found, model().fit(X[~late], Y[~late]), X)


def same_far(far_model: SADIH, far: Any, near_model: SADIH, X: Any) -> None:
    np.testing.assert_array_equal(far_model.label_codes_, near_model.label_codes_)
    np.testing.assert_array_equal(far_model.transform(far), near_model.transform(X))


FIXED: dict[str, Any] = {
    "ridge": 1e-3,
    "sharpness": 2.0,
    "openness": 0.0,
    "n_init": 1,
    "max_iter": 0,
}
"""Nothing is chosen: which rows judge follows from their values, and these are others."""


@few
@given(shuffled(), encoders, st.sampled_from([None, 12]))
def test_a_large_mean_loses_nothing(rows: Any, encoder: str, anchors: int | None) -> None:
    X, y = rows
    X = np.round(X * 1024) / 1024  # so that adding a million is exact
    parameters = {**FIXED, "encoder": encoder, "anchors": anchors}
    near = model(**parameters).fit(X, y)
    same_far(model(**parameters).fit(X + 1e6, y), X + 1e6, near, X)


@few
@given(shuffled(), encoders)
def test_a_large_mean_loses_nothing_when_rows_come_and_go(rows: Any, encoder: str) -> None:
    X, y = rows
    X = np.round(X * 1024) / 1024
    far = X + 1e6
    parameters = {**FIXED, "encoder": encoder}
    near_model, far_model = model(**parameters).fit(X, y), model(**parameters).fit(far, y)
    for step in ("partial_fit", "forget"):
        getattr(near_model, step)(X[:20], y[:20])
        getattr(far_model, step)(far[:20], y[:20])
        same_far(far_model, far, near_model, X)


def test_forgetting_many_times_leaves_no_trace() -> None:
    X, y = blobs(80, 4, 4)
    found = model().fit(X[:40], y[:40])
    for _ in range(8):
        found.partial_fit(X[40:] * 1e3, y[40:]).forget(X[40:] * 1e3, y[40:])
    same_model(found, model().fit(X[:40], y[:40]), X)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_low_precision_features_in_blocks(dtype: type) -> None:
    """Sums inside a block are rounded to float32, so only the learned codes are promised."""
    X, y = blobs(200, 4, 4)
    X = X.astype(dtype)
    found = learn(model(), X, y, [50, 77, 130])
    np.testing.assert_array_equal(found.label_codes_, model().fit(X, y).label_codes_)
