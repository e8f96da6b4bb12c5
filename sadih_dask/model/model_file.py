"""Model files: a fitted learner as arrays and JSON."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sadih_dask.compute.reduction import part_of
from sadih_dask.errors import FormatError
from sadih_dask.files.archive import read_archive, write_archive
from sadih_dask.learning.encoders import HashFunction, Opening
from sadih_dask.learning.features import AnchorMap
from sadih_dask.learning.labels import LabelGroups
from sadih_dask.learning.objective import Objective, Record, Trace
from sadih_dask.learning.sample import Sample
from sadih_dask.learning.statistics import Statistics
from sadih_dask.retrieval.trees import AnyFunction, BoostedTrees
from sadih_dask.stores.coverage import Coverage
from sadih_dask.types import Array, Bytes

KIND = "sadih-model"
VERSION = 4
STATISTICS = ("counts", "mean", "sums", "gram")
TREES = ("feature", "threshold", "vote")


@dataclass(frozen=True, eq=False)
class Model:
    """Everything that a fitted estimator holds.

    method         what it was learned by
    parameters     the estimator's constructor arguments
    seed           what its random numbers come from
    classes        names or values of the classes, (c,)
    multi_label    whether labels came as a multi-hot matrix
    label_codes    packed code of each label group; no rows if codes of labels were not learned
    statistics     of the rows learned from; None for a model that only encodes
    coverage       the store they come from; None if they came from elsewhere
    columns        a hash of the names of its features in their order, where they have names
    """

    method: str
    parameters: dict[str, Any]
    seed: int
    n_features_in: int
    feature_names: Array | None
    classes: Array
    multi_label: bool
    groups: LabelGroups
    label_codes: Bytes
    hash_function: AnyFunction
    trace: Trace
    statistics: Statistics | None
    coverage: Coverage | None = None
    columns: str = ""

    @property
    def fingerprint(self) -> str:
        """A hash of the hash function and the learned codes: models that encode alike share it."""
        function = self.hash_function
        parts = list(_function_arrays(function).values())
        if isinstance(function, HashFunction) and function.mixture is not None:
            parts += [np.array(function.sharpness), np.array(function.logarithmic)]
        if (anchors := function.anchor_map) is not None:
            parts.append(np.array(anchors.sigma))
        digest = hashlib.sha256()
        for part in (*parts, self.label_codes, self.groups.indptr, self.groups.indices):
            digest.update(repr((part.shape, part.dtype.str)).encode())
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()[:32]


def _function_arrays(function: AnyFunction) -> dict[str, Array]:
    """The arrays of a hash function, by the names that they have in a file."""
    if isinstance(function, BoostedTrees):
        arrays = {f"trees.{name}": getattr(function, name) for name in TREES}
    else:
        arrays = {"projection": function.projection, "offset": function.offset}
        if function.mixture is not None:
            arrays["mixture"] = function.mixture
        if (opening := function.opening) is not None:
            arrays |= {"opening": opening.projection, "opening.offset": opening.offset}
            arrays["opening.weight"] = np.array(opening.weight, np.float64)
    if (anchors := function.anchor_map) is not None:
        arrays |= {"anchors": anchors.anchors, "anchors.centre": anchors.centre}
    return arrays


def write_model(
    url: str | os.PathLike[str],
    model: Model,
    *,
    since: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Write a model file to a path or URL, atomically; `since` is as in `write_archive`."""
    function = model.hash_function
    arrays: dict[str, Array] = {
        "classes": model.classes,
        "groups.indptr": model.groups.indptr,
        "groups.indices": model.groups.indices,
        "label_codes": model.label_codes,
        **_function_arrays(function),
    }
    meta: dict[str, Any] = {
        "method": model.method,
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
    if model.columns:
        meta["columns"] = model.columns
    if isinstance(function, HashFunction):
        meta["sharpness"] = function.sharpness
        meta["logarithmic"] = function.logarithmic
    if function.anchor_map is not None:
        meta["sigma"] = function.anchor_map.sigma
    if (known := model.statistics) is not None:
        arrays |= {f"statistics.{name}": getattr(known, name) for name in STATISTICS}
        arrays |= {f"sample.{name}": array for name, array in known.sample.to_arrays().items()}
    if model.coverage is not None:
        meta["coverage"] = model.coverage.to_json()
    write_archive(url, KIND, VERSION, meta, arrays, since=since, storage_options=storage_options)


def read_model(
    url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> Model:
    """Read a model file; what does not fit together is an error, not a surprise later."""
    meta, arrays = read_archive(url, KIND, VERSION, storage_options=storage_options)
    try:
        _check_dtypes(arrays)
        model = _assemble(meta, arrays)
        _check_shapes(model)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        raise FormatError(
            f"{os.fspath(url)} is not a whole model: {error!r}. Write it anew with SADIH.save"
        ) from error
    return model


def _assemble(meta: dict[str, Any], arrays: dict[str, Array]) -> Model:
    classes = arrays["classes"]
    groups = LabelGroups(arrays["groups.indptr"], arrays["groups.indices"], len(classes))
    statistics = None
    if "statistics.gram" in arrays:
        width = arrays["statistics.sums"].shape[1]
        sample = Sample.from_arrays(part_of(arrays, "sample"), len(groups), width)
        counts, mean, sums, gram = (arrays[f"statistics.{name}"] for name in STATISTICS)
        statistics = Statistics(groups, counts, mean, sums, gram, sample)
    coverage = Coverage.from_json(meta["coverage"]) if "coverage" in meta else None
    feature_names = meta.get("feature_names")
    records = tuple(
        Record(int(restart), int(iteration), str(step), Objective(*terms))
        for restart, iteration, step, terms in meta["trace"]["records"]
    )
    return Model(
        method=str(meta["method"]),
        parameters=dict(meta["parameters"]),
        seed=int(meta["seed"]),
        n_features_in=int(meta["n_features_in"]),
        feature_names=None if feature_names is None else np.asarray(feature_names, dtype=object),
        columns=str(meta.get("columns", "")),
        classes=classes,
        multi_label=bool(meta["multi_label"]),
        groups=groups,
        label_codes=arrays["label_codes"],
        hash_function=_function(meta, arrays),
        trace=Trace(records, int(meta["trace"]["best"]), int(meta["trace"]["kept_iteration"])),
        statistics=statistics,
        coverage=coverage,
    )


def _function(meta: dict[str, Any], arrays: dict[str, Array]) -> AnyFunction:
    anchor_map = opening = None
    if "anchors" in arrays:
        anchor_map = AnchorMap(arrays["anchors"], arrays["anchors.centre"], float(meta["sigma"]))
    if "trees.feature" in arrays:
        return BoostedTrees(anchor_map, *(arrays[f"trees.{name}"] for name in TREES))
    if "opening" in arrays:
        weight = float(arrays["opening.weight"][()])
        opening = Opening(arrays["opening"], arrays["opening.offset"], weight)
    vote = arrays.get("mixture"), float(meta["sharpness"])
    logarithmic = bool(meta["logarithmic"])
    affine = arrays["projection"], arrays["offset"]
    return HashFunction(anchor_map, *affine, *vote, opening, logarithmic)


def _check_text(array: Array) -> None:
    """Refuse numbers that are no letters: whoever looks at them crashes the interpreter's check."""
    if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        letters = np.dtype(np.uint32).newbyteorder(array.dtype.byteorder)
        if np.ascontiguousarray(array).reshape(-1).view(letters).max() > sys.maxunicode:
            raise ValueError("classes are not text")


def _check_dtypes(arrays: dict[str, Array]) -> None:
    """Refuse arrays of another kind than :func:`write_model` writes."""
    whole = ("groups.indptr", "groups.indices", "statistics.counts", "trees.feature")
    for name, array in arrays.items():
        if name.startswith("sample."):  # `Sample.from_arrays` looks at them
            continue
        if name == "classes":
            _check_text(array)
            fits, wanted = array.dtype.kind in "biufSU" and array.ndim == 1, "a list of classes"
        else:
            kind = np.uint8 if name == "label_codes" else np.int64 if name in whole else np.float64
            fits, wanted = array.dtype == kind, np.dtype(kind).name
        if not fits:
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, expected {wanted}")


def _affine_shapes(function: HashFunction, width: int, n_groups: int) -> dict[str, Any]:
    """Shapes found and expected, by name."""
    n_scores, n_bits = function.projection.shape[1], function.n_bits
    expected: dict[str, Any] = {"projection": (function.projection.shape, (width, n_scores))}
    expected["offset"] = function.offset.shape, (n_scores,)
    if function.mixture is not None:
        expected["mixture"] = function.mixture.shape, (n_groups, n_bits)
    if (opening := function.opening) is not None:
        expected["opening"] = opening.projection.shape, (width, n_bits)
        expected["opening.offset"] = opening.offset.shape, (n_bits,)
    return expected


def _tree_shapes(function: BoostedTrees, width: int) -> dict[str, Any]:
    n_bits, n_trees, n_nodes = function.feature.shape
    if not 0 <= function.feature.min(initial=0) <= function.feature.max(initial=0) < width:
        raise ValueError("trees.feature names features that do not exist")
    if n_nodes & (n_nodes + 1):
        raise ValueError(f"trees have {n_nodes} nodes; expected all of some depth")
    return {
        "trees.threshold": (function.threshold.shape, (n_bits, n_trees, n_nodes)),
        "trees.vote": (function.vote.shape, (n_bits, n_trees, n_nodes + 1)),
    }


def _check_shapes(model: Model) -> None:
    function, groups = model.hash_function, model.groups
    width = inputs = model.n_features_in
    if function.anchor_map is not None:
        width, inputs = function.anchor_map.anchors.shape
    expected: dict[str, tuple[Any, Any]] = {
        "label_codes": (model.label_codes.shape[1:], (-(-function.n_bits // 8),)),
        "n_features_in": (model.n_features_in, inputs),
        "groups.indices": (groups.indices.shape, (groups.indptr[-1],)),
    }
    if isinstance(function, BoostedTrees):
        expected |= _tree_shapes(function, width)
    else:
        expected |= _affine_shapes(function, width, groups.n_groups)
    if function.anchor_map is not None:
        expected["anchors.centre"] = (function.anchor_map.centre.shape, (inputs,))
    if (known := model.statistics) is not None:
        g = groups.n_groups
        for name, shape in zip(
            STATISTICS, ((g,), (width,), (g, width), (width, width)), strict=True
        ):
            expected[f"statistics.{name}"] = getattr(known, name).shape, shape
        if known.counts.min(initial=1) < 1 or known.counts.sum(dtype=float) > 2**53:
            raise ValueError("statistics.counts are no numbers of rows")
    for name, (found, wanted) in expected.items():
        if found != wanted:
            raise ValueError(f"{name} has shape {found}, expected {wanted}")
    if len(model.label_codes) not in (0, groups.n_groups):
        raise ValueError(f"{len(model.label_codes)} label_codes of {groups.n_groups} label groups")
    if (spare := function.n_bits % 8) and (model.label_codes[:, -1] >> spare).any():
        raise ValueError(f"label_codes have bits beyond their {function.n_bits}")
    if groups.indptr[0] != 0 or np.any(np.diff(groups.indptr) <= 0):
        raise ValueError("groups.indptr does not ascend from 0")
    if groups.indices.size and not 0 <= groups.indices.min() <= groups.indices.max() < len(
        model.classes
    ):
        raise ValueError("groups.indices name classes that do not exist")
    traced = len(model.trace) or model.method == "sadih"
    if traced and not model.trace.of_restart(model.trace.best):
        raise ValueError("the trace does not hold the restart that was kept")
