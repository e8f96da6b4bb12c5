"""Bits found in float32 are those of float64, whatever the rows, their neighbours and the BLAS."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sadih_dask.learning import signs as module
from sadih_dask.learning.encoders import HashFunction, Opening
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.signs import scores, signs

KINDS = ("affine", "vote", "open vote", "open affine", "logarithmic vote", "open logarithmic vote")
ROWS = ("normal", "offset", "near ties", "denormal", "constant", "huge", "small", "zero")


def a_function(rng: np.random.Generator, kind: str, d: int, n_bits: int) -> HashFunction:
    k = int(rng.integers(2, 12)) if "vote" in kind else n_bits
    scale = 10.0 ** rng.uniform(-3, 3)
    projection = rng.standard_normal((d, k)) * scale
    projection[:, rng.random(k) < 0.1] = 0.0
    offset = rng.standard_normal(k) * rng.choice([0.0, 1.0, scale])
    mixture = rng.choice([-1.0, 1.0], (k, n_bits)) if "vote" in kind else None
    opening = None
    if "open" in kind:
        other = rng.standard_normal((d, n_bits))
        opening = Opening(other, rng.standard_normal(n_bits), float(rng.random()))
    sharpness = float(rng.choice([0.5, 1.0, 2.0, 3.7, 16.0, np.inf]))
    logarithmic = "logarithmic" in kind
    return HashFunction(None, projection, offset, mixture, sharpness, opening, logarithmic)


def some_rows(rng: np.random.Generator, what: str, function: HashFunction, n: int) -> np.ndarray:
    d = len(function.projection)
    rows = rng.standard_normal((n, d))
    if what == "offset":
        rows += 10.0 ** rng.uniform(2, 8) * rng.standard_normal(d)
    elif what == "near ties":  # on the plane of one column, as nearly as float32 can be
        p, o = function.projection[:, 0], function.offset[0]
        if p.any():
            rows -= np.outer((rows @ p + o) / (p @ p), p)
    elif what == "denormal":
        rows *= 10.0 ** rng.uniform(-45, -36, (n, 1))
    elif what == "constant":
        rows[:, rng.random(d) < 0.7] = rng.standard_normal()
    elif what == "huge":
        rows *= 10.0 ** rng.uniform(15, 37, (n, 1))
    elif what == "small":
        rows *= 10.0 ** rng.uniform(-25, -15, (n, 1))
    elif what == "zero":
        rows[::2] = 0.0
    return rows.astype(rng.choice(["float32", "float64", "float16"]) if what == "normal" else "f4")


def one_by_one(function: HashFunction, rows: np.ndarray) -> np.ndarray:
    """Scores in float64, without BLAS."""

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.add.reduce(a[0, :, None] * b, axis=0)[None]

    with np.errstate(all="ignore"):
        found = [function.score(row[None].astype(float), product) for row in rows]
    return np.concatenate(found)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(KINDS), st.sampled_from(ROWS))
def test_bits_are_those_of_float64_in_any_block(seed: int, kind: str, what: str) -> None:
    rng = np.random.default_rng(seed)
    function = a_function(rng, kind, int(rng.integers(1, 200)), int(rng.integers(1, 70)))
    rows = some_rows(rng, what, function, 40)
    expected = one_by_one(function, rows) > 0.0
    assert np.array_equal(signs(function, rows)[0], expected)
    assert np.array_equal(scores(function, rows) > 0.0, expected)
    cut = int(rng.integers(1, 39))
    parts = [signs(function, part)[0] for part in (rows[:cut], rows[cut:])]
    assert np.array_equal(np.concatenate(parts), expected)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(KINDS))
def test_no_error_exceeds_its_bound(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    function = a_function(rng, kind, 150, 32)
    rows = some_rows(rng, str(rng.choice(ROWS[:5])), function, 40).astype(np.float32)
    bounded = module._Bounded.of(function, rows, np.float32)
    found, bound = bounded.scores(rows)
    with np.errstate(all="ignore"):
        error = np.abs(found - function.project(rows))
    known = np.broadcast_to(bound, error.shape)
    assert not (error > np.where(known < 0.0, 0.0, known)).any()


def test_bits_with_anchors_are_those_of_the_same_anchor_features_in_float64() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((600, 30)).astype(np.float32)
    anchors = AnchorMap.from_sample(rows, 200, rng)
    for kind in KINDS:
        function = a_function(rng, kind, 200, 48)
        function = HashFunction(
            anchors,
            function.projection,
            function.offset,
            function.mixture,
            function.sharpness,
            function.opening,
            function.logarithmic,
        )
        assert np.array_equal(signs(function, rows)[0], function.project(rows) > 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_few_rows_of_usual_data_need_float64(kind: str) -> None:
    rng = np.random.default_rng(1)
    function = HashFunction(None, rng.standard_normal((64, 20)), rng.standard_normal(20) + 3.0)
    if "vote" in kind:
        codes = rng.choice([-1.0, 1.0], (20, 20))
        function = HashFunction(
            None, function.projection, function.offset, codes, logarithmic="logarithmic" in kind
        )
    rows = rng.standard_normal((2000, 64)).astype(np.float32)
    again = signs(function, rows)[1]
    assert 0 < len(again) < 200


def test_rows_that_float32_cannot_tell_apart_go_to_float64_at_once() -> None:
    rng = np.random.default_rng(2)
    projection = rng.standard_normal((64, 8))
    function = HashFunction(None, projection - projection.mean(axis=0), np.zeros(8))
    rows = np.full((9000, 64), 1e9) + rng.standard_normal((9000, 64))
    rows[::2] *= -1.0  # no centre helps
    found, again = signs(function, rows)
    assert np.array_equal(found, function.project(rows) > 0.0)
    assert len(again) > 4500
