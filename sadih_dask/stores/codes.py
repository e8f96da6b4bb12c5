"""`CodeStore`: packed binary codes on disk, which model they come from, and labels to search by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, cast, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sadih_dask.errors import ConflictError, FormatError, InputError
from sadih_dask.files.filesystem import connect
from sadih_dask.retrieval.codes import check_bitorder, n_bytes
from sadih_dask.stores import columns as row_ids
from sadih_dask.stores import commit as commits
from sadih_dask.stores.columns import check_lengths, check_names, prepared
from sadih_dask.stores.features import longer, numbered
from sadih_dask.stores.reader import Snapshot
from sadih_dask.stores.root import Root, short_hash
from sadih_dask.stores.segment import Digests, Rows
from sadih_dask.stores.store import Columns, Store, StoreWriter, Url, filled, planned
from sadih_dask.types import BitOrder, Ints

MAX_BITS = 1 << 16
# Codes are small: in chunks of 4 MiB a block still is not more rows than one task can encode.
CODE_CHUNK_BYTES = 4 << 20


class CodeWriter(StoreWriter):
    """Codes that are being written block by block; see `CodeStore.allocate`."""

    def write(
        self,
        start: int,
        codes: npt.ArrayLike,
        ids: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
    ) -> Digests:
        """Write packed codes from row `start` on: whole blocks, the last up to the last row.

        Returns digests, which a worker hands back for `learn`.
        """
        return self._write(start, _prepare(self._plan.root, self.url, (codes, ids, labels), start))

    def finalise(self) -> CodeStore:
        """Commit the codes once every block is written, and open the store."""
        return CodeStore(Snapshot(self._files, self._finalise()))


class CodeStore(Store):
    """Packed codes: `codes` (n, ceil(n_bits / 8)) of uint8, and `ids` if there are any.

    Labels, if there are any, are there to `search` among some rows only: `labels` (n,), class
    numbers, or `label_bits` (n, ceil(c / 8)), rows of 0 and 1 over c classes in packed form.
    """

    kind: ClassVar[str] = "sadih-codes"
    main_array: ClassVar[str] = "codes"

    @classmethod
    def create(
        cls,
        url: Url,
        codes: npt.ArrayLike,
        *,
        n_bits: int,
        model: str,
        ids: npt.ArrayLike | None = None,
        labels: Any = None,
        class_names: Sequence[str] | None = None,
        bitorder: BitOrder = "little",
        source: str = "",
        chunk_rows: int | None = None,
        compression: str | None = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> CodeStore:
        """Write packed codes as a new store; the same call completes one that was interrupted.

        `bitorder` is how they are packed, which the store remembers. `labels` and `class_names` are
        as those of `FeatureStore.create`.
        """
        packed = np.asarray(codes)
        known = None if ids is None else np.asarray(ids)
        labels, class_names = numbered(str(url), labels, class_names)
        labels = labels if labels is None or sp.issparse(labels) else np.asarray(labels)
        begin = partial(
            cls.allocate,
            url,
            len(packed),
            n_bits=n_bits,
            model=model,
            id_dtype=None if known is None else row_ids.fitting(known),
            label_dtype=None if labels is None else labels.dtype.newbyteorder("=").name,
            n_labels=None if labels is None or labels.ndim == 1 else labels.shape[1],
            class_names=class_names,
            bitorder=bitorder,
            source=source,
            chunk_rows=chunk_rows,
            compression=compression,
            overwrite=overwrite,
            storage_options=storage_options,
        )

        def rows(root: Root, start: int, stop: int) -> Rows:
            some = [None if rows is None else rows[start:stop] for rows in (known, labels)]
            return _prepare(root, str(url), (packed[start:stop], *some), start)

        return filled(begin, rows, overwrite).finalise()

    @classmethod
    def allocate(
        cls,
        url: Url,
        n_rows: int,
        *,
        n_bits: int,
        model: str,
        id_dtype: str | None = None,
        label_dtype: str | None = None,
        n_labels: int | None = None,
        class_names: Sequence[str] | None = None,
        bitorder: BitOrder = "little",
        source: str = "",
        chunk_rows: int | None = None,
        compression: str | None = None,
        properties: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> CodeWriter:
        """Begin a store of `n_rows` codes that many processes fill, or go on with one.

        `model` is the fingerprint of the model that the codes come from, `bitorder` how they are
        packed. Labels are left out, or are of `label_dtype`, or rows of 0 and 1 over `n_labels`
        classes. `properties` are further attributes, which JSON can hold.
        """
        check_bitorder(bitorder)
        if not 1 <= n_bits <= MAX_BITS:
            raise InputError(f"n_bits must be between 1 and {MAX_BITS}, got {n_bits}")
        arrays: Columns = {"codes": ("uint8", (n_bytes(n_bits),))}
        own = {"n_bits": int(n_bits), "model": str(model), "source": source, "bitorder": bitorder}
        properties = {**(properties or {}), **own}
        if n_labels is not None:
            arrays["label_bits"] = ("uint8", (n_bytes(n_labels),))
            properties["n_labels"] = n_labels
        elif label_dtype is not None:
            arrays["labels"] = (label_dtype, ())
        if class_names:
            properties["class_names"] = [str(name) for name in class_names]
        if id_dtype is not None:
            properties["ids"], stored, row_shape = row_ids.declared(id_dtype)
            arrays["ids"] = (stored, row_shape)
        files = connect(url, storage_options, follow_links=False)
        root = planned(
            cls.kind, files, arrays, properties, chunk_rows, compression, CODE_CHUNK_BYTES
        )
        key = short_hash([arrays, n_rows, root.chunk_rows, root.compression, properties])
        mode: commits.Mode = "overwrite" if overwrite else "create"
        return CodeWriter._begin(files, root, n_rows, mode, key)

    def extend(
        self,
        n_new: int,
        *,
        model: str,
        class_names: Sequence[str] | None = None,
        properties: Mapping[str, Any] | None = None,
        drop: Ints | None = None,
        key: str | None = None,
    ) -> CodeWriter:
        """Begin to add codes behind the last one, all or none; they must be of the store's model.

        `class_names` may continue the list that the store has; `properties` replace others. `drop`
        are rows that go in the same commit; then the store must still be in this state.
        """
        if model != self.model:
            raise InputError(
                f"{self.url} holds codes of model {self.model!r}, got codes of {model!r}; codes of "
                "two models cannot be compared, so write a store of its own for each"
            )
        files, absorb = self._snapshot.files, drop is None or not len(drop)
        amend = self._revision(properties or {}, drop, class_names)
        return CodeWriter._begin(files, self._root, n_new, "append", key, amend, absorb=absorb)

    def revise(self, properties: Mapping[str, Any], drop: Ints) -> CodeStore:
        """Drop rows and change properties, in one commit; return the result."""
        amend = self._revision(properties, drop)
        files = self._snapshot.files
        root = commits.update(files, self.kind, lambda root: root.committed(**amend(root)))
        return CodeStore(Snapshot(files, root))

    def _revision(
        self,
        properties: Mapping[str, Any],
        drop: Ints | None,
        class_names: Sequence[str] | None = None,
    ) -> commits.Amend:
        def amend(root: Root) -> dict[str, Any]:
            if root.properties["model"] != self.model:
                raise ConflictError(
                    f"{self.url} has been overwritten by codes of model "
                    f"{root.properties['model']!r}, these are of {self.model!r}; nothing was added"
                )
            merged = {**root.properties, **properties}
            if class_names:
                there = root.properties.get("class_names", [])
                merged["class_names"] = longer(self.url, there, list(class_names))
            changes: dict[str, Any] = {"properties": merged}
            if drop is None or not len(drop):
                return changes
            if root.commit != self.commit:
                raise ConflictError(
                    f"{self.url} has been written by somebody else in the meantime (commit "
                    f"{root.generation}); nothing was changed. Repeat the call"
                )
            state = Snapshot(self._snapshot.files, root)
            return changes | {"segments": commits.segments_without(state, drop)}

        return amend

    def append(
        self,
        codes: npt.ArrayLike,
        ids: npt.ArrayLike | None = None,
        labels: Any = None,
        *,
        model: str,
    ) -> None:
        """Add codes behind the last one, all or none; they must come from the store's model."""
        labels, names = numbered(self.url, labels, None, self)
        rows = _prepare(self._root, self.url, (codes, ids, labels), 0)
        writer = self.extend(check_lengths(dict(rows)), model=model, class_names=names)
        with writer.all_or_nothing():
            writer._fill(lambda _, i, j: {name: array[i:j] for name, array in rows.items()})
            self._snapshot = Snapshot(self._snapshot.files, writer._finalise())

    @property
    def n_bits(self) -> int:
        """Return the length of a code."""
        return int(self._root.properties["n_bits"])

    @property
    def model(self) -> str:
        """Return the fingerprint of the model that the codes come from."""
        return str(self._root.properties["model"])

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes, label 0 first, or nothing if there are none."""
        return tuple(self._root.properties.get("class_names", ()))

    @property
    def labelled(self) -> bool:
        """Return whether it has labels, of either form."""
        return not {"labels", "label_bits"}.isdisjoint(self.arrays)

    @property
    def bitorder(self) -> BitOrder:
        """Return how bits are packed into bytes: "little", or "big" as NumPy does by default."""
        return cast("BitOrder", self._root.properties.get("bitorder", "little"))

    def _check_properties(self) -> None:
        found = self._root.properties
        if self.bitorder not in get_args(BitOrder):
            raise FormatError(f"{self.url}: attribute 'bitorder' is {str(self.bitorder)[:40]!r}")
        n_bits = found.get("n_bits")
        arrays = self._root.arrays
        if type(n_bits) is not int or "codes" not in arrays:
            raise FormatError(f"{self.url}: attribute 'n_bits' or array 'codes' is missing")
        names, n_labels = found.get("class_names", []), found.get("n_labels", 0)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FormatError(f"{self.url}: attribute 'class_names' is not a list of names")
        for name, bits in (("codes", n_bits), ("label_bits", n_labels)):
            shape = arrays[name][1] if name in arrays else ()
            if name in arrays and (type(bits) is not int or shape != (n_bytes(bits),)):
                raise FormatError(f"{self.url}: {name} of {bits} bits have rows of shape {shape}")


def _prepare(root: Root, url: str, columns: Sequence[Any], first_row: int) -> Rows:
    """Return codes, ids and labels as they are stored, after every check."""
    form = "label_bits" if "label_bits" in root.arrays else "labels"
    given: dict[str, Any] = dict(zip(("codes", "ids", form), columns, strict=True))
    if sp.issparse(given[form]):
        given[form] = given[form].toarray()
    given = {name: rows for name, rows in given.items() if rows is not None}
    check_names(set(given), root.arrays, url)
    return prepared(root, given, first_row)
