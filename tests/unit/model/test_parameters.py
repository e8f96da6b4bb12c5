"""What is declared of the parameters is what the estimator has."""

from inspect import signature

import pytest

from sadih_dask import SADIH, SADIHCV
from sadih_dask.errors import InputError
from sadih_dask.model.parameters import (
    DECIDED_BY_THE_SCAN,
    MAX_BITS,
    PARAMETERS,
    SEARCH_PARAMETERS,
    check_parameters,
)


def test_the_constructor_has_the_declared_parameters_and_defaults() -> None:
    assert set(signature(SADIH).parameters) == set(PARAMETERS)  # all but the first by name
    for estimator, declared in ((SADIH, PARAMETERS), (SADIHCV, SEARCH_PARAMETERS)):
        constructor = signature(estimator).parameters
        for name, parameter in declared.items():
            assert repr(constructor[name].default) == repr(parameter.default)
            parameter.check(name, parameter.default)


def test_the_docstring_says_every_parameter() -> None:
    described = (SADIH.__doc__ or "").partition("Attributes")[0]
    assert [name for name in PARAMETERS if name not in described] == []


def test_what_is_decided_by_the_scan() -> None:
    assert set(DECIDED_BY_THE_SCAN) == {
        "anchors",
        "sigma",
        "sample_rows",
        "block_rows",
        "random_state",
    }


def test_codes_that_would_take_hours_are_refused_before_any_work() -> None:
    check_parameters(SADIH(n_bits=MAX_BITS))
    with pytest.raises(InputError, match=r"n_bits=4096; expected a whole number from 1 to 2048"):
        SADIH(n_bits=4096).fit("no rows are looked at")
