"""Model files: a fitted learner as arrays and JSON."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sadih_dask.arrays import Array, Bytes
from sadih_dask.errors import FormatError
from sadih_dask.learning.encoders import HashFunction
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.labels import LabelGroups
from sadih_dask.learning.objective import Objective
from sadih_dask.learning.statistics import Statistics
from sadih_dask.learning.trace import Record, Trace
from sadih_dask.storage.archive import read_archive, write_archive

KIND = "sadih-model"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Model:
    """Everything that a fitted estimator holds.

    parameters     the estimator's constructor arguments
    seed           what its random numbers come from
    classes        class names, (c,)
    multi_label    whether labels came as a multi-hot matrix
    label_codes    packed code of each label group
    statistics     of the rows learned from; None for a model that only encodes
    """

    parameters: dict[str, Any]
    seed: int
    n_features_in: int
    feature_names: Array | None
    classes: Array
    multi_label: bool
    groups: LabelGroups
    label_codes: Bytes
    hash_function: HashFunction
    trace: Trace
    statistics: Statistics | None


def write_model(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model file, atomically."""
    function = model.hash_function
    arrays: dict[str, Array] = {
        "classes": model.classes,
        "groups.indptr": model.groups.indptr,
        "groups.indices": model.groups.indices,
        "label_codes": model.label_codes,
        "projection": function.projection,
        "offset": function.offset,
    }
    if function.mixture is not None:
        arrays["mixture"] = function.mixture
    meta: dict[str, Any] = {
        "parameters": model.parameters,
        "seed": model.seed,
        "n_features_in": model.n_features_in,
        "multi_label": model.multi_label,
        "trace": {
            "best": model.trace.best,
            "kept_iteration": model.trace.kept_iteration,
            "records": [
                [r.restart, r.iteration, r.step, list(asdict(r.objective).values())]
                for r in model.trace
            ],
        },
    }
    if model.feature_names is not None:
        meta["feature_names"] = [str(name) for name in model.feature_names]
    if (anchors := function.anchor_map) is not None:
        meta["sigma"] = anchors.sigma
        arrays |= {
            "anchors": anchors.anchors,
            "anchors.centre": anchors.centre,
            "anchors.scale": anchors.scale,
        }
    if (known := model.statistics) is not None:
        arrays |= {
            "statistics.counts": known.counts,
            "statistics.mean": known.mean,
            "statistics.sums": known.sums,
            "statistics.gram": known.gram,
        }
    write_archive(path, KIND, VERSION, meta, arrays)


def read_model(path: str | os.PathLike[str]) -> Model:
    """Read a model file; what does not fit together is an error, not a surprise later."""
    meta, arrays = read_archive(path, KIND, VERSION)
    try:
        model = _assemble(meta, arrays)
        _check_shapes(model)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FormatError(
            f"{os.fspath(path)} is not a whole model: {error!r}. Write it anew with SADIH.save"
        ) from error
    return model


def _assemble(meta: dict[str, Any], arrays: dict[str, Array]) -> Model:
    classes = arrays["classes"]
    groups = LabelGroups(arrays["groups.indptr"], arrays["groups.indices"], len(classes))
    anchor_map = None
    if "anchors" in arrays:
        anchor_map = AnchorMap(
            arrays["anchors"], arrays["anchors.centre"], arrays["anchors.scale"], meta["sigma"]
        )
    statistics = None
    if "statistics.gram" in arrays:
        parts = ("counts", "mean", "sums", "gram")
        statistics = Statistics(groups, *(arrays[f"statistics.{part}"] for part in parts))
    names = meta.get("feature_names")
    records = tuple(
        Record(int(restart), int(iteration), str(step), Objective(*terms))
        for restart, iteration, step, terms in meta["trace"]["records"]
    )
    return Model(
        parameters=dict(meta["parameters"]),
        seed=int(meta["seed"]),
        n_features_in=int(meta["n_features_in"]),
        feature_names=None if names is None else np.asarray(names, dtype=object),
        classes=classes,
        multi_label=bool(meta["multi_label"]),
        groups=groups,
        label_codes=arrays["label_codes"],
        hash_function=HashFunction(
            anchor_map, arrays["projection"], arrays["offset"], arrays.get("mixture")
        ),
        trace=Trace(records, int(meta["trace"]["best"]), int(meta["trace"]["kept_iteration"])),
        statistics=statistics,
    )


def _check_shapes(model: Model) -> None:
    function, groups = model.hash_function, model.groups
    width, n_scores = function.projection.shape
    inputs = width if function.anchor_map is None else function.anchor_map.anchors.shape[1]
    expected = {
        "offset": (function.offset.shape, (n_scores,)),
        "label_codes": (model.label_codes.shape, (groups.n_groups, -(-function.n_bits // 8))),
        "n_features_in": (model.n_features_in, inputs),
        "groups.indices": (groups.indices.shape, (groups.indptr[-1],)),
    }
    if function.mixture is not None:
        expected["mixture"] = (function.mixture.shape, (groups.n_groups, function.n_bits))
    if function.anchor_map is not None:
        expected["anchors"] = (function.anchor_map.anchors.shape, (width, inputs))
    if (known := model.statistics) is not None:
        g = groups.n_groups
        expected["statistics.sums"] = (known.sums.shape, (g, width))
        expected["statistics.gram"] = (known.gram.shape, (width, width))
        expected["statistics.mean"] = (known.mean.shape, (width,))
        expected["statistics.counts"] = (known.counts.shape, (g,))
    for name, (found, wanted) in expected.items():
        if found != wanted:
            raise ValueError(f"{name} has shape {found}, expected {wanted}")
    if groups.indices.size and not 0 <= groups.indices.min() <= groups.indices.max() < len(
        model.classes
    ):
        raise ValueError("groups.indices name classes that do not exist")
