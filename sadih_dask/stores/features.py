"""`FeatureStore`: labelled feature vectors on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sadih_dask.errors import (
    Argument,
    ConflictError,
    FormatError,
    InputError,
    LabelError,
    Remedy,
)
from sadih_dask.files.filesystem import Files, connect, local_path
from sadih_dask.learning.classes import Targets, Vocabulary
from sadih_dask.stores import columns as row_ids
from sadih_dask.stores import commit as commits
from sadih_dask.stores.columns import check_lengths, check_names, prepared
from sadih_dask.stores.foreign import check_location, chunk_rows_for, open_array
from sadih_dask.stores.reader import Snapshot
from sadih_dask.stores.root import Root, short_hash
from sadih_dask.stores.segment import Digests, Rows
from sadih_dask.stores.store import Columns, Store, StoreWriter, Url, filled, planned
from sadih_dask.types import Ints

SourcesRecord = Callable[[bytes | None], bytes]
"""From the record of source files that a store has to the one with those of new rows."""
CLASS_NAMES = Argument("class_names")


class FeatureWriter(StoreWriter):
    """Rows that are being written block by block; see `FeatureStore.allocate`."""

    def write(
        self,
        start: int,
        features: npt.ArrayLike,
        labels: npt.ArrayLike | None = None,
        ids: npt.ArrayLike | None = None,
        thumbnails: npt.ArrayLike | None = None,
    ) -> Digests:
        """Write rows from `start` on: whole blocks, the last one up to the last row.

        Returns digests, which a worker hands back for `learn`.
        """
        given = _given(features=features, labels=labels, ids=ids, thumbnails=thumbnails)
        return self._write(start, _prepare(self._plan.root, self.url, given, start))

    def write_arrays(self, start: int, arrays: Mapping[str, npt.NDArray[Any]]) -> Digests:
        """Write some arrays of whole blocks, as `write` does; others write the rest of them."""
        return self._write(start, prepared(self._plan.root, arrays, start))

    def finalise(self) -> FeatureStore:
        """Commit the rows once every block is written, and open the store."""
        root = self._finalise()
        return FeatureStore(Snapshot(self._files, root))


class FeatureStore(Store):
    """Feature vectors, labels and what belongs to them, in a chunked store larger than memory.

    Arrays: `features` (n, d) of float16, float32 or float64; `labels`, (n,) integers or (n, c) rows
    of 0 and 1; and, if it was created with them, `ids` and `thumbnails`, (n, h, w) or (n, h, w, 3)
    of uint8.
    """

    kind: ClassVar[str] = "sadih-features"
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
        compression: str | None = None,
        foreign: str | None = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FeatureStore:
        """Write arrays as a new store, block by block, and commit it.

        The arrays may be anything with `shape`, `dtype` and slices (NumPy, memory maps, HDF5 data
        sets). Labels are class numbers, class names, truth values, lists of tags, or rows of 0 and
        1; names are numbered as in `class_names`, by default in ascending order. If the call is
        interrupted, the same call again keeps what is written already.
        """
        labels, class_names = numbered(str(url), labels, class_names)
        given = _given(features=features, labels=labels, ids=ids, thumbnails=thumbnails)
        n_rows = check_lengths(given)
        shapes = {name: tuple(map(int, array.shape[1:])) for name, array in given.items()}
        if len(shapes["features"]) != 1:
            raise InputError(
                f"features of shape {given['features'].shape} cannot be stored; expected 2 "
                "dimensions, rows and features"
            )
        many = "labels" in given and bool(shapes["labels"])
        begin = partial(
            cls.allocate,
            url,
            n_rows,
            shapes["features"][0],
            dtype=_feature_dtype(given["features"].dtype),
            label_dtype=given["labels"].dtype.newbyteorder("=").name if "labels" in given else None,
            n_labels=shapes["labels"][0] if many else None,
            id_dtype=row_ids.fitting(np.asarray(given["ids"])) if "ids" in given else None,
            thumbnail_shape=shapes.get("thumbnails"),
            class_names=class_names,
            source=source,
            chunk_rows=chunk_rows,
            compression=compression,
            foreign=foreign,
            overwrite=overwrite,
            storage_options=storage_options,
        )

        def rows(root: Root, start: int, stop: int) -> Rows:
            return _prepare(root, str(url), _between(given, start, stop), start)

        return filled(begin, rows, overwrite).finalise()

    @classmethod
    def adopt(cls, url: Url, array: Url, labels: Any = None, **options: Any) -> FeatureStore:
        """Make a store of a Zarr array (v2 or v3, a path or an object store) that stays in place.

        It is read once, for a digest of each chunk; labels, ids and whatever else there is are
        written beside these, `options` are those of `create`. What changes in the array afterwards
        is found when it is read, chunk by chunk. Nothing of it is ever written or deleted.
        """
        path = local_path(array)
        location = str(array) if path is None else str(path.absolute())
        try:
            check_location(location)
        except ValueError as error:
            raise InputError(str(error)) from error
        chunk_rows_for(location)
        return cls.create(url, open_array(location), labels, foreign=location, **options)

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
        compression: str | None = None,
        properties: Mapping[str, Any] | None = None,
        sources: bytes | None = None,
        key: str | None = None,
        foreign: str | None = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FeatureWriter:
        """Begin a store of `n_rows` rows that many processes fill, or go on with one.

        `n_labels` makes the labels rows of 0 and 1; `label_dtype=None` leaves labels out.
        `id_dtype` is "int64", or "S" or "U" with a length in bytes. Send the writer to workers,
        let them `write` the blocks that are `missing`, then `finalise` here. `properties` are
        further attributes, which JSON can hold. `sources` is a record of where the rows come from.
        `key` stands for these very rows: only a call with the same one goes on with what is there.
        `foreign` is the Zarr array that has the features, and keeps them; see `adopt`.
        """
        if foreign is not None:
            chunk_rows = chunk_rows_for(foreign)
        arrays: Columns = {"features": (dtype, (n_features,))}
        properties = {**(properties or {}), **_properties(class_names, source)}
        if n_labels is not None:
            arrays["labels"] = ("uint8", (n_labels,))
        elif label_dtype is not None:
            arrays["labels"] = (label_dtype, ())
        if id_dtype is not None:
            properties["ids"], stored, row_shape = row_ids.declared(id_dtype)
            arrays["ids"] = (stored, row_shape)
        if thumbnail_shape is not None:
            arrays["thumbnails"] = ("uint8", tuple(thumbnail_shape))
        files = connect(url, storage_options, follow_links=False)
        root = planned(cls.kind, files, arrays, properties, chunk_rows, compression)
        form = [arrays, n_rows, root.chunk_rows, root.compression, properties, foreign]
        amend = None if sources is None else _with_sources(files, lambda _: sources)
        mode: commits.Mode = "overwrite" if overwrite else "create"
        key = key or short_hash(form)
        return FeatureWriter._begin(files, root, n_rows, mode, key, amend, foreign=foreign)

    def extend(
        self,
        n_new: int,
        *,
        at: int | None = None,
        class_names: Sequence[str] | None = None,
        properties: Mapping[str, Any] | None = None,
        sources: SourcesRecord | None = None,
        admit: Callable[[FeatureStore], None] | None = None,
        key: str | None = None,
    ) -> FeatureWriter:
        """Begin to add `n_new` rows behind the last one, all or none of them.

        `at` is the row count that the store is expected to have: a repeated call whose first run
        did commit is then refused with ConflictError and adds nothing twice. `class_names` may
        continue the list that the store has; `properties` are attributes to add or replace;
        `sources` continues the record of source files. `admit` is called with the state that the
        rows are to be added to, now and at the commit, and may refuse it.

        `key` stands for these very rows. If the call is killed, the same call with the same key
        keeps the blocks that are written.
        """
        files = self._snapshot.files
        changed: dict[str, Any] = dict(properties or {})
        names = None if class_names is None else [str(name) for name in class_names]

        def check(root: Root) -> dict[str, Any]:
            if at is not None and at != root.n_rows:
                raise ConflictError(
                    f"{self.url} has {root.n_rows} rows, but rows were to be appended at row {at}: "
                    "they are there already, or somebody else has appended"
                )
            if admit is not None:
                admit(FeatureStore(Snapshot(files, root)))
            merged = {**root.properties, **changed}
            if names is not None:
                merged["class_names"] = longer(self.url, root.properties["class_names"], names)
            return {"properties": merged}

        def amend(root: Root) -> dict[str, Any]:
            named = {} if sources is None else _with_sources(files, sources)(root)
            return {**check(root), **named}

        root = self.refresh()._root
        check(root)
        return FeatureWriter._begin(files, root, n_new, "append", key, amend)

    def append(
        self,
        features: Any,
        labels: Any = None,
        ids: Any = None,
        thumbnails: Any = None,
        *,
        at: int | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        """Add rows behind the last one, all or none of them, and look at the result from now on.

        `at` and `class_names` are as in `extend`. Labels may be names or tags, as in `create`; of
        one class a row, names that are new continue the list of the store.
        """
        labels, class_names = numbered(self.url, labels, class_names, self)
        given = _given(features=features, labels=labels, ids=ids, thumbnails=thumbnails)
        n_new = check_lengths(given)
        if not n_new and class_names is None:
            return
        _prepare(self._root, self.url, _between(given, 0, min(n_new, 1)), 0)  # the form, first
        writer = self.extend(n_new, at=at, class_names=class_names)
        with writer.all_or_nothing():
            writer._fill(lambda root, i, j: _prepare(root, self.url, _between(given, i, j), i))
            self._snapshot = Snapshot(self._snapshot.files, writer._finalise())

    def delete(self, ids: Any) -> int:
        """Delete the rows with these ids and look at the result from now on; return how many.

        The rows stay on disk until the store is compacted. What was learned from them goes at the
        next `fit`, their codes at the next `encode`. An id that the store has not is an error, and
        nothing is deleted.
        """
        root, n_rows = commits.delete_rows(
            self._snapshot.files, self.kind, lambda state: find_ids(FeatureStore(state), ids)
        )
        self._snapshot = Snapshot(self._snapshot.files, root)
        return n_rows

    def sources_record(self) -> bytes | None:
        """Return the record of the files that the rows came from, if there is one."""
        return commits.read_sources(self._snapshot.files, self._root)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes, label 0 first, or nothing if none were given."""
        return tuple(self._root.properties["class_names"])

    @property
    def learned_from(self) -> tuple[str, ...]:
        """The arrays that a model learns from."""
        return tuple(name for name in ("features", "labels") if name in self.arrays)

    @property
    def n_features(self) -> int:
        """Return the number of features of a row."""
        return self.shape("features")[1]

    def _check_properties(self) -> None:
        found = self._root.properties
        names = found.get("class_names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FormatError(f"{self.url}: attribute 'class_names' is not a list of names")
        if not isinstance(found.get("source"), str):
            raise FormatError(f"{self.url}: attribute 'source' is not a text")
        if "features" not in self._root.arrays:
            raise FormatError(f"{self.url} has no array 'features'")


def numbered(
    url: str, labels: Any, class_names: Sequence[str] | None, store: Any = None
) -> tuple[Any, Sequence[str] | None]:
    """Return labels that are names, truth values or tags in numbers, and the names of these.

    Numbers are those of `class_names`, or continue those of the store, of features or codes.
    """
    if labels is None or getattr(getattr(labels, "dtype", None), "kind", "O") in "iuf":
        return labels, class_names
    found = Targets.of(labels)
    if found.vocabulary is None or found.vocabulary.values.dtype.kind in "iuf":
        return np.asarray(labels), class_names  # a matrix, or numbers in a list
    names = class_names or (() if store is None else store.class_names)
    if store is not None and "labels" in store.arrays and not names:
        raise LabelError(
            f"{url} has class numbers without names, and new labels are like "
            f"{found.vocabulary.values[0]!r}; give the numbers of the classes"
        )
    known = Vocabulary(np.array(names, str))
    new = found.vocabulary.take(np.flatnonzero(known.find(found.vocabulary) < 0)).names
    if new and (class_names is not None or (found.multi_label and store is not None)):
        raise LabelError(
            f"{url}: the label {new[0]!r} is none of the {len(names)} classes ({len(new)} such "
            "labels)",
            remedy=Remedy("Add it to {}, in a store of its own if rows are 0 and 1", CLASS_NAMES),
        )
    known = Vocabulary(np.array([*names, *new], str))
    return found.within(known), known.names


def _given(**arrays: Any) -> dict[str, Any]:
    """Return the arrays that are there, as something with a shape and a type."""
    return {
        name: array if hasattr(array, "shape") and hasattr(array, "dtype") else np.asarray(array)
        for name, array in arrays.items()
        if array is not None
    }


def _between(given: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
    parts = {name: array[start:stop] for name, array in given.items()}
    if sp.issparse(parts.get("labels")):
        parts["labels"] = parts["labels"].toarray()
    return parts


def _prepare(root: Root, url: str, given: Mapping[str, Any], first_row: int) -> Rows:
    check_names(set(given), root.arrays, url)
    return prepared(root, given, first_row)


def _properties(class_names: Sequence[str] | None, source: str) -> dict[str, Any]:
    return {"class_names": [str(name) for name in class_names or ()], "source": str(source)}


def _feature_dtype(dtype: Any) -> str:
    """Return the stored type for features of this one; integers are kept as float32 if exact."""
    name = np.dtype(dtype).newbyteorder("=").name
    return "float32" if name in {"int8", "uint8", "int16", "uint16", "bool"} else name


def longer(url: str, there: list[str], given: list[str]) -> list[str]:
    """Return the names of both, where one list continues the other."""
    shorter = min(len(there), len(given))
    if there[:shorter] != given[:shorter]:
        raise ConflictError(
            f"{url} numbers its classes {', '.join(there[:3])} ..., new rows were numbered by "
            f"{', '.join(given[:3])} ...: class_names must begin with those that the store has. "
            "Somebody else may have added classes; number the rows anew"
        )
    return max(there, given, key=len)


def _with_sources(files: Files, record: SourcesRecord) -> commits.Amend:
    def amend(root: Root) -> dict[str, Any]:
        data = record(commits.read_sources(files, root))
        return {"sources": commits.write_sources(files, data)}

    return amend


def find_ids(store: FeatureStore, ids: Any) -> Ints:
    """Rows of the given ids, ascending; the ids are read chunk by chunk."""
    if "ids" not in store.arrays:
        raise InputError(f"{store.url} has no ids; ingest it with ids to name rows by them")
    wanted = np.asarray(ids)
    kind = store.dtype("ids").kind
    if wanted.dtype.kind in "SUT" and wanted.dtype.kind != kind:  # as lines of a file are
        try:
            wanted = np.array(wanted.tolist(), np.int64 if kind == "i" else kind)
        except ValueError as error:
            form = "integers" if kind == "i" else "bytes"
            raise InputError(f"the ids of {store.url} are {form}; {error}") from error
    missing = wanted = np.unique(wanted)
    rows = [np.zeros(0, np.int64)]
    for first, held in store.blocks("ids"):
        here = np.isin(held, wanted)
        rows.append(first + np.flatnonzero(here))
        missing = np.setdiff1d(missing, held[here])
    if len(missing):
        raise InputError(
            f"{store.url} has no row with id {missing.tolist()[0]!r} ({len(missing)} such ids); "
            "nothing was changed. Rows that were held out are in the store of queries"
        )
    return np.concatenate(rows)
