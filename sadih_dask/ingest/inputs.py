"""The files of one data set, opened and checked against each other before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Literal, get_args

import numpy as np

from sadih_dask.errors import Advice, Argument, InputError, LabelError, Remedy
from sadih_dask.files.filesystem import name_of
from sadih_dask.sources import (
    LabelSource,
    RowSource,
    list_variables,
    open_features,
    open_ids,
    open_labels,
    open_thumbnails,
)
from sadih_dask.sources.arrow import WideSource
from sadih_dask.sources.classes import Classes, number_in
from sadih_dask.sources.contract import DEFAULT_MEMORY_LIMIT, Variable
from sadih_dask.sources.features import Paths, check_pairs, expand, parts_of
from sadih_dask.sources.formats import PANDAS_INDEX, is_found_as_ids, is_named_for, listed
from sadih_dask.sources.labels import advice
from sadih_dask.types import Array, Unlabelled

Part = Literal["database", "queries"]
MOST_HELD_OUT = 0.5
BESIDE = ("labels", "ids", "thumbnails")
"""Files that hold something else for the rows of the features."""


@dataclass(frozen=True)
class HoldOut:
    """Which rows are queries, and which of both parts is wanted here.

    fraction   of the rows that are held out as queries, above 0 and up to 0.5
    seed       another one holds out other rows
    part       "database" for the rows that stay, "queries" for those that are held out
    """

    fraction: float
    seed: int = 0
    part: Part = "database"

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= MOST_HELD_OUT:
            raise InputError(
                f"the fraction of rows to hold out is {self.fraction}; it must be above 0 and at "
                f"most {MOST_HELD_OUT}"
            )
        if self.part not in ("database", "queries"):
            raise InputError(f"part must be 'database' or 'queries', got {self.part!r}")

    @property
    def share(self) -> float:
        """Return the expected part of the rows that is taken."""
        return self.fraction if self.part == "queries" else 1 - self.fraction

    def note(self) -> str:
        """Return what a store remembers of it, so that it is never mixed with another one."""
        return f"{self.part}: fraction {self.fraction!r}, seed {self.seed}"


@dataclass(frozen=True)
class DataFiles:
    """What a caller said about the files of a data set.

    features, labels, ids, thumbnails   names, globs or lists of them; the same rows in each
    features_variable, labels_variable, ids_variable
                                        where a file holds several; without `labels` or `ids` they
                                        are looked for in the files of the features. Features may
                                        be a pattern, of a column each; "" as ids: none
    transpose, scale                    of the features, as in `open_features`
    class_names, separator              of the labels, as in `open_labels`
    known_classes                       of another store, whose numbers classes are to have here
                                        too; new ones come behind
    labelled                            whether there must be labels
    unlabelled                          what to do about multi-hot rows and lists without a label
    memory_limit                        bytes that a format which cannot be streamed may load
    hold_out                            takes one part of the rows, queries or what stays, only;
                                        without other ids rows have their numbers in the files,
                                        one file counted after the other
    numbered_as                         first and end of these numbers in another store, by the
                                        contents of the files
    """

    features: Paths
    labels: Paths | None = None
    ids: Paths | None = None
    thumbnails: Paths | None = None
    features_variable: str | None = None
    labels_variable: str | None = None
    ids_variable: str | None = None
    transpose: bool = False
    scale: str | float | None = None
    class_names: Sequence[str] | None = None
    known_classes: Sequence[str] | None = None
    separator: str | None = None
    unlabelled: Unlabelled = "error"
    labelled: bool = False
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    hold_out: HoldOut | None = None
    numbered_as: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def numbers_rows(self) -> bool:
        """Say whether rows that come without ids get their numbers."""
        return self.hold_out is not None and self.ids_variable is None

    @property
    def taken(self) -> list[str]:
        """Return the columns that are no features, because they were named for something else."""
        return [name for name in (self.labels_variable, self.ids_variable) if name]

    @property
    def reading_options(self) -> str:
        """Return what decides the rows beside the files themselves."""
        reading = (self.transpose, self.scale, self.separator, self.unlabelled, self.hold_out)
        return repr((reading, self.features_variable, self.labels_variable, self.ids_variable))

    def expanded(self) -> DataFiles:
        """Return the same with every glob replaced by the files that it matches now."""
        given = {name: getattr(self, name) for name in ("features", *BESIDE)}
        found = {name: expand(paths) for name, paths in given.items() if paths is not None}
        for name in (name for name in BESIDE if name in found):
            if not all(_named_one_by_one(given[side], found[side]) for side in ("features", name)):
                _check_numbers(name, found[name], found["features"])
        return self.of(found)

    def names(self, what: str) -> tuple[str, ...]:
        """Return the files of one kind, such as "labels"; globs must be expanded already."""
        given: Sequence[str] | None = getattr(self, what)
        return () if given is None else tuple(given)

    def groups(self) -> list[dict[str, tuple[str, ...]]] | None:
        """Return a file of features and those beside it, by what they hold; None if that is open.

        Globs must be expanded already, and there must be as many files of each kind.
        """
        named = {name: self.names(name) for name in ("features", *BESIDE) if self.names(name)}
        if len({len(found) for found in named.values()}) != 1:
            return None
        rows = zip(*named.values(), strict=True)
        return [{name: (file,) for name, file in zip(named, row, strict=True)} for row in rows]

    def of(self, named: Mapping[str, tuple[str, ...]]) -> DataFiles:
        """Return the same with other files, by what they hold."""
        beside = {name: named.get(name) for name in BESIDE}
        return replace(self, features=named["features"], **beside)  # type: ignore[arg-type]


def _named_one_by_one(given: Paths, found: Sequence[str]) -> bool:
    """Whether the order of files is what somebody has said, and not that of a pattern."""
    return not isinstance(given, str | PathLike) and len(given) == len(found)


def _check_numbers(what: str, files: Sequence[str], features: Sequence[str]) -> None:
    """Refuse files beside those of the features in their place, if their numbers are of others."""
    if not 1 < len(files) == len(features):
        return
    mine, theirs = _numbers(files), _numbers(features)
    if mine == theirs or not set(mine) & set(theirs):
        return
    wrong = next(k for k, both in enumerate(zip(mine, theirs, strict=True)) if both[0] != both[1])
    raise InputError(
        f"{what} go with features by place, so {files[wrong]} would with {features[wrong]}, while "
        "numbers in other names of both agree: a file may be missing. Add it, or name the files of "
        "both one by one, in the order that is meant"
    )


def _numbers(files: Sequence[str]) -> list[tuple[int, ...]]:
    """The numbers in the name of each file; those that all have alike say nothing."""
    found = [tuple(map(int, re.findall("[0-9]+", name_of(file)))) for file in files]
    if len({len(numbers) for numbers in found}) > 1:
        return found
    kept = [column for column in zip(*found, strict=True) if len(set(column)) > 1]
    return list(zip(*kept, strict=True))


@dataclass(frozen=True)
class Inputs:
    """Sources with one row count; whether somebody has asked for the ids."""

    features: RowSource
    labels: LabelSource | None
    ids: RowSource | None
    thumbnails: RowSource | None
    ids_wanted: bool = True

    @property
    def n_rows(self) -> int:
        """Return the rows that the files hold."""
        return self.features.n_rows

    @property
    def sources(self) -> dict[str, RowSource]:
        """Return the sources that there are by the name of the array they go into."""
        named = {
            "features": self.features,
            "labels": self.labels,
            "ids": self.ids,
            "thumbnails": self.thumbnails,
        }
        return {name: source for name, source in named.items() if source is not None}

    def notes(self) -> list[object]:
        """Return what is read from the files: shapes, types and classes."""
        classes = () if self.labels is None else self.labels.class_names
        return [{name: source.shape_note() for name, source in self.sources.items()}, classes]

    def advice(self) -> Iterator[Advice]:
        """Say what is probably not meant as it is."""
        shape = parts_of(self.features)[0].row_shape
        if len(shape) > 1:
            yield Advice(
                f"{self.features.origin}: a row is an array of {' x '.join(map(str, shape))}; its "
                f"numbers are taken one after the other, as {self.features.width:,} features"
            )
        if self.labels is not None:
            yield from advice(self.labels, self.n_rows)
        elif unread := _unread(self.features):
            yield Advice(
                f"{self.features.origin.path}: no column is named like labels. Not read: {unread}",
                remedy=Remedy(
                    "Name the column of the labels with {}, that of ids with {}",
                    Argument("labels_variable"),
                    Argument("ids_variable"),
                ),
            )

    def describe(self) -> str:
        """Say in one line where the rows come from."""
        return "; ".join(f"{name}: {source.describe()}" for name, source in self.sources.items())


def open_inputs(files: DataFiles, known: Sequence[str] | None = None) -> Inputs:
    """Open everything; labels are read once, to find the classes and to check every row.

    `known` are the classes of a store that the rows are to be added to.
    """
    if files.unlabelled not in get_args(Unlabelled):
        raise InputError(f"unlabelled must be 'error' or 'drop', got {files.unlabelled!r}")
    features = open_features(
        files.features,
        files.features_variable,
        transpose=files.transpose,
        scale=files.scale,
        memory_limit=files.memory_limit,
        taken=files.taken,
    )
    labels_variable(files, features)
    # The short files first: a wrong row count should not wait for the pass over the labels.
    ids = _open_ids(files, features)
    thumbnails = None
    if files.thumbnails is not None:
        thumbnails = open_thumbnails(files.thumbnails, n_rows=features.n_rows)
    for name, beside in (("ids", ids), ("thumbnails", thumbnails)):
        if beside is not None:
            check_pairs(beside, features, name)
    labels = _open_labels(files, features)
    if labels is not None and known is not None:
        labels = _continue_classes(labels, tuple(known), given=files.class_names is not None)
    wanted = files.ids is not None or bool(files.ids_variable)
    return Inputs(features, labels, ids, thumbnails, wanted)


def open_rows(path: str) -> tuple[RowSource, Array | None]:
    """Return the features of a file and, if a column is named like them, the ids, in memory."""
    features = open_features(path)
    ids = _open_ids(DataFiles(path), features)
    names = None if ids is None else np.array(ids.read(0, ids.n_rows).tolist())
    return features, names


def _open_ids(files: DataFiles, features: RowSource) -> RowSource | None:
    """Open the ids: those that are named, or found beside the features."""
    if files.ids is not None:
        return open_ids(files.ids, files.ids_variable, n_rows=features.n_rows)
    variable = files.ids_variable
    if variable is None:
        variable = _beside(features, is_found_as_ids, "ids")
    if variable:
        return open_ids(features.files(), variable, n_rows=features.n_rows)
    return None


def labels_variable(files: DataFiles, features: RowSource) -> str | None:
    """Return the variable of the labels, named or found; LabelError if there must be one."""
    if files.labels is not None or files.labels_variable is not None:
        return files.labels_variable
    found = _beside(features, lambda found: is_named_for(found, "labels"), "labels")
    if found is None and files.labelled:
        unread = _unread(features) or "nothing"
        raise LabelError(
            f"{features.describe()}: there are no labels, and no variable of the files is named "
            f"like them: beside the features there is {unread}. Name their files (source.labels) "
            "or their variable (source.labels_variable)"
        )
    return found


def _open_labels(files: DataFiles, features: RowSource) -> LabelSource | None:
    variable = labels_variable(files, features)
    if files.labels is None and variable is None:
        if files.class_names is not None:
            raise LabelError(
                "names of classes were given, but no labels, and the files of the features "
                "have no variable with the name of one. Give the labels too."
            )
        return None
    return open_labels(
        features if files.labels is None else files.labels,
        variable,
        class_names=files.class_names,
        features=features,
        separator=files.separator,
        allow_unlabelled=files.unlabelled == "drop",
        memory_limit=files.memory_limit,
    )


def _others(features: RowSource) -> list[Variable]:
    """Return the variables of the first file that are not of the features."""
    path, first = features.files()[0], parts_of(features)[0]
    if first.origin.variable is None:
        return []
    taken = first.columns if isinstance(first, WideSource) else (first.origin.variable,)
    return [v for v in list_variables(path) if v.name not in taken]


def _unread(features: RowSource) -> str:
    """Name what lies beside the features and could be their labels or ids."""
    rows = parts_of(features)[0].n_rows
    found = [v for v in _others(features) if v.kind != "other" and rows in v.shape]
    return listed(found) if found else ""


def _beside(
    features: RowSource, fits: Callable[[Variable], bool], purpose: Literal["labels", "ids"]
) -> str | None:
    """Return the variable beside the features that is named so, if there is just one."""
    path, found = features.files()[0], [v.name for v in _others(features) if fits(v)]
    if len(found) > 1 and PANDAS_INDEX in found:
        found.remove(PANDAS_INDEX)
    if len(found) > 1:
        raise InputError(
            f"{path}: {' and '.join(map(repr, found))} could both be the {purpose}",
            remedy=Remedy("Name one with {}", Argument(f"{purpose}_variable")),
        )
    return found[0] if found else None


def _continue_classes(labels: LabelSource, known: tuple[str, ...], *, given: bool) -> LabelSource:
    """Number the labels of further rows as the store does; new classes come behind its own."""
    if not known:
        raise LabelError(
            "the store has no class names, so the labels of further rows cannot be matched with "
            "its own. Number them yourself and call FeatureStore.append"
        )
    if labels.form == "matrix":
        if labels.width != len(known):
            raise LabelError(
                f"{labels.describe()}: has {labels.width} label columns, the store has "
                f"{len(known)}. Columns of a store are fixed: ingest all files anew"
            )
        return labels if given else labels.numbered(Classes(known))
    new = _new_classes(labels, Classes(known), given=given)
    if given and labels.class_names[: len(known)] != known:
        raise LabelError(
            f"names of classes begin with {', '.join(labels.class_names[:3])}, but those of the "
            f"store with {', '.join(known[:3])}. Give the classes of the store first, then new ones"
        )
    if new and labels.multi_label:
        raise LabelError(
            f"{labels.describe()}: {new[0]!r} is none of the {len(known)} labels of the store, "
            f"and its columns are fixed ({len(new)} such labels)",
            remedy=Remedy(
                "Ingest all files anew, with {} that leave room for labels to come",
                Argument("class_names"),
            ),
        )
    return labels.numbered(Classes((*known, *new)))


def _new_classes(labels: LabelSource, known: Classes, *, given: bool) -> tuple[str, ...]:
    """Return the classes that the store does not have; integers need not be spelled as in it."""
    if given or not labels.are_integers():
        return tuple(name for name in labels.class_names if name not in set(known.names))
    new = tuple(name for name in labels.class_names if not known.has_number(int(name)))
    if new and not any(number_in(name) is not None for name in known.names):
        raise LabelError(
            f"{labels.describe()}: the label {new[0]} is none of the {len(known.names)} classes of "
            "the store, whose names are no numbers: integers stand for its classes, from 0"
        )
    return new
