"""Families of solves: what is shared changes no bit of any of them."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

from sadih_dask import SADIH
from sadih_dask.errors import InputError
from sadih_dask.model.methods.classifier import ClassCodes
from sadih_dask.model.parameters import PARAMETERS
from sadih_dask.model.solve import Family, learn
from tests.support.datasets import blobs, tagged_blobs
from tests.support.models import CHOSEN, QUICK

MEMBERS = [
    (0.01, 0.1, 1e-3, "l21", "exact"),
    (5.0, 10.0, 0.0, "l21", "exact"),
    (0.01, 10.0, 1.0, "l1", "exact"),
    (0.0, 0.0, 1e-3, "l21", "exact"),
    (1.0, 1.0, 1e-3, "l21", "paper"),
    (5.0, 0.1, 0.5, "l1", "paper"),
    (0.01, 0.1, 1e-3, "l21", "exact"),
]
"""Weights, loss and solver; the last is as the first, after all the others."""


def noisy(multi_label: bool) -> tuple[Any, Any]:
    X, y = tagged_blobs(240, 6, 4) if multi_label else blobs(240, 6, 5)
    return X + np.random.default_rng(5).normal(scale=1.5, size=X.shape), y


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("n_bits", [4, 24])
@pytest.mark.parametrize(
    "encoder", ["auto", "posterior", "discriminant", "ridge", "orthogonal", "lemma"]
)
def test_members_of_a_family_have_the_bits_of_a_solve(
    multi_label: bool, n_bits: int, encoder: Any
) -> None:
    X, y = noisy(multi_label)
    shared = SADIH(n_bits=n_bits, encoder=encoder, anchors=None, **{**QUICK, **CHOSEN})
    statistics = shared.fit(X, y).statistics_
    assert statistics is not None
    family = Family(shared, statistics, 3, None)
    for alpha, beta, gamma, loss, solver in MEMBERS:
        member = clone(shared).set_params(
            alpha=alpha, beta=beta, gamma=gamma, loss=loss, solver=solver
        )
        alone, expected = learn(member, statistics, None, 3)
        state = family.solve(member).state
        np.testing.assert_array_equal(state.B, alone.state.B)
        function = family.hash_function(member, state)
        np.testing.assert_array_equal(function.projection, expected.projection)
        np.testing.assert_array_equal(function.offset, expected.offset)
        assert (function.mixture is None) == (expected.mixture is None)


def test_members_may_differ_in_all_that_decides_the_steps() -> None:
    """A parameter that is said to decide the steps must not change the start."""
    steps = {name for name, parameter in PARAMETERS.items() if parameter.decides == "steps"}
    weights = {"alpha", "beta", "gamma", "loss", "solver", "max_iter", "tol"}
    assert steps == weights | {"sharpness", "openness"}


def test_models_of_several_lengths_are_those_of_refits() -> None:
    X, y = noisy(False)
    model = SADIH(n_bits=8, anchors=30, n_init=2).fit(X, y)
    for n_bits, found in model.at_lengths([8, 4, 12]).items():
        expected = clone(model).set_params(n_bits=n_bits).take_over(model).refit()
        assert found.fingerprint_ == expected.fingerprint_
        np.testing.assert_array_equal(found.label_codes_, expected.label_codes_)
    assert model.n_bits == 8
    with pytest.raises(InputError, match="n_bits=100000; expected a whole number from 1 to 2048"):
        model.at_lengths([8, 100_000])


def test_many_classes_are_told_apart_as_well_as_by_a_classifier() -> None:
    rng = np.random.default_rng(0)
    means = rng.standard_normal((300, 16))
    y = rng.permutation(np.repeat(np.arange(300), 12))
    X = means[y] + 0.35 * rng.standard_normal((len(y), 16))
    new, held = slice(0, 900), slice(900, None)
    found = SADIH(32, anchors=None).fit(X[held], y[held])
    plain = ClassCodes(32).fit(X[held], y[held])
    assert found.encoder_ == "discriminant"
    regressed = SADIH(32, anchors=None, encoder="posterior").fit(X[held], y[held])
    scores = [model.score(X[new], y[new]) for model in (found, plain, regressed)]
    assert scores[0] > scores[1] - 0.01
    assert scores[0] > scores[2] + 0.05


def test_the_curve_of_openness_is_what_auto_chose_by() -> None:
    X, y = load_digits(return_X_y=True)
    model = SADIH(16, anchors=100, n_init=1).fit(X[:900], y[:900])
    tried = model.openness_curve()
    assert [choice.openness for choice in tried] == [0.0, 0.3, 0.6, 1.0]
    opening = model.hash_function_.opening
    assert opening is not None
    assert opening.weight in [choice.openness * choice.reach for choice in tried]
    assert tried[-1].qualities[2] > tried[0].qualities[2]
    assert SADIH(8, anchors=None, encoder="lemma").fit(X, y).openness_curve() == []
