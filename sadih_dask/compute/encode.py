"""Codes of a whole store, written block by block into a code store.

Every task reads the rows of whole blocks of the new store, and writes those blocks; nothing passes
through the driver. Blocks that an interrupted run has written are not written again.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import dask.array as da
import numpy as np
from dask._task_spec import DataNode
from dask.highlevelgraph import HighLevelGraph

from sadih_dask.compute.rows import StoreRows, check_labelled, classes_of
from sadih_dask.compute.run import unique_name
from sadih_dask.compute.tree import fill
from sadih_dask.errors import (
    Argument,
    ConflictError,
    FormatError,
    IncompleteError,
    LabelError,
    Remedy,
)
from sadih_dask.files.redaction import redact
from sadih_dask.learning.classes import Renumbering, Vocabulary, renumbering
from sadih_dask.learning.encoders import HashFunction
from sadih_dask.learning.labels import LabelGroups, group_rows
from sadih_dask.learning.statistics import canonical_blocks, check_finite, check_numbers
from sadih_dask.retrieval.codes import n_bytes, pack
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.codes import CodeWriter
from sadih_dask.stores.coverage import Coverage
from sadih_dask.stores.root import short_hash
from sadih_dask.stores.segment import Digests
from sadih_dask.types import Array, BitOrder, Bytes, Ints

OVERWRITE = Argument("overwrite", True)


@dataclass(frozen=True, eq=False)
class HashRows:
    """Codes by the hash function, for any rows."""

    function: HashFunction
    bitorder: BitOrder = "little"
    array: Literal["features"] = "features"

    @property
    def n_bytes(self) -> int:
        """Bytes of a code."""
        return n_bytes(self.function.n_bits)

    def __call__(self, features: Array, first_row: int) -> Bytes:
        """Packed codes of a block."""
        check_numbers(features, first_row)
        check_finite(features, first_row)
        return pack(self.function.project(features), self.bitorder)


@dataclass(frozen=True, eq=False)
class LookUpLabels:
    """The learned codes of rows with known labels, which may number classes in their own way."""

    groups: LabelGroups
    label_codes: Bytes
    numbering: Renumbering | None = None
    array: Literal["labels"] = "labels"

    @classmethod
    def in_store(
        cls, groups: LabelGroups, label_codes: Bytes, classes: Vocabulary, store: FeatureStore
    ) -> LookUpLabels:
        """Codes of learned classes for the labels of a store, which meet by name."""
        check_labelled(store)
        own, columns = classes_of(store), store.shape("labels")[1:]
        numbering = None if own is None and columns else renumbering(classes, own)
        return cls(groups, label_codes, numbering)

    def __call__(self, labels: Array, first_row: int) -> Bytes:
        """Packed codes of a block."""
        columns = self.groups.n_classes if labels.ndim == 2 else None
        if self.numbering is not None:
            labels, columns = self.numbering(labels, first_row), None
        return self.of(*group_rows(labels, columns, first_row), first_row)

    def of(self, groups: LabelGroups, ids: Ints, first_row: int = 0) -> Bytes:
        """Packed codes of rows whose label groups are known."""
        n_classes = max(self.groups.n_classes, groups.n_classes)
        place = self.groups.widen(n_classes).find(groups.widen(n_classes))[ids]
        unknown = np.flatnonzero(place < 0)
        if len(unknown):
            raise LabelError(
                f"row {first_row + unknown[0]} has a label set that no learned row had "
                f"({len(unknown)} such rows); fit the model to rows with it first, or hash the "
                "features instead"
            )
        return self.label_codes[place]


def hash_lazily(features: da.Array, encoder: HashRows, block_rows: int) -> da.Array:
    """Codes of a Dask array, as one; every chunk of rows is hashed by itself.

    The hash function is a task of the graph like any other: the result can be computed on every
    scheduler, by another client or after a restart, any number of times.
    """
    whole = features.rechunk({1: -1})
    name, shared = unique_name("hash"), unique_name("encoder")
    layer: dict[Any, Any] = {shared: DataNode(shared, encoder)}
    for k, first in enumerate(accumulate(whole.chunks[0][:-1], initial=0)):
        row = 0 if math.isnan(first) else first  # where lengths are unknown, so are the rows
        layer[name, k, 0] = (_hash_chunk, (whole.name, k, 0), row, shared, block_rows)
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[whole])
    return da.Array(graph, name, (whole.chunks[0], (encoder.n_bytes,)), dtype=np.uint8)


def _hash_chunk(features: Array, first_row: int, encoder: HashRows, block_rows: int) -> Bytes:
    parts = [
        encoder(features[rows], first_row + rows.start)
        for rows in canonical_blocks(len(features), block_rows)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, encoder.n_bytes), np.uint8)


def write_codes(
    store: FeatureStore,
    encoder: HashRows | LookUpLabels,
    url: str | os.PathLike[str],
    *,
    n_bits: int,
    model: str,
    block_rows: int,
    bitorder: BitOrder = "little",
    overwrite: bool = False,
) -> tuple[CodeStore, int]:
    """Encode the rows of a store that codes of this model do not cover; return how many, too.

    Codes that are there stay as they are: new rows are encoded, those of deleted rows dropped, in
    one commit. The same call completes one that was interrupted.
    """
    coverage = Coverage.of(store, (encoder.array,), redact(store.url))
    protocol = "learned" if encoder.array == "labels" else "encoded"
    properties = {"protocol": protocol, "covers": coverage.to_json()}
    found = None if overwrite else _codes_of(url, model, protocol, bitorder)
    seen = None if found is None else coverage_of(found)
    change = None if seen is None else seen.difference(store)
    if found is not None and change is not None:
        if change.is_empty:
            return found, 0
        if not change.n_new:
            return found.revise(properties, change.deleted), 0
        key = short_hash([model, properties])
        writer = found.extend(
            change.n_new, model=model, properties=properties, drop=change.deleted, key=key
        )
    else:
        if found is not None and (seen is None or seen.store != store.uid):
            raise ConflictError(
                f"{found.url} holds codes of other rows than those of {store.url}",
                remedy=Remedy("Choose another path, or replace them with {}", OVERWRITE),
            )
        writer = CodeStore.allocate(
            url,
            store.n_rows,
            n_bits=n_bits,
            model=model,
            id_dtype=_id_dtype(store),
            bitorder=bitorder,
            source=redact(store.url),
            chunk_rows=_code_chunk_rows(store, block_rows),
            properties=properties,
            overwrite=overwrite or found is not None,
        )
    first = store.n_rows - writer.n_rows
    fill(writer, _encode_block, (store, first, encoder, block_rows))
    return writer.finalise(), writer.n_rows


def _codes_of(
    url: str | os.PathLike[str], model: str, protocol: str, bitorder: BitOrder
) -> CodeStore | None:
    """Return codes that are there, None if there are none; ConflictError if they are others."""
    try:
        found = CodeStore.open(url)
    except (FormatError, IncompleteError):
        return None
    kind = found.properties.get("protocol")
    if (found.model, kind, found.bitorder) != (model, protocol, bitorder):
        what = "of another model" if kind == protocol else f"that are {kind}, not {protocol}"
        if (found.model, kind) == (model, protocol):
            what = f"in {found.bitorder} bit order, not in {bitorder}"
        raise ConflictError(
            f"{found.url} holds codes {what}",
            remedy=Remedy("Choose another path, or replace them with {}", OVERWRITE),
        )
    return found


def coverage_of(codes: CodeStore) -> Coverage | None:
    """The rows that codes were made of, or None if they do not say."""
    try:
        return Coverage.from_json(codes.properties["covers"])
    except (KeyError, TypeError, ValueError):
        return None


def _encode_block(
    writer: CodeWriter, block: int, job: tuple[FeatureStore, int, HashRows | LookUpLabels, int]
) -> Digests:
    store, offset, encoder, block_rows = job
    start, stop = writer.rows_of(block)
    first, last = offset + start, offset + stop
    rows = StoreRows(store, 0, store.n_rows)
    parts = [
        encoder(values, row) for row, values in rows.blocks(encoder.array, first, last, block_rows)
    ]
    ids = store.read("ids", first, last) if "ids" in store.arrays else None
    return writer.write(start, np.concatenate(parts), ids)


def _id_dtype(store: FeatureStore) -> str | None:
    if "ids" not in store.arrays:
        return None
    dtype = store.dtype("ids")
    if dtype.kind == "i":
        return "int64"
    return f"{dtype.kind}{dtype.itemsize // (4 if dtype.kind == 'U' else 1)}"


def _code_chunk_rows(store: FeatureStore, block_rows: int) -> int:
    """Rows of a chunk of codes: whole blocks of the scan, and whole chunks of the features."""
    unit = max(block_rows, store.chunk_rows)
    return unit * max(1, 65_536 // unit)
