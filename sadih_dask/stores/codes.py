"""`CodeStore`: packed binary codes on disk, and which model they come from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import FormatError, InputError
from sadih_dask.files.filesystem import connect
from sadih_dask.stores import columns as row_ids
from sadih_dask.stores.columns import check_lengths, check_names, prepare_bytes
from sadih_dask.stores.commit import NewRows
from sadih_dask.stores.plan import Chunking, new_plan
from sadih_dask.stores.root import Column, Commit, Schema
from sadih_dask.stores.segment import BlockWriter, Rows
from sadih_dask.stores.store import CommittedGroup

Url = str | os.PathLike[str]
SCHEMA: Schema = {
    "codes": Column(frozenset(["uint8"]), frozenset([2])),
    "ids": Column(frozenset(["int64", "uint8"]), frozenset([1, 2])),
}
KIND = "sadih-codes"
MAX_BITS = 1 << 16
# Codes are small: in chunks of 4 MiB a block still is not more rows than one task can encode.
CODE_CHUNK_BYTES = 4 << 20


class CodeWriter(BlockWriter):
    """A code store that is being filled block by block; see `CodeStore.allocate`."""

    kind: ClassVar[str] = KIND
    schema: ClassVar[Schema] = SCHEMA

    def write(self, start: int, codes: npt.ArrayLike, ids: npt.ArrayLike | None = None) -> None:
        """Write packed codes from row `start` on: whole blocks, the last up to the last row."""
        self._write(start, _prepare(self._plan, self.url, codes, ids, start))

    def finalise(self) -> CodeStore:
        """Commit the store once every block is written, and open it."""
        self._finalise()
        return CodeStore.open(self.url, storage_options=self._files.options)


class CodeStore(CommittedGroup):
    """Packed codes: `codes` (n, ceil(n_bits / 8)) of uint8, and `ids` if there are any."""

    kind: ClassVar[str] = KIND
    schema: ClassVar[Schema] = SCHEMA
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
        source: str = "",
        chunk_rows: int | None = None,
        shard_rows: int | None = None,
        compression: str | None = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> CodeStore:
        """Write packed codes as a new store; the same call completes one that was interrupted."""
        packed = np.asarray(codes)
        known = None if ids is None else np.asarray(ids)
        with cls.allocate(
            url,
            len(packed),
            n_bits=n_bits,
            model=model,
            id_dtype=None if known is None else row_ids.fitting(known),
            source=source,
            chunk_rows=chunk_rows,
            shard_rows=shard_rows,
            compression=compression,
            overwrite=overwrite,
            storage_options=storage_options,
        ) as writer:
            rows = _prepare(writer._plan, writer.url, packed, known, 0)
            writer._fill(lambda i, j: {name: array[i:j] for name, array in rows.items()})
        return cls.open(url, storage_options=storage_options)

    @classmethod
    def allocate(
        cls,
        url: Url,
        n_rows: int,
        *,
        n_bits: int,
        model: str,
        id_dtype: str | None = None,
        source: str = "",
        chunk_rows: int | None = None,
        shard_rows: int | None = None,
        compression: str | None = None,
        properties: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> CodeWriter:
        """Begin a store of `n_rows` codes that many processes fill, or go on with one.

        `model` is the fingerprint of the model that the codes come from. `properties` are further
        attributes, which JSON can hold; they are part of the plan.
        """
        if not 1 <= n_bits <= MAX_BITS:
            raise InputError(f"n_bits must be between 1 and {MAX_BITS}, got {n_bits}")
        columns: dict[str, tuple[str, tuple[int, ...]]] = {"codes": ("uint8", (-(-n_bits // 8),))}
        own = {"n_bits": int(n_bits), "model": str(model), "source": source}
        properties = {**(properties or {}), **own}
        if id_dtype is not None:
            properties["ids"], stored, row_shape = row_ids.declared(id_dtype)
            columns["ids"] = (stored, row_shape)
        files = connect(url, storage_options)
        chunking = Chunking(chunk_rows, shard_rows, compression, CODE_CHUNK_BYTES)
        plan = new_plan(KIND, SCHEMA, files, columns, n_rows, chunking, properties)
        return CodeWriter._begin(files, plan, overwrite)

    def append(
        self,
        codes: npt.ArrayLike,
        ids: npt.ArrayLike | None = None,
        *,
        model: str,
        at: int | None = None,
    ) -> None:
        """Add codes behind the last one, all or none; they must come from the store's model."""
        if model != self.model:
            raise InputError(
                f"{self.url} holds codes of model {self.model!r}, got codes of {model!r}; codes of "
                "two models cannot be compared, so write a store of its own for each"
            )
        rows = _prepare(self._snapshot.commit, self.url, codes, ids, 0)
        n_new = check_lengths(dict(rows))
        self._append(
            NewRows(n_new, lambda i, j: {name: array[i:j] for name, array in rows.items()}), at
        )

    @property
    def n_bits(self) -> int:
        """Return the length of a code."""
        return int(self._snapshot.commit.properties["n_bits"])

    @property
    def model(self) -> str:
        """Return the fingerprint of the model that the codes come from."""
        return str(self._snapshot.commit.properties["model"])

    @property
    def source(self) -> str:
        """Return where the rows come from, in the words of whoever created the store."""
        return str(self._snapshot.commit.properties["source"])

    def _check_properties(self) -> None:
        found = self._snapshot.commit.properties
        n_bits = found.get("n_bits")
        layouts = self._snapshot.commit.layouts
        if type(n_bits) is not int or "codes" not in layouts:
            raise FormatError(f"{self.url}: attribute 'n_bits' or array 'codes' is missing")
        if layouts["codes"].row_shape != (-(-n_bits // 8),):
            shape = layouts["codes"].row_shape
            raise FormatError(f"{self.url}: codes of {n_bits} bits have rows of shape {shape}")


def _prepare(
    commit: Commit, url: str, codes: npt.ArrayLike, ids: npt.ArrayLike | None, first_row: int
) -> Rows:
    given = {"codes": np.asarray(codes)} | ({} if ids is None else {"ids": np.asarray(ids)})
    check_names(set(given), commit.layouts, url)
    check_lengths(given)
    rows = {"codes": prepare_bytes(given["codes"], commit.layouts["codes"])}
    if "ids" in given:
        encoding = commit.properties["ids"]
        rows["ids"] = row_ids.encode_ids(given["ids"], encoding, commit.layouts["ids"], first_row)
    return rows
