"""Codes of a whole store, written block by block into a code store.

Every task reads the rows of whole blocks of the new store, and writes those blocks; nothing passes
through the driver. Blocks that an interrupted run has written are not written again.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, Protocol

import dask.array as da
import numpy as np
from dask._task_spec import DataNode
from dask.base import optimize
from dask.highlevelgraph import HighLevelGraph

from sadih_dask.compute.lazy import as_array
from sadih_dask.compute.rows import StoreRows, check_labelled, classes_of
from sadih_dask.compute.run import unique_name
from sadih_dask.compute.tree import Tasks, fill
from sadih_dask.errors import (
    Argument,
    ConflictError,
    FormatError,
    IncompleteError,
    InputError,
    LabelError,
    Remedy,
)
from sadih_dask.files.redaction import redact
from sadih_dask.learning.classes import Renumbering, Vocabulary, in_short, renumbering
from sadih_dask.learning.labels import LabelGroups, group_rows
from sadih_dask.learning.signs import scores, signs
from sadih_dask.learning.statistics import canonical_blocks, check_finite, check_numbers
from sadih_dask.retrieval.codes import n_bytes
from sadih_dask.retrieval.trees import AnyFunction, BoostedTrees
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.codes import CodeWriter
from sadih_dask.stores.columns import MAX_ID_BYTES, fitting
from sadih_dask.stores.coverage import Coverage, Difference
from sadih_dask.stores.root import short_hash
from sadih_dask.stores.segment import Digests
from sadih_dask.types import Array, BitOrder, Bytes, Floats, Ints

logger = logging.getLogger(__name__)

OVERWRITE = Argument("overwrite", True)
CODE_CHUNK_ROWS = 65_536
"""Rows of a chunk of codes, about."""


@dataclass(frozen=True, eq=False)
class HashRows:
    """Codes by the hash function, for any rows."""

    function: AnyFunction
    bitorder: BitOrder = "little"
    array: Literal["features"] = "features"

    dtype = np.dtype(np.uint8)

    @property
    def columns(self) -> int:
        """Bytes of a code."""
        return n_bytes(self.function.n_bits)

    def __call__(self, features: Array, first_row: int) -> Bytes:
        """Packed codes of a block; the rows that needed float64 are counted in the log."""
        check_numbers(features, first_row)
        if self.function.anchor_map is not None:
            check_finite(features, first_row)
        if isinstance(self.function, BoostedTrees):
            bits, again = self.function.signs(features)
        else:
            bits, again = signs(self.function, features)
        if not np.isfinite(features[again]).all():
            check_finite(features, first_row)
        logger.debug("%d of %d rows from %d on needed float64", len(again), len(bits), first_row)
        return np.packbits(bits, axis=1, bitorder=self.bitorder)


@dataclass(frozen=True, eq=False)
class ScoreRows:
    """Real-valued scores, whose signs are the bits."""

    function: AnyFunction

    dtype = np.dtype(np.float64)

    @property
    def columns(self) -> int:
        """Bits of a code."""
        return self.function.n_bits

    def __call__(self, features: Array, first_row: int) -> Floats:
        """Scores of a block."""
        check_numbers(features, first_row)
        check_finite(features, first_row)
        if isinstance(self.function, BoostedTrees):
            return self.function.scores(features)
        return scores(self.function, features)


@dataclass(frozen=True, eq=False)
class LookUpLabels:
    """The learned codes of rows with known labels, which may number classes in their own way."""

    groups: LabelGroups
    label_codes: Bytes
    numbering: Renumbering | None = None
    lacking: tuple[str, ...] = ()
    array: Literal["labels"] = "labels"

    @classmethod
    def in_store(
        cls, groups: LabelGroups, label_codes: Bytes, classes: Vocabulary, store: FeatureStore
    ) -> LookUpLabels:
        """Codes of learned classes for the labels of a store, which meet by name."""
        check_labelled(store)
        own, columns = classes_of(store), store.shape("labels")[1:]
        by_place = bool(columns) and (own is None or classes.are_places)
        numbering = None if by_place else renumbering(classes, own)
        lacking = () if numbering is None or own is None else classes.lacks(own)
        return cls(groups, label_codes, numbering, lacking)

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
            named = f" (classes that it does not know: {in_short(self.lacking)})"
            raise LabelError(
                f"row {first_row + unknown[0]} has a label set that no learned row had "
                f"({len(unknown)} such rows); fit the model to rows with it first"
                f"{named if self.lacking else ''}, or hash the features instead"
            )
        return self.label_codes[place]


class RowFunction(Protocol):
    """What makes a row of ``columns`` numbers of every row that it is given."""

    @property
    def columns(self) -> int:
        """Columns of the result."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the result."""

    def __call__(self, values: Any, first_row: int, /) -> Array:
        """The result of a block; the number of its first row is for messages."""


def map_lazily(array: da.Array, function: RowFunction, block_rows: int, purpose: str) -> da.Array:
    """What a function makes of the rows of a Dask array, as one; every chunk by itself.

    The function is a task of the graph like any other: the result can be computed on every
    scheduler, by another client or after a restart, any number of times.
    """
    whole = array.rechunk(dict.fromkeys(range(1, array.ndim), -1))
    zeros = (0,) * (whole.ndim - 1)
    name, shared = unique_name(purpose), unique_name("function")
    layer: dict[Any, Any] = {shared: DataNode(shared, function)}
    for k, first in enumerate(accumulate(whole.chunks[0][:-1], initial=0)):
        row = 0 if math.isnan(first) else first  # where lengths are unknown, so are the rows
        layer[name, k, 0] = (_map_chunk, (whole.name, k, *zeros), row, shared, block_rows)
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[whole])
    chunks = whole.chunks[0], (function.columns,)
    return da.Array(graph, name, chunks, dtype=function.dtype)


def _map_chunk(chunk: Any, first_row: int, function: RowFunction, block_rows: int) -> Array:
    values = as_array(chunk)
    found = np.empty((len(values), function.columns), function.dtype)
    for rows in canonical_blocks(len(values), block_rows):
        found[rows] = function(values[rows], first_row + rows.start)
    return found


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
    one commit. The same call completes one that was interrupted. Ids and labels of the rows go with
    the codes, so that one can search among those of a label.
    """
    protocol = "learned" if encoder.array == "labels" else "encoded"
    found = None if overwrite else _codes_of(url, model, protocol, bitorder)
    change = None if found is None else change_since(found, store)
    # Codes that were written without labels stay without
    kept = "labels" in store.arrays and (found is None or change is None or found.labelled)
    arrays = [encoder.array, *("labels",) * (kept and encoder.array == "features")]
    arrays += [name for name in ("ids",) if name in store.arrays]
    coverage = Coverage.of(store, arrays, redact(store.url))
    properties: dict[str, Any] = {"protocol": protocol, "covers": coverage.to_json()}
    if kept and store.class_names:
        properties["class_names"] = list(store.class_names)
    if found is not None and change is not None:
        renamed = kept and found.class_names != store.class_names
        if change.is_empty and not renamed:
            return found, 0
        if not change.n_new:
            return found.revise(properties, change.deleted), 0
        key = short_hash([model, properties])
        writer = found.extend(
            change.n_new, model=model, properties=properties, drop=change.deleted, key=key
        )
    else:
        seen = None if found is None else coverage_of(found)
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
            **_label_form(store),
            bitorder=bitorder,
            source=redact(store.url),
            chunk_rows=code_chunk_rows(store.chunk_rows, block_rows),
            properties=properties,
            overwrite=overwrite or found is not None,
        )
    first = store.n_rows - writer.n_rows
    fill(writer, _encode_block, (store, first, encoder, block_rows, kept))
    return writer.finalise(), writer.n_rows


def write_lazy_codes(
    codes: da.Array,
    url: str | os.PathLike[str],
    *,
    ids: Any = None,
    n_bits: int,
    model: str,
    bitorder: BitOrder = "little",
    overwrite: bool = False,
) -> CodeStore:
    """Write the codes of a Dask array to a store, in one pass: each chunk is computed once.

    ``ids`` are an array or a Dask array. What was interrupted is begun anew: nothing tells the rows
    of a Dask array from those of another.
    """
    n_rows = codes.shape[0]
    if math.isnan(n_rows):
        raise InputError(
            "the number of rows of X is unknown, and with it their places in the store; call "
            "X.compute_chunk_sizes() first, or X.to_dask_array(lengths=True) on a data frame"
        )
    ids = ids if ids is None or isinstance(ids, da.Array) else np.asarray(ids)
    if ids is not None and ids.shape != (n_rows,):
        raise InputError(f"ids have shape {ids.shape}; expected one for each of {n_rows} rows")
    writer = CodeStore.allocate(
        url,
        n_rows,
        n_bits=n_bits,
        model=model,
        id_dtype=None if ids is None else _lazy_id_dtype(ids),
        bitorder=bitorder,
        chunk_rows=_lazy_chunk_rows(codes.chunks[0]),
        properties={"protocol": "encoded", "rows": unique_name("rows")},
        overwrite=overwrite,
    )
    ranges = [writer.rows_of(block) for block in range(writer.n_blocks)]
    rows = tuple(stop - start for start, stop in ranges)
    tasks = Tasks("write")
    target = tasks.share(writer, "writer")
    (codes,) = optimize(codes.rechunk((rows, -1)))
    tasks.graph |= dict(codes.__dask_graph__())
    own: Any = None
    if isinstance(ids, da.Array):
        ids = ids.rechunk((rows,))
        tasks.graph |= dict(ids.__dask_graph__())
    keys = []
    for k, (start, stop) in enumerate(ranges):
        if ids is not None:
            own = (ids.name, k) if isinstance(ids, da.Array) else ids[start:stop]
        keys.append(tasks.add((k,), CodeWriter.write, target, start, (codes.name, k, 0), own))
    with writer.all_or_nothing():
        tasks.deliver(keys, lambda _, digests: writer.learn(digests))
        return writer.finalise()


def _lazy_id_dtype(ids: Any) -> str:
    if not isinstance(ids, da.Array):
        return fitting(ids)
    if ids.dtype.kind not in "iuSU":
        raise InputError(
            f"ids are a Dask array of {ids.dtype}, whose length is unknown; pass integers, or text "
            "of a fixed length: ids.astype('U32')"
        )
    if ids.dtype.kind in "iu":
        return "int64"
    # A character has four bytes there, and up to four in UTF-8.
    return f"{ids.dtype.kind}{min(ids.dtype.itemsize, MAX_ID_BYTES)}"


def _lazy_chunk_rows(sizes: tuple[int, ...]) -> int:
    """Rows of a chunk of codes: whole chunks of the array, if these are alike and not too long."""
    unit = max(1, *sizes)
    alike = all(size == unit for size in sizes[:-1]) and unit <= CODE_CHUNK_ROWS
    return unit * (CODE_CHUNK_ROWS // unit) if alike else CODE_CHUNK_ROWS


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


def check_rows(codes: Any, rows: Any) -> None:
    """Refuse a code store that says that it is of other rows than those of a store are now."""
    if not isinstance(codes, CodeStore) or not isinstance(rows, FeatureStore):
        return
    if (seen := coverage_of(codes)) is None:
        return
    change = seen.difference(rows)
    if change is None or not change.is_empty:
        raise InputError(
            f"{codes.url} does not hold codes of the rows of {rows.url} as it is now; encode it "
            "again"
        )


def check_hashed(codes: CodeStore, rows: Any) -> None:
    """Refuse codes that are not those of these rows, or not by the hash function."""
    check_rows(codes, rows)
    if (kind := codes.properties.get("protocol", "encoded")) != "encoded":
        raise InputError(f"{codes.url} holds {kind} codes; encode the rows by the hash function")


def change_since(codes: CodeStore, store: FeatureStore) -> Difference | None:
    """What has changed in a store since its rows were encoded.

    None if the codes cannot be caught up with it: also where rows have other ids, or have ids now.
    """
    seen = coverage_of(codes)
    if seen is None or len({"ids" in held.arrays for held in (codes, seen, store)}) > 1:
        return None
    return seen.difference(store)


def _encode_block(
    writer: CodeWriter,
    block: int,
    job: tuple[FeatureStore, int, HashRows | LookUpLabels, int, bool],
) -> Digests:
    store, offset, encoder, block_rows, labelled = job
    start, stop = writer.rows_of(block)
    first, last = offset + start, offset + stop
    rows = StoreRows(store, 0, store.n_rows)
    blocks = rows.blocks(encoder.array, first, last, block_rows)
    ids = store.begin_read("ids", first, last) if "ids" in store.arrays else None
    labels = store.begin_read("labels", first, last) if labelled else None
    codes = np.concatenate([encoder(values, row) for row, values in blocks])
    return writer.write(start, codes, ids and ids(), labels and labels())


def _id_dtype(store: FeatureStore) -> str | None:
    if "ids" not in store.arrays:
        return None
    dtype = store.dtype("ids")
    if dtype.kind == "i":
        return "int64"
    return f"{dtype.kind}{dtype.itemsize // (4 if dtype.kind == 'U' else 1)}"


def _label_form(store: FeatureStore) -> dict[str, Any]:
    """How labels of a store are kept beside codes: class numbers in four bytes, or bits."""
    columns = store.shape("labels")[1:] if "labels" in store.arrays else None
    if columns is None:
        return {}
    dtype = "int32" if store.class_names else store.dtype("labels").name
    return {"n_labels": columns[0]} if columns else {"label_dtype": dtype}


def code_chunk_rows(chunk_rows: int, block_rows: int) -> int:
    """Rows of a chunk of codes: whole blocks of the scan, and whole chunks of the features."""
    unit = max(block_rows, chunk_rows)
    return unit * max(1, CODE_CHUNK_ROWS // unit)
