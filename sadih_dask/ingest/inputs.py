"""The files of one data set, opened and checked against each other before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sadih_dask.errors import Argument, InputError, LabelError, Remedy
from sadih_dask.sources import (
    LabelSource,
    RowSource,
    list_variables,
    open_features,
    open_ids,
    open_labels,
    open_thumbnails,
)
from sadih_dask.sources.classes import Classes, number_in
from sadih_dask.sources.contract import DEFAULT_MEMORY_LIMIT
from sadih_dask.sources.features import JoinedRows, Paths, View, expand
from sadih_dask.sources.formats import is_named_for

Unlabelled = Literal["error", "drop"]
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
    features_variable, labels_variable  where a file holds several; without `labels` they are
                                        looked for in the files of the features
    transpose, scale                    of the features, as in `open_features`
    class_names, separator              of the labels, as in `open_labels`
    known_classes                       of another store, whose numbers classes are to have here
                                        too; new ones come behind
    labelled                            whether there must be labels
    unlabelled                          what to do about multi-hot rows and lists without a label
    memory_limit                        bytes that a format which cannot be streamed may load
    hold_out                            takes one part of the rows, queries or what stays, only
    """

    features: Paths
    labels: Paths | None = None
    ids: Paths | None = None
    thumbnails: Paths | None = None
    features_variable: str | None = None
    labels_variable: str | None = None
    transpose: bool = False
    scale: str | float | None = None
    class_names: Sequence[str] | None = None
    known_classes: Sequence[str] | None = None
    separator: str | None = None
    unlabelled: Unlabelled = "error"
    labelled: bool = False
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    hold_out: HoldOut | None = None

    @property
    def reading_options(self) -> str:
        """Return what decides the rows beside the files themselves."""
        reading = (self.transpose, self.scale, self.separator, self.unlabelled)
        return repr((*reading, self.features_variable, self.labels_variable, self.hold_out))

    def expanded(self) -> DataFiles:
        """Return the same with every glob replaced by the files that it matches now."""
        given = {name: getattr(self, name) for name in ("features", *BESIDE)}
        return self.of({name: expand(paths) for name, paths in given.items() if paths is not None})

    def names(self, what: str) -> tuple[str, ...]:
        """Return the files of one kind, such as "labels"; globs must be expanded already."""
        given: Sequence[str] | None = getattr(self, what)
        return () if given is None else tuple(given)

    def of(self, named: Mapping[str, tuple[str, ...]]) -> DataFiles:
        """Return the same with other files, by what they hold."""
        beside = {name: named.get(name) for name in BESIDE}
        return replace(self, features=named["features"], **beside)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Inputs:
    """Sources with one row count."""

    features: RowSource
    labels: LabelSource | None
    ids: RowSource | None
    thumbnails: RowSource | None

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

    def describe(self) -> str:
        """Say in one line where the rows come from."""
        return "; ".join(f"{name}: {source.describe()}" for name, source in self.sources.items())


def open_inputs(files: DataFiles, known: Sequence[str] | None = None) -> Inputs:
    """Open everything; labels are read once, to find the classes and to check every row.

    `known` are the classes of a store that the rows are to be added to.
    """
    if files.unlabelled not in ("error", "drop"):
        raise InputError(f"unlabelled must be 'error' or 'drop', got {files.unlabelled!r}")
    features = open_features(
        files.features,
        files.features_variable,
        transpose=files.transpose,
        scale=files.scale,
        memory_limit=files.memory_limit,
    )
    n_rows = features.n_rows
    # The short files first: a wrong row count should not wait for the pass over the labels.
    ids = None if files.ids is None else open_ids(files.ids, n_rows=n_rows)
    thumbnails = None
    if files.thumbnails is not None:
        thumbnails = open_thumbnails(files.thumbnails, n_rows=n_rows)
    labels = _open_labels(files, features)
    if labels is None and files.labelled:
        raise LabelError(
            f"{features.describe()}: there are no labels, and no variable of the files is named "
            "like them. Name their files (source.labels) or their variable (source.labels_variable)"
        )
    if labels is not None and files.labels is None:
        _check_shards(features, labels)
    if labels is not None and known is not None:
        labels = _continue_classes(labels, tuple(known), given=files.class_names is not None)
    return Inputs(features, labels, ids, thumbnails)


def parts_of(source: RowSource) -> tuple[RowSource, ...]:
    """Return the files of a source, one source each."""
    while isinstance(source, View):
        source = source.inner
    return source.parts if isinstance(source, JoinedRows) else (source,)


def _check_shards(features: RowSource, labels: LabelSource) -> None:
    """Labels that lie beside the features must be as many in every file, not only in all."""
    for mine, theirs in zip(parts_of(features), parts_of(labels), strict=True):
        if mine.n_rows != theirs.n_rows:
            raise LabelError(
                f"{theirs.origin}: has labels for {theirs.n_rows:,} rows, but {mine.origin} has "
                f"{mine.n_rows:,}. Write the file again."
            )


def _open_labels(files: DataFiles, features: RowSource) -> LabelSource | None:
    variable = files.labels_variable
    if files.labels is None and variable is None:
        variable = _label_variable(features)
        if variable is None:
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
        n_rows=features.n_rows,
        separator=files.separator,
        allow_unlabelled=files.unlabelled == "drop",
        memory_limit=files.memory_limit,
    )


def _label_variable(features: RowSource) -> str | None:
    """Return the variable beside the features that is named like labels, if there is just one."""
    path = features.files()[0]
    taken = parts_of(features)[0].origin.variable
    variables = list_variables(path)
    if taken is None or len(variables) < 2:
        return None
    found = [v.name for v in variables if v.name != taken and is_named_for(v, "labels")]
    if len(found) > 1:
        raise InputError(
            f"{path}: {' and '.join(map(repr, found))} could both be the labels",
            remedy=Remedy("Name one with {}", Argument("labels_variable")),
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
