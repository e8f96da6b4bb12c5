"""Ways to learn a hash function, one file each: `METHODS` is the place to name a new one.

Each declares its parameters and solves from what a scan leaves (`estimator.Hasher`): the label
groups with their counts and sums, mean and Gram matrix of the features, and a sample of the rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sadih_dask.errors import InputError
from sadih_dask.model.parameters import parameters_of

if TYPE_CHECKING:
    from sadih_dask.model.estimator import Hasher

METHODS = {
    "sadih": "sadih.SADIH",
    "lsh": "hyperplanes.LSH",
    "cbe": "hyperplanes.CBE",
    "bq": "hyperplanes.BinaryQuantisation",
    "pcah": "itq.PCAH",
    "pca-rr": "itq.PCARR",
    "itq": "itq.ITQ",
    "itq-cca": "itq.ITQCCA",
    "sdh": "regression.SDH",
    "sdhr": "regression.SDHR",
    "fsdh": "regression.FSDH",
    "class-codes": "classifier.ClassCodes",
    "ksh": "ksh.KSH",
    "cosdish": "cosdish.COSDISH",
    "lfh": "lfh.LFH",
    "fasth": "fasth.FastH",
    "dsh": "dsh.DSH",
    "sgh": "sgh.SGH",
    "och": "och.OCH",
    "mfh": "mfh.MFH",
}
"""Where the estimator of each method is; imported when it is asked for."""


def method_class(name: str) -> type[Hasher]:
    """The estimator of a method."""
    if name not in METHODS:
        raise InputError(f"there is no method {name!r}; choose one of {', '.join(METHODS)}")
    module, estimator = METHODS[name].split(".")
    found: type[Hasher] = getattr(import_module(f"{__name__}.{module}"), estimator)
    return found


def method_named(name: str, parameters: Mapping[str, Any]) -> Hasher:
    """An estimator with parameters; one that it does not have is refused."""
    found = method_class(name)
    known = parameters_of(found)
    if unknown := sorted(set(parameters) - set(known)):
        raise InputError(
            f"{unknown[0]!r} is no parameter of the method {name}, which has {', '.join(known)}"
        )
    return found(**parameters)


def load_model(
    path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> Hasher:
    """Read a model of any method that its `save` wrote, from a path or URL."""
    from sadih_dask.model.model_file import read_model

    model = read_model(path, storage_options=storage_options)
    return method_class(model.method).of_model(model, path)
