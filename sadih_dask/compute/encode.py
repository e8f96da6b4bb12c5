"""Codes of a whole store, written block by block into a code store.

Every task reads the rows of whole blocks of the new store, and writes those blocks; nothing passes
through the driver. Blocks that an interrupted run has written are not written again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import dask.array as da
import numpy as np
from dask._task_spec import DataNode
from dask.highlevelgraph import HighLevelGraph

from sadih_dask.compute.rows import Renumbering, StoreRows, numbering_of_store
from sadih_dask.compute.run import Progress, unique_name
from sadih_dask.compute.tree import fill
from sadih_dask.errors import LabelError
from sadih_dask.files.redaction import redact
from sadih_dask.learning.encoders import HashFunction
from sadih_dask.learning.labels import LabelGroups, group_rows
from sadih_dask.learning.statistics import canonical_blocks, check_finite, check_numbers
from sadih_dask.retrieval.codes import n_bytes, pack
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.codes import CodeWriter
from sadih_dask.types import Array, Bytes, Ints


@dataclass(frozen=True, eq=False)
class HashRows:
    """Codes by the hash function, for any rows."""

    function: HashFunction
    array: Literal["features"] = "features"

    @property
    def n_bytes(self) -> int:
        """Bytes of a code."""
        return n_bytes(self.function.n_bits)

    def __call__(self, features: Array, first_row: int) -> Bytes:
        """Packed codes of a block."""
        check_numbers(features, first_row)
        check_finite(features, first_row)
        return pack(self.function.project(features))


@dataclass(frozen=True, eq=False)
class LookUpLabels:
    """The learned codes of rows with known labels, which may number classes in their own way."""

    groups: LabelGroups
    label_codes: Bytes
    numbering: Renumbering | None = None
    array: Literal["labels"] = "labels"

    @classmethod
    def in_store(
        cls,
        groups: LabelGroups,
        label_codes: Bytes,
        classes: Array,
        names: Sequence[str],
        store: FeatureStore,
    ) -> LookUpLabels:
        """Codes of learned classes for the labels of a store; see `numbering_of_store`."""
        if classes.dtype.kind not in "SU":
            groups = groups.relabel(classes.astype(np.int64), int(classes.max()) + 1)
        return cls(groups, label_codes, numbering_of_store(store, classes, names))

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
    overwrite: bool = False,
    progress: Progress | None = None,
) -> CodeStore:
    """Encode every row of a store; the same call completes one that was interrupted."""
    with CodeStore.allocate(
        url,
        store.n_rows,
        n_bits=n_bits,
        model=model,
        id_dtype=_id_dtype(store),
        source=redact(store.url),
        chunk_rows=_code_chunk_rows(store, block_rows),
        properties=code_properties(store, encoder.array),
        overwrite=overwrite,
    ) as writer:
        fill(writer, _encode_block, (store, encoder, block_rows), progress)
        return writer.finalise()


def code_properties(store: FeatureStore, array: Literal["features", "labels"]) -> dict[str, str]:
    """What a code store remembers, so that codes of other rows or of another kind do not mix."""
    kind = "learned" if array == "labels" else "encoded"
    return {"protocol": kind, "rows": store.fingerprint(arrays=[array])}


def _encode_block(
    writer: CodeWriter,
    block: int,
    job: tuple[FeatureStore, HashRows | LookUpLabels, int],
) -> None:
    store, encoder, block_rows = job
    start, stop = writer.rows_of(block)
    rows = StoreRows(store, 0, store.n_rows)
    parts = [
        encoder(values, row) for row, values in rows.blocks(encoder.array, start, stop, block_rows)
    ]
    ids = store.read("ids", start, stop) if "ids" in store.arrays else None
    writer.write(start, np.concatenate(parts), ids)


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
