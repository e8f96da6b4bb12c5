"""`FeatureStore`: labelled feature vectors on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import FormatError, InputError
from sadih_dask.files.filesystem import connect
from sadih_dask.stores import columns as row_ids
from sadih_dask.stores.columns import (
    check_lengths,
    check_names,
    prepare_bytes,
    prepare_features,
    prepare_labels,
)
from sadih_dask.stores.commit import NewRows
from sadih_dask.stores.layout import DTYPES
from sadih_dask.stores.plan import Chunking, new_plan
from sadih_dask.stores.root import Column, Commit, Schema
from sadih_dask.stores.segment import BlockWriter, Rows
from sadih_dask.stores.store import CommittedGroup

Url = str | os.PathLike[str]
_FLOATS = frozenset(["float16", "float32", "float64"])
_BYTES = frozenset(["uint8"])
SCHEMA: Schema = {
    "features": Column(_FLOATS, frozenset([2])),
    "labels": Column(DTYPES - _FLOATS, frozenset([1, 2])),
    "ids": Column(frozenset(["int64", "uint8"]), frozenset([1, 2])),
    "thumbnails": Column(_BYTES, frozenset([3, 4])),
}
KIND = "sadih-features"
LEARNED_FROM = ("features", "labels")
"""Arrays that decide what is learned from a store."""


class FeatureWriter(BlockWriter):
    """A feature store that is being filled block by block; see `FeatureStore.allocate`."""

    kind: ClassVar[str] = KIND
    schema: ClassVar[Schema] = SCHEMA

    def write(
        self,
        start: int,
        features: npt.ArrayLike,
        labels: npt.ArrayLike | None = None,
        ids: npt.ArrayLike | None = None,
        thumbnails: npt.ArrayLike | None = None,
    ) -> None:
        """Write rows from `start` on: whole blocks, the last one up to the last row."""
        given = _given(features=features, labels=labels, ids=ids, thumbnails=thumbnails)
        self._write(start, _prepare(self._plan, self.url, given, start))

    def finalise(self) -> FeatureStore:
        """Commit the store once every block is written, and open it."""
        self._finalise()
        return FeatureStore.open(self.url, storage_options=self._files.options)


class FeatureStore(CommittedGroup):
    """Feature vectors, labels and what belongs to them, in a chunked store larger than memory.

    Arrays: `features` (n, d) of float16, float32 or float64; `labels`, (n,) integers or (n, c) rows
    of 0 and 1; and, if it was created with them, `ids` and `thumbnails`, (n, h, w) or (n, h, w, 3)
    of uint8.
    """

    kind: ClassVar[str] = KIND
    schema: ClassVar[Schema] = SCHEMA
    main_array: ClassVar[str] = "features"

    @classmethod
    def create(
        cls,
        url: Url,
        features: Any,
        labels: Any = None,
        *,
        ids: Any = None,
        thumbnails: Any = None,
        class_names: Sequence[str] | None = None,
        source: str = "",
        chunk_rows: int | None = None,
        shard_rows: int | None = None,
        compression: str | None = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FeatureStore:
        """Write arrays as a new store, block by block, and commit it.

        The arrays may be anything with `shape`, `dtype` and slices (NumPy, memory maps, HDF5 data
        sets). If the call is interrupted, the same call again keeps what is written already.
        """
        given = _given(features=features, labels=labels, ids=ids, thumbnails=thumbnails)
        n_rows = check_lengths(given)
        columns = {
            name: (str(array.dtype), tuple(array.shape[1:])) for name, array in given.items()
        }
        columns["features"] = (_feature_dtype(given["features"].dtype), columns["features"][1])
        properties = _properties(class_names, source)
        if "labels" in given:
            columns["labels"] = _label_column(given["labels"])
        if "ids" in given:
            declared = row_ids.fitting(np.asarray(given["ids"]))
            properties["ids"], stored, row_shape = row_ids.declared(declared)
            columns["ids"] = (stored, row_shape)
        files = connect(url, storage_options)
        chunking = Chunking(chunk_rows, shard_rows, compression)
        plan = new_plan(KIND, SCHEMA, files, columns, n_rows, chunking, properties)
        with FeatureWriter._begin(files, plan, overwrite) as writer:
            writer._fill(lambda i, j: _prepare(plan, files.url, _between(given, i, j), i))
        return cls.open(url, storage_options=storage_options)

    @classmethod
    def allocate(
        cls,
        url: Url,
        n_rows: int,
        n_features: int,
        *,
        dtype: str = "float32",
        label_dtype: str | None = "int64",
        n_labels: int | None = None,
        id_dtype: str | None = None,
        thumbnail_shape: tuple[int, ...] | None = None,
        class_names: Sequence[str] | None = None,
        source: str = "",
        chunk_rows: int | None = None,
        shard_rows: int | None = None,
        compression: str | None = None,
        properties: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FeatureWriter:
        """Begin a store of `n_rows` rows that many processes fill, or go on with one.

        `n_labels` makes the labels rows of 0 and 1; `label_dtype=None` leaves labels out.
        `id_dtype` is "int64", or "S" or "U" with a length in bytes. Send the writer to workers,
        let them `write` the blocks that are `missing`, then `finalise` here. `properties` are
        further attributes, which JSON can hold; they are part of the plan.
        """
        columns: dict[str, tuple[str, tuple[int, ...]]] = {"features": (dtype, (n_features,))}
        properties = {**(properties or {}), **_properties(class_names, source)}
        if n_labels is not None:
            columns["labels"] = ("uint8", (n_labels,))
        elif label_dtype is not None:
            columns["labels"] = (label_dtype, ())
        if id_dtype is not None:
            properties["ids"], stored, row_shape = row_ids.declared(id_dtype)
            columns["ids"] = (stored, row_shape)
        if thumbnail_shape is not None:
            columns["thumbnails"] = ("uint8", tuple(thumbnail_shape))
        files = connect(url, storage_options)
        chunking = Chunking(chunk_rows, shard_rows, compression)
        plan = new_plan(KIND, SCHEMA, files, columns, n_rows, chunking, properties)
        return FeatureWriter._begin(files, plan, overwrite)

    def append(
        self,
        features: Any,
        labels: Any = None,
        ids: Any = None,
        thumbnails: Any = None,
        *,
        at: int | None = None,
        class_names: Sequence[str] | None = None,
        properties: Mapping[str, Any] | None = None,
        resume_key: str | None = None,
        before_commit: Callable[[], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Add rows behind the last one, all or none of them, and look at the result from now on.

        `at` is the row count that the store is expected to have: a repeated call whose first run
        did commit is then refused with ConflictError and adds nothing twice. `class_names` may
        continue the list that the store has; `properties` are attributes to add or replace.

        `resume_key` stands for these very rows. If the call is killed, the same call with the same
        key keeps the blocks that are written, and returns the number of new rows in them.
        `before_commit` may raise to have nothing added; `progress` hears of rows written, and all.
        """
        given = _given(features=features, labels=labels, ids=ids, thumbnails=thumbnails)
        n_new = check_lengths(given)
        commit = self._snapshot.commit
        changed: dict[str, Any] = dict(properties or {})
        if class_names is not None:
            changed |= _properties(class_names, self.source)
            if changed["class_names"][: len(self.class_names)] != list(self.class_names):
                raise InputError("class_names must begin with those that the store has already")
        rows = NewRows(
            n_new,
            lambda i, j: _prepare(commit, self.url, _between(given, i, j), i),
            changed,
            resume_key,
            before_commit,
            progress,
        )
        return self._append(rows, at)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes, label 0 first, or nothing if none were given."""
        return tuple(self._snapshot.commit.properties["class_names"])

    @property
    def source(self) -> str:
        """Return where the data come from, in the words of whoever created the store."""
        return str(self._snapshot.commit.properties["source"])

    @property
    def n_features(self) -> int:
        """Return the number of features of a row."""
        return self.shape("features")[1]

    def _check_properties(self) -> None:
        found = self._snapshot.commit.properties
        names = found.get("class_names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FormatError(f"{self.url}: attribute 'class_names' is not a list of names")
        if not isinstance(found.get("source"), str):
            raise FormatError(f"{self.url}: attribute 'source' is not a text")
        if "features" not in self._snapshot.commit.layouts:
            raise FormatError(f"{self.url} has no array 'features'")


def _given(**arrays: Any) -> dict[str, Any]:
    """Return the arrays that are there, as something with a shape and a type."""
    return {
        name: array if hasattr(array, "shape") and hasattr(array, "dtype") else np.asarray(array)
        for name, array in arrays.items()
        if array is not None
    }


def _between(given: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {name: array[start:stop] for name, array in given.items()}


def _prepare(commit: Commit, url: str, given: Mapping[str, Any], first_row: int) -> Rows:
    """Return rows as they are stored, after every check that can be made of them."""
    layouts = commit.layouts
    arrays = {name: np.asarray(array) for name, array in given.items()}
    check_names(set(arrays), layouts, url)
    check_lengths(arrays)
    rows = {"features": prepare_features(arrays["features"], layouts["features"])}
    if "labels" in arrays:
        rows["labels"] = prepare_labels(arrays["labels"], layouts["labels"], first_row)
    if "ids" in arrays:
        encoding = commit.properties["ids"]
        rows["ids"] = row_ids.encode_ids(arrays["ids"], encoding, layouts["ids"], first_row)
    if "thumbnails" in arrays:
        rows["thumbnails"] = prepare_bytes(arrays["thumbnails"], layouts["thumbnails"])
    return rows


def _properties(class_names: Sequence[str] | None, source: str) -> dict[str, Any]:
    return {"class_names": [str(name) for name in class_names or ()], "source": str(source)}


def _feature_dtype(dtype: Any) -> str:
    """Return the stored type for features of this one; integers are kept as float32 if exact."""
    name = np.dtype(dtype).newbyteorder("=").name
    return "float32" if name in {"int8", "uint8", "int16", "uint16", "bool"} else name


def _label_column(labels: Any) -> tuple[str, tuple[int, ...]]:
    shape = tuple(int(length) for length in labels.shape[1:])
    return ("uint8", shape) if shape else (np.dtype(labels.dtype).newbyteorder("=").name, ())
